"""Parses addresses of relays and ledgers from the command line."""

from __future__ import annotations

import re
from typing import Final

import click

from farflung.app.netcheck.relay import RelayAddress
from farflung.core.ids import ID_BYTES, PeerId

_PLACE: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:,\[\]]{1,253})):(\d{1,5})(?:,([0-9a-fA-F]{64}))?")


def place(text: str) -> RelayAddress:
    """`HOST:PORT` or `HOST:PORT,KEY`; an IPv6 address in brackets. Raises click.BadParameter."""
    match = _PLACE.fullmatch(text)
    if match is None or not 0 < int(match[3]) < 1 << 16:
        raise click.BadParameter(
            f"{text!r} is not HOST:PORT or HOST:PORT,KEY, with a key of {2 * ID_BYTES} hex digits"
        )
    key = PeerId(bytes.fromhex(match[4])) if match[4] else None
    return RelayAddress(match[1] or match[2], int(match[3]), key)


def ledger(context: click.Context, option: click.Parameter, text: str | None) -> RelayAddress | None:
    """A ledger's place, with its key. Raises click.BadParameter."""
    if text is None:
        return None
    named = place(text)
    if named.key is None:
        raise click.BadParameter("a ledger is named with its key: HOST:PORT,KEY")
    return named

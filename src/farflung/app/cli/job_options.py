"""Parses what several verbs take: options that select a job, and addresses of relays and ledgers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from farflung.app.cli.completion import job_files, keys_to_set, presets
from farflung.app.netcheck.relay import RelayAddress
from farflung.core.ids import ID_BYTES, PeerId


def flags_of(
    settings: tuple[str, ...], seed: int | None = None, rounds: int | None = None, deadline: str | None = None
) -> dict[str, str]:
    """Values of a job by their keys. Raises click.UsageError for what is no key=value."""
    flags = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--set takes key=value, not {setting!r}. Example: --set sync.steps=20")
        flags[key.strip()] = _unquoted(value.strip())
    named = {"seed": seed, "rounds": rounds, "deadline": deadline}
    return {**flags, **{key: str(value) for key, value in named.items() if value is not None}}


def _unquoted(value: str) -> str:
    """A text as a job file has it, without its quotes: who copies a line of one gives them, too."""
    is_quoted = len(value) > 1 and value[0] == value[-1] == '"' and '"' not in value[1:-1]
    return value[1:-1] if is_quoted else value


JOB = click.argument("job", required=False, type=click.Path(dir_okay=False, path_type=Path), shell_complete=job_files)
PRESET = click.option(
    "--preset", default="local", show_default=True, shell_complete=presets, help="Preset to start from."
)
SET = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=keys_to_set,
    help="Set one value of the job.",
)
SEED = click.option("--seed", type=int, help="Seed of weights, data order and local keys.")
ROUNDS = click.option("--rounds", type=int, help="Number of sync rounds.")


_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:,\[\]]{1,253})):(\d{1,5})(?:,([0-9a-fA-F]{64}))?")


def relay_address(text: str) -> RelayAddress:
    """`HOST:PORT` or `HOST:PORT,KEY`; an IPv6 address in brackets. Raises click.BadParameter."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[3]) < 1 << 16:
        raise click.BadParameter(f"{text!r} is not HOST:PORT or HOST:PORT,KEY, with a key of {2 * ID_BYTES} hex digits")
    key = PeerId(bytes.fromhex(match[4])) if match[4] else None
    return RelayAddress(match[1] or match[2], int(match[3]), key)


def ledger_address(context: click.Context, option: click.Parameter, text: str | None) -> RelayAddress | None:
    """A ledger's address, with its key. Raises click.BadParameter."""
    if text is None:
        return None
    named = relay_address(text)
    if named.key is None:
        raise click.BadParameter("a ledger is named with its key: HOST:PORT,KEY")
    return named

"""Looks up an argument of `farflung ledger show`: block, job, node, account or transaction, by prefix."""

from __future__ import annotations

from typing import Final, NamedTuple

from farflung.app.explorer.sources import LedgerSource
from farflung.core.errors import UsageError
from farflung.peers.ledger_http.handlers import LEAST_DIGITS

WORDS: Final = ("head", "validators", "params")
HEIGHT_DIGITS: Final = 12  # more digits are a name
_ORDER: Final = ("jobs", "nodes", "accounts", "txs")  # a node has an account of the same name


class LookupTarget(NamedTuple):
    """`kind`: a word of WORDS, `block`, or where the name was found (a table, or `txs`)."""

    kind: str
    name: str = ""


def place_of(source: LedgerSource, said: str) -> LookupTarget:
    """Raises UsageError: FF-APP-285 nothing of that name, FF-APP-286 more than one, FF-APP-287 no name at all."""
    text = said.lower()
    if text in WORDS:
        return LookupTarget(text)
    if text.isascii() and text.isdigit() and len(text) <= HEIGHT_DIGITS:
        return LookupTarget("block", str(int(text)))
    if len(text) < LEAST_DIGITS or len(text) > 64 or not set(text) <= set("0123456789abcdef"):
        raise UsageError(
            "FF-APP-287",
            f"{said[:80]!r} names nothing in a ledger",
            cause=f"a name is hexadecimal, or its first {LEAST_DIGITS} digits at least; a block is a number",
            hint=f"or one of the words {', '.join(WORDS)}",
        )
    answer = source.get(f"/v1/find/{text}")
    found = sorted(((each["name"], each["where"]) for each in answer["found"] if each["where"] in _ORDER), key=_rank)
    names = {name for name, _ in found}
    if len(names) == 1:
        return LookupTarget(found[0][1], found[0][0])
    if names:
        listed = ", ".join(f"{where} {name[: len(text) + 8]}" for name, where in found[:4])
        raise UsageError("FF-APP-286", f"{said} is not unique", cause=listed, hint="give more of its digits")
    raise UsageError(
        "FF-APP-285",
        f"{source.name} holds nothing of the name {said[:64]}",
        cause="no transaction, job, node or account begins so" + ("" if answer["is_all"] else ", of the newest"),
        hint="name another source with --from",
    )


def _rank(found: tuple[str, str]) -> int:
    return _ORDER.index(found[1])

"""Implements `ledger statement` and `ledger export`: an account's statement, and a whole ledger as JSON lines."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from farflung.app.cli.network_client import ON_LEDGER, source_of
from farflung.app.cli.receipt import hash_of
from farflung.app.explorer.ledger_export import lines_of
from farflung.app.explorer.lookup import place_of
from farflung.app.explorer.proofs import ProofChecker
from farflung.app.explorer.sources import LedgerSource, chain_from
from farflung.app.explorer.statements import as_csv, between, record, statement_of
from farflung.core.errors import UsageError
from farflung.core.ids import Hash, PeerId
from farflung.core.money import MAX_CREDITS
from farflung.ledger.chain import Chain

_ACCOUNTS: Final = ("accounts", "nodes")
_FROM = click.option(
    "--from", "source", metavar="PLACE", help="A run, a ledger's file, an export, or a URL. Default: the newest run."
)
_GENESIS = click.option(
    "--genesis", metavar="HASH", callback=hash_of, help="The ledger's genesis, known from elsewhere."
)
_OUT = click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Default: standard output.")


def _moment(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Ledger milliseconds of a date or moment in UTC."""
    if value is None:
        return None
    try:
        at = datetime.datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value[:40]!r} is not like 2026-01-31 or 2026-01-31T12:00", ctx, param) from None
    return int((at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp() * 1000)


@click.command(
    epilog="Example: farflung ledger statement 3f9a --csv -o books.csv",
    short_help="Write an account's statement, for its books.",
)
@click.argument("key", metavar="KEY")
@_FROM
@ON_LEDGER
@_GENESIS
@click.option("--since", metavar="DATE", callback=_moment, help="From this moment on (UTC).")
@click.option("--until", metavar="DATE", callback=_moment, help="Before this moment (UTC).")
@click.option("--csv", "as_csv_file", is_flag=True, help="Rows for a spreadsheet (RFC 4180).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@_OUT
def statement(
    key: str,
    source: str | None,
    on: str | None,
    genesis: Hash | None,
    since: int | None,
    until: int | None,
    as_csv_file: bool,
    as_json: bool,
    out: Path | None,
) -> None:
    """Write why the account KEY has what it has: one line for each change, with the balance after it.

    It follows from all blocks, which are executed again here; its last balance is the
    account's row. Amounts are exact: pico-credits, and credits with six to twelve places.
    """
    if as_csv_file and as_json:
        raise click.UsageError("--csv and --json are two forms of one thing: choose one")
    held, chain = _chain(source, on, genesis)
    account = _account(held, key)
    lines = between(statement_of(chain, account), since or 0, MAX_CREDITS if until is None else until)
    records = map(record, lines)
    if as_json:
        _write(out, _json(_facts(chain, account), records))
    else:
        text = as_csv(records) if as_csv_file else _words(chain, account, records)
        _write(out, (part.encode() for part in text))


@click.command(
    epilog="Example: farflung ledger export -o ledger.jsonl", short_help="Write a whole ledger as JSON lines."
)
@_FROM
@ON_LEDGER
@_GENESIS
@_OUT
@click.option("--json", "as_json", is_flag=True, help="Nothing else than without it: lines of JSON.")
def export(source: str | None, on: str | None, genesis: Hash | None, out: Path | None, as_json: bool) -> None:
    """Write blocks, certificates and rows as JSON lines, each with its canonical bytes.

    `farflung ledger show WHAT --from FILE` reads such a file, and executes it again.
    """
    _, chain = _chain(source, on, genesis)
    _write(out, lines_of(chain))


def _chain(named: str | None, on: str | None, genesis: Hash | None) -> tuple[LedgerSource, Chain]:
    source = source_of(named, on)
    checker = ProofChecker(source, genesis)
    return source, chain_from(source, checker.genesis)


def _account(source: LedgerSource, key: str) -> PeerId:
    """The account that is named. Raises UsageError FF-APP-288 for something else."""
    place = place_of(source, key)
    if place.kind not in _ACCOUNTS:
        raise UsageError(
            "FF-APP-288",
            f"{key[:64]} is no account",
            cause=f"it is found among the {place.kind}",
            hint="give the key of an account, or its first digits",
        )
    return PeerId(bytes.fromhex(place.name))


def _facts(chain: Chain, account: PeerId) -> dict[str, Any]:
    return {
        "account": account.hex(),
        "genesis": chain.id.hex(),
        "height": chain.head.height,
        "block": chain.head.id.hex(),
    }


def _json(facts: dict[str, Any], records: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """The facts and the records, as `entries`, in one JSON object, written one record at a time."""
    yield msgspec.json.encode({**facts, "entries": []}).removesuffix(b"]}")
    for number, each in enumerate(records):
        yield (b"," if number else b"") + msgspec.json.encode(each)
    yield b"]}\n"


def _words(chain: Chain, account: PeerId, records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Lines of at most 80 columns: two an entry, the second for its amounts."""
    last = None
    yield f"Account  {account.hex()}\n"
    yield f"As of    block {chain.head.height} of ledger {chain.id.hex()[:32]}...\n"
    yield _happening("time (UTC)", "block", "what", "with")
    yield _amounts("credits", "balance", "tied up")
    for last in records:
        when, other = last["time"].removesuffix(" UTC"), last["counterparty"][:12]
        yield _happening(when, str(last["block"]), last["what"], other)
        yield _amounts(last["amount_credits"], last["balance_credits"], last["tied_up_credits"])
    if last:
        yield f"Balance  {last['balance_credits']} credits free, {last['tied_up_credits']} tied up\n"


def _happening(time: str, block: str, what: str, other: str) -> str:
    return f"{time:<19}  {block:>8}  {what:<23}  {other}".rstrip() + "\n"


def _amounts(*amounts: str) -> str:
    return "".join(f"  {amount:>21}" for amount in amounts) + "\n"


def _write(out: Path | None, parts: Iterable[bytes]) -> None:
    """To standard output, or to a file that appears when it is whole."""
    if out is None:
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    half = out.with_name(f"{out.name}.part")
    with half.open("wb") as file:
        file.writelines(parts)
    half.replace(out)

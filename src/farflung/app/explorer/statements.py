"""Writes an account's statement: rows with balances, as CSV (RFC 4180) or JSON, exact to the pico-credit."""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from farflung.app.explorer.operation_text import moment
from farflung.core.errors import RunError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.money import format_credits
from farflung.ledger.account_statement import StatementEntry, entries_of, held_by
from farflung.ledger.chain import Chain
from farflung.ledger.table_rows import NOBODY, AccountRow

COLUMNS: Final = (
    "time",
    "time_ms",
    "block",
    "transaction",
    "what",
    "counterparty",
    "job",
    "amount",
    "amount_credits",
    "balance",
    "balance_credits",
    "tied_up",
    "tied_up_credits",
)
_FORMULA: Final = tuple("=+-@\t\r")  # what makes a spreadsheet compute a cell


@dataclass(frozen=True, slots=True)
class StatementLine:
    """An entry with what the account had after it, in pico-credits: free, and tied up in stakes, escrows, deposits."""

    entry: StatementEntry
    balance: int
    held: int


def lines_of(entries: Iterable[StatementEntry], account: PeerId) -> Iterator[StatementLine]:
    """The lines of one account."""
    balance = held = 0
    for entry in entries:
        if entry.account == account:
            balance, held = balance + entry.amount, held + entry.held
            yield StatementLine(entry, balance, held)


def statement_of(chain: Chain, account: PeerId) -> Iterator[StatementLine]:
    """The whole statement, by executing all blocks again, twice: no line is given before its sum is known to hold.

    Held is one block and the state after it, however long the chain is.

    Raises RunError FF-APP-280 where old blocks are not kept, -289 when it does not end at what the ledger's rows say.
    """
    if chain.history.first > 1 and chain.head.height:
        raise RunError(
            "FF-APP-280",
            "a statement needs every block since the genesis",
            cause=f"this source keeps them from block {chain.history.first} on",
            hint="ask a validator that keeps all of them, or an export that was made of it",
        )
    end = deque(_lines_in(chain, account), maxlen=1)
    last = (end[0].balance, end[0].held) if end else (0, 0)
    row = chain.state.find(AccountRow, account) or AccountRow(account)
    if last != (row.balance, held_by(chain.state, account)):
        raise RunError(
            "FF-APP-289",
            f"the statement ends at {format_credits(last[0])} credits, the account holds {format_credits(row.balance)}",
            cause="something moved this account's money that no entry explains: this is a mistake in farflung itself",
            hint="report it with the output of `farflung ledger export`",
        )
    return _lines_in(chain, account)


def _lines_in(chain: Chain, account: PeerId) -> Iterator[StatementLine]:
    return lines_of(entries_of(chain.genesis, chain.kept()), account)


def between(lines: Iterable[StatementLine], since: int, until: int) -> Iterator[StatementLine]:
    """Lines of blocks with since <= time < until, in ledger milliseconds."""
    return (line for line in lines if since <= line.entry.time < until)


def record(line: StatementLine) -> dict[str, Any]:
    """One line by the names of COLUMNS: ids in hexadecimal, empty where there is none."""
    entry = line.entry
    return {
        "time": moment(entry.time),
        "time_ms": entry.time,
        "block": entry.height,
        "transaction": _name(entry.tx),
        "what": entry.what.value,
        "counterparty": _name(entry.other),
        "job": _name(entry.about),
        "amount": entry.amount,
        "amount_credits": format_credits(entry.amount),
        "balance": line.balance,
        "balance_credits": format_credits(line.balance),
        "tied_up": line.held,
        "tied_up_credits": format_credits(line.held),
    }


def _name(name: bytes) -> str:
    return "" if name in (ZERO_HASH, NOBODY) else name.hex()


def as_csv(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A head and one row a record, one at a time; no text in it can be taken for a formula."""
    yield _csv_row(COLUMNS)
    for record in records:
        yield _csv_row(cell(record[name]) for name in COLUMNS)


def _csv_row(cells: Iterable[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(cells)
    return out.getvalue()


def cell(value: object) -> str:
    """A value as a cell: numbers as they are, text behind an apostrophe where a spreadsheet would compute it."""
    text = str(value)
    if isinstance(value, int) or _is_amount(text) or not text.startswith(_FORMULA):
        return text
    return "'" + text


def _is_amount(text: str) -> bool:
    whole, point, parts = text.removeprefix("-").partition(".")
    return bool(point) and whole.isascii() and whole.isdigit() and parts.isascii() and parts.isdigit()

"""Defines the search queries: pages of proved rows, names by their first digits, transactions of one job.

Each of them looks at a bounded part of the ledger, because strangers ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from farflung.core.codec import Wire, encode
from farflung.core.ids import ID_BYTES, Hash, PeerId
from farflung.ledger.chain import Chain
from farflung.ledger.earnings_tally import SettleMany
from farflung.ledger.receipt_checks import LedgerReceipt, prove
from farflung.ledger.table_rows import KINDS, AccountRow, JobRow, LeaseRow, NodeRow
from farflung.ledger.transactions import Op, SignedTx

ROWS: Final = 64  # receipts in one answer, at most
FOUND: Final = 16  # names in one answer, at most
SEARCHED: Final = 1 << 16  # names of each kind that one search looks at, the newest
BLOCKS: Final = 256  # that are looked through for one answer
NAMED: Final = (AccountRow, NodeRow, JobRow)  # tables whose keys people write

_PAGE_BYTES: Final = 1 << 20


class GetRows(Wire, frozen=True, tag="rows"):
    """Proofs of the rows of one table, from row index `start` on."""

    table: str
    start: int = 0


class GetNodeLeases(Wire, frozen=True, tag="leases_of"):
    """Proofs of a node's leases, from row index `start` of all leases on."""

    node: PeerId
    start: int = 0


class GetNames(Wire, frozen=True, tag="find"):
    """What has a name that begins with these hexadecimal digits."""

    digits: str


class GetJobTxs(Wire, frozen=True, tag="life"):
    """Transactions that name a job, in blocks behind `height`."""

    job: Hash
    height: int = 0


class RowsReply(Wire, frozen=True, tag="rows"):
    """Up to ROWS receipts; `next` is where to go on, None at the end (and for a table that there is not)."""

    receipts: tuple[LedgerReceipt, ...]
    next: int | None


class FoundName(Wire, frozen=True):
    """One name: `where` is a table, or `txs`."""

    where: str
    name: bytes


class NamesReply(Wire, frozen=True, tag="find"):
    """Up to FOUND names. `is_all`: every name was looked at, not only the newest."""

    found: tuple[FoundName, ...]
    is_all: bool


class JobTxsReply(Wire, frozen=True, tag="life"):
    """(height, place in the block) of each transaction that names the job, in blocks up to `height`: ask on from there.

    `head` is the newest height; when both are the same, nothing is left to ask.
    """

    places: tuple[tuple[int, int], ...]
    height: int
    head: int


def rows_reply(chain: Chain, table: str, start: int) -> RowsReply:
    """Receipts of rows from index `start` on, and where to go on."""
    rows: Sequence[object] = chain.state.tables[table].rows if table in KINDS else ()
    found: list[LedgerReceipt] = []
    room = _PAGE_BYTES
    for place in range(max(0, start), len(rows)):
        row = chain.state.tables[table].rows[place]
        if len(found) == ROWS or room < 0:
            return RowsReply(tuple(found), place)
        found.append(prove(chain, table, row.key))
        room -= len(encode(found[-1]))
    return RowsReply(tuple(found), None)


def node_leases_reply(chain: Chain, node: PeerId, start: int) -> RowsReply:
    """Receipts of a node's leases among the next SEARCHED ones from index `start` on, and where to go on."""
    rows = chain.state.rows(LeaseRow)
    first = max(0, start)
    found: list[LedgerReceipt] = []
    for place, lease in enumerate(rows[first : first + SEARCHED], first):
        if len(found) == ROWS:
            return RowsReply(tuple(found), place)
        if lease.node == node:
            found.append(prove(chain, LeaseRow.TABLE, lease.key))
    end = first + SEARCHED
    return RowsReply(tuple(found), end if end < len(rows) else None)


def names_reply(chain: Chain, digits: str) -> NamesReply:
    """What begins with these digits.

    What is no hexadecimal number, or too long for an id, begins nothing.
    """
    if not digits or len(digits) > 2 * ID_BYTES or not set(digits) <= set("0123456789abcdef"):
        return NamesReply((), True)
    found: list[FoundName] = []
    is_all = True
    for kind in NAMED:
        rows = chain.state.tables[kind.TABLE].rows
        first = max(0, len(rows) - SEARCHED)
        is_all &= first == 0
        found += [FoundName(kind.TABLE, row.key) for row in rows[first:] if row.key.hex().startswith(digits)]
    lowest, highest = (bytes.fromhex(digits.ljust(2 * ID_BYTES, end)[: 2 * ID_BYTES]) for end in "0f")
    found += [FoundName("txs", name) for name in chain.history.named(lowest, highest, FOUND)]
    return NamesReply(tuple(found[:FOUND]), is_all and len(found) < FOUND)


def job_txs_reply(chain: Chain, job: Hash, height: int) -> JobTxsReply:
    """The transactions that name `job` in the next BLOCKS blocks behind `height`."""
    head = chain.head.height
    first = min(max(0, height), head)
    found: list[tuple[int, int]] = []
    last = min(first, head)
    for block in chain.history.blocks(first + 1, BLOCKS):
        found += [(block.header.height, place) for place in _naming(job, block.txs)]
        last = block.header.height
        if len(found) >= ROWS:
            break
    return JobTxsReply(tuple(found), last, head)


def _naming(job: Hash, txs: Sequence[SignedTx]) -> Iterator[int]:
    for place, signed in enumerate(txs):
        if any(job_of(op) == job for op in signed.tx.ops):
            yield place


def job_of(op: Op) -> Hash | None:
    """The job that an operation names, if it does."""
    return op.signed.tally.job if isinstance(op, SettleMany) else getattr(op, "job", None)

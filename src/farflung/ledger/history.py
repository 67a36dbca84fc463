"""Stores the history behind a chain's head: blocks, an index of transactions, and successive committees.

Rules look at the state alone; the past is for those who ask. A chain that only one process reads keeps it in memory
(`InMemoryHistory`), a validator in its store (ledger.io.ledger_store), which does not grow with memory and may forget
old transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from farflung.core.ids import Hash, PeerId
from farflung.ledger.block import Block
from farflung.ledger.block_execution import ExecutedBlock
from farflung.ledger.row_receipt import LedgerReceipt, prove_row
from farflung.ledger.transactions import KeyCertify, KeyRevoke, SignedTx
from farflung.ledger.tx_results import FailedResult
from farflung.ledger.validators import CommitteeRow

Place = tuple[int, str]  # a transaction's height, and the code of its failure


class ChainHistory(Protocol):
    """Everything up to the head. Heights and epochs that it does not know give nothing."""

    @property
    def first(self) -> int:
        """The lowest height from which on all blocks are kept whole; behind the head where none is."""

    @property
    def keyed_from(self) -> int:
        """Behind this height every change of a node key is known; 0 where all are."""

    def find(self, tx: Hash) -> Place | None:
        """Where a transaction is."""

    def named(self, lowest: bytes, highest: bytes, count: int) -> Sequence[Hash]:
        """Ids of transactions between two ids, in order."""

    def blocks(self, first: int, count: int) -> Iterable[Block]:
        """Blocks from a height on."""

    def steps(self, epoch: int, count: int) -> Sequence[LedgerReceipt]:
        """The committee's row of each epoch behind `epoch`, certified by the committee before it."""

    def keyed(self, height: int, count: int) -> Sequence[tuple[int, PeerId]]:
        """(height, account) of changes of node keys in blocks behind `height`, in order."""

    def add(self, block: Block, executed: ExecutedBlock) -> None:
        """The chain moved to this block."""


class InMemoryHistory:
    """All of it in lists."""

    first, keyed_from = 1, 0

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._steps: list[LedgerReceipt] = []
        self._keyed: list[tuple[int, PeerId]] = []
        self._found: dict[Hash, Place] = {}

    def find(self, tx: Hash) -> Place | None:
        """Where a transaction is."""
        return self._found.get(tx)

    def named(self, lowest: bytes, highest: bytes, count: int) -> Sequence[Hash]:
        """Ids of transactions between two ids, in order."""
        return sorted(name for name in self._found if lowest <= name <= highest)[:count]

    def blocks(self, first: int, count: int) -> Iterable[Block]:
        """Blocks from a height on."""
        return self._blocks[max(1, first) - 1 :][:count]

    def steps(self, epoch: int, count: int) -> Sequence[LedgerReceipt]:
        """The committee's row of each epoch behind `epoch`."""
        return self._steps[max(0, epoch) :][:count]

    def keyed(self, height: int, count: int) -> Sequence[tuple[int, PeerId]]:
        """(height, account) of changes of node keys in blocks behind `height`, in order."""
        return [each for each in self._keyed if each[0] > height][:count]

    def add(self, block: Block, executed: ExecutedBlock) -> None:
        """The chain moved to this block."""
        step = step_of(block, executed)
        self._blocks.append(block)
        self._steps += [step] if step else []
        self._keyed += [(block.header.height, account) for account in keyed_by(block.txs)]
        self._found.update(places_of(executed))


def places_of(executed: ExecutedBlock) -> dict[Hash, Place]:
    """Where a block's transactions are to be found."""
    height = executed.header.height
    return {each.tx: (height, each.code if isinstance(each, FailedResult) else "") for each in executed.outcomes}


def keyed_by(txs: Iterable[SignedTx]) -> list[PeerId]:
    """The senders that say something of their node keys, each once, in the order of their keys."""
    senders = {
        signed.tx.sender for signed in txs if any(isinstance(op, KeyCertify | KeyRevoke) for op in signed.tx.ops)
    }
    return sorted(senders)


def step_of(block: Block, executed: ExecutedBlock) -> LedgerReceipt | None:
    """The receipt of the committee that a block opens, certified by the committee before it."""
    if not executed.state.closes:
        return None
    opened = executed.state.committee
    return prove_row(executed.state, block.header, block.certificate, CommitteeRow.TABLE, opened.key)

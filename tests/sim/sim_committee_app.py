"""A ledger that is a chain of hashes, cheap keys, and a script of committees: what most simulated schedules run on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from farflung.core.crypto import digest, is_signed
from farflung.core.ids import ZERO_HASH, Hash, PeerId, Signature
from farflung.ledger import stateless_checks, votes
from farflung.ledger.block import Block, BlockHeader, txs_root
from farflung.ledger.rules import accounts, jobs, validators
from farflung.ledger.sdbft.replica_events import DraftBlock

CHAIN = digest("sim/chain")
NO_TXS = txs_root(())
CLOCK_MS = 5000


_CHEAP: set[PeerId] = set()
_JUDGES: tuple[Any, ...] = (votes, stateless_checks, accounts, jobs, validators)


class CheapKey:
    """Signs as an Ed25519 key does, at the price of a hash. Nobody in the simulation makes another's signature."""

    def __init__(self, index: int) -> None:
        self.public = PeerId(digest("sim/key", index.to_bytes(4, "little")))
        _CHEAP.add(self.public)

    def sign(self, namespace: str, *parts: bytes) -> Signature:
        return _cheap(self.public, namespace, *parts)


@lru_cache(maxsize=1 << 14)  # every node judges the same votes
def _cheap(public: bytes, namespace: str, *parts: bytes) -> Signature:
    half = digest(namespace, public, *parts)
    return Signature(half + half)


def _is_cheap(public: bytes, signature: bytes, namespace: str, *parts: bytes) -> bool:
    if public not in _CHEAP:
        return is_signed(public, signature, namespace, *parts)
    return signature == _cheap(public, namespace, *parts)


@contextmanager
def cheap_signatures() -> Iterator[None]:
    """All who judge signatures know the cheap keys too."""
    before = [place.is_signed for place in _JUDGES]
    for place in _JUDGES:
        place.is_signed = _is_cheap
    try:
        yield
    finally:
        for place, judge in zip(_JUDGES, before, strict=True):
            place.is_signed = judge


@dataclass(frozen=True)
class Script:
    """Who sits when: `reigns[e]` are the seats of epoch e, which may end every `epoch_blocks`; the last stays."""

    reigns: tuple[tuple[int, ...], ...]
    epoch_blocks: int = 1 << 30

    def closes(self, header: BlockHeader, first: int) -> bool:
        is_boundary = header.height >= first and (header.height - first + 1) % self.epoch_blocks == 0
        return is_boundary and header.epoch + 1 < len(self.reigns)


ROOT = BlockHeader(CHAIN, 0, 0, 0, PeerId(ZERO_HASH), ZERO_HASH, NO_TXS, digest("sim/state"))


def state_after(parent: BlockHeader, time: int, proposer: PeerId) -> Hash:
    return digest("sim/state", parent.state, time.to_bytes(8, "little"), proposer)


@dataclass
class HashApp:
    """One replica's ledger: executed headers by id, and which of them close their epoch."""

    script: Script
    works: bool = True
    head: BlockHeader = ROOT
    epoch: int = 0
    first: int = 1
    executed: dict[Hash, BlockHeader] = field(default_factory=lambda: {ROOT.id: ROOT})

    def build(self, parent: BlockHeader, proposer: PeerId, now_ms: int) -> DraftBlock:
        time = max(parent.time + 1, now_ms)
        state = state_after(parent, time, proposer)
        header = BlockHeader(CHAIN, parent.height + 1, self.epoch, time, proposer, parent.id, NO_TXS, state)
        self.executed[header.id] = header
        return DraftBlock(header, ())

    def judge(self, draft: DraftBlock, now_ms: int, is_new: bool) -> bool:
        header = draft.header
        parent = self.executed[header.parent]
        if is_new and abs(header.time - now_ms) > CLOCK_MS:
            return False
        good = header.height == parent.height + 1 and header.time > parent.time
        if not good or header.state != state_after(parent, header.time, header.proposer):
            return False
        self.executed[header.id] = header
        return True

    def closes(self, header: BlockHeader) -> bool:
        return self.script.closes(header, self.first)

    def adopt(self, blocks: tuple[Block, ...]) -> bool:
        """Executes final blocks; whether the last closes the epoch."""
        for block in blocks:
            assert block.header.parent == self.head.id, "final blocks do not follow"
            assert self.judge(DraftBlock(block.header, block.txs), 0, is_new=False), "a final block is invalid"
            self.head = block.header
        closes = self.closes(self.head)
        if closes:
            self.epoch, self.first = self.epoch + 1, self.head.height + 1
        kept = {self.head.id: self.head}  # as a ledger would, that keeps no state of another branch
        for name, header in sorted(self.executed.items(), key=lambda item: item[1].height):
            if header.parent in kept:
                kept[name] = header
        self.executed = kept
        return closes

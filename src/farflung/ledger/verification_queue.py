"""Queues transactions, and blocks with unchecked ones, while other processes check their form and signatures.

Pure. A validator's node hands out parts (`VerifyJob`) and learns what was found of each; nothing else is remembered
than what waits, verdicts are in the pool's memory. The rules:

    first        what a proposed block holds, then what clients and validators handed in, each as it came
    in parts     as many at a time as the node was told, so that a part grows while others are out: one at rest, many
                 under load, limits.JUDGE_TXS of limits.JUDGE_BYTES together at most
    bounded      beyond limits.DOCKET_TXS or DOCKET_BYTES what is handed in is not taken, and is judged by who asked;
                 blocks are bounded by the replica, which keeps few proposals
    no answer    means a verdict anyway: it is found here
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.ids import Hash
from farflung.ledger.mempool import CheckedTxCache, Fault
from farflung.ledger.sdbft.replica_events import DraftBlock
from farflung.ledger.stateless_checks import Stamp
from farflung.ledger.transactions import SignedTx, tx_id

_FRAME: Final = 16  # bytes around a transaction, and around a part


@dataclass(frozen=True, slots=True)
class VerifyJob:
    """Transactions whose form and signature another process judges; answered with `LedgerNode.examined`."""

    number: int
    txs: tuple[SignedTx, ...]


class SubmittedTx(NamedTuple):
    """A transaction that was handed in, and the clients' tickets for it: none if a validator passed it on."""

    signed: SignedTx
    tickets: list[int]


@dataclass(slots=True)
class _WaitingBlock:
    draft: DraftBlock
    missing: set[Stamp] = field(default_factory=set)


class VerificationQueue:
    """What waits, what is out, and for whom."""

    def __init__(self, verdicts: CheckedTxCache, explain: Callable[[SignedTx, bool], Fault | None], parts: int) -> None:
        """`explain`: the verdict on a transaction whose form and signature hold, or do not. `parts` out at a time."""
        self._verdicts, self._explain, self._parts = verdicts, explain, parts
        self._arrivals: dict[Stamp, SubmittedTx] = {}
        self._waiting_blocks: dict[Hash, _WaitingBlock] = {}
        self._urgent: dict[Stamp, SignedTx] = {}
        self._rest: dict[Stamp, SignedTx] = {}
        self._out: dict[int, dict[Stamp, SignedTx]] = {}
        self._asked: set[Stamp] = set()
        self._number = self.size = 0

    def __len__(self) -> int:
        return len(self._arrivals)

    def defer(self, signed: SignedTx, tickets: Sequence[int] = ()) -> bool:
        """Takes in what was handed in and nobody judged yet, while there is room."""
        stamp = (tx_id(signed), signed.signature)
        known = self._arrivals.get(stamp)
        if known is not None:
            known.tickets.extend(tickets)
            return True
        size = len(encode(signed)) + _FRAME
        is_full = (
            len(self._arrivals) >= limits.VERIFICATION_QUEUE_TXS or self.size + size > limits.VERIFICATION_QUEUE_BYTES
        )
        if not self._parts or is_full or self._verdicts.has(stamp):
            return False
        self._arrivals[stamp] = SubmittedTx(signed, list(tickets))
        self.size += size
        if stamp not in self._asked and stamp not in self._urgent:
            self._rest[stamp] = signed
        return True

    def hold(self, draft: DraftBlock) -> bool:
        """Takes in a block of which some transactions were not judged yet; it comes back when all are."""
        if not self._parts:
            return False
        stamps = {(tx_id(signed), signed.signature): signed for signed in draft.txs}
        missing = {stamp: signed for stamp, signed in stamps.items() if not self._verdicts.has(stamp)}
        for stamp, signed in missing.items():
            self._rest.pop(stamp, None)
            if stamp not in self._asked:
                self._urgent[stamp] = signed
        if missing:
            self._waiting_blocks[draft.header.id] = _WaitingBlock(draft, set(missing))
        return bool(missing)

    def forget(self, tickets: Collection[int]) -> None:
        """Nobody waits for these any more."""
        for arrival in self._arrivals.values():
            arrival.tickets[:] = [ticket for ticket in arrival.tickets if ticket not in tickets]

    def drop(self, height: int) -> None:
        """Blocks up to this height are final: nobody votes for them, or for others of their height."""
        self._waiting_blocks = {
            name: waiting for name, waiting in self._waiting_blocks.items() if waiting.draft.header.height > height
        }
        wanted = {stamp for waiting in self._waiting_blocks.values() for stamp in waiting.missing}
        self._rest |= {s: signed for s, signed in self._urgent.items() if s not in wanted and s in self._arrivals}
        self._urgent = {stamp: signed for stamp, signed in self._urgent.items() if stamp in wanted}

    def hand_out(self) -> list[VerifyJob]:
        """The next parts."""
        jobs: list[VerifyJob] = []
        while len(self._out) < self._parts and (self._urgent or self._rest):
            part = self._part()
            self._out[self._number] = part
            self._asked.update(part)
            jobs.append(VerifyJob(self._number, tuple(part.values())))
            self._number += 1
        return jobs

    def _part(self) -> dict[Stamp, SignedTx]:
        part: dict[Stamp, SignedTx] = {}
        room = limits.JUDGE_BYTES - _FRAME
        for queue in (self._urgent, self._rest):
            while queue and len(part) < limits.JUDGE_TXS:
                stamp, signed = next(iter(queue.items()))
                room -= len(encode(signed)) + _FRAME
                if part and room < 0:
                    return part
                part[stamp] = queue.pop(stamp)
        return part

    def settle(self, number: int, sound: Sequence[bool] | None) -> tuple[list[SubmittedTx], list[DraftBlock]]:
        """What was found of a part; None: nobody answered. What came in with it, and blocks that wait no more."""
        part = self._out.pop(number, {})
        self._asked.difference_update(part)
        answers: Iterable[bool | None] = [None] * len(part) if sound is None else sound
        for (stamp, signed), holds in zip(part.items(), answers, strict=True):
            if holds is None:
                self._verdicts(signed)
            else:
                self._verdicts.learn(stamp[0], signed, self._explain(signed, holds))
        arrivals = [self._arrivals.pop(stamp) for stamp in part if stamp in self._arrivals]
        self.size -= sum(len(encode(arrival.signed)) + _FRAME for arrival in arrivals)
        for waiting in self._waiting_blocks.values():
            waiting.missing.difference_update(part)
        ready = [waiting.draft for waiting in self._waiting_blocks.values() if not waiting.missing]
        for draft in ready:
            del self._waiting_blocks[draft.header.id]
        return arrivals, ready

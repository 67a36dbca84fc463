"""Builds a block on top of another one, and checks one that was built elsewhere.

It is pure: finality is decided elsewhere (chain, sdbft).

Time: a block is later than its parent by 1 ms at least and by `params.step_ms_max` (an hour) at most. A clock that
went back gives parent + 1; a clock that leapt ahead moves the ledger one hour a block, so that one bad reading
cannot run out every deadline. After a long pause empty blocks catch up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.core.release import LAW
from farflung.ledger.block import BlockHeader, Genesis, txs_root
from farflung.ledger.law_version import check_law
from farflung.ledger.state_transition import LedgerState, apply_block, genesis_header, genesis_state
from farflung.ledger.stateless_checks import UNJUDGED, Stamps
from farflung.ledger.transactions import SignedTx, tx_id
from farflung.ledger.tx_results import Outcome, RejectedResult


@dataclass(frozen=True, slots=True)
class ExecutedBlock:
    """A block without its certificate, the state that it leads to, and what became of its transactions."""

    header: BlockHeader
    txs: tuple[SignedTx, ...]
    state: LedgerState
    outcomes: tuple[Outcome, ...]


def genesis_block(genesis: Genesis) -> ExecutedBlock:
    """Where every chain begins; raises VerificationError FF-LEDG-060."""
    return ExecutedBlock(genesis_header(genesis), (), genesis_state(genesis), ())


def next_time(parent: ExecutedBlock, now_ms: int) -> int:
    """The time of a block made now: after the parent, at most `step_ms_max` after it."""
    time = parent.header.time
    return min(max(now_ms, time + 1), time + parent.state.params.step_ms_max)


def make(
    parent: ExecutedBlock,
    txs: Sequence[SignedTx],
    now_ms: int,
    proposer: PeerId,
    *,
    judged: Stamps = UNJUDGED,
    law: int = LAW,
) -> tuple[ExecutedBlock, tuple[Outcome, ...]]:
    """The next block by a seat's key, of the transactions that may enter and fit, and an outcome for each handed in.

    `judged`: whose form and signature are known to hold. `law`: that the program knows. Raises RunError FF-LEDG-270.
    """
    check_law(parent.state, law)
    time = next_time(parent, now_ms)
    fresh, held_back = _sift(txs)
    state, outcomes = apply_block(parent.state, time, [txs[place] for place in fresh], proposer, judged=judged)
    of_place = dict(zip(fresh, outcomes, strict=True))
    included = tuple(txs[place] for place in fresh if not isinstance(of_place[place], RejectedResult))
    before = parent.header
    header = BlockHeader(
        before.chain,
        before.height + 1,
        parent.state.committee.epoch,
        time,
        proposer,
        before.id,
        txs_root(included),
        state.root,
    )
    kept = tuple(outcome for outcome in outcomes if not isinstance(outcome, RejectedResult))
    results = tuple(of_place.get(place) or held_back[place] for place in range(len(txs)))
    return ExecutedBlock(header, included, state, kept), results


def name_of(signed: SignedTx) -> Hash | None:
    """The transaction's id, or None where it cannot even be encoded."""
    try:
        encode(signed)
        return tx_id(signed)
    except (OverflowError, TypeError, ValueError):
        return None


def _sift(txs: Sequence[SignedTx]) -> tuple[list[int], dict[int, RejectedResult]]:
    """Places of the transactions to execute, and why the others are held back."""
    fresh: list[int] = []
    held_back: dict[int, RejectedResult] = {}
    room, names = limits.BLOCK_BYTES - limits.BLOCK_FRAME_BYTES, set[Hash]()
    for place, signed in enumerate(txs):
        name = name_of(signed)
        if name is None:
            fresh.append(place)  # apply_block says what is wrong with it
            continue
        size = min(len(encode(signed)), limits.TX_BYTES)  # a larger one is refused by apply_block
        if name in names:
            held_back[place] = RejectedResult(name, "FF-LEDG-008", "handed in twice at once")
        elif size > room or len(fresh) == limits.BLOCK_TXS:
            held_back[place] = RejectedResult(name, "FF-LEDG-007", "the block is full: hand it in again")
        else:
            room -= size
            names.add(name)
            fresh.append(place)
    return fresh, held_back


def execute(
    parent: ExecutedBlock, header: BlockHeader, txs: tuple[SignedTx, ...], *, judged: Stamps, law: int = LAW
) -> ExecutedBlock:
    """The block on top of `parent`, checked in every respect but its certificate.

    `judged`: whose form and signature are known to hold; TRUSTED of a block that a quorum judged. `law`: that the
    program knows.

    Raises VerificationError: FF-LEDG-061 not the next block, -062 time, -063 transaction root, -064 holds a transaction
    that may not be in it, -065 state root, -067 too large, -251 another epoch than the next block's, or made by no seat
    of its committee; RunError FF-LEDG-270: a law that this farflung does not know holds for it.
    """
    check_law(parent.state, law)
    _check_header(parent, header, txs)
    state, outcomes = apply_block(parent.state, header.time, txs, header.proposer, judged=judged)
    names = {outcome.tx for outcome in outcomes if not isinstance(outcome, RejectedResult)}
    if len(names) < len(txs):
        raise _wrong(header, "FF-LEDG-064", "it holds a transaction that may not be in it")
    if header.state != state.root:
        raise _wrong(header, "FF-LEDG-065", "executing it gives another state root")
    return ExecutedBlock(header, txs, state, outcomes)


def _check_header(parent: ExecutedBlock, header: BlockHeader, txs: tuple[SignedTx, ...]) -> None:
    before, committee = parent.header, parent.state.committee
    if (header.chain, header.height, header.parent) != (before.chain, before.height + 1, before.id):
        raise _wrong(header, "FF-LEDG-061", f"it does not follow block {before.height} of this chain")
    if header.epoch != committee.epoch or header.proposer not in committee.members:
        raise _wrong(header, "FF-LEDG-251", f"no seat of epoch {committee.epoch} made it")
    if not before.time < header.time <= before.time + parent.state.params.step_ms_max:
        raise _wrong(header, "FF-LEDG-062", f"its time {header.time} does not follow {before.time}")
    if len(txs) > limits.BLOCK_TXS or len(encode(txs)) > limits.BLOCK_BYTES - limits.BLOCK_FRAME_BYTES:
        raise _wrong(header, "FF-LEDG-067", "it is over the size limits")
    if header.txs != txs_root(txs):
        raise _wrong(header, "FF-LEDG-063", "its transactions are not those of its header")


def _wrong(header: BlockHeader, code: str, cause: str) -> VerificationError:
    return VerificationError(
        code,
        f"block {header.height} is refused",
        cause=cause,
        hint="fetch the blocks again from the validator; if it stays so, the validator's history is forged",
    )

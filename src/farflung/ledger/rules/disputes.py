"""Keeps the referee's record of a dispute: the sides' rights and deadlines, and the distribution of the money.

Theory: as in `jobs`, each edge has one operation, one signer and one deadline, and the clock is an edge out of every
state that holds money. The dispute row holds all that it is about, so a job that ends meanwhile is settled without
it; and an accuser's stake stays locked until the last dispute that it is an accuser in has ended, so that nobody
accuses and is gone. An accuser that is accused itself (the node that planted a canary may be) has no stake left for
the disputes that it is an accuser in: what is taken once lies in its own dispute.

| edge          | signer               | from     | to                    |
|---------------|----------------------|----------|-----------------------|
| JobSlash      | see `slash`          | -        | Open                  |
| JobPerjury    | see `perjury`        | -        | Open                  |
| DisputeAnswer | the accused          | Open     | Answered              |
| JuryVote      | a juror, > 2/3 agree | Answered | Upheld, or Overturned |
| Pinpoint      | see `pinpoint`       | Open, Answered | Played          |
| Challenge     | see `pinpoint`       | -        | Played                |
| (its end)     | see `pinpoint`       | Played   | Upheld, Overturned, or Forfeit |
| (deadline)    | the clock            | Open     | Upheld                |
| (deadline)    | the clock            | Answered | Lapsed                |

Silence upholds the accusation; a jury's silence does not. What is Played is decided by `pinpoint` alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from farflung.core.errors import PolicyError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger.disputes import BallotRow, DisputeAnswer, DisputeRow, DisputeState, JuryVote, ballot_key
from farflung.ledger.exclusions import ExclusionFault
from farflung.ledger.ledger_state import LedgerState, StateDraft, params_of
from farflung.ledger.pinpoint_game import PinpointRow, PinpointStage
from farflung.ledger.rules import bounties, exclusions, nodes
from farflung.ledger.rules.accounts import deposit, withdraw
from farflung.ledger.rules.jobs import known
from farflung.ledger.rules.validators import owners
from farflung.ledger.table_rows import JobRow, LeaseRow, lease_key


def open_(
    draft: StateDraft, job: JobRow, lease: LeaseRow, taken: int, accusers: Sequence[PeerId], evidence: Hash
) -> DisputeRow:
    """Ends the accused's lease and keeps `taken` of its stake, and all that it may be paid, until the decision."""
    pay = lease.units_max * lease.unit_price
    nodes.seize(draft, lease.node, lease.stake, taken)
    draft.put(replace(lease, is_open=False))
    draft.put(replace(job, escrow=job.escrow - pay, reserved=job.reserved - pay))
    for accuser in accusers:
        theirs = _lease(draft, job.job, accuser)
        draft.put(replace(theirs, disputes=theirs.disputes + 1))
    deadline = draft.now + params_of(draft, job.terms).dispute_ms
    named = (job.job, lease.node, tuple(accusers))
    row = DisputeRow(*named, taken, pay, draft.now, deadline, evidence)
    draft.put(row)
    return row


def answer(draft: StateDraft, sender: PeerId, op: DisputeAnswer) -> None:
    """The accused denies. Codes: FF-LEDG-010, FF-LEDG-231 nothing to answer, -232 bond too small or no evidence."""
    row = draft.find(DisputeRow, lease_key(op.job, sender))
    if row is None or row.state != DisputeState.OPEN:
        raise PolicyError("FF-LEDG-231", "the sender has nothing to answer in this job")
    least = params_of(draft, known(draft, op.job).terms).bond_min
    if op.bond < least or op.evidence == ZERO_HASH:
        raise PolicyError("FF-LEDG-232", f"an answer names evidence and a bond of {least} at least")
    withdraw(draft, sender, op.bond)
    deadline = draft.now + row.deadline - row.opened  # as long again
    state = DisputeState.ANSWERED
    draft.put(replace(row, answer=op.evidence, bond=op.bond, state=state, deadline=deadline))


def vote(draft: StateDraft, sender: PeerId, op: JuryVote) -> None:
    """A juror finds; decided when more than two thirds of the jury's seats find the same.

    Codes: FF-LEDG-233 not before the jury, -234 not a juror of it, -235 has voted.
    """
    row = draft.find(DisputeRow, lease_key(op.job, op.node))
    if row is None or row.state != DisputeState.ANSWERED:
        raise PolicyError("FF-LEDG-233", "there is nothing here for a jury to decide")
    jury = _jury(draft, row)
    if sender not in jury:
        raise PolicyError("FF-LEDG-234", "the sender is no juror of this dispute")
    if draft.find(BallotRow, ballot_key(op.job, op.node, sender)):
        raise PolicyError("FF-LEDG-235", "this juror has voted")
    draft.put(BallotRow(op.job, op.node, sender, op.is_guilty))
    ballots = [draft.find(BallotRow, ballot_key(op.job, op.node, juror)) for juror in jury]
    agreed = sum(ballot is not None and ballot.is_guilty == op.is_guilty for ballot in ballots)
    if 3 * agreed > 2 * len(jury):
        if op.is_guilty:
            uphold(draft, row, row.accusers)
        else:
            acquit(draft, row, DisputeState.OVERTURNED, row.accusers)


def expire(draft: StateDraft) -> None:
    """Time-out at the begin of a block: who did not answer has lost, what no jury decided falls to the accused."""
    for row in draft.due(DisputeRow, draft.now):
        if row.state == DisputeState.OPEN:
            uphold(draft, row, row.accusers, is_final=False)
        else:
            acquit(draft, row, DisputeState.LAPSED, ())


def jurors(draft: StateDraft) -> tuple[PeerId, ...]:
    """The accounts that judge, one for each seat of the committee."""
    return owners(draft)


def _jury(draft: StateDraft, row: DisputeRow) -> list[PeerId]:
    """Nobody judges its own case."""
    parties = {row.node, *row.accusers, known(draft, row.job).requester}
    return [juror for juror in jurors(draft) if juror not in parties]


def uphold(
    draft: StateDraft,
    row: DisputeRow,
    finders: Sequence[PeerId],
    losers: Sequence[PeerId] = (),
    *,
    is_final: bool = True,
) -> None:
    """As a slash without a dispute; the bond is lost as the stake is.

    `losers`: accusers that lost a game before. `is_final`: by a jury or a game.
    """
    lease = _lease(draft, row.job, row.node)
    bounties.spend(draft, row.node, row.taken + row.bond, bounties.finders_of(lease, row.taken, finders))
    _end_guilty(draft, row, DisputeState.UPHELD, losers, is_final=is_final)


def forfeit(draft: StateDraft, row: DisputeRow, losers: Sequence[PeerId]) -> None:
    """Both sides were wrong, or silent: the same for the accused, `losers` lose their stakes, nobody gets anything."""
    nodes.burn(draft, row.node, row.taken + row.bond)
    _end_guilty(draft, row, DisputeState.FORFEIT, losers, is_final=True)


def _end_guilty(
    draft: StateDraft, row: DisputeRow, state: DisputeState, losers: Sequence[PeerId], *, is_final: bool
) -> None:
    lease = _lease(draft, row.job, row.node)
    draft.put(replace(lease, slashed=row.taken, evidence=row.evidence))
    fault = ExclusionFault.FALSE if bounties.is_lie(lease, row.taken) else ExclusionFault.WITHHELD
    exclusions.record(draft, row.job, row.node, fault, row.evidence, is_final=is_final)
    lost = sum(_punish(draft, row, loser, gained=False) for loser in losers)
    _close(draft, row, state, due=0, slashed=row.taken + lost)


def acquit(draft: StateDraft, row: DisputeRow, state: DisputeState, losers: Sequence[PeerId]) -> None:
    """Stake, bond and pay go to the accused's account: its node may have left meanwhile. `losers`: of its accusers."""
    lease = _lease(draft, row.job, row.node)
    due = lease.earned * lease.unit_price
    deposit(draft, row.node, row.taken + row.bond + due)
    draft.put(replace(lease, paid=due))
    lost = sum(_punish(draft, row, loser, gained=True) for loser in losers)
    _close(draft, row, state, due=due, slashed=lost)


def _close(draft: StateDraft, row: DisputeRow, state: DisputeState, *, due: int, slashed: int) -> None:
    """The rest of what was kept for the lease is the requester's, whether the job still runs or not."""
    job = known(draft, row.job)
    deposit(draft, job.requester, row.pay - due)
    draft.put(replace(job, paid=job.paid + due, refunded=job.refunded + row.pay - due, slashed=job.slashed + slashed))
    draft.put(replace(row, state=state))
    game = draft.find(PinpointRow, row.key)
    if game:
        draft.put(replace(game, stage=PinpointStage.CLOSED))
    for accuser in row.accusers:
        _let_go(draft, row, accuser)


def _punish(draft: StateDraft, row: DisputeRow, accuser: PeerId, *, gained: bool) -> int:
    """The stake of an accuser's lease, if it is still locked, is burnt, but for the accused's half where it gains."""
    lease = _lease(draft, row.job, accuser)
    if not is_locked(draft, lease):
        return 0
    nodes.seize(draft, accuser, lease.stake, lease.stake)
    gain = lease.stake // 2 if gained else 0
    deposit(draft, row.node, gain)
    nodes.burn(draft, accuser, lease.stake - gain)
    if lease.is_open:
        job = known(draft, row.job)
        draft.put(replace(job, reserved=job.reserved - lease.units_max * lease.unit_price))
    draft.put(replace(lease, slashed=lease.stake, evidence=_against(row), is_open=False))
    exclusions.record(draft, row.job, accuser, ExclusionFault.FALSE, _against(row), is_final=True)
    return lease.stake


def _against(row: DisputeRow) -> Hash:
    """What is held against its accusers: the accused's answer, or, where a game took its place, what was accused."""
    return row.evidence if row.answer == ZERO_HASH else row.answer


def _let_go(draft: StateDraft, row: DisputeRow, accuser: PeerId) -> None:
    """One dispute less; frees the stake of a lease that was closed while this was the last one."""
    before = _lease(draft, row.job, accuser)
    lease = replace(before, disputes=before.disputes - 1)
    if is_locked(draft, before) and not is_locked(draft, lease):
        nodes.unlock(draft, accuser, lease.stake)
    draft.put(lease)


def is_locked(view: LedgerState | StateDraft, lease: LeaseRow) -> bool:
    """Whether the stake is behind this lease still. What an accusation of its own node took away is not."""
    if lease.is_open:
        return True
    is_accuser = lease.disputes > 0 and lease.evidence == ZERO_HASH
    return is_accuser and view.find(DisputeRow, lease.key) is None


def _lease(draft: StateDraft, job: Hash, node: PeerId) -> LeaseRow:
    """A lease that a dispute is about, or that an accuser holds: rows are never deleted."""
    lease = draft.find(LeaseRow, lease_key(job, node))
    assert lease is not None
    return lease

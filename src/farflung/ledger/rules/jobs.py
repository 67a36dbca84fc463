"""Applies the life cycle of a job up to its output. Settlement, cancelling and the time-out are in `settlement`.

Theory: each edge has one operation, one signer and one set of states it starts from, and the deadline is an edge
out of every state that holds money; so no state can hold money for ever.

| operation   | signer    | from             | to        |
|-------------|-----------|------------------|-----------|
| JobCreate   | requester | -                | Created   |
| JobSchedule | requester | Created, Running | Running   |
| Progress    | requester | Running          | Running   |
| JobDraw     | requester | Running          | Running   |
| JobSlash    | requester or a verifier | Running, Output, Stopped | the same |
| JobPerjury  | requester or the node that planted | Running, Output, Stopped | the same |
| SettleMany  | anybody   | Running, Output, Stopped | the same |
| JobCoordinate | requester | any            | the same  |
| JobFinish   | requester | Running          | Output    |
| JobAttest   | anybody   | Output, Stopped  | the same  |
| JobSettle   | requester | Output           | Settled   |
| JobCancel   | requester | Created, Stopped | Cancelled |
| JobCancel   | requester | Running          | Stopped, or Cancelled where there is no window |
| JobLeave    | a node of it | Running, Output, Stopped | the same; it ends the node's lease, or gives notice |
| (deadline)  | the clock | all of the above but Settled and Cancelled | Expired |

Two processes of one requester may both coordinate a job: a copied folder, an earlier computer that is
back. The one that begins later takes the next term (JobCoordinate), and from then on whatever the requester says of the
job counts only in a transaction that names the newest term and its mark. A job that was never taken over has term 0,
and nothing is named.

Output and Stopped have a verification window (`window_ms`): until it is over, or a quorum of the job's verifiers has
attested, the requester can end neither, and accusations and vouchers come in.
"""

from __future__ import annotations

from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import NS_OFFER, is_signed
from farflung.core.errors import PolicyError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger.ledger_state import StateDraft, params_of
from farflung.ledger.params import HOUR_MS
from farflung.ledger.rules import clearing, exclusions, nodes
from farflung.ledger.rules.accounts import withdraw
from farflung.ledger.table_rows import NOBODY, EpochRow, JobRow, JobState, KeyRow, LeaseRow, lease_key
from farflung.ledger.transactions import (
    JobCoordinate,
    JobCreate,
    JobDraw,
    JobFinish,
    JobSchedule,
    LeaseOffer,
    Progress,
    SignedLeaseOffer,
    coordinator_of,
    notice_of,
)

ENDING = (JobState.OUTPUT, JobState.STOPPED)


def hour_of(time: int) -> int:
    """The end of the hour of ledger time that `time` is in: what a row keeps does not tell how many blocks there were,
    so that a run on one computer ends in the same rows whatever died in between.
    """
    return -(-time // HOUR_MS) * HOUR_MS


def create(draft: StateDraft, sender: PeerId, op: JobCreate) -> None:
    """Puts money into escrow. Codes: FF-LEDG-010, FF-LEDG-030 id in use, FF-LEDG-034 terms out of range."""
    if draft.find(JobRow, op.job):
        raise PolicyError("FF-LEDG-030", f"job {op.job[:4].hex()} exists already")
    latest = draft.now + draft.params.job_ms_max
    if not (op.escrow and 1 <= op.rounds <= limits.ROUNDS and draft.now < op.deadline <= latest):
        raise PolicyError("FF-LEDG-034", "escrow, rounds or deadline are out of range")
    withdraw(draft, sender, op.escrow)
    terms = draft.committee.params
    draft.put(JobRow(op.job, sender, op.escrow, op.unit_price_max, op.rounds, op.deadline, terms=terms))


def known(draft: StateDraft, job: Hash) -> JobRow:
    """The job; raises PolicyError FF-LEDG-031."""
    row = draft.find(JobRow, job)
    if row is None:
        raise PolicyError("FF-LEDG-031", f"job {job[:4].hex()} is unknown")
    return row


def check_state(row: JobRow, *sources: JobState) -> None:
    """Raises PolicyError FF-LEDG-033 unless the job is in one of these states."""
    if row.state not in sources:
        raise PolicyError("FF-LEDG-033", f"the job is {row.state.name.lower()}")


def check_accusable(draft: StateDraft, row: JobRow) -> None:
    """Raises PolicyError FF-LEDG-033 unless the job runs, or has ended and its window is open."""
    if row.state not in ENDING or draft.now >= row.until:
        check_state(row, JobState.RUNNING)


def check_staked(lease: LeaseRow) -> None:
    """Raises PolicyError FF-LEDG-420 where the lease has nothing at stake: its job convicts nobody."""
    if not lease.stake:
        raise PolicyError("FF-LEDG-420", f"node {lease.node[:4].hex()} has nothing at stake in this job")


def check_recent(row: JobRow, round: int, rounds: int = limits.ACCUSABLE_ROUNDS) -> None:
    """Raises PolicyError FF-LEDG-356 where a round is so old that nobody has to keep what it was made of."""
    if round + rounds < row.round:
        raise PolicyError("FF-LEDG-356", f"round {round} is too old to be disputed: {row.round} comes next")


def step(draft: StateDraft, sender: PeerId, job: Hash, *sources: JobState) -> JobRow:
    """The job, if `sender` may take this edge.

    Codes: FF-LEDG-031 unknown, -032 not its requester, -033 state, -406 another process of the requester coordinates.
    """
    row = known(draft, job)
    if sender != row.requester:
        raise PolicyError("FF-LEDG-032", "only the requester may do this")
    check_term(draft, job)
    check_state(row, *sources)
    return row


def check_term(draft: StateDraft, job: Hash) -> None:
    """Whether this transaction says before that its sender holds the job's term. Raises PolicyError FF-LEDG-406."""
    name = coordinator_of(job)
    held = draft.find(KeyRow, name)
    if held is not None and (KeyRow.TABLE, name) not in draft.written:
        raise PolicyError("FF-LEDG-406", f"another process of the requester coordinates the job, in term {held.epoch}")


def coordinate(draft: StateDraft, sender: PeerId, op: JobCoordinate) -> None:
    """Takes the next term of a job, or names the one that is held.

    Codes: FF-LEDG-031 unknown, -032 not its requester, -405 another process holds this term, or a later one.
    """
    if sender != known(draft, op.job).requester:
        raise PolicyError("FF-LEDG-032", "only the requester may do this")
    name, mark = coordinator_of(op.job), PeerId(op.mark)
    held = draft.find(KeyRow, name) or KeyRow(name, name, name)
    is_held = op.term > 0 and (op.term, mark) == (held.epoch, held.node)
    is_next = op.term == held.epoch + 1 < limits.EPOCHS and mark not in (held.node, NOBODY)
    if not is_held and not is_next:
        raise PolicyError("FF-LEDG-405", f"another process of the requester coordinates the job, in term {held.epoch}")
    draft.put(replace(held, epoch=op.term, node=mark))


def schedule(draft: StateDraft, sender: PeerId, op: JobSchedule) -> None:
    """Makes a lease of each offer. Codes: FF-LEDG-020, -035 to -042, -365, -374 to -376."""
    row = step(draft, sender, op.job, JobState.CREATED, JobState.RUNNING)
    if not op.offers or row.leases + len(op.offers) > limits.LEASES_PER_JOB:
        raise PolicyError("FF-LEDG-042", f"no offer, or more than {limits.LEASES_PER_JOB} leases")
    for signed in op.offers:
        _check_offer(draft, row, signed)
        exclusions.check(draft, signed.offer.node)
        nodes.lock(draft, signed.offer.node, signed.offer.stake)
        row = _lease(draft, row, signed.offer)
    clearing.check(draft, op)
    draft.put(replace(row, state=JobState.RUNNING))


def _check_offer(draft: StateDraft, job: JobRow, signed: SignedLeaseOffer) -> None:
    offer = signed.offer
    if offer.chain != draft.law.chain or offer.job != job.job:
        raise PolicyError("FF-LEDG-036", "the offer is for another job or chain")
    if not is_signed(offer.node, signed.signature, NS_OFFER, encode(offer)):
        raise PolicyError("FF-LEDG-035", "the offer is not signed by its node")
    if draft.now >= offer.expires:
        raise PolicyError("FF-LEDG-037", f"the offer ran out at {offer.expires}, it is {draft.now}")
    if offer.unit_price > job.unit_price_max:
        raise PolicyError("FF-LEDG-038", f"price {offer.unit_price} is above {job.unit_price_max}")


def _lease(draft: StateDraft, job: JobRow, offer: LeaseOffer) -> JobRow:
    if draft.find(LeaseRow, lease_key(job.job, offer.node)):
        raise PolicyError("FF-LEDG-040", f"node {offer.node[:4].hex()} has a lease in this job")
    reserved = job.reserved + offer.units_max * offer.unit_price
    if not offer.units_max or reserved > job.escrow:
        raise PolicyError("FF-LEDG-041", f"the leases may cost {reserved}, the escrow is {job.escrow}")
    terms = (offer.unit_price, offer.stake, offer.units_max)
    made = LeaseRow(job.job, offer.node, *terms, job.last, offer.role, attests=offer.attests)
    draft.put(made)
    return replace(job, reserved=reserved, leases=job.leases + 1, last=offer.node)


def progress(draft: StateDraft, sender: PeerId, op: Progress) -> None:
    """Records one round.

    Codes: FF-LEDG-043 wrong round, -044 no such lease, -045 over its cap, -046 twice, -057 the lease has ended, or the
    node gave notice for a round before.
    """
    row = step(draft, sender, op.job, JobState.RUNNING)
    if op.round != row.round or op.round >= row.rounds:
        raise PolicyError("FF-LEDG-043", f"round {op.round}, but {row.round} of {row.rounds} comes next")
    if len({node for node, _ in op.units}) < len(op.units):
        raise PolicyError("FF-LEDG-046", "a node is named twice")
    for node, units in op.units:
        _credit(draft, op.job, node, units, op.round)
    draft.put(EpochRow(op.job, op.round, op.root, op.contributions, hour_of(draft.now)))
    draft.put(replace(row, round=op.round + 1, root=op.root))


def first_round_without(draft: StateDraft, job: Hash, node: PeerId) -> int:
    """From which round on a node that gave notice takes no part in a job; 0: it gave none."""
    row = draft.find(KeyRow, notice_of(job, node))
    return row.epoch if row is not None else 0


def _credit(draft: StateDraft, job: Hash, node: PeerId, units: int, round: int) -> None:
    lease = draft.find(LeaseRow, lease_key(job, node))
    if lease is None:
        raise PolicyError("FF-LEDG-044", f"node {node[:4].hex()} has no lease in this job")
    if not lease.is_open:
        raise PolicyError("FF-LEDG-057", f"the lease of node {node[:4].hex()} has ended")
    first = first_round_without(draft, job, node)
    if first and round >= first:
        raise PolicyError("FF-LEDG-057", f"node {node[:4].hex()} gave notice: it works on no round from {first} on")
    if lease.units + units > lease.units_max:
        raise PolicyError("FF-LEDG-045", f"{lease.units} + {units} units are above {lease.units_max}")
    draft.put(replace(lease, units=lease.units + units))


def draw(draft: StateDraft, sender: PeerId, op: JobDraw) -> None:
    """Fixes what was committed to in the next round. Codes: FF-LEDG-031 to -033, -373 another round, or after the last.

    A digest stands for ever: who could name a second one would wait for a block, and keep what suits it.
    """
    row = step(draft, sender, op.job, JobState.RUNNING)
    if op.round != row.drawn or op.round >= row.rounds:
        raise PolicyError("FF-LEDG-373", f"round {op.round} is not the next to be drawn")
    if not row.round and not op.round:  # of a job that never records more, this says since when (settlement.leave)
        draft.put(EpochRow(op.job, 0, ZERO_HASH, op.commitments, hour_of(draft.now)))
    draft.put(replace(row, drawn=op.round + 1, drawn_of=op.commitments))


def finish(draft: StateDraft, sender: PeerId, op: JobFinish) -> None:
    """Names the output. Code: FF-LEDG-047 no round is recorded, or the root is not the last one's."""
    row = step(draft, sender, op.job, JobState.RUNNING)
    if not row.round or op.root != row.root:
        raise PolicyError("FF-LEDG-047", "the root is not that of the last recorded round")
    draft.put(replace(row, state=JobState.OUTPUT, output=op.output, until=window_end(draft, row)))


def window_end(draft: StateDraft, row: JobRow) -> int:
    """When the window of a job that ends now is over: its deadline at the latest, which ends everything."""
    return min(draft.now + params_of(draft, row.terms).window_ms, row.deadline)

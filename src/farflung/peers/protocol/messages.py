"""Defines the messages between a requester, its providers and its verifiers.

requester → provider            answer
lease.propose   Proposal        Offered           the provider's signed price and stake for this job
lease.start     Start           Started           data and public state are here; the worker is ready
round.train     TrainRound      Promise           a commitment, after training
round.reveal    RevealRound     Shown             the payload is replicated and may be fetched
round.merge     MergeRound      Merged            the provider's root after the merge, signed
audit.open      OpenSegment     SegmentOpened     the committed state before a drawn segment
audit.plant     OpenSegment     Planted           a false trace of its round, to test a verifier with
audit.reveal    RevealSegment   SegmentRevealed   what the peer claims came out, once a verifier has committed
lease.term      JobCoordinate   b""               which term of the job the orders of this connection are of
lease.members   Members         b""               who is in the job from now on
fan.enter       Enter           b""               it is in the job's group at a relay (net.multicast_groups)
lease.pass      Passes          b""               it shows these when it dials through relays (core.relay_passes)
lease.vouch     Vouched         b""               it keeps this: what it has earned (ledger.earnings_tally)
lease.end       End             b""               the lease is over

requester → verifier            answer
lease.propose   Proposal        Offered           as a provider, with the role AUDIT
lease.start     Start           Started           data is here; its worker is ready (no public state, no replay)
audit.run       AuditOrder      AuditAnswer       it has trained the segment again and committed to what came out
audit.judge     AuditReveal     Judged            it has compared
audit.score     ScoreOrder      SignedScores      what each accepted contribution does to the loss (train.scores)
audit.attest    OutputAttest    PartySignature    it has nothing against the job's end on the ledger (JobAttest)
lease.members   Members         b""               who was in the job, those included that are out
lease.pass      Passes          b""               as a provider
lease.vouch     Vouched         b""               as a provider
lease.end       End             b""               the lease is over

verifier → provider: audit.open and audit.reveal, where the coordinator brought no answer; they give what lies on the
provider's disk already. Members and verifiers fetch objects (peers.transfer.objects) from each other and from the
requester. Member → replica: fan.held, an object's id; the answer is 1 once it is here, empty if it does not come
by the group.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from farflung.core import limits
from farflung.core.attestations import Attestation
from farflung.core.codec import Head, Wire, decode, decode_head, encode
from farflung.core.commitments import BorderRoots
from farflung.core.errors import PolicyError, ProtocolError
from farflung.core.ids import ZERO_HASH, Hash, PeerId, Signature
from farflung.core.relay_passes import SignedRelayPass
from farflung.core.release import JOB_FORMATS, VERSION, format_list
from farflung.job.spec import JobTerms
from farflung.ledger.earnings_tally import EarningsVoucher, SignedEarningsTally
from farflung.ledger.transactions import LeaseRole, PlantedTrace, SignedLeaseOffer, SignedVerdict
from farflung.net.endpoint_records import DIRECT, EndpointAddress
from farflung.net.multicast_groups import SignedRoster
from farflung.store.sealed_objects import ObjectManifest
from farflung.train.contribution_trace import TraceLeaf, TrainingStatistics
from farflung.train.run_log import Commitment, Contribution, RoundMember
from farflung.verify.blind_commitment import BlindCommitment

PROPOSE = "lease.propose"
START = "lease.start"
TERM = "lease.term"
TRAIN = "round.train"
REVEAL = "round.reveal"
MERGE = "round.merge"
DROP = "round.drop"
END = "lease.end"
ENTER = "fan.enter"
HELD = "fan.held"
MEMBERS = "lease.members"
PASSES = "lease.pass"
VOUCH = "lease.vouch"
OPEN = "audit.open"
PLANT = "audit.plant"
UNVEIL = "audit.reveal"
AUDIT = "audit.run"
JUDGE = "audit.judge"
SCORE = "audit.score"
ATTEST = "audit.attest"
DATASET = "data.leaves"


class LeaseOfferRequest(Wire, frozen=True):
    """A job, and what the requester would pay a unit (pico-credits per token) for at most `units_max`.

    `format`: of the job (core.release), which stays first, so that a node can name a format that it cannot read.
    `worker_bytes`: memory of one worker at its peak, as the requester's plan has it.
    """

    format: int
    chain: Hash
    terms: JobTerms
    dataset_bytes: int
    worker_bytes: int
    unit_price: int
    stake: int
    units_max: int
    expires: int
    role: LeaseRole = LeaseRole.TRAIN


class LeaseOfferHead(Head, frozen=True):
    """The part of a proposal that is the same in every format."""

    format: int


def read_proposal(body: bytes) -> LeaseOfferRequest:
    """A proposal. Raises ProtocolError, PolicyError FF-APP-600: a job of another format."""
    said = decode_head(body, LeaseOfferHead, limits.CONTROL_BYTES).format
    if said not in JOB_FORMATS:
        raise PolicyError(
            "FF-APP-600",
            f"this node takes no jobs of format {said}",
            cause=f"it runs farflung {VERSION}, which takes jobs of format {format_list(JOB_FORMATS)}",
            hint="propose to a node whose advertisement names the format",
        )
    return decode(body, LeaseOfferRequest, limits.CONTROL_BYTES)


class LeaseOfferReply(Wire, frozen=True):
    """The node's half of a lease, the key that this lease's secrets are wrapped for (peers.protocol.job_key), and
    what the node says it runs, whose hash its offer names.
    """

    offer: SignedLeaseOffer
    lease_key: bytes
    signature: Signature
    attestation: Attestation


class PeerAddress(Wire, frozen=True):
    """Where a peer is reached, the best place first."""

    peer: PeerId
    places: tuple[EndpointAddress, ...]

    @property
    def relays(self) -> frozenset[PeerId]:
        """The relays that know the peer; none when it listens itself."""
        return frozenset(place.relay for place in self.places if place.relay != DIRECT)


class StoredContribution(Wire, frozen=True):
    """An accepted contribution, the object that holds its payload, and who else holds it."""

    contribution: Contribution
    manifest: ObjectManifest
    replica: PeerId


class PastRound(Wire, frozen=True):
    """A closed round to be replayed over a snapshot."""

    round: int
    shares: tuple[StoredContribution, ...]


class LeaseStartRequest(Wire, frozen=True):
    """All that a provider needs to take its place: the job's key (wrapped for this lease), its fellow members, data,
    the step's graph (nothing where the job is outcome only) and public state.
    `members` are all who may fetch from and leave objects with this provider, the requester among them.
    """

    job: Hash
    wrapped_key: bytes
    member: int
    members: tuple[PeerAddress, ...]
    verifiers: tuple[PeerId, ...]
    dataset: ObjectManifest
    module: ObjectManifest
    graph: ObjectManifest
    snapshot: ObjectManifest
    snapshot_round: int
    replay: tuple[PastRound, ...]


class DatasetLeavesRequest(Wire, frozen=True):
    """Pieces of a large data set (core.canon.token_leaves), asked of its requester: it answers with the manifest of an
    object that holds them. `leaves`: their numbers, ascending.
    """

    job: Hash
    is_heldout: bool
    leaves: tuple[int, ...]


class LeaseStartReply(Wire, frozen=True):
    """The provider holds the public state of `round` and says which root it has."""

    round: int
    root: Hash
    replayed: int
    warning: str


class TrainRequest(Wire, frozen=True):
    """Train on this round; whatever belongs to rounds before `keep_from` may be deleted. `members`, as the log has
    them: how much each may contribute, this peer's own share among them.
    """

    job: Hash
    round: int
    keep_from: int
    members: tuple[RoundMember, ...] = ()


class DropRoundRequest(Wire, frozen=True):
    """The round was closed without this peer: what it trains or has trained for it is not wanted any more."""

    job: Hash
    round: int


class TrainReply(Wire, frozen=True):
    """A commitment, and the round's statistics as the provider states them, with their path to the trace's root.

    `payload`, `trace` and `nonce` open the commitment to the coordinator alone: were its maker to show nothing more, it
    owes what is drawn anyway. `seconds` are no statistics: they are measured, and stand nowhere else.
    """

    commitment: Commitment
    was_stored: bool
    statistics: TrainingStatistics
    path: tuple[Hash, ...]
    seconds: float
    payload: Hash
    trace: Hash
    nonce: Hash


class TransferMeasurement(Wire, frozen=True):
    """What a member's line carried for a round, and the seconds until it was where it belongs: as the member says."""

    bytes: int = 0
    seconds: float = 0.0


class RevealRequest(Wire, frozen=True):
    """Put the payload into `replica`'s store, then show it. `fan`: the epoch of the group to send it to; 0: to none."""

    job: Hash
    round: int
    replica: PeerId
    fan: int = 0


class RevealReply(Wire, frozen=True):
    """The opened commitment and the stored object."""

    share: StoredContribution
    moved: TransferMeasurement = TransferMeasurement()


class MergeRequest(Wire, frozen=True):
    """The accept set of a round. `is_fanned`: payloads come by the group; `from_replica`: ask the replica first."""

    job: Hash
    round: int
    shares: tuple[StoredContribution, ...]
    is_fanned: bool = False
    from_replica: bool = False


class MergeReply(Wire, frozen=True):
    """Public state after the round. `fan`: the epoch of the group in which the member is now; 0: it is in none."""

    root: Hash
    signature: Signature
    moved: TransferMeasurement = TransferMeasurement()
    fan: int = 0


class SegmentOpenRequest(Wire, frozen=True):
    """Open the state before segment `segment` of the round whose contribution was accepted.

    `trace`: the root under which; a verifier names the one that it was ordered to audit, and is answered under that or
    not at all, or one question would tell it what was planted. The requester leaves it out: the committed one.
    """

    job: Hash
    round: int
    segment: int
    trace: Hash = ZERO_HASH


class SegmentOpenReply(Wire, frozen=True):
    """Border `segment` under the trace root, and the sealed state there (size 0: fresh).

    `before`: for segment 0 of a peer that trained the round before, border K under that round's trace root.
    """

    start: TraceLeaf
    state: ObjectManifest
    before: tuple[TraceLeaf, ...] = ()


class CanaryOpenReply(Wire, frozen=True):
    """The false trace with all that proves which of its leaves is false, and the start as it opens under it."""

    plant: PlantedTrace
    opened: SegmentOpenReply


class SegmentRevealRequest(Wire, frozen=True):
    """A verifier has committed to its own result: open what yours was, under this trace."""

    job: Hash
    round: int
    segment: int
    trace: Hash
    blind: BlindCommitment


class SegmentRevealReply(Wire, frozen=True):
    """Borders `segment` + 1 and K, the statistics and the payload under the trace root, and the sealed states."""

    leaves: tuple[TraceLeaf, ...]
    end: ObjectManifest
    last: ObjectManifest


class AuditRequest(Wire, frozen=True):
    """Train this segment again and commit to the result. `snapshot`: the public state before the round, under
    `root`; `member`: the peer's index in the job; `before`: trace root of its contribution to the round before, if any.
    """

    job: Hash
    round: int
    member: int
    contribution: Contribution
    before: Hash
    segment: int
    root: Hash
    snapshot: ObjectManifest
    opened: SegmentOpenReply | None  # None: the coordinator got none; the verifier asks the peer itself


class AuditReply(Wire, frozen=True):
    """The verifier's commitment, always the same; or its verdict at once: nothing, or nothing true, was opened."""

    blind: BlindCommitment | None
    verdict: SignedVerdict | None


class VerdictRequest(Wire, frozen=True):
    """What the peer claims: compare, encode again, and judge."""

    job: Hash
    round: int
    peer: PeerId
    segment: int
    revealed: SegmentRevealReply | None  # None: the coordinator got none; the verifier asks the peer itself


class VerdictReply(Wire, frozen=True):
    """The verdict, and what opens the blind commitment."""

    verdict: SignedVerdict
    border: BorderRoots
    nonce: Hash


class ScoreRequest(Wire, frozen=True):
    """Measure what each accepted contribution does to the loss. `members`: the index of each share's maker."""

    job: Hash
    round: int
    beacon: Hash
    root: Hash
    snapshot: ObjectManifest
    members: tuple[int, ...]
    shares: tuple[StoredContribution, ...]


class MembersUpdate(Wire, frozen=True):
    """All who may fetch from and leave objects with this provider from now on."""

    job: Hash
    members: tuple[PeerAddress, ...]


class GroupJoinRequest(Wire, frozen=True):
    """Join the job's group at the relay in `place`, or go on under this roster; its key, wrapped for the lease."""

    job: Hash
    place: EndpointAddress
    roster: SignedRoster
    wrapped_key: bytes


class RelayPassesUpdate(Wire, frozen=True):
    """What the requester pays for: one pass for each relay that the job's nodes are reached through."""

    job: Hash
    passes: tuple[SignedRelayPass, ...]


class VoucherUpdate(Wire, frozen=True):
    """What the node has earned in the job so far, under the requester's mark."""

    job: Hash
    signed: SignedEarningsTally
    voucher: EarningsVoucher


class OutputAttestRequest(Wire, frozen=True):
    """A job that is over on the ledger: its verifier signs so, and its window may end early."""

    job: Hash


class LeaseEndRequest(Wire, frozen=True):
    """The lease is over: the worker may go, and what was stored for the job may be deleted."""

    job: Hash


class _JobMessage(Protocol):
    @property
    def job(self) -> Hash: ...


OrderT = TypeVar("OrderT", bound=_JobMessage)
OpeningT = TypeVar("OpeningT", SegmentOpenReply, SegmentRevealReply)


def order(job: Hash, body: bytes, kind: type[OrderT]) -> OrderT:
    """An order of the lease's job; raises PolicyError FF-APP-057."""
    said = decode(body, kind, limits.CONTROL_BYTES)
    if said.job != job:
        raise PolicyError("FF-APP-057", "an order does not fit where the lease stands", cause="another job")
    return said


def read_opening(data: bytes, kind: type[OpeningT]) -> OpeningT:
    """What a peer shows of its work. Raises ProtocolError, FF-APP-097 when it is larger than anybody can pass on.

    A peer may have committed to leaves of any size: what proves nothing more for being large is not taken in.
    """
    said = decode(data, kind, limits.OPENED_BYTES)
    size = len(encode(said.leaves if isinstance(said, SegmentRevealReply) else (said.start, said.before)))
    if size > limits.OPENING_BYTES:
        raise ProtocolError(
            "FF-APP-097",
            "what a peer opens is too large",
            cause=f"{size} bytes of leaves, the limit is {limits.OPENING_BYTES}",
        )
    return said

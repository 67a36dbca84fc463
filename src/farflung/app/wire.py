"""What a requester and its providers say to each other over the network.

requester → provider            answer
lease.propose   Proposal        SignedOffer       the provider's signed price and stake for this job
lease.start     Start           Started           data and public state are here; the worker is ready
round.train     TrainRound      Promise           a commitment, after training
round.reveal    RevealRound     Shown             the payload is replicated and may be fetched
round.merge     MergeRound      Merged            the provider's root after the merge, signed
lease.end       End             b""               the lease is over
"""

from __future__ import annotations

from farflung.core.codec import Wire
from farflung.core.ids import Hash, PeerId, Signature
from farflung.job.spec import Terms
from farflung.store.objects import Manifest
from farflung.train.roundlog import Commitment, Contribution

PROPOSE = "lease.propose"
START = "lease.start"
TRAIN = "round.train"
REVEAL = "round.reveal"
MERGE = "round.merge"
END = "lease.end"


class Proposal(Wire, frozen=True):
    """A job, and what the requester would pay a unit (micro-credits per token) for at most `units_max`."""

    chain: Hash
    terms: Terms
    dataset_bytes: int
    unit_price: int
    stake: int
    units_max: int
    expires: int


class Address(Wire, frozen=True):
    """Where a peer listens."""

    peer: PeerId
    host: str
    port: int


class Share(Wire, frozen=True):
    """An accepted contribution, the object that holds its payload, and who else holds it."""

    contribution: Contribution
    manifest: Manifest
    replica: PeerId


class PastRound(Wire, frozen=True):
    """A closed round to be replayed over a snapshot."""

    round: int
    shares: tuple[Share, ...]


class Start(Wire, frozen=True):
    """All that a provider needs to take its place: the job's key, its fellow members, data and public state.

    `members` are all who may fetch from and leave objects with this provider, the requester among them.
    """

    job: Hash
    job_key: bytes
    member: int
    members: tuple[Address, ...]
    dataset: Manifest
    module: Manifest
    snapshot: Manifest
    snapshot_round: int
    replay: tuple[PastRound, ...]


class Started(Wire, frozen=True):
    """The provider holds the public state of `round` and says which root it has."""

    round: int
    root: Hash
    replayed: int
    warning: str


class TrainRound(Wire, frozen=True):
    """Train on this round; whatever belongs to rounds before `keep_from` may be deleted."""

    job: Hash
    round: int
    keep_from: int


class Promise(Wire, frozen=True):
    """A commitment, and the round's statistics as the provider states them."""

    commitment: Commitment
    was_stored: bool
    losses: tuple[float, ...]
    tokens: int
    seconds: float


class RevealRound(Wire, frozen=True):
    """Put the payload into `replica`'s store, then show it."""

    job: Hash
    round: int
    replica: PeerId


class Shown(Wire, frozen=True):
    """The opened commitment and the stored object."""

    share: Share


class MergeRound(Wire, frozen=True):
    """The accept set of a round."""

    job: Hash
    round: int
    shares: tuple[Share, ...]


class Merged(Wire, frozen=True):
    """Public state after the round."""

    root: Hash
    signature: Signature


class End(Wire, frozen=True):
    """The lease is over: the worker may go, and what was stored for the job may be deleted."""

    job: Hash

"""What the coordinator of a run knows, what reaches it, and what it has done: the nouns of train.rounds."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from farflung.core.ids import Hash, PeerId, Signature
from farflung.ledger.tx import Canary, SignedVerdict
from farflung.train.roundlog import (
    Closed,
    Commitment,
    Contribution,
    Finished,
    Record,
    Timed,
)
from farflung.train.scores import SignedScores


class Phase(enum.Enum):
    """What the round waits for."""

    IDLE = "idle"
    TRAIN = "train"
    REVEAL = "reveal"
    MERGE = "merge"
    AUDIT = "audit"
    DONE = "done"


class Window(enum.Enum):
    """Whether members that have not arrived in the open phase are still waited for, once enough of the others have."""

    SHUT = "shut"  # no quorum yet: they are
    OPEN = "open"  # they are, until the shell says that the time is over
    OVER = "over"  # they are not


class State(msgspec.Struct, frozen=True):
    """All that the coordinator of a run knows. A fold over the log, plus what has arrived since its last record.

    `steps` of the newest round and `weight`, the tokens of so many steps, are what a member without a pace is assigned.
    """

    job: Hash
    rounds: int
    steps: int
    density: int
    weight: int
    members: tuple[PeerId, ...]
    round: int = 0
    phase: Phase = Phase.IDLE
    root: Hash = Hash(b"")
    in_round: frozenset[PeerId] = frozenset()
    promises: Mapping[PeerId, tuple[Commitment, Contribution, Timed | None]] = {}  # while the phase is TRAIN
    commitments: Mapping[PeerId, Commitment] = {}
    block: Hash = Hash(b"")  # what the round is drawn from, once it is in the log
    contributions: Mapping[PeerId, Contribution] = {}
    accepted: tuple[Contribution, ...] = ()
    own_root: Hash | None = None
    roots: Mapping[PeerId, tuple[Hash, Signature]] = {}
    is_stopping: bool = False
    finished: Finished | None = None
    is_audited: bool = False
    audited: int = 0  # rounds whose audits are in the log
    verdicts: Mapping[int, GotVerdicts] = {}  # of rounds whose audits are not in the log yet
    excluded: frozenset[PeerId] = frozenset()
    quorum: float = 1.0  # share of the assigned tokens of a phase's members whose arrival opens the window
    window: Window = Window.SHUT
    assigned: Mapping[PeerId, int] = {}  # of the round: the most that each contribution may weigh
    pace: Mapping[PeerId, int] = {}  # of the next round


# Events: what reaches the coordinator.


class Begin(msgspec.Struct, frozen=True):
    """The network is up: take the run on from where its log ends."""


class GotCommitment(msgspec.Struct, frozen=True):
    """A member has trained; its signature was checked by the shell, and that what it promised opens the commitment."""

    round: int
    commitment: Commitment
    promised: Contribution
    timed: Timed | None = None  # where the job judges speed


class GotBeacon(msgspec.Struct, frozen=True):
    """The round's commitments are in a final block of the ledger."""

    round: int
    block: Hash


class GotContribution(msgspec.Struct, frozen=True):
    """A member's payload is in its own store and one replica, and agrees with its commitment."""

    round: int
    contribution: Contribution


class GotOwnRoot(msgspec.Struct, frozen=True):
    """The coordinator has merged the accepted payloads itself."""

    round: int
    root: Hash


class GotRoot(msgspec.Struct, frozen=True):
    """A member has merged; its signature was checked by the shell."""

    round: int
    peer: PeerId
    root: Hash
    signature: Signature


class GotVerdicts(msgspec.Struct, frozen=True):
    """All audits that were drawn in `round` are over; node and verifier ascend. `scores` of its loss probes, if any."""

    round: int
    verdicts: tuple[SignedVerdict, ...]
    canaries: tuple[Canary, ...] = ()  # by node
    scores: tuple[SignedScores, ...] = ()


class Lost(msgspec.Struct, frozen=True):
    """Evidence that a member is gone: its process ended, its lease lapsed, its root differs."""

    peer: PeerId


class Came(msgspec.Struct, frozen=True):
    """A peer holds public state and takes part from the next round on."""

    peer: PeerId


class GraceOver(msgspec.Struct, frozen=True):
    """The window of a phase has been open for its time: the only way in which time reaches the rounds."""

    round: int
    phase: Phase


class Paced(msgspec.Struct, frozen=True):
    """The next round has so many steps, which are `weight` tokens; for members that are named, what is said there.

    Measured by the shell (train.pacing); it reaches the result through RoundOpened alone.
    """

    steps: int
    weight: int
    weights: Mapping[PeerId, int]


class Stop(msgspec.Struct, frozen=True):
    """Finish the round that is open, then end."""


Event = (
    Begin
    | GotCommitment
    | GotBeacon
    | GotContribution
    | GotOwnRoot
    | GotRoot
    | GotVerdicts
    | Lost
    | Came
    | GraceOver
    | Paced
    | Stop
)


# Effects: what the shell does.


class Write(msgspec.Struct, frozen=True):
    """Append the record to the log and wait until it is durable."""

    record: Record


class AskTrain(msgspec.Struct, frozen=True):
    """Ask a member for its commitment."""

    round: int
    peer: PeerId


class AskBeacon(msgspec.Struct, frozen=True):
    """Let the ledger anchor what the round's log entry commits to, and say in which block it is."""

    round: int


class AskReveal(msgspec.Struct, frozen=True):
    """Ask a member to replicate and show its payload."""

    round: int
    peer: PeerId


class AskMerge(msgspec.Struct, frozen=True):
    """Tell a member the accept set; it answers with its root."""

    round: int
    peer: PeerId
    accepted: tuple[Contribution, ...]


class MergeOwn(msgspec.Struct, frozen=True):
    """Merge in the coordinator's own process."""

    round: int
    accepted: tuple[Contribution, ...]


class OpenWindow(msgspec.Struct, frozen=True):
    """A quorum has arrived: say so (GraceOver) when the others have had their time."""

    round: int
    phase: Phase


class PassOver(msgspec.Struct, frozen=True):
    """A phase was closed without a member, which is neither lost nor punished.

    In TRAIN and REVEAL it is told to drop its round; in MERGE its work counts, and it goes on merging. It is counted
    again (Came) once it has answered.
    """

    round: int
    peer: PeerId
    phase: Phase


class Report(msgspec.Struct, frozen=True):
    """A round is closed: tell the ledger and whoever watches."""

    closed: Closed
    accepted: tuple[Contribution, ...]


class Expel(msgspec.Struct, frozen=True):
    """A member's root differs from everybody's: it is out, with this as evidence."""

    peer: PeerId
    round: int
    root: Hash


class Audit(msgspec.Struct, frozen=True):
    """See the audits of `round` through, and say what they found (asked again after a crash)."""

    round: int


class Exclude(msgspec.Struct, frozen=True):
    """Verifiers agree that a member lied or withheld: it is out. Told once: what must follow for sure
    (the ledger's slash) is read from the log."""

    peer: PeerId
    round: int


class Halt(msgspec.Struct, frozen=True):
    """All members agree on a root that is not the coordinator's own: it is the coordinator that is wrong."""

    round: int
    root: Hash


class End(msgspec.Struct, frozen=True):
    """The run is over, or (REASON_ALONE) cannot go on until members come back."""

    finished: Finished


Effect = (
    Write
    | AskTrain
    | AskBeacon
    | AskReveal
    | AskMerge
    | MergeOwn
    | OpenWindow
    | PassOver
    | Report
    | Expel
    | Audit
    | Exclude
    | Halt
    | End
)
Step = tuple[State, list[Effect]]

"""Defines the coordinator's state, its inputs and its effects: the data types of train.rounds."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from farflung.core.ids import Hash, PeerId, Signature
from farflung.ledger.transactions import Canary, SignedVerdict
from farflung.train.run_log import Commitment, CommitmentTiming, Contribution, Record, RoundEndRecord, RunEndRecord
from farflung.train.scores import SignedRoundScores


class RoundPhase(enum.Enum):
    """What the round waits for."""

    IDLE = "idle"
    TRAIN = "train"
    REVEAL = "reveal"
    MERGE = "merge"
    AUDIT = "audit"
    DONE = "done"


class QuorumWindow(enum.Enum):
    """Whether members that have not arrived in the open phase are still waited for, once enough of the others have."""

    SHUT = "shut"  # no quorum yet: they are
    OPEN = "open"  # they are, until the shell says that the time is over
    OVER = "over"  # they are not


class CoordinatorState(msgspec.Struct, frozen=True):
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
    phase: RoundPhase = RoundPhase.IDLE
    root: Hash = Hash(b"")
    in_round: frozenset[PeerId] = frozenset()
    promises: Mapping[PeerId, tuple[Commitment, Contribution, CommitmentTiming | None]] = {}  # while the phase is TRAIN
    commitments: Mapping[PeerId, Commitment] = {}
    block: Hash = Hash(b"")  # what the round is drawn from, once it is in the log
    contributions: Mapping[PeerId, Contribution] = {}
    accepted: tuple[Contribution, ...] = ()
    own_root: Hash | None = None
    roots: Mapping[PeerId, tuple[Hash, Signature]] = {}
    stopping: str = ""  # why the run ends before its last round; "" while it does not
    finished: RunEndRecord | None = None
    is_audited: bool = False
    audited: int = 0  # rounds whose audits are in the log
    verdicts: Mapping[int, VerdictsInput] = {}  # of rounds whose audits are not in the log yet
    excluded: frozenset[PeerId] = frozenset()
    quorum: float = 1.0  # share of the assigned tokens of a phase's members whose arrival opens the window
    window: QuorumWindow = QuorumWindow.SHUT
    assigned: Mapping[PeerId, int] = {}  # of the round: the most that each contribution may weigh
    pace: Mapping[PeerId, int] = {}  # of the next round


# Events: what reaches the coordinator.


class BeginInput(msgspec.Struct, frozen=True):
    """The network is up: take the run on from where its log ends."""


class CommitmentInput(msgspec.Struct, frozen=True):
    """A member has trained; its signature was checked by the shell, and that what it promised opens the commitment."""

    round: int
    commitment: Commitment
    promised: Contribution
    timed: CommitmentTiming | None = None  # where the job judges speed


class BeaconInput(msgspec.Struct, frozen=True):
    """The round's commitments are in a final block of the ledger."""

    round: int
    block: Hash


class ContributionInput(msgspec.Struct, frozen=True):
    """A member's payload is in its own store and one replica, and agrees with its commitment."""

    round: int
    contribution: Contribution


class OwnRootInput(msgspec.Struct, frozen=True):
    """The coordinator has merged the accepted payloads itself."""

    round: int
    root: Hash


class MemberRootInput(msgspec.Struct, frozen=True):
    """A member has merged; its signature was checked by the shell."""

    round: int
    peer: PeerId
    root: Hash
    signature: Signature


class VerdictsInput(msgspec.Struct, frozen=True):
    """All audits that were drawn in `round` are over; node and verifier ascend. `scores` of its loss probes, if any."""

    round: int
    verdicts: tuple[SignedVerdict, ...]
    canaries: tuple[Canary, ...] = ()  # by node
    scores: tuple[SignedRoundScores, ...] = ()


class MemberLossInput(msgspec.Struct, frozen=True):
    """Evidence that a member is gone: its process ended, its lease lapsed, its root differs.

    `has_diverged`: it said that its training lost the numbers.
    """

    peer: PeerId
    has_diverged: bool = False


class MemberJoinInput(msgspec.Struct, frozen=True):
    """A peer holds public state and takes part from the next round on."""

    peer: PeerId


class WindowEndInput(msgspec.Struct, frozen=True):
    """The window of a phase has been open for its time: the only way in which time reaches the rounds."""

    round: int
    phase: RoundPhase


class StepAssignmentInput(msgspec.Struct, frozen=True):
    """The next round has so many steps, which are `weight` tokens; for members that are named, what is said there.

    Measured by the shell (train.step_assignment); it reaches the result through RoundStartRecord alone.
    """

    steps: int
    weight: int
    weights: Mapping[PeerId, int]


class StopInput(msgspec.Struct, frozen=True):
    """Finish the round that is open, then end, for a reason that the log states."""

    reason: str = "stopped"


Event = (
    BeginInput
    | CommitmentInput
    | BeaconInput
    | ContributionInput
    | OwnRootInput
    | MemberRootInput
    | VerdictsInput
    | MemberLossInput
    | MemberJoinInput
    | WindowEndInput
    | StepAssignmentInput
    | StopInput
)


# Effects: what the shell does.


class WriteRecord(msgspec.Struct, frozen=True):
    """Append the record to the log and wait until it is durable."""

    record: Record


class RequestTraining(msgspec.Struct, frozen=True):
    """Ask a member for its commitment."""

    round: int
    peer: PeerId


class RequestBeacon(msgspec.Struct, frozen=True):
    """Let the ledger anchor what the round's log entry commits to, and say in which block it is."""

    round: int


class RequestReveal(msgspec.Struct, frozen=True):
    """Ask a member to replicate and show its payload."""

    round: int
    peer: PeerId


class RequestMerge(msgspec.Struct, frozen=True):
    """Tell a member the accept set; it answers with its root."""

    round: int
    peer: PeerId
    accepted: tuple[Contribution, ...]


class MergeLocally(msgspec.Struct, frozen=True):
    """Merge in the coordinator's own process."""

    round: int
    accepted: tuple[Contribution, ...]


class OpenWindow(msgspec.Struct, frozen=True):
    """A quorum has arrived: say so (WindowEndInput) when the others have had their time."""

    round: int
    phase: RoundPhase


class SkipMember(msgspec.Struct, frozen=True):
    """A phase was closed without a member, which is neither lost nor punished.

    In TRAIN and REVEAL it is told to drop its round; in MERGE its work counts, and it goes on merging. It is counted
    again (MemberJoinInput) once it has answered.
    """

    round: int
    peer: PeerId
    phase: RoundPhase


class ReportRound(msgspec.Struct, frozen=True):
    """A round is closed: tell the ledger and whoever watches."""

    closed: RoundEndRecord
    accepted: tuple[Contribution, ...]


class ExpelMember(msgspec.Struct, frozen=True):
    """A member's root differs from everybody's: it is out, with this as evidence."""

    peer: PeerId
    round: int
    root: Hash


class AuditRound(msgspec.Struct, frozen=True):
    """See the audits of `round` through, and say what they found (asked again after a crash)."""

    round: int


class ExcludeMember(msgspec.Struct, frozen=True):
    """Verifiers agree that a member lied or withheld: it is out. Told once: what must follow for sure
    (the ledger's slash) is read from the log."""

    peer: PeerId
    round: int


class HaltRun(msgspec.Struct, frozen=True):
    """All members agree on a root that is not the coordinator's own: it is the coordinator that is wrong."""

    round: int
    root: Hash


class EndRun(msgspec.Struct, frozen=True):
    """The run is over, or (REASON_ALONE) cannot go on until members come back."""

    finished: RunEndRecord


Effect = (
    WriteRecord
    | RequestTraining
    | RequestBeacon
    | RequestReveal
    | RequestMerge
    | MergeLocally
    | OpenWindow
    | SkipMember
    | ReportRound
    | ExpelMember
    | AuditRound
    | ExcludeMember
    | HaltRun
    | EndRun
)
Step = tuple[CoordinatorState, list[Effect]]

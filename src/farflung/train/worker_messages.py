"""Defines the messages between an agent and its own worker process over their inherited socket.

The worker is the only process that runs torch. It holds public state and its private inner state in memory;
the agent keeps both on disk, encrypted. One request is answered by one reply, in order.

What grows with model or data is a `Blob`: it travels beside its message, in a file (train.blobs).
"""

from __future__ import annotations

from farflung.core.codec import Wire
from farflung.core.commitments import BorderRoots
from farflung.core.ids import Hash, PeerId
from farflung.job.spec import JobSpec
from farflung.train.blobs import Blob
from farflung.train.contribution_trace import ContributionTrace
from farflung.train.scores import ContributionScore as ScoreOf


class SetupCommand(Wire, frozen=True, tag="setup"):
    """First message: the job. `dataset` is job.dataset's packed form, or the root of a large one (job.token_tree).
    `member` is the peer's index in the job.

    `cheat` is what this provider does instead of its work (train.cheating_workers), known to nobody but its own
    processes. `device`: its owner's choice (plan.device_choice).
    """

    spec: JobSpec
    dataset: Blob
    module: bytes
    member: int
    peer: PeerId
    threads: int = 1
    cheat: str = "none"
    device: str = "cpu"


class InitializeCommand(Wire, frozen=True, tag="init"):
    """Build round 0's public state from the seed (asked of the requester's own worker only)."""


class LoadCommand(Wire, frozen=True, tag="load"):
    """Take public state (train.public_state form) of `round` and inner state (train.inner_state form; empty: fresh)."""

    round: int
    snapshot: Blob
    inner: Blob


class TrainCommand(Wire, frozen=True, tag="train"):
    """Compute the contribution to `round` from the public state held, in `steps` steps (0: all that the job has)."""

    round: int
    steps: int = 0


class AbandonCommand(Wire, frozen=True, tag="abandon"):
    """Give up the round that is being trained: it is answered WorkerFailure, FF-TRAIN-012. This is not answered at
    all, and changes nothing when no round is under way.
    """


class RewindCommand(Wire, frozen=True, tag="rewind"):
    """Put inner state (train.inner_state form; empty: fresh) back to what it was before `round`, whose public state is
    held: the round can then be trained again, to the same bits.
    """

    round: int
    inner: Blob


class OpenSegmentCommand(Wire, frozen=True, tag="open"):
    """Give the states at the borders of one segment of the round that was just trained."""

    round: int
    segment: int


class RerunCommand(Wire, frozen=True, tag="rerun"):
    """A verifier's work: train one segment of another peer's round again, from its opened state.

    `snapshot` is the public state before the round, `start` the opened state at the segment's first border
    (train.segment form; empty: fresh, at border 0), `steps` those of the peer's round (0: all). Changes nothing that
    the worker holds.
    """

    snapshot: Blob
    member: int
    segment: int
    start: Blob
    steps: int = 0


class ReencodeCommand(Wire, frozen=True, tag="reencode"):
    """A verifier's work: encode again what `peer` claims to have ended its round with.

    `last` is the opened state at border K: weights and, as `residual`, what was left unsent before the round.
    """

    snapshot: Blob
    peer: PeerId
    last: Blob


class ProfileCommand(Wire, frozen=True, tag="profile"):
    """Measure how far honest work lies apart between environment classes (train.noise_profile), from `snapshot`."""

    snapshot: Blob


class DatasetLeaves(Wire, frozen=True):
    """Some packed leaves (core.canon.token_leaves) of the training part of a data set, or of its validation part."""

    is_heldout: bool
    leaves: Blob


class HoldTokensCommand(Wire, frozen=True, tag="hold"):
    """Of a data set that setup named by its root: have these pieces, and no others, until the next such command."""

    pieces: tuple[DatasetLeaves, ...]


class AcceptedPayload(Wire, frozen=True):
    """One accepted contribution of a round."""

    peer: PeerId
    weight: int
    payload: Blob


class MergeCommand(Wire, frozen=True, tag="merge"):
    """Merge the accepted parts of `round` into public state: the peer is then at `round + 1`."""

    round: int
    parts: tuple[AcceptedPayload, ...]


class EvaluateCommand(Wire, frozen=True, tag="evaluate"):
    """Validation loss of a public state given as snapshot, on the first `tokens` validation tokens."""

    snapshot: Blob
    tokens: int


class LossProbeCommand(Wire, frozen=True, tag="probe"):
    """A verifier's work: what each of a round's accepted parts does to the loss, on `windows` windows that `seed` names
    (train.scores). `members`: whose data each part was to be made from. Changes nothing that the worker holds.
    """

    snapshot: Blob
    members: tuple[int, ...]
    parts: tuple[AcceptedPayload, ...]
    windows: int
    seed: int


class BaselineCommand(Wire, frozen=True, tag="baseline"):
    """Train one machine up to step `until` on the tokens that `members` peers are given, then evaluate.

    It goes on from where the last such request ended; a `snapshot` that is not empty starts it anew from there.
    It may use `threads`: nobody repeats it elsewhere, so its last bits are nobody's business.
    """

    snapshot: Blob
    members: int
    until: int
    tokens: int
    threads: int


Request = (
    SetupCommand
    | InitializeCommand
    | LoadCommand
    | TrainCommand
    | RewindCommand
    | OpenSegmentCommand
    | RerunCommand
    | ReencodeCommand
    | ProfileCommand
    | MergeCommand
    | EvaluateCommand
    | LossProbeCommand
    | BaselineCommand
    | HoldTokensCommand
)


Said = Request | AbandonCommand  # by the agent


class SetupResult(Wire, frozen=True, tag="ready"):
    """Setup is done."""

    tokens_train: int
    tokens_heldout: int
    loss_unigram: float


class StateResult(Wire, frozen=True, tag="state"):
    """Public state: reply to InitializeCommand (with the snapshot), LoadCommand and MergeCommand (empty)."""

    round: int
    root: Hash
    snapshot: Blob
    shapes: tuple[tuple[str, tuple[int, ...]], ...]


class TrainResult(Wire, frozen=True, tag="trained"):
    """A contribution: the payload that will be sent, and the private state to make durable first."""

    round: int
    payload: Blob
    inner: Blob
    trace: ContributionTrace
    seconds: float


class OpenSegmentResult(Wire, frozen=True, tag="opened"):
    """States in train.segment form. `start` and `end`: all vectors at the segment's borders (`start` is empty when
    fresh); `last`: weights at border K and the residual before the round, which the encoding started from.
    `public`: the weights, float32, that `start` leaves out at border 0, for who has to play for its work.
    """

    start: Blob
    end: Blob
    last: Blob
    public: Blob = b""


class RerunResult(Wire, frozen=True, tag="reran"):
    """What the segment gives here: the border after it, the state there (train.segment form), and its losses."""

    border: BorderRoots
    end: Blob
    losses: tuple[float, ...]
    seconds: float


class ReencodeResult(Wire, frozen=True, tag="reencoded"):
    """Content hash of the payload that the claimed end gives, and the root of the claimed weights."""

    payload: Hash
    params: Hash
    residual: Hash


class ShortcutDistance(Wire, frozen=True):
    """A shortcut that was played on the job's model: what it does, which share of a segment's compute it saves, and how
    far it lies from the work, by vector, in layout order.
    """

    name: str
    about: str
    saved: float
    distances: tuple[tuple[str, tuple[float, ...]], ...]


class ProfileResult(Wire, frozen=True, tag="profiled"):
    """Largest relative distance of each tensor between environment classes, by vector, in layout order; and those of
    the shortcuts nearest to honest work (train.noise_profile).
    """

    noise: tuple[tuple[str, tuple[float, ...]], ...]
    shortcuts: tuple[ShortcutDistance, ...]
    classes: tuple[str, ...]
    seconds: float


class LossResult(Wire, frozen=True, tag="score"):
    """Reply to EvaluateCommand and BaselineCommand: nats per token."""

    loss: float
    tokens: int
    steps: int
    seconds: float


class LossProbeResult(Wire, frozen=True, tag="probed"):
    """Reply to LossProbeCommand: the validation loss before the round, and each part's losses, in units of 2^-20."""

    held_before: int
    each: tuple[ScoreOf, ...]
    seconds: float


class HoldTokensResult(Wire, frozen=True, tag="holding"):
    """The pieces are there: so many."""

    pieces: int


class WorkerFailure(Wire, frozen=True, tag="broken"):
    """The request failed; the worker's state is as before the request."""

    code: str
    message: str
    cause: str
    hint: str


Reply = (
    SetupResult
    | StateResult
    | TrainResult
    | OpenSegmentResult
    | RerunResult
    | ReencodeResult
    | ProfileResult
    | LossResult
    | LossProbeResult
    | HoldTokensResult
    | WorkerFailure
)

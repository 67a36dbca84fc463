"""What an agent and its own worker process say to each other over their inherited socket.

The worker is the only process that runs torch. It holds public state and its private inner state in memory;
the agent keeps both on disk, encrypted. One request is answered by one reply, in order.
"""

from __future__ import annotations

from farflung.core.codec import Wire
from farflung.core.ids import Hash, PeerId
from farflung.job.spec import JobSpec


class Setup(Wire, frozen=True, tag="setup"):
    """First message: the job. `dataset` is job.dataset's packed form. `member` is the peer's index in the job."""

    spec: JobSpec
    dataset: bytes
    module: bytes
    member: int
    peer: PeerId


class Initialize(Wire, frozen=True, tag="init"):
    """Build round 0's public state from the seed (asked of the requester's own worker only)."""


class Load(Wire, frozen=True, tag="load"):
    """Take public state (train.snapshot form) of `round` and inner state (train.inner form; empty: fresh)."""

    round: int
    snapshot: bytes
    inner: bytes


class Train(Wire, frozen=True, tag="train"):
    """Compute the contribution to `round` from the public state held."""

    round: int


class Part(Wire, frozen=True):
    """One accepted contribution of a round."""

    peer: PeerId
    weight: int
    payload: bytes


class Merge(Wire, frozen=True, tag="merge"):
    """Merge the accepted parts of `round` into public state: the peer is then at `round + 1`."""

    round: int
    parts: tuple[Part, ...]


class Evaluate(Wire, frozen=True, tag="evaluate"):
    """Held-out loss of a public state given as snapshot, on the first `tokens` held-out tokens."""

    snapshot: bytes
    tokens: int


class Baseline(Wire, frozen=True, tag="baseline"):
    """Train one machine on the same tokens as `members` peers did in the whole run, then evaluate."""

    snapshot: bytes
    members: int
    tokens: int


Request = Setup | Initialize | Load | Train | Merge | Evaluate | Baseline


class Ready(Wire, frozen=True, tag="ready"):
    """Setup is done."""

    tokens_train: int
    tokens_heldout: int
    loss_unigram: float


class State(Wire, frozen=True, tag="state"):
    """Public state: reply to Initialize (with the snapshot) and to Load and Merge (snapshot empty)."""

    round: int
    root: Hash
    snapshot: bytes
    shapes: tuple[tuple[str, tuple[int, ...]], ...]


class Trained(Wire, frozen=True, tag="trained"):
    """A contribution: the payload that will be sent, and the private state to make durable first."""

    round: int
    payload: bytes
    inner: bytes
    losses: tuple[float, ...]
    grad_norm: float
    tokens: int
    seconds: float


class Score(Wire, frozen=True, tag="score"):
    """Reply to Evaluate and Baseline: nats per token."""

    loss: float
    tokens: int
    steps: int
    seconds: float


class Broken(Wire, frozen=True, tag="broken"):
    """The request failed; the worker's state is as before the request."""

    code: str
    message: str
    cause: str
    hint: str


Reply = Ready | State | Trained | Score | Broken

"""What a worker does for its agent: one method for each request of `train.messages`, nothing else.

State changes only when a request succeeds: `train` leaves public state alone and keeps the inner state it
started from, so that repeating a round gives the same bytes; `merge` moves both on. One thread, seeded, denormals
kept: the same machine class gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from farflung.core.errors import RunError
from farflung.core.layout import Float32
from farflung.job import dataset
from farflung.job.spec import JobSpec
from farflung.train import inner, local, messages, model, order, snapshot
from farflung.train.inner import InnerState
from farflung.train.model import Model
from farflung.train.snapshot import PublicState
from farflung.train.sync import Sync

Clock = Callable[[], float]
EVALUATE_ROWS = 32  # windows of one forward pass


@dataclass(frozen=True)
class Job:
    """What Setup fixed."""

    setup: messages.Setup
    data: dataset.Dataset
    model: Model
    sync: Sync
    start: Float32  # parameters of round 0

    @property
    def spec(self) -> JobSpec:
        """The job's spec."""
        return self.setup.spec


class Engine:
    """Holds one peer's public and inner state. `clock` gives seconds; `pulse` is called between steps."""

    def __init__(self, clock: Clock, pulse: Callable[[], None] = lambda: None) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(False)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        self._clock, self._pulse = clock, pulse
        self._job: Job | None = None
        self._public: PublicState | None = None
        self._inner = InnerState()
        self._next: InnerState | None = None

    def handle(self, request: messages.Request) -> messages.Reply:
        """Answers one request; raises FarflungError, and then holds what it held before."""
        match request:
            case messages.Setup():
                return self.setup(request)
            case messages.Initialize():
                return self.initialize()
            case messages.Load():
                return self.load(request)
            case messages.Train():
                return self.train(request)
            case messages.Merge():
                return self.merge(request)
            case messages.Evaluate():
                return self.evaluate(request)
            case messages.Baseline():
                return self.baseline(request)

    def setup(self, request: messages.Setup) -> messages.Ready:
        """Builds the model and judges it on one batch (train.model gives the codes)."""
        spec = request.spec
        data = dataset.unpack(request.dataset)
        dataset.check_dataset(data, spec.model)
        built = model.build(spec, request.module)
        job = Job(request, data, built, Sync.of(spec.sync), model.initial(spec, built))
        built.put(job.start)
        local.seed(spec, 0, request.member, 0)
        built.probe(*local.tensors(order.batch(data.train, spec, 0, request.member, 0)))
        self._job, self._public, self._inner, self._next = job, None, InnerState(), None
        entropy = dataset.unigram_entropy(data.train, data.heldout, spec.model.vocabulary)
        return messages.Ready(len(data.train), len(data.heldout), entropy)

    def initialize(self) -> messages.State:
        """Round 0's public state, from the seed; the reply carries its snapshot."""
        job = self._setup_done()
        state = job.sync.initial(job.start)
        self._public, self._inner, self._next = state, InnerState(), None
        return self._state(state, snapshot.pack(state, job.model.layout))

    def load(self, request: messages.Load) -> messages.State:
        """Takes public and inner state. Inner state may be ahead by the rounds that are merged (replayed) next."""
        job = self._setup_done()
        layout = job.model.layout
        state = snapshot.check(snapshot.unpack(request.snapshot, layout), layout, request.round)
        held = InnerState()
        if request.inner:
            held = inner.unpack(request.inner, job.spec.optimizer, layout)
        self._public, self._inner, self._next = state, held, None
        return self._state(state)

    def train(self, request: messages.Train) -> messages.Trained:
        """H inner steps from P_r, then the encoded change. Public state and the round's inner state stay."""
        job, state = self._at(request.round)
        if self._inner.round > state.round:
            raise _out_of_order(f"round {state.round} is already trained from this inner state")
        began = self._clock()
        result = local.steps(
            job.model, job.spec, job.data.train, state, self._inner, job.setup.member, self._pulse
        )
        about = job.sync.about(state, job.model.layout, job.setup.peer)
        residual, payload = job.sync.encode(self._inner.residual, result.delta, job.model.layout, about)
        after = InnerState(state.round + 1, result.optimizer.step, local.arrays(result.optimizer), residual)
        packed = inner.pack(after, job.spec.optimizer, job.model.layout)
        self._next = after
        return messages.Trained(
            round=state.round,
            payload=payload,
            inner=packed,
            losses=result.losses,
            grad_norm=result.grad_norm,
            tokens=job.spec.round_tokens,
            seconds=self._clock() - began,
        )

    def merge(self, request: messages.Merge) -> messages.State:
        """Moves to round + 1 (train.sync); the peer's own inner state moves with it when it trained."""
        job, state = self._at(request.round)
        merged = job.sync.apply(state, job.model.layout, request.parts)
        self._public = merged
        self._inner, self._next = self._next or self._inner, None
        return self._state(merged)

    def evaluate(self, request: messages.Evaluate) -> messages.Score:
        """Mean loss, in nats per token, of the given snapshot on the first held-out tokens."""
        job = self._setup_done()
        began = self._clock()
        state = snapshot.unpack(request.snapshot, job.model.layout)
        loss, tokens = self._score(job, state.params, request.tokens)
        return messages.Score(loss, tokens, 0, self._clock() - began)

    def baseline(self, request: messages.Baseline) -> messages.Score:
        """One machine, the members' batches joined, the same schedule and number of steps; then its loss."""
        job = self._setup_done()
        began = self._clock()
        start = snapshot.unpack(request.snapshot, job.model.layout)
        params = local.baseline(
            job.model, job.spec, job.data.train, start.params, request.members, self._pulse
        )
        loss, tokens = self._score(job, params, request.tokens)
        return messages.Score(loss, tokens, job.spec.steps, self._clock() - began)

    def _score(self, job: Job, params: Float32, limit: int) -> tuple[float, int]:
        x_NT, y_NT = local.tensors(order.windows(job.data.heldout, job.spec.model.context, limit))
        job.model.put(params)
        job.model.module.eval()
        total = 0.0
        try:
            with torch.no_grad():
                for start in range(0, len(x_NT), EVALUATE_ROWS):
                    self._pulse()
                    rows = slice(start, start + EVALUATE_ROWS)
                    total += float(job.model.loss(x_NT[rows], y_NT[rows])) * len(x_NT[rows])
        finally:
            job.model.module.train()
        return total / len(x_NT), int(x_NT.numel())

    def _setup_done(self) -> Job:
        if self._job is None:
            raise _out_of_order("the job comes first")
        return self._job

    def _at(self, round: int) -> tuple[Job, PublicState]:
        job = self._setup_done()
        if self._public is None or self._public.round != round:
            held = "none" if self._public is None else f"round {self._public.round}"
            raise _out_of_order(f"round {round} was asked for; public state held: {held}")
        return job, self._public

    def _state(self, state: PublicState, packed: bytes = b"") -> messages.State:
        layout = self._setup_done().model.layout
        shapes = tuple((t.name, t.shape) for t in layout.tensors)
        return messages.State(state.round, state.root(layout), packed, shapes)


def _out_of_order(cause: str) -> RunError:
    return RunError(
        "FF-TRAIN-080",
        "request out of order",
        cause=cause,
        hint="load the state of the round first, then ask again",
    )

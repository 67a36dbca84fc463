"""What a worker does for its agent: one method for each request of `train.messages`, nothing else.

State changes only when a request succeeds: `train` leaves public state alone and keeps the inner state it
started from, so that repeating a round gives the same bytes; `merge` moves both on. Seeded, denormals kept, the
number of threads fixed: the same machine class gives the same bits. What a verifier asks for changes nothing, nor do
the steps that are made `ahead`, before a round is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from farflung.compress import kernels
from farflung.core.errors import RunError, SpecError
from farflung.core.layout import Float32
from farflung.job import dataset
from farflung.train import (
    cheats,
    inner,
    local,
    messages,
    model,
    order,
    probe,
    profile,
    segments,
    snapshot,
    work,
)
from farflung.train.ahead import Ahead
from farflung.train.inner import InnerState
from farflung.train.segments import BorderState
from farflung.train.snapshot import PublicState
from farflung.train.sync import Sync
from farflung.train.work import Honest, Job, Made

Clock = Callable[[], float]
THREADS = 1024


class Round(NamedTuple):
    """A round that was trained, until it is merged: inner state after it, and the state at each of its borders."""

    after: InnerState
    states: tuple[BorderState, ...]


class Engine:
    """Holds one peer's public and inner state. `clock` gives seconds; `pulse` is called between steps."""

    def __init__(self, clock: Clock, pulse: Callable[[], None] = lambda: None) -> None:
        torch.set_flush_denormal(False)
        # The same switch as use_deterministic_algorithms(True), without loading the compiler: 1.6 s a process.
        torch.set_deterministic_debug_mode("error")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        self._clock, self._pulse = clock, pulse
        self._job: Job | None = None
        self._work: Honest | None = None
        self._public: PublicState | None = None
        self._inner = InnerState()
        self._made: Round | None = None
        self._ahead: Ahead | None = None  # the round after the one that was trained last
        self._alone: local.Alone | None = None

    def handle(self, request: messages.Request) -> messages.Reply:
        """Answers one request; raises FarflungError, and then holds what it held before."""
        self._set_threads()
        match request:
            case messages.Setup():
                return self.setup(request)
            case messages.Initialize():
                return self.initialize()
            case messages.Load():
                return self.load(request)
            case messages.Train():
                return self.train(request)
            case messages.Rewind():
                return self.rewind(request)
            case messages.Merge():
                return self.merge(request)
            case messages.Evaluate():
                return self.evaluate(request)
            case messages.Probe():
                return self.probe(request)
            case messages.Baseline():
                return self.baseline(request)
            case messages.OpenSegment():
                return self.open_segment(request)
            case messages.Rerun():
                return self.rerun(request)
            case messages.Reencode():
                return self.reencode(request)
            case messages.Profile():
                return self.profile(request)

    def ahead(self) -> bool:
        """Makes one step of the round that comes next, where it is known what that begins with (train.ahead); False
        when there is none to make. No reply depends on it, save for how long the round took.
        """
        if self._ahead is None:
            return False
        self._set_threads()
        return self._ahead.step(self._clock)

    def rest(self) -> None:
        """Drops what was made ahead."""
        self._ahead = None

    def setup(self, request: messages.Setup) -> messages.Ready:
        """Builds the model and judges it on one batch (train.model gives the codes).

        Raises SpecError FF-TRAIN-063 (threads), FF-TRAIN-064 (unknown cheat).
        """
        spec = request.spec
        torch.set_num_threads(_checked_threads(request.threads))
        data = dataset.unpack(request.dataset)
        dataset.check_dataset(data, spec.model)
        built = model.build(spec, request.module)
        kernels.settle(built.layout.size)
        job = Job(request, data, built, Sync.of(spec), model.initial(spec, built))
        built.put(job.start)
        local.seed(spec, 0, request.member, 0)
        built.probe(*local.tensors(order.batch(data.train, spec, 0, request.member, 0)))
        self._job, self._work = job, cheats.worker(job)
        self._hold(None, InnerState())
        entropy = dataset.unigram_entropy(data.train, data.heldout, spec.model.vocabulary)
        return messages.Ready(len(data.train), len(data.heldout), entropy)

    def initialize(self) -> messages.State:
        """Round 0's public state, from the seed; the reply carries its snapshot."""
        job = self._setup_done()
        state = job.sync.initial(job.start)
        self._hold(state, InnerState())
        return self._state(state, snapshot.pack(state, job.model.layout))

    def load(self, request: messages.Load) -> messages.State:
        """Takes public and inner state. Inner state may be ahead by the rounds that are merged (replayed) next."""
        job = self._setup_done()
        layout = job.model.layout
        state = snapshot.check(snapshot.unpack(request.snapshot, layout), layout, request.round)
        self._hold(state, _inner_state(job, request.inner))
        return self._state(state)

    def train(self, request: messages.Train) -> messages.Trained:
        """H inner steps from P_r, the encoded change, and its trace. Public state and inner state stay."""
        job, state = self._at(request.round)
        if self._inner.round > state.round:
            raise _out_of_order(f"round {state.round} is already trained from this inner state")
        assert self._work is not None
        self._work.steps = job.steps(request.steps)
        began = self._clock()
        made, before = self._trained(self._work, state)
        sent = self._work.encode(state, self._inner, made)
        end = made.states[-1]
        after = InnerState(state.round + 1, end.step, end.vectors, sent.residual, sent.offset)
        packed = inner.pack(after, job.spec.optimizer, job.model.layout)
        trace = work.trace(job, made, sent)
        self._made, self._ahead = Round(after, made.states), Ahead(self._work, state, after)
        return messages.Trained(state.round, sent.payload, packed, trace, before + self._clock() - began)

    def _trained(self, worker: Honest, state: PublicState) -> tuple[Made, float]:
        """The round's steps, and the seconds that those took which were made before it was asked for."""
        ahead, self._ahead = self._ahead, None  # asked again, a round that failed is trained from its start
        begun = None if ahead is None else ahead.taken(state, self._inner, worker.borders)
        if ahead is None or begun is None:
            return worker.train(state, self._inner, self._pulse), 0.0
        return begun.finished(self._pulse), ahead.seconds

    def rewind(self, request: messages.Rewind) -> messages.State:
        """Takes inner state from before the round that public state stands at."""
        job, state = self._at(request.round)
        held = _inner_state(job, request.inner)
        if held.round > state.round:
            raise _out_of_order(f"this inner state is of round {held.round}, after round {state.round}")
        self._hold(state, held)
        return self._state(state)

    def merge(self, request: messages.Merge) -> messages.State:
        """Moves to round + 1 (train.sync). The peer's own inner state moves with it when its work is among the parts:
        a round that was not accepted did not happen, and what it would have sent is unsent still.
        """
        job, state = self._at(request.round)
        merged = job.sync.apply(state, job.model.layout, request.parts)
        assert self._work is not None
        self._work.merged(state, request.parts)
        is_in = any(part.peer == job.setup.peer for part in request.parts)
        self._hold(merged, self._made.after if self._made is not None and is_in else self._inner)
        return self._state(merged)

    def open_segment(self, request: messages.OpenSegment) -> messages.SegmentOpened:
        """The states of a segment of the round that was trained and is not merged yet.

        Raises RunError FF-TRAIN-081 (another round, or none), FF-TRAIN-082 (the round has no such segment).
        """
        job = self._setup_done()
        if self._made is None or self._made.states[0].round != request.round:
            held = "no round" if self._made is None else f"round {self._made.states[0].round}"
            raise _not_held(f"those of {held} are held, and round {request.round} was asked for")
        job.check_segment(request.segment)
        states, optimizer, layout = self._made.states, job.spec.optimizer, job.model.layout
        return messages.SegmentOpened(
            start=segments.pack(segments.start(states, request.segment), optimizer, layout),
            end=segments.pack(segments.end(states, request.segment), optimizer, layout),
            last=segments.pack(segments.last(states), optimizer, layout),
            public=b"" if request.segment else segments.weights(states[0]),
        )

    def rerun(self, request: messages.Rerun) -> messages.Reran:
        """Another peer's segment, as it should have been (train.work gives the codes)."""
        job = self._setup_done()
        began = self._clock()
        layout, optimizer = job.model.layout, job.spec.optimizer
        state = snapshot.unpack(request.snapshot, layout)
        start = segments.unpack(request.start, optimizer, layout, state.round)
        again = work.rerun(job, state, request.member, request.segment, start, self._pulse, request.steps)
        end = segments.pack(again.end, optimizer, layout)
        return messages.Reran(again.border, end, again.losses, self._clock() - began)

    def reencode(self, request: messages.Reencode) -> messages.Reencoded:
        """The hashes of what another peer's claimed end gives (train.work gives the codes)."""
        job = self._setup_done()
        layout = job.model.layout
        state = snapshot.unpack(request.snapshot, layout)
        last = segments.unpack(request.last, job.spec.optimizer, layout, state.round)
        return messages.Reencoded(*work.reencode(job, state, request.peer, last))

    def profile(self, request: messages.Profile) -> messages.Profiled:
        """How far honest work and shortcuts lie apart (train.profile); threads and libraries are set back after it."""
        job = self._setup_done()
        began = self._clock()
        state = snapshot.unpack(request.snapshot, job.model.layout)
        found = profile.measure(job, state, self._pulse)
        return messages.Profiled(*found, tuple(profile.CLASSES), self._clock() - began)

    def evaluate(self, request: messages.Evaluate) -> messages.Score:
        """Mean loss, in nats per token, of the given snapshot on the first held-out tokens."""
        job = self._setup_done()
        began = self._clock()
        state = snapshot.unpack(request.snapshot, job.model.layout)
        loss, tokens = self._score(job, state.params, request.tokens)
        return messages.Score(loss, tokens, 0, self._clock() - began)

    def probe(self, request: messages.Probe) -> messages.Probed:
        """What each of a round's parts does to the loss (train.probe gives the codes)."""
        job = self._setup_done()
        began = self._clock()
        state = snapshot.unpack(request.snapshot, job.model.layout)
        before, each = probe.measure(job, state, request, self._pulse)
        return messages.Probed(before, each, self._clock() - began)

    def baseline(self, request: messages.Baseline) -> messages.Score:
        """One machine, the members' batches joined, the same schedule and number of steps; then its loss.

        Raises RunError FF-TRAIN-080 when none was started, SpecError FF-TRAIN-063 (threads).
        """
        job = self._setup_done()
        began = self._clock()
        if request.snapshot:
            start = snapshot.unpack(request.snapshot, job.model.layout)
            self._alone = local.alone(job.model, job.spec, start.params)
        if self._alone is None:
            raise _out_of_order("no machine was started alone")
        torch.set_num_threads(_checked_threads(request.threads))
        until = min(request.until, job.spec.steps)
        self._alone = local.baseline(
            job.model, job.spec, job.data.train, self._alone, request.members, until, self._pulse
        )
        loss, tokens = self._score(job, self._alone.params, request.tokens)
        return messages.Score(loss, tokens, self._alone.step, self._clock() - began)

    def _score(self, job: Job, params: Float32, limit: int) -> tuple[float, int]:
        rows = order.windows(job.data.heldout, job.spec.model.context, limit)
        return probe.loss(job, params, rows, self._pulse), rows[0].size

    def _set_threads(self) -> None:
        torch.set_num_threads(1 if self._job is None else self._job.setup.threads)

    def _hold(self, public: PublicState | None, held: InnerState) -> None:
        if self._ahead is not None and (public is None or not self._ahead.fits(public, held)):
            self._ahead = None
        self._public, self._inner, self._made = public, held, None

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


def _inner_state(job: Job, packed: bytes) -> InnerState:
    return inner.unpack(packed, job.spec.optimizer, job.model.layout) if packed else InnerState()


def _checked_threads(count: int) -> int:
    if not 1 <= count <= THREADS:
        raise SpecError(
            "FF-TRAIN-063",
            f"a worker cannot run {count} threads",
            cause=f"1 <= threads <= {THREADS}",
            hint="give a worker as many threads as its machine has cores to spare, or 1",
        )
    return count


def _not_held(cause: str) -> RunError:
    return RunError(
        "FF-TRAIN-081",
        "the states of this round's borders are not held",
        cause=cause,
        hint="rewind to the inner state before the round and train it again, before it is merged",
    )


def _out_of_order(cause: str) -> RunError:
    return RunError(
        "FF-TRAIN-080",
        "request out of order",
        cause=cause,
        hint="load the state of the round first, then ask again",
    )

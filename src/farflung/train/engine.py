"""Executes the commands of the agent in its worker: one method for each command of `train.worker_messages`.

State changes only when a request succeeds: `train` leaves public state alone and keeps the inner state it
started from, so that repeating a round gives the same bytes; `merge` moves both on. Seeded, denormals kept, the
number of threads fixed: the same machine class gives the same bits. What a verifier asks for changes nothing, nor do
the steps that are made `prefetch`, before a round is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from farflung.compress import kernels
from farflung.core import limits
from farflung.core.canon.token_leaves import TokenLeaf, TokenLeaves, read_leaves
from farflung.core.errors import RunError, SpecError
from farflung.core.tensor_layout import Float32
from farflung.job import dataset, token_tree
from farflung.job.codec_cost import codec_cost
from farflung.job.safetensors_header import check_range
from farflung.train import (
    cheating_workers,
    data_order,
    flat_model,
    inner_state,
    inner_steps,
    loss_probe,
    noise_profile,
    public_state,
    round_work,
    segments,
    worker_messages,
)
from farflung.train.backend import registry
from farflung.train.blobs import Blob
from farflung.train.inner_state import InnerState
from farflung.train.prefetched_round import PrefetchedRound
from farflung.train.public_state import PublicState
from farflung.train.round_work import RoundWorker, TrainedRound, WorkerJob
from farflung.train.segments import BorderState
from farflung.train.sync_arithmetic import Sync
from farflung.train.vector_store import IN_MEMORY, VectorStore, kept

Clock = Callable[[], float]
THREADS = 1024


class PendingRound(NamedTuple):
    """A round that was trained, until it is merged: inner state after it, and the state at each of its borders."""

    after: InnerState
    states: tuple[BorderState, ...]


class WorkerEngine:
    """Holds one peer's public and inner state. `clock` gives seconds; `pulse` is called between steps; `store` holds
    what no step works on.
    """

    def __init__(self, clock: Clock, pulse: Callable[[], None] = lambda: None, store: VectorStore = IN_MEMORY) -> None:
        torch.set_flush_denormal(False)
        # The same switch as use_deterministic_algorithms(True), without loading the compiler: 1.6 s a process.
        torch.set_deterministic_debug_mode("error")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        self._clock, self._pulse, self._store = clock, pulse, store
        self._job: WorkerJob | None = None
        self._round_worker: RoundWorker | None = None
        self._public: PublicState | None = None
        self._inner = InnerState()
        self._pending: PendingRound | None = None
        self._prefetched: PrefetchedRound | None = None  # the round after the one that was trained last
        self._single_machine: inner_steps.SingleMachine | None = None

    def handle(self, request: worker_messages.Request) -> worker_messages.Reply:
        """Answers one request; raises FarflungError, and then holds what it held before."""
        self._set_threads()
        try:
            return self._answer(request)
        finally:
            self._store.rest()

    def _answer(self, request: worker_messages.Request) -> worker_messages.Reply:
        match request:
            case worker_messages.SetupCommand():
                return self.setup(request)
            case worker_messages.InitializeCommand():
                return self.initialize()
            case worker_messages.HoldTokensCommand():
                return self.hold(request)
            case worker_messages.LoadCommand():
                return self.load(request)
            case worker_messages.TrainCommand():
                return self.train(request)
            case worker_messages.RewindCommand():
                return self.rewind(request)
            case worker_messages.MergeCommand():
                return self.merge(request)
            case worker_messages.EvaluateCommand():
                return self.evaluate(request)
            case worker_messages.LossProbeCommand():
                return self.probe(request)
            case worker_messages.BaselineCommand():
                return self.baseline(request)
            case worker_messages.OpenSegmentCommand():
                return self.open_segment(request)
            case worker_messages.RerunCommand():
                return self.rerun(request)
            case worker_messages.ReencodeCommand():
                return self.reencode(request)
            case worker_messages.ProfileCommand():
                return self.profile(request)

    def prefetch(self) -> bool:
        """Makes one step of the next round, where its start is known (train.prefetched_round); False: there is none.

        No reply depends on it, save for how long the round took.
        """
        if self._prefetched is None:
            return False
        self._set_threads()
        return self._prefetched.step(self._clock)

    def rest(self) -> None:
        """Drops what was made ahead."""
        self._prefetched = None

    def setup(self, request: worker_messages.SetupCommand) -> worker_messages.SetupResult:
        """Builds the model and judges it on one batch (train.flat_model gives the codes).

        Raises SpecError FF-TRAIN-063 (threads), FF-TRAIN-064 (unknown cheat), RunError FF-TRAIN-110 (no such device).
        """
        spec = request.spec
        torch.set_num_threads(_checked_threads(request.threads))
        data, is_here = token_tree.opened(request.dataset), not token_tree.is_root(request.dataset)
        # Tokens of a larger one were looked at when it was packed, and are when pieces of it come.
        is_looked_at = is_here and len(request.dataset) <= limits.WHOLE_DATA_MOST
        (dataset.check_dataset if is_looked_at else dataset.check_lengths)(data, spec.model)
        built = flat_model.build(spec, request.module, self._store, registry.opened(request.device))
        kernels.settle(codec_cost(spec, built.layout.size))
        job = WorkerJob(request, data, built, Sync.of(spec, self._store), flat_model.initial(spec, built))
        built.put(job.start)
        flat_model.check_source(spec, request.module)
        inner_steps.seed(spec, 0, request.member, 0)
        first = data_order.batch(data.train, spec, 0, request.member, 0) if is_here else data_order.made_up(spec)
        built.probe(*inner_steps.tensors(first))
        self._job, self._round_worker = job, cheating_workers.worker(job)
        self._hold(None, InnerState())
        entropy = dataset.unigram_entropy(data.train, data.heldout, spec.model.vocabulary) if is_here else 0.0
        return worker_messages.SetupResult(len(data.train), len(data.heldout), entropy)

    def hold(self, request: worker_messages.HoldTokensCommand) -> worker_messages.HoldTokensResult:
        """Has these pieces of the data set, and no others.

        Raises RunError FF-TRAIN-080 (all of it is here), SpecError FF-JOB-023 (a token outside the vocabulary).
        """
        job = self._setup_done()
        held: tuple[dict[int, TokenLeaf], dict[int, TokenLeaf]] = {}, {}
        parts = job.data.train, job.data.heldout
        for piece in request.pieces:
            part = parts[piece.is_heldout]
            if not isinstance(part, TokenLeaves):
                raise _out_of_order("the whole data set is here")
            leaves = read_leaves(piece.leaves, part.size, part.dtype)
            for leaf in leaves.values():
                check_range("the data set", leaf.tokens, job.spec.model.vocabulary)
            held[piece.is_heldout].update(leaves)
        for part, each in zip(parts, held, strict=True):
            if isinstance(part, TokenLeaves):
                part.hold(each)
        return worker_messages.HoldTokensResult(sum(map(len, held)))

    def initialize(self) -> worker_messages.StateResult:
        """Round 0's public state, from the seed; the reply carries its snapshot."""
        job = self._setup_done()
        state = job.sync.initial(job.start)
        self._hold(state, InnerState())
        return self._state(state, public_state.pieces(state, job.model.layout))

    def load(self, request: worker_messages.LoadCommand) -> worker_messages.StateResult:
        """Takes public and inner state. Inner state may be ahead by the rounds that are merged (replayed) next."""
        job = self._setup_done()
        layout = job.model.layout
        state = public_state.check(public_state.unpack(request.snapshot, layout), layout, request.round)
        self._hold(state, _inner_state(job, request.inner))
        return self._state(state)

    def train(self, request: worker_messages.TrainCommand) -> worker_messages.TrainResult:
        """H inner steps from P_r, the encoded change, and its trace. Public state and inner state stay."""
        job, state = self._at(request.round)
        if self._inner.round > state.round:
            raise _out_of_order(f"round {state.round} is already trained from this inner state")
        assert self._round_worker is not None
        self._round_worker.steps = job.steps(request.steps)
        began = self._clock()
        made, before = self._trained(self._round_worker, state)
        sent = self._round_worker.encode(state, self._inner, made)
        end = made.states[-1]
        after = InnerState(state.round + 1, end.step, end.vectors, sent.residual, sent.offset)
        packed = inner_state.pieces(after, job.spec.optimizer, job.model.layout)
        trace = round_work.trace(job, made, sent)
        self._pending, self._prefetched = (
            PendingRound(after, made.states),
            PrefetchedRound(self._round_worker, state, after),
        )
        return worker_messages.TrainResult(state.round, sent.payload, packed, trace, before + self._clock() - began)

    def _trained(self, worker: RoundWorker, state: PublicState) -> tuple[TrainedRound, float]:
        """The round's steps, and the seconds that those took which were made before it was asked for."""
        prefetched, self._prefetched = (
            self._prefetched,
            None,
        )  # asked again, a round that failed is trained from its start
        begun = None if prefetched is None else prefetched.take(state, self._inner, worker.borders)
        if prefetched is None or begun is None:
            return worker.train(state, self._inner, self._pulse), 0.0
        return begun.finished(self._pulse), prefetched.seconds

    def rewind(self, request: worker_messages.RewindCommand) -> worker_messages.StateResult:
        """Takes inner state from before the round that public state is at."""
        job, state = self._at(request.round)
        held = _inner_state(job, request.inner)
        if held.round > state.round:
            raise _out_of_order(f"this inner state is of round {held.round}, after round {state.round}")
        self._hold(state, held)
        return self._state(state)

    def merge(self, request: worker_messages.MergeCommand) -> worker_messages.StateResult:
        """Moves to round + 1 (train.sync_arithmetic). The peer's inner state moves with it when its work is accepted.

        A round that was not accepted did not happen, and what it would have sent is unsent still.
        """
        job, state = self._at(request.round)
        merged = job.sync.apply(state, job.model.layout, request.parts)
        assert self._round_worker is not None
        self._round_worker.merged(state, request.parts)
        is_in = any(part.peer == job.setup.peer for part in request.parts)
        self._hold(merged, self._pending.after if self._pending is not None and is_in else self._inner)
        return self._state(merged)

    def open_segment(self, request: worker_messages.OpenSegmentCommand) -> worker_messages.OpenSegmentResult:
        """The states of a segment of the round that was trained and is not merged yet.

        Raises RunError FF-TRAIN-081 (another round, or none), FF-TRAIN-082 (the round has no such segment).
        """
        job = self._setup_done()
        if self._pending is None or self._pending.states[0].round != request.round:
            held = "no round" if self._pending is None else f"round {self._pending.states[0].round}"
            raise _not_held(f"those of {held} are held, and round {request.round} was asked for")
        job.check_segment(request.segment)
        states, optimizer, layout = self._pending.states, job.spec.optimizer, job.model.layout
        return worker_messages.OpenSegmentResult(
            start=segments.pieces(segments.start(states, request.segment), optimizer, layout),
            end=segments.pieces(segments.end(states, request.segment), optimizer, layout),
            last=segments.pieces(segments.last(states), optimizer, layout),
            public=b"" if request.segment else segments.weights(states[0]),
        )

    def rerun(self, request: worker_messages.RerunCommand) -> worker_messages.RerunResult:
        """Another peer's segment, as it should have been (train.round_work gives the codes)."""
        job = self._setup_done()
        began = self._clock()
        layout, optimizer = job.model.layout, job.spec.optimizer
        state = public_state.unpack(request.snapshot, layout)
        start = segments.unpack(request.start, optimizer, layout, state.round)
        again = round_work.rerun(job, state, request.member, request.segment, start, self._pulse, request.steps)
        end = segments.pieces(again.end, optimizer, layout)
        return worker_messages.RerunResult(again.border, end, again.losses, self._clock() - began)

    def reencode(self, request: worker_messages.ReencodeCommand) -> worker_messages.ReencodeResult:
        """The hashes of what another peer's claimed end gives (train.round_work gives the codes)."""
        job = self._setup_done()
        layout = job.model.layout
        state = public_state.unpack(request.snapshot, layout)
        last = segments.unpack(request.last, job.spec.optimizer, layout, state.round)
        return worker_messages.ReencodeResult(*round_work.reencode(job, state, request.peer, last))

    def profile(self, request: worker_messages.ProfileCommand) -> worker_messages.ProfileResult:
        """How far honest work and shortcuts lie apart (train.noise_profile); threads and libraries are reset after."""
        job = self._setup_done()
        began = self._clock()
        state = public_state.unpack(request.snapshot, job.model.layout)
        found = noise_profile.measure(job, state, self._pulse)
        return worker_messages.ProfileResult(*found, tuple(noise_profile.CLASSES), self._clock() - began)

    def evaluate(self, request: worker_messages.EvaluateCommand) -> worker_messages.LossResult:
        """Mean loss, in nats per token, of the given snapshot on the first validation tokens."""
        job = self._setup_done()
        began = self._clock()
        state = public_state.unpack(request.snapshot, job.model.layout)
        loss, tokens = self._score(job, state.params, request.tokens)
        return worker_messages.LossResult(loss, tokens, 0, self._clock() - began)

    def probe(self, request: worker_messages.LossProbeCommand) -> worker_messages.LossProbeResult:
        """What each of a round's parts does to the loss (train.loss_probe gives the codes)."""
        job = self._setup_done()
        began = self._clock()
        state = public_state.unpack(request.snapshot, job.model.layout)
        before, each = loss_probe.measure(job, state, request, self._pulse)
        return worker_messages.LossProbeResult(before, each, self._clock() - began)

    def baseline(self, request: worker_messages.BaselineCommand) -> worker_messages.LossResult:
        """One machine, the members' batches joined, the same schedule and number of steps; then its loss.

        Raises RunError FF-TRAIN-080 when none was started, SpecError FF-TRAIN-063 (threads).
        """
        job = self._setup_done()
        began = self._clock()
        if len(request.snapshot):
            start = public_state.unpack(request.snapshot, job.model.layout)
            self._single_machine = inner_steps.single_machine(kept(self._store, start.params))
        if self._single_machine is None:
            raise _out_of_order("no machine was started alone")
        torch.set_num_threads(_checked_threads(request.threads))
        until = min(request.until, job.spec.steps)
        self._single_machine = inner_steps.baseline(
            job.model, job.spec, job.data.train, self._single_machine, request.members, until, self._pulse
        )
        loss, tokens = self._score(job, self._single_machine.params, request.tokens)
        return worker_messages.LossResult(loss, tokens, self._single_machine.step, self._clock() - began)

    def _score(self, job: WorkerJob, params: Float32, limit: int) -> tuple[float, int]:
        rows = data_order.windows(job.data.heldout, job.spec.model.context, limit)
        return loss_probe.loss(job, params, rows, self._pulse), rows[0].size

    def _set_threads(self) -> None:
        torch.set_num_threads(1 if self._job is None else self._job.setup.threads)

    def _hold(self, public: PublicState | None, held: InnerState) -> None:
        if self._prefetched is not None and (public is None or not self._prefetched.fits(public, held)):
            self._prefetched = None
        self._public, self._inner, self._pending = public, held, None

    def _setup_done(self) -> WorkerJob:
        if self._job is None:
            raise _out_of_order("the job comes first")
        return self._job

    def _at(self, round: int) -> tuple[WorkerJob, PublicState]:
        job = self._setup_done()
        if self._public is None or self._public.round != round:
            held = "none" if self._public is None else f"round {self._public.round}"
            raise _out_of_order(f"round {round} was asked for; public state held: {held}")
        return job, self._public

    def _state(self, state: PublicState, packed: Blob = b"") -> worker_messages.StateResult:
        layout = self._setup_done().model.layout
        shapes = tuple((t.name, t.shape) for t in layout.tensors)
        return worker_messages.StateResult(state.round, state.root(layout), packed, shapes)


def _inner_state(job: WorkerJob, packed: Blob) -> InnerState:
    return inner_state.unpack(packed, job.spec.optimizer, job.model.layout) if len(packed) else InnerState()


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
        "FF-TRAIN-080", "request out of order", cause=cause, hint="load the state of the round first, then ask again"
    )

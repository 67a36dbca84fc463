"""A training loop's side of a sync method: local steps, and a round at every H-th of them.

    sync = SparseLoCo(model, inner_optimizer=torch.optim.AdamW(model.parameters(), lr=4e-4), sync_every=15)
    for batch in data:
        loss(model(batch)).backward()
        report = sync.step()            # a RoundReport at the end of a round, else None
        sync.zero_grad()

All arithmetic of a round is train.sync's: the library and the job engine are two users of one core. With
`fragment_sync_delay=1` the exchange of round r runs in a thread while round r + 1 trains, and what it brings is
applied at the end of round r + 1, never earlier or later: the same run gives the same bits on fast and slow links.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from farflung.app.sync import checkpoint
from farflung.app.sync.group import Group
from farflung.app.sync.groups import resolve
from farflung.app.sync.report import RoundReport, tell_left_out
from farflung.app.sync.rounds import CHECK, SHARE, TAGS, Gathered, Terms, check_roots, gather
from farflung.app.sync.tensors import Weights
from farflung.compress.lowrank import LowRank
from farflung.core.errors import ProtocolError, UsageError
from farflung.core.layout import Float32
from farflung.job.spec import JobSpec
from farflung.train import optim, twophase
from farflung.train.optim import OptimState
from farflung.train.snapshot import PublicState
from farflung.train.sync import Sync


class Flight(NamedTuple):
    """A round whose exchange is under way: its public state, what was sent, and what will come."""

    state: PublicState
    payload: bytes  # b"": what becomes of it is settled
    result: Future[Gathered]


class Synchroniser:
    """What all methods do. Build one of the named methods (app.sync.methods) rather than this.

    `spec`: the method as a job would name it. `min_quorum`: contributions without which a round fails: a number,
    a share of the group, or None for all. `group`: a torch.distributed group, a group of `connect`, or None
    (torch.distributed's default group where it is initialised, else this process alone). `clip_to_median`: no
    contribution's norm counts for more than the (lower) median of all, tensor by tensor, as in a job: it bounds
    what one sick peer can do, and is no plain mean.

    Raises UsageError FF-SYNC-001 (a setting), FF-SYNC-002 (a model that cannot be exchanged).
    """

    def __init__(
        self,
        model: nn.Module,
        spec: JobSpec,
        inner_optimizer: torch.optim.Optimizer | None,
        *,
        min_quorum: float | None,
        clip_to_median: bool,
        group: Group | dist.ProcessGroup | None,
    ) -> None:
        check_settings(spec)
        self.spec = spec
        self.inner_optimizer = inner_optimizer
        self.weights = Weights(model)
        self.sync = Sync.of(spec)
        own = resolve(group)
        self.group = own.dedicated() if spec.sync.delay else own
        self.terms = Terms(_quorum(min_quorum, len(own.ids)), clip_to_median)
        self.state = self.sync.initial(self.weights.take())
        size = self.weights.layout.size
        self.residual = _zeros(size) if has_residual(spec) else None
        self.offset = _zeros(size) if self.sync.is_offset else None
        self.velocity = torch.zeros(size) if self.sync.is_stepwise else None
        self.done = 0  # steps of the open round
        self.flight: Flight | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._begin(self.state.params)

    @property
    def round(self) -> int:
        """Rounds that have ended here."""
        return (self.state.round + (self.flight is not None)) // self.sync.phases

    def step(self) -> RoundReport | None:
        """One step of the inner optimizer; after the last one of a round, the exchange. Call it after `backward`.

        Raises FF-SYNC-003 (the model changed), FF-SYNC-005 (NaN), FF-SYNC-006 (parameters differ), FF-SYNC-010 and
        FF-SYNC-011 (the group).
        """
        if self.inner_optimizer is not None:
            self.inner_optimizer.step()
        return self.advance()

    def advance(self) -> RoundReport | None:
        """`step` for a loop that has called the inner optimizer's own step already (a Trainer does)."""
        self.done += 1
        if self.done < self.spec.sync.steps:
            return None
        return self._border()

    def set_lr(self, lr: float) -> None:
        """The rate of a method that is its own optimizer (DGC, PowerSGD) from here on; the same at all peers."""
        self.spec = msgspec.structs.replace(
            self.spec, optimizer=msgspec.structs.replace(self.spec.optimizer, lr=lr)
        )
        check_settings(self.spec)
        self.sync = Sync.of(self.spec)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of the exchanged parameters (and of all that the inner optimizer holds)."""
        if self.inner_optimizer is not None:
            self.inner_optimizer.zero_grad(set_to_none=set_to_none)
        for parameter in self.weights.parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def share(self) -> None:
        """Gives every peer the weights of rank 0: for peers that did not start from the same. Before the first step."""
        if self.done or self.round:
            raise _bad("weights are shared before the first step", "call share() right after the constructor")
        own = self.state.params.astype("<f4").tobytes() if self.group.rank == 0 else b"\0"
        bound = 4 * self.state.params.size
        tag = self.state.round * TAGS + SHARE
        found = self.group.exchange(tag, own, bound, len(self.group.ids)).payloads[0]
        params = np.frombuffer(found, "<f4").astype(np.float32)
        if params.size != self.state.params.size:
            raise ProtocolError("FF-SYNC-014", "the weights of rank 0 are those of another model")
        self.weights.check_finite(params, "weights")
        self.state = self.sync.initial(params)
        self._begin(params)

    def check(self) -> None:
        """Compares public state with all peers. Raises VerificationError FF-SYNC-006 with the ranks that differ.

        Every payload carries the same comparison, so this is for the end of training.
        """
        root = self._settled().root(self.weights.layout)
        tag = (self.state.round + (self.flight is not None)) * TAGS + CHECK
        found = self.group.exchange(tag, root, len(root), self.terms.quorum)
        check_roots(found.payloads, root)

    def finish(self) -> RoundReport | None:
        """The end of training: waits for the exchange under way and leaves the agreed parameters in the model.

        Local steps of a round that has not ended are dropped, and what a streaming method holds back.
        """
        flight, report = self.flight, None
        if flight is not None:
            gathered, report = self._land(flight)
            last = msgspec.structs.replace(self.spec, rounds=flight.state.round + 1)
            self.state = Sync.of(last).moved(flight.state, self.weights.layout, gathered.change)
        self.done = 0
        if self.offset is not None:
            self.offset = np.zeros_like(self.offset)
        self._begin(self.state.params)
        return report

    def close(self) -> None:
        """Waits for what is under way, and gives back the thread."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None

    def state_dict(self) -> dict[str, Any]:
        """What this peer needs to go on bit for bit, besides the model's own state_dict (app.sync.checkpoint)."""
        return checkpoint.save(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict`; load the model's own state first. Raises UsageError FF-SYNC-004."""
        checkpoint.load(self, state)

    def resume(self, gathered: Gathered | None) -> None:
        """Goes on from the fields of this object; `gathered` is the exchange that was under way, if one was."""
        self.flight = None if gathered is None else Flight(self.state, b"", done(gathered))
        start = self.sync.start(self._shown(), self.offset)
        if not self.done:
            return self._begin(start)
        local = [parameter.detach().clone() for parameter in self.weights.parameters]
        self._begin(start)
        with torch.no_grad():
            for parameter, value in zip(self.weights.parameters, local, strict=True):
                parameter.copy_(value)
        return None

    def settle(self) -> Gathered | None:
        """Waits for the exchange under way and takes back what of it does not count; nothing is applied yet."""
        if self.flight is None:
            return None
        if self.flight.payload:
            self._take_back(self.flight)
            self.flight = self.flight._replace(payload=b"")
        return self.flight.result.result()

    def template(self) -> dict[str, Any]:
        """A whole state_dict for torch.distributed.checkpoint.load to fill. The inner optimizer loses its own state."""
        checkpoint.blank(self)
        return checkpoint.save(self)

    # A round

    def _begin(self, start: Float32) -> None:
        """The model holds `start` now."""
        self.weights.put(start)
        self._start = start
        self._seen = self.weights.take() if self.weights.is_rounded else None

    def _border(self) -> RoundReport | None:
        self.weights.check()
        end = self._end()
        report, before = None, self.flight
        if before is not None:
            gathered, report = self._land(before)
            self.state = self.sync.moved(before.state, self.weights.layout, gathered.change)
        if self.spec.sync.delay:
            self.flight = self._sent(end)
        else:
            report = self._exchanged(end)
            for _ in range(
                1, self.sync.phases
            ):  # the same change once more, now in the basis that all agreed on
                report = report.joined(self._exchanged(self.state.params))
        self.done = 0
        self._begin(self.sync.start(self._shown(), self.offset))
        return report

    def _exchanged(self, end: Float32) -> RoundReport:
        """One round of train.sync, from the encoding to the outer step."""
        flight = self._sent(end)
        gathered, report = self._land(flight)
        self.state = self.sync.moved(flight.state, self.weights.layout, gathered.change)
        return report

    def _sent(self, end: Float32) -> Flight:
        """Encodes the round that led to `end`, and starts its exchange."""
        state, layout, own = self.state, self.weights.layout, self.group.ids[self.group.rank]
        sent = self.sync.encode(state, self.residual, self.offset, end, layout, own)
        self.residual, self.offset = sent.residual, sent.offset

        def work() -> Gathered:
            return gather(self.sync, state, layout, self.group, sent.payload, self.terms)

        return Flight(state, sent.payload, self._started(work))

    def _shown(self) -> PublicState:
        """The public state that the open round starts from, as far as it is known while an exchange is under way."""
        if self.flight is None:
            return self.state
        return self.sync.moved(self.flight.state, self.weights.layout, None)

    def _settled(self) -> PublicState:
        """The same once the exchange is over."""
        if self.flight is None:
            return self.state
        return self.sync.moved(self.flight.state, self.weights.layout, self.flight.result.result().change)

    def _end(self) -> Float32:
        """Where the local steps led, as a vector that starts at the float32 weights."""
        if self.velocity is not None:
            return self._pushed(self.velocity)
        end = self.weights.take()
        self.weights.check_finite(end, "weights")
        if self._seen is not None:  # rounding to half precision is no change that the peer made
            end = self._start + (end - self._seen)
        return end

    def _pushed(self, velocity: torch.Tensor) -> Float32:
        """Stepwise methods: the weights stay, the gradient is what is sent."""
        found = self.weights.gradients()
        self.weights.check_finite(found, "gradients")
        optimizer = self.spec.optimizer
        grad, _ = optim.clip(torch.from_numpy(found), optimizer.clip)
        held = OptimState(0, (velocity,))
        if self.spec.sync.method == "dgc" and self.residual is not None:
            held = optim.masked(held, torch.from_numpy(self.residual))
        moved, after = optim.gradient(optimizer, torch.from_numpy(self._start.copy()), grad, held)
        self.velocity = after.vectors[0]
        end: Float32 = moved.numpy()
        return end

    def _started(self, work: Callable[[], Gathered]) -> Future[Gathered]:
        if not self.spec.sync.delay:
            return done(work())
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="farflung-exchange")
        return self._executor.submit(work)

    def _land(self, flight: Flight) -> tuple[Gathered, RoundReport]:
        """Waits for an exchange; what was sent and did not count is unsent again."""
        started = time.perf_counter()
        gathered = flight.result.result()
        waited = time.perf_counter() - started if self.spec.sync.delay else gathered.seconds
        self.flight = None
        if flight.payload:
            self._take_back(flight)
        tell_left_out(flight.state.round, gathered.left_out)
        return gathered, RoundReport(
            flight.state.round,
            gathered.payload_bytes,
            gathered.bytes_up,
            gathered.bytes_down,
            gathered.seconds,
            waited,
            gathered.accepted,
            gathered.left_out,
        )

    def _take_back(self, flight: Flight) -> None:
        """What was sent and did not count is unsent again."""
        if self.group.rank in flight.result.result().accepted or self.residual is None:
            return
        state, layout = flight.state, self.weights.layout
        about = self.sync.about(state, layout, self.group.ids[self.group.rank])
        said, codec = self.sync.decode(about, layout, flight.payload), self.sync.codec(state.round)
        if isinstance(codec, LowRank):
            said = twophase.taken(codec, state, layout, said)
        self.residual = self.residual.copy()
        self.residual[self.sync.fragment(state.round, layout).place] += said


def done(gathered: Gathered) -> Future[Gathered]:
    """A result that is there already."""
    result: Future[Gathered] = Future()
    result.set_result(gathered)
    return result


def has_residual(spec: JobSpec) -> bool:
    """Whether the codec keeps what it did not send."""
    return spec.sync.codec != "dense" or spec.sync.value_bits < 32


def check_settings(spec: JobSpec) -> None:
    """Raises UsageError FF-SYNC-001; what concerns the codec is checked by its registry."""
    sync = spec.sync
    if sync.steps < 1:
        raise _bad(f"sync_every = {sync.steps}", "exchange after every step, or after every 15")
    if sync.fragments < 1 or sync.delay not in (0, 1):
        raise _bad(
            f"fragments = {sync.fragments}, fragment_sync_delay = {sync.delay}",
            "fragments >= 1, a delay of 0 or 1",
        )
    numbers = (sync.outer_lr, sync.outer_momentum, spec.optimizer.lr, spec.optimizer.weight_decay)
    if not np.isfinite(numbers).all() or min(numbers[0], numbers[2]) <= 0 or not 0 <= sync.outer_momentum < 1:
        raise _bad(f"rates {numbers}", "outer_lr = 1.0, and an outer_momentum below 1")


def _quorum(wanted: float | None, size: int) -> int:
    if wanted is None:
        return size
    count = -(-wanted * size // 1) if isinstance(wanted, float) and wanted <= 1 else wanted
    if not 1 <= count <= size:
        raise _bad(f"min_quorum = {wanted} of {size} peers", "a share such as 0.5, or a number of peers")
    return int(count)


def _zeros(size: int) -> Float32:
    return np.zeros(size, np.float32)


def _bad(cause: str, hint: str) -> UsageError:
    return UsageError("FF-SYNC-001", "a setting cannot be used", cause=cause, hint=hint)

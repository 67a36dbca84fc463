"""Connects a training loop to a sync method: local steps, and a round at every H-th of them.

    sync = SparseLoCo(model, inner_optimizer=torch.optim.AdamW(model.parameters(), lr=4e-4), sync_every=15)
    for batch in data:
        loss(model(batch)).backward()
        report = sync.step()            # a RoundReport at the end of a round, else None
        sync.zero_grad()

All arithmetic of a round is train.sync_arithmetic's: the library and the job engine are two users of one core. With
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

from farflung.core.errors import ProtocolError, UsageError
from farflung.job.spec import JobSpec
from farflung.sync import checkpoint
from farflung.sync.device_memory import remember
from farflung.sync.exchange_channel import ExchangeChannel
from farflung.sync.exchange_round import (
    NOTHING,
    UNTOLD,
    RoundAggregate,
    SyncTerms,
    check_roots,
    count,
    gather,
    settings,
)
from farflung.sync.group import SyncGroup
from farflung.sync.group_choice import resolve
from farflung.sync.model_weights import ModelWeights, on_host
from farflung.sync.round_report import RoundReport, tell_left_out
from farflung.train.public_state import PublicState
from farflung.train.sync_arithmetic import Sync


class PendingExchange(NamedTuple):
    """A round whose exchange is under way: its public state, what was sent, and what will come. `work` exchanges."""

    state: PublicState
    payload: bytes  # b"": what becomes of it is settled
    result: Future[RoundAggregate]
    work: Callable[[], RoundAggregate] | None = None
    has_failed: bool = False


class Synchroniser:
    """What all methods do. Build one of the named methods (sync.methods) rather than this.

    `spec`: the method as a job would name it. `min_quorum`: contributions without which a round fails: a number,
    a share of the group, or None for all. `group`: a torch.distributed group, a group of `connect`, or None
    (torch.distributed's default group where it is initialised, else this process alone). `clip_to_median`: no
    contribution's norm counts for more than the (lower) median of all, tensor by tensor, as in a job: it bounds
    what one sick peer can do, and is no plain mean. `on_device`: whether what was not sent stays where the model
    lies, and only what is chosen of it travels (sync.device_memory); None: where it can be done and is no CPU.

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
        group: SyncGroup | dist.ProcessGroup | None,
        on_device: bool | None = False,
    ) -> None:
        check_settings(spec)
        self.spec = spec
        self.inner_optimizer = inner_optimizer
        self.weights = ModelWeights(model)
        self.sync = Sync.of(spec)
        self.group = resolve(group)
        self.channel = ExchangeChannel(self.group, is_dedicated=spec.sync.delay > 0)
        self.terms = SyncTerms(_quorum(min_quorum, len(self.group.ids)), clip_to_median)
        self.state = self.sync.initial(self.weights.take().numpy())
        self.memory = remember(self.sync, self.weights, on_device)
        self.done = 0  # steps of the open round
        self.tokens: int | None = None  # told in it
        self.flight: PendingExchange | None = None
        self._failed: list[tuple[torch.Tensor | None, int]] | None = None  # gradients of a step whose exchange failed
        self._executor: ThreadPoolExecutor | None = None
        self.memory.begin(self.state.params)

    @property
    def round(self) -> int:
        """Rounds that have ended here."""
        return (self.state.round + (self.flight is not None)) // self.sync.phases

    def step(self, tokens: int | None = None) -> RoundReport | None:
        """One step of the inner optimizer; after the last one of a round, the exchange. Call it after `backward`.

        `tokens`: what this step trained on; a contribution weighs as many as its round had, and one of a round without
        any is not merged. None at all peers: they weigh the same. The first call compares settings with all peers.

        Where an exchange fails, the same call with the gradients as they are (or none) tries it again, at all peers,
        and counts nothing twice; with new ones it is the next step, and what local steps made waits for its round.

        Raises FF-SYNC-003 (the model changed), FF-SYNC-005 (NaN), FF-SYNC-006 (parameters differ), FF-SYNC-010 and
        FF-SYNC-011 (the group), FF-SYNC-016 (tokens), FF-SYNC-018 (settings differ), FF-SYNC-019 (calls differ).
        """
        if self.inner_optimizer is not None and not self._is_again():
            self._begin_step(tokens)
            self.inner_optimizer.step()
        return self.advance(tokens)

    def advance(self, tokens: int | None = None) -> RoundReport | None:
        """`step` for a loop that has called the inner optimizer's own step already (a Trainer does)."""
        is_again = self._is_again()
        if not is_again:
            self._begin_step(tokens)
            if tokens is not None:
                self.tokens = (self.tokens or 0) + count(tokens)
            self.done += 1
            if self.done < self.spec.sync.steps:
                return None
        try:
            report = self._border(is_again)
        except BaseException:
            self._failed = self._gradients()
            raise
        self._failed = None
        return report

    def set_lr(self, lr: float) -> None:
        """The rate of a method that is its own optimizer (DGC, PowerSGD) from here on; the same at all peers.

        Raises UsageError FF-SYNC-001 where the inner optimizer has the rate.
        """
        if self.inner_optimizer is not None:
            raise _bad(f"set_lr({lr}): the rate is the inner optimizer's", "set `lr` in its param_groups")
        self.spec = msgspec.structs.replace(self.spec, optimizer=msgspec.structs.replace(self.spec.optimizer, lr=lr))
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
        self._meet("share()")
        own = self.state.params.astype("<f4").tobytes() if self.group.rank == 0 else b"\0"
        bound = 4 * self.state.params.size
        found = self.channel.exchange("share()", own, bound, len(self.group.ids)).payloads[0]
        params = np.frombuffer(found, "<f4").astype(np.float32)
        if params.size != self.state.params.size:
            raise ProtocolError("FF-SYNC-014", "the weights of rank 0 are those of another model")
        self.weights.check_finite(on_host(params), "weights")
        self.state = self.sync.initial(params)
        self.memory.begin(self.state.params)

    def check(self) -> None:
        """Compares public state with all peers. Raises VerificationError FF-SYNC-006 with the ranks that differ.

        Every payload carries the same comparison, so this is for the end of training.
        """
        root = self._settled().root(self.weights.layout)
        self._meet("check()")
        label = f"check() before round {self.state.round + (self.flight is not None)}"
        found = self.channel.exchange(label, root, len(root), self.terms.quorum)
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
        self.done, self.tokens, self._failed = 0, None, None
        self.memory.drop()
        self.memory.begin(self.state.params)
        return report

    def close(self) -> None:
        """Waits for what is under way, and gives back the thread."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None

    def state_dict(self) -> dict[str, Any]:
        """What this peer needs to go on bit for bit, besides the model's own state_dict (sync.checkpoint)."""
        return checkpoint.save(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict`; load the model's own state first. Raises UsageError FF-SYNC-004,
        VersionError FF-CORE-095.
        """
        checkpoint.load(self, state)

    def resume(self, gathered: RoundAggregate | None) -> None:
        """Goes on from the fields of this object; `gathered` is the exchange that was under way, if one was."""
        self.flight = None if gathered is None else PendingExchange(self.state, b"", done(gathered))
        self._failed = None
        local = [parameter.detach().clone() for parameter in self.weights.parameters]
        self.memory.begin(self._shown().params)
        if not self.done:
            return
        with torch.no_grad():
            for parameter, value in zip(self.weights.parameters, local, strict=True):
                parameter.copy_(value)

    def settle(self) -> RoundAggregate | None:
        """Waits for the exchange under way and takes back what of it does not count; nothing is applied yet."""
        if self.flight is None:
            return None
        flight = self._ended(self.flight)
        if flight.payload:
            self._take_back(flight)
            self.flight = flight._replace(payload=b"")
        return flight.result.result()

    def template(self) -> dict[str, Any]:
        """A whole state_dict for torch.distributed.checkpoint.load to fill. The inner optimizer loses its own state."""
        checkpoint.blank(self)
        return checkpoint.save(self)

    # A round

    def _begin_step(self, tokens: int | None) -> None:
        if tokens is not None:
            count((self.tokens or 0) + count(tokens))
        self._meet("step()")

    def _meet(self, call: str) -> None:
        """Compares with all peers what must be the same everywhere, at the first call that needs them."""
        if self.channel.is_met:
            return
        place = {"round": self.round, "steps of the open round": self.done, "first call": call}
        self.channel.meet(settings(self.spec, self.weights.layout, self.terms) | place, self.terms.quorum)

    def _is_again(self) -> bool:
        """Whether the step that is asked for is the one whose exchange failed: with no gradient that is new."""
        if self._failed is None:
            return False
        now = self._gradients()
        is_none = all(grad is None for grad, _ in now) and not self.sync.is_stepwise
        both = zip(now, self._failed, strict=True)
        return is_none or all(grad is old and version == before for (grad, version), (old, before) in both)

    def _gradients(self) -> list[tuple[torch.Tensor | None, int]]:
        """Each gradient, and how often it was written into."""
        return [(p.grad, 0 if p.grad is None else p.grad._version) for p in self.weights.parameters]

    def _border(self, is_again: bool) -> RoundReport | None:
        self.weights.check()
        tokens = UNTOLD if self.tokens is None else count(self.tokens) or NOTHING
        report, before, held = None, self.flight, self.memory.held()
        try:
            if not (is_again and self.state.round % self.sync.phases):
                self.memory.end(self.sync)
            if before is not None:
                gathered, report = self._land(before)
                self.state = self.sync.moved(before.state, self.weights.layout, gathered.change)
            if self.spec.sync.delay:
                self.flight = self._sent(tokens)
            else:
                report = self._exchanged(tokens)
                # The same change once more, now in the basis that all agreed on; a step that failed goes on there.
                while self.state.round % self.sync.phases:
                    held = self.memory.held()
                    report = report.joined(self._exchanged(tokens))
        except BaseException:
            self.memory.back(held)
            raise
        self.done, self.tokens = 0, None
        self.memory.begin(self._shown().params)
        return report

    def _exchanged(self, tokens: int) -> RoundReport:
        """One round of train.sync_arithmetic, from the encoding to the outer step."""
        flight = self._sent(tokens)
        gathered, report = self._land(flight)
        self.state = self.sync.moved(flight.state, self.weights.layout, gathered.change)
        return report

    def _sent(self, tokens: int) -> PendingExchange:
        """Encodes the round that has ended, and starts its exchange."""
        state, layout, own = self.state, self.weights.layout, self.group.ids[self.group.rank]
        payload = self.memory.sent(self.sync, state, own)

        def work() -> RoundAggregate:
            return gather(self.sync, state, layout, self.channel, payload, self.terms, tokens)

        return PendingExchange(state, payload, self._started(work), work)

    def _shown(self) -> PublicState:
        """The public state that the open round starts from, what is known of it while an exchange is under way."""
        if self.flight is None:
            return self.state
        return self.sync.moved(self.flight.state, self.weights.layout, None)

    def _settled(self) -> PublicState:
        """The same once the exchange is over."""
        if self.flight is None:
            return self.state
        flight = self._ended(self.flight)
        return self.sync.moved(flight.state, self.weights.layout, flight.result.result().change)

    def _started(self, work: Callable[[], RoundAggregate]) -> Future[RoundAggregate]:
        if not self.spec.sync.delay:
            return done(work())
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="farflung-exchange")
        return self._executor.submit(work)

    def _land(self, flight: PendingExchange) -> tuple[RoundAggregate, RoundReport]:
        """Waits for an exchange; what was sent and did not count is unsent again."""
        started = time.perf_counter()
        flight = self._ended(flight)
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
            gathered.clipped,
        )

    def _ended(self, flight: PendingExchange) -> PendingExchange:
        """Waits for an exchange; for one that has failed before, the exchange is made again. Raises what it raises."""
        if flight.has_failed and flight.work is not None:
            flight = flight._replace(result=self._started(flight.work), has_failed=False)
        try:
            flight.result.result()
        except BaseException:
            if self.flight is not None:
                self.flight = flight._replace(has_failed=True)
            raise
        if self.flight is not None:
            self.flight = flight
        return flight

    def _take_back(self, flight: PendingExchange) -> None:
        """What was sent and did not count is unsent again."""
        if self.group.rank not in flight.result.result().accepted:
            own = self.group.ids[self.group.rank]
            self.memory.unsent(self.sync, flight.state, own, flight.payload)


def done(gathered: RoundAggregate) -> Future[RoundAggregate]:
    """A result that is there already."""
    result: Future[RoundAggregate] = Future()
    result.set_result(gathered)
    return result


def check_settings(spec: JobSpec) -> None:
    """Raises UsageError FF-SYNC-001; what concerns the codec is checked by its registry."""
    sync = spec.sync
    if sync.steps < 1:
        raise _bad(f"sync_every = {sync.steps}", "exchange after every step, or after every 15")
    if sync.fragments < 1 or sync.delay not in (0, 1):
        raise _bad(
            f"fragments = {sync.fragments}, fragment_sync_delay = {sync.delay}", "fragments >= 1, a delay of 0 or 1"
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


def _bad(cause: str, hint: str) -> UsageError:
    return UsageError("FF-SYNC-001", "a setting cannot be used", cause=cause, hint=hint)

"""Runs a job end to end: plan, network, training, settlement, result.

`farflung run` and `farflung resume` use it.

This process supervises: it reads the inputs, fixes the terms, starts all others and starts again what dies, keeps the
journal, and measures loss with a worker of its own. The job itself is the requester's (peers.requester.main).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from farflung.core import events
from farflung.core.codec import describe
from farflung.core.errors import (
    FarflungError,
    NetworkError,
    PolicyError,
    RunError,
    SpecError,
    UsageError,
    VerificationError,
)
from farflung.core.events import AnyEvent
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.extras import require
from farflung.core.tensor_layout import TensorLayout
from farflung.host.io.machine_probe import machine
from farflung.job.job_loader import ResolvedJob
from farflung.job.spec import JobSpec
from farflung.ledger.block import Genesis
from farflung.local.jobs import memory_trace, preflight_checks
from farflung.local.jobs.continued_run import take_inputs
from farflung.local.network import background, prepare, run_end
from farflung.local.network.demonstration import Demonstration, escaped, staged_configs
from farflung.local.network.evaluation import NO_NUMBER, Evaluator, has_diverged
from farflung.local.network.forecast import RunForecast, repeated_run, run_start
from farflung.local.network.joined_network import JoinedNetwork, others_network
from farflung.local.network.placement import homes_event, placement_of
from farflung.local.network.prepare import RunInputs
from farflung.local.network.processes import RunProcesses
from farflung.local.network.run_end import JobEndReport, RunLosses, RunStoppedError
from farflung.local.network.stage import LocalStage
from farflung.peers.process.channel import report_usage
from farflung.peers.requester.conclusion import FinalLedgerSummary
from farflung.peers.rundir import folder as folders
from farflung.peers.rundir.folder import RunFolder, RunIdentity
from farflung.peers.rundir.genesis import cheater_of
from farflung.peers.rundir.inputs import known_layout, module_source, read_account, write_resolved
from farflung.peers.rundir.journal import Journal, Watcher
from farflung.peers.rundir.network_record import NetworkRecord, read_network, write_network
from farflung.peers.rundir.runs import command_name
from farflung.plan.run_duration import ALONE_THREADS
from farflung.plan.run_plan import RunPlan
from farflung.plan.run_traffic import ring_bytes
from farflung.plan.worker_memory import StepMemory
from farflung.train.blobs import Blob, in_file
from farflung.train.rounds import REASON_DIVERGED, REASON_STOPPED
from farflung.watch.phrases import many

OnEnd = Callable[[RunFolder, Journal], None]


class RunSession:
    """One session of one run, in this process and those that it starts."""

    def __init__(
        self,
        folder: RunFolder,
        identity: RunIdentity,
        resolved: ResolvedJob,
        watchers: Sequence[Watcher],
        on_end: OnEnd,
    ) -> None:
        """`on_end`: called when the run is over, before its journal is closed."""
        self._folder, self._identity, self._resolved = folder, identity, resolved
        self._spec, self._on_end = resolved.spec, on_end
        self._journal = Journal(folder.events_file, identity.created, watchers)
        self._note_session()
        self._network, stage = network_of(folder, self._spec, identity)
        self._placement = self._network.placement
        staged = staged_configs(self._spec, identity)
        self._processes = RunProcesses(folder, self._network, stage, self._journal, self._hear, staged)
        self._demonstration = Demonstration(self._spec, identity.validators, self._processes, self._journal)
        self._evaluator: Evaluator | None = None
        self._main: asyncio.Task[Any] | None = None
        self._single_machine: asyncio.Future[float] | None = None  # the baseline
        self._is_baseline_left_out = False
        self._began = time.monotonic()
        self._forecast: RunForecast | None = None
        self._plan: RunPlan | None = None

    def _note_session(self) -> None:
        """A run whose events name processes had a session before this one."""
        timeline = self._journal.timeline
        if timeline.result is None:
            self._journal.emit(run_start(self._folder, self._spec))
        if timeline.processes and timeline.result is None:
            closed = timeline.last_round.round + 1 if timeline.last_round is not None else 0
            self._journal.emit(events.RunResumeEvent(round=closed, session=timeline.sessions + 1))

    async def execute(self) -> events.RunResultEvent:
        """Runs to the end and returns the result; emits Failed before it raises."""
        done = self._journal.timeline.result
        if done is not None:
            return done
        self._main = asyncio.current_task()
        self._catch_signals()
        is_over = True
        try:
            return await self._through()
        except asyncio.CancelledError:
            is_over = False
            raise RunStoppedError(
                "FF-APP-130",
                f"run {self._folder.name} was stopped",
                cause=f"nothing is lost: what was logged stays, and {self._paid()}",
                hint=f"farflung resume {command_name(self._folder)}",
            ) from None
        except RunStoppedError:
            raise  # its result is out already, and it is no failure
        except FarflungError as error:
            said = events.RunFailureEvent(code=error.code, message=error.message, cause=error.cause, hint=error.hint)
            self._journal.emit(said, durable=True)
            raise
        finally:
            if is_over:  # who stops now does not wait for a page
                self._on_end(self._folder, self._journal)
            self._journal.close()

    def _catch_signals(self) -> None:
        """First Ctrl-C: finish the round and settle. Second, or SIGTERM: stop now."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(signal.SIGINT, self.interrupt)
            loop.add_signal_handler(signal.SIGTERM, self.cancel)

    def interrupt(self) -> None:
        """The open round is finished and settled; before the first one, or asked again: stops now.

        When all is settled, only the single-machine baseline is skipped.
        """
        is_settling = self._identity.baseline and bool(self._journal.timeline.settled)
        if is_settling and not self._is_baseline_left_out:
            self._is_baseline_left_out = True
            if self._single_machine is not None:
                self._single_machine.cancel()
            return
        if self._journal.timeline.opened is None or not self._processes.ask_to_stop(REASON_STOPPED):
            self.cancel()
            return
        self._is_baseline_left_out = True
        text = "the open round will be finished and settled; Ctrl-C again stops now"
        self._journal.emit(events.WarningEvent(code="FF-APP-131", message=text))

    def _paid(self) -> str:
        """How far settlement is, for who stops now."""
        is_paid = any(s.paid for s in self._journal.timeline.settled.values())
        return "who was paid keeps it" if is_paid else "nobody was paid yet"

    def cancel(self) -> None:
        """Stops now; the run can be resumed."""
        if self._main is not None:
            self._main.cancel()

    def _hear(self, event: AnyEvent, durable: bool) -> None:
        """What the requester's process tells. It sees no other process's bytes, and no validation loss."""
        if isinstance(event, events.RoundEndEvent):
            sync = self._journal.timeline.bytes_by().sync
            event = msgspec.structs.replace(event, sync_bytes=sync)
        self._journal.emit(event, durable=durable)
        self._demonstration.observe(event)
        if isinstance(event, events.RoundEndEvent) and self._evaluator is not None:
            self._evaluator.offer(event.round + 1, self._folder.snapshot(event.round + 1))

    def _judge(self, round: int, loss: float) -> None:
        """Stops a run whose validation loss rose too far (evaluate.stop_loss)."""
        start = self._journal.timeline.losses.get(0)
        if not has_diverged(self._spec, start, loss) or not self._processes.ask_to_stop(REASON_DIVERGED):
            return
        measured = f"{loss:.3f}" if math.isfinite(loss) else "is no number"
        said = f"validation loss {measured} after {many(round, 'round')}" + (
            f", {start:.3f} at the start" if start else ""
        )
        text = f"training diverges: {said}; the open round is finished and settled"
        self._journal.emit(events.WarningEvent(code="FF-APP-484", message=text, hint="evaluate.stop_loss = 0 goes on"))

    async def _through(self) -> events.RunResultEvent:
        if not self._folder.resolved_file.exists():
            write_resolved(self._folder, self._resolved)
        await prepare.read_inputs(self._folder, self._spec, Path(self._identity.base), self._journal)
        layout = known_layout(self._spec)
        if layout is not None:
            self._show_plan(layout)
        if not self._journal.timeline.processes:
            size = self._folder.dataset_file.stat().st_size
            preflight_checks.check(self._spec, Path(self._identity.base), self._folder.root, layout, size)
        else:
            preflight_checks.check_loopback()
        homes = homes_event(self._placement.homes)
        if homes is not None:
            self._journal.emit(homes)
        with self._placement.open():
            try:
                return await self._processes.guard(self._with_network(layout))
            finally:
                await self._processes.stop()

    def _show_plan(self, layout: TensorLayout, step: StepMemory | None = None) -> None:
        size = self._folder.dataset_file.stat().st_size
        known = (self._network, self._placement, self._identity, layout, size)
        self._forecast = RunForecast(*known, machine(), step)
        self._plan = self._forecast.plan()
        if self._journal.timeline.plan is None:
            event = self._forecast.event(self._plan, self._folder.name)
            self._journal.emit(read_account(self._folder).within(event))

    async def _with_network(self, layout: TensorLayout | None) -> events.RunResultEvent:
        worker = self._processes.start_own_worker(layout)
        started = self._processes.start()
        module = module_source(self._folder)
        async with memory_trace.beside(self._spec, module, self._journal, is_wanted=layout is None) as step:
            prepared = await prepare.prepare(self._folder, worker, self._network, self._journal)
            if layout is None:
                self._show_plan(prepared.terms.layout, await step)
        await started
        evaluator = self._evaluator = Evaluator(worker, prepared.terms, self._journal, self._judge)
        try:
            return await self._measured(evaluator, prepared)
        finally:
            await evaluator.close()

    async def _measured(self, evaluator: Evaluator, prepared: RunInputs) -> events.RunResultEvent:
        """The job, from its first round to its result."""
        initial = _lent(self._folder.initial_file)
        before = evaluator.begin(self._score(evaluator, 0, initial))
        outcome = run_end.read_outcome(await self._processes.coordinate(self._allowed()))
        await evaluator.idle()
        loss_start = await before
        scored = evaluator.begin(self._last_score(evaluator, outcome))
        ending = await self._processes.conclude()
        loss = await scored
        took = time.monotonic() - self._began  # the baseline is not part of the job
        baseline = await self._baseline(evaluator, initial, outcome)
        await self._processes.stop()  # so that the last bytes are counted
        self._journal.emit(self._processes.ways.event())
        self._journal.emit(report_usage("supervisor"))
        cheater = self._processes.peer(f"provider-{cheater_of(self._spec)}").hex()
        planted = escaped(self._spec, self._identity, cheater, self._journal.timeline)
        if planted is not None:
            self._journal.emit(planted)
        assert self._forecast is not None
        for row in self._forecast.compared(self._journal.timeline, outcome, took):
            self._journal.emit(row)
        losses = RunLosses(loss, loss_start, prepared.ready.loss_unigram, baseline)
        result = self._result(outcome, prepared.terms.layout, losses, ending)
        repeated = repeated_run(self._folder, self._journal.timeline, result)
        if repeated is not None:
            self._journal.emit(repeated)
        self._journal.emit(result, durable=True)
        if outcome.reason == REASON_STOPPED:
            raise run_end.stopped(self._folder, self._spec, outcome)
        if outcome.reason == REASON_DIVERGED:
            raise run_end.diverged(self._folder, self._spec, outcome, losses)
        return result

    def _allowed(self) -> dict[str, Any]:
        """What the plan says that the requester may spend, and what it may ask of providers and verifiers."""
        assert self._plan is not None
        assert self._forecast is not None
        plan, reserve = self._plan, self._forecast.reserve(self._plan)
        return {
            "escrow": plan.price.escrow,
            "memory_bytes": plan.memory.worker,
            "dataset_bytes": plan.data_bytes,
            "answer_seconds": plan.answer,
            "relay_funds": reserve.funds,
            "relay_most": reserve.most,
        }

    def _last_state(self, outcome: JobEndReport) -> Blob:
        """The public state that the job ended with."""
        try:
            return _lent(self._folder.snapshot(outcome.rounds))
        except OSError as error:
            raise RunError(
                "FF-APP-026",
                "the last public state of the run is not there",
                cause=str(error),
                hint="`farflung resume` computes it again from the log",
            ) from error

    async def _score(self, evaluator: Evaluator, round: int, packed: Blob) -> float:
        score = await evaluator.score(packed, self._spec.evaluate.final_tokens)
        self._journal.emit(events.EvaluationEvent(round=round, loss=score.loss, tokens=score.tokens))
        return score.loss

    async def _last_score(self, evaluator: Evaluator, outcome: JobEndReport) -> float | None:
        """The validation loss at the end; None where the run has diverged and its model gives no number."""
        try:
            return await self._score(evaluator, outcome.rounds, self._last_state(outcome))
        except FarflungError as error:
            if outcome.reason != REASON_DIVERGED or error.code != NO_NUMBER:
                raise
            return None

    def _result(
        self, outcome: JobEndReport, layout: TensorLayout, losses: RunLosses, ending: FinalLedgerSummary
    ) -> events.RunResultEvent:
        timeline, rounds, peers = self._journal.timeline, outcome.rounds, self._spec.network.providers
        slashed, bounty, burnt = timeline.lost
        return events.RunResultEvent(
            loss=losses.end,
            loss_start=losses.start,
            loss_unigram=losses.unigram,
            loss_baseline=losses.baseline,
            bytes_sent=timeline.bytes_sent(),
            bytes_by=timeline.bytes_by(),
            bytes_ring_bf16=ring_bytes(layout.size, steps=rounds * self._spec.sync.steps, members=peers),
            segments_audited=len(timeline.audits),
            caught=tuple(timeline.caught),
            probed=timeline.probed,
            paid=outcome.paid,
            slashed=slashed,
            bounty=bounty,
            burnt=burnt,
            refunded=outcome.refunded,
            pay_burnt=outcome.burnt,
            sum=ending.sum,
            model_hash=outcome.output,
            ledger_root=ending.ledger_root,
            seconds=round(time.monotonic() - self._began, 3),
            run=self._folder.name,
            rounds=rounds,
            tokens=sum(r.tokens for r in timeline.rounds.values()),
            reexecuted=sum(timeline.reexecuted.values()),
            reason=outcome.reason,
        )

    async def _baseline(self, evaluator: Evaluator, initial: Blob, outcome: JobEndReport) -> float | None:
        """One machine's loss, where it was asked for and the run trained on all of its tokens."""
        is_whole = outcome.rounds == self._spec.rounds
        if not self._identity.baseline or not is_whole or self._plan is None:
            return None
        threads = min(self._plan.cores, ALONE_THREADS)
        single_machine = self._single_machine = evaluator.begin(evaluator.baseline(initial, threads))
        try:
            if not self._is_baseline_left_out:
                await asyncio.wait({single_machine})
            if not self._is_baseline_left_out:
                return single_machine.result()
        finally:
            single_machine.cancel()
            self._single_machine = None
        said = "the single-machine baseline is skipped, as was asked"
        self._journal.emit(events.WarningEvent(code="FF-APP-133", message=said))
        return None


def _lent(path: Path) -> Blob:
    """A stored state, for the worker to map. Raises OSError."""
    return in_file(path, path.stat().st_size)


def network_of(folder: RunFolder, spec: JobSpec, identity: RunIdentity) -> tuple[JoinedNetwork, LocalStage | None]:
    """The network that a run is on, and the stage that keeps it; None: others do."""
    record = read_network(folder)
    if record is not None:
        return others_network(spec, record), None
    placement = placement_of(spec, identity.relays, in_homes=identity.lab)
    made = (placement, identity.relays, identity.relay_price, identity.validators)
    stage = LocalStage(spec, *made, disputes=identity.disputes)
    return stage.network, stage


def start(
    root: Path,
    resolved: ResolvedJob,
    identity: RunIdentity,
    watchers: Sequence[Watcher],
    on_end: OnEnd,
    parent: RunFolder | None = None,
    module: bytes = b"",
    on: tuple[Genesis, NetworkRecord] | None = None,
) -> events.RunResultEvent:
    """Creates a run's folder and runs it to its end; `on_end` is called when the run is over.

    `parent`: the run that it goes on from (local.jobs.continued_run), whose inputs it takes. `module`: the source
    of its model, where no file has it. `on`: the network that it runs on; None: one of its own, on this computer.
    Raises UsageError FF-APP-682: a job that names its verifiers needs a network.
    """
    require("torch")
    if on is None and resolved.spec.audit.verifiers:
        raise UsageError(
            "FF-APP-682",
            "audit.verifiers names nodes of a network, and this run has one of its own",
            cause="its verifiers are processes of this computer, with keys of their own",
            hint="farflung run JOB --on NETWORK, or --set audit.verifiers= for a run here",
        )
    folder = folders.create(root, identity)
    try:
        if on is not None:
            write_network(folder, *on)
        if module:
            write_atomic(folder.module_file, module, "run.module")
        if parent is not None:
            take_inputs(folder, parent, resolved.spec)
        return _to_end(folder, identity, resolved, watchers, on_end)
    except (SpecError, PolicyError, VerificationError, NetworkError):
        if not folder.terms_file.exists():
            shutil.rmtree(root)  # nothing was begun: the corrected command may use the same place
        raise


def resume(
    folder: RunFolder, resolved: ResolvedJob, watchers: Sequence[Watcher], on_end: OnEnd
) -> events.RunResultEvent:
    """Goes on with a run from its log. Raises VersionError FF-CORE-095: another farflung made its folder."""
    require("torch")
    identity = folder.check_version()
    folder.lock()
    return _to_end(folder, identity, resolved, watchers, on_end)


def _to_end(
    folder: RunFolder, identity: RunIdentity, resolved: ResolvedJob, watchers: Sequence[Watcher], on_end: OnEnd
) -> events.RunResultEvent:
    """Runs in a loop of its own; where one runs already (a notebook), in a thread beside it."""
    describe()

    def session(watchers: Sequence[Watcher]) -> RunSession:
        return RunSession(folder, identity, resolved, watchers, on_end)

    try:
        if _is_in_loop():
            return background.run(session, watchers)
        return asyncio.run(session(watchers).execute())
    finally:
        folder.unlock()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

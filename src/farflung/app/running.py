"""A run from end to end: plan, network, training, settlement, result. `farflung run` and `farflung resume`."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from farflung.app import folder as folders
from farflung.app import preparation
from farflung.app.export import write_export
from farflung.app.folder import Identity, RunFolder
from farflung.app.hiring import Budget
from farflung.app.journal import Journal, Watcher
from farflung.app.leash import by_name, report_usage
from farflung.app.ledger_client import LedgerClient
from farflung.app.local import JOB_MS, LocalNetwork, died
from farflung.app.preparation import Prepared
from farflung.app.roles.requester import Outcome, Requester
from farflung.app.scoring import Scorer
from farflung.core import events
from farflung.core.errors import FarflungError, PolicyError, RunError, SpecError
from farflung.core.layout import Layout
from farflung.host.io.probe import machine
from farflung.job.load import Resolved
from farflung.ledger.receipts import Receipt
from farflung.ledger.rows import JobRow, LeaseRow, lease_key
from farflung.net.io.connection import Connection
from farflung.plan.advise import Plan, advise
from farflung.plan.compare import Measured, compare
from farflung.plan.traffic import ring_bytes
from farflung.train import snapshot
from farflung.train.rounds import REASON_STOPPED


class RunStoppedError(FarflungError):
    """The person stopped the run; it can be resumed."""

    exit_code = 130


class Losses(msgspec.Struct, frozen=True):
    """Held-out losses of a run, nats per token."""

    end: float
    start: float
    unigram: float
    baseline: float | None


class Ending(msgspec.Struct, frozen=True):
    """What the ledger says when everybody has left: its root, and money found minus money minted."""

    ledger_root: str
    sum: int


class Run:
    """One session of one run, in this process and those that it starts."""

    def __init__(
        self,
        folder: RunFolder,
        identity: Identity,
        resolved: Resolved,
        watchers: Sequence[Watcher],
        *,
        compare: bool,
    ) -> None:
        self._folder, self._identity, self._resolved = folder, identity, resolved
        self._spec = resolved.spec
        self._compare = compare
        self._journal = Journal(folder.events_file, identity.created, watchers)
        self._note_session()
        self._network = LocalNetwork(folder, self._spec, self._journal)
        self._requester: Requester | None = None
        self._main: asyncio.Task[Any] | None = None
        self._began = time.monotonic()
        self._stop_asked = False
        self._plan: Plan | None = None

    def _note_session(self) -> None:
        """A run whose events name processes had a session before this one."""
        timeline = self._journal.timeline
        if timeline.processes and timeline.result is None:
            closed = timeline.last_round.round + 1 if timeline.last_round is not None else 0
            self._journal.emit(events.Resumed(round=closed, session=timeline.sessions + 1))

    async def execute(self) -> events.Result:
        """Runs to the end and returns the result; emits Failed before it raises."""
        done = self._journal.timeline.result
        if done is not None:
            return done
        self._main = asyncio.current_task()
        self._catch_signals()
        try:
            return await self._through()
        except asyncio.CancelledError:
            raise RunStoppedError(
                "FF-APP-130",
                f"run {self._folder.name} was stopped",
                cause="nothing is lost: what was logged stays, and nobody was paid yet",
                hint=f"farflung resume {self._folder.root}",
            ) from None
        except RunStoppedError:
            raise  # its result is out already, and it is no failure
        except FarflungError as error:
            said = events.Failed(code=error.code, message=error.message, cause=error.cause, hint=error.hint)
            self._journal.emit(said, durable=True)
            raise
        finally:
            self._journal.close()

    def _catch_signals(self) -> None:
        """First Ctrl-C: finish the round and settle. Second, or SIGTERM: stop now."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(signal.SIGINT, self._interrupt)
            loop.add_signal_handler(signal.SIGTERM, self._cancel)

    def _interrupt(self) -> None:
        if self._stop_asked or self._requester is None:
            self._cancel()
            return
        self._stop_asked = True
        text = "the round that is open will be finished and settled; once more stops now"
        self._journal.emit(events.Warned(code="FF-APP-131", message=text))
        self._requester.stop()

    def _cancel(self) -> None:
        if self._main is not None:
            self._main.cancel()

    async def _through(self) -> events.Result:
        if not self._folder.resolved_file.exists():
            preparation.write_resolved(self._folder, self._resolved)
        preparation.read_inputs(self._folder, self._spec, Path(self._identity.base))
        layout = preparation.known_layout(self._spec)
        if layout is not None:
            self._show_plan(layout)
        try:
            worker = self._network.start_own_worker()
            started = self._network.start()
            prepared = await preparation.prepare(self._folder, self._spec, worker, self._network.requester)
            if layout is None:
                self._show_plan(prepared.terms.layout)
            await started
            scorer = Scorer(worker, prepared.terms, self._journal)
            return await self._with_network(prepared, scorer)
        finally:
            await self._network.stop()

    def _show_plan(self, layout: Layout) -> None:
        self._plan = advise(self._spec, layout, self._folder.dataset_file.stat().st_size, machine())
        if self._journal.timeline.plan is None:
            self._journal.emit(self._plan.event(self._folder.name))

    async def _with_network(self, prepared: Prepared, scorer: Scorer) -> events.Result:
        layout = prepared.terms.layout
        initial = snapshot.unpack((self._folder.snapshots / "000000.bin").read_bytes(), layout)
        before = asyncio.create_task(self._score(scorer, initial))
        requester = self._requester = Requester(
            self._network.requester,
            self._folder,
            prepared.terms,
            self._journal,
            scorer,
            self._spec.network.port,
            lambda sent: self._network.count("requester", by_name(sent)),
        )
        await requester.open()
        ledger = self._ledger_client(requester)
        directory = await self._reach_ledger(requester)
        outcome = await self._guarded(requester.run(ledger, directory, self._budget()))
        await scorer.idle()
        loss_start = await before
        ending = await self._conclude(prepared, requester, ledger, outcome)
        loss = await self._score(scorer, outcome.public)
        took = time.monotonic() - self._began  # the baseline is not part of the job
        baseline = await self._baseline(scorer, initial) if self._compare else None
        await self._close(requester)
        self._compare_with_plan(outcome, took)
        losses = Losses(loss, loss_start, prepared.ready.loss_unigram, baseline)
        result = self._result(outcome, layout, losses, ending)
        self._journal.emit(result, durable=True)
        if outcome.finished.reason == REASON_STOPPED:
            raise self._stopped(outcome)
        return result

    async def _reach_ledger(self, requester: Requester) -> Connection:
        return await requester.endpoint.dial(self._network.validator.public, *self._network.ledger_address)

    def _ledger_client(self, requester: Requester) -> LedgerClient:
        return LedgerClient(
            lambda: self._reach_ledger(requester), self._network.requester, self._network.genesis
        )

    async def _score(self, scorer: Scorer, public: snapshot.PublicState) -> float:
        score = await scorer.score(public, self._spec.evaluate.final_tokens)
        self._journal.emit(events.Evaluated(round=public.round, loss=score.loss, tokens=score.tokens))
        return score.loss

    async def _conclude(
        self, prepared: Prepared, requester: Requester, ledger: LedgerClient, outcome: Outcome
    ) -> Ending:
        """Receipts, then everybody takes the stake back, then the export: all blocks are in it."""
        receipts = await self._receipts(ledger, requester)
        await self._network.leave()
        blocks, head = await ledger.blocks(), await ledger.head()
        genesis = self._network.genesis
        write_export(
            self._folder, genesis, prepared.terms, requester.log, requester.archive, blocks, receipts
        )
        minted = sum(amount for _, amount in genesis.accounts)
        return Ending(head.header.state.hex(), await self._total_money(ledger) - minted)

    async def _close(self, requester: Requester) -> None:
        """Ends all processes, so that the last bytes are counted."""
        await requester.close()
        await self._network.stop()
        self._network.count("requester", by_name(requester.counter.sent))
        self._journal.emit(report_usage("requester"))

    def _result(self, outcome: Outcome, layout: Layout, losses: Losses, ending: Ending) -> events.Result:
        timeline, rounds = self._journal.timeline, outcome.finished.rounds
        steps, peers = rounds * self._spec.sync.steps, self._spec.network.providers
        return events.Result(
            loss=losses.end,
            loss_start=losses.start,
            loss_unigram=losses.unigram,
            loss_baseline=losses.baseline,
            bytes_sent=timeline.bytes_sent(),
            bytes_by=timeline.bytes_by(),
            bytes_ring_bf16=ring_bytes(layout.size, steps=steps, members=peers),
            segments_audited=0,
            caught=(),
            paid=outcome.paid,
            slashed=0,
            refunded=outcome.refunded,
            sum=ending.sum,
            model_hash=outcome.output.hex(),
            ledger_root=ending.ledger_root,
            seconds=round(time.monotonic() - self._began, 3),
            run=self._folder.name,
            rounds=rounds,
            tokens=sum(r.tokens for r in timeline.rounds.values()),
            reexecuted=sum(timeline.reexecuted.values()),
        )

    def _stopped(self, outcome: Outcome) -> RunStoppedError:
        return RunStoppedError(
            "FF-APP-132",
            f"run {self._folder.name} was stopped after {outcome.finished.rounds} rounds",
            cause="the open round was finished and everybody is paid",
            hint=f"the model so far is {self._folder.model_file}",
        )

    def _budget(self) -> Budget:
        assert self._plan is not None
        plan, network = self._plan, self._network
        return Budget(
            network.unit_price, plan.price.escrow, network.stake, plan.memory.worker, JOB_MS, plan.data_bytes
        )

    async def _guarded(self, work: asyncio.Future[Outcome] | object) -> Outcome:
        """Does the work while watching the processes: the ledger's death ends it, a provider's is told to it."""
        task: asyncio.Task[Outcome] = asyncio.ensure_future(work)  # type: ignore[arg-type]
        try:
            while True:
                death = asyncio.create_task(self._network.first_death())
                await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    death.cancel()
                    await asyncio.gather(death, return_exceptions=True)
                    return task.result()
                name, peer, why = death.result()
                if peer is None:
                    raise died(name, why)
                assert self._requester is not None
                self._requester.lost(peer, why)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _receipts(self, ledger: LedgerClient, requester: Requester) -> list[Receipt]:
        """Proof of the job's end and of every party's pay."""
        job = requester.log.records[0].job  # type: ignore[union-attr]
        wanted = [(JobRow.TABLE, bytes(job))]
        wanted += [(LeaseRow.TABLE, lease_key(job, lease.node)) for lease in await ledger.leases(job)]
        found = [await ledger.receipt(table, key) for table, key in wanted]
        receipts = [r for r in found if r is not None]
        if len(receipts) < len(wanted):
            raise RunError(
                "FF-APP-067", "the ledger does not prove what it paid", hint="`farflung resume` asks again"
            )
        return receipts

    async def _baseline(self, scorer: Scorer, initial: snapshot.PublicState) -> float:
        score = await scorer.baseline(initial, self._spec.network.providers, self._spec.evaluate.final_tokens)
        self._journal.emit(events.Baseline(loss=score.loss, steps=score.steps, seconds=score.seconds))
        return score.loss

    async def _total_money(self, ledger: LedgerClient) -> int:
        """All money of the local network after everybody has left: it must be what genesis gave."""
        owners = {owner for owner, _ in self._network.genesis.accounts} | {self._network.validator.public}
        return sum([(await ledger.account(owner)).balance for owner in sorted(owners)])

    def _compare_with_plan(self, outcome: Outcome, took: float) -> None:
        timeline = self._journal.timeline
        if self._plan is None or timeline.sessions > 1 or outcome.finished.rounds < self._spec.rounds:
            return
        by = timeline.bytes_by()
        peaks = [u.peak_bytes for name, u in timeline.usage.items() if name.endswith("worker")]
        measured = Measured(
            sync_bytes=by.sync,
            join_bytes=by.join,
            control_bytes=by.control,
            memory_bytes=max(peaks, default=None),
            seconds=took,
            paid=outcome.paid,
        )
        for row in compare(self._plan, measured):
            self._journal.emit(row)


def start(
    root: Path, resolved: Resolved, identity: Identity, watchers: Sequence[Watcher], *, compare: bool = False
) -> events.Result:
    """Creates a run's folder and runs it to its end."""
    folder = folders.create(root, identity)
    try:
        return _to_end(folder, identity, resolved, watchers, compare)
    except (SpecError, PolicyError):
        if not folder.terms_file.exists():
            shutil.rmtree(root)  # nothing was begun: the corrected command may use the same place
        raise


def resume(
    folder: RunFolder, resolved: Resolved, watchers: Sequence[Watcher], *, compare: bool = False
) -> events.Result:
    """Goes on with a run from its log."""
    folder.lock()
    return _to_end(folder, folder.read_identity(), resolved, watchers, compare)


def _to_end(
    folder: RunFolder, identity: Identity, resolved: Resolved, watchers: Sequence[Watcher], compare: bool
) -> events.Result:
    """Runs in a loop of its own; where one runs already (a notebook), in a thread beside it."""

    def body() -> events.Result:
        return asyncio.run(Run(folder, identity, resolved, watchers, compare=compare).execute())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return body()
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(body).result()

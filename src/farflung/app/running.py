"""A run from end to end: plan, network, training, settlement, result. `farflung run` and `farflung resume`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from farflung.core.errors import FarflungError, RunError
from farflung.core.layout import Layout
from farflung.host.io.probe import machine
from farflung.job.load import Resolved
from farflung.ledger.receipts import Receipt
from farflung.ledger.rows import JobRow, LeaseRow, lease_key
from farflung.net.io.connection import Connection
from farflung.plan.advise import Plan, advise
from farflung.plan.compare import Measured, compare
from farflung.train import snapshot
from farflung.train.rounds import REASON_STOPPED


class RunStoppedError(FarflungError):
    """The person stopped the run; it can be resumed."""

    exit_code = 130


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
        self._network = LocalNetwork(folder, self._spec, self._journal)
        self._requester: Requester | None = None
        self._main: asyncio.Task[Any] | None = None
        self._began = time.monotonic()
        self._stop_asked = False
        self._plan: Plan | None = None

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
                hint=f"farflung resume {self._folder.name}",
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
            started = asyncio.create_task(self._network.start())
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
        key, spec = self._network.requester, self._spec
        initial = snapshot.unpack((self._folder.snapshots / "000000.bin").read_bytes(), prepared.terms.layout)
        start_score = await scorer.score(initial, spec.evaluate.final_tokens)
        self._journal.emit(events.Evaluated(round=0, loss=start_score.loss, tokens=start_score.tokens))
        requester = self._requester = Requester(
            key, self._folder, prepared.terms, self._journal, scorer, spec.network.port
        )
        await requester.open()

        async def reach_ledger() -> Connection:
            return await requester.endpoint.dial(
                self._network.validator.public, *self._network.ledger_address
            )

        ledger = LedgerClient(reach_ledger, key, self._network.genesis)
        outcome = await self._guarded(requester.run(ledger, await reach_ledger(), self._budget()))
        await scorer.idle()
        receipts = await self._receipts(ledger, requester)
        await self._network.leave()
        blocks, head = await ledger.blocks(), await ledger.head()
        write_export(
            self._folder,
            self._network.genesis,
            prepared.terms,
            requester.log,
            requester.archive,
            blocks,
            receipts,
        )
        final = await scorer.score(outcome.public, spec.evaluate.final_tokens)
        self._journal.emit(events.Evaluated(round=outcome.public.round, loss=final.loss, tokens=final.tokens))
        baseline = await self._baseline(scorer, initial) if self._compare else None
        total = await self._total_money(ledger)
        sum_ = total - sum(amount for _, amount in self._network.genesis.accounts)
        await requester.close()
        await self._network.stop()
        self._network.count("requester", by_name(requester.counter.sent))
        self._journal.emit(report_usage("requester"))
        self._compare_with_plan(outcome)
        by = self._journal.timeline.bytes_by()
        accepted = sum(r.tokens for r in self._journal.timeline.rounds.values())
        peers = spec.network.providers
        result = events.Result(
            loss=final.loss,
            loss_start=start_score.loss,
            loss_unigram=prepared.ready.loss_unigram,
            loss_baseline=baseline,
            bytes_sent=self._journal.timeline.bytes_sent(),
            bytes_by=by,
            bytes_ring_bf16=outcome.finished.rounds
            * spec.sync.steps
            * 2
            * (peers - 1)
            * 2
            * prepared.terms.layout.size,
            segments_audited=0,
            caught=(),
            paid=outcome.paid,
            slashed=0,
            refunded=outcome.refunded,
            sum=sum_,
            model_hash=outcome.output.hex(),
            ledger_root=head.header.state.hex(),
            seconds=round(time.monotonic() - self._began, 3),
            run=self._folder.name,
            rounds=outcome.finished.rounds,
            tokens=accepted,
            reexecuted=sum(self._journal.timeline.reexecuted.values()),
        )
        self._journal.emit(result, durable=True)
        if outcome.finished.reason == REASON_STOPPED:
            raise RunStoppedError(
                "FF-APP-132",
                f"run {self._folder.name} was stopped after {outcome.finished.rounds} rounds",
                cause="the open round was finished and everybody is paid",
                hint=f"the model so far is {self._folder.model_file}",
            )
        return result

    def _budget(self) -> Budget:
        assert self._plan is not None
        return Budget(
            self._network.unit_price,
            self._plan.price.escrow,
            self._network.stake,
            self._plan.memory.worker,
            JOB_MS,
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

    def _compare_with_plan(self, outcome: Outcome) -> None:
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
            seconds=time.monotonic() - self._began,
            paid=outcome.paid,
        )
        for row in compare(self._plan, measured):
            self._journal.emit(row)


def start(
    root: Path, resolved: Resolved, identity: Identity, watchers: Sequence[Watcher], *, compare: bool = False
) -> events.Result:
    """Creates a run's folder and runs it to its end."""
    folder = folders.create(root, identity)
    return asyncio.run(Run(folder, identity, resolved, watchers, compare=compare).execute())


def resume(
    folder: RunFolder, resolved: Resolved, watchers: Sequence[Watcher], *, compare: bool = False
) -> events.Result:
    """Goes on with a run from its log."""
    folder.lock()
    identity = folder.read_identity()
    return asyncio.run(Run(folder, identity, resolved, watchers, compare=compare).execute())

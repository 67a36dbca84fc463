"""A provider that dies as soon as it is drawn: it owes the opening, and dying is no better than silence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from attack_run import EVE, HONEST, ROUND, Run, ledger_of
from attack_world import JOB_KEY, REQUESTER, SPEC, TERMS, VERIFIERS, start_order, within

from farflung.core.backoff import Backoff
from farflung.core.errors import FarflungError, NetworkError, RunError, VerificationError
from farflung.ledger.transactions import JobSlash, VerdictFinding
from farflung.net.io.connection import Connection
from farflung.peers.node import opening_deadlines
from farflung.peers.protocol import calls, messages
from farflung.peers.requester import audits
from farflung.peers.requester.audit_draw import AuditDraws
from farflung.peers.requester.audits import evidence_file
from farflung.peers.requester.ledger_recorder import LedgerRecorder
from farflung.train.run_log import AcceptSetRecord, AuditsRecord, CommitmentsRecord
from farflung.verify.audit_accounts import AuditAccounts
from farflung.verify.evidence import evidence_fault
from farflung.verify.evidence import read as read_evidence


async def _a_few_times(ask: Callable[[], Awaitable[Any]], _seconds: float) -> Any:
    """A verifier's patience, in tries."""
    for _ in range(3):
        with contextlib.suppress(NetworkError, VerificationError):
            return await ask()
    raise opening_deadlines.WithheldError("FF-APP-088", "a committed state is withheld")


class Mortal:
    """Dies when it is asked to open in round ROUND, and says nothing more, to anybody, until it is `born` again."""

    def __init__(self, run: Run) -> None:
        self.run, self.is_dead, self.has_died = run, False, False
        self._obey = run.eve.obey
        run.eve.obey = self.obey  # type: ignore[method-assign]

    async def obey(self, connection: Connection, method: str, order: Any) -> Any:
        if method == messages.OPEN and order.round == ROUND and not self.has_died:
            self.is_dead = self.has_died = True
        if self.is_dead and order.round >= ROUND:  # of the round before it had opened all
            connection.close()
            raise RunError("FF-APP-049", "the worker is gone")
        return await self._obey(connection, method, order)

    async def born(self) -> None:
        """A new process on the old disk, which the coordinator brings back (as peers.requester.members does)."""
        eve, run = self.run.eve, self.run
        self.is_dead, eve.lease._workspace.worker = False, None
        public = await asyncio.to_thread(run.coordinator.state_for, EVE.public)
        order = start_order(cast(Any, run.archive), 2, tuple(run.places.values()), public)
        await eve.lease.start(order, JOB_KEY, eve.worker, REQUESTER.public)
        await run.coordinator.join(EVE.public, public.round)

    async def born_late(self) -> None:
        """The same, when the round that it owes has gone on without it."""
        is_over = asyncio.Event()
        self.run.on_closed = lambda round: is_over.set() if round == ROUND else None
        await is_over.wait()
        await self.born()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """A network whose third member dies when it is drawn; `after` says what becomes of it."""
    monkeypatch.setattr(calls, "REDIAL", Backoff.every(0.0))
    monkeypatch.setattr(audits, "TRY_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(opening_deadlines, "patiently", _a_few_times)

    def run(after: Callable[[Mortal], Awaitable[None]] | None, prepare: Callable[[Run], None]) -> Run:
        monkeypatch.setattr(audits, "RETURN_SECONDS", 0.3 if after is None else 20.0)

        async def test() -> None:
            made.append(Run(tmp_path))
            prepare(made[0])
            mortal, tasks = Mortal(made[0]), list[asyncio.Task[None]]()

            async def come() -> None:
                if after is not None:
                    await after(mortal)

            def lost(_peer: Any, may_return: bool) -> None:
                if may_return:
                    tasks.append(asyncio.create_task(come()))

            made[0].on_lost = lost
            await made[0].go()
            assert mortal.has_died
            await asyncio.gather(*tasks)
            made[0].check_honest()

        made: list[Run] = []
        within(60, test)
        return made[0]

    return run


def nothing(_run: Run) -> None:
    """It does its work as it must."""


def verdicts(run: Run) -> list[VerdictFinding]:
    return [v.verdict.finding for v in run.audited[ROUND].verdicts if v.verdict.node == EVE.public]


def record(run: Run, kind: type[Any]) -> Any:
    return next(r for r in run.log.records if isinstance(r, kind) and r.round == ROUND)


def test_who_dies_when_it_is_drawn_and_stays_away_pays_like_one_that_is_silent(scene: Any) -> None:
    run = scene(None, nothing)
    assert EVE.public not in {c.peer for c in record(run, AcceptSetRecord).contributions}
    assert verdicts(run) == [VerdictFinding.WITHHELD] * len(VERIFIERS)
    assert run.out == [(EVE.public, True), (EVE.public, False)]  # it might have come back, and did not
    found = read_evidence(evidence_file(run.evidence, ROUND, EVE.public).read_bytes())
    assert evidence_fault(found, SPEC) == ""
    asyncio.run(_slashed_half(run))


async def _slashed_half(run: Run) -> None:
    """The ledger's law takes what silence costs, by the node's own signed commitment."""
    ledger = ledger_of()
    emitter = type("Emitter", (), {"emit": lambda *_, **__: None})()
    recorder = LedgerRecorder(ledger, run.job._replace(journal=emitter), len(VERIFIERS))  # type: ignore[arg-type]
    await recorder.catch_up()
    assert [op.node for op in ledger.submitted if isinstance(op, JobSlash)] == [EVE.public]
    lease = ledger.lease(EVE.public)
    assert (lease.is_open, 2 * lease.slashed) == (False, lease.stake)
    assert all(ledger.lease(key.public).is_open for key in (*HONEST, *VERIFIERS))


@pytest.mark.slow
@pytest.mark.parametrize("after", [Mortal.born, Mortal.born_late])
def test_an_honest_node_that_died_opens_when_it_is_back_and_loses_the_round_alone(
    scene: Any, after: Callable[[Mortal], Awaitable[None]]
) -> None:
    run = scene(after, nothing)
    assert EVE.public not in {c.peer for c in record(run, AcceptSetRecord).contributions}
    assert run.concluded[ROUND, EVE.public.hex()].finding == "holds"
    assert run.out == [(EVE.public, True)]
    assert not run.evidence.exists()
    tally = AuditAccounts(TERMS, len(VERIFIERS))
    units = [tally.add(run.log.accepted[r.round], r, run.log.promised[r.round]) for r in run.audited]
    assert EVE.public not in units[ROUND]  # a round that goes on without it does not pay it
    assert run.eve.worker.trained.count(ROUND) == 2  # it trained the round again, to the trace of its commitment


def test_who_returns_with_false_work_is_caught(scene: Any) -> None:
    def lazy(run: Run) -> None:
        train = run.eve.worker._trained

        def other(round: int) -> Any:
            run.eve.worker.member = 7 if round == ROUND else 2
            return train(round)

        run.eve.worker._trained = other  # type: ignore[method-assign]

    run = scene(Mortal.born, lazy)
    assert verdicts(run) == [VerdictFinding.FALSE] * len(VERIFIERS)
    assert run.out[-1] == (EVE.public, False)


def test_who_returns_and_cannot_open_has_withheld(scene: Any) -> None:
    """Whatever it says of its disk: it was bound to keep what it had committed to. It counts no more."""

    async def emptied(mortal: Mortal) -> None:
        mortal.run.eve.lease._vault.drop(f"{TERMS.id[:8].hex()}-{ROUND + 1:06d}")
        mortal.run.eve.lease._result = None
        audits.RETURN_SECONDS = 0.3
        with pytest.raises(FarflungError):
            await mortal.born()

    run = scene(emptied, nothing)
    assert verdicts(run) == [VerdictFinding.WITHHELD] * len(VERIFIERS)
    late = [r for r in run.log.records if isinstance(r, CommitmentsRecord) and r.round > ROUND]
    assert all(EVE.public not in {c.peer for c in r.commitments} for r in late)


def test_debts_follow_from_the_log_alone(scene: Any) -> None:
    """Whoever takes the coordinator over comes to the same ones, and to none that nobody signed or drew."""
    run = scene(None, nothing)
    draws = AuditDraws(TERMS, run.log)
    assert [c.peer for c in draws.owed(ROUND)] == [EVE.public]
    assert draws.debts(EVE.public) == []  # judged
    whole = list(run.log.records)
    run.log.records[:] = whole[: whole.index(record(run, AuditsRecord))]
    assert draws.debts(EVE.public) == [ROUND]
    assert all(draws.debts(key.public) == [] for key in HONEST)
    run.log.promised.pop(ROUND)
    assert draws.debts(EVE.public) == []  # before the round was committed nothing is owed

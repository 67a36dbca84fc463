"""A member that hangs, on purpose or not, against the real coordinator: it holds one window and loses one round."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attack_run import EVE, HONEST, ROUND, Run
from attack_world import SPEC, TERMS, Worker, within

from farflung.core.errors import PolicyError, RunError, VerificationError
from farflung.core.events import SkippedMemberEvent
from farflung.peers.protocol import messages as protocol_messages
from farflung.peers.requester import round_timing
from farflung.train import worker_messages
from farflung.train.run_log import AcceptSetRecord, RoundEndRecord, RoundMember

EVERYBODY = {EVE.public, *(key.public for key in HONEST)}
SECONDS = 1.0  # of a window


class Stuck(Worker):
    """Trains in round ROUND for ever, unless it is told to give up."""

    given_up: asyncio.Event | None = None

    async def request(self, message: worker_messages.Request) -> worker_messages.Reply:
        if isinstance(message, worker_messages.TrainCommand) and message.round == ROUND:
            self.given_up = asyncio.Event()
            await self.given_up.wait()
            raise RunError("FF-TRAIN-012", "the round was given up")
        return await super().request(message)

    async def abandon(self) -> None:
        assert self.given_up is not None
        self.given_up.set()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(round_timing, "LEAST", SECONDS)
    made = Run(tmp_path)
    made.fresh = msgspec.structs.replace(made.fresh, quorum=0.6)
    return made


def hang(run: Run, phase: str, *, for_ever: bool) -> None:
    """The hostile member keeps its answer to this phase of ROUND back until it is told to drop the round."""
    dropped = asyncio.Event()
    honest = run.eve.obey

    async def obey(connection: Any, method: str, order: Any) -> Any:
        if method == protocol_messages.DROP and for_ever:
            await asyncio.Event().wait()
        said = await honest(connection, method, order)
        if method == protocol_messages.DROP:
            dropped.set()
        if method == phase and order.round == ROUND:
            await (asyncio.sleep(3 * SECONDS) if phase == protocol_messages.MERGE else dropped.wait())
        return said

    run.eve.obey = obey  # type: ignore[method-assign]


def accepted(run: Run) -> list[set[Any]]:
    return [{c.peer for c in r.contributions} for r in run.log.records if isinstance(r, AcceptSetRecord)]


def passed_over(run: Run) -> list[tuple[int, str]]:
    return [(e.round, e.phase) for e in run.events if isinstance(e, SkippedMemberEvent)]


@pytest.mark.whole
@pytest.mark.parametrize("phase", [protocol_messages.TRAIN, protocol_messages.REVEAL])
def test_a_member_that_keeps_back_its_answer_loses_that_round_and_is_in_the_next(run: Run, phase: str) -> None:
    """Its optimizer counts the rounds that were accepted, as everybody's does whose round was not."""

    async def test() -> None:
        hang(run, phase, for_ever=False)
        await run.go()
        assert passed_over(run) == [(ROUND, phase.removeprefix("round."))]
        assert run.left == []
        assert run.out == []
        assert accepted(run)[ROUND] == EVERYBODY - {EVE.public}
        assert accepted(run)[ROUND + 1] == EVERYBODY
        assert run.eve.worker.state.round == SPEC.rounds
        assert run.eve.worker.inner.step == (SPEC.rounds - 1) * SPEC.sync.steps
        assert {e.finding for e in run.concluded.values()} == {"holds"}, "its next round is no lie"

    within(60, test)


def test_a_worker_that_is_stuck_is_told_to_give_up(run: Run) -> None:
    async def test() -> None:
        run.eve.worker = Stuck(EVE)
        await run.go()
        assert passed_over(run) == [(ROUND, "train")]
        assert run.left == []
        assert accepted(run)[ROUND + 1] == EVERYBODY

    within(60, test)


@pytest.mark.guarantee
@pytest.mark.whole
@pytest.mark.parametrize("phase", [protocol_messages.TRAIN, protocol_messages.REVEAL])
def test_a_member_that_never_answers_again_holds_nobody(run: Run, phase: str) -> None:
    async def test() -> None:
        hang(run, phase, for_ever=True)
        await run.go()
        assert passed_over(run) == [(ROUND, phase.removeprefix("round."))]
        assert run.left == []
        assert [EVE.public in peers for peers in accepted(run)] == [True, False, False]

    within(60, test)


@pytest.mark.slow
def test_a_member_that_merges_slowly_is_paid_and_comes_after(run: Run) -> None:
    async def test() -> None:
        hang(run, protocol_messages.MERGE, for_ever=False)
        await run.go()
        assert passed_over(run) == [(ROUND, "merge")]
        assert accepted(run)[ROUND] == EVERYBODY
        signed = [{peer for peer, _ in r.signatures} for r in run.log.records if isinstance(r, RoundEndRecord)]
        assert signed[ROUND] == EVERYBODY - {EVE.public}
        assert run.left == []

    within(60, test)


@pytest.mark.whole
def test_with_a_quorum_of_one_the_same_member_is_waited_for(run: Run) -> None:
    async def test() -> None:
        run.fresh = msgspec.structs.replace(run.fresh, quorum=1.0)
        hang(run, protocol_messages.MERGE, for_ever=False)
        await run.go()
        assert passed_over(run) == []
        assert accepted(run) == [EVERYBODY] * SPEC.rounds

    within(60, test)


def test_what_was_dropped_is_not_trained_or_shown_any_more(run: Run) -> None:
    """Orders that come late, and a drop of a round that is over."""

    async def test() -> None:
        await run.go()
        lease = run.eve.lease
        at = SPEC.rounds - 1
        lease._round, lease._dropped = at, at
        with pytest.raises(PolicyError, match="FF-APP-195"):
            await lease.train(protocol_messages.TrainRequest(TERMS.id, at, 0))
        lease.drop(protocol_messages.DropRoundRequest(TERMS.id, at))
        with pytest.raises(PolicyError, match="FF-APP-035"):
            await lease.reveal(protocol_messages.RevealRequest(TERMS.id, at, EVE.public))
        kept = lease._private.before(at + 1)
        before = lease._private.before(at)
        assert kept is not None
        assert before is not None
        assert (kept.inner, kept.result) == (before.inner, None)

    within(60, test)


@pytest.mark.parametrize("weight", [SPEC.round_tokens + 1, SPEC.step_tokens, 2 * SPEC.round_tokens, 0, -1])
def test_a_round_that_assigns_what_the_terms_do_not_allow_is_refused(run: Run, weight: int) -> None:
    """Less than a step for each segment, parts of steps, or more than all."""
    lease = run.eve.lease
    others = tuple(RoundMember(key.public, SPEC.round_tokens) for key in HONEST)
    with pytest.raises(VerificationError, match="FF-APP-196"):
        lease._assign(protocol_messages.TrainRequest(TERMS.id, 0, 0, (*others, RoundMember(EVE.public, weight))))


def test_a_member_merges_nothing_that_weighs_more_than_it_was_told_before(run: Run) -> None:
    async def test() -> None:
        await run.go()
        lease = run.eve.lease
        c = next(r for r in run.log.records if isinstance(r, AcceptSetRecord)).contributions[0]
        replace = msgspec.structs.replace
        lease._check_weight(0, c)
        for weight in (c.weight + 1, c.weight + SPEC.step_tokens, 0, -c.weight, SPEC.step_tokens):
            with pytest.raises(VerificationError, match="FF-APP-197"):
                lease._check_weight(0, replace(c, weight=weight))
        lease._assigned = (0, {EVE.public: SPEC.round_tokens})  # and nothing to anybody else
        if c.peer != EVE.public:
            with pytest.raises(VerificationError, match="FF-APP-197"):
                lease._check_weight(0, c)

    within(60, test)

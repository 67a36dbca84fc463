"""A requester that hands out no voucher and records nothing gets a few rounds of an honest node, however it asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attack_lease import FACTS, FELLOW, ME, Process, Scene
from attack_world import SPEC, TERMS, within

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import digest
from farflung.ledger.table_rows import JobState
from farflung.peers.node import agent as role
from farflung.peers.node import voucher_bound
from farflung.peers.protocol import messages

replace = msgspec.structs.replace
ROUNDS, UNITS = limits.UNPAID_ROUNDS, SPEC.round_tokens
UNPAID, DEFAULTER = "FF-APP-710", "FF-APP-711"
Test = Callable[[], Awaitable[None]]


@pytest.fixture
def scene_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Scene]:
    """A provider on the same disk as the one before it; it does not wait for pay."""
    monkeypatch.setattr(role, "capabilities", lambda *_: FACTS)
    monkeypatch.setattr(role, "start_worker", lambda *_: Process(ME))
    monkeypatch.setattr(voucher_bound, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(voucher_bound, "LOOK_SECONDS", 0.0)
    return lambda: Scene(tmp_path)


async def ask(scene: Scene, round: int = 0) -> str:
    return await scene.order(messages.TRAIN, messages.TrainRequest(TERMS.id, round, 0))


async def end(scene: Scene) -> str:
    """The lease is over, it says, and proposes the same job."""
    assert await scene.order(messages.END, messages.LeaseEndRequest(TERMS.id)) == "ok"
    assert await scene.order(messages.PROPOSE, scene.proposal) == "ok"
    return await scene.order(messages.START, scene.start)


async def drop_and_end(scene: Scene) -> str:
    """The round happened without the node, it says before that."""
    assert await scene.order(messages.DROP, messages.DropRoundRequest(TERMS.id, 0)) == "ok"
    return await end(scene)


async def take_and_end(scene: Scene) -> str:
    """As before, and it has what was worked."""
    assert await scene.order(messages.REVEAL, messages.RevealRequest(TERMS.id, 0, FELLOW.public)) == "ok"
    return await end(scene)


async def close_and_end(scene: Scene) -> str:
    """The round is closed with what was worked; then the job begins anew."""
    reveal = encode(messages.RevealRequest(TERMS.id, 0, FELLOW.public))
    share = decode(await scene.call(scene.home, messages.REVEAL, reveal), messages.RevealReply, 10**6).share
    assert await scene.order(messages.MERGE, messages.MergeRequest(TERMS.id, 0, (share,))) == "ok"
    return await end(scene)


async def worked(scene: Scene, again: Callable[[Scene], Awaitable[str]] = end) -> int:
    """How many rounds the node trains until it refuses."""
    done = 0
    while await ask(scene) == "ok":
        done += 1
        assert done <= ROUNDS
        assert await again(scene) == "ok"
    assert await ask(scene) == UNPAID
    return done


@pytest.mark.parametrize("again", [end, drop_and_end, take_and_end, close_and_end])
def test_a_requester_that_never_pays_gets_five_rounds(scene_of: Any, again: Any) -> None:
    async def attack() -> None:
        async with scene_of().open() as scene:
            await scene.begin()
            assert await worked(scene, again) == ROUNDS == 5
            assert await end(scene) == UNPAID  # and no start

    within(20, attack)


def test_a_node_that_is_started_again_has_not_forgotten(scene_of: Any) -> None:
    async def attack() -> None:
        for _ in range(ROUNDS):
            async with scene_of().open() as scene:
                await scene.begin()
                assert await ask(scene) == "ok"
                await end(scene)
        async with scene_of().open() as scene:
            await scene.begin()
            assert await ask(scene) == UNPAID

    within(20, attack)


def test_pay_lets_it_go_on_and_a_unit_of_it_does_not(scene_of: Any) -> None:
    async def attack() -> None:
        async with scene_of().open() as scene:
            await scene.begin()
            await worked(scene, close_and_end)
            half = UNITS // 2  # of a round: the job is outcome-only, and forgives as much as it pays
            for earned, code in ((1, UNPAID), (1, UNPAID), (half - 1, UNPAID), (half, "ok")):
                scene.ledger.earned = earned
                assert await end(scene) == code
            assert await ask(scene) == "ok"

    within(20, attack)


def test_who_left_a_job_unpaid_is_served_in_no_other_job_for_a_day(scene_of: Any, monkeypatch: Any) -> None:
    async def attack() -> None:
        async with scene_of().open() as scene:
            await scene.begin()
            await worked(scene)
            assert await scene.order(messages.END, messages.LeaseEndRequest(TERMS.id)) == "ok"
            row = await scene.ledger.job(TERMS.id)
            scene.ledger.jobs[TERMS.id] = replace(row, state=JobState.CANCELLED)
            await scene.provider.voucher_bound.sweep()
            other = replace(scene.proposal, terms=replace(TERMS, dataset=digest("test/other")))
            assert await scene.order(messages.PROPOSE, other) == DEFAULTER
            monkeypatch.setattr(voucher_bound, "REMEMBER_SECONDS", 0)
            await scene.provider.voucher_bound.sweep()
            assert await scene.order(messages.PROPOSE, other) == "ok"

    within(20, attack)

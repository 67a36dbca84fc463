"""Payloads that kill the checker or keep it busy: they are refused, and nobody else pays for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from attack_world import LAYOUT, MEMBERS, SPEC, TERMS, Worker, initial, within

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import ProtocolError, RunError
from farflung.core.ids import ZERO_HASH
from farflung.job.spec import AuditSpec
from farflung.peers.requester import payload_checks
from farflung.peers.requester.payload_checks import CheckerSupervisor
from farflung.train import blobs
from farflung.train.io.worker import HEAD_BYTES, WorkerChannel
from farflung.train.run_log import Contribution, payload_hash
from farflung.verify.io.checker import CheckerState
from farflung.verify.submission_checks import PayloadCheckRequest, Request, RoundFlagsRequest, TrainingStatement

replace = msgspec.structs.replace

UNAUDITED = replace(TERMS, spec=replace(SPEC, audit=AuditSpec(rate=0.0, probation=0)))
ALL = tuple(key.public for key in MEMBERS)


class Process:
    """In the place of a checker process: the real desk in a task, which some requests kill and some stop for ever."""

    def __init__(self, kills: Callable[[Request, int], bool], stops: Callable[[Request], bool]) -> None:
        self.socket, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._kills, self._stops = kills, stops
        self.asked: list[Request] = []
        self.desk = CheckerState()
        self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while head := await loop.sock_recv(self._theirs, HEAD_BYTES):
            size, data = int.from_bytes(head, "little"), b""
            while len(data) < size:
                data += await loop.sock_recv(self._theirs, size - len(data))
            request = decode(data, cast(type[Any], Request), limits.WORKER_BYTES)
            request = blobs.put(request, iter(await self._lent(blobs.count(request))))
            if self._kills(request, len(self.asked)):
                break
            if self._stops(request):
                await asyncio.Event().wait()
            self.asked.append(request)
            reply = encode(self.desk.handle(request))
            await loop.sock_sendall(self._theirs, len(reply).to_bytes(HEAD_BYTES, "little") + reply)
        self._theirs.close()

    async def _lent(self, count: int) -> list[memoryview]:
        if count:
            ready = asyncio.Event()
            asyncio.get_running_loop().add_reader(self._theirs, ready.set)
            await ready.wait()
            asyncio.get_running_loop().remove_reader(self._theirs)
        return WorkerChannel(self._theirs.fileno(), self._theirs.fileno()).lent(count)

    def terminate(self) -> str:
        self.socket.close()
        self._task.cancel()
        self._theirs.close()
        return "ended"


class Scene:
    """An inspection whose processes are tasks."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, terms: Any = TERMS) -> None:
        self.processes: list[Process] = []
        self.kills: Callable[[Request, int], bool] = lambda _request, _asked: False
        self.stops: Callable[[Request], bool] = lambda _request: False
        patch.setattr(payload_checks, "start_worker", self._start)
        self.inspection = CheckerSupervisor(folder, terms)

    def _start(self, *_: Any, **__: Any) -> Process:
        process = Process(lambda r, n: self.kills(r, n), lambda r: self.stops(r))
        self.processes.append(process)
        return process

    async def honest(self, *members: SigningKey, round: int = 0) -> None:
        for key in members:
            await self.inspection.check(submission(key, round))


def submission(key: SigningKey, round: int = 0) -> PayloadCheckRequest:
    """An honest payload."""
    worker = Worker(key, ALL.index(key.public))
    payload = worker._encoded(round, None, worker._train()[-1])
    weight, told = SPEC.round_tokens, payload_hash(payload)
    c = Contribution(key.public, weight, told, told, ZERO_HASH, ZERO_HASH, "none")
    return PayloadCheckRequest(
        round, initial().root(LAYOUT), c, TrainingStatement((2.0,) * SPEC.sync.steps, weight), payload
    )


def is_of(key: SigningKey) -> Callable[[Request], bool]:
    return lambda request: isinstance(request, PayloadCheckRequest) and request.contribution.peer == key.public


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scene]:
    def run(story: Callable[[Scene], Awaitable[None]], terms: Any = TERMS) -> Scene:
        made: list[Scene] = []

        async def test() -> None:
            made.append(Scene(tmp_path, monkeypatch, terms))
            try:
                await story(made[0])
            finally:
                made[0].inspection.close()

        within(20, test)
        return made[0]

    return run


EVE = MEMBERS[2]


def test_a_stuck_checker_is_killed_and_its_peer_refused(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        monkeypatch.setattr(payload_checks, "CHECK_SECONDS", 0.2)
        scene.stops = is_of(EVE)
        await scene.honest(MEMBERS[0])
        with pytest.raises(ProtocolError, match="FF-APP-096"):
            await scene.inspection.check(submission(EVE))
        monkeypatch.setattr(payload_checks, "CHECK_SECONDS", 10.0)
        await scene.honest(MEMBERS[1])
        assert await scene.inspection.conclude(0, ALL[:2]) == {}

    play(story)


def test_a_payload_that_kills_a_fresh_checker_is_refused_and_the_others_are_compared(play: Any) -> None:
    async def story(scene: Scene) -> None:
        scene.kills = lambda request, _: is_of(EVE)(request)
        await scene.honest(MEMBERS[0])
        with pytest.raises(ProtocolError, match="FF-VERI-065"):
            await scene.inspection.check(submission(EVE))
        await scene.honest(MEMBERS[1])
        found = await scene.inspection.conclude(0, ALL[:2])
        assert found == {}
        seen = [r.contribution.peer for r in scene.processes[-1].asked if isinstance(r, PayloadCheckRequest)]
        assert seen == list(ALL[:2])  # the last process knows what was found good before it

    play(story)


def test_nobody_is_refused_for_a_checker_that_others_have_worn_out(play: Any) -> None:
    async def story(scene: Scene) -> None:
        await scene.honest(MEMBERS[0])
        scene.kills = lambda request, asked: is_of(MEMBERS[1])(request) and asked > 1  # the setup
        await scene.honest(MEMBERS[1])
        assert len(scene.processes) == 2
        assert scene.processes[1].desk._seen[0].keys() == set(ALL[:2])  # it is to compare them
        assert await scene.inspection.conclude(0, ALL[:2]) == {}

    play(story)


def test_a_cancelled_check_leaves_a_checker_that_the_next_peer_can_use(play: Any) -> None:
    async def story(scene: Scene) -> None:
        scene.stops = is_of(EVE)
        await scene.honest(MEMBERS[0])
        work = asyncio.create_task(scene.inspection.check(submission(EVE)))
        await asyncio.sleep(0.1)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await scene.honest(MEMBERS[1])
        assert await scene.inspection.conclude(0, ALL[:2]) == {}
        assert len(scene.processes) == 2

    play(story)


def test_a_checker_that_dies_over_its_conclusion_is_replaced_once(play: Any) -> None:
    async def story(scene: Scene) -> None:
        await scene.honest(*MEMBERS)
        first = scene.processes[0]
        scene.kills = lambda request, _: isinstance(request, RoundFlagsRequest) and scene.processes[-1] is first
        assert await scene.inspection.conclude(0, ALL) == {}
        assert len(scene.processes) == 2
        await scene.honest(*MEMBERS, round=1)
        scene.kills = lambda request, _: isinstance(request, RoundFlagsRequest)
        with pytest.raises(RunError, match="FF-VERI-065"):
            await scene.inspection.conclude(1, ALL)

    play(story)


def test_nothing_is_kept_of_rounds_that_are_over_or_of_a_job_that_has_ended(play: Any) -> None:
    async def story(scene: Scene) -> None:
        for round in range(4):
            await scene.honest(*MEMBERS, round=round)
        assert len(scene.inspection._good) == payload_checks.ROUNDS_KEPT  # nobody concluded them
        await scene.inspection.conclude(3, ALL)
        assert list(scene.inspection._good) == [2]
        scene.inspection.close()
        assert scene.inspection._good == {}

    play(story)


def test_a_job_without_audits_keeps_no_payloads_in_memory(play: Any) -> None:
    async def story(scene: Scene) -> None:
        for round in range(3):
            await scene.honest(*MEMBERS, round=round)
        assert scene.inspection._good == {}
        assert scene.processes[0].desk._seen == {}

    play(story, UNAUDITED)

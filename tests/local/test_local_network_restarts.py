"""What dies is started again, on its port; what said why is not; and nobody is started again for ever."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from farflung.core.errors import FarflungError, NetworkError, RunError, VerificationError
from farflung.core.events import AnyEvent, ProcessRestartEvent
from farflung.local.network import restarts
from farflung.local.network.restarts import ProcessSupervisor, SupervisedProcess
from farflung.peers.process import channel
from farflung.peers.process import child as child_process
from farflung.peers.process.channel import Report
from farflung.peers.process.child import ChildProcess
from farflung.peers.process.config import write_role_config

SCRIPTED = Path(__file__).parents[1] / "support" / "app_scripted.py"
DIE: Report = {"do": "die"}


WAYS: list[tuple[str, ...]] = []  # that processes of this test were started by, in order


async def spawned(_: str, errors: int, way: tuple[str, ...], *given: str) -> asyncio.subprocess.Process:
    WAYS.append(way)
    pipe = asyncio.subprocess.PIPE
    words = (str(SCRIPTED), "--supervised", *given)
    return await asyncio.create_subprocess_exec(
        sys.executable, *words, stdin=pipe, stdout=pipe, stderr=errors, limit=channel.LINE_BYTES
    )


class Watcher:
    """An owner that notes what it hears, wants everybody back who crashed, and emits into a list."""

    def __init__(self) -> None:
        self.told: list[AnyEvent] = []
        self.ends: list[tuple[str, str, str]] = []
        self.back: list[int] = []
        self.wanted, self.spare = True, False
        self.came = asyncio.Event()

    def heard(self, child: ChildProcess, said: Report) -> None:
        pass

    def died(self, name: str, why: str, failure: FarflungError | None) -> bool:
        self.ends.append((name, why, failure.code if failure is not None else ""))
        is_crash = failure is None or failure.code == restarts.PORT_TAKEN
        return self.wanted and is_crash

    def may_miss(self, name: str, why: str) -> bool:
        return self.spare

    async def revived(self, child: ChildProcess) -> None:
        self.back.append(child.pid)
        self.came.set()

    def emit(self, event: AnyEvent, *, durable: bool = False) -> None:
        self.told.append(event)


Body = Callable[[ProcessSupervisor, Watcher, SupervisedProcess], Awaitable[None]]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs `body` beside one scripted process; afterwards no process may be left."""
    monkeypatch.setattr(child_process, "_spawned", spawned)

    def run(body: Body, script: str = "") -> None:
        async def test() -> None:
            watcher = Watcher()
            supervisor = ProcessSupervisor(watcher, watcher)
            values = {"port": 0, "lives": str(tmp_path / "lives"), "script": script}
            config = write_role_config(tmp_path / "thing.toml", values)
            process = SupervisedProcess("thing", "thing", config, tmp_path / "log", ("by", "its door"))
            WAYS.clear()
            await supervisor.launch(process)
            first = process.child
            assert first is not None
            try:
                await supervisor.ready("thing")
                async with asyncio.timeout(60):
                    await body(supervisor, watcher, process)
            finally:
                pids = [first.pid, *watcher.back, *([process.child.pid] if process.child else [])]
                await supervisor.stop("thing")
            for pid in pids:
                with pytest.raises(ProcessLookupError):
                    os.kill(pid, 0)

        asyncio.run(test())

    return run


async def ask(supervisor: ProcessSupervisor, word: str = "say") -> dict[str, Any]:
    return await supervisor.ask("thing", {"do": word}, "done")


async def next_life(supervisor: ProcessSupervisor, watcher: Watcher) -> None:
    watcher.came.clear()
    supervisor.tell("thing", DIE)
    await watcher.came.wait()


def test_a_killed_process_is_started_again_on_the_port_that_it_had(kept: Any) -> None:
    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        before = await ask(supervisor)
        await next_life(supervisor, watcher)
        after = await ask(supervisor)
        assert (before["number"], before["port"]) == (1, 0)
        assert (after["number"], after["port"]) == (2, 4001)
        (event,) = watcher.told
        assert isinstance(event, ProcessRestartEvent)
        assert (event.name, event.why) == ("thing", "its process was ended by SIGKILL")
        assert event.seconds > 0
        assert watcher.ends == [("thing", "its process was ended by SIGKILL", "")]

    kept(body)


def test_a_killed_process_is_started_again_in_its_place(kept: Any) -> None:
    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        await next_life(supervisor, watcher)
        assert WAYS == [("by", "its door")] * 2

    kept(body)


def test_an_order_that_a_process_dies_over_is_carried_out_by_the_next(kept: Any) -> None:
    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        assert (await ask(supervisor, "die once"))["number"] == 2

    kept(body)


@pytest.mark.slow
def test_a_process_that_cannot_be_kept_is_given_up_where_the_run_goes_on_without_it(kept: Any) -> None:
    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        watcher.spare = True

        async def deaths() -> None:
            for _ in range(restarts.RESTARTS):
                await next_life(supervisor, watcher)
            supervisor.tell("thing", {"do": "die"})
            while not supervisor.is_given_up("thing"):
                await process.change()

        await supervisor.guard(deaths())
        assert supervisor.is_given_up("thing")
        assert len(watcher.back) == restarts.RESTARTS

    kept(body)


@pytest.mark.slow
def test_the_sixth_death_within_a_minute_ends_the_run(kept: Any) -> None:
    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        async def deaths() -> None:
            for _ in range(restarts.RESTARTS):
                await next_life(supervisor, watcher)
            await next_life(supervisor, watcher)

        with pytest.raises(RunError, match="FF-APP-025") as caught:
            await supervisor.guard(deaths())
        assert "SIGKILL" in caught.value.cause
        assert caught.value.hint
        assert len(watcher.back) == restarts.RESTARTS

    kept(body)


@pytest.mark.slow
def test_deaths_far_apart_are_no_reason_to_end_a_run(kept: Any) -> None:
    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        for _ in range(restarts.RESTARTS + 2):
            process.deaths = [at - restarts.WINDOW_SECONDS for at in process.deaths]
            await next_life(supervisor, watcher)
        assert (await supervisor.guard(ask(supervisor)))["number"] == restarts.RESTARTS + 3

    kept(body)


def test_who_said_why_is_not_started_again(kept: Any) -> None:
    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        with pytest.raises(VerificationError, match="FF-CORE-052") as caught:
            await ask(supervisor, "fail")
        assert caught.value.exit_code == 5
        assert caught.value.hint == "restore it"
        assert process.watch is not None
        await process.watch
        with pytest.raises(RunError, match="FF-APP-020"):
            await ask(supervisor)
        assert supervisor.is_given_up("thing")
        assert watcher.ends == [("thing", "FF-CORE-052: the log is damaged", "FF-CORE-052")]
        assert watcher.told == []
        await supervisor.bring_back("thing")  # only when it is asked for
        assert (await ask(supervisor))["number"] == 2

    kept(body)


def test_who_is_not_wanted_back_is_left_alone(kept: Any) -> None:
    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        watcher.wanted = False
        with pytest.raises(RunError, match="FF-APP-020"):
            await ask(supervisor, "die")
        assert watcher.back == []

    kept(body)


def test_a_process_that_dies_while_it_starts_is_started_once_more(kept: Any) -> None:
    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        await next_life(supervisor, watcher)
        assert (await ask(supervisor))["number"] == 4

    kept(body, "ready die die")


def test_a_port_that_somebody_took_meanwhile_is_tried_again(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "PORT_PAUSE", 0.0)

    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        await next_life(supervisor, watcher)
        assert (await ask(supervisor))["number"] == 3
        assert [code for _, _, code in watcher.ends] == ["", restarts.PORT_TAKEN]

    kept(body, "ready port")


@pytest.mark.parametrize("deaths", [1, 3])
def test_a_process_that_dies_before_it_ever_was_ready_is_started_again(kept: Any, deaths: int) -> None:
    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        assert (await ask(supervisor))["number"] == deaths + 1
        (event,) = watcher.told
        assert isinstance(event, ProcessRestartEvent)
        assert (event.name, event.why) == ("thing", "its process was ended by SIGKILL")
        assert watcher.ends == []  # nobody knew it yet
        await next_life(supervisor, watcher)
        assert (await ask(supervisor))["number"] == deaths + 2

    kept(body, "die " * deaths)


@pytest.mark.slow
def test_a_process_that_never_becomes_ready_ends_the_run(kept: Any) -> None:
    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        raise AssertionError("it was never ready")

    with pytest.raises(RunError, match="FF-APP-025") as caught:
        kept(body, "die " * (restarts.RESTARTS + 1))
    assert "SIGKILL" in caught.value.cause


def test_a_process_that_says_why_it_cannot_start_is_not_started_again(kept: Any, tmp_path: Path) -> None:
    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        raise AssertionError("it was never ready")

    with pytest.raises(NetworkError, match="FF-NET-040"):
        kept(body, "port")
    assert (tmp_path / "lives").read_text() == "1"


def test_two_who_ask_for_the_same_report_have_one_each(kept: Any) -> None:
    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        both = await asyncio.gather(ask(supervisor), ask(supervisor))
        assert [said["number"] for said in both] == [1, 1]
        asked = [asyncio.ensure_future(ask(supervisor, word)) for word in ("die once", "say")]
        assert [said["number"] for said in await asyncio.gather(*asked)] == [2, 2]

    kept(body)


def test_a_dismissed_process_stays_away(kept: Any) -> None:
    async def body(supervisor: ProcessSupervisor, watcher: Watcher, process: SupervisedProcess) -> None:
        child = process.child
        assert child is not None
        await supervisor.dismiss("thing")
        assert await child.gone() == 0
        assert watcher.ends == []
        supervisor.tell("thing", DIE)  # nobody hears it

    kept(body)

"""Restarts processes that die (requirement: deaths), each from its folder and on its former port.

    launched --(ready)--> up --(it dies)--> vacant --(started, ready)--> up
       |                   |                  |--(too many deaths)--> the run fails with FF-APP-025
       |                   |--(it said itself why it cannot go on, or nobody wants it back)--> given up
       |--(it dies before)--> launched, as often as that is allowed later
       |--(it said why it cannot start)--> the run fails with what it said

A death is an end without a word: killed, out of memory, crashed. Whoever said why would say the same again.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from farflung.core.errors import FarflungError, RunError, type_and_text
from farflung.core.events import ProcessRestartEvent
from farflung.peers.process.channel import Report
from farflung.peers.process.child import ChildProcess
from farflung.peers.rundir.journal import EventEmitter

WINDOW_SECONDS: Final = 60.0
RESTARTS: Final = 5  # of one process within the window
PORT_TAKEN: Final = "FF-NET-040"  # by an outgoing connection, say, while nobody listened there
PORT_PAUSE: Final = 0.3  # seconds until it is tried again

T = TypeVar("T")


class RestartPolicy(Protocol):
    """What a supervisor asks of the network whose processes it starts again."""

    def heard(self, child: ChildProcess, said: Report) -> None:
        """A process reported something."""

    def died(self, name: str, why: str, failure: FarflungError | None) -> bool:
        """A process ended, with `failure` when it said why: whether to start it again. May raise: the run ends."""

    def may_miss(self, name: str, why: str) -> bool:
        """A process cannot be kept: whether all goes on without it."""

    async def revived(self, child: ChildProcess) -> None:
        """A process that died is ready again: brings it back to where it was."""


class SupervisedProcess:
    """One process of a run, whoever fills it at the moment."""

    def __init__(self, name: str, role: str, config: Path, log: Path, way: Sequence[str] = ()) -> None:
        """`config`: its file. `way`: what its command begins with, each time that it is started
        (local.network.placement).
        """
        self.name, self.role, self.config, self.log, self.way = name, role, config, log, way
        self.port = 0  # that it listened on; 0: none, or as its file says
        self.child: ChildProcess | None = None
        self.is_given_up = False
        self.deaths: list[float] = []  # loop times
        self.watch: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def fill(self, child: ChildProcess | None, *, give_up: bool = False) -> None:
        """Another process, or none, stands here from now on."""
        self.child, self.is_given_up = child, give_up
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Waits until another process, or none, stands here."""
        await self._changed.wait()


class ProcessSupervisor:
    """Starts the processes of a run, watches them, and starts again what dies."""

    def __init__(self, policy: RestartPolicy, emitter: EventEmitter) -> None:
        self._policy, self._emitter = policy, emitter
        self._processes: dict[str, SupervisedProcess] = {}
        self._failed: asyncio.Future[None] | None = None

    async def launch(self, process: SupervisedProcess) -> None:
        """Starts a process; `ready` waits for it."""
        self._processes[process.name] = process
        process.fill(await self._start(process))

    async def ready(self, name: str) -> ChildProcess:
        """Waits until a launched process is ready; from then on it is kept. One that dies before is started again.

        Raises what it failed with when it said so, RunError FF-APP-025 when it dies again and again.
        """
        process, began, why = self._processes[name], _now(), ""
        while True:
            child = process.child
            assert child is not None
            try:
                _pin_port(process, await child.first)
                break
            except FarflungError:
                if child.failure is not None:
                    raise
            began = began if why else _now()
            why = _why(child, await child.gone())
            _count(process, why)
            process.fill(await self._start(process))
        if why:
            self._emitter.emit(ProcessRestartEvent(name=name, why=why, seconds=round(_now() - began, 3)))
        process.watch = asyncio.create_task(self._watch(process))
        return child

    def tell(self, name: str, order: Report) -> None:
        """Gives an order to a process; whoever is started next hears nothing of it."""
        process = self._processes.get(name)
        if process is not None and process.child is not None:
            process.child.order(order)

    async def ask(self, name: str, order: Report, answer: str) -> Report:
        """Gives an order and waits for its report, of the next process too when one dies over it."""
        process = self._processes[name]
        while True:
            child = process.child
            if child is None and process.is_given_up:
                raise RunError(
                    "FF-APP-020",
                    f"{name} ended before it did what it was asked",
                    cause="it was not started again",
                    hint="look into its log in the run's folder",
                )
            if child is not None:
                try:
                    return await child.ask(order, answer)
                except FarflungError:
                    if child.failure is not None:
                        raise
            if process.child is child:
                await process.change()

    def child(self, name: str) -> ChildProcess | None:
        """Who is at a post now."""
        process = self._processes.get(name)
        return process.child if process is not None else None

    def is_given_up(self, name: str) -> bool:
        """Whether a process ended and is not wanted back."""
        return self._processes[name].is_given_up

    async def bring_back(self, name: str) -> None:
        """Starts a process that was given up once more."""
        process = self._processes[name]
        await self.launch(process)
        await self.ready(name)

    async def guard(self, work: Awaitable[T]) -> T:
        """Does the work; raises what ended the run when a process cannot be kept."""
        self._failed = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, self._failed}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._failed.result()
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if self._failed.done():
                self._failed.exception()  # the work may have ended first, or of the same cause
            self._failed.cancel()

    async def dismiss(self, name: str) -> None:
        """Ends one process, which is not needed any more."""
        process = self._processes.pop(name, None)
        if process is not None:
            await _end([process])

    async def stop(self, last: Iterable[str]) -> None:
        """Ends all processes, `last` after all others, so that they hear them out."""
        processes, self._processes = self._processes, {}
        final = [processes.pop(name) for name in last if name in processes]
        await _end(processes.values())
        await _end(final)

    async def _start(self, process: SupervisedProcess) -> ChildProcess:
        given = process.config, process.log, self._policy.heard, process.way, process.port
        return await ChildProcess.start(process.name, process.role, *given)

    async def _watch(self, process: SupervisedProcess) -> None:
        """Until the run ends, or until the process is given up."""
        try:
            while await self._again(process):
                pass
        except FarflungError as error:
            self._fail(error)
        except Exception as error:  # the task's boundary: without this watch nothing would be started again
            self._fail(RunError("FF-APP-099", f"unexpected error: {type_and_text(error)}"[:300]))

    def _fail(self, error: FarflungError) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _again(self, process: SupervisedProcess) -> bool:
        """Waits for the end of the process and starts it again; False when it is given up."""
        child = process.child
        assert child is not None
        status = await child.gone()
        noticed = _now()
        why = _why(child, status)
        process.fill(None)
        if not self._policy.died(process.name, why, child.failure):
            process.fill(None, give_up=True)
            return False
        try:
            _count(process, why)
        except RunError as error:
            if not self._policy.may_miss(process.name, error.cause):
                raise
            process.fill(None, give_up=True)
            return False
        fresh = await self._start(process)
        process.fill(fresh)
        try:
            _pin_port(process, await fresh.first)
        except FarflungError:
            if fresh.failure is not None and fresh.failure.code == PORT_TAKEN:
                await asyncio.sleep(PORT_PAUSE)
            return True  # it died at once: the next turn sees to it
        self._emitter.emit(ProcessRestartEvent(name=process.name, why=why, seconds=round(_now() - noticed, 3)))
        await self._bring_up(fresh)
        return True

    async def _bring_up(self, child: ChildProcess) -> None:
        try:
            await self._policy.revived(child)
        except RunError as error:
            if error.code != "FF-APP-020":  # died over it: the next turn sees to that
                raise


def _now() -> float:
    return asyncio.get_running_loop().time()


def _pin_port(process: SupervisedProcess, ready: Report) -> None:
    """The next process of this post listens where this one does: nobody needs to be told."""
    if not ready.get("relayed"):
        process.port = int(ready.get("port", 0))


def _why(child: ChildProcess, status: int) -> str:
    if child.failure is not None:
        return f"{child.failure.code}: {child.failure.message}"
    if status < 0:
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process ended with status {status}"


def _count(process: SupervisedProcess, why: str) -> None:
    """Raises RunError FF-APP-025 when a process dies again and again."""
    process.deaths = [at for at in process.deaths if at > _now() - WINDOW_SECONDS]
    if len(process.deaths) >= RESTARTS:
        raise RunError(
            "FF-APP-025",
            f"{process.name} dies again and again",
            cause=f"{RESTARTS + 1} deaths within {WINDOW_SECONDS:.0f} s; the last time: {why}",
            hint=f"look into {process.log}, then run `farflung resume`",
        )
    process.deaths.append(_now())


async def _end(processes: Iterable[SupervisedProcess]) -> None:
    """Nobody is started again from now on; then all end, side by side."""
    processes = list(processes)
    watches = [process.watch for process in processes if process.watch is not None]
    for watch in watches:
        watch.cancel()
    await asyncio.gather(*watches, return_exceptions=True)
    await asyncio.gather(*(process.child.stop() for process in processes if process.child is not None))

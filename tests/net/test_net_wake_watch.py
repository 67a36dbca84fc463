"""A computer that slept finds dead connections within seconds, and leaves the living ones alone."""

from __future__ import annotations

import asyncio

import pytest
from net_relays import A, B, C, echo, run, tapped, until

from farflung.core.errors import NetworkError
from farflung.net.counters import ByteCounter
from farflung.net.io import connection, connection_writer, wake_watch
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.socket_options import SocketTuning
from farflung.net.io.wake_watch import ASLEEP_SECONDS, WakeWatch


class Watched:
    """Time that the test moves, and how often somebody woke."""

    def __init__(self) -> None:
        self.now, self.ticks, self.wakes = 0.0, 0, 0
        self.watch = WakeWatch(self.wake, self.read)

    def read(self) -> float:
        self.ticks += 1
        return self.now

    def wake(self) -> None:
        self.wakes += 1


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake_watch, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(wake_watch, "READ_SECONDS", 0.0)
    monkeypatch.setattr(connection, "_PROBE_SECONDS", 0.2)


@pytest.mark.parametrize(("late", "woke"), [(ASLEEP_SECONDS - 0.1, 0), (ASLEEP_SECONDS + 0.1, 1)])
def test_a_tick_that_is_late_by_seconds_is_a_sleep_and_one_that_is_hardly_late_is_none(late: float, woke: int) -> None:
    async def test() -> None:
        seen = Watched()
        seen.watch.begin()
        seen.watch.begin()
        seen.now += late
        at = seen.ticks
        await until(lambda: seen.ticks >= at + 8)
        assert seen.wakes == woke
        seen.watch.end()
        at = seen.ticks
        await asyncio.sleep(0.01)
        assert seen.ticks == at

    run(test)


def test_after_a_sleep_who_waits_on_a_dead_line_hears_so_and_who_has_a_living_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The line that is cut says nothing, and the call has no time-out of its own."""
    monkeypatch.setattr(connection_writer, "tune", lambda _sock: SocketTuning("", is_local=False))
    is_cut = False

    async def test() -> None:
        nonlocal is_cut
        is_cut, now = False, 0.0
        ends = {key: Endpoint(key, echo, ByteCounter()) for key in (A, B, C)}
        own = ends[A]
        own._wake = WakeWatch(own.probe, lambda: now)
        try:
            for key in (B, C):
                await ends[key].start()
            async with tapped(ends[B].address, lambda data: b"" if is_cut else data) as wire:
                dead = await own.dial(B.public, *await wire.start())
                living = await own.dial(C.public, *ends[C].address)
                assert await dead.call("say", b"on") == b"on"
                is_cut = True
                waiting = asyncio.create_task(dead.call("say", b"lost", timeout=None))
                await asyncio.sleep(0)
                now += 2 * ASLEEP_SECONDS
                with pytest.raises(NetworkError, match="FF-NET-048"):
                    await waiting
                assert await living.call("say", b"on") == b"on"
                assert own.standing == (living,)
        finally:
            for each in ends.values():
                await each.close()

    run(test)


def test_connections_within_one_machine_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        one, two = Endpoint(A, echo, ByteCounter()), Endpoint(B, echo, ByteCounter())
        try:
            await two.start()
            over = await one.dial(B.public, *two.address)
            monkeypatch.setattr(over, "probe", lambda: pytest.fail("it was asked"))
            one.probe()
        finally:
            await one.close()
            await two.close()

    run(test)

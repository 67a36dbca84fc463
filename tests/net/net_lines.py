"""A home's line as a fluid: rate, delay, buffer and loss, and processes of the home that send over it as BBR does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from farflung.net import uplink_estimator
from farflung.net.uplink_estimator import UplinkEstimate, UplinkSample

TICK = 0.01
LOOK = 2  # ticks
MBIT = 125_000
PACKET = 1448
STARTUP, DRAINING = 2.89, 0.35
CYCLE = (1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)


@dataclass(slots=True)
class Flow:
    """One connection: BBR's start, its filter of ten rounds, its cycle, its window of two bandwidth-delay products."""

    trip: float
    at: int = 0  # ticks, where its cycle begins
    backlog: float = 0.0
    inflight: float = 0.0
    waits: float = 0.0  # in the line's queue
    acked: float = 0.0  # in this tick
    lost: float = 0.0  # behind the line, which shows when it would have been acked
    delay: float = 0.0  # of what was acked last, in the queue
    starved: int = 0  # ticks until what was sent with nothing behind it is acked
    is_found: bool = False  # its start is over
    is_draining: bool = False
    best: float = 0.0
    flat: int = 0
    way: deque[tuple[float, float]] = field(default_factory=deque)
    recent: deque[float] = field(default_factory=deque)
    rounds: deque[float] = field(default_factory=lambda: deque([0.0], 10))

    def __post_init__(self) -> None:
        self.ticks = max(1, round(self.trip / TICK))
        self.way.extend([(0.0, 0.0)] * self.ticks)
        self.recent.extend([0.0] * self.ticks)

    ticks: int = 1

    @property
    def bandwidth(self) -> float:
        return max(self.rounds) or 10 * PACKET / self.trip

    def send(self, pace: float) -> None:
        """Puts into the queue what it may send in a tick."""
        gain = self._gain()
        window = max(4 * PACKET, (STARTUP if not self.is_found else 2.0) * self.bandwidth * self.trip)
        size = min(gain * self.bandwidth * TICK, pace * TICK, max(0.0, window - self.inflight), self.backlog)
        self.backlog -= size
        self.waits += size
        self.inflight += size
        if self.backlog <= 0:
            self.starved = self.ticks + 1

    def _gain(self) -> float:
        if not self.is_found:
            return STARTUP
        if self.is_draining:
            self.is_draining = self.inflight > self.bandwidth * self.trip
            return DRAINING
        return CYCLE[(self.at // self.ticks) % len(CYCLE)]

    def take(self, out: float, dropped: float, loss: float, delay: float) -> None:
        """What the line carried of it, and what it dropped, comes back as acknowledgements after the delay."""
        self.waits -= out + dropped
        self.backlog += dropped + out * loss
        self.inflight -= dropped
        self.way.append((out, delay))
        came, self.delay = self.way.popleft()
        self.inflight = max(0.0, self.inflight - came)
        self.acked, self.lost = came * (1 - loss), came * loss
        self.recent.append(self.acked)
        self.recent.popleft()
        rate = sum(self.recent) / (len(self.recent) * TICK)
        self.starved = max(0, self.starved - 1)
        if not self.starved or rate > self.bandwidth:
            self.rounds[-1] = max(self.rounds[-1], rate)
        self.at += 1
        if self.at % self.ticks == 0 and came:
            self._round()

    def _round(self) -> None:
        if not self.is_found and not self.starved:
            self.flat = 0 if self.bandwidth >= 1.25 * self.best else self.flat + 1
            self.best = max(self.best, self.bandwidth)
            self.is_found = self.is_draining = self.flat >= 3
        if not self.starved:
            self.rounds.append(0.0)


class Process:
    """Some connections, and what they know of the line together. `follows`: they are paced by it."""

    def __init__(
        self, trip: float, flows: int = 1, *, line: UplinkEstimate | None = None, follows: bool = True
    ) -> None:
        self.flows = [Flow(trip, at=7 * index) for index in range(flows)]
        self.line, self.follows = line or UplinkEstimate(), follows
        self.delivered, self.looked, self.was_busy = 0.0, 0.0, [False] * flows
        self.lost = 0.0  # since the last look

    def put(self, size: float) -> None:
        """So much more is to be sent, by all of them."""
        for flow in self.flows:
            flow.backlog += size / len(self.flows)

    @property
    def is_idle(self) -> bool:
        return all(flow.backlog + flow.inflight < 1 for flow in self.flows)

    @property
    def pace(self) -> float:
        """Of each that has something to send."""
        busy = sum(flow.backlog > 0 for flow in self.flows)
        return uplink_estimator.ceiling(self.line) / max(1, busy) if self.follows else 1e12

    def look(self, now: float, jitter: float) -> None:
        """As the kernel's figures are read: delivered bytes whole, round trips with what jitter adds."""
        busy = [not flow.starved and flow.backlog > 0 for flow in self.flows]
        queues = [
            flow.delay + jitter for flow, was, now_ in zip(self.flows, self.was_busy, busy, strict=True) if was and now_
        ]
        self.was_busy = busy
        came = int(self.delivered - self.looked)
        self.looked += came
        trip = self.flows[0].trip + (min(queues) if queues else 0.0)
        sample = UplinkSample(
            now, came, LOOK * TICK, trip, min(queues, default=0.0), bool(queues), again=int(self.lost)
        )
        self.lost = 0.0
        self.line = uplink_estimator.observe(self.line, sample)


class Home:
    """The line, and who sends over it. `buffer`: seconds that its queue holds; `jitter`: of single looks, seconds."""

    def __init__(
        self, rate: float, *processes: Process, buffer: float = 0.1, loss: float = 0.0, jitter: float = 0.0
    ) -> None:
        self.rate, self.buffer, self.loss, self.jitter = rate, buffer, loss, jitter
        self.processes = list(processes)
        self.ticks, self.queue, self.most = 0, 0.0, 0.0
        self.queues: list[float] = []

    @property
    def now(self) -> float:
        return self.ticks * TICK

    def tick(self) -> None:
        """A tick of the line, and each second one a look."""
        flows = [(process, flow) for process in self.processes for flow in process.flows]
        for process in self.processes:
            pace = process.pace
            for flow in process.flows:
                flow.send(pace)
        waits = sum(flow.waits for _, flow in flows)
        carried = min(waits, self.rate * TICK)
        dropped = max(0.0, waits - carried - self.buffer * self.rate)
        self.queue = (waits - carried - dropped) / self.rate
        for process, flow in flows:
            part = flow.waits / waits if waits else 0.0
            flow.take(carried * part, dropped * part, self.loss, self.queue)
            process.delivered += flow.acked
            process.lost += flow.lost
        self.ticks += 1
        if self.ticks % LOOK == 0:
            for index, process in enumerate(self.processes):
                shaken = self.jitter * ((self.ticks * 2_654_435_761 + index * 97) % 1000) / 1000
                process.look(self.now, shaken)
        self.queues.append(self.queue)

    def run(self, seconds: float, feeds: Iterable[Process] = ()) -> list[float]:
        """What each process got of the line, as shares; `feeds` have more to send all the time."""
        before = [process.delivered for process in self.processes]
        self.queues.clear()
        feeds = list(feeds)
        for _ in range(round(seconds / TICK)):
            for process in feeds:
                for flow in process.flows:
                    flow.backlog = max(flow.backlog, 4 * self.rate * TICK + 64_000)
            self.tick()
        return [
            (process.delivered - old) / max(seconds, TICK) / self.rate
            for process, old in zip(self.processes, before, strict=True)
        ]

    def burst(self, process: Process, size: float, limit: float = 600.0) -> float:
        """Seconds until `size` bytes more are there."""
        process.put(size)
        began = self.ticks
        while not process.is_idle and (self.ticks - began) * TICK < limit:
            self.tick()
        return (self.ticks - began) * TICK

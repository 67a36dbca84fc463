"""What survivors notice of a death: a run whose processes are killed one after another, and the times that it tells.

A victim is killed at a random moment of a round, only when at least QUIET rounds have closed since the one before it
was back: so each death has calm rounds before it, against which its gap is measured.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

QUIET = 4  # rounds, hence three intervals
PATIENCE = 240.0  # seconds without an event: something hangs

Event = dict[str, Any]


@dataclass
class Death:
    """One kill; times are those of the run's events."""

    name: str
    peer: str
    at: float
    calm: tuple[float, ...]  # when the last rounds before it closed
    peers: int  # counted in the last of them
    left: float | None = None
    joined: float | None = None  # its replacement holds the public state
    counted: float | None = None  # the first round closed that counts the replacement
    restarted: float | None = None
    after: list[float] = field(default_factory=list)  # when rounds closed from then on, up to the next death

    @property
    def gap(self) -> float:
        """The worst wait for a round, beyond what one took before."""
        usual = statistics.median(b - a for a, b in itertools.pairwise(self.calm))
        times = [self.calm[-1], *self.after]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0) - usual

    @property
    def is_over(self) -> bool:
        """Whether everything is as before."""
        return self.counted is not None if self.name.endswith(" worker") else self.restarted is not None


class Watched:
    """A run, and whom to kill in it."""

    def __init__(self, arguments: Sequence[str], folder: Path, victims: Sequence[str], seed: int) -> None:
        self._left, self._draw = list(victims), random.Random(seed)
        self._pids: dict[str, int] = {}
        self._peers: dict[str, str] = {}
        self._calm: list[tuple[float, int]] = []  # rounds since everything was as before
        self._offset = float("inf")
        self._due: float | None = None
        self.deaths: list[Death] = []
        self.result: Event = {}
        command = [sys.executable, "-m", "farflung.app.cli.main", "run", "--json", *arguments]
        self._process = subprocess.Popen(
            command, env={**os.environ, "FARFLUNG_RUNS": str(folder)}, stdout=subprocess.PIPE, text=True
        )

    def to_end(self, *, stop: bool = False) -> int:
        """Watches until the run has ended; returns its exit status. `stop`: settle when the last victim is back."""
        lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        reader.start()
        heard = time.monotonic()
        while True:
            until = heard + PATIENCE if self._due is None else min(self._due, heard + PATIENCE)
            try:
                line = lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                if self._due is None or time.monotonic() > heard + PATIENCE:
                    self._process.kill()
                    raise TimeoutError(f"no event for {PATIENCE:.0f} s") from None
                self._kill()
                continue
            if not line:
                return self._process.wait()
            heard = time.monotonic()
            self._hear(json.loads(line))
            if stop and not self._left and self._due is None and all(d.is_over for d in self.deaths):
                self._process.send_signal(signal.SIGINT)
                stop = False

    def _read(self, lines: queue.Queue[str]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            lines.put(line)
        lines.put("")

    def _hear(self, event: Event) -> None:
        kind, at = event["event"], float(event["at"])
        self._offset = min(self._offset, time.time() - at)
        last = self.deaths[-1] if self.deaths else None
        if kind == "process":
            self._pids[event["name"]] = event["pid"]
            self._peers.setdefault(event["name"], event["peer"])
        elif kind == "round":
            self._round(event, last)
        elif kind == "result":
            self.result = event
        elif last is not None and kind == "left" and event["peer"] == last.peer and last.left is None:
            last.left = at
        elif last is not None and kind == "joined" and event["peer"] == last.peer:
            last.joined = at
        elif last is not None and kind == "restarted" and event["name"] == last.name:
            last.restarted = at

    def _round(self, event: Event, last: Death | None) -> None:
        at, peers = float(event["at"]), int(event["peers"])
        if last is not None:
            last.after.append(at)
            if last.joined is not None and last.counted is None and peers >= last.peers:
                last.counted = at
        if last is not None and not last.is_over:
            return
        self._calm.append((at, peers))
        if event["round"] + 1 == event["rounds"]:
            self._due, self._left = None, []  # there is no round left in which to die
        elif self._left and self._due is None and len(self._calm) >= QUIET:
            usual = self._calm[-1][0] - self._calm[-2][0]
            self._due = time.monotonic() + self._draw.uniform(0.0, usual)

    def _kill(self) -> None:
        name = self._left.pop(0)
        calm, self._calm, self._due = self._calm[-QUIET:], [], None
        peer = self._peers[name.removesuffix(" worker")]
        os.kill(self._pids[name], signal.SIGKILL)
        times = tuple(at for at, _ in calm)
        self.deaths.append(Death(name, peer, time.time() - self._offset, times, calm[-1][1]))

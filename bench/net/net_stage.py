"""Where the network benchmark plays: workers in the places of a laboratory or on loopback, and what is seen of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from farflung.local.netlab import EmulatedHome, NetworkLab
from farflung.local.netlab.link_emulator import OVERHEAD
from farflung.local.netlab.self_check import prove_home

HERE: Final = Path(__file__).resolve().parent
PLAIN: Final = "cubic"  # what plain TCP means here
MB: Final = 1_000_000
_HEADERS: Final = 52  # IPv4 20, TCP 20, its timestamps 12
_PATIENCE: Final = 40.0  # seconds beyond its own limit that a worker has to say its line
_GAP: Final = 0.05  # seconds between two pings
_PINGING: Final = 7  # a port

Facts = dict[str, Any]


class Failed(Exception):  # noqa: N818 - it is no error of the product
    """Something could not be measured."""


def payload(rate: float, mtu: int = 1500) -> float:
    """Of a line of `rate` Mbit/s of Ethernet frames, what TCP can carry of payload."""
    return rate * (mtu - _HEADERS) / (mtu + OVERHEAD)


def median(values: Sequence[float]) -> float:
    """Raises Failed for none."""
    if not values:
        raise Failed("nothing was measured")
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed. Raises Failed for none."""
    median(values)
    return sorted(values)[max(0, min(len(values) - 1, round(share * len(values) + 0.5) - 1))]


def listed(values: Sequence[float], digits: int = 3) -> str:
    """All runs, as a row tells them."""
    return " ".join(f"{value:.{digits}f}" for value in values)


class Worker:
    """A process of the benchmark that says lines of JSON. Ended with the `with` block that it is opened in."""

    def __init__(self, laboratory: NetworkLab | None, who: str, script: str, role: str, **options: object) -> None:
        self.name = f"{role} at {who}" if who else role
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        command = [sys.executable, str(HERE / f"{script}.py"), role, json.dumps(options)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if laboratory is not None:
            self.process = laboratory.start(
                who, command, environment=environment, out=subprocess.PIPE, errors=self._errors
            )
        else:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors,
                start_new_session=True, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        self._out = self.process.stdout.fileno()
        self._said = b""

    def line(self, seconds: float = 0.0) -> Facts:
        """What it says next, within `seconds` and some patience. Raises Failed."""
        deadline = time.monotonic() + seconds + _PATIENCE
        while b"\n" not in self._said:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._out], [], [], left)[0]:
                raise Failed(f"{self.name}: says nothing")
            piece = os.read(self._out, 1 << 16)
            if not piece:
                self.process.wait(_PATIENCE)
                self._errors.seek(0)
                raise Failed(f"{self.name}: ended with {self.process.returncode}\n{self._errors.read()[-3000:]}")
            self._said += piece
        head, _, self._said = self._said.partition(b"\n")
        facts: Facts = json.loads(head)
        return facts

    def processor(self) -> float:
        """Seconds that it has had of a core so far."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> float:
        """MiB of memory that it holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self._errors.close()


class Transfer(NamedTuple):
    """One transfer as its receiver saw it, and what its sender said."""

    bytes: int
    seconds: float
    began: float  # by the machine's monotonic clock
    facts: Facts
    first: float = 0.0  # seconds of its first net_worker.FIRST bytes, where so many came

    @property
    def rate(self) -> float:
        """Mbit/s of payload."""
        return self.bytes * 8 / 1e6 / self.seconds


@dataclass
class Stage:
    """A laboratory, and how much is asked for."""

    laboratory: NetworkLab
    quick: bool
    _sound: dict[EmulatedHome | bool, str] = field(default_factory=dict)

    @property
    def times(self) -> int:
        """Runs of which the median counts."""
        return 1 if self.quick else 3

    def amiss(self, numbers: Sequence[int]) -> str:
        """Why homes are not to be measured with; empty: they are as asked.

        Of equal homes one is measured; with `quick`, for the sake of its seconds, one that loses and one that does not.
        """
        for number in numbers:
            home = self.laboratory.homes[number - 1]
            kind = home.loss > 0 if self.quick else replace(home, seed=0)
            if kind not in self._sound:
                findings = prove_home(self.laboratory, number)
                self._sound[kind] = "; ".join(str(finding) for finding in findings if not finding.agrees)
            if self._sound[kind]:
                return f"the laboratory's self-check fails: {self._sound[kind]}"
        return ""

    def worker(self, who: str, script: str, role: str, **options: object) -> Worker:
        """A process in a place."""
        return Worker(self.laboratory, who, script, role, **options)

    def ours(self, sender: str, receiver: str, size: int, seconds: float, **more: object) -> list[Transfer]:
        """Farflung's own transfers, receiver dialled directly."""
        host = self.laboratory.address(receiver)
        with self.worker(receiver, "net_worker", "receive", host=host) as there:
            place = {"host": host, "port": there.line()["port"]}
            return self._sent(sender, there, size, seconds, **place, **more)

    def relayed(self, sender: str, receiver: str, size: int, seconds: float, **more: object) -> list[Transfer]:
        """Farflung's own transfers, through a relay on the first server."""
        host = self.laboratory.address("s1")
        with self.worker("s1", "net_worker", "relay", host=host) as relay:
            port = relay.line()["port"]
            with self.worker(receiver, "net_worker", "receive", relay=[host, port]) as there:
                there.line()
                return self._sent(sender, there, size, seconds, host=host, port=port, via=True, **more)

    def _sent(self, sender: str, there: Worker, size: int, seconds: float, **more: object) -> list[Transfer]:
        options = {"bytes": size, "seconds": seconds, "times": self.times, **more}
        with self.worker(sender, "net_worker", "send", **options) as here:
            seen = []
            for _ in range(self.times):
                facts = here.line(seconds)
                got: Facts = there.line() if size else {"bytes": 0, "seconds": 1.0, "began": 0.0, "first": 0.0}
                seen.append(Transfer(got["bytes"], got["seconds"], got["began"], facts, got["first"]))
            return seen

    def plain(self, sender: str, receiver: str, size: int, seconds: float) -> list[Transfer]:
        """Transfers of one plain TCP connection with PLAIN congestion control. Raises Failed if it has another."""
        host, times = self.laboratory.address(receiver), self.times
        with self.worker(receiver, "net_plain", "take", host=host, times=times) as there:
            options = {"bytes": size, "seconds": seconds, "times": times, "congestion": PLAIN}
            with self.worker(sender, "net_plain", "give", host=host, port=there.line()["port"], **options) as here:
                seen = []
                for _ in range(times):
                    got, facts = there.line(seconds), here.line(seconds)
                    if facts["congestion"] != PLAIN:
                        raise Failed(f"plain TCP had {facts['congestion']} instead of {PLAIN}")
                    seen.append(Transfer(got["bytes"], got["seconds"], got["began"], facts))
                return seen

    @contextlib.contextmanager
    def pings(self, home: int) -> Iterator[list[tuple[float, float]]]:
        """UDP packets to the first server and back, while this is open: when each left, and its seconds."""
        trips: list[tuple[float, float]] = []
        stop = threading.Event()
        server, port = self.laboratory.address("s1"), _PINGING
        with (
            self.laboratory.socket("s1", socket.SOCK_DGRAM) as there,
            self.laboratory.socket(f"h{home}", socket.SOCK_DGRAM) as here,
        ):
            there.bind((server, port))
            thread = threading.Thread(target=_ping, args=(here, there, (server, port), trips, stop))
            thread.start()
            try:
                yield trips
            finally:
                stop.set()
                thread.join()


def _ping(
    here: socket.socket,
    there: socket.socket,
    server: tuple[str, int],
    trips: list[tuple[float, float]],
    stop: threading.Event,
) -> None:
    """Each packet carries when it left."""
    following = time.monotonic()
    while not stop.is_set():
        now = time.monotonic()
        if now >= following:
            following = now + _GAP
            here.sendto(str(now).encode(), server)
        for ready in select.select([here, there], [], [], max(0.0, following - now))[0]:
            word, sender = ready.recvfrom(64)
            if ready is there:
                there.sendto(word, sender)
            else:
                trips.append((float(word), time.monotonic() - float(word)))

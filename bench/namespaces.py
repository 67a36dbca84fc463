"""Workers behind links of a set rate on one Linux machine: a network namespace each, joined by a bridge in another.

Needs root and iproute2. Every worker's link is a veth pair; a token bucket (TBF) shapes both of its directions, so that
a worker sends and receives at most `rate`. Namespaces carry this process's number and are removed at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

DEVICE = "eth0"
BURST, QUEUE = "128kb", "100ms"  # of the token bucket
HUB = 99  # the number of a place beside the workers: 10.77.0.100
COUNTERS = "/sys/class/net/eth0/statistics"


def why_not() -> str:
    """Why this machine cannot make shaped links; empty if it can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs root on Linux"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"needs iproute2: no `{missing[0]}`"
    probe = f"ff-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"`ip netns add` does not work here: {made.stderr.strip()}"
    inside = ["ip", "netns", "exec", probe]
    steps = (
        ["ip", "-n", probe, "link", "add", "v0", "type", "veth", "peer", "name", "v1"],
        [*inside, "tc", "qdisc", "add", "dev", "v0", "root", *_bucket("100mbit")],
    )
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"`{' '.join(step[4:])}` does not work here: {done.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", probe], check=False)
    return ""


def _bucket(rate: str) -> list[str]:
    return ["tbf", "rate", rate, "burst", BURST, "latency", QUEUE]


def received_and_sent() -> tuple[int, int]:
    """Bytes that this namespace's link has received and sent, headers and all."""
    return tuple(int(Path(COUNTERS, f"{way}_bytes").read_text()) for way in ("rx", "tx"))  # type: ignore[return-value]


class Links:
    """`count` workers, 10.77.0.1 and up; `rate` as `tc` writes it ("100mbit"), empty: not shaped.

    `delay` in ms is put on the way out of each worker: it needs the kernel's netem, and is refused where there is none.
    `hub`: one place more, HUB, whose link is never shaped. `hosts`: a file that each place takes as its /etc/hosts,
    and its own name from it: w0 and up, and hub.
    """

    def __init__(
        self, count: int, rate: str = "", delay: float = 0.0, *, hub: bool = False, hosts: Path | None = None
    ) -> None:
        self.count, self.rate, self.delay, self.hosts = count, rate, delay, hosts
        self._switch = f"ff-{os.getpid()}-sw"
        self._names = {who: f"ff-{os.getpid()}-{who}" for who in (*range(count), *([HUB] if hub else []))}

    def address(self, worker: int) -> str:
        """Where a worker is reached."""
        return f"10.77.0.{worker + 1}"

    def start(
        self, worker: int, command: Sequence[str], environment: Mapping[str, str], out: IO[str]
    ) -> subprocess.Popen[str]:
        """Runs a command behind a worker's link, in a session of its own."""
        if self.hosts is not None:
            named = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'
            command = ["unshare", "-m", "-u", "sh", "-c", named, str(self.hosts), _name(worker), *command]
        return subprocess.Popen(
            ["ip", "netns", "exec", self._names[worker], *command],
            env=dict(environment),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )

    def __enter__(self) -> Links:
        try:
            self._up()
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._down()

    def _up(self) -> None:
        switch = self._switch
        if self.hosts is not None:
            lines = [f"{self.address(worker)} {_name(worker)}\n" for worker in self._names]
            self.hosts.write_text("".join(["127.0.0.1 localhost\n", *lines]))
        self._ip("netns", "add", switch)
        self._ip("-n", switch, "link", "add", "br0", "type", "bridge")
        self._ip("-n", switch, "link", "set", "br0", "up")
        for worker, name in self._names.items():
            port = f"p{worker}"
            self._ip("netns", "add", name)
            self._ip("-n", name, "link", "set", "lo", "up")
            self._ip(
                "link", "add", DEVICE, "netns", name, "type", "veth", "peer", "name", port, "netns", switch
            )
            self._ip("-n", name, "addr", "add", f"{self.address(worker)}/24", "dev", DEVICE)
            self._ip("-n", name, "link", "set", DEVICE, "up")
            self._ip("-n", switch, "link", "set", port, "master", "br0")
            self._ip("-n", switch, "link", "set", port, "up")
            if worker != HUB:
                self._shape(name, DEVICE, self.delay)
                self._shape(switch, port, 0.0)

    def _shape(self, name: str, device: str, delay: float) -> None:
        add = ("netns", "exec", name, "tc", "qdisc", "add", "dev", device)
        if delay:
            self._ip(*add, "root", "handle", "1:", "netem", "delay", f"{delay}ms", "limit", "10000")
        if self.rate:
            place = ("parent", "1:", "handle", "2:") if delay else ("root",)
            self._ip(*add, *place, *_bucket(self.rate))

    def _down(self) -> None:
        for name in (self._switch, *self._names.values()):
            inside = subprocess.run(
                ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
            )
            for pid in map(int, inside.stdout.split()):  # of programs that leave their session
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _ip(self, *arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")


def _name(worker: int) -> str:
    return "hub" if worker == HUB else f"w{worker}"

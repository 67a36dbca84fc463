"""The places of bench/links.py: servers of a laboratory (farflung.local.netlab), with a rate on the link of each.

A worker's link is the cable from its server to the backbone; the kernel's token bucket (TBF) shapes both of its ends:
a worker sends and receives at most `rate`. No packet passes a program of ours, so workers have the processors alone.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from farflung.local import netlab

DEVICE: Final = "eth0"
HUB: Final = 9  # the number of a place beside the workers
BACKBONE: Final = "bb"
BURST: Final = "128kb"  # what a link that was idle lets through at once


def why_not() -> str:
    """Why this machine cannot make shaped links; empty if it can."""
    if why := netlab.why_not():
        return why
    try:
        with Links(1, "100mbit"):
            return ""
    except (OSError, SystemExit) as error:
        return f"tc does not work here: {error}"


def address(worker: int) -> str:
    """Where a worker, or the hub, is reached."""
    return f"198.19.{worker + 1}.2"


class Links:
    """`count` workers; `rate` as `tc` writes it ("100mbit"), empty: not shaped.

    `delay` in ms is put on the way out of each worker: it needs the kernel's netem, and is refused where there is none.
    `hub`: one place more, HUB, whose link is never shaped. `hosts`: a file that each place takes as its /etc/hosts,
    and its own name from it: w0 and up, and hub.
    """

    def __init__(
        self,
        count: int,
        rate: str = "",
        delay: float = 0.0,
        *,
        hub: bool = False,
        hosts: Path | None = None,
        burst: str = BURST,
    ) -> None:
        self.count, self.rate, self.delay, self.hosts, self.burst = count, rate, delay, hosts, burst
        self._names = {n: f"w{n}" for n in range(count)} | ({HUB: "hub"} if hub else {})
        self._laboratory = netlab.NetworkLab([], servers=max(self._names) + 1)

    def start(
        self, worker: int, command: Sequence[str], environment: Mapping[str, str], out: IO[str]
    ) -> subprocess.Popen[str]:
        """Runs a command behind a worker's link, in a session of its own."""
        if self.hosts is not None:
            named = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'
            command = [
                "unshare", "-m", "-u", "sh", "-c", named, str(self.hosts), self._names[worker], *command
            ]  # fmt: skip
        return self._laboratory.start(
            f"s{worker + 1}", command, environment=environment, out=out, errors=subprocess.STDOUT
        )

    def __enter__(self) -> Links:
        if self.hosts is not None:
            lines = [f"{address(worker)} {name}\n" for worker, name in self._names.items()]
            self.hosts.write_text("".join(["127.0.0.1 localhost\n", *lines]))
        self._laboratory.__enter__()
        try:
            for worker in range(self.count):
                self._shape(f"s{worker + 1}", DEVICE, self.delay)
                self._shape(BACKBONE, f"server{worker + 1}", 0.0)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._laboratory.__exit__(kind, error, trace)

    def _shape(self, who: str, device: str, delay: float) -> None:
        if delay:
            self._tc(who, device, "root", "handle", "1:", "netem", "delay", f"{delay}ms", "limit", "10000")
        if self.rate:
            place = ("parent", "1:", "handle", "2:") if delay else ("root",)
            self._tc(who, device, *place, "tbf", "rate", self.rate, "burst", self.burst, "latency", "100ms")

    def _tc(self, who: str, device: str, *words: str) -> None:
        done = self._laboratory.run(who, ["tc", "qdisc", "add", "dev", device, *words])
        if done.returncode:
            raise SystemExit(f"`tc {' '.join(words)}` failed: {done.stderr.strip()}")

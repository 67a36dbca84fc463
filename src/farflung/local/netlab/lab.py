"""Builds and removes the emulated network, runs programs inside it, and changes its lines."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO

from farflung.core.errors import RunError, UsageError
from farflung.local.netlab import link_emulator, namespaces, nat_rules
from farflung.local.netlab.homes import EmulatedHome, NatType
from farflung.local.netlab.topology import LabTopology

ENGINES = ("auto", "c", "python")
SOURCE = Path(__file__).with_name("link_emulator.c")
_PRIORITY = 5  # of lines among real-time processes: a delay must stay true while the machine works
_NO_WORDS = 2  # the exit status of a line that is told nothing
_ANSWER = 10.0  # seconds that a line has to answer
_SETTINGS = {
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/icmp_ratelimit": "0",
    "ipv4/tcp_no_metrics_save": "1",  # or a transfer would learn from the one before it
    "ipv4/tcp_rmem": "4096 131072 33554432",  # enough for 1 Gbit/s over 200 ms
    "ipv4/tcp_wmem": "4096 65536 33554432",
}
_NUMBERS = count(1)  # of the laboratories of this process


class NetworkLab:
    """`homes`, numbered from 1, `servers` on the backbone, and one NAT of its kind for each of `carriers`.

    `engine`: the line emulator, "c", "python", or "auto": C where there is a compiler. It is a context manager;
    entering raises RunError FF-LAB-003 where the machine cannot make it, and FF-LAB-004 where permission is denied.
    Raises UsageError FF-LAB-005 for what does not fit together, and for a name that nobody here has.
    """

    def __init__(
        self, homes: Sequence[EmulatedHome], servers: int = 1, *, carriers: Sequence[NatType] = (), engine: str = "auto"
    ) -> None:
        self.places, self.engine = LabTopology(homes, servers, carriers), engine
        self.homes, self.carriers = self.places.homes, self.places.carriers
        if engine not in ENGINES:
            raise UsageError("FF-LAB-005", f"the laboratory has no engine {engine}", hint=", ".join(ENGINES))
        self._number = next(_NUMBERS)
        self._lines: dict[int, subprocess.Popen[bytes]] = {}

    # Names and addresses

    @property
    def everybody(self) -> list[str]:
        """The names of all places."""
        return self.places.everybody

    def address(self, who: str) -> str:
        """Where `who` is reached by its neighbours: a host on its LAN, a router on its outer side."""
        return self.places.address(who)

    def second_address(self, server: int) -> str:
        """Another address of a server: who asks it from there sees whether a NAT maps by destination."""
        return self.places.second_address(server)

    def public_address(self, home: int) -> str:
        """What servers see of a home."""
        return self.places.public_address(home)

    def _space(self, who: str) -> str:
        self.places.check(who)
        return namespaces.space(f"{self._number}-{who}")

    # Processes and sockets inside

    def start(
        self,
        who: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        out: IO[str] | int | None = None,
        errors: IO[str] | int | None = None,
    ) -> subprocess.Popen[str]:
        """Starts a program there, in a session of its own; the laboratory's end is the program's."""
        return subprocess.Popen(
            [shutil.which("ip") or "ip", "netns", "exec", self._space(who), *command],
            env=dict(environment) if environment is not None else None,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
            text=True,
        )

    def run(self, who: str, command: Sequence[str], seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Runs a program there to its end. Raises subprocess.TimeoutExpired."""
        with self.start(who, command, out=subprocess.PIPE, errors=subprocess.PIPE) as process:
            try:
                out, errors = process.communicate(timeout=seconds)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(list(command), process.returncode, out, errors)

    def way(self, who: str) -> tuple[str, ...]:
        """What a command begins with so that it runs there; else it is as it would be here (local.netlab.enter)."""
        return sys.executable, "-I", "-m", "farflung.local.netlab.enter", self._space(who)

    def inside(self, who: str) -> AbstractContextManager[None]:
        """The calling thread is there while this is open; sockets that it makes stay there. Raises OSError."""
        return namespaces.inside(self._space(who))

    def socket(self, who: str, kind: socket.SocketKind, protocol: int = 0) -> socket.socket:
        """An IPv4 socket that is in the place of `who`, for use by this process."""
        return namespaces.open_socket(self._space(who), socket.AF_INET, kind, protocol)

    # What happens to lines

    def counters(self, home: int) -> tuple[link_emulator.PacketCounters, link_emulator.PacketCounters]:
        """What became of all packets of a home's line so far, up and down. Raises RunError FF-LAB-006."""
        return self._ask(home, b"s")

    def cut(self, home: int) -> None:
        """From now on nothing comes through, and no device says so. Raises RunError FF-LAB-006."""
        self._ask(home, b"c")

    def restore(self, home: int) -> None:
        """Ends a cut. Raises RunError FF-LAB-006."""
        self._ask(home, b"r")

    def set_mtu(self, home: int, mtu: int, *, silent: bool = False) -> None:
        """Changes the largest packet of a line, in bytes. `silent`: its routers do not say so (a black hole).

        The provider's end is a router of many homes: it is silent, or not, for all of them.
        """
        for who, device in (f"r{home}", nat_rules.WAN), (self.places.provider(home), f"home{home}"):
            namespaces.ip([f"link set {device} mtu {mtu}"], self._space(who))
            namespaces.nft(self._space(who), nat_rules.too_big(silent=silent))

    def change_address(self, home: int) -> str:
        """Gives a router another address, as providers do at night; its connections are forgotten. Returns the address.

        Raises UsageError FF-LAB-007 for a home whose hosts have public addresses themselves, or that has no more.
        """
        before, after = self.places.move(home)
        router, gate, device = self._space(f"r{home}"), self.places.gateway(home), f"home{home}"
        namespaces.ip(
            [
                f"addr del {before} peer {gate} dev {nat_rules.WAN}",
                f"addr add {after} peer {gate} dev {nat_rules.WAN}",
                f"route replace default via {gate}",
            ],
            router,
        )
        namespaces.forget_connections(router)
        namespaces.ip(
            [f"addr del {gate} peer {before} dev {device}", f"addr add {gate} peer {after} dev {device}"],
            self._space(self.places.provider(home)),
        )
        return after

    def _ask(self, home: int, command: bytes) -> tuple[link_emulator.PacketCounters, link_emulator.PacketCounters]:
        self.places.home(home)
        process = self._lines.get(home)
        answer = b""
        if process is not None and process.stdin is not None and process.stdout is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(command)
                process.stdin.flush()
                if select.select([process.stdout], [], [], _ANSWER)[0]:
                    answer = process.stdout.readline()
        if not answer:
            raise RunError("FF-LAB-006", f"the line of home {home} does not work", hint="build the laboratory again")
        told = json.loads(answer)
        return link_emulator.PacketCounters(**told["up"]), link_emulator.PacketCounters(**told["down"])

    # Building and removing

    def __enter__(self) -> NetworkLab:
        if why := namespaces.why_not():
            raise RunError(
                "FF-LAB-003",
                "this machine cannot make a laboratory",
                cause=why,
                hint="needs root on Linux, iproute2, nftables",
            )
        namespaces.remove_leftovers()
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
        namespaces.ip(f"netns add {self._space(who)}" for who in self.everybody)
        for who in self.everybody:
            namespaces.configure(self._space(who), _SETTINGS | {"ipv4/ip_forward": "01"[who[0] in "rcb"]})
        namespaces.ip(
            f"link add {device} netns {self._space(who)} type veth peer name {port} netns {self._space(there)}"
            for who, device, there, port in self.places.cables()
        )
        with tempfile.TemporaryDirectory(prefix=f"{namespaces.PREFIX}-") as folder:  # what runs needs no file
            emulator = self._emulator(Path(folder))
            for number in range(1, len(self.homes) + 1):
                self._start_line(number, emulator)
        for who, commands in self.places.addresses().items():
            namespaces.ip(commands, self._space(who))
        for who, nat in self.places.nats():
            if rules := nat_rules.rules(nat):
                namespaces.nft(self._space(who), rules)

    def _emulator(self, folder: Path) -> list[str]:
        """The command that emulates a line."""
        python, compiler = [sys.executable, "-m", "farflung.local.netlab.link_emulator"], shutil.which("cc")
        if self.engine == "python" or (self.engine == "auto" and compiler is None):
            return python
        program = folder / "line"
        command = [compiler or "cc", "-O2", "-o", str(program), str(SOURCE)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            why = done.stderr.strip()
            if not done.returncode and subprocess.run([program], check=False).returncode == _NO_WORDS:
                return [str(program)]  # it also runs: a folder may forbid that
        except OSError as error:
            why = str(error)
        if self.engine == "c":
            raise RunError("FF-LAB-008", "the line emulator cannot be compiled", cause=why, hint='use engine="python"')
        return python

    def _start_line(self, number: int, emulator: Sequence[str]) -> None:
        ends = [(f"r{number}", nat_rules.WAN), (self.places.provider(number), f"home{number}")]
        home, devices = self.places.home(number), list[int]()
        try:
            for who, device in ends:
                devices.append(namespaces.open_tun(self._space(who), device, trains=home.train > 1))
            up, down = link_emulator.terms_of(home, number)
            process = subprocess.Popen(
                [*emulator, *map(str, devices), *link_emulator.words(up), *link_emulator.words(down)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=devices,
                start_new_session=True,
            )
        finally:
            for descriptor in devices:
                os.close(descriptor)
        self._lines[number] = process
        with contextlib.suppress(OSError):  # where it may not: delays are as true as the machine is idle
            os.sched_setscheduler(process.pid, os.SCHED_RR, os.sched_param(_PRIORITY))

    def _down(self) -> None:
        for process in self._lines.values():
            process.kill()
            process.communicate()
        self._lines.clear()
        namespaces.remove([self._space(who) for who in self.everybody])

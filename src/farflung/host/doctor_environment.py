"""Decides whether the environment is good enough: disk, folders, clock, loopback, ports, sandbox.

A threshold stands with its reason: it is where a run of the defaults would feel it.
"""

from __future__ import annotations

import errno
import shlex
from typing import Final

from farflung.core.limits import MIB
from farflung.core.units import format_bytes
from farflung.host import machine_readings as r
from farflung.host import sandbox as tiers
from farflung.host.findings import FindingDetail, FindingState, ProbeFinding, brief
from farflung.host.worker_limits import GIB

RUN_DISK: Final = GIB  # the default run held 0.7 GB at its peak, before leases end
LEAST_DISK: Final = 64 * MIB  # below it not even the tiny run's 2 MB, its logs and a model of yours are safe
SLOW_SYNC: Final = 0.03  # a round waits for about ten of them in a row; a plan has 0.25 s for all its waits
SLOW_RATE: Final = 20e6  # the default run writes some 35 MB a round: below it that takes longer than training
JUMP: Final = 0.05  # seconds that a wall clock may leave a steady one by: slewing gives 0.0005 of the window
SKEW: Final = 2.0  # file times come in whole seconds on some systems
BEFORE_PACKAGE: Final = 60.0  # a clock this far before this package was installed is wrong, not rounded
SLOW_HANDSHAKE: Final = 0.25  # 13 processes dial each other at the start: some forty handshakes
SLOW_ROUND_TRIP: Final = 0.005  # an audit is a dozen messages to and fro
LEAST_PORTS: Final = 500  # a run has below 100 connections, and closed ones stay taken for a minute
PART_OF: Final = {"pandas": "ipykernel nbclient pandas", "transformers": "accelerate transformers"}  # needed together
COLUMNS: Final = 80  # what the screens are made for


def _elsewhere(variable: str) -> str:
    return f"export {variable}=/another/folder"


def _unwritable(name: str, measured: str, variable: str, broken: r.SystemCallFailure) -> ProbeFinding:
    """A folder in which nothing can be written, by what the system says."""
    steps = {
        errno.ENOSPC: f"free some space there, or {_elsewhere(variable)}",
        errno.EDQUOT: f"free some of your quota there, or {_elsewhere(variable)}",
        errno.EFBIG: "ulimit -f unlimited",
        errno.ENOTDIR: _elsewhere(variable),
        errno.EMFILE: "ulimit -n 1024",
    }
    causes = {
        errno.EFBIG: "a limit on the size of files (RLIMIT_FSIZE)",
        errno.ENOTDIR: "it is a file, or lies below one",
        errno.ENOENT: "no file can be made there",
        errno.EROFS: "the file system is read-only",
    }
    cause = causes.get(broken.number, broken.words)
    step = steps.get(broken.number, _elsewhere(variable))
    return ProbeFinding(name, FindingState.FAILS, measured, cause, step, "FF-HOST-083")


def disk(reading: r.DiskReading) -> ProbeFinding:
    """Room, and how fast data is safe: a run promises nothing that is not on disk."""
    free = f"{format_bytes(reading.free)} free where runs go"
    if reading.broken is not None:
        shown = f"{reading.folder} takes no data"
        return _unwritable("disk", shown, "FARFLUNG_RUNS", reading.broken)
    measured = f"{free}, {format_bytes(reading.rate)}/s, {brief(reading.sync)} a safe write"
    move = _elsewhere("FARFLUNG_RUNS")
    if reading.free < LEAST_DISK:
        cause = f"a run needs {format_bytes(LEAST_DISK)} at least, the default one {format_bytes(RUN_DISK)}"
        return ProbeFinding(
            "disk", FindingState.FAILS, measured, cause, f"free some space there, or {move}", "FF-HOST-083"
        )
    if reading.sync > SLOW_SYNC or reading.rate < SLOW_RATE:
        cause = f"good is {brief(SLOW_SYNC)} or less a safe write, and {format_bytes(SLOW_RATE)}/s or more"
        return ProbeFinding("disk", FindingState.SLOW, measured, cause, f"{move}, on a local disk")
    if reading.free < RUN_DISK:
        cause = f"the default run takes up to {format_bytes(RUN_DISK)} while it runs"
        return ProbeFinding("disk", FindingState.WARN, measured, cause, f"free some space there, or {move}")
    return ProbeFinding("disk", FindingState.OK, measured)


def folder(name: str, reading: r.FolderReading) -> ProbeFinding:
    """A place where files are to be made."""
    if reading.broken is not None:
        return _unwritable(name, f"cannot write in {reading.path}", reading.variable, reading.broken)
    if reading.ignored:
        cause = f"{reading.variable} names {reading.ignored}, where nothing can be written"
        step = f"unset {reading.variable}, or mkdir -p {shlex.quote(reading.ignored)}"
        return ProbeFinding(name, FindingState.WARN, f"{reading.path} is used instead", cause, step)
    made = "" if reading.exists else ", made by the first run"
    return ProbeFinding(name, FindingState.OK, f"{reading.path} can be written{made}")


def clock(reading: r.ClockReading) -> ProbeFinding:
    """The wall clock against steady time, file times and the age of this package; other clocks are not asked."""
    measured = "steady"
    measured += "; file times could not be compared" if reading.file_skew is None else ", agrees with file times"
    match reading.is_kept:
        case True:
            measured += "; kept by a time service"
        case False:
            measured += "; kept by no time service that the kernel knows"
        case None:
            measured += "; whether a time service keeps it could not be told"
    unseen = FindingDetail("skew", "could not measure against other computers: this check contacts no other computer")
    step = "timedatectl set-ntp true, or as root date -s 'YYYY-MM-DD HH:MM:SS'"
    cause = ""
    if reading.since_package is not None and reading.since_package < -BEFORE_PACKAGE:
        behind = -reading.since_package
        measured = f"at least {_long(behind)} behind"
        cause = "this package was installed later than the clock says it is now"
    elif abs(reading.jump) > JUMP:
        measured = f"jumped by {brief(abs(reading.jump))} within {brief(reading.window)}"
        cause = "something sets it while programs run: two time services, or a virtual machine's tools"
        step = "timedatectl status, and leave one time service running"
    elif reading.file_skew is not None and abs(reading.file_skew) > SKEW:
        measured = f"differs by {_long(abs(reading.file_skew))} from the times of new files"
        cause = "temporary files lie on another computer's disk, and one of the two clocks is wrong"
    if cause:
        return ProbeFinding("clock", FindingState.WARN, measured, cause, step, details=(unseen,))
    return ProbeFinding("clock", FindingState.OK, measured, details=(unseen,))


def _long(seconds: float) -> str:
    return f"{seconds / 86400:.0f} days" if seconds > 2 * 86400 else f"{seconds:.0f} s"


def loopback(reading: r.LoopbackReading) -> ProbeFinding:
    """127.0.0.1: all processes of a local network speak over it."""
    broken = reading.broken
    if broken is not None:
        step = "as root, ip link set lo up; iptables -L INPUT shows a firewall that closes it"
        if broken.number == errno.EMFILE:
            step = "ulimit -n 1024"
        return ProbeFinding("loopback", FindingState.FAILS, "does not work", broken.words, step, "FF-HOST-084")
    measured = f"TLS in {brief(reading.handshake)}, {brief(reading.round_trip)} to and fro,"
    measured += f" {format_bytes(reading.rate)}/s"
    slow = [f"a handshake over {brief(SLOW_HANDSHAKE)}"] if reading.handshake > SLOW_HANDSHAKE else []
    slow += [f"a round trip over {brief(SLOW_ROUND_TRIP)}"] if reading.round_trip > SLOW_ROUND_TRIP else []
    slow += [f"below {format_bytes(SLOW_RATE)}/s"] if reading.rate < SLOW_RATE else []
    if slow:
        cause = f"{', '.join(slow)}: the cores are busy, or something inspects local connections"
        step = "farflung check, with less else running; look for a firewall or virus scanner"
        return ProbeFinding("loopback", FindingState.SLOW, measured, cause, step)
    return ProbeFinding("loopback", FindingState.OK, measured)


def ports(reading: r.PortRangeReading) -> ProbeFinding:
    """Ports that the system hands out: every listener of a run takes one, and every connection."""
    count = reading.last - reading.first + 1 if reading.last else 0
    span = f"{reading.first} to {reading.last}" if count else "a range that the system does not tell"
    measured = f"{reading.bound} of {reading.asked} ports free, from {span}"
    step = "as root, sysctl -w net.ipv4.ip_local_port_range='32768 60999'"
    if reading.bound < reading.asked:
        cause = "none are left: connections that were closed keep theirs for a minute"
        step = "ss -tan | wc -l shows how many are taken; end what holds them, or wait a minute"
        return ProbeFinding("ports", FindingState.FAILS, measured, cause, step, "FF-HOST-085")
    if 0 < count < LEAST_PORTS:
        cause = f"the system hands out {count} ports only, a run may need more at its start"
        return ProbeFinding("ports", FindingState.WARN, measured, cause, step)
    return ProbeFinding("ports", FindingState.OK, measured)


def port(reading: r.PortReading) -> ProbeFinding:
    """The port that was asked for."""
    number, broken = reading.number, reading.broken
    if broken is None:
        return ProbeFinding("port", FindingState.OK, f"{number} is free on 127.0.0.1")
    step = "farflung run --set network.port=0"
    if broken.number == errno.EADDRINUSE:
        cause = "another program listens there"
        step = f"ss -ltnp 'sport = :{number}' shows which; or {step}"
    elif broken.number == errno.EACCES:
        cause = "ports below 1024 are for root alone"
    else:
        cause = broken.words
    return ProbeFinding("port", FindingState.FAILS, f"{number} is not free on 127.0.0.1", cause, step, "FF-HOST-085")


def terminal(reading: r.TerminalReading) -> ProbeFinding:
    """Only what would make the screens hard to read."""
    measured = f"{reading.columns} columns, {reading.encoding}" if reading.columns else reading.encoding
    if "utf" not in reading.names.lower() or "utf" not in reading.encoding.lower():
        cause = f"text is {reading.encoding} and file names are {reading.names} here, not UTF-8"
        return ProbeFinding("terminal", FindingState.WARN, measured, cause, "export LC_ALL=C.UTF-8 PYTHONIOENCODING=")
    if 0 < reading.columns < COLUMNS:
        cause = f"the screens are made for {COLUMNS} columns"
        return ProbeFinding("terminal", FindingState.WARN, measured, cause, "make the window wider")
    return ProbeFinding("terminal", FindingState.OK, measured)


def extras(reading: r.ExtrasReading) -> ProbeFinding:
    """Optional parts: good to know, never a fault."""
    have = ", ".join(f"{name} {version}" for name, version in reading.parts if version)
    lack = ", ".join(name for name, version in reading.parts if not version)
    measured = "; ".join(([have] if have else []) + ([f"not installed: {lack}"] if lack else []))
    names = " ".join(dict.fromkeys(PART_OF.get(name, name) for name, version in reading.parts if not version))
    add = (FindingDetail("add", f"pip install {names}"),) if names else ()
    return ProbeFinding("extras", FindingState.NOTE, measured or "there are none", details=add)


def sandbox(reading: r.SandboxReading) -> ProbeFinding:
    """The tier that other people's code gets here, what it leaves open, and why no stronger one is used."""
    names = [one.tier.name for one in reading.tiers]
    details: list[FindingDetail] = []
    for one in reading.tiers[: names.index(reading.chosen) if reading.chosen else None]:
        why = one.why or f"works, but {reading.variable} names {reading.chosen or 'another'}"
        details.append(FindingDetail(one.tier.name, f"not used: {why}"))
        command = one.command or ("" if one.why else f"unset {reading.variable}")
        details += [FindingDetail("try", command)] if command else []
    if reading.refused is not None:
        no = reading.refused
        return ProbeFinding("sandbox", FindingState.FAILS, no.message, no.cause, no.hint, no.code, tuple(details))
    tier = reading.tiers[names.index(reading.chosen)].tier
    details = [FindingDetail("open", gap) for gap in tier.gaps] + details
    if tier.name != tiers.LIMITS:
        return ProbeFinding("sandbox", FindingState.OK, tier.made_of, details=tuple(details))
    cause = "no stronger tier is used here: a stranger's model reads your files and uses your network"
    step = next((one.text for one in details if one.word == "try"), "apt-get install bubblewrap, on Linux")
    return ProbeFinding("sandbox", FindingState.WARN, tier.made_of, cause, step, details=tuple(details))

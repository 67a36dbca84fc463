"""Measures what grows on a network's computers in 40 jobs of 6 requesters, with restarts, an upgrade, a lost relay.

Real processes in real time, one job after the other: processes have no virtual time, so a day's jobs follow each other
without the day's pauses. The day itself, of a ledger and of voucher stores, is open_ledger_day.py's. Used by
bench/open.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from reporting import Row, at_most, told
from separate_computers import SOURCE, Computer, Program, computers

from farflung.local.netlab import EmulatedHome, NatType, NetworkLab

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
OPERATOR: Final = "s1"
LENDERS: Final = {"h1": "", "h2": "", "h3": " --audit"}
REQUESTERS: Final = tuple(f"h{number}" for number in range(4, 10))
NATS: Final = (NatType.SYMMETRIC, NatType.PORT_RESTRICTED, NatType.FULL_CONE)
HOMES: Final = [EmulatedHome(nat=NATS[number % 3]) for number in range(len(LENDERS) + len(REQUESTERS))]
JOB: Final = "--preset tiny --rounds 1 --set network.providers=2 --set network.verifiers=1 --set audit.proof=outcome"
SETTLED: Final = 3  # jobs after which nothing is to grow
GROWN: Final = 1.1  # of a process's memory, against after three jobs
LIMIT: Final = 900.0
VERSION: Final = 'VERSION: Final = "'


class Reading(NamedTuple):
    """After a job: bytes in memory of the lender that is never restarted and of the operator's processes, files and
    vouchers of all lenders, bytes on the operator's disk.
    """

    lender: int
    seat: int
    files: int
    vouchers: int
    disk: int


def resident(computer: Computer) -> int:
    """Bytes that all processes of a computer have in memory."""
    return sum(PAGE * int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in computer.processes())


def stored(computer: Computer) -> tuple[int, int]:
    """Files on a computer's disk, and their bytes."""
    sizes = [path.stat().st_size for path in (computer.disk / "user").rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


class Day:
    """The computers, what runs on them, and what was read after each job."""

    def __init__(self, lab: NetworkLab, booted: dict[str, Computer], folder: Path) -> None:
        self.lab, self.booted, self._folder = lab, booted, folder
        self.lent: dict[str, Program] = {}
        self.said = ""  # by programs that were ended
        self.readings: list[Reading] = []
        operator = booted[OPERATOR]
        self._open = f"network open net --host {operator.address}"
        self.network = operator.start(self._open)
        found = re.search(r"farflung1\S+", self.network.until(lambda text: "Ctrl-C" in text, LIMIT))
        assert found is not None
        self.invitation = found[0]
        for place in LENDERS:
            self.lend(place)

    def lend(self, place: str) -> None:
        """The lender's one command."""
        self.lent[place] = self.booted[place].start(f"lend {self.invitation}{LENDERS[place]}")
        self.lent[place].until(lambda text: "waiting" in text, LIMIT)

    def restart(self, place: str, site: Path = SOURCE) -> None:
        """Pulls the plug of a lender; after the boot the command is typed again, perhaps of another version."""
        self.said += self.lent[place].text
        self.booted[place].off()
        self.booted[place].site = site
        self.booted[place].boot()
        self.lend(place)

    def restart_seat(self) -> None:
        """Pulls the operator's plug: seat, relay and faucet."""
        self.booted[OPERATOR].off()
        self.booted[OPERATOR].boot()
        self.network = self.booted[OPERATOR].start(self._open)
        self.network.until(lambda text: "Ctrl-C" in text, LIMIT)

    def lose_relay(self) -> None:
        """Kills the process of the relay, which carries every connection of those who lend; it is started again."""
        for process in self.booted[OPERATOR].processes():
            with contextlib.suppress(OSError):
                if b"peers.relay" in Path(f"/proc/{process}/cmdline").read_bytes():
                    os.kill(process, signal.SIGKILL)
        self.network.until(lambda text: "relay was started again" in text, LIMIT)

    def newer(self) -> Path:
        """The same program under a later version's name."""
        site = self._folder / "newer"
        if not site.exists():
            shutil.copytree(SOURCE, site)
            path = site / "farflung" / "core" / "release.py"
            path.write_text(path.read_text().replace(f'{VERSION}0.1.0"', f'{VERSION}0.1.1"'))
        return site

    def job(self, number: int) -> float:
        """One job of the requester whose turn it is, and a reading when it is settled; the seconds that it took."""
        began = time.monotonic()
        words = f"run {JOB} --on {self.invitation} --yes --seed {number} --out job{number}"
        self.booted[REQUESTERS[number % len(REQUESTERS)]].run(words, LIMIT)
        took = time.monotonic() - began
        for place, program in self.lent.items():
            assert program.process.poll() is None, f"{place} ended: {program.text[-2000:]}"
        time.sleep(4.0)  # it is paid, and its folder is gone
        lenders = [self.booted[place] for place in LENDERS]
        vouchers = sum(path.is_file() for each in lenders for path in (each.disk / "user").rglob("vouchers/*"))
        seat = self.booted[OPERATOR]
        files = sum(stored(each)[0] for each in lenders)
        self.readings.append(Reading(resident(lenders[0]), resident(seat), files, vouchers, stored(seat)[1]))
        return took


def rows(jobs: int) -> Iterator[Row]:
    """One network; what happens between the jobs is spread over them."""
    with (
        tempfile.TemporaryDirectory() as folder,
        NetworkLab(HOMES) as lab,
        computers(lab, Path(folder), OPERATOR, *LENDERS, *REQUESTERS) as booted,
    ):
        day = Day(lab, booted, Path(folder))
        events = {
            jobs // 6: ("a lender's plug", lambda: day.restart("h2")),
            jobs // 3: ("the seat's plug", day.restart_seat),
            jobs // 2: ("a lender's upgrade", lambda: day.restart("h2", day.newer())),
            2 * jobs // 3: ("a verifier's plug", lambda: day.restart("h3")),
            5 * jobs // 6: ("the relay", day.lose_relay),
        }
        seconds = list[float]()
        for number in range(jobs):
            if number in events:
                what, happens = events[number]
                print(f"before job {number + 1}: {what}", file=sys.stderr)
                happens()
            seconds.append(day.job(number))
            print(f"job {number + 1}: {seconds[-1]:.0f} s, {day.readings[-1]}", file=sys.stderr)
        yield from grown(day.readings, jobs, jobs // 3)
        yield told(f"seconds of one of the {jobs} jobs", sum(seconds) / jobs, "s", "mean; from the command to its end")
        said = day.said + "".join(program.text for program in day.lent.values())
        yield at_most(f"honest lenders slashed in {jobs} jobs", "slashed" in said, "found", 0, "in what lenders said")


def grown(readings: list[Reading], jobs: int, restarted: int) -> Iterator[Row]:
    """What is more after the last job than after the third; of the seat, after the third since its restart."""
    early, late, seat = readings[SETTLED - 1], readings[-1], readings[min(restarted + SETTLED - 1, jobs - 1)]
    what = f"{jobs} jobs (outcome only) of {len(REQUESTERS)} requesters in real time, a lender restarted and upgraded,"
    what += f" verifier and seat restarted, the relay killed; against after {SETTLED}"
    yield at_most("a lender's memory after a day's jobs", late.lender / early.lender, "ratio", GROWN, what)
    yield at_most("all lenders' files after a day's jobs", late.files - early.files, "more files", 0, what)
    yield at_most("all lenders' vouchers after a day's jobs", late.vouchers - early.vouchers, "more files", 0, what)
    since = "of seat, relay and faucet; against after the third job since their restart"
    yield at_most("the operator's memory after a day's jobs", late.seat / seat.seat, "ratio", GROWN, since)
    grows = (late.disk - early.disk) / max(1, jobs - SETTLED)
    yield told("the operator's disk, a job", grows / 1e3, "kB", "the chain keeps what happened; ledger, relay, faucet")

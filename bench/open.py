"""A network among computers that share nothing, by the commands that people type: how long, and what an idle one takes.

    python bench/open.py [--quick] [--part NAME] [--out FILE]      needs root, iproute2, nftables, /dev/net/tun, cc

| part   | measures | minutes |
|--------|----------|---------|
| job    | from nothing to a settled job, an idle lender | 4 |
| many   | ten jobs of one requester, one after the other | 6 |
| lid    | a requester's laptop that is closed in the midst of a run, ten times | 20 |
| chaos  | seeds of tests/computers/chaos.py: who was slashed, what was lost, which job was stuck | 7 |
| relays | the relay that is chosen among four, what it carries, when a bad one is left (open_relays.py) | 4 |
| day    | 40 jobs of 6 requesters with restarts, an upgrade and a lost relay: does anything grow? Of processes in |
|        | real time (open_day.py), of ledger and vouchers in a day of virtual time (open_ledger_day.py) | 20 |

Each part opens a network of its own. `--quick`: one job and an idle lender, with four computers.

Each computer is a set of namespaces with users, processes and a disk of its own (tests/computers), behind a router of
its own: symmetric, port-restricted or full cone, 20/100 Mbit/s, 40 ms. All of them share this machine's cores. The
source tree is bound into each; a wheel holds the same files.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

sys.path.extend(str(Path(__file__).resolve().parents[1] / "tests" / room) for room in ("computers", "netns"))
import chaos
import open_day
import open_ledger_day
import open_relays
from open_day import resident, stored
from reporting import Row, at_most, load, show, told
from separate_computers import Computer, Program, computers

from farflung.local.netlab import EmulatedHome, NatType, NetworkLab, why_not

KINDS: Final = (NatType.SYMMETRIC, NatType.PORT_RESTRICTED, NatType.FULL_CONE)
SECONDS: Final = 60.0  # from nothing to a settled job
AGAIN: Final = 10.0  # after a lid was opened
DAY: Final = 86_400.0
MB: Final = 1e6
TICKS: Final = os.sysconf("SC_CLK_TCK")
LIMIT: Final = 600.0
GROWN: Final = 1.1  # of a lender's memory after many jobs, against after three
SETTLED: Final = 3  # jobs after which nothing is to grow
PARTS: Final = ("job", "many", "lid", "chaos", "relays", "day")


class Size:
    """What a full and a quick run differ in."""

    def __init__(self, quick: bool) -> None:
        self.providers, self.verifiers = (2, 1) if quick else (4, 2)
        self.closures, self.closed = (1, 5.0) if quick else (10, 90.0)
        self.idle = 5.0 if quick else 120.0
        self.jobs = 4 if quick else 10

    @property
    def homes(self) -> list[EmulatedHome]:
        """A home for each lender and the requester, the last."""
        count = self.providers + self.verifiers + 1
        return [EmulatedHome(nat=KINDS[i % len(KINDS)]) for i in range(count)]

    @property
    def job(self) -> str:
        """The job's part of a command line."""
        return f"--preset tiny --set network.providers={self.providers} --set network.verifiers={self.verifiers}"


def rows(size: Size, part: str) -> Iterator[Row]:
    """One network and its first job; then what the part is about."""
    homes = size.homes
    lenders = [f"h{number}" for number in range(1, len(homes))]
    laptop = f"h{len(homes)}"
    with (
        tempfile.TemporaryDirectory() as folder,
        NetworkLab(homes) as lab,
        computers(lab, Path(folder), "s1", *lenders, laptop) as booted,
    ):
        began = time.monotonic()
        invitation, programs = opened(booted, lenders, size)
        run = booted[laptop].start(f"run {size.job} --on {invitation} --yes --out first")
        status = run.wait(LIMIT)
        took = time.monotonic() - began
        if status:
            raise SystemExit(run.text)
        kinds = len({home.nat for home in homes})
        setting = f"{len(homes) + 1} computers on one machine's cores, {kinds} kinds of NAT; one command each"
        match part:
            case "job":
                yield at_most("nothing to a settled tiny job", took, "s", SECONDS, setting)
                yield from idle(lab, booted[lenders[-1]], len(lenders), size.idle)
            case "many":
                yield from many_jobs(booted[laptop], booted[lenders[0]], size)
            case "lid":
                yield from closed_lids(booted[laptop], lab, len(homes), size)
        lost = sum("slashed" in program.text for program in programs)
        yield at_most(f"honest lenders slashed, {part}", lost, "lenders", 0, "in all of the above")


def opened(booted: dict[str, Computer], lenders: Sequence[str], size: Size) -> tuple[str, list[Program]]:
    """The invitation, and the lenders that wait for work."""
    operator = booted["s1"]
    said = operator.start(f"network open net --host {operator.address}").until(lambda text: "Ctrl-C" in text, LIMIT)
    found = re.search(r"farflung1\S+", said)
    assert found is not None
    roles = [""] * size.providers + [" --audit"] * size.verifiers
    lent = [booted[place].start(f"lend {found[0]}{role}") for place, role in zip(lenders, roles, strict=True)]
    for program in lent:
        program.until(lambda text: "waiting" in text, LIMIT)
    return found[0], lent


def idle(lab: NetworkLab, lender: Computer, home: int, seconds: float) -> Iterator[Row]:
    """What a lender takes while it waits for a job, after its first one."""
    time.sleep(5.0)  # the last job is settled
    before, sent, kept = used(lender), carried(lab, home), stored(lender)[1]
    time.sleep(seconds)
    span = f"over {seconds:.0f} s of waiting"
    yield at_most("idle lender, processor", 100 * (used(lender) - before) / seconds, "% of a core", 0.5, span)
    yield at_most("idle lender, memory", resident(lender) / MB, "MB", 120, "resident, shared pages counted")
    yield at_most("idle lender, disk", stored(lender)[1] - kept, "B", 0, f"grown {span}")
    bytes_a_day = (carried(lab, home) - sent) * DAY / seconds
    yield at_most("idle lender, line", bytes_a_day / MB, "MB a day", 20, f"both ways, scaled; {span}")


def used(computer: Computer) -> float:
    """Processor seconds of all processes of a computer."""
    total = 0
    for process in computer.processes():
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        total += int(words[11]) + int(words[12])
    return total / TICKS


def many_jobs(laptop: Computer, lender: Computer, size: Size) -> Iterator[Row]:
    """Jobs of one requester, one after the other: what a lender has more after the last than after the third."""
    found = list[tuple[int, int, int]]()
    for number in range(size.jobs):
        laptop.run(f"run {size.job} --on commons --yes --rounds 1 --seed {10 + number} --out job{number}", LIMIT)
        time.sleep(5.0)  # it is paid, and its folder is gone
        vouchers = sum(1 for path in (lender.disk / "user").rglob("vouchers/*") if path.is_file())
        found.append((resident(lender), stored(lender)[0], vouchers))
    early, late = found[SETTLED - 1], found[-1]
    told = f"{size.jobs} jobs of one round, of one requester, in real time, against after {SETTLED}"
    yield at_most("a lender's memory after many jobs", late[0] / early[0], "ratio", GROWN, told)
    yield at_most("a lender's files after many jobs", late[1] - early[1], "more files", 0, told)
    yield at_most("a lender's vouchers after many jobs", late[2] - early[2], "more files", 0, told)


def chaos_rows(seeds: int = 8) -> Iterator[Row]:
    """Seeds one after the other, each a job; after a fault on a new network."""
    outcomes = list[chaos.Outcome]()
    while len(outcomes) < seeds:
        with tempfile.TemporaryDirectory() as folder, chaos.world(Path(folder)) as world:
            while len(outcomes) < seeds and not world.is_spoiled:
                outcomes.append(world.suffer(len(outcomes) + 1))
                print(outcomes[-1], file=sys.stderr)
    faults = [fault for each in outcomes for fault in each.faults]
    told = f"seeds 1 to {seeds}: kill, cut, move, freeze, full disk, wrong clock, other version, second coordinator"
    cases = {
        "honest nodes slashed": ("slashed", "lost", "accused"),
        "money lost": ("the ledger holds", "locked", "behind its deadline"),
        "jobs stuck": ("stuck", "does not say why"),
    }
    counted = 0
    for case, words in cases.items():
        number = sum(any(word in fault for word in words) for fault in faults)
        counted += number
        yield at_most(f"chaos: {case}", number, "faults", 0, told)
    yield at_most("chaos: other faults", len(faults) - counted, "faults", 0, told)
    yield told_of_wait(outcomes)


def told_of_wait(outcomes: Sequence[chaos.Outcome]) -> Row:
    """How long the slowest job took to its end."""
    longest = max(each.waited for each in outcomes)
    well = sum(each.ended == "ended well" for each in outcomes)
    against = f"{well} of {len(outcomes)} jobs ended well, the others with an error that says why"
    return at_most("chaos: longest wait for a job's end", longest, "s of calm", chaos.CALM_SECONDS, against)


def carried(lab: NetworkLab, home: int) -> int:
    """Bytes on a home's line, both ways."""
    return sum(direction.bytes for direction in lab.counters(home))


def closed_lids(laptop: Computer, lab: NetworkLab, home: int, size: Size) -> Iterator[Row]:
    """The requester's computer stands still with its line cut, again and again, in the midst of a run."""
    rounds = 8 * (size.closures + 1)
    run = laptop.start(f"run {size.job} --on commons --yes --out second --rounds {rounds}")
    run.until(lambda text: done(text) >= 2, LIMIT)
    waits = []
    for _ in range(size.closures):
        laptop.freeze()
        lab.cut(home)
        time.sleep(size.closed)
        lab.restore(home)
        laptop.thaw()
        began, before = time.monotonic(), done(run.text)
        run.until(lambda text, before=before: done(text) >= before + 2, LIMIT)  # the open round, and one more
        waits.append(time.monotonic() - began)
        time.sleep(2.0)
    how = f"laptop closed for {size.closed:.0f} s, {size.closures} times"
    yield at_most(f"{how}: longest wait for two rounds", max(waits), "s", AGAIN, "after it was opened")
    yield told(f"{how}: mean wait for two rounds", sum(waits) / len(waits), "s", "after it was opened")
    if run.wait(LIMIT):
        raise SystemExit(run.text)


def done(text: str) -> int:
    """Rounds that a run's lines tell of."""
    return max((int(found) for found in re.findall(r"^Train +(\d+)/\d+ rounds", text, re.MULTILINE)), default=0)


def main() -> None:
    """Measures, prints, and keeps what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="four computers, one job: a minute")
    parser.add_argument("--part", choices=PARTS, help="only this one")
    parser.add_argument("--out", type=Path, help="add the lines to this file")
    asked = parser.parse_args()
    if why := why_not():
        raise SystemExit(why)
    before = load()
    wanted = (asked.part,) if asked.part else PARTS[:1] if asked.quick else PARTS
    jobs = 6 if asked.quick else 40
    measured = {
        **{part: functools.partial(rows, Size(asked.quick), part) for part in ("job", "many", "lid")},
        "chaos": lambda: chaos_rows(1 if asked.quick else 8),
        "relays": lambda: open_relays.rows(asked.quick),
        "day": lambda: (*open_ledger_day.rows(jobs), *open_day.rows(jobs)),
    }
    for part in wanted:
        for row in measured[part]():
            show("open", row, before, asked.out)


if __name__ == "__main__":
    main()

"""What it costs not to trust one another, what survivors notice of a death, and whether honest work is ever accused.

    python bench/strangers.py [--quick]

One JSON object a line. Costs are shares of processor time, from the `usage` events of the default run and from rounds
of its model measured in one process; gaps come from small runs whose processes are killed; accusations from segments
that peers of other environment classes train. `--quick`: fewer of all, at most 60 s on two idle cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(1, str(Path(__file__).with_suffix("")))
from costs import confined, inside
from deaths import Death, Watched
from honesty import CLASSES, audited
from reporting import Row, at_most, load, show, told

from farflung.ledger.transactions import DAMNING, VerdictFinding
from farflung.verify.audit_verdict import WHOLE

SHARE: Final = 0.15
WORKER_GAP: Final = 1.5  # seconds
REQUESTER_GAP: Final = 5.0
COUNTED_DEAD: Final = 3.0
BACK: Final = 5.0
WORKER: Final = "provider-1 worker"
LONG: Final = 300  # rounds of a run that is stopped when its last victim is back
SERVANTS: Final = ("ledger", "relay", "verifier-0")


class Size(NamedTuple):
    """How much is measured."""

    shares: tuple[str, ...]  # of `farflung run`
    rounds: int  # a worker in each sandbox tier
    deaths: int  # of each kind
    job: int  # rounds of a run in which processes die
    segments: int


FULL: Final = Size((), 6, 5, 120, 10_000)
QUICK: Final = Size(
    (
        "--rounds", "4", "--cheat", "none", "--set", "data.limit=2000000",
        "--set", "evaluate.final_tokens=16384",
        "--set", "network.providers=2", "--set", "network.verifiers=1", "--set", "network.hidden=1",
    ),
    2, 1, 26, 700,
)  # fmt: skip


def job(rounds: int) -> tuple[str, ...]:
    """A run in which processes die: rounds that are short, and long enough to die in."""
    sizes = ("rounds=" + str(rounds), "sync.steps=16", "network.providers=3", "network.hidden=1")
    return ("--preset", "tiny", "--cheat", "none", *(word for s in sizes for word in ("--set", s)))


# Costs


def events_of(arguments: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """All events of an undisturbed run."""
    done = subprocess.run(
        [sys.executable, "-m", "farflung.app.cli.main", "run", "--json", *arguments],
        env={**os.environ, "FARFLUNG_RUNS": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def shares(size: Size, folder: Path) -> Iterator[Row]:
    """Processor time that an honest world would not need, over all of it."""
    spent = Counter[str]()
    for event in events_of(size.shares, folder / "shares"):
        if event["event"] == "usage":
            spent[event["process"]] += event["cpu_seconds"]
    total = sum(spent.values())
    of_run = f"processor time of all processes of the run, {total:.1f} s"
    folder.joinpath("tiers").mkdir()
    walls, own = asyncio.run(confined(folder / "tiers", size.rounds)), inside()
    verifiers = [name for name in spent if name.startswith("verifier")]
    starts = sum(name.endswith(" worker") for name in verifiers) * walls.start
    audit = sum(spent[name] for name in verifiers) / total
    # What is measured against training counts for as much of the run as training is of it.
    trains = sum(spent[name] for name in spent if name.startswith("provider") and name.endswith(" worker")) / total
    hashing, checking = trains * own.hashing / own.training, trains * own.checking / own.training
    slower = trains * (walls.strong / walls.limits - 1.0)
    parts = [
        told("audit", audit, "share", f"{of_run}; verifiers and their workers"),
        told("ledger", spent["ledger"] / total, "share", of_run),
        told("relay", spent["relay"] / total, "share", of_run),
        told("submission checks", checking, "share",
             f"the training of what is checked, times {trains:.2f}, training's share of the run"),
        told("hashing", hashing, "share", f"the training whose borders are hashed, in one process, times {trains:.2f}"),
        told("sandbox", max(0.0, slower), "share",
             f"training in tier limits, times {trains:.2f}; {walls.tier} took {slower:+.4f}, below 0 is noise"),
    ]  # fmt: skip
    yield from parts
    yield told("audit, start of workers", starts / total, "share",
               f"{of_run}; part of audit: {walls.start:.1f} s until a worker can train, once a verifier")  # fmt: skip
    yield at_most("all", sum(row.value for row in parts), "share", SHARE, "the sum of the six above")


# Deaths


def gaps(size: Size, folder: Path) -> Iterator[Row]:
    """Kills, and what the others notice."""
    calm = events_of(job(size.job), folder / "calm")[-1]
    kinds = ("requester", *SERVANTS)
    servants = Watched(job(size.job), folder / "servants", kinds * size.deaths, seed=1)
    status = servants.to_end()
    workers = Watched(job(LONG), folder / "workers", (WORKER,) * size.deaths, seed=2)
    workers.to_end(stop=True)
    yield from worker_rows([d for d in workers.deaths if d.after])
    for name in kinds:
        found = [d for d in servants.deaths if d.name == name and d.after]
        if found:
            yield gap(name, found, REQUESTER_GAP if name == "requester" else None)
    same = status == 0 and servants.result.get("model_hash") == calm["model_hash"]
    told_of = f"a run in which nobody died; {len(servants.deaths)} deaths of {', '.join(kinds)}"
    yield Row("same model after deaths", float(same), "share", 1.0, same, told_of)


def gap(name: str, deaths: Sequence[Death], goal: float | None) -> Row:
    """The worst of them."""
    worst = max(deaths, key=lambda d: d.gap)
    usual = worst.calm[-1] - worst.calm[-2]
    against = f"longest time between two rounds after the death, less the median before it (here about {usual:.2f} s);"
    against += f" worst of {len(deaths)}"
    case, value = f"gap, {name} killed", max(0.0, worst.gap)
    return told(case, value, "s", against) if goal is None else at_most(case, value, "s", goal, against)


def worker_rows(deaths: Sequence[Death]) -> Iterator[Row]:
    """Also when it is left out, and when its replacement is counted."""
    if deaths:
        yield gap("worker", deaths, WORKER_GAP)
    lefts = [d.left - d.at for d in deaths if d.left is not None]
    if lefts:
        yield at_most("dead peer counted", max(lefts), "s", COUNTED_DEAD,
                      f"from the kill to the `left` event; worst of {len(lefts)}")  # fmt: skip
    back = [d.counted - d.joined for d in deaths if d.counted is not None and d.joined is not None]
    if back:
        yield at_most("replacement counted", max(back), "s", BACK,
                      f"from `joined` to the end of the first round that counts it; worst of {len(back)}")  # fmt: skip


# Accusations


def accusations(size: Size) -> Iterator[Row]:
    """Findings about work that is honest."""
    found = list(audited(size.segments))
    guilty = sum(a.found.finding in DAMNING for a in found)
    unpaid = sum(a.found.finding is VerdictFinding.UNPAID for a in found)
    about = f"{len(found)} honest segments in the classes {', '.join(CLASSES)}, limits from each job's profile run"
    yield at_most("false accusations", guilty, "segments", 0, about)
    yield at_most("honest work unpaid", unpaid, "segments", 0, about)
    for kind in CLASSES:
        mine = [a for a in found if a.kind == kind]
        other = sum(a.differs for a in mine) / len(mine)
        worst = max(a.found.excess for a in mine) / WHOLE
        yield told(f"largest distance, {kind}", worst, "tolerances", f"{len(mine)} segments, {other:.0%} of other bits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    size = QUICK if parser.parse_args().quick else FULL
    before = load()
    with tempfile.TemporaryDirectory() as folder:
        for rows in (shares(size, Path(folder)), gaps(size, Path(folder)), accusations(size)):
            for row in rows:
                show("strangers", row, before)


if __name__ == "__main__":
    main()

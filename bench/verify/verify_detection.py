"""Cases of bench/verify.py: who takes a way around the work is found, and who does the work is not accused."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from reporting import Row, at_least, at_most, told
from verify_jobs import OPTIMIZERS, SMALL, chain, profiled

from farflung.core.crypto import digest
from farflung.core.ids import PeerId
from farflung.job.spec import JobSpec
from farflung.ledger.rules.slashes import EXCESS_FALSE
from farflung.train.shortcuts import SHORTCUTS, apart
from farflung.verify import audit_sample

SEEDS = 30
PEER = PeerId(bytes(32))
VECTORS = ("avx512", "avx2", "default")  # ATEN_CPU_CAPABILITY: an older processor, as far as torch's own kernels go
HONEST = (57, 16)  # seeds, and segments of each: 10,032 comparisons in 11 classes other than the first
FALSE = EXCESS_FALSE / 1000


class Seen(NamedTuple):
    """A shortcut in one segment of one seed: the worst tensor in tolerances, the median tensor of the weights."""

    excess: float
    median: float


def detection(quick: bool) -> Iterator[Row]:
    """Each shortcut in the third segment of a peer's run, seed after seed, held to that seed's own profile."""
    seeds = range(3 if quick else SEEDS)
    seen: dict[str, list[Seen]] = {name: [] for name in SHORTCUTS}
    for seed in seeds:
        spec = msgspec.structs.replace(SMALL, seed=seed, optimizer=OPTIMIZERS[seed % len(OPTIMIZERS)])
        found = profiled(spec)
        *_, (segment, right) = chain(found.job, 3)
        for name, shortcut in SHORTCUTS.items():
            distances = apart(segment, right, shortcut.play(segment).end)
            weights = dict(distances)["params"]
            seen[name].append(Seen(found.excess(distances), statistics.median(weights)))
    count = len(segment.steps)
    for name, rows in seen.items():
        saved = f"saves {SHORTCUTS[name].saved(SMALL, count):.0%}"
        share = sum(row.excess > FALSE for row in rows) / len(rows)
        yield at_least(f"found when drawn, {name}", share, "", 0.99, f"{len(rows)} seeds, {saved}")
        least, median = min(row.excess for row in rows), statistics.median(row.median for row in rows)
        about = f"beyond {FALSE:g} is slashed; the median tensor of the weights lies {median:.2g} apart"
        yield told(f"least excess, {name}", least, "tolerances", about)
    yield from rounds(seen, SMALL)


def rounds(seen: dict[str, list[Seen]], spec: JobSpec) -> Iterator[Row]:
    """Rounds until a draw (verify.audit_sample) opens a spoiled segment, for the seeds that are found when drawn."""
    for spoiled in (spec.segments, 1):
        taken = [
            caught(spec, name, seed, spoiled)
            for name, rows in seen.items()
            for seed, row in enumerate(rows)
            if row.excess > FALSE
        ]
        predicted = spec.segments / (spec.audit.rate * spoiled)
        yield told(
            f"rounds to catch, {spoiled} of {spec.segments} segments spoiled", statistics.mean(taken), "rounds",
            f"{len(taken)} cheats and seeds; 1 / (rate x share) = {predicted:.1f}, standard error "
            f"{predicted / len(taken) ** 0.5:.2f}",
        )  # fmt: skip


def caught(spec: JobSpec, name: str, seed: int, spoiled: int) -> int:
    """The round, from 1, in which a segment below `spoiled` is drawn; nobody is on probation."""
    round = 0
    while True:
        luck = digest("farflung/bench/1", name.encode(), bytes([seed, spoiled]), round.to_bytes(8, "little"))
        round += 1
        known = [(PEER, spec.audit.probation)]
        if any(drawn.segment < spoiled for drawn in audit_sample.draw(spec.audit, spec.segments, luck, known)):
            return round


def honest(quick: bool) -> Iterator[Row]:
    """The same segments from the same states in every class: threads, vector instructions, oneDNN, other roundings."""
    seeds, count = (1, 4) if quick else HONEST
    instructions = VECTORS[:2] if quick else VECTORS
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        worker(VECTORS[0], "make", folder, seeds, count)
        for isa in instructions:
            for line in worker(isa, "again", folder, seeds).splitlines():
                row = json.loads(line)
                found.setdefault(f"{isa}, {row['class']}", []).append(row)
    found.pop(f"{VECTORS[0]}, 1 thread")  # what the others are held against
    yield from judged(found, seeds)


def judged(found: dict[str, list[dict[str, float]]], seeds: int) -> Iterator[Row]:
    """What would have been said of these honest segments."""
    rows = [row for each in found.values() for row in each]
    about = f"{len(rows)} honest segments of {seeds} seeds in {len(found)} classes"
    verdicts = Counter("false" if r["excess"] > FALSE else "unpaid" if r["excess"] > 1 else "holds" for r in rows)
    yield at_most("false slashes", verdicts["false"], "segments", 0, about)
    yield at_most("honest and unpaid", verdicts["unpaid"], "segments", 0, about)
    yield told("farthest honest segment", max(r["excess"] for r in rows), "tolerances", about)
    beyond = sum(r["noise"] > 4 for r in rows)
    yield told("beyond four times the profile", beyond, "segments", "what a margin of 4 without a floor would not pay")
    yield told("farthest, against the profile", max(r["noise"] for r in rows), "x", "its largest honest distance")
    for name, each in found.items():
        share = sum(r["noise"] > 0 for r in each) / len(each)
        yield told(f"other bits, {name}", share, "", f"{len(each)} segments")


def worker(isa: str, what: str, folder: str, *counts: int) -> str:
    """Runs verify_honest.py with these vector instructions; NumPy's threads would only wait for each other."""
    script = Path(__file__).parent / "verify_honest.py"
    set_to = {"ATEN_CPU_CAPABILITY": isa, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(script), what, folder, *map(str, counts)]
    done = subprocess.run(command, env=os.environ | set_to, check=True, capture_output=True, text=True)
    return done.stdout

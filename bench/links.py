"""Four workers behind links of 100 Mbit/s: seconds a step and bytes on the wire, ours beside torch's own.

    python bench/links.py [--quick] [--cases NAME ...] [--rate 100mbit] [--delay MS] [--also SCRIPT:MODE ...]
                          [--out FILE]

Each worker has a network namespace and one thread; a byte-level GPT of 1.9 M parameters on this Python's own sources.
Yardsticks of the same run: torch's DDP over gloo, dense, with links that are not shaped (first and last, so that a
drift of the machine shows), and our own `Dense` over unshaped links. farflung's workers talk over its own group:
TLS 1.3 between public keys. Seconds a step are the median over blocks of EVERY steps (a round), after a first one
that does not count. Bytes are the interface's own counters, headers and all, mean over workers.

`--also`: another system in the same links: a script that takes MODE and STEPS, reads RANK, WORLD, IP and OUT, and
writes OUT/w<RANK>.jsonl with a line {"event": "step", "t", "tx", "rx", "loss"} a step.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from namespaces import DEVICE, Links, why_not
from reporting import Row, at_most, load, show, told

from farflung.compress import kernels

WORKERS: Final = 4
HERE: Final = Path(__file__).resolve().parent
FREE: Final = ""
GOAL: Final = 1.05  # of a dense step over free links
AGREEMENT: Final = 0.05  # between the library's bytes and the interface's
OTHERS: Final = ("hivemind", "torchft", "flwr")
YARDSTICK: Final = "DDP dense, free"
OWN: Final = "farflung dense, free"


class Case(NamedTuple):
    """One system over one kind of link."""

    name: str
    mode: str  # of bench/links_worker.py, or of another script
    shaped: bool
    script: Path = HERE / "links_worker.py"


CASES: Final = (
    Case(YARDSTICK, "ddp-dense", False),
    Case(OWN, "farflung-Dense", False),
    Case("DDP dense", "ddp-dense", True),
    Case("DDP PowerSGD rank 4", "ddp-powersgd", True),
    Case("MuLoCo", "farflung-MuLoCo", True),
    Case("SparseLoCo", "farflung-SparseLoCo", True),
    Case("DiLoCo, one round of delay", "farflung-DiLoCo", True),
    Case("MuLoCo, alone", "farflung-MuLoCo-alone", False),
    Case("SparseLoCo, alone", "farflung-SparseLoCo-alone", False),
    Case(f"{YARDSTICK}, again", "ddp-dense", False),
)


class Seen(NamedTuple):
    """What a case gave, after its first block."""

    seconds: float  # a step
    up: float  # bytes a worker and step at the interface
    down: float
    counted: float  # bytes both ways that the library reported, 0 if it reports none
    payload: float  # bytes of a worker's contribution to a round, 0 if not told
    period: float  # steps of a round
    held: float
    parameters: int


def run(case: Case, rate: str, delay: float, steps: int, every: int, limit: float) -> Seen:
    """Makes the links, starts the workers, waits, and reads what they wrote."""
    with tempfile.TemporaryDirectory() as folder, Links(WORKERS, rate, delay) as links:
        workers = []
        try:
            for rank in range(WORKERS):
                out = open(Path(folder, f"w{rank}.out"), "w")  # noqa: SIM115 - closed with the folder's processes
                command = [sys.executable, str(case.script), case.mode, str(steps), str(every)]
                workers.append(links.start(rank, command, _environment(links, rank, folder), out))
                out.close()
            _wait(workers, time.monotonic() + limit)
        finally:
            _end(workers)
        bad = [rank for rank, worker in enumerate(workers) if worker.returncode]
        bad.sort(key=lambda rank: workers[rank].returncode == -signal.SIGKILL)  # those that we ended, last
        if bad:
            tail = Path(folder, f"w{bad[0]}.out").read_text()[-3000:]
            raise SystemExit(f"{case.name}: worker {bad[0]} ended with {workers[bad[0]].returncode}\n{tail}")
        lines = [Path(folder, f"w{rank}.jsonl").read_text().splitlines() for rank in range(WORKERS)]
    return _seen([[json.loads(line) for line in one] for one in lines], every)


def _environment(links: Links, rank: int, folder: str) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank), "WORLD": str(links.count), "IP": links.address(rank), "OUT": folder,
        "MASTER_ADDR": links.address(0), "MASTER_PORT": "29511", "GLOO_SOCKET_IFNAME": DEVICE,
        "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip


def _wait(workers: list[subprocess.Popen[str]], until: float) -> None:
    """Returns when all have ended, when one failed, or at the limit."""
    while any(worker.poll() is None for worker in workers) and time.monotonic() < until:
        if any(worker.returncode for worker in workers):
            time.sleep(2.0)  # the others say their part
            return
        time.sleep(0.1)


def _end(workers: list[subprocess.Popen[str]]) -> None:
    for worker in workers:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def _seen(workers: list[list[dict[str, Any]]], every: int) -> Seen:
    steps = [[line for line in lines if line["event"] == "step"] for lines in workers]
    ends = steps[0][every - 1 :: every]  # the last step of each block
    blocks = [(b["t"] - a["t"]) / every for a, b in itertools.pairwise(ends)]
    count = (len(ends) - 1) * every
    last = every - 1 + count

    told = [line for lines in workers for line in lines if "up" in line]
    if told:  # every round is as long as every other: from the first step until the last exchange has ended
        count = len(steps[0])
        spans = [(_event(lines, "ready"), _event(lines, "closed")) for lines in workers]
    else:
        spans = [(s[every - 1], s[last]) for s in steps]
    up, down = (statistics.mean(b[way] - a[way] for a, b in spans) / count for way in ("tx", "rx"))
    counted = sum(line["up"] + line["down"] for line in told) / WORKERS / count
    payload = statistics.mean(line["payload"] for line in told) if told else 0.0
    period = count * WORKERS / max(1, len(told))
    held = next((line["held"] for line in workers[0] if "held" in line), float("nan"))
    size = next((line["parameters"] for line in workers[0] if "parameters" in line), 0)
    return Seen(statistics.median(blocks), up, down, counted, payload, period, held, size)


def _event(lines: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(line for line in lines if line["event"] == name)


def speeds(found: dict[str, tuple[Case, Seen]]) -> list[Row]:
    """Seconds a step, and their ratio to a dense step over free links."""
    rows = []
    for name, (case, seen) in found.items():
        link = "links shaped" if case.shaped else "links not shaped"
        if case.mode.startswith("farflung"):
            link += ", kernels " + ("compiled" if kernels.installed() else "of NumPy")
        rows.append(told(f"{name}: a step", seen.seconds, "s", f"{link}; held-out loss {seen.held:.3f}"))
        for yardstick in (YARDSTICK, OWN):
            if not case.shaped or yardstick not in found:
                continue
            base = found[yardstick][1].seconds
            case_name, against = f"{name}: against {yardstick}", f"{base:.3f} s a step in the same run"
            ratio = seen.seconds / base
            is_ours = case.mode.startswith("farflung")
            rows.append(
                at_most(case_name, ratio, "ratio", GOAL, against)
                if is_ours
                else told(case_name, ratio, "ratio", against)
            )
    return rows


def wire(found: dict[str, tuple[Case, Seen]]) -> list[Row]:
    """Bytes up and down, their ratio to a bf16 ring all-reduce at the same N, and the literature's ratio."""
    rows = []
    for name, (_, seen) in found.items():
        ring = 2 * (WORKERS - 1) / WORKERS * 2 * seen.parameters
        against = f"bf16 ring all-reduce of {WORKERS}, each step: {ring:.0f} B up, as many down"
        rows += [
            told(f"{name}: bytes up a peer and step", seen.up, "B", against),
            told(f"{name}: bytes down a peer and step", seen.down, "B", against),
            told(f"{name}: fewer bytes than the ring", ring / max(seen.up, seen.down, 1.0), "ratio", against),
        ]
        if seen.payload:
            literature = 4 * seen.parameters / (seen.payload / seen.period)
            rows.append(
                told(
                    f"{name}: as in the literature",
                    literature,
                    "ratio",
                    f"one peer's payload of {seen.payload:.0f} B, one way, every {seen.period:g} steps; fp32 each step",
                )
            )
        if seen.counted:
            off = abs(seen.counted / (seen.up + seen.down) - 1.0)
            rows.append(
                at_most(
                    f"{name}: the library's own count of bytes is off by",
                    off,
                    "share",
                    AGREEMENT,
                    f"the interface's counters: {seen.up + seen.down:.0f} B a step both ways",
                )
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 rounds of 10 steps instead of 7 of 20")
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in CASES], help="only these")
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--delay", type=float, default=0.0, help="ms on each worker's way out; needs netem")
    parser.add_argument("--also", nargs="*", default=[], metavar="SCRIPT:MODE")
    parser.add_argument("--out", type=Path, help="a results file to add to")
    asked = parser.parse_args()
    if reason := why_not():
        sys.stderr.write(f"skipped: {reason}\n")
        return
    for other in OTHERS:
        if importlib.util.find_spec(other) is None:
            sys.stderr.write(
                f"{other}: not installed; see bench/results/README.md for figures of another day\n"
            )
    every, rounds = (10, 3) if asked.quick else (20, 7)
    before = load()
    cases = [case for case in CASES if not asked.cases or case.name in asked.cases]
    for also in asked.also:
        script, _, mode = also.partition(":")
        cases.append(Case(f"{Path(script).stem} {mode}", mode, True, Path(script).resolve()))
    found: dict[str, tuple[Case, Seen]] = {}
    for case in cases:
        rate, delay = (asked.rate, asked.delay) if case.shaped else (FREE, 0.0)
        sys.stderr.write(f"{case.name} ...\n")
        found[case.name] = case, run(case, rate, delay, every * rounds, every, 60.0 + 6.0 * every * rounds)
    for row in [*speeds(found), *wire(found)]:
        show("links", row, before, asked.out)


if __name__ == "__main__":
    main()

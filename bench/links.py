"""Four workers behind links of 100 Mbit/s: seconds a step and bytes on the wire, ours beside torch's own.

    python bench/links.py [--quick | --bytes] [--cases NAME ...] [--rate 100mbit] [--delay MS]
                          [--others SYSTEM=PYTHON ...] [--also SCRIPT:MODE ...] [--out FILE]

Each worker has a network namespace and one thread; a byte-level GPT of 1.9 M parameters on this Python's own sources.
Yardsticks of the same run are dense steps over links that are not shaped, by torch's DDP over gloo and by our own
group, with AdamW and with Muon: what a method computes beside the wire is its inner optimizer's, whatever the link.
DDP's AdamW step comes first and last, so that a drift of the machine shows. farflung's workers talk over its own group:
TLS 1.3 between public keys. Seconds a step are the median over blocks of EVERY steps (a round), after a first one that
does not count. Bytes are the interface's own counters, headers and all, mean over workers.

`--others`: torchft, hivemind and Flower in the same links (links_others.py), where an interpreter has them beside torch
and farflung: `torchft=PATH hivemind=PATH flwr=PATH`; without it, this one if they are installed here.
`--also`: any other system: a script that takes MODE, STEPS and EVERY, reads RANK, WORLD, IP and OUT, and writes
OUT/w<RANK>.jsonl with a line {"event": "step", "t", "tx", "rx", "loss"} a step.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(1, str(Path(__file__).with_suffix("")))
import links_others
from links_others import Failed
from links_shaped import DEVICE, HUB, Links, address, why_not
from reporting import Row, at_most, load, show, told

from farflung.compress import kernels

WORKERS: Final = 4
HERE: Final = Path(__file__).resolve().with_suffix("")
WORKER: Final = HERE / "links_worker.py"
FREE: Final = ""
GOAL: Final = 1.05  # of a dense step over free links
AGREEMENT: Final = 0.05  # between the library's bytes and the interface's
ADAMW, MUON = "AdamW", "Muon"  # inner optimizers
TORCH: Final = {ADAMW: "DDP dense, free", MUON: "DDP dense with Muon, free"}  # dense steps of torch's DDP
OWN: Final = {ADAMW: "farflung dense, free", MUON: "farflung dense with Muon, free"}  # and of our own
ALONE: Final = ", alone"  # after a case's name: the same work without a group


class Case(NamedTuple):
    """One system over one kind of link."""

    name: str
    mode: str  # of bench/links/links_worker.py, or of another script
    shaped: bool
    inner: str = ADAMW
    script: Path = WORKER
    system: str = ""  # of links_others
    is_slow: bool = False  # its steps take seconds: fewer rounds
    python: str = sys.executable

    @property
    def is_ours(self) -> bool:
        """Whether farflung does it."""
        return self.script == WORKER and self.mode.startswith("farflung")


CASES: Final = (
    Case(TORCH[ADAMW], "ddp-dense", False),
    Case(TORCH[MUON], "ddp-muon", False, MUON),
    Case(OWN[ADAMW], "farflung-Dense", False),
    Case(OWN[MUON], "farflung-DenseMuon", False, MUON),
    Case("DDP dense", "ddp-dense", True),
    Case("DDP PowerSGD rank 4", "ddp-powersgd", True),
    Case("MuLoCo", "farflung-MuLoCo", True, MUON),
    Case("SparseLoCo", "farflung-SparseLoCo", True),
    Case("DiLoCo, one round of delay", "farflung-DiLoCo", True),
    Case(f"MuLoCo{ALONE}", "farflung-MuLoCo-alone", False, MUON),
    Case(f"SparseLoCo{ALONE}", "farflung-SparseLoCo-alone", False),
    Case(f"{TORCH[ADAMW]}, again", "ddp-dense", False),
)
OTHERS: Final = (
    Case("torchft DDP", "torchft-ddp", True, system="torchft"),
    Case("torchft DiLoCo", "torchft-diloco", True, system="torchft"),
    Case("hivemind synchronous, fp16", "hivemind-fp16", True, system="hivemind", is_slow=True),
    Case("hivemind local updates, fp16", "hivemind-local", True, system="hivemind"),
    Case("Flower FedAvg", "flwr-fedavg", True, system="flwr", is_slow=True),
)
SYSTEMS: Final = tuple(dict.fromkeys(case.system for case in OTHERS))
FULL, QUICK, BRIEF = (20, 7), (10, 3), (4, 3)  # steps of a round, rounds
SLOW: Final = 20, 3


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


def run(case: Case, rate: str, delay: float, steps: int, every: int, limit: float, *, plain: bool = False) -> Seen:
    """Makes the links, starts the workers, waits, and reads what they wrote. `plain`: ours does not compile kernels."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hosts = folder / "hosts" if case.system else None
        with Links(WORKERS, rate, delay, hub=bool(case.system), hosts=hosts) as links:
            more = {"STEPS": str(steps), "EVERY": str(every), "PLAIN": "1" if plain else ""}
            started: list[subprocess.Popen[str]] = []
            try:
                if case.system:
                    hub = links_others.start(
                        case.system, case.python, links, _environment(links, HUB, folder, more), folder
                    )
                    more.update(hub.environment)
                    started.append(hub.process)
                workers = [_worker(case, links, rank, folder, more) for rank in range(WORKERS)]
                started += workers
                # Flower's nodes do not end: its run does
                ending = [hub.process] if case.system == "flwr" else workers
                _wait(ending, time.monotonic() + limit)
            finally:
                _end(started)
        _complain(case.name, ending, folder)
        lines = [(folder / f"w{rank}.jsonl").read_text().splitlines() for rank in range(WORKERS)]
    return _seen([[json.loads(line) for line in one] for one in lines], every)


def _worker(case: Case, links: Links, rank: int, folder: Path, more: Mapping[str, str]) -> subprocess.Popen[str]:
    command = [case.python, str(case.script), case.mode, more["STEPS"], more["EVERY"]]
    other = links_others.worker(case.system, case.python, rank) if case.system else None
    with (folder / f"w{rank}.out").open("w") as out:
        return links.start(rank, other or command, _environment(links, rank, folder, more), out)


def _environment(links: Links, rank: int, folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank), "WORLD": str(links.count), "IP": address(rank), "OUT": str(folder),
        "MASTER_ADDR": address(0), "MASTER_PORT": "29511", "GLOO_SOCKET_IFNAME": DEVICE,
        "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        **more,
    }  # fmt: skip


def _complain(name: str, ending: list[subprocess.Popen[str]], folder: Path) -> None:
    """Raises Failed with what a process said last that failed, or did not end in time."""
    bad = [at for at, process in enumerate(ending) if process.returncode]
    bad.sort(key=lambda at: ending[at].returncode == -signal.SIGKILL)  # those that we ended, last
    if bad:
        is_hub = len(ending) == 1
        tail = (folder / ("hub.out" if is_hub else f"w{bad[0]}.out")).read_text()[-3000:]
        who = "the hub" if is_hub else f"worker {bad[0]}"
        raise Failed(f"{name}: {who} ended with {ending[bad[0]].returncode}\n{tail}")


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
    """Seconds a step, and their ratio to dense steps over free links."""
    rows = []
    for name, (case, seen) in found.items():
        link = "links shaped" if case.shaped else "links not shaped"
        if case.is_ours:
            link += ", kernels " + ("compiled" if kernels.installed() else "of NumPy")
        rows.append(told(f"{name}: a step", seen.seconds, "s", f"{link}; held-out loss {seen.held:.3f}"))
        if case.shaped:
            inner = dict.fromkeys((case.inner, ADAMW))  # its own, and what most people train with
            bases = [table[optimizer] for table in (OWN, TORCH) for optimizer in inner]
            rows += [_ratio(name, case, seen, *found[base]) for base in (*bases, f"{name}{ALONE}") if base in found]
    return rows


def _ratio(name: str, case: Case, seen: Seen, base: Case, base_seen: Seen) -> Row:
    """A step over a base's. Goals are for steps that compute the same: ours, by the base's inner optimizer."""
    row = f"{name}: against {base.name}"
    ratio, against = seen.seconds / base_seen.seconds, f"{base_seen.seconds:.3f} s a step in the same run"
    if base.name.endswith(ALONE):
        return told(row, ratio, "ratio", f"{against}: the same work without a group")
    if case.inner != base.inner:
        return told(row, ratio, "ratio", f"{against}, by {base.inner} instead of {case.inner}: no goal")
    if not case.is_ours:
        return told(row, ratio, "ratio", against)
    return at_most(row, ratio, "ratio", GOAL, against)


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 rounds of 10 steps instead of 7 of 20")
    parser.add_argument("--bytes", action="store_true", help="bytes alone: 3 rounds of 4 steps, nothing compiled")
    parser.add_argument("--cases", nargs="*", metavar="CASE", help="only these, by name")
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--delay", type=float, default=0.0, help="ms on each worker's way out; needs netem")
    parser.add_argument("--others", nargs="*", default=[], metavar="SYSTEM=PYTHON")
    parser.add_argument("--also", nargs="*", default=[], metavar="SCRIPT:MODE")
    parser.add_argument("--out", type=Path, help="a results file to add to")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # namespaces are taken down
    if reason := why_not():
        sys.stderr.write(f"skipped: {reason}\n")
        return
    cases = [*CASES, *_others(asked.others), *_also(asked.also)]
    names = [case.name for case in cases]
    if unknown := [name for name in asked.cases or () if name not in names]:
        parser.error(f"no case {unknown[0]!r}; there are: {', '.join(names)}")
    before = load()
    found: dict[str, tuple[Case, Seen]] = {}
    for case in cases:
        if asked.cases is not None and case.name not in asked.cases:
            continue
        every, rounds = BRIEF if asked.bytes else QUICK if asked.quick else SLOW if case.is_slow else FULL
        rate, delay = (asked.rate, asked.delay) if case.shaped else (FREE, 0.0)
        sys.stderr.write(f"{case.name} ...\n")
        try:
            limit = 1200.0 if case.is_slow else 300.0 + 8.0 * every * rounds
            seen = run(case, rate, delay, every * rounds, every, limit, plain=asked.bytes)
        except Failed as error:
            if not case.system:
                raise SystemExit(str(error)) from None
            sys.stderr.write(f"{error}\n{case.name}: left out\n")  # ours are told all the same
            continue
        found[case.name] = case, seen
    for row in [*([] if asked.bytes else speeds(found)), *wire(found)]:
        show("links", row, before, asked.out)


def _others(said: list[str]) -> list[Case]:
    """The cases of the systems that some interpreter here has."""
    pythons = dict(one.partition("=")[::2] for one in said)
    if unknown := set(pythons) - set(SYSTEMS):
        raise SystemExit(f"--others: no system {min(unknown)!r}; there are: {', '.join(SYSTEMS)}")
    for system in SYSTEMS:
        if system not in pythons and importlib.util.find_spec(system) is not None:
            pythons[system] = sys.executable
        if system not in pythons:
            sys.stderr.write(f"{system}: not installed; see bench/results/README.md\n")
    # absolute, but not resolved: a virtual environment's interpreter is a link
    return [case._replace(python=os.path.abspath(pythons[case.system])) for case in OTHERS if case.system in pythons]


def _also(said: list[str]) -> list[Case]:
    """Scripts of other systems that need nothing beside their workers."""
    split = [also.partition(":") for also in said]
    return [Case(f"{Path(script).stem} {mode}", mode, True, script=Path(script).resolve()) for script, _, mode in split]


if __name__ == "__main__":
    main()

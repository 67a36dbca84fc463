"""Loss against bytes for every method of the shelf and for dense AdamW and Muon, at equal tokens (T1, T2, T5).

Four simulated peers train the same byte-level GPT on the same batches, with the codecs, merge and outer steps of the
product; payload bytes are those of the real encoder. Every method has the same tuning budget: each learning rate of
its grid (RATES, all committed before the runs), one seed, all steps; the best one is run with the other seeds. Runs
that are in the results file are not run again, so that it can be stopped and started at will, or spread over
machines:

    python bench/train.py --out bench/results/train.jsonl [--jobs 2]     all that is missing, in the background if you
    like python bench/train.py --table bench/results/train.jsonl              the table, as JSON lines python
    bench/train.py --quick                                        two methods, few steps: does it work at all
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from reporting import Row, load, machine, show, told

from farflung.core.layout import Float32
from farflung.job.io.read import read_dataset
from farflung.job.load import load as load_job
from farflung.job.spec import JobSpec
from farflung.train import local, together
from farflung.train.together import Together

PEERS: Final = 4
STEPS: Final = 2000
SEEDS: Final = (1, 2, 3)
EVALUATIONS: Final = 10
TOKENS, FINAL_TOKENS = 16_384, 131_072
MODEL: Final = {
    "model.layers": "5", "model.width": "128", "model.heads": "4", "model.context": "64", "batch": "2",
    "schedule.warmup": "60", "schedule.final": "0.05",
}  # fmt: skip


class Entry(NamedTuple):
    """One method as flags of a job file. `rates`: learning rates, as many for everybody."""

    flags: dict[str, str]
    rates: tuple[float, ...]
    is_alone: bool = False  # one machine on all peers' batches: what dense synchronisation computes
    phases: int = 1  # rounds of one step; a step is made on as many batches, each so much smaller


def of(method: str, **flags: str) -> dict[str, str]:
    """A method of the shelf and what of it is set, as `section__key`."""
    return {"sync.method": method} | {key.replace("__", "."): value for key, value in flags.items()}


ADAM, MUON = (1.5e-3, 3e-3, 6e-3), (4e-3, 8e-3, 1.6e-2)
METHODS: Final[dict[str, Entry]] = {
    "AdamW dense": Entry(of("local_sgd"), ADAM, True),
    "Muon dense": Entry(of("local_sgd", optimizer__name="muon", optimizer__momentum="0.95"), MUON, True),
    "MuLoCo, H 12, 2-bit": Entry(of("muloco", sync__steps="12"), MUON),
    "MuLoCo, H 30, top 256": Entry(
        of("muloco", sync__steps="30", sync__codec="topk", sync__topk="256"), MUON
    ),
    "SparseLoCo, H 15, top 64": Entry(of("sparse_loco", sync__steps="15"), ADAM),
    "DiLoCo, H 15, fp32": Entry(of("diloco", sync__steps="15"), ADAM),
    "LocalSGD, H 15, fp32": Entry(of("local_sgd", sync__steps="15"), ADAM),
    "DeMo, top 32": Entry(of("demo"), (3e-4, 1e-3, 3e-3)),
    "DGC, 0.1 %": Entry(of("dgc", sync__warmup_rounds="200"), (0.05, 0.1, 0.2)),
    "PowerSGD, rank 4": Entry(of("powersgd", batch="1"), ADAM, phases=2),
}


class Run(NamedTuple):
    """One training to the end."""

    method: str
    rate: float
    seed: int


def spec_of(run: Run, steps: int) -> JobSpec:
    """The job of a run."""
    entry = METHODS[run.method]
    flags = MODEL | entry.flags | {"seed": str(run.seed), "optimizer.lr": repr(run.rate)}
    local_steps = load_job(None, flags=flags).spec.sync.steps
    rounds = max(1, round(steps * entry.phases / local_steps))
    return load_job(None, flags=flags | {"rounds": str(rounds)}).spec


def measure(run: Run, steps: int) -> dict[str, Any]:
    """Trains; the loss at the end and on the way, and what one peer sent."""
    torch.set_num_threads(1)
    spec, began, busy = spec_of(run, steps), time.process_time(), load()
    data = read_dataset(spec.data, spec.model, Path())
    curve: list[tuple[int, int, float]] = []
    net = Together.of(spec, data, PEERS)
    every = max(1, spec.rounds // EVALUATIONS)
    if METHODS[run.method].is_alone:
        final, curve = _alone(net, every)
    else:
        for round in range(spec.rounds):
            net.round()
            if (round + 1) % every == 0:
                curve.append(((round + 1) * spec.sync.steps, net.sent, net.heldout(TOKENS)))
        final = net.heldout(FINAL_TOKENS)
    return {
        "method": run.method, "rate": run.rate, "seed": run.seed, "steps": spec.steps, "peers": PEERS,
        "parameters": net.job.model.layout.size, "tokens": spec.steps * PEERS * spec.batch * spec.model.context,
        "loss": final, "payload_bytes": net.sent, "curve": curve, "rounds": spec.rounds,
        "cpu_seconds": round_(time.process_time() - began), "machine": machine(), "load": busy,
    }  # fmt: skip


def round_(value: float) -> float:
    """To one decimal."""
    return round(value, 1)


def _alone(net: Together, every: int) -> tuple[float, list[tuple[int, int, float]]]:
    """Dense synchronisation sends 4 bytes a parameter and step."""
    job, curve = net.job, list[tuple[int, int, float]]()
    at = local.alone(job.model, job.spec, net.public.params)
    params: Float32 = np.asarray(at.params)
    for until in range(every * job.spec.sync.steps, job.spec.steps + 1, every * job.spec.sync.steps):
        at = local.baseline(job.model, job.spec, job.data.train, at, PEERS, until, lambda: None)
        params = at.params
        curve.append((until, until * 4 * job.model.layout.size, together.heldout(job, params, TOKENS)))
    at = local.baseline(job.model, job.spec, job.data.train, at, PEERS, job.spec.steps, lambda: None)
    net.sent = job.spec.steps * 4 * job.model.layout.size
    return together.heldout(job, at.params, FINAL_TOKENS), curve


def done(out: Path) -> list[dict[str, Any]]:
    """What a results file holds."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def wanted(rows: list[dict[str, Any]], only: list[str]) -> Iterator[Run]:
    """All runs that the table needs and the results lack: first every rate, then the best rate's other seeds."""
    have = {(r["method"], r["rate"], r["seed"]) for r in rows}
    names = [name for name in METHODS if not only or name in only]
    for name in names:
        for rate in METHODS[name].rates:
            if (name, rate, SEEDS[0]) not in have:
                yield Run(name, rate, SEEDS[0])
    for name in names:
        best = best_rate(rows, name)
        for seed in SEEDS[1:]:
            if best is not None and (name, best, seed) not in have:
                yield Run(name, best, seed)


def best_rate(rows: list[dict[str, Any]], name: str) -> float | None:
    """The rate of a method's grid with the least loss of the first seed; None until all of them were run."""
    tried = {r["rate"]: r["loss"] for r in rows if r["method"] == name and r["seed"] == SEEDS[0]}
    if not set(METHODS[name].rates) <= set(tried):
        return None
    return min(METHODS[name].rates, key=lambda rate: tried[rate])


def table(rows: list[dict[str, Any]]) -> Iterator[Row]:
    """Loss of each method over its seeds, against the best dense one, and its bytes."""
    losses: dict[str, float] = {}
    for name in METHODS:
        best = best_rate(rows, name)
        seeds = [r["loss"] for r in rows if r["method"] == name and r["rate"] == best]
        if best is not None and seeds:
            losses[name] = statistics.mean(seeds)
            spread = max(seeds) - min(seeds)
            yield told(
                f"{name}: loss",
                losses[name],
                "nats per byte",
                f"{len(seeds)} seeds, lr {best:g}, spread {spread:.3f}",
            )
    dense = min((losses[n] for n, e in METHODS.items() if e.is_alone and n in losses), default=None)
    for name, loss in losses.items():
        row = next(r for r in rows if r["method"] == name)
        steps = row["steps"] / METHODS[name].phases
        full = 4.0 * row["parameters"] * steps
        ring = 2.0 * (PEERS - 1) / PEERS * 2 * row["parameters"] * steps
        if dense is not None:
            yield told(
                f"{name}: loss above the best dense run", 100 * (loss / dense - 1), "%", f"{dense:.4f} nats"
            )
        yield told(
            f"{name}: one-way payload ratio, as in the literature",
            full / row["payload_bytes"],
            "times fewer bytes",
            "fp32 gradient each step",
        )
        if not METHODS[name].is_alone:
            wire = (PEERS - 1) * row["payload_bytes"]
            yield told(
                f"{name}: received by a peer",
                ring / wire,
                "times fewer bytes",
                f"bf16 ring all-reduce, N = {PEERS}",
            )


def main() -> None:
    """Runs what is missing, or prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("bench/results/train.jsonl"))
    parser.add_argument("--table", type=Path, help="a results file")
    parser.add_argument("--only", action="append", default=[], help="a method, by its name in the table")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("METHOD", "RATE", "SEED"), help="one run, printed")
    options = parser.parse_args()
    if options.table:
        for row in table(done(options.table)):
            show("train", row, load())
        return
    if options.one:
        run = Run(options.one[0], float(options.one[1]), int(options.one[2]))
        sys.stdout.write(json.dumps(measure(run, options.steps)) + "\n")
        return
    if options.quick:
        for name in ("AdamW dense", next(n for n, e in METHODS.items() if not e.is_alone)):
            found = measure(Run(name, METHODS[name].rates[0], 1), 60)
            show(
                "train",
                told(f"{name}: loss after {found['steps']} steps", found["loss"], "nats per byte", ""),
                load(),
            )
        return
    work_off(options.out, options.only, options.steps, options.jobs)


def work_off(out: Path, only: list[str], steps: int, jobs: int) -> None:
    """Runs what is missing, each run in a process of its own; a line a run is added to the results."""
    out.parent.mkdir(parents=True, exist_ok=True)
    at_work: dict[Run, subprocess.Popen[bytes]] = {}
    while True:
        ready = [run for run in wanted(done(out), only) if run not in at_work]
        while ready and len(at_work) < jobs:
            run = ready.pop(0)
            call = [
                sys.executable,
                __file__,
                "--steps",
                str(steps),
                "--one",
                run.method,
                repr(run.rate),
                str(run.seed),
            ]
            at_work[run] = subprocess.Popen(call, stdout=subprocess.PIPE)
        if not at_work:
            return
        time.sleep(0.5)
        for run, process in list(at_work.items()):
            if process.poll() is not None:
                text = process.stdout.read().decode() if process.stdout else ""
                del at_work[run]
                if process.returncode or not text.strip():
                    sys.exit(f"{run} failed")
                with out.open("a") as file:
                    file.write(text)


if __name__ == "__main__":
    main()

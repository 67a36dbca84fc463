"""Loss against bytes for every method of the shelf and for dense AdamW and Muon, at equal tokens (T1, T2, T5).

Four simulated peers train the same byte-level GPT on the same batches, with the codecs, merge and outer steps of the
product; payload bytes are those of the real encoder. Every method has the same tuning budget: each learning rate of
its grid (METHODS, committed before the runs), one seed, TUNING steps with a schedule of that length; the best one is
run with every seed for STEPS steps. Runs that are in the results file are not run again, so that it can be stopped
and started at will, or spread over machines:

    python bench/train.py [--out bench/results/train.jsonl] [--jobs 2]    all that is missing
    python bench/train.py --table bench/results/train.jsonl               the table, as JSON lines
    python bench/train.py --write docs/train/methods.md                   the same, between the marks in a page
    python bench/train.py --quick                                         two methods, few steps: does it work at all
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import in_process
import numpy as np
import torch
from in_process import InProcessRun
from reporting import Row, at_most, load, machine, show, told

from farflung.core.tensor_layout import Float32
from farflung.job.io.job_files import read_dataset
from farflung.job.job_loader import load as load_job
from farflung.job.spec import JobSpec
from farflung.train import inner_steps

PEERS: Final = 4
STEPS: Final = 2000
TUNING: Final = 600
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
    # Takes the rate that was chosen for this method: differs from it in how values are written.
    like: str = ""


def of(method: str, **flags: str) -> dict[str, str]:
    """A method of the shelf and what of it is set, as `section__key`."""
    return {"sync.method": method} | {key.replace("__", "."): value for key, value in flags.items()}


ADAM, MUON = (1.5e-3, 3e-3, 6e-3), (4e-3, 8e-3, 1.6e-2)
METHODS: Final[dict[str, Entry]] = {
    "AdamW dense": Entry(of("local_sgd"), ADAM, True),
    "Muon dense": Entry(of("local_sgd", optimizer__name="muon", optimizer__momentum="0.95"), MUON, True),
    "MuLoCo, H 12, 2-bit": Entry(of("muloco", sync__steps="12"), MUON),
    "MuLoCo, H 20, 2-bit": Entry(of("muloco"), MUON),
    "MuLoCo, H 30, top 256": Entry(of("muloco", sync__steps="30", sync__codec="topk", sync__topk="256"), MUON),
    "SparseLoCo, H 20, top 64": Entry(of("sparse_loco", optimizer__name="adamw", optimizer__momentum="0.9"), ADAM),
    "SparseLoCo with Muon, H 20, top 64": Entry(of("sparse_loco"), MUON),
    "DiLoCo, H 20, fp32": Entry(of("diloco"), ADAM),
    "LocalSGD, H 20, fp32": Entry(of("local_sgd"), ADAM),
    "DGC, 0.1 %": Entry(of("dgc", sync__warmup_rounds="200"), (0.05, 0.1, 0.2)),
    "DeMo, top 32": Entry(of("demo"), (3e-4, 1e-3, 3e-3)),
    "DeMo, top 32, 4-bit values": Entry(of("demo", sync__value_bits="4"), (), like="DeMo, top 32"),
    "PowerSGD, rank 4": Entry(of("powersgd", batch="1"), ADAM, phases=2),
}
GOALS: Final = ((200, 5.0), (2000, 10.0))  # times fewer bytes one way, and per cent of loss above dense
START, END = "<!-- measured -->", "<!-- /measured -->"
DEFAULTS: Final = ("MuLoCo, H 20, 2-bit", "SparseLoCo with Muon, H 20, top 64")


class Run(NamedTuple):
    """One training to the end."""

    method: str
    rate: float
    seed: int
    budget: int = STEPS  # steps, to the next whole round


def spec_of(run: Run) -> JobSpec:
    """The job of a run."""
    entry = METHODS[run.method]
    flags = MODEL | entry.flags | {"seed": str(run.seed), "optimizer.lr": repr(run.rate)}
    local_steps = load_job(None, flags=flags).spec.sync.steps
    rounds = max(1, round(run.budget * entry.phases / local_steps))
    return load_job(None, flags=flags | {"rounds": str(rounds)}).spec


def measure(run: Run) -> dict[str, Any]:
    """Trains; the loss at the end and on the way, and what one peer sent."""
    torch.set_num_threads(1)
    spec, began, busy = spec_of(run), time.process_time(), load()
    data = read_dataset(spec.data, spec.model, Path())
    curve: list[tuple[int, int, float]] = []
    net = InProcessRun.of(spec, data, PEERS)
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
        "method": run.method, "rate": run.rate, "seed": run.seed, "budget": run.budget,
        "steps": spec.steps, "peers": PEERS,
        "parameters": net.job.model.layout.size, "tokens": spec.steps * PEERS * spec.batch * spec.model.context,
        "loss": final, "payload_bytes": net.sent, "curve": curve, "rounds": spec.rounds,
        "cpu_seconds": round_(time.process_time() - began), "machine": machine(), "load": busy,
    }  # fmt: skip


def round_(value: float) -> float:
    """To one decimal."""
    return round(value, 1)


def _alone(net: InProcessRun, every: int) -> tuple[float, list[tuple[int, int, float]]]:
    """Dense synchronisation sends 4 bytes a parameter and step."""
    job, curve = net.job, list[tuple[int, int, float]]()
    at = inner_steps.single_machine(net.public.params)
    params: Float32 = np.asarray(at.params)
    for until in range(every * job.spec.sync.steps, job.spec.steps + 1, every * job.spec.sync.steps):
        at = inner_steps.baseline(job.model, job.spec, job.data.train, at, PEERS, until, lambda: None)
        params = at.params
        curve.append((until, until * 4 * job.model.layout.size, in_process.heldout(job, params, TOKENS)))
    at = inner_steps.baseline(job.model, job.spec, job.data.train, at, PEERS, job.spec.steps, lambda: None)
    net.sent = job.spec.steps * 4 * job.model.layout.size
    return in_process.heldout(job, at.params, FINAL_TOKENS), curve


def done(out: Path) -> list[dict[str, Any]]:
    """What a results file holds."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def wanted(rows: list[dict[str, Any]], only: list[str]) -> Iterator[Run]:
    """All runs that the table needs and the results lack, by method: each rate, then the best with each seed."""
    have = {Run(r["method"], r["rate"], r["seed"], r["budget"]) for r in rows}
    for name in METHODS:
        if only and name not in only:
            continue
        best = best_rate(rows, name)
        runs = [Run(name, rate, SEEDS[0], TUNING) for rate in METHODS[name].rates]
        runs += [Run(name, best, seed) for seed in SEEDS if best is not None]
        yield from (run for run in runs if run not in have)


def best_rate(rows: list[dict[str, Any]], name: str) -> float | None:
    """The rate of a method's grid with the least loss of the tuning runs; None until all of them were run."""
    name = METHODS[name].like or name
    tried = {r["rate"]: r["loss"] for r in rows if r["method"] == name and r["budget"] == TUNING}
    if not set(METHODS[name].rates) <= set(tried):
        return None
    return min(METHODS[name].rates, key=lambda rate: tried[rate])


class Result(NamedTuple):
    """A method at its best rate: mean loss over its seeds, and what one peer sent."""

    name: str
    loss: float
    spread: float
    seeds: int
    rate: float
    payload: float  # bytes
    full: float  # bytes of an fp32 gradient each step
    parameters: int

    @property
    def ratio(self) -> float:
        """One-way payload ratio, as in the literature."""
        return self.full / self.payload

    @property
    def wire(self) -> float:
        """What a peer receives against a bf16 ring all-reduce at the same N: times fewer bytes."""
        return (PEERS - 1) / PEERS * self.full / ((PEERS - 1) * self.payload)


def results(rows: list[dict[str, Any]]) -> list[Result]:
    """Of every method that has a whole run at its best rate, in the order of METHODS."""
    found = list[Result]()
    for name, entry in METHODS.items():
        best = best_rate(rows, name)
        whole = [r for r in rows if (r["method"], r["rate"], r["budget"]) == (name, best, STEPS)]
        if best is None or not whole:
            continue
        losses = [r["loss"] for r in whole]
        row = whole[0]
        full = 4.0 * row["parameters"] * row["steps"] / entry.phases
        sent = statistics.mean(r["payload_bytes"] for r in whole)
        spread = max(losses) - min(losses)
        found.append(Result(name, statistics.mean(losses), spread, len(whole), best, sent, full, row["parameters"]))
    return found


def table(rows: list[dict[str, Any]]) -> Iterator[Row]:
    """Loss of each method over its seeds, against the best dense one, its bytes, and the goals."""
    found = results(rows)
    dense = min((one.loss for one in found if METHODS[one.name].is_alone), default=float("nan"))
    for one in found:
        about = f"{one.seeds} seeds, lr {one.rate:g}, spread {one.spread:.3f}, {STEPS} steps"
        yield told(f"{one.name}: loss", one.loss, "nats per byte", about)
        above = 100 * (one.loss / dense - 1)
        yield told(f"{one.name}: loss above the best dense run", above, "%", f"{dense:.4f} nats")
        if METHODS[one.name].is_alone:
            continue
        yield told(f"{one.name}: one-way payload ratio, as in the literature", one.ratio, "times fewer bytes",
                   "fp32 gradient each step")  # fmt: skip
        yield told(f"{one.name}: received by a peer", one.wire, "times fewer bytes",
                   f"bf16 ring all-reduce, N = {PEERS}")  # fmt: skip
    ours = [one for one in found if not METHODS[one.name].is_alone]
    by_name = {one.name: one for one in found}
    for one in ours:
        if like := by_name.get(METHODS[one.name].like):
            yield at_most(f"{one.name}: loss above that of exact values", 100 * (one.loss / like.loss - 1), "%",
                          1.0, f"{like.name}: {like.loss:.4f} nats")  # fmt: skip
    for least, goal in GOALS:
        near = [one for one in ours if one.ratio >= least]
        if near:
            best = min(near, key=lambda one: one.loss)
            yield at_most(f"least loss above dense at {least} times fewer bytes or more, one way",
                          100 * (best.loss / dense - 1), "%", goal, best.name)  # fmt: skip
    for one in ours:
        if one.name in DEFAULTS:
            better = [o.name for o in ours if o.loss < one.loss and o.payload < one.payload]
            against = ", ".join(better) or "every other method of the table"
            case = f"{one.name}: methods with less loss and fewer bytes"
            yield at_most(case, len(better), "methods", 0, against)


def page(rows: list[dict[str, Any]]) -> str:
    """The table for people, best loss first."""
    found = sorted(results(rows), key=lambda one: one.loss)
    dense = min((one.loss for one in found if METHODS[one.name].is_alone), default=float("nan"))
    lines = [
        "| method | loss | above the best dense run | one way, as papers count | received, against a bf16 ring |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        few = "" if one.seeds == len(SEEDS) else f" ({one.seeds} of {len(SEEDS)} seeds)"
        alone = METHODS[one.name].is_alone
        bytes_ = (
            " | | |"
            if alone
            else f" | {one.ratio:,.0f} times fewer | {one.wire:,.{0 if one.wire >= 10 else 1}f} times fewer |"
        )
        lines.append(f"| {one.name}{few} | {one.loss:.3f} | {100 * (one.loss / dense - 1):.1f} %{bytes_}")
    return "\n".join(lines)


def main() -> None:
    """Runs what is missing, or prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/results/train.jsonl"))
    parser.add_argument("--table", type=Path, help="a results file")
    parser.add_argument("--write", type=Path, help="a page in Markdown, with marks, for the table of --out")
    parser.add_argument("--only", action="append", default=[], help="a method, by its name in the table")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", nargs=4, metavar=("METHOD", "RATE", "SEED", "STEPS"), help="one run, printed")
    options = parser.parse_args()
    if options.table:
        for row in table(done(options.table)):
            show("train", row, load())
        return
    if options.write:
        text = options.write.read_text(encoding="utf-8")
        before, after = text.split(START)[0], text.split(END)[1]
        table_ = START + "\n\n" + page(done(options.out)) + "\n\n" + END
        options.write.write_text(before + table_ + after, encoding="utf-8")
        return
    if options.one:
        name, rate, seed, steps = options.one
        run = Run(name, float(rate), int(seed), int(steps))
        sys.stdout.write(json.dumps(measure(run)) + "\n")
        return
    if options.quick:
        for name in ("AdamW dense", next(n for n, e in METHODS.items() if not e.is_alone)):
            found = measure(Run(name, METHODS[name].rates[0], 1, 60))
            show(
                "train", told(f"{name}: loss after {found['steps']} steps", found["loss"], "nats per byte", ""), load()
            )
        return
    work_off(options.out, options.only, options.jobs)


def work_off(out: Path, only: list[str], jobs: int) -> None:
    """Runs what is missing, each run in a process of its own; a line a run is added to the results."""
    out.parent.mkdir(parents=True, exist_ok=True)
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # a run keeps to one core, NumPy's products too
    at_work: dict[Run, subprocess.Popen[bytes]] = {}
    while True:
        ready = [run for run in wanted(done(out), only) if run not in at_work]
        while ready and len(at_work) < jobs:
            run = ready.pop(0)
            told_run = [run.method, repr(run.rate), str(run.seed), str(run.budget)]
            call = [sys.executable, __file__, "--one", *told_run]
            at_work[run] = subprocess.Popen(call, stdout=subprocess.PIPE, env=alone)
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

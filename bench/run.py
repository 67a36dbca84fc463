"""The main job, measured: tokens a second, time outside training, bytes by kind, peak memory of each process.

    python bench/run.py [--quick] [-- ARGUMENTS OF farflung run]

Runs `farflung run --baseline`, so that the peer of every ratio ran in the same session on the same machine: one
process that trains the same model on the same tokens, with all cores, and for some steps with one thread. One JSON
object a line. `--quick`: a smaller job, at most 60 s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from reporting import Row, at_most, load, show, told

from farflung.core.ids import ID_BYTES, PeerId
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.runs import resolve_again
from farflung.train import worker_messages
from farflung.train.engine import WorkerEngine

STEPS = 40  # of one process with one thread
SCORED = 1024  # tokens on which it is then judged: next to nothing
QUICK = ("--rounds", "4", "--set", "data.limit=2000000", "--set", "evaluate.final_tokens=16384")


def run(arguments: list[str], folder: Path) -> tuple[float, list[dict[str, Any]]]:
    """Seconds until the first line was there, and all events of one run."""
    command = [sys.executable, "-m", "farflung.app.cli.main", "run", "--json", "--baseline", *arguments]
    began, first, lines = time.monotonic(), 0.0, []
    environment = {**os.environ, "FARFLUNG_RUNS": str(folder)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            first = first or time.monotonic() - began
            lines.append(line)
    if process.returncode:
        raise SystemExit(f"the run ended with {process.returncode}")
    return first, [json.loads(line) for line in lines]


def one_thread(folder: Path) -> float:
    """Tokens a second of one process with one thread, in the first steps of the same job."""
    run = RunFolder(folder)
    spec = resolve_again(run).spec
    engine = WorkerEngine(time.perf_counter)
    peer = PeerId(bytes(ID_BYTES))
    engine.handle(worker_messages.SetupCommand(spec, run.dataset_file.read_bytes(), b"", 0, peer))
    members, steps = spec.network.providers, min(STEPS, spec.steps)
    score = engine.handle(worker_messages.BaselineCommand(run.initial_file.read_bytes(), members, steps, SCORED, 1))
    assert isinstance(score, worker_messages.LossResult)
    return steps * members * spec.batch * spec.model.context / score.seconds


def measures(first: float, events: list[dict[str, Any]], alone: float) -> list[Row]:
    """Every case of a run that was compared with one process."""
    by = {kind: [e for e in events if e["event"] == kind] for kind in {e["event"] for e in events}}
    plan, result, baseline = by["plan"][0], by["result"][0], by["baseline"][0]
    rounds = by["round"]
    wall = sum(r["seconds"] for r in rounds)
    tokens = sum(r["tokens"] for r in rounds)
    outside = 1.0 - sum(r["train_seconds"] for r in rounds) / wall
    cores = f"one process, all of {plan['cores']} cores"
    whole = plan["tokens"] / baseline["seconds"]
    took = result["seconds"] - baseline["seconds"]
    ring = result["bytes_ring_bf16"]
    by_kind = result["bytes_by"]
    audits = sum(len(a["verifiers"]) for a in by.get("audit", ()))
    payload = by_kind["sync"] / sum(r["peers"] ** 2 for r in rounds)  # everybody gets everybody's
    thin = (by_kind["sync"] + by_kind["control"]) / ring
    gap = result["loss"] - baseline["loss"]
    speed = tokens / wall / alone
    rows = [
        told("tokens a second", tokens / wall, "tokens/s", f"one process, one thread: {alone:.0f} tokens/s"),
        Row("speed", speed, "ratio", 1.0, speed >= 1.0, "one process, one thread"),
        told("speed against all cores", tokens / wall / whole, "ratio", f"{cores}: {whole:.0f} tokens/s"),
        at_most("first output", first, "s", 2.0, "the promise of `make run`"),
        at_most("time outside training", outside, "share", 0.15, "wall time of all rounds"),
        told("the job alone", took, "s", "the machine to compare with not counted"),
        at_most("whole run", result["seconds"], "s", 180.0, "the promise of `make run`, comparison included"),
        *(
            told(f"bytes {kind}", size / ring, "ratio", f"bf16 ring all-reduce: {ring} bytes")
            for kind, size in by_kind.items()
        ),
        told(
            "bytes of one audit",
            by_kind["audit"] / max(1, audits) / payload,
            "ratio",
            f"a payload: {payload:.0f} bytes",
        ),
        at_most("bytes sync + control", thin, "ratio", 1 / 50, "bf16 ring all-reduce, same steps and N"),
        at_most("held-out loss", result["loss"], "nats/token", 2.9, "goal of the default job"),
        at_most("loss gap", gap, "nats/token", 0.4, f"single-machine baseline: {baseline['loss']:.3f}"),
    ]
    for usage in by["usage"]:
        share = usage["peak_bytes"] / plan["memory_bytes"]
        case = f"peak memory of {usage['process']}"
        rows.append(told(case, usage["peak_bytes"], "B", f"{share:.2f} of one worker's plan"))
    total = sum(u["peak_bytes"] for u in by["usage"])
    return [*rows, at_most("peak memory of all processes", total, "B", 4e9, "4 GB")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("arguments", nargs="*", help="passed to `farflung run`")
    asked = parser.parse_args()
    before = load()
    with tempfile.TemporaryDirectory() as folder:
        first, events = run([*(QUICK if asked.quick else ()), *asked.arguments], Path(folder))
        alone = one_thread(Path(folder) / events[-1]["run"])
    for row in measures(first, events, alone):
        show("run", row, before)


if __name__ == "__main__":
    main()

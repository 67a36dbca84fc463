"""The main job, measured: tokens a second, time outside training, bytes by kind, peak memory of each process.

    python bench/run.py [--quick] [-- ARGUMENTS OF farflung run]

Runs `farflung run --compare`, so that the peer of every ratio ran in the same session on the same machine: one
process that trains the same model on the same tokens. One JSON object a line. `--quick`: a smaller job, at most 60 s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from reporting import Row, at_most, load, show, told

QUICK = ("--rounds", "4", "--set", "data.limit=2000000", "--set", "evaluate.final_tokens=16384")


def run(arguments: list[str], folder: Path) -> list[dict[str, Any]]:
    """All events of one run."""
    command = [sys.executable, "-m", "farflung.app.cli.main", "run", "--json", "--baseline", *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, "FARFLUNG_RUNS": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def measures(events: list[dict[str, Any]]) -> list[Row]:
    """Every case of a run that was compared with one process."""
    by = {kind: [e for e in events if e["event"] == kind] for kind in {e["event"] for e in events}}
    plan, result, baseline = by["plan"][0], by["result"][0], by["baseline"][0]
    rounds = by["round"]
    wall = sum(r["seconds"] for r in rounds)
    tokens = sum(r["tokens"] for r in rounds)
    outside = 1.0 - sum(r["train_seconds"] for r in rounds) / wall
    alone = tokens / baseline["seconds"]
    took = result["seconds"] - baseline["seconds"]
    ring = result["bytes_ring_bf16"]
    by_kind = result["bytes_by"]
    thin = (by_kind["sync"] + by_kind["control"]) / ring
    gap = result["loss"] - baseline["loss"]
    speed = tokens / wall / alone
    rows = [
        told("tokens a second", tokens / wall, "tokens/s", f"one process, one thread: {alone:.0f} tokens/s"),
        Row("speed", speed, "ratio", 1.0, speed >= 1.0, "one process, one thread"),
        at_most("time outside training", outside, "share", 0.15, "wall time of all rounds"),
        at_most("whole run", took, "s", 180.0, "the promise of `make run`, baseline not counted"),
        *(
            told(f"bytes {kind}", size / ring, "ratio", f"bf16 ring all-reduce: {ring} bytes")
            for kind, size in by_kind.items()
        ),
        at_most("bytes sync + control", thin, "ratio", 1 / 50, "bf16 ring all-reduce, same steps and N"),
        at_most("held-out loss", result["loss"], "nats/token", 2.9, "goal of the default job"),
        at_most("loss gap", gap, "nats/token", 0.4, f"one machine, same tokens: {baseline['loss']:.3f}"),
    ]
    for usage in by["usage"]:
        share = usage["peak_bytes"] / plan["memory_bytes"]
        case = f"peak memory of {usage['process']}"
        rows.append(told(case, usage["peak_bytes"], "B", f"{share:.2f} of one worker's plan"))
    total = sum(u["peak_bytes"] for u in by["usage"])
    return [*rows, at_most("peak memory of all processes", total, "B", 4e9, "4 GB")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("arguments", nargs="*", help="passed to `farflung run`")
    asked = parser.parse_args()
    before = load()
    with tempfile.TemporaryDirectory() as folder:
        events = run([*(QUICK if asked.quick else ()), *asked.arguments], Path(folder))
    for row in measures(events):
        show("run", row, before)


if __name__ == "__main__":
    main()

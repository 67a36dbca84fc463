"""The main job, measured: tokens a second, time outside training, bytes by kind, peak memory of each process.

    python bench/run.py [--quick] [-- ARGUMENTS OF farflung run]

Runs `farflung run --compare`, so that the peer of every ratio ran in the same session on the same machine: one
process that trains the same model on the same tokens. One JSON object a line. `--quick`: a smaller job, at most 60 s.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

QUICK = ("--rounds", "4", "--set", "data.limit=2000000", "--set", "evaluate.final_tokens=16384")


def machine() -> str:
    """The processor's name and how many cores may be used."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        name = names[0] if names else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores, {platform.system()}, Python {platform.python_version()}"


def run(arguments: list[str], folder: Path) -> list[dict[str, Any]]:
    """All events of one run."""
    command = [sys.executable, "-m", "farflung.app.cli.main", "run", "--json", "--compare", *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, "FARFLUNG_RUNS": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def measures(events: list[dict[str, Any]]) -> list[tuple[str, float, str, float | None, bool | None, str]]:
    """(case, value, unit, goal, whether it is met, against what)."""
    by = {kind: [e for e in events if e["event"] == kind] for kind in {e["event"] for e in events}}
    plan, result, baseline = by["plan"][0], by["result"][0], by["baseline"][0]
    rounds = by["round"]
    wall = sum(r["seconds"] for r in rounds)
    tokens = sum(r["tokens"] for r in rounds)
    outside = 1.0 - sum(r["train_seconds"] for r in rounds) / wall
    alone = tokens / baseline["seconds"]
    rows: list[tuple[str, float, str, float | None, bool | None, str]] = [
        ("tokens a second", tokens / wall, "tokens/s", None, None, f"one process, one thread: {alone:.0f} tokens/s"),
        ("speed", tokens / wall / alone, "ratio", 1.0, tokens / wall / alone >= 1.0, "one process, one thread"),
        ("time outside training", outside, "share", 0.15, outside <= 0.15, "wall time of all rounds"),
        ("whole run", result["seconds"] - baseline["seconds"], "s", 180.0,
         result["seconds"] - baseline["seconds"] <= 180.0, "the promise of `make run`, baseline not counted"),
    ]  # fmt: skip
    ring = result["bytes_ring_bf16"]
    for kind, size in result["bytes_by"].items():
        rows.append(
            (f"bytes {kind}", size / ring, "ratio", None, None, f"bf16 ring all-reduce: {ring} bytes")
        )
    thin = (result["bytes_by"]["sync"] + result["bytes_by"]["control"]) / ring
    rows.append(
        (
            "bytes sync + control",
            thin,
            "ratio",
            1 / 50,
            thin <= 1 / 50,
            "bf16 ring all-reduce, same steps and N",
        )
    )
    gap = result["loss"] - baseline["loss"]
    rows.append(
        ("held-out loss", result["loss"], "nats/token", 2.9, result["loss"] <= 2.9, "goal of the default job")
    )
    rows.append(
        ("loss gap", gap, "nats/token", 0.4, gap <= 0.4, f"one machine, same tokens: {baseline['loss']:.3f}")
    )
    for usage in by["usage"]:
        share = usage["peak_bytes"] / plan["memory_bytes"]
        rows.append((f"peak memory of {usage['process']}", usage["peak_bytes"], "B", None, None,
                     f"{share:.2f} of one worker's plan"))  # fmt: skip
    total = sum(u["peak_bytes"] for u in by["usage"])
    rows.append(("peak memory of all processes", total, "B", 4e9, total <= 4e9, "4 GB"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("arguments", nargs="*", help="passed to `farflung run`")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        events = run([*(QUICK if asked.quick else ()), *asked.arguments], Path(folder))
    for case, value, unit, goal, met, against in measures(events):
        row = {
            "bench": "run", "case": case, "value": round(value, 6), "unit": unit, "goal": goal, "met": met,
            "against": against, "machine": machine(), "load": load,
        }  # fmt: skip
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

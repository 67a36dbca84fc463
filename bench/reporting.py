"""What every benchmark prints: one JSON object a line, with the same keys."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """One case: what was measured, what it should be, and against what."""

    case: str
    value: float
    unit: str
    goal: float | None
    met: bool | None
    against: str


def at_most(case: str, value: float, unit: str, goal: float, against: str) -> Row:
    """A case that meets its goal by not exceeding it."""
    return Row(case, value, unit, goal, value <= goal, against)


def at_least(case: str, value: float, unit: str, goal: float, against: str) -> Row:
    """A case that meets its goal by reaching it."""
    return Row(case, value, unit, goal, value >= goal, f"at least; {against}")


def told(case: str, value: float, unit: str, against: str) -> Row:
    """A case without a goal."""
    return Row(case, value, unit, None, None, against)


def machine() -> str:
    """The processor's name and how many cores may be used."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        name = names[0] if names else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores, {platform.system()}, Python {platform.python_version()}"


def load() -> float:
    """Processes that want a core, on average over the last minute: asked before a benchmark adds its own."""
    return os.getloadavg()[0]


def show(bench: str, row: Row, load: float, out: Path | None = None) -> None:
    """Prints one case, and adds it to the results file `out`; one of a smaller run says so."""
    line: dict[str, object] = {
        "bench": bench, "case": row.case, "value": round(row.value, 6), "unit": row.unit, "goal": row.goal,
        "met": row.met, "against": row.against, "machine": machine(), "load": load,
    }  # fmt: skip
    if "--quick" in sys.argv:
        line["quick"] = True
    text = json.dumps(line) + "\n"
    sys.stdout.write(text)
    sys.stdout.flush()
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a") as file:
            file.write(text)

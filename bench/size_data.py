"""A data set that is much larger than memory may be: tokens really written, prepared and trained on.

    python bench/size_data.py [--quick | --gb N] [--out FILE]

A tiny GPT, 2 providers and 1 verifier on this computer, audited, 3 rounds, on 50 GB of tokens (quick: 2 GB) and on
1 MB. What is resident above the small run is told for the process in which it is most. The page cache is told to forget
the file before the run. Hiring ends when the last provider has joined; the first step is over by the end of round 0.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from reporting import Row, at_most, load, show, told

GB: Final = 10**9
VOCABULARY: Final = 1024
BLOCK: Final = 1 << 22  # tokens that are made at a time
MODEL: Final = {"model.vocabulary": VOCABULARY, "data.heldout": 0.001}


def write(path: Path, size: int) -> None:
    """A .npy file of about `size` bytes of tokens, of which some tell the next one.

    This process maps nothing of it: the kernel counts what a parent had as its child's own peak.
    """
    draws, count = np.random.default_rng(1), size // 2
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<u2", "fortran_order": False, "shape": (count,)})
        for start in range(0, count, BLOCK):
            block = draws.integers(0, VOCABULARY, min(BLOCK, count - start), dtype=np.uint16)
            block[1::2] = block[: len(block) - len(block) % 2 : 2] // 2
            block.tofile(file)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(data: Path, folder: Path) -> list[dict[str, Any]]:
    """The events of a run on this file."""
    values = [f"--set={key}={value}" for key, value in {**MODEL, "data.path": data}.items()]
    command = [sys.executable, "-m", "farflung.app.cli.main", "run", "--preset", "tiny", "--out", str(folder), *values]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def peaks(events: list[dict[str, Any]]) -> dict[str, int]:
    """Most resident bytes of each process."""
    return {each["process"]: each["peak_bytes"] for each in events if each["event"] == "usage"}


def rows(quick: bool) -> list[Row]:
    """All cases."""
    return measured((2 if quick else 50) * GB)


def measured(size: int) -> list[Row]:
    """The cases with so many bytes of tokens."""
    made = list[Row]()
    with tempfile.TemporaryDirectory(prefix="farflung-data-", dir=os.environ.get("FARFLUNG_BENCH_DISK")) as held:
        folder = Path(held)
        write(folder / "small.npy", 1_000_000)
        small = run(folder / "small.npy", folder / "small")
        write(folder / "large.npy", size)
        large = run(folder / "large.npy", folder / "large")
    before, after = peaks(small), peaks(large)
    name = max(after, key=lambda each: after[each] - before[each])
    above = (after[name] - before[name]) / 1e6
    made.append(at_most("resident above a small data set's run", above, "MB", 1000, f"of {name}; {size / GB:g} GB"))
    joined = max(each["at"] for each in large if each["event"] == "joined")
    first = next(each["at"] for each in large if each["event"] == "round")
    made.append(at_most("hiring to the first step", first - joined, "s", 10, "to the end of round 0"))
    ready = next(each["at"] for each in large if each["event"] == "funded")
    made.append(told("ready to hire", ready, "s", "from the command on: read, packed, hashed, profiled, terms made"))
    moved = [each for each in large if each["event"] == "traffic" and each["process"] == "requester"]
    sent = max(each["join"] for each in moved)
    made.append(
        told("sent of data and states", sent / 1e6, "MB", f"3 nodes, 3 rounds; the data set has {size / 1e6:g}")
    )
    return made


def main() -> None:
    """Prints one row a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="2 GB in place of 50")
    parser.add_argument("--gb", type=int, help="so many GB instead")
    parser.add_argument("--out", type=Path, help="also write the rows here")
    options = parser.parse_args()
    busy = load()
    for row in measured(options.gb * GB) if options.gb else rows(options.quick):
        show("size", row, busy, options.out)


if __name__ == "__main__":
    main()

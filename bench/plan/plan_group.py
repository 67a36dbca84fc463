"""Starts the ranks of one case of bench/plan.py behind links of their own, and reads what they counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from links_others import Failed
from links_shaped import DEVICE, Links, address

HERE: Final = Path(__file__).resolve().parent
WORKER: Final = HERE / "plan_worker.py"
LIMIT: Final = 900.0  # seconds of one case
BURST: Final = "16kb"  # little beside any payload: a link is a rate, and idle time saves nothing up


class Sizes(NamedTuple):
    """What is trained: LAYERS products of WIDTH x WIDTH; MICROS micro-batches, of BATCH rows each."""

    width: int = 512
    layers: int = 8
    batch: int = 16
    micros: int = 4
    local: int = 3
    payloads: str = ""  # a folder

    @property
    def parameters(self) -> int:
        """Of the whole stack."""
        return self.layers * self.width**2


class Seen(NamedTuple):
    """Of each rank: bytes sent and received a step at the interface; seconds of each step."""

    sent: tuple[float, ...]
    received: tuple[float, ...]
    seconds: tuple[tuple[float, ...], ...]


def run(mode: str, world: int, steps: int, sizes: Sizes, rate: str = "", *, is_split: bool = False) -> Seen:
    """One case. `rate` as `tc` writes it, empty: not shaped; `is_split`: one packet, one header, at the counter."""
    with tempfile.TemporaryDirectory() as name, Links(world, rate, burst=BURST) as links:
        folder = Path(name)
        ranks = [_rank(links, rank, mode, steps, sizes, folder, is_split) for rank in range(world)]
        try:
            _wait(ranks, time.monotonic() + LIMIT)
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    os.killpg(rank.pid, signal.SIGKILL)
                    rank.wait()
        bad = [at for at, rank in enumerate(ranks) if rank.returncode]
        if bad:
            raise Failed(f"{mode}: rank {bad[0]}\n{(folder / f'w{bad[0]}.out').read_text()[-2000:]}")
        found = [json.loads((folder / f"w{rank}.json").read_text()) for rank in range(world)]
    return Seen(
        tuple(one["sent"] / steps for one in found),
        tuple(one["received"] / steps for one in found),
        tuple(tuple(one["seconds"]) for one in found),
    )


def _rank(
    links: Links, rank: int, mode: str, steps: int, sizes: Sizes, folder: Path, is_split: bool
) -> subprocess.Popen[str]:
    with (folder / f"w{rank}.out").open("w") as out:
        return links.start(
            rank,
            [sys.executable, str(WORKER), mode, str(steps)],
            _environment(links.count, rank, sizes, folder, is_split),
            out,
        )


def _environment(world: int, rank: int, sizes: Sizes, folder: Path, is_split: bool) -> Mapping[str, str]:
    return {
        **os.environ,
        "RANK": str(rank), "WORLD": str(world), "OUT": str(folder), "SPLIT": "1" if is_split else "",
        "MASTER_ADDR": address(0), "MASTER_PORT": "29531", "GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1",
        "RES_OPTIONS": "timeout:1 attempts:1",  # torch asks for the names of addresses, and nobody answers here
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        **{name.upper(): str(value) for name, value in sizes._asdict().items()},
    }  # fmt: skip


def _wait(ranks: list[subprocess.Popen[str]], until: float) -> None:
    """Returns when all have ended, when one failed, or at the limit."""
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < until:
        if any(rank.returncode for rank in ranks):
            time.sleep(1.0)  # the others say their part
            return
        time.sleep(0.05)

"""One worker of bench/links.py: `links_worker.py MODE STEPS EVERY`, with RANK, WORLD and OUT in its environment.

Writes a JSON object a line to OUT/w<RANK>.jsonl: after every step the time, the link's own byte counters, and what the
library reported. MODE is `ddp-dense`, `ddp-muon`, `ddp-powersgd` (torch), `farflung-METHOD` (links_farflung.py), or
`torchft-` and `hivemind-` with a kind (links_others.py).
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import links_others
import torch
from torch import Tensor, nn

from farflung.job.dataset import Dataset, split_files
from farflung.job.io.text_folders import stdlib_files
from farflung.job.spec import ModelSpec
from farflung.job.text_files import limited
from farflung.sync.muon import Muon
from farflung.train.models import gpt

MODEL: Final = ModelSpec(layers=4, width=192, heads=4, context=64)  # 1.9 M parameters, one byte a token
BATCH: Final = 4  # windows of a worker's step
TEXT: Final = 3_300_000  # bytes of this Python's sources
RATE: Final = 1e-3
PORT: Final = 29511
SEED: Final = 5
COUNTERS: Final = Path("/sys/class/net/eth0/statistics")

Step = Callable[[Tensor, Tensor], tuple[float, Any]]


def received_and_sent() -> tuple[int, int]:
    """Bytes that this place's link has received and sent, headers and all."""
    return tuple(int((COUNTERS / f"{way}_bytes").read_text()) for way in ("rx", "tx"))  # type: ignore[return-value]


def model() -> nn.Module:
    """The same weights in every worker."""
    torch.manual_seed(0)
    made = gpt.build(MODEL)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=gpt.INIT_STD)
    return made


def batch(tokens: Any, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random windows: inputs and targets of shape (rows, context)."""
    at = torch.randint(0, len(tokens) - MODEL.context - 1, (rows,), generator=generator)
    window = torch.stack([torch.from_numpy(tokens[i : i + MODEL.context + 1].astype("int64")) for i in at])
    return window[:, :-1], window[:, 1:]


def text() -> Dataset:
    """What is trained on, the same for everybody."""
    return split_files(limited(stdlib_files(), TEXT), 0.05)


class Log:
    """A worker's lines: what is said, with the time and the link's counters."""

    def __init__(self, rank: int, mode: str = "w") -> None:
        self._file = Path(os.environ["OUT"], f"w{rank}.jsonl").open(mode, buffering=1)  # noqa: SIM115

    def put(self, **said: Any) -> None:
        """One line."""
        rx, tx = received_and_sent()
        self._file.write(json.dumps({"t": time.time(), "rx": rx, "tx": tx, **said}) + "\n")

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def heldout(module: nn.Module, data: Dataset) -> float:
    """Mean loss on the same 128 windows for everybody."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        return sum(float(module(*batch(data.heldout, 16, generator))) for _ in range(8)) / 8


def ddp(module: nn.Module, kind: str, rank: int, world: int) -> Step:
    """torch's DistributedDataParallel over gloo; `powersgd`: its communication hook, rank 4; AdamW, but for `muon`."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=120))
    wrapped = DistributedDataParallel(module, bucket_cap_mb=25)
    if kind == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=2
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(module.parameters(), lr=RATE)
    if kind == "muon":  # that of farflung.sync: what MuLoCo computes, too
        optimizer = Muon(module, RATE)

    def step(x: Tensor, y: Tensor) -> tuple[float, Any]:
        loss = wrapped(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item(), None

    return step


def main() -> None:
    mode, steps, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD"])
    torch.set_num_threads(1)
    data = text()
    module = model()
    system, kind = mode.split("-", 1)
    step, close = _made(module, system, kind, rank, world, every)
    generator = torch.Generator().manual_seed(SEED + rank)
    with Log(rank) as log:
        log.put(event="ready", parameters=sum(p.numel() for p in module.parameters()))
        for number in range(steps):
            loss, report = step(*batch(data.train, BATCH, generator))
            log.put(event="step", step=number, loss=loss, **counted(report))
        log.put(event="closed", **counted(close()))
        log.put(event="end", held=heldout(module, data))
    links_others.leave(system)


def _made(
    module: nn.Module, system: str, kind: str, rank: int, world: int, every: int
) -> tuple[Step, Callable[[], Any]]:
    """The system's step, and what ends it."""
    if system == "ddp":
        return ddp(module, kind, rank, world), lambda: None
    if system == "farflung":
        import links_farflung

        return links_farflung.make(module, kind, rank, world, every)
    return links_others.make(module, system, kind, rank, world, every)


def counted(report: Any) -> dict[str, int]:
    """What the library says of a round's bytes."""
    if report is None:
        return {}
    return {"up": report.bytes_up, "down": report.bytes_down, "payload": report.payload_bytes}


if __name__ == "__main__":
    main()

"""One rank of bench/plan.py: `plan_worker.py MODE STEPS`, with RANK, WORLD, OUT and the sizes in its environment.

Trains a stack of square linear layers by torch.distributed over gloo and writes one JSON object to OUT/w<RANK>.json:
the interface's bytes each way and the seconds of STEPS steps, after WARM that do not count. MODE is `alone` (no
group), `ddp`, `fsdp`, `fsdp-kept` (parameters kept from forward to backward), `gpipe`, `1f1b`, `diloco` (a round a
step, of LOCAL local ones) or `sparse` (files of PAYLOADS, from each to each).
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH: Final = int(os.environ["WIDTH"])
LAYERS: Final = int(os.environ["LAYERS"])
BATCH: Final = int(os.environ["BATCH"])
MICROS: Final = int(os.environ["MICROS"])
LOCAL: Final = int(os.environ["LOCAL"])
WARM: Final = 2
PORT: Final = 29531
COUNTERS: Final = Path("/sys/class/net/eth0/statistics")
QUIET: Final = 0.3  # seconds in which the last packets arrive
CONTROL: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")

Step = Callable[[], None]


def counted() -> tuple[int, int]:
    """Bytes that this place's link has sent and received, headers and all."""
    sent, received = (int((COUNTERS / f"{way}_bytes").read_text()) for way in ("tx", "rx"))
    return sent, received


def stack(layers: int) -> nn.Sequential:
    """Layers of WIDTH x WIDTH without biases: every byte of a parameter is one of the product's."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))


def loss_of(found: Tensor, target: Tensor) -> Tensor:
    """What is minimised."""
    return ((found - target) ** 2).mean()


def batch(rows: int, rank: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(rank)
    return tuple(torch.randn(rows, WIDTH, generator=generator) for _ in range(2))  # type: ignore[return-value]


def alone(rank: int) -> Step:
    """A step without a group: what computing takes."""
    module, (x, y) = stack(LAYERS), batch(BATCH, rank)

    def step() -> None:
        module.zero_grad()
        loss_of(module(x), y).backward()

    return step


def ddp(rank: int) -> Step:
    """torch's DistributedDataParallel."""
    from torch.nn.parallel import DistributedDataParallel

    module, (x, y) = DistributedDataParallel(stack(LAYERS)), batch(BATCH, rank)

    def step() -> None:
        module.zero_grad()
        loss_of(module(x), y).backward()

    return step


def fsdp(rank: int, *, kept: bool) -> Step:
    """torch's FSDP2, a unit a layer; the root has no parameters of its own."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    module, (x, y) = stack(LAYERS), batch(BATCH, rank)
    for layer in module:
        fully_shard(layer, mesh=mesh, reshard_after_forward=not kept)
    fully_shard(module, mesh=mesh, reshard_after_forward=not kept)

    def step() -> None:
        loss_of(module(x), y).backward()
        for parameter in module.parameters():
            parameter.grad = None

    return step


def pipeline(rank: int, kind: str) -> Step:
    """torch's pipelines: LAYERS / WORLD layers a stage, MICROS micro-batches of BATCH rows."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    world = dist.get_world_size()
    stage = PipelineStage(stack(LAYERS // world), rank, world, torch.device("cpu"))
    schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[kind](stage, MICROS, loss_fn=loss_of)
    x, y = batch(BATCH * MICROS, 0)

    def step() -> None:
        stage.submod.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=y)
        else:
            schedule.step()

    return step


def diloco(rank: int) -> Step:
    """A round: LOCAL local steps, then changes averaged."""
    module, (x, y) = stack(LAYERS), batch(BATCH, rank)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    before = [parameter.detach().clone() for parameter in module.parameters()]

    def step() -> None:
        for _ in range(LOCAL):
            optimizer.zero_grad()
            loss_of(module(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            flat = torch.cat([(p - b).flatten() for p, b in zip(module.parameters(), before, strict=True)])
            dist.all_reduce(flat)
            at = 0
            for parameter, old in zip(module.parameters(), before, strict=True):
                old += flat[at : at + old.numel()].view_as(old) / dist.get_world_size()
                parameter.copy_(old)
                at += old.numel()

    return step


def sparse(rank: int) -> Step:
    """Lengths are told, then everybody's payload goes to everybody, in rounds in which each rank sends to one other and
    hears one other (pairwise exchange). Flows that share lines all at once took up to twice as long (BBR, deep queues).
    """
    files = sorted(Path(os.environ["PAYLOADS"]).glob("*.payload"))
    payloads = [torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8) for file in files]
    world, turn = dist.get_world_size(), iter(range(1 << 30))

    def step() -> None:
        own = payloads[(rank + next(turn)) % len(payloads)]
        length = torch.tensor([len(own)])
        lengths = [torch.zeros_like(length) for _ in range(world)]
        dist.all_gather(lengths, length)
        for ahead in range(1, world):
            target, source = (rank + ahead) % world, (rank - ahead) % world
            theirs = torch.empty(int(lengths[source]), dtype=torch.uint8)
            for one in (dist.irecv(theirs, source), dist.isend(own, target)):  # asked for before data fills the line
                one.wait()

    return step


MODES: Final[dict[str, Callable[[int], Step]]] = {
    "alone": alone,
    "ddp": ddp,
    "fsdp": lambda rank: fsdp(rank, kept=False),
    "fsdp-kept": lambda rank: fsdp(rank, kept=True),
    "gpipe": lambda rank: pipeline(rank, "gpipe"),
    "1f1b": lambda rank: pipeline(rank, "1f1b"),
    "diloco": diloco,
    "sparse": sparse,
}


def main() -> None:
    mode, steps = sys.argv[1], int(sys.argv[2])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD"])
    torch.set_num_threads(1)
    # RFC 5681's, which every Linux has, whatever a machine prefers: BBR takes two packets that passed each other for a
    # loss, and sends up to a tenth of all bytes on a line that is not shaped again. No plan foretells that.
    CONTROL.write_text("reno")
    if os.environ.get("SPLIT"):  # packets as they are on a wire: the counter sees each one's headers
        subprocess.run(["ip", "link", "set", "eth0", "gso_max_segs", "1"], check=True)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=120))
    step = MODES[mode](rank)
    for _ in range(WARM):
        step()
    dist.barrier()
    time.sleep(QUIET)
    dist.barrier()
    before, times = counted(), [time.perf_counter()]
    for _ in range(steps):
        step()
        times.append(time.perf_counter())
    time.sleep(QUIET)
    after = counted()
    dist.barrier()
    each = [later - sooner for sooner, later in itertools.pairwise(times)]
    said = {"sent": after[0] - before[0], "received": after[1] - before[1], "seconds": each}
    Path(os.environ["OUT"], f"w{rank}.json").write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""What the processes of tests/sync/test_sync_torch_distributed_group.py do: `python app_sync_ranks.py CASES RANK
SIZE FOLDER`, where cases are names with commas between them; each begins once all ranks have ended the one before.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from app_sync import SIDE, adamw, flat, loss, net, train
from torch import nn

from farflung.core.errors import FarflungError
from farflung.sync import DGC, DeMo, DiLoCo, MuLoCo, PowerSGD, SparseLoCo
from farflung.sync.ddp_hooks import GradientSync, compress_islands, ddp_hook
from farflung.sync.group import GroupExchange
from farflung.sync.torch_distributed_group import TorchGroup

H = 3


def methods(rank: int) -> dict[str, Any]:
    """Every method over gloo: the parameters at the end, and the bytes of the reports."""
    ended: dict[str, Any] = {}
    cases: dict[str, Any] = {
        "sparse_loco": lambda m: SparseLoCo(m, adamw(m), sync_every=H, topk=16, chunk=256),
        "delayed": lambda m: DiLoCo(m, adamw(m), sync_every=H, value_bits=2, fragments=2, fragment_sync_delay=1),
        "muloco": lambda m: MuLoCo(m, sync_every=H),
        "dgc": lambda m: DGC(m, lr=0.05),
        "powersgd": lambda m: PowerSGD(m, lr=0.01, rank=2),
    }
    for name, make in cases.items():
        model = net()
        sync = make(model)
        reports = train(sync, model, rank, range(4 * H))
        sync.check()
        sync.finish()
        sync.close()
        ended[name] = {
            "end": flat(model).tolist(),
            "up": [r.bytes_up for r in reports],
            "payload": [r.payload_bytes for r in reports],
        }
    model = net()
    optimizer = DeMo(model.parameters(), lr=1e-2, compression_topk=8, compression_chunk=16)
    for step in range(5):
        loss(model, rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    ended["demo"] = {"end": flat(model).tolist()}
    return ended


class Broken(TorchGroup):
    """Rank 1 sends rubbish in the first round, and in the second more bytes than any payload may have."""

    def exchange(self, name: int, payload: bytes, bound: int, quorum: int) -> GroupExchange:
        if self.rank == 1 and payload[1:8] == b"round 0":
            payload = payload[:130]
        if self.rank == 1 and payload[1:8] == b"round 1":
            payload = payload + bytes(bound)
        return super().exchange(name, payload, bound, quorum)


def trouble(rank: int) -> dict[str, Any]:
    """A rank that starts from other weights; and one that sends what nobody can read."""
    other = net(seed=int(rank == 1))
    differs = ""
    try:
        train(DiLoCo(other, adamw(other), sync_every=H), other, rank, range(H))
    except FarflungError as error:
        differs = str(error)
    model = net()
    sync = SparseLoCo(model, adamw(model), sync_every=H, topk=16, chunk=256, min_quorum=1, group=Broken())
    reports = train(sync, model, rank, range(3 * H))
    sync.check()
    left = [{str(r): why for r, why in report.left_out.items()} for report in reports]
    return {"end": flat(model).tolist(), "left": left, "differs": differs}


def checkpoint(rank: int) -> dict[str, Any]:
    """torch.distributed.checkpoint: saved in the middle of a round, loaded into fresh objects, and gone on."""
    import torch.distributed.checkpoint as dcp

    folder = os.environ["APP_SYNC_FOLDER"]

    def made(seed: int) -> tuple[nn.Module, SparseLoCo]:
        model = net(seed)
        inner = adamw(model)
        settings: dict[str, Any] = {"sync_every": H, "topk": 16, "chunk": 256, "fragment_sync_delay": 1}
        return model, SparseLoCo(model, inner, **settings)

    model, sync = made(0)
    train(sync, model, rank, range(2 * H + 1))
    dcp.save(
        {"model": model.state_dict(), "sync": sync.state_dict(), f"local-{rank}": model.state_dict()},
        checkpoint_id=folder,
    )
    again, other = made(5)
    found = {"sync": other.template(), f"local-{rank}": again.state_dict()}
    dcp.load(found, checkpoint_id=folder)
    again.load_state_dict(found[f"local-{rank}"])
    other.load_state_dict(found["sync"])
    for each, own in ((sync, model), (other, again)):
        train(each, own, rank, range(2 * H + 1, 4 * H))
        each.finish()
        each.close()
    return {"whole": flat(model).tolist(), "parts": flat(again).tolist()}


def ddp(rank: int) -> dict[str, Any]:
    """The hook under DistributedDataParallel, against plain DDP; and its memory, saved and restored."""
    ended: dict[str, Any] = {}
    cases: dict[str, dict[str, Any]] = {
        "exact": {"codec": "dense", "value_bits": 32},
        "dense 8": {"codec": "dense", "value_bits": 8},
        "topk": {"codec": "topk", "topk": 64, "chunk": 256},
        "dgc": {"codec": "topk", "topk": 16, "chunk": 256, "momentum": 0.9},
        "plain": {},
    }
    for name, settings in cases.items():
        model = nn.parallel.DistributedDataParallel(net())
        state = GradientSync(**settings) if settings else None
        if state is not None:
            model.register_comm_hook(state, ddp_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(8):
            loss(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            if state is not None and step == 4:
                state.load_state_dict(copy.deepcopy(state.state_dict()))
        ended[name] = {"end": flat(model).tolist(), "loss": loss(model, 9, 9).item()}
    return ended


def islands(rank: int) -> dict[str, Any]:
    """HSDP: two islands of size / 2 processes, FSDP2 inside them, compressed between them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    ended: dict[str, Any] = {}
    for name, bits in (("exact", 32), ("8 bit", 8)):
        model = net()
        fully_shard(model[0], mesh=mesh["shard"])  # type: ignore[index]
        fully_shard(model, mesh=mesh["shard"])
        state = compress_islands(model, mesh["replicate"].get_group(), "dense", value_bits=bits)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(4):
            x = torch.randn(8, SIDE, generator=torch.Generator().manual_seed(1000 * rank + step))
            ((model(x) - x.flip(1)) ** 2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        full = [p.full_tensor().detach().reshape(-1) for p in model.parameters()]  # type: ignore[attr-defined]
        ended[name] = {"end": torch.cat(full).tolist(), "bytes": state.bytes_up}
    alone = net()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.05)
    for step in range(4):
        for member in range(size):
            x = torch.randn(8, SIDE, generator=torch.Generator().manual_seed(1000 * member + step))
            (((alone(x) - x.flip(1)) ** 2).mean() / size).backward()
        optimizer.step()
        optimizer.zero_grad()
    ended["one machine"] = {"end": flat(alone).tolist()}
    return ended


def main() -> None:
    cases, rank, size, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        result = {}
        for case in cases.split(","):
            result[case] = globals()[case](rank)
            dist.barrier()
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            json.dump(result, file)
        os.replace(file.name, folder / f"{rank}.json")
        dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

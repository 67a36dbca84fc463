"""What a sharded module keeps between islands goes by the parameters that took part, not by their size alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from farflung.sync.ddp_hooks import GradientSync, compress_islands

SIDE = 8


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(SIDE, SIDE)
        self.experts = nn.ModuleList(nn.Linear(SIDE, SIDE) for _ in range(2))

    def forward(self, x: Tensor, chosen: int) -> Tensor:
        y: Tensor = self.experts[chosen](torch.tanh(self.first(x)))
        return y


@pytest.fixture
def world(tmp_path: Path) -> Iterator[None]:
    """One island of one process: what is sent is what is decoded, and what is kept shows in it."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def made() -> tuple[Experts, GradientSync]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    model, mesh = Experts(), init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(model.first, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    return model, compress_islands(model, mesh["replicate"].get_group(), "topk", topk=4, chunk=256, value_bits=32)


def gradients(model: Experts, chosen: int, step: int) -> dict[str, Tensor]:
    model.zero_grad()
    x = torch.randn(2, SIDE, generator=torch.Generator().manual_seed(step))
    model(x, chosen).square().sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: grad.full_tensor().clone() for name, grad in found.items()}  # type: ignore[attr-defined]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.usefixtures("world")
def test_experts_of_one_size_share_no_memory_and_each_goes_on_with_its_own_in_a_new_process() -> None:
    model, state = made()
    gradients(model, 0, 0)
    second = gradients(model, 1, 1)
    saved = state.state_dict()
    third = gradients(model, 0, 2)
    own = {name for name in second if name.startswith("experts")}

    fresh = gradients(made()[0], 1, 1)
    assert all(torch.equal(second[name], fresh[name]) for name in own), "what another expert has not sent"
    assert not same(third, gradients(made()[0], 0, 2)), "what it had not sent itself is in it"

    again, loaded = made()
    loaded.load_state_dict(saved)
    assert same(gradients(again, 0, 2), third)
    assert len(state.state_dict()["memory"]) == 3  # of `first`, and of each expert

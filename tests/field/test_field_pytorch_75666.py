"""pytorch #75666 and #102721: what a compressing hook of DDP has not sent must survive a restart.

DDP arranges its buckets anew after the first step. A new process begins with the first arrangement again, so that
memory kept by a bucket's number goes to another parameter, or nowhere.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from farflung.core.errors import FarflungError
from farflung.sync import GradientSync, ddp_hook

WIDTH = 16


@pytest.fixture(autouse=True)
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Two(nn.Module):
    """Two layers of one shape, and one that is wider, in the order in which they are not used."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Linear(WIDTH, 3 * WIDTH)
        self.back = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.first(x)) + self.back(torch.tanh(self.wide(x))))
        return out


Made = tuple[nn.Module, Any, GradientSync, torch.optim.Optimizer]


def made(seed: int, settings: dict[str, Any], **options: Any) -> Made:
    torch.manual_seed(seed)
    net = Two()
    ddp = nn.parallel.DistributedDataParallel(net, **options)
    state = GradientSync(**settings)
    ddp.register_comm_hook(state, ddp_hook)
    return net, ddp, state, torch.optim.SGD(net.parameters(), lr=0.05)


def walk(one: Made, steps: range) -> None:
    _, ddp, _, optimizer = one
    for step in steps:
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))
        (ddp(x) - x.flip(1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def kept(one: Made) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save({"model": one[0].state_dict(), "hook": one[2].state_dict()}, file)
    file.seek(0)
    found: dict[str, Any] = torch.load(file)
    return found


SMALL = {"bucket_cap_mb": 0.002}  # several buckets
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "exact": ({"codec": "dense", "value_bits": 32}, {}, {}),
    "dense, 8 bits": ({"codec": "dense", "value_bits": 8}, SMALL, SMALL),
    "topk": ({"topk": 16, "chunk": 256}, {}, {}),
    "topk, several buckets": ({"topk": 16, "chunk": 256}, SMALL, SMALL),
    "topk, other buckets after": ({"topk": 16, "chunk": 256}, SMALL, {"bucket_cap_mb": 1}),
    "topk, chunks over tensors' ends": ({"topk": 32, "chunk": 4096}, {}, SMALL),
    "momentum": ({"topk": 8, "chunk": 256, "momentum": 0.9}, SMALL, SMALL),
    "views": ({"topk": 16, "chunk": 256, "momentum": 0.5}, {"gradient_as_bucket_view": True}, SMALL),
}


@pytest.mark.parametrize("name", CASES)
def test_a_hook_goes_on_bit_for_bit_in_a_new_process(name: str) -> None:
    settings, before, after = CASES[name]
    whole = made(0, settings, **before)
    saved = {}
    for step in range(3):
        if step:  # buckets are arranged anew before the second step
            saved[step] = kept(whole)
        walk(whole, range(step, step + 1))
    walk(whole, range(3, 5))
    for step, state in saved.items():
        part = made(1, settings, **after)
        part[0].load_state_dict(state["model"])
        part[2].load_state_dict(state["hook"])
        walk(part, range(step, 5))
        for (named, p), q in zip(whole[0].named_parameters(), part[0].parameters(), strict=True):
            assert torch.equal(p, q), (step, named)


def test_a_hook_s_memory_goes_by_parameter_into_a_wrapped_model() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    whole = made(0, {"topk": 16, "chunk": 256})
    walk(whole, range(3))
    state = kept(whole)["hook"]
    assert sorted(state["memory"]) == sorted(name for name, _ in whole[0].named_parameters())
    net = Two()
    net.load_state_dict(whole[0].state_dict())
    net.first = checkpoint_wrapper(net.first)  # type: ignore[assignment, no-untyped-call]
    ddp = nn.parallel.DistributedDataParallel(net)
    hook = GradientSync(topk=16, chunk=256)
    ddp.register_comm_hook(hook, ddp_hook)
    hook.load_state_dict(state)
    other = net, ddp, hook, torch.optim.SGD(net.parameters(), lr=0.05)
    for each in (whole, other):
        walk(each, range(3, 6))
    assert all(torch.equal(p, q) for p, q in zip(whole[0].parameters(), net.parameters(), strict=True))


def test_what_is_not_this_hook_s_memory_is_refused_by_name() -> None:
    one = made(0, {"topk": 16, "chunk": 256})
    walk(one, range(2))
    state = kept(one)["hook"]
    for settings, said in (({"topk": 8, "chunk": 256}, "topk is 16"), ({"topk": 16, "momentum": 0.5}, "momentum")):
        with pytest.raises(FarflungError, match=f"FF-SYNC-004.*{said}"):
            GradientSync(**settings).load_state_dict(state)
    with pytest.raises(FarflungError, match=r"FF-SYNC-004.*rank 1's, and this is rank 0"):
        one[2].load_state_dict({**state, "about": {**state["about"], "rank": 1}})
    with pytest.raises(FarflungError, match="FF-CORE-095"):
        one[2].load_state_dict({"tag": 3, "channels": {}})
    with pytest.raises(FarflungError, match="FF-SYNC-025"):
        GradientSync().names_of([nn.Parameter(torch.zeros(3))])
    state["memory"]["other.weight"] = state["memory"].pop("last.weight")
    one[2].load_state_dict(state)
    with pytest.raises(FarflungError, match=r"FF-SYNC-004.*it has other\.weight"):
        one[2].names_of(list(one[0].parameters()))

"""What stays on an accelerator: the same payloads, residuals and weights as on the host, and only chosen values travel.

Where there is no accelerator, `on_device=True` takes the device's path for a model on the CPU. Where there is one, the
models lie on it (bench/gpu.py runs these tests there).
"""

import copy
from typing import Any

import pytest
import torch
from app_sync import DEVICE, Table, adamw, flat, loss, net, together, train
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from farflung.core.errors import FarflungError
from farflung.sync import DGC, DeMo, SparseLoCo
from farflung.sync.device_memory import DeviceMemory
from farflung.sync.peer_memory import HostMemory

H = 2


class Shapes(nn.Module):
    """Parameters of these shapes, one of them tied and one frozen, and an empty one."""

    def __init__(self, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        made = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]
        self.own = nn.ParameterList([*made, made[0]])
        self.frozen = nn.Parameter(torch.ones(3, dtype=dtype), requires_grad=False)
        self.empty = nn.Parameter(torch.ones(0, 4, dtype=dtype))


def walk(sync: Any, model: nn.Module, rank: int, steps: range) -> None:
    """Steps along gradients that depend on rank and step alone; some parameters have none at times."""
    for step in steps:
        generator = torch.Generator().manual_seed(1000 * rank + step)
        for number, parameter in enumerate(model.parameters()):
            grad = torch.randn(parameter.shape, generator=generator).to(parameter.device, parameter.dtype)
            parameter.grad = grad if parameter.requires_grad and (step + number) % 5 else None
        sync.step()
        sync.zero_grad()


def memory(sync: Any) -> dict[str, bytes]:
    return {name: vector.cpu().numpy().tobytes() for name, vector in sync.memory.vectors().items()}


def same_on_the_device(make: Any, settings: dict[str, Any], tamper: Any = None) -> None:
    """Two peers on the host, then one of them on the device: payloads, memories and weights are the same bytes."""
    ends: list[Any] = []
    for places in ((False, False), (False, True)):
        table = Table(2, tamper)

        def work(rank: int, table: Table = table, places: tuple[bool, bool] = places) -> Any:
            model, inner = make()
            kind = SparseLoCo if inner else DGC
            sync = kind(model, *inner, **settings, on_device=places[rank], min_quorum=1, group=table.groups()[rank])
            assert isinstance(sync.memory, DeviceMemory if places[rank] else HostMemory)
            walk(sync, model, rank, range(5 * H))
            sync.check()
            kept = memory(sync)
            sync.finish()
            sync.close()
            return kept, flat(model), memory(sync)

        ends.append((together(2, work), table.sent))
    (host, sent), (device, sent_too) = ends
    assert sent == sent_too
    for one, other in zip(host, device, strict=True):
        assert one[0] == other[0]
        assert torch.equal(one[1], other[1])
        assert one[2] == other[2]


@pytest.mark.slow
@given(
    shapes=st.lists(
        st.sampled_from([(), (1,), (7,), (13, 7), (40,), (5, 1, 3), (16, 16), (97,)]), min_size=1, max_size=5
    ),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float64]),
    bits=st.sampled_from([1, 2, 4, 8, 16, 32]),
    chunk=st.sampled_from([8, 16, 64]),
    topk=st.integers(1, 8),
    fragments=st.integers(1, 3),
    delay=st.integers(0, 1),
    momentum=st.sampled_from([0.0, 0.9]),
)
@settings(max_examples=15)
def test_a_peer_on_the_device_is_bit_for_bit_the_peer_on_the_host(
    shapes, dtype, bits, chunk, topk, fragments, delay, momentum
) -> None:
    def make() -> Any:
        model = Shapes(shapes, dtype).to(DEVICE)
        return model, (torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),)

    asked = {
        "sync_every": H,
        "value_bits": bits,
        "chunk": chunk,
        "topk": topk,
        "transform": "raw",
        "fragments": fragments,
        "fragment_sync_delay": delay,
        "outer_momentum": momentum,
    }
    same_on_the_device(make, asked)


@pytest.mark.parametrize("settings", [{}, {"clip": 0.5, "warmup_rounds": 6}, {"value_bits": 2}])
def test_dgc_on_the_device_is_bit_for_bit_dgc_on_the_host(settings: dict[str, Any]) -> None:
    asked = {"lr": 0.05, "topk": 2, "chunk": 32, **settings}
    same_on_the_device(lambda: (Shapes([(13, 7), (40,), ()], torch.float32).to(DEVICE), ()), asked)


@pytest.mark.parametrize("delay", [0, 1])
def test_what_did_not_count_is_unsent_on_the_device_too(delay: int) -> None:
    asked = {"sync_every": H, "topk": 2, "chunk": 16, "transform": "raw", "fragment_sync_delay": delay}

    def make() -> Any:
        model = Shapes([(13, 7), (40,)], torch.float32).to(DEVICE)
        return model, (torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),)

    same_on_the_device(make, asked, lambda tag, rank, data: None if rank and tag in (4, 8) else data)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("stop", [H, H + 1])
def test_a_checkpoint_of_the_device_goes_on_on_the_host_and_the_other_way(first: bool, stop: int) -> None:
    def made(on_device: bool, seed: int = 0) -> tuple[nn.Module, SparseLoCo]:
        model = net(seed)
        sync = SparseLoCo(
            model,
            adamw(model),
            sync_every=H,
            topk=8,
            chunk=64,
            transform="raw",
            fragments=2,
            fragment_sync_delay=1,
            on_device=on_device,
        )
        return model, sync

    model, sync = made(first)
    train(sync, model, 0, range(stop))
    saved = copy.deepcopy({"model": model.state_dict(), "sync": sync.state_dict()})
    other_model, other = made(not first, seed=5)
    other_model.load_state_dict(saved["model"])
    other.load_state_dict(saved["sync"])
    for one, own in ((sync, model), (other, other_model)):
        train(one, own, 0, range(stop, 4 * H))
        one.close()
    assert memory(sync) == memory(other)
    assert torch.equal(flat(model), flat(other_model))


class Travel:
    """The most elements that a tensor had which became an array (up), or an array which became a tensor (down)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.up = self.down = 0
        to_array, to_tensor = torch.Tensor.numpy, torch.from_numpy

        def up(tensor: torch.Tensor, **more: Any) -> Any:
            self.up = max(self.up, tensor.numel())
            return to_array(tensor, **more)

        def down(array: Any) -> torch.Tensor:
            self.down = max(self.down, array.size)
            return to_tensor(array)

        monkeypatch.setattr(torch.Tensor, "numpy", up)
        monkeypatch.setattr(torch, "from_numpy", down)


@pytest.mark.parametrize("method", ["sparse_loco", "dgc", "demo"])
def test_only_chosen_values_travel(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = {}
    for on_device in (False, True):
        model = net()
        size = flat(model).numel()
        sync: Any
        if method == "demo":
            sync = DeMo(
                model.parameters(), compression_chunk=16, compression_topk=4, check_every=0, on_device=on_device
            )
        elif method == "dgc":
            sync = DGC(model, lr=0.01, weight_decay=0.0, topk=2, chunk=256, on_device=on_device)
        else:
            sync = SparseLoCo(
                model, adamw(model), sync_every=1, topk=2, chunk=256, transform="raw", on_device=on_device
            )
        train(sync, model, 0, range(1))  # DeMo compares all parameters before its first step
        with monkeypatch.context() as patch:
            travel = Travel(patch)
            train(sync, model, 0, range(1, 4))
        most[on_device] = travel
    chunks = 1 + size // 256
    assert 0 < most[True].up <= (chunks + 1) * (4 if method == "demo" else 2)
    assert 0 < most[True].down <= (chunks + 1) * (8 if method == "demo" else 2)
    assert max(most[False].up, most[False].down) >= size


@pytest.mark.parametrize("aggregation", ["selectors", "all"])
def test_demo_that_chooses_on_the_device_is_demo(aggregation: Any) -> None:
    ends = []
    for places in ((False, False), (True, False)):
        table = Table(2)

        def work(rank: int, table: Table = table, places: tuple[bool, bool] = places) -> Any:
            model = net()
            optimizer = DeMo(
                model.parameters(),
                compression_topk=8,
                compression_chunk=16,
                value_bits=2,
                aggregation=aggregation,
                on_device=places[rank],
                process_group=table.groups()[rank],
            )
            for step in range(4):
                loss(model, rank, step).backward()
                optimizer.step()
                optimizer.zero_grad()
            return flat(model)

        ends.append((together(2, work), table.sent))
    assert ends[0][1] == ends[1][1]
    assert all(torch.equal(a, b) for a, b in zip(ends[0][0], ends[1][0], strict=True))


def test_what_the_device_cannot_choose_stays_on_the_host() -> None:
    model = net().cpu()
    assert isinstance(SparseLoCo(model, adamw(model), transform="raw").memory, HostMemory)
    for transform in ("dct", "auto"):
        with pytest.raises(FarflungError, match="FF-SYNC-001"):
            SparseLoCo(model, adamw(model), transform=transform, on_device=True)


def test_a_sum_that_is_not_finite_is_refused_on_the_device() -> None:
    model = net()
    sync = SparseLoCo(model, adamw(model), sync_every=1, transform="raw", on_device=True)
    with torch.no_grad():
        next(model.parameters())[0, 0] = float("nan")
    with pytest.raises(FarflungError, match=r"FF-SYNC-005: weights of 0\.weight"):
        sync.step()

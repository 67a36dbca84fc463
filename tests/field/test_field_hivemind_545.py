"""hivemind #545, #476: averaging in a type that cannot hold the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from app_sync import Table, together
from torch import nn

from farflung.core.errors import FarflungError
from farflung.sync import LocalSGD


def ends(start: float, changes: tuple[float, ...], dtype: torch.dtype = torch.float32, **settings: Any) -> list[float]:
    groups = Table(len(changes)).groups()

    def work(rank: int) -> float:
        model = nn.Linear(1, 1, bias=False).to(dtype)
        with torch.no_grad():
            model.weight.fill_(start)
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        sync = LocalSGD(model, inner, sync_every=1, group=groups[rank], **settings)
        model.weight.grad = torch.full((1, 1), -changes[rank], dtype=dtype)
        sync.step()
        sync.check()
        return model.weight.item()

    return together(len(changes), work)


@pytest.mark.parametrize(
    ("start", "changes", "mean"),
    [
        (0.0, (100.0, 300.0), 200.0),
        (1e-9, (4e-9, 8e-9), 7e-9),
        (0.0, (-1e30, -3e30, -5e30), -3e30),
        (0.0, (1e-30, 5e-30), 3e-30),
        (0.0, (1e38, 3e38), 2e38),
        (0.0, (300.0, 0.0), 300.0),  # who changed nothing did not train it
        (0.0, (0.0, 0.0), 0.0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mean_holds_changes_of_any_size(
    start: float, changes: tuple[float, ...], mean: float, dtype: torch.dtype
) -> None:
    for end in ends(start, changes, dtype):
        assert end == pytest.approx(mean, rel=1e-6)


def test_large_changes_are_clipped_to_the_median_as_small_ones_are() -> None:
    for size in (1e-12, 1.0, 1e12):
        for end in ends(0.0, (size, size, 100 * size), clip_to_median=True):
            assert end == pytest.approx(size, rel=1e-6)


def test_tensors_of_unlike_sizes_are_averaged_each_in_its_own_range() -> None:
    groups = Table(2).groups()

    def work(rank: int) -> list[float]:
        model = nn.Linear(2, 1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        sync = LocalSGD(model, torch.optim.SGD(model.parameters(), lr=1.0), sync_every=1, group=groups[rank])
        model.weight.grad = -torch.tensor([[1000.0, 1e-3]]) * (1 + 2 * rank)
        model.bias.grad = -torch.tensor([1e-10]) * (1 + 2 * rank)
        sync.step()
        return [*model.weight.flatten().tolist(), *model.bias.tolist()]

    for end in together(2, work):
        assert end == pytest.approx([2000.0, 2e-3, 2e-10], rel=1e-3)


def test_double_precision_is_not_rounded_by_a_constructor_and_small_steps_add_up() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(1 + 1e-10)
    sync = LocalSGD(model, torch.optim.SGD(model.parameters(), lr=1.0), sync_every=1)
    assert model.weight.item() == 1 + 1e-10
    for _ in range(100):
        model.weight.grad = torch.full((1, 1), -4e-9, dtype=torch.float64)
        sync.step()
    assert model.weight.item() == pytest.approx(1 + 4e-7, abs=1.2e-7)
    assert sync.state.params[0] > 1


def test_a_value_beyond_what_is_exchanged_is_refused_by_name_before_the_first_step() -> None:
    model = nn.Linear(1, 1).double()
    with torch.no_grad():
        model.bias.fill_(1e200)
    with pytest.raises(FarflungError, match=r"FF-SYNC-002.*bias holds values over 3.4e\+38"):
        LocalSGD(model, torch.optim.SGD(model.parameters(), lr=1.0))

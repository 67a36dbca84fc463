"""A model whose blocks PyTorch cannot recompute selectively is traced all the same, and never planned smaller."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from farflung.plan.step_trace import Recomputation, check
from farflung.train.gauge import step_memory
from farflung.train.gauge.step_memory import StepSubject


class Net(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().sum()


def subject(rows: int) -> StepSubject:
    """A step of plain descent."""
    module = Net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, foreach=False)
    batch = (torch.randn(rows, 8),)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return StepSubject(module, batch, lambda: module(*batch), update, optimizer.zero_grad)


def test_what_cannot_be_recomputed_selectively_counts_as_not_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    once = step_memory._mode

    def mode(subject: Any, blocks: Any, living: Any, how: Recomputation) -> Any:
        found = once(subject, blocks, living, how)
        if how is Recomputation.SELECTIVE:
            raise RuntimeError("aten.slice.Tensor encountered during backward but not found in storage")
        return found

    whole = step_memory.measure(subject, 4)
    monkeypatch.setattr(step_memory, "_mode", mode)
    found = step_memory.measure(subject, 4)
    check(found)
    assert len(whole.blocks) > 1
    assert [each.recompute for each in found.modes] == [each.recompute for each in whole.modes]
    assert found.ran_rows == 0  # without numbers still
    assert found.peak(Recomputation.SELECTIVE) == found.peak() == whole.peak()
    assert found.peak(Recomputation.FULL) == whole.peak(Recomputation.FULL)

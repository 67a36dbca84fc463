"""A model whose blocks PyTorch cannot recompute selectively is traced all the same, and never planned smaller."""

from __future__ import annotations

from typing import Any

import pytest

from farflung.job.job_loader import load
from farflung.plan.step_trace import Recomputation, check
from farflung.train.gauge import job_step, step_memory
from farflung.train.gauge.request import StepMemoryRequest

SPEC = load(None, preset="tiny", flags={"model.layers": "2"}).spec


def test_what_cannot_be_recomputed_selectively_counts_as_not_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    once = step_memory._mode

    def mode(subject: Any, blocks: Any, living: Any, how: Recomputation) -> Any:
        found = once(subject, blocks, living, how)
        if how is Recomputation.SELECTIVE:
            raise RuntimeError("aten.slice.Tensor encountered during backward but not found in storage")
        return found

    whole = job_step.answer(StepMemoryRequest(SPEC, b""))
    monkeypatch.setattr(step_memory, "_mode", mode)
    found = job_step.answer(StepMemoryRequest(SPEC, b""))
    check(found)
    assert [each.recompute for each in found.modes] == [each.recompute for each in whole.modes]
    assert found.ran_rows == 0  # without numbers still
    assert found.peak(Recomputation.SELECTIVE) == found.peak() == whole.peak()
    assert found.peak(Recomputation.FULL) == whole.peak(Recomputation.FULL)

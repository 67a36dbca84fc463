"""What a loss that is no number is blamed on: `forward` in a user's first step, the learning rate after it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farflung.core.errors import RunError
from farflung.job.spec import JobSpec, ModelSpec, OptimizerSpec
from farflung.train import inner_steps


def no_number(*batch: Any) -> float:
    raise RunError("FF-TRAIN-058", "the loss is nan", hint="forward must return one finite scalar tensor")


@pytest.mark.parametrize(
    ("kind", "done", "code", "hint"),
    [
        ("gpt", 0, "FF-TRAIN-062", "lower optimizer.lr, which is 1e+30"),
        ("gpt", 7, "FF-TRAIN-062", "lower optimizer.lr, which is 1e+30"),
        ("module", 7, "FF-TRAIN-062", "lower optimizer.lr, which is 1e+30"),
        ("module", 0, "FF-TRAIN-058", "forward must"),
    ],
)
def test_a_loss_that_is_no_number_names_what_can_be_changed(kind: Any, done: int, code: str, hint: str) -> None:
    spec = JobSpec(model=ModelSpec(kind=kind, module="m.py:f"), optimizer=OptimizerSpec(lr=1e30))
    model: Any = SimpleNamespace(gradient=no_number)
    with pytest.raises(RunError, match=code) as error:
        inner_steps._step(model, spec, (None, None), None, done)  # type: ignore[arg-type]
    assert hint in (error.value.hint or "")

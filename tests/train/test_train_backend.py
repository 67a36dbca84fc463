"""A worker's device: everything crosses it the same way, and what is not here is named. No card took part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from farflung.core.errors import RunError, UsageError
from farflung.job.spec import JobSpec
from farflung.train import flat_model
from farflung.train.backend import registry
from farflung.train.worker_messages import SetupCommand

HERE = torch.device("cpu")
ABSENT = [name for name, each in registry.BACKENDS.items() if name != "cpu" and not each.cards()]


def test_the_device_of_a_setup_is_opened_and_computed_on(setup: Callable[..., SetupCommand], tiny: JobSpec) -> None:
    from farflung.train.engine import WorkerEngine

    for device in ("cpu", "auto") if len(ABSENT) == 3 else ("cpu",):
        engine = WorkerEngine(lambda: 0.0)
        engine.handle(msgspec.structs.replace(setup(tiny), device=device))
        model: Any = engine._job.model  # type: ignore[union-attr]
        assert model.device == model.grads.device == model.parameter_layout.decay.device == HERE


@pytest.mark.parametrize("kind", ABSENT)
def test_a_device_that_is_not_here_ends_the_setup_by_name(
    setup: Callable[..., SetupCommand], tiny: JobSpec, kind: str
) -> None:
    from farflung.train.engine import WorkerEngine

    with pytest.raises(RunError, match=f"the device {kind}.* is not here") as refused:
        WorkerEngine(lambda: 0.0).handle(msgspec.structs.replace(setup(tiny), device=kind))
    assert refused.value.code == "FF-TRAIN-110"
    with pytest.raises(UsageError, match="FF-PLAN-066"):
        registry.opened("cuda:0,1")


def test_a_card_draws_what_the_step_seeded(monkeypatch: pytest.MonkeyPatch, tiny: JobSpec) -> None:
    """The card's generator begins with the step's number, once a step whatever its passes are."""
    seen = list[int]()
    monkeypatch.setattr(registry.BACKENDS["cpu"], "seed", seen.append)
    model = flat_model.build(msgspec.structs.replace(tiny, accumulate=2), b"")
    model.put(flat_model.initial(tiny, model))
    x, y = (torch.zeros((2, tiny.model.context), dtype=torch.int64) for _ in range(2))
    for number in (5, 6):
        torch.default_generator.manual_seed(number)
        model.gradient(x, y)
    assert seen == [5, 6]

"""On which device a worker computes, as its owner writes it."""

from __future__ import annotations

import pytest

from farflung.core.errors import PolicyError, RunError, UsageError
from farflung.host import sandbox
from farflung.host.io import device_probe, doctor_torch
from farflung.host.machine_readings import CardReading, TorchReading
from farflung.host.sandbox import SandboxTier
from farflung.plan.device_choice import AUTO, CARDS, CPU, DeviceChoice
from farflung.train.backend.registry import BACKENDS


@pytest.mark.parametrize(
    ("text", "kind", "number", "told"),
    [
        ("auto", "auto", 0, "auto"),
        ("cpu", "cpu", 0, "cpu"),
        ("mps", "mps", 0, "mps"),
        ("cuda", "cuda", 0, "cuda:0"),
        ("cuda:3", "cuda", 3, "cuda:3"),
        ("xpu:1", "xpu", 1, "xpu:1"),
    ],
)
def test_a_device_is_a_kind_and_a_number(text: str, kind: str, number: int, told: str) -> None:
    assert DeviceChoice.of(text) == (kind, number)
    assert str(DeviceChoice.of(text)) == told
    assert DeviceChoice.of(told) == DeviceChoice.of(text)


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:-1", "mps:1", "cpu:0", "cuda:0,1", "CUDA", "cuda:1234"])
def test_what_is_no_device_or_several_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="FF-PLAN-066") as refused:
        DeviceChoice.of(text)
    assert (refused.value.hint == "one node a card: --slot 1 --device cuda:0, --slot 2 --device cuda:1") == (
        "," in text
    )


def test_every_kind_has_a_backend_and_no_other_has() -> None:
    assert set(BACKENDS) == {CPU, *CARDS}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer with one card, as PyTorch would tell of it; no card took part."""
    found = TorchReading("2.13.0", cards=(CardReading("cuda", 0, "NVIDIA H200", 150_000_000_000, True),))
    monkeypatch.setattr(doctor_torch, "torch", lambda seconds: found)


@pytest.mark.usefixtures("machine")
def test_a_card_is_lent_where_a_worker_can_reach_it_and_refused_before_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tier(name: str) -> None:
        monkeypatch.setattr(device_probe.sandbox_tiers, "choose", lambda: SandboxTier(name, ()))

    tier(sandbox.LIMITS)
    assert [device_probe.usable(text) for text in (AUTO, CPU, "cuda")] == ["cuda:0", CPU, "cuda:0"]
    with pytest.raises(RunError, match="FF-HOST-123"):
        device_probe.usable("cuda:1")
    tier(sandbox.BWRAP)
    assert [device_probe.usable(text) for text in (AUTO, CPU)] == [CPU, CPU]
    with pytest.raises(PolicyError, match="FF-HOST-122"):
        device_probe.usable("cuda")

"""Finds the device that a node's owner chose, among the kinds that there are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch

from farflung.core.errors import RunError
from farflung.plan.device_choice import DeviceChoice
from farflung.train.backend.cpu import CpuBackend
from farflung.train.backend.cuda import CudaBackend
from farflung.train.backend.device_backend import DeviceBackend, DeviceCard
from farflung.train.backend.mps import MpsBackend
from farflung.train.backend.xpu import XpuBackend

_ALL: Final[tuple[DeviceBackend, ...]] = (CpuBackend(), CudaBackend(), MpsBackend(), XpuBackend())
BACKENDS: Final[Mapping[str, DeviceBackend]] = MappingProxyType({each.name: each for each in _ALL})


def backend_of(device: torch.device) -> DeviceBackend:
    """What is known of a device's kind."""
    return BACKENDS[device.type]


def cards() -> list[tuple[str, int, DeviceCard]]:
    """Every card of this computer that torch can use here: its kind, its number and what it is."""
    return [(name, number, card) for name, each in BACKENDS.items() for number, card in enumerate(each.cards())]


def opened(text: str) -> torch.device:
    """The device of this name (plan.device_choice), settled for work that others repeat.

    Raises UsageError FF-PLAN-066 (no such name, several cards), RunError FF-TRAIN-110 (not here).
    """
    choice = DeviceChoice.of(text)
    if choice.is_auto:
        choice = next((DeviceChoice(kind, number) for kind, number, _ in cards()), DeviceChoice())
    backend = BACKENDS[choice.kind]
    if choice.is_card and choice.number >= (found := len(backend.cards())):
        raise RunError(
            "FF-TRAIN-110",
            f"the device {choice} is not here",
            cause=f"PyTorch {torch.__version__} sees {found} of this kind from inside the worker",
            hint="`farflung check` names the cards; lend without --device, and the processor computes",
        )
    backend.settle()
    return torch.device(str(choice))

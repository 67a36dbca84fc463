"""Intel's cards. Not run on one yet."""

from __future__ import annotations

import torch

from farflung.train.backend.device_backend import DeviceCard


class XpuBackend:
    """As PyTorch has it by itself."""

    name = "xpu"

    def cards(self) -> tuple[DeviceCard, ...]:
        """See `DeviceBackend.cards`."""
        return tuple(map(_card, range(torch.xpu.device_count()))) if torch.xpu.is_available() else ()

    def settle(self) -> None:
        """As it is."""

    def seed(self, number: int) -> None:
        """See `DeviceBackend.seed`."""
        torch.xpu.manual_seed_all(number)


def _card(number: int) -> DeviceCard:
    found = torch.xpu.get_device_properties(number)
    return DeviceCard(found.name, found.total_memory, torch.xpu.is_bf16_supported())

"""Apple's processors (Metal): one card, whose memory is the computer's. Not run on one yet."""

from __future__ import annotations

import torch

from farflung.train.backend.device_backend import DeviceCard


class MpsBackend:
    """Float32 is exact there; there is no float64, and nothing here takes it to a device."""

    name = "mps"

    def cards(self) -> tuple[DeviceCard, ...]:
        """See `DeviceBackend.cards`."""
        if not torch.backends.mps.is_available():
            return ()
        has_bf16 = torch.backends.mps.is_macos_or_newer(14, 0)
        return (DeviceCard("Apple GPU", torch.mps.recommended_max_memory(), has_bf16),)

    def settle(self) -> None:
        """As it is."""

    def seed(self, number: int) -> None:
        """See `DeviceBackend.seed`."""
        torch.mps.manual_seed(number)

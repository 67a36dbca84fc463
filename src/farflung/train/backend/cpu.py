"""The processor: always there. What is drawn on it comes from torch's default generator."""

from __future__ import annotations

from farflung.train.backend.device_backend import DeviceCard


class CpuBackend:
    """The processor's cores, which a worker's threads share."""

    name = "cpu"

    def cards(self) -> tuple[DeviceCard, ...]:
        """None."""
        return ()

    def settle(self) -> None:
        """As it is."""

    def seed(self, number: int) -> None:
        """It has no other generator."""

"""Says what a worker must know of a kind of device beside the tensors that lie on it."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class DeviceCard(NamedTuple):
    """One card of this computer as its driver tells of it. `memory`: bytes."""

    name: str
    memory: int
    has_bf16: bool


class DeviceBackend(Protocol):
    """A kind of device. `name` is torch's, and the type of device that autocast is told."""

    name: str

    def cards(self) -> tuple[DeviceCard, ...]:
        """Those that this process can use, by their numbers; none: a build of PyTorch without it, no driver, no card,
        or a sandbox that keeps it closed.
        """

    def settle(self) -> None:
        """Makes float32 products those of float32, and the same each time."""

    def seed(self, number: int) -> None:
        """Starts the device's own generator at a number, as torch's default one."""

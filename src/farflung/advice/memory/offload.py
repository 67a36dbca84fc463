"""Computes what a card moves in a step when part of its job lies in its machine's memory or on its disk (J9,
T6).

What lies where, the footprint says. Of M parameters, in a step of m micro-batches:

    optimizer     2 M m up, gradients of each; 2 M down, the new weights            Ren et al. 2021, section 4.1
    parameters    2 x 2 M m down, for the forward and for the backward pass; the new weights are there already
    activations   what a micro-batch keeps, m times, up and down                    ZeRO, section 6.1
    on disk       float32 gradients written and read for each micro-batch, the optimizer's K M read and written once,
                  parameters read twice for each micro-batch and written once       ZeRO-Infinity, sections 5 and 6
"""

from __future__ import annotations

from typing import Final, NamedTuple

from farflung.advice.memory.breakdown import Footprint, MemoryPlace
from farflung.advice.memory.model_states import MOVED_GRADIENTS
from farflung.advice.traffic import input_checks

HALF: Final = 2  # bytes of a bfloat16
DISK: Final = 500e6  # bytes/s, read or written: a SATA SSD's (assumed)
DISK_SOURCE: Final = "Rajbhandari et al. 2021 (ZeRO-Infinity), sections 5 and 6; 500 MB/s are assumed"


class OffloadTraffic(NamedTuple):
    """Bytes of one card in a step."""

    up: float  # to the machine
    down: float
    disk: float  # of its machine's disk, read and written

    @property
    def bus(self) -> float:
        """Of the direction that carries more: a bus has both at once."""
        return max(self.up, self.down)


def moved(need: Footprint, micros: int = 1) -> OffloadTraffic:
    """What a card with this footprint, which holds all layers, moves in a step of so many micro-batches.

    Raises UsageError FF-PLAN-020.
    """
    input_checks.count("micros", micros, most=10**9)
    weights, gradients, activations = (_away(need, name) for name in ("weights", "gradients", "activations"))
    sent = gradients * HALF / MOVED_GRADIENTS
    back = 2 * micros * weights if weights else sent
    disk = (
        2 * micros * _away(need, "gradients", MemoryPlace.DISK)
        + 2 * _away(need, "optimizer", MemoryPlace.DISK)
        + (2 * micros + 1) * _away(need, "weights", MemoryPlace.DISK)
        + 2 * micros * _away(need, "activations", MemoryPlace.DISK)
    )
    return OffloadTraffic(micros * (sent + activations), back + micros * activations, disk)


def _away(need: Footprint, name: str, place: MemoryPlace | None = None) -> float:
    """Bytes of parts with this name in that place, or anywhere but on the card."""
    return sum(
        part.bytes
        for part in need.parts
        if part.name == name and (part.place is place if place else part.place is not MemoryPlace.CARD)
    )

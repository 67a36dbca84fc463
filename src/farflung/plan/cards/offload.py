"""What a job keeps in a machine's memory instead of the card's, and what that moves over the bus (J9, T6).

ZeRO-Offload (Ren et al. 2021, section 4.1) keeps the optimizer in the machine: gradients go there and parameters come
back, two bytes of each, 4 M bytes a step for M parameters. With the parameters kept there too, they are fetched for the
forward and for the backward pass. Bytes of memory are those of DeepSpeed's estimators (documentation, memory
requirements), which the reference values of the research were checked against:

    optimizer                max(4 x cards, 16) bytes a parameter, x 1.5
    optimizer, parameters    18 bytes a parameter, x 1.5; max(4 x cards, 18) where each process first builds the model
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final, NamedTuple

from farflung.core.units import Bytes
from farflung.plan.cards.admission import RESERVE
from farflung.plan.cards.amounts import checked, whole

HALF: Final = 2  # bytes of a bfloat16


class Offload(StrEnum):
    """What is kept outside the card."""

    NOTHING = "nothing"
    OPTIMIZER = "optimizer"
    ALL = "all"  # optimizer and parameters


class Bus(NamedTuple):
    """Bytes that pass between one card and the machine in a step."""

    up: float  # to the machine
    down: float

    @property
    def busiest(self) -> float:
        """Of the direction that carries more: a bus has both at once."""
        return max(self.up, self.down)


def memory_bytes(parameters: int, offload: Offload, cards: int = 1, *, is_built_there: bool = False) -> Bytes:
    """Bytes of a machine's memory for each of its `cards`, which share one replica of the model.

    `is_built_there`: each card's process first builds the whole model. Raises UsageError FF-PLAN-035.
    """
    whole("parameters", parameters, 0, 10**15)
    whole("cards", cards, 1, 1 << 16)
    match offload:
        case Offload.NOTHING:
            each = 0
        case Offload.OPTIMIZER:
            each = max(4 * cards, 16)
        case Offload.ALL:
            each = max(4 * cards, 18) if is_built_there else 18
    return Bytes(math.ceil(parameters * each * RESERVE / cards))


def bus_bytes(parameters: int, offload: Offload, cards: int = 1, activations: float = 0.0) -> Bus:
    """What one of `cards` moves in a step; `activations`: bytes that it keeps in the machine between the passes.

    Raises UsageError FF-PLAN-035.
    """
    whole("parameters", parameters, 0, 10**15)
    part = parameters / whole("cards", cards, 1, 1 << 16) * HALF
    kept = checked("activations", activations, 0.0, 1e18)
    match offload:
        case Offload.NOTHING:
            return Bus(kept, kept)
        case Offload.OPTIMIZER:
            return Bus(part + kept, part + kept)
        case Offload.ALL:
            return Bus(part + kept, 2 * part + kept)

"""Decides before a node registers on which device its worker will compute: one that is here, and open to a worker."""

from __future__ import annotations

from typing import Final

from farflung.core.errors import PolicyError, RunError
from farflung.host import sandbox
from farflung.host.io import doctor_torch, sandbox_tiers
from farflung.host.machine_readings import TorchReading
from farflung.plan.device_choice import CPU, DeviceChoice

SECONDS: Final = 60.0  # for PyTorch to load and to ask its drivers


def usable(text: str) -> str:
    """The device that `text` names (plan.device_choice), as a worker is told; `auto`: a card that it can use, if any.

    Raises UsageError FF-PLAN-066 (no such name), PolicyError FF-HOST-122 (the sandbox keeps cards closed), RunError
    FF-HOST-123 (no such card here).
    """
    choice = DeviceChoice.of(text)
    is_closed = sandbox_tiers.choose().name != sandbox.LIMITS
    if not choice.is_card and (is_closed or not choice.is_auto):
        return CPU
    if is_closed:
        raise PolicyError(
            "FF-HOST-122",
            f"a worker in the sandbox cannot use {choice}",
            cause=f"its tier {sandbox_tiers.choose().name} keeps the files of all devices closed",
            hint="lend without --device: the processor computes; cards in the sandbox are to come",
        )
    found = doctor_torch.torch(SECONDS)
    cards = [DeviceChoice(card.kind, card.number) for card in found.cards] if isinstance(found, TorchReading) else []
    if choice.is_auto:
        return str(cards[0]) if cards else CPU
    if choice not in cards:
        raise RunError(
            "FF-HOST-123",
            f"this computer has no {choice} that PyTorch can use",
            cause=f"it has {', '.join(map(str, cards)) or 'none'}",
            hint="`farflung check` says what PyTorch finds; `farflung setup` installs the build for your cards",
        )
    return str(choice)

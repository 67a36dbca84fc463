"""Reads on which device a node's worker computes, as its owner writes it: cpu, cuda, cuda:1, mps, xpu, or auto.

It is the owner's setting and no term of a job: what a card computes is judged by the job's tolerances as any other
machine's.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from farflung.core.errors import UsageError

AUTO: Final = "auto"
CPU: Final = "cpu"
CARDS: Final = ("cuda", "mps", "xpu")
_FORM: Final = re.compile(r"(auto|cpu|mps|cuda|xpu)|(cuda|xpu):(\d{1,3}(?:,\d{1,3})*)")


class DeviceChoice(NamedTuple):
    """A kind of device, and the number of a card."""

    kind: str = CPU
    number: int = 0

    @classmethod
    def of(cls, text: str) -> DeviceChoice:
        """Raises UsageError FF-PLAN-066 for what is no device, and for several cards at once."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise _refused(text, "there are auto, cpu, cuda, cuda:N, mps, xpu, xpu:N", "--device cuda")
        numbers = (match[3] or "0").split(",")
        if len(numbers) > 1:
            each = [f"--slot {slot} --device {match[2]}:{number}" for slot, number in enumerate(numbers, 1)]
            raise _refused(text, "one worker computes on one card", f"one node a card: {', '.join(each[:2])}")
        return cls(match[1] or match[2], int(numbers[0]))

    @property
    def is_auto(self) -> bool:
        """The first card that there is, else the processor."""
        return self.kind == AUTO

    @property
    def is_card(self) -> bool:
        """Whether it is no processor."""
        return self.kind in CARDS

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}" if self.kind in ("cuda", "xpu") else self.kind


def _refused(text: str, cause: str, hint: str) -> UsageError:
    return UsageError("FF-PLAN-066", f"a worker cannot compute on {text[:40]!r}", cause=cause, hint=hint)

"""How a probe of `farflung check` went: a state, what was measured and, where that is not good, why and what next."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from farflung.core.units import format_seconds

MISSED: Final = "could not measure"


class State(StrEnum):
    """How a probe went; `note` is a fact without a judgement."""

    OK = "ok"
    SLOW = "slow"  # works, and a run takes longer for it
    WARN = "warn"  # works, with less safety or room than it should have
    FAILS = "fails"
    UNKNOWN = "unknown"
    NOTE = "note"


class Detail(msgspec.Struct, frozen=True):
    """A line below a finding: a word that says what it is, and the line."""

    word: str
    text: str


class Finding(msgspec.Struct, frozen=True):
    """One probe, judged. What is slow, warned of, failing or unknown has a cause and a step; what fails has a code."""

    name: str
    state: State
    measured: str
    cause: str = ""
    step: str = ""
    code: str = ""
    details: tuple[Detail, ...] = ()


def brief(value: float) -> str:
    """A short time: `0.21 ms`, `0.31 s`."""
    return f"{value * 1000:.2g} ms" if value < 0.1 else format_seconds(value)

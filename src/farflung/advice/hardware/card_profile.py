"""Reads a user's own measurements of a card; they take precedence over the table and are marked `measured` (P3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from farflung.core import bounded_toml, limits
from farflung.core.errors import UsageError
from farflung.core.units import Bytes

TEXT: Final = frozenset({"card", "conditions"})
# What a figure may be at most: three times the fastest card that there is. More is a wrong unit.
MOST: Final = {
    "fp32_tflops": 1e4,
    "fp16_tflops": 1e4,
    "bf16_tflops": 1e4,
    "bandwidth_gb_s": 3e4,
    "watts": 1e4,
    "memory_gb": 4096.0,
}
# And at least: a tenth of a processor core's rate. Less is a wrong unit, too, and a plan with it one of years.
LEAST: Final = {
    "fp32_tflops": 1e-3,
    "fp16_tflops": 1e-3,
    "bf16_tflops": 1e-3,
    "bandwidth_gb_s": 0.1,
    "watts": 0.1,
    "memory_gb": 0.01,
}


class CardProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Sustained FLOP/s by precision, bytes/s, W at the card's own limit and bytes to use; None: not measured.

    `conditions` says how, in the user's words.
    """

    card: str
    conditions: str = ""
    fp32: float | None = None
    fp16: float | None = None
    bf16: float | None = None
    bandwidth: float | None = None
    watts: float | None = None
    memory_bytes: Bytes | None = None

    def rate(self, precision: str) -> float | None:
        """FLOP/s that were measured in `fp32`, `fp16` or `bf16`."""
        return {"fp32": self.fp32, "fp16": self.fp16, "bf16": self.bf16}[precision]


def parse(text: str) -> CardProfile:
    """A profile as TOML: `card` and any of fp32_tflops, fp16_tflops, bf16_tflops, bandwidth_gb_s, watts, memory_gb.

    Raises UsageError FF-PLAN-033 that names the field: unknown, missing, no number, not above zero, absurd.
    """
    try:
        said = bounded_toml.parse(text, limits.CARD_PROFILE_CHARACTERS)
    except ValueError as error:  # whole numbers of thousands of digits are none of TOML's own errors
        raise _wrong("the file", f"it is no TOML: {error}"[:200]) from error
    return of(said)


def of(said: Mapping[str, Any]) -> CardProfile:
    """The same of a table that was read already. Raises UsageError FF-PLAN-033."""
    for field in said:
        if field not in TEXT and field not in MOST:
            raise _wrong(field[:40], f"known are card, conditions, {', '.join(MOST)}")
    return CardProfile(
        card=_text(said, "card"),
        conditions=_text(said, "conditions", ""),
        fp32=_number(said, "fp32_tflops", 1e12),
        fp16=_number(said, "fp16_tflops", 1e12),
        bf16=_number(said, "bf16_tflops", 1e12),
        bandwidth=_number(said, "bandwidth_gb_s", 1e9),
        watts=_number(said, "watts", 1.0),
        memory_bytes=_bytes(said),
    )


def _text(said: Mapping[str, Any], field: str, default: str | None = None) -> str:
    value = said.get(field, default)
    if not isinstance(value, str) or (default is None and not value.strip()):
        raise _wrong(field, "it is a text in quotes" if field in said else "it is missing")
    if len(value) > limits.CARD_TEXT_CHARACTERS or not value.isprintable():
        raise _wrong(field, f"it is one printable line of at most {limits.CARD_TEXT_CHARACTERS} characters")
    return value


def _number(said: Mapping[str, Any], field: str, scale: float) -> float | None:
    if field not in said:
        return None
    value = said[field]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(field, "it is a number, without quotes")
    if not LEAST[field] <= value <= MOST[field]:  # false for nan too
        raise _wrong(field, f"it is {LEAST[field]:g} to {MOST[field]:g}, what cards are like; unknown: leave it out")
    return float(value) * scale


def _bytes(said: Mapping[str, Any]) -> Bytes | None:
    found = _number(said, "memory_gb", 1e9)
    return None if found is None else Bytes(round(found))


def _wrong(field: str, cause: str) -> UsageError:
    return UsageError(
        "FF-PLAN-033",
        f"this is no profile of a card: {field}",
        cause=cause,
        hint='write it like card = "RTX 3060 12GB" and fp16_tflops = 21.5',
    )

"""Checks whole numbers from outside against their ranges, and names the field that is wrong."""

from __future__ import annotations

from collections.abc import Mapping

Range = tuple[object, int, int]  # a value, the least and the most that it may be


def fault(fields: Mapping[str, Range]) -> str:
    """The first field that is no whole number within its range; empty: none is."""
    for name, (value, least, most) in fields.items():
        if type(value) is not int or not least <= value <= most:
            return f"{name} is {str(value)[:40]}, and must be a whole number from {least} to {most}"
    return ""

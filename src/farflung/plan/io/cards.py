"""Reads the table of cards that comes with the package, and profiles that users wrote."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.plan.cards import profile, table
from farflung.plan.cards.profile import Profile
from farflung.plan.cards.table import Table

FILE: Final = Path(__file__).resolve().parents[1] / "cards" / "cards.csv"


@cache
def read() -> Table:
    """The cards that farflung knows."""
    return table.parse(FILE.read_text(encoding="utf-8"))


def read_profile(path: Path) -> Profile:
    """A measured profile; raises UsageError FF-PLAN-033 (its field), FF-PLAN-038 (it cannot be read)."""
    try:
        with path.open("rb") as file:
            data = file.read(4 * limits.CARD_PROFILE_CHARACTERS + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "FF-PLAN-038",
            f"the profile {path.name} cannot be read",
            cause=str(error),
            hint="name a text file in UTF-8",
        ) from error
    return profile.parse(text)

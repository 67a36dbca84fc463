"""Reads the table of cards that comes with the package, and profiles that users wrote."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from farflung.advice.hardware import card_profile, card_table
from farflung.advice.hardware.card_profile import CardProfile
from farflung.advice.hardware.card_table import CardTable
from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.io.ordinary_files import open_ordinary

FILE: Final = Path(__file__).resolve().parents[1] / "hardware" / "cards.csv"


@cache
def read() -> CardTable:
    """The cards that farflung knows."""
    return card_table.parse(FILE.read_text(encoding="utf-8"))


def read_profile(path: Path) -> CardProfile:
    """A measured profile; raises UsageError FF-PLAN-033 (its field), FF-PLAN-038 (it cannot be read)."""
    cause = ""
    try:
        with open_ordinary(path) as file:
            text = file.read(4 * limits.CARD_PROFILE_CHARACTERS + 1).decode()
    except OSError as error:
        cause = error.strerror or str(error)
    except UnicodeDecodeError:
        cause = "it is no text in UTF-8"
    if cause:
        raise UsageError(
            "FF-PLAN-038", f"the profile {path.name} cannot be read", cause=cause, hint="name a text file in UTF-8"
        )
    return card_profile.parse(text)

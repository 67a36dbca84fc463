"""An optional part of farflung brings a library that only some verbs need; without it their error names the command
that installs it.

`train` is PyTorch, for whoever trains, verifies or runs a model; `report` draws pages. A ledger, a relay and a client
start without both (decision 085).
"""

from __future__ import annotations

import importlib.util
from typing import Final, NamedTuple

from farflung.core.errors import UsageError


class OptionalLibrary(NamedTuple):
    """What people call it, the extra that brings it, and the command that installs it here."""

    title: str
    extra: str
    command: str


LIBRARIES: Final = {
    "torch": OptionalLibrary("PyTorch", "train", "farflung setup"),
    "jinja2": OptionalLibrary("Jinja2", "report", "pip install jinja2 matplotlib"),
    "matplotlib": OptionalLibrary("Matplotlib", "report", "pip install jinja2 matplotlib"),
}


def not_installed(library: str) -> UsageError | None:
    """The error of an import that failed, UsageError FF-CORE-120; None: no extra brings this library."""
    known = LIBRARIES.get(library.partition(".")[0])
    if known is None:
        return None
    return UsageError(
        "FF-CORE-120",
        f"{known.title} is not installed",
        cause=f"this command needs the extra {known.extra}, and farflung was installed without it",
        hint=known.command,
    )


def require(library: str) -> None:
    """Raises UsageError FF-CORE-120 where a library of LIBRARIES is not installed; imports nothing."""
    if importlib.util.find_spec(library) is None:
        error = not_installed(library)
        assert error is not None
        raise error

"""Locates a user's own files that belong to no run, by the XDG Base Directory Specification 0.8.

The folder of compiled code is for the program's own processes. A worker in its sandbox is told the same choice of
kernels but no folder: what lies there is run by every later process of this user, so nothing that runs a stranger's
model may write to it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from farflung.compress import kernels


def config_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """What the user wrote."""
    return _folder("XDG_CONFIG_HOME", ".config", environment)


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """What is counted from day to day."""
    return _folder("XDG_STATE_HOME", ".local/state", environment)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """What can be made again."""
    return _folder("XDG_CACHE_HOME", ".cache", environment)


def _folder(variable: str, otherwise: str, environment: Mapping[str, str]) -> Path:
    base = environment.get(variable, "")
    return (Path(base) if os.path.isabs(base) else Path.home() / otherwise) / "farflung"


def choose_kernels() -> None:
    """Does what FARFLUNG_KERNELS says: `auto`, `numpy` or `numba`. Raises UsageError FF-COMP-037, 038."""
    kernels.use(os.environ.get("FARFLUNG_KERNELS") or "auto", cache=str(cache_folder() / "kernels"))

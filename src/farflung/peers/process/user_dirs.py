"""Locates a user's own files that belong to no run, by the XDG Base Directory Specification 0.8."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


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

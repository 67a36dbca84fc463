"""Runs pip to install PyTorch into the environment of this very interpreter."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from farflung.core.errors import RunError, UsageError
from farflung.host import torch_build
from farflung.host.torch_build import GraphicsCards

PROBE_SECONDS: Final = 10.0  # for a driver's own program to list its cards


def cards() -> GraphicsCards:
    """The cards that drivers of this computer list."""
    return GraphicsCards(nvidia=_lists("nvidia-smi", "-L"), amd=_lists("rocminfo"))


def nvidia_driver() -> str:
    """The version of NVIDIA's driver; "" where there is none."""
    said = _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    return said[0].strip()[:40] if said else ""


def _lists(*command: str) -> bool:
    """Whether the driver's program is there, answers in time, and says that all is well."""
    return bool(_said(*command))


def _said(*command: str) -> str:
    """What it says then; "" otherwise."""
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        done = subprocess.run([program, *command[1:]], capture_output=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""


def installed() -> str:
    """The version of PyTorch that is here, without loading it; "" where there is none."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def command(build: str, index: str, *, again: bool) -> list[str]:
    """The command that installs it here. Raises UsageError FF-HOST-120 (no environment, or no pip in it)."""
    if sys.prefix == sys.base_prefix:
        raise UsageError(
            "FF-HOST-120",
            "this farflung is not in a virtual environment",
            cause=f"{sys.prefix} belongs to the system, and other programs share its libraries",
            hint="python3 -m venv farflung-env, install farflung there, then its own `farflung setup`",
        )
    if importlib.util.find_spec("pip") is None:
        raise UsageError(
            "FF-HOST-120",
            "this virtual environment has no pip",
            cause=f"{sys.prefix} was made without it",
            hint=f"{sys.executable} -m ensurepip, then `farflung setup`",
        )
    return [sys.executable, "-m", "pip", *torch_build.arguments(build, platform.system(), index, again=again)]


def install(words: Sequence[str]) -> None:
    """Runs the command, whose lines go to stderr. Raises RunError FF-HOST-121: pip ended with another status than 0."""
    done = subprocess.run(words, stdout=sys.stderr, check=False)
    if done.returncode:
        raise RunError(
            "FF-HOST-121",
            "PyTorch was not installed",
            cause=f"pip ended with status {done.returncode}; its lines above say why",
            hint="the same again when the network is there; `--index URL` takes PyTorch from another address",
        )

"""Finds the sandbox tiers that work on this machine: each is tried with a process that starts and checks its own
restrictions.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from farflung.core.errors import PolicyError
from farflung.host import exit_reason, sandbox
from farflung.host.io import cgroup, landlock
from farflung.host.io.launch import PYTHON, has_landlock, has_memory_folder, launch
from farflung.host.sandbox import SandboxSupport, SandboxTier
from farflung.host.seccomp import ARCHITECTURES
from farflung.host.worker_limits import WorkerLimits

VARIABLE: Final = "FARFLUNG_SANDBOX"
PROBE_SECONDS: Final = 20.0

# It must be able to write its folder, and unable to make a socket, to fork, or to read what any user can.
PROBE: Final = """
import os, socket, sys
open("probe", "wb").write(b"x")
for wall in (socket.socket, os.fork, lambda: open("/etc/passwd")):
    try:
        wall()
    except OSError:
        continue
    sys.exit("a wall is missing")
"""
PLAIN: Final = 'open("probe", "wb").write(b"x")'


class TierTestResult(msgspec.Struct, frozen=True):
    """One tier on this machine: `why` it does not work ("" if it does), and the command that would change that."""

    tier: SandboxTier
    why: str
    command: str


@cache
def sandbox_support() -> SandboxSupport:
    """What this machine gives to any tier; a group is really made and removed."""
    group = cgroup.create(WorkerLimits())
    controllers = frozenset[str]() if group is None else group.controllers
    if group is not None:
        group.remove()
    return SandboxSupport(os.geteuid() == 0, controllers, has_memory_folder(), has_landlock())


@cache
def probe(name: str) -> str:
    """Why the tier `name` does not work here; "" when it does."""
    if name != sandbox.LIMITS and sys.platform != "linux":
        return f"{name} needs Linux, this is {platform.system()}"
    if name != sandbox.LIMITS and platform.machine() not in ARCHITECTURES:
        return f"there is no seccomp filter for {platform.machine()}"
    try:
        if name == sandbox.LANDLOCK:
            landlock.abi()
        return _try(name)
    except OSError as error:
        return error.strerror or str(error)


def _try(name: str) -> str:
    code = PLAIN if name == sandbox.LIMITS else PROBE
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        started = launch(name, [*PYTHON, "-S", "-c", code], WorkerLimits(), Path(folder), os.environ, log=log.fileno())
        try:
            status = started.process.wait(PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            started.end(0)
            return f"a process in it did not end within {PROBE_SECONDS:.0f} s"
        finally:
            started.discard()
        log.seek(0)
        words = exit_reason.last_line(log.read(4096))
    return "" if status == 0 else words or exit_reason.reason(status, b"")


def try_tier(name: str) -> TierTestResult:
    """The tier and whether it works; asks the machine once per process."""
    why = probe(name)
    return TierTestResult(sandbox.tier(name, sandbox_support()), why, sandbox.remedy(name, why))


def strongest() -> SandboxTier:
    """The strongest tier that works here; weaker ones are not tried. Raises PolicyError FF-HOST-005: none."""
    for name in sandbox.ORDER:
        if not probe(name):
            return sandbox.tier(name, sandbox_support())
    raise PolicyError(
        "FF-HOST-005",
        "no sandbox works on this machine",
        cause=probe(sandbox.LIMITS),
        hint="see that processes may be started; `farflung check`",
    )


def choose(name: str | None = None) -> SandboxTier:
    """The tier `name`, else the one that FARFLUNG_SANDBOX names, else the strongest. Never a weaker one silently.

    Raises PolicyError FF-HOST-003 (no such tier), FF-HOST-004 (it does not work here), FF-HOST-005.
    """
    wanted = name or os.environ.get(VARIABLE, "")
    if not wanted:
        return strongest()
    if wanted not in sandbox.ORDER:
        raise PolicyError(
            "FF-HOST-003",
            f"no sandbox tier {wanted[:40]!r}",
            cause=f"{VARIABLE} or the caller names it; there are {', '.join(sandbox.ORDER)}",
            hint=f"unset {VARIABLE}: the strongest that works is taken",
        )
    found = try_tier(wanted)
    if found.why:
        raise PolicyError(
            "FF-HOST-004",
            f"the sandbox tier {wanted} does not work here",
            cause=found.why,
            hint=found.command or "`farflung check` shows the tiers that work",
        )
    return found.tier

"""Confines itself, then becomes a command: `python -m farflung.host.io.confine ITEM ... -- COMMAND ...`.

    RLIMIT_X=N[:M]   a resource limit, soft (and hard, where it is another)
    parent=PID       end when the agent with this number ends
    death_pipe=FD    end when the other end of this pipe is closed (host.io.launch)
    read= write= device= list=PATH   Landlock: what may be read and run, written, used, listed; the rest is closed
    own=PATH         the same, of a file of this process in /proc: read and written
    seccomp=MACHINE  the filter of host.seccomp for this machine

Everything is on before the command's first instruction (exec, the same pid): torch starts threads when it is
imported, and a filter holds for the threads that start after it. Limits first, as they are the weakest and need
files; then no_new_privs, without which the kernel takes no filter of a plain user; seccomp last, as it would
refuse what the others need. Not subprocess' `preexec_fn`: that runs Python between fork and exec, where a lock
held by another thread of the parent is never released. Not `prlimit` on the running child either: too late.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Sequence
from typing import Final

REFUSED: Final = 125  # the exit status when the kernel does not take what confines
_PDEATHSIG, _SECCOMP, _CAPBSET_DROP, _NO_NEW_PRIVS = 1, 22, 24, 38  # prctl
_FILTER: Final = 2  # SECCOMP_MODE_FILTER
_LAST_CAPABILITY: Final = 63
_CAPABILITY_VERSION_3: Final = 0x2008_0522


def lower(name: str, soft: int, hard: int) -> None:
    """Sets the limit `name`, or to the present hard limit where that is lower."""
    which = getattr(resource, name, None)
    if which is None:  # this kernel has no such limit
        return
    _, present = resource.getrlimit(which)
    if present != resource.RLIM_INFINITY:
        soft, hard = min(soft, present), min(hard, present)
    try:
        resource.setrlimit(which, (soft, hard))
    except (ValueError, OSError) as error:  # macOS refuses RLIMIT_AS and RLIMIT_DATA
        if platform.system() == "Linux":
            raise
        sys.stderr.write(f"{name} is not enforced here: {error}\n")


def _prctl(option: int, *values: object) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, *values) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def _word(value: int) -> ctypes.c_ulong:
    return ctypes.c_ulong(value)


def drop_capabilities() -> None:
    """Root keeps its user number and loses its powers: to raise limits, to open any file, to mount."""
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            _prctl(_CAPBSET_DROP, _word(capability), _word(0), _word(0), _word(0))
        except OSError:  # past the last one that this kernel has, or gone already
            continue
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, bytes(24)) != 0:
        raise OSError(ctypes.get_errno(), "capset is refused")


def filter_calls(machine: str) -> None:
    """Installs the seccomp filter for this process. Raises OSError, KeyError: an unknown machine."""
    from farflung.host.seccomp import program

    code = ctypes.create_string_buffer(program(machine, os.getpid()))
    header = struct.pack("@HP", (len(code) - 1) // 8, ctypes.addressof(code))  # struct sock_fprog
    _prctl(_SECCOMP, _word(_FILTER), header)


def end_with(parent: int) -> None:
    """The kernel kills this process when the agent that started it ends."""
    _prctl(_PDEATHSIG, _word(signal.SIGKILL), _word(0), _word(0), _word(0))
    if os.getppid() != parent:  # it ended before this was asked
        sys.exit(REFUSED)


def end_with_pipe(descriptor: int) -> None:
    """The kernel kills this process and its group when the agent closes its end of the pipe."""
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, -os.getpgrp())
    try:
        os.read(descriptor, 1)
    except BlockingIOError:
        return
    sys.exit(REFUSED)  # it was closed before this was asked


def confine(items: Sequence[str]) -> None:
    """Carries out the items, in the order that the kernel needs. Raises OSError."""
    given: dict[str, list[str]] = {}
    for item in items:
        name, _, value = item.partition("=")
        given.setdefault(name, []).append(value)
    for name, values in given.items():
        if name.startswith("RLIMIT_"):
            soft, _, hard = values[0].partition(":")
            lower(name, int(soft), int(hard or soft))
    if sys.platform != "linux":
        return
    if "death_pipe" in given:
        end_with_pipe(int(given["death_pipe"][0]))
    if os.geteuid() == 0:
        drop_capabilities()
    _prctl(_NO_NEW_PRIVS, _word(1), _word(0), _word(0), _word(0))
    if "parent" in given:
        end_with(int(given["parent"][0]))
    if "write" in given:
        from farflung.host.io.landlock import restrict

        restrict(
            given.get("read", []), given["write"], given.get("device", []), given.get("list", []), given.get("own", [])
        )
    if "seccomp" in given:
        filter_calls(given["seccomp"][0])


def main(arguments: Sequence[str]) -> None:
    """Confines itself by the items before `--`, then becomes the command behind it."""
    split = list(arguments).index("--")
    # Ctrl-C reaches the whole foreground group; when to stop is the supervisor's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        confine(arguments[:split])
    except (OSError, KeyError) as error:
        sys.stderr.write(f"the sandbox cannot be closed: {error}\n")
        sys.exit(REFUSED)
    command = list(arguments[split + 1 :])
    os.execv(command[0], command)  # noqa: S606 - no shell is what is wanted


if __name__ == "__main__":
    main(sys.argv[1:])

"""Explains why a worker ended, in words to act on, from its exit status, kernel counts and its last output."""

from __future__ import annotations

from typing import Final

LAST_WORDS: Final = 160  # characters of its log that are quoted

MEMORY: Final = "over its memory limit"
PROCESSOR: Final = "over its limit of processor time"
DISK: Final = "over its disk limit"
PROCESSES: Final = "over its limit of processes"
WATCHDOG: Final = "the process that would end it with its agent is gone: somebody, or it, ended that"
REFUSED: Final = "it asked for what the sandbox refuses: processes, sockets, files outside, mounts"

_SIGNALS: Final = {
    4: "SIGILL: an instruction that this processor lacks",
    7: "SIGBUS: a page of its states could not be written, often for a full disk",
    6: "SIGABRT: a library gave up, often for lack of memory",
    9: "SIGKILL: somebody, or the kernel for lack of memory, killed it",
    11: "SIGSEGV: a fault inside a library",
    15: "SIGTERM: it was asked to end",
    24: "SIGXCPU: over its processor time",
    25: "SIGXFSZ: over its file size",
    31: "SIGSYS: a system call that the sandbox kills for",
}
# What the kernel's refusals look like when a library hands them on. The worker writes its log: these are hints.
_TELLING: Final = (
    ("MemoryError", MEMORY),
    ("Cannot allocate memory", MEMORY),
    ("can't allocate memory", MEMORY),
    ("bad_alloc", MEMORY),
    ("No space left on device", DISK),
    ("File too large", DISK),
    ("can't start new thread", PROCESSES),
    ("Resource temporarily unavailable", PROCESSES),
    ("Operation not permitted", REFUSED),
    ("Permission denied", REFUSED),
)


def last_line(log: bytes) -> str:
    """The last line of a log that says anything, printable characters only."""
    for line in reversed(log.decode("utf-8", "replace").splitlines()):
        text = "".join(c for c in line if c.isprintable()).strip()
        if text:
            return text[:LAST_WORDS]
    return ""


def limit_in_log(log: bytes) -> str:
    """Which limit the last words of a worker tell of; "" for none."""
    words = last_line(log)
    return next((limit for sign, limit in _TELLING if sign in words), "")


def reason(status: int | None, log: bytes, broke: str = "") -> str:
    """`status` as Python reports it: None running, 0 good, n > 0 exit status, -n killed by signal n.

    `broke` is the limit that the host knows it broke; without one, its last words may tell.
    """
    if status is None:
        return "it is running"
    if status == 0 and not broke:
        return "it ended by itself"
    head = f"exit status {status}" if status >= 0 else _SIGNALS.get(-status, f"signal {-status}")
    words = last_line(log)
    if not words or status in (-9, -15):
        return f"{broke}; {head}" if broke else head
    broke = broke or limit_in_log(log)
    said = f"{head}; its last words: {words}"
    return f"{broke}; {said}" if broke else said


def through_bwrap(status: int | None) -> int | None:
    """bubblewrap tells a signal as 128 + n, as shells do: -n again."""
    return 128 - status if status is not None and 128 < status <= 192 else status

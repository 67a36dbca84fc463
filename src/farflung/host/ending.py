"""Why a worker ended, in words that a person can act on, from its exit status and its last words."""

from __future__ import annotations

from typing import Final

LAST_WORDS: Final = 160  # characters of its log that are quoted

_SIGNALS: Final = {
    4: "SIGILL: an instruction that this processor lacks",
    6: "SIGABRT: a library gave up, often for lack of memory",
    9: "SIGKILL: somebody, or the kernel for lack of memory, killed it",
    11: "SIGSEGV: a fault inside a library",
    15: "SIGTERM: it was asked to end",
    24: "SIGXCPU: over its processor time",
    25: "SIGXFSZ: over its file size",
}


def last_line(log: bytes) -> str:
    """The last line of a log that says anything, printable characters only."""
    for line in reversed(log.decode("utf-8", "replace").splitlines()):
        text = "".join(c for c in line if c.isprintable()).strip()
        if text:
            return text[:LAST_WORDS]
    return ""


def reason(status: int | None, log: bytes) -> str:
    """`status` as Python reports it: None running, 0 good, n > 0 exit status, -n killed by signal n."""
    if status is None:
        return "it is running"
    if status == 0:
        return "it ended by itself"
    head = f"exit status {status}" if status > 0 else _SIGNALS.get(-status, f"signal {-status}")
    words = last_line(log)
    return f"{head}; its last words: {words}" if words and status not in (-9, -15) else head

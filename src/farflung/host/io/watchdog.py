"""Runs beside one worker, outside its sandbox: it ends the worker when the agent is gone, and writes its log as text.

`python -m farflung.host.io.watchdog PID WORD MOST FOLDER GROUP ...`: standard input is what the worker prints, standard
output its log, which grows to MOST bytes. WORD is a pipe of which the agent alone holds the other end. A byte there
says that the worker has ended: what it printed is written, and the watchdog ends. The pipe's end says that the agent
is gone, killed or not. Then process group PID, all below it, whatever is in the control groups, and FOLDER, its
scratch in memory ("-": none), are ended.

A worker may ignore signals, close every descriptor and, in the tier `limits`, switch off the signal that the kernel
sends for its parent; a thread of it that calls exec is rid of that signal in every tier, as the kernel clears it for
new threads (prctl(2), PR_SET_PDEATHSIG). None of that reaches this process in the closed tiers: there a worker
signals no other. In `limits` it can; the agent then ends the worker (host.io.worker_process).
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

CHUNK: Final = 1 << 16
_UNPRINTABLE: Final = re.compile(r"[^\n\t\x20-\x7e]+")


def printable(text: str) -> str:
    """`text` with everything that a terminal would obey (control characters, directions) as its number."""
    return _UNPRINTABLE.sub(_as_numbers, text)


def _as_numbers(found: re.Match[str]) -> str:
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in found[0])


class TextLog:
    """A log that takes raw bytes and holds UTF-8 without control characters, of at most `most` bytes."""

    def __init__(self, descriptor: int, most: int) -> None:
        self._descriptor, self._room = descriptor, most
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: bytes, is_last: bool = False) -> bool:
        """Whether there is room for more. What cannot be written is lost, as where a disk is full."""
        text = printable(self._decoder.decode(data, is_last)).encode()
        kept = text if len(text) <= self._room else text[: self._room].decode("utf-8", "ignore").encode()
        self._room = self._room - len(kept) if kept is text else 0
        with contextlib.suppress(OSError):
            while kept:
                kept = kept[os.write(self._descriptor, kept) :]
        return self._room > 0


def _drain(source: int, log: TextLog) -> None:
    """Writes what lies in the pipe; whoever still holds its other end is not waited for."""
    os.set_blocking(source, False)
    with contextlib.suppress(OSError):
        while (data := os.read(source, CHUNK)) and log.write(data):
            pass
    log.write(b"", is_last=True)


def end_worker(pid: int, folder: str, groups: Sequence[str]) -> None:
    """Ends what the agent started and cannot end any more: it is gone."""
    below: list[int] = []
    _signal_group(pid, signal.SIGSTOP)  # it starts nothing while it is looked through
    try:
        from farflung.host.io.cgroup import CgroupRoot, WorkerCgroup
        from farflung.host.io.machine_probe import descendants

        below = descendants(pid)
    finally:
        _signal_group(pid, signal.SIGKILL)
    for one in below:
        with contextlib.suppress(OSError):
            os.kill(one, signal.SIGKILL)
    WorkerCgroup({Path(group): CgroupRoot(0, Path(group), ()) for group in groups}).remove()
    if folder != "-":
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, number)


def main(arguments: Sequence[str]) -> None:
    """Copies until a word comes, or the pipe on which it would come ends."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # it ends with its worker
    pid, word, most, folder = int(arguments[0]), int(arguments[1]), int(arguments[2]), arguments[3]
    source, log, is_open = sys.stdin.fileno(), TextLog(sys.stdout.fileno(), most), True
    poll = select.poll()
    poll.register(word, select.POLLIN)
    poll.register(source, select.POLLIN)
    while word not in (ready := dict(poll.poll())):
        data = os.read(source, CHUNK) if source in ready else b""
        if not data or not log.write(data):
            poll.unregister(source)  # from here on whoever writes is refused: nobody reads what a flood would bring
            os.close(source)
            is_open = False
    if not os.read(word, 1):
        end_worker(pid, folder, arguments[4:])
    if is_open:
        _drain(source, log)


if __name__ == "__main__":
    main(sys.argv[1:])

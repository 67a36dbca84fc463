"""A terminal small enough to read: runs a command on a pseudo-terminal and keeps what stands on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ESCAPE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


@dataclass
class Terminal:
    """Lines and a cursor; it knows the escapes that the screen is painted with, and refuses others."""

    columns: int
    height: int
    lines: list[str] = field(default_factory=list)
    row: int = 0
    column: int = 0
    scrolled: int = 0  # lines that went out at the top
    colours: int = 0
    most_rows: int = 0  # that were in use at once

    def __post_init__(self) -> None:
        self.lines = [""] * self.height

    def feed(self, text: str) -> None:
        """Takes all that a command wrote."""
        place = 0
        while place < len(text):
            found = ESCAPE.match(text, place)
            if found is not None:
                self._escape(found[1], found[2])
                place = found.end()
                continue
            self._char(text[place])
            place += 1
        self._count()

    def _count(self) -> None:
        used = [number for number, line in enumerate(self.lines) if line.strip()]
        self.most_rows = max(self.most_rows, used[-1] + 1 - used[0] if used else 0)

    def _char(self, char: str) -> None:
        if char == "\n":
            self._count()
            self.row += 1
            if self.row == self.height:
                self.row -= 1
                self.scrolled += bool(self.lines[0].strip())
                self.lines = [*self.lines[1:], ""]
        elif char == "\r":
            self.column = 0
        else:
            assert char.isprintable(), ascii(char)
            assert self.column < self.columns, f"a line is folded: {self.lines[self.row]!r}"
            line = f"{self.lines[self.row]:<{self.column}}"
            self.lines[self.row] = line[: self.column] + char + line[self.column + 1 :]
            self.column += 1

    def _escape(self, numbers: str, what: str) -> None:
        count = int(numbers) if numbers.isdigit() else 1
        match what, numbers:
            case "A", _:
                self.row = max(0, self.row - count)
            case "K", "2":
                self.lines[self.row] = ""
            case "J", "":
                self.lines[self.row] = self.lines[self.row][: self.column]
                self.lines[self.row + 1 :] = [""] * (self.height - self.row - 1)
            case "J", "2":
                self.lines = [""] * self.height
            case "H", "":
                self.row = self.column = 0
            case (("h" | "l"), "?25"):
                pass
            case "m", _:
                self.colours += any(30 <= int(n) <= 47 for n in numbers.split(";") if n)
            case _:
                raise AssertionError(f"an escape that nobody expects: {numbers}{what}")

    @property
    def text(self) -> str:
        """What stands there now."""
        return "\n".join(line.rstrip() for line in self.lines).rstrip()


def run_on_terminal(
    command: Sequence[str],
    *,
    columns: int = 80,
    height: int = 24,
    env: Mapping[str, str] | None = None,
    seconds: float = 100.0,
) -> tuple[int, str, str]:
    """Exit code, what was written to the terminal, and what came on stderr, which is a pipe."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, columns, 0, 0))
    whole = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**whole, "TERM": "xterm", "LC_ALL": "C.UTF-8", **(env or {})},
        start_new_session=True,
    )
    os.close(theirs)
    parts = []
    try:
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # its last writer is gone
                break
            if not part:
                break
            parts.append(part)
        _, told = process.communicate(timeout=seconds)
    finally:
        process.kill()
        os.close(ours)
    return process.returncode, b"".join(parts).decode(), told.decode()

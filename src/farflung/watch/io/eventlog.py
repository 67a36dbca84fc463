"""The event log of a run: one JSON line an event, only ever added to; a torn last line is dropped when opened.

Events are for people and enter no root, so a log without a durable last line loses a view and nothing else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from farflung.core.errors import RunError
from farflung.core.events import AnyEvent, from_json, to_json
from farflung.core.io.durable import append_whole, sync_folder

LABEL: Final = "watch.events"
LINE_BYTES: Final = 1 << 20


class EventLog:
    """Appends events to a file. `events` are those that were whole when it was opened."""

    def __init__(self, path: Path) -> None:
        """Opens or creates `path`; raises RunError FF-WATCH-001 when it cannot be written."""
        self.path = path
        is_new = not path.exists()
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunError(
                "FF-WATCH-001",
                f"the event log {path.name} cannot be opened",
                cause=error.strerror or str(error),
                hint=f"see that {path.parent} exists and can be written",
            ) from error
        if is_new:
            sync_folder(path.parent, LABEL)
        whole = list(_whole(path))
        self.events: tuple[AnyEvent, ...] = tuple(event for event, _ in whole)
        os.ftruncate(self._handle, whole[-1][1] if whole else 0)

    def append(self, event: AnyEvent, *, durable: bool = False) -> None:
        """Adds one event; with `durable` it survives a crash from then on. Raises RunError FF-CORE-050."""
        append_whole(self._handle, self.path, to_json(event).encode() + b"\n", LABEL, sync=durable)

    def sync(self) -> None:
        """Makes all that was added durable."""
        append_whole(self._handle, self.path, b"", LABEL)

    def close(self) -> None:
        """Makes all durable and closes the file."""
        try:
            self.sync()
        finally:
            os.close(self._handle)


def _whole(path: Path) -> Iterator[tuple[AnyEvent, int]]:
    """Each whole event with the offset behind its line; lines that are torn or no event are passed over."""
    place = 0
    with open(path, "rb") as file:
        while line := file.readline(LINE_BYTES):
            place += len(line)
            if not line.endswith(b"\n"):
                continue
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                yield from_json(line), place


class Follower:
    """Reads a log that another process is writing, and goes on where it was; never changes the file."""

    def __init__(self, path: Path) -> None:
        self._path, self._place = path, 0

    def new(self) -> list[AnyEvent]:
        """The whole events that were added since the last call; none while there is no file."""
        found = []
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._place)
            while line := file.readline(LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < LINE_BYTES:
                    break  # its writer is not done
                self._place += len(line)
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                    found.append(from_json(line))
        return found


def read(path: Path) -> Iterator[AnyEvent]:
    """The whole events of a log that another process may still be writing; does not change the file."""
    for event, _ in _whole(path):
        yield event

"""Appends the events of a run to a log, one JSON line each; a torn last line is dropped when it is opened.

Events are for people and enter no root, so a log without a durable last line loses a view and nothing else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from msgspec.structs import replace

from farflung.core.errors import RunError, VersionError
from farflung.core.events import FORMAT, AnyEvent, PlanComparisonEvent, from_json, to_json
from farflung.core.file_header import FileFormat, other_version
from farflung.core.io.durable_files import append_whole, foreign_file, sync_folder
from farflung.core.io.ordinary_files import ForeignFileError, open_ordinary, open_own
from farflung.core.money import MICRO
from farflung.watch import event_limits
from farflung.watch.event_limits import EventFilter

LABEL: Final = "watch.events"
LINE_BYTES: Final = 1 << 20
_BEGINNING: Final = b'{"event":"'  # of every line
_SESSION: Final = b'{"event":"began"'  # of the line that names the version
_MICRO_FORM: Final = 1  # and before: money in micro-credits
_PRICES: Final = {"price", "relay_price", "unit_price", "relay_funds", "escrow", "stakes"}
_MONEY: Final = _PRICES | {
    "bounty",
    "burnt",
    "gained",
    "lost",
    "paid",
    "pay_burnt",
    "pending",
    "refunded",
    "slashed",
    "sum",
}
_FORM: Final = FileFormat("event-log", FORMAT, "read it as it is: one JSON object a line")


class _Version(msgspec.Struct, frozen=True):
    """What the first event of a session says of the log, in whatever form."""

    format: int = 1
    version: str = ""


class EventLog:
    """Appends events to a file. `events` are those that were whole when it was opened."""

    def __init__(self, path: Path) -> None:
        """Opens or creates `path`; raises RunError FF-WATCH-001 when it cannot be written.

        FF-CORE-085: it is a link, another user's, or did not begin as an event log; VersionError FF-CORE-095: a later
        farflung wrote it. Nothing is cut off then.
        """
        self.path = path
        is_new = not path.exists()
        try:
            self._handle = open_own(path, os.O_RDWR | os.O_CREAT, 0o644)
        except ForeignFileError as error:
            raise foreign_file(path, error.cause) from error
        except OSError as error:
            raise RunError(
                "FF-WATCH-001",
                f"the event log {path.name} cannot be opened",
                cause=error.strerror or str(error),
                hint=f"see that {path.parent} exists and can be written",
            ) from error
        if is_new:
            sync_folder(path.parent, LABEL)
        try:
            whole = list(_whole(path))
        except VersionError:
            os.close(self._handle)
            raise
        self.events: tuple[AnyEvent, ...] = tuple(event for event, _ in whole)
        if not whole and not _is_torn(os.pread(self._handle, LINE_BYTES + 1, 0)):
            os.close(self._handle)
            raise foreign_file(path, "it does not begin as an event log does")
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


def _is_torn(data: bytes) -> bool:
    """Whether a log without an event is what a crash left of its first line."""
    is_line = len(data) <= LINE_BYTES and b"\n" not in data
    return not any(data) or (is_line and data[: len(_BEGINNING)] == _BEGINNING[: len(data)])


class _LineReader:
    """Reads the lines of a log in their order: the session that a line belongs to says in which unit its money is."""

    def __init__(self) -> None:
        self._scale = 1

    def event(self, line: bytes) -> AnyEvent | None:
        """The event, with money in pico-credits. Raises VersionError FF-CORE-095."""
        if line.startswith(_SESSION):
            self._scale = 1 if _form_of(line) > _MICRO_FORM else MICRO
        try:
            event = from_json(line)
        except (ValueError, RecursionError):  # no JSON, no event, or nested deeper than the stack
            return None
        return event if self._scale == 1 else _scaled(event, self._scale)


def _scaled(event: AnyEvent, scale: int) -> AnyEvent:
    if isinstance(event, PlanComparisonEvent):
        if event.unit != "micro-credits":
            return event
        planned, measured, most = (scale * each for each in (event.planned, event.measured, event.most))
        return replace(event, unit="pico-credits", planned=planned, measured=measured, most=most)
    return replace(event, **{name: scale * getattr(event, name) for name in event.__struct_fields__ if name in _MONEY})


def _whole(path: Path) -> Iterator[tuple[AnyEvent, int]]:
    """Each whole event with the offset behind its line; lines that are torn or no event are passed over."""
    place, lines = 0, _LineReader()
    with open_ordinary(path, os.O_NOFOLLOW) as file:
        while line := file.readline(LINE_BYTES):
            place += len(line)
            event = lines.event(line) if line.endswith(b"\n") else None
            if event is not None:
                yield event, place


def _form_of(line: bytes) -> int:
    """Events are added under one number, and none is changed: logs of the numbers before are read for ever.

    Raises VersionError FF-CORE-095.
    """
    try:
        said = msgspec.json.decode(line, type=_Version)
    except (ValueError, RecursionError):
        return FORMAT
    if said.format > FORMAT:
        raise other_version(_FORM, said.format, said.version)
    return said.format


class EventLogReader:
    """Reads a log that another process may be writing, and goes on where it was; never changes the file.

    The log may be a stranger's: what is beyond watch.event_limits is passed over.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._filter, self._lines = path, EventFilter(), _LineReader()
        self._place, self._good = 0, 0  # read so far; the end of the last event
        self._file: tuple[int, int] | None = None

    def new(self) -> list[AnyEvent]:
        """The whole events that were added since the last call; none while there is no file.

        Raises RunError FF-WATCH-002 (no ordinary file), -003 (replaced while it was read), -004 (too long),
        VersionError FF-CORE-095 (a later farflung wrote it).
        """
        return list(self.read())

    def read(self) -> Iterator[AnyEvent]:
        """As `new`, one by one."""
        with contextlib.suppress(FileNotFoundError), _opened(self._path) as file:
            self._find_place(os.fstat(file.fileno()))
            file.seek(self._place)
            while line := file.readline(LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < LINE_BYTES:
                    break  # its writer is not done
                self._place += len(line)
                event = self._lines.event(line) if line.endswith(b"\n") else None
                if event is not None:
                    self._good = self._place
                    event = self._filter.passed(event)
                if self._place > event_limits.LOG_BYTES or self._filter.weight > event_limits.EVENTS:
                    raise _too_long(self._path)
                if event is not None:
                    yield event

    def _find_place(self, status: os.stat_result) -> None:
        """A writer that starts again may cut off what is behind its last event, and nothing before."""
        file = (status.st_dev, status.st_ino)
        if self._file not in (None, file) or status.st_size < self._good:
            raise RunError(
                "FF-WATCH-003",
                f"the event log {self._path.name} was replaced while it was read",
                cause="a log is only ever added to",
                hint="start `farflung watch` again",
            )
        self._file = file
        if status.st_size < self._place or self._place - self._good < LINE_BYTES:
            self._place = self._good  # what was no event may be gone, and another line begun there


def _opened(path: Path) -> BinaryIO:
    """Opens an ordinary file; a pipe or a device that keeps its reader waiting is none."""
    try:
        return open_ordinary(path, os.O_NOFOLLOW)
    except ForeignFileError as error:
        raise RunError(
            "FF-WATCH-002",
            f"the event log {path.name} is no ordinary file",
            cause=error.cause,
            hint="see who put it there; `farflung status` lists your runs",
        ) from None


def _too_long(path: Path) -> RunError:
    most, size = event_limits.EVENTS, event_limits.LOG_BYTES >> 20
    return RunError(
        "FF-WATCH-004",
        f"the event log {path.name} is too long to be shown",
        cause=f"at most {most} events and entries of lists in {size} MiB are read",
        hint="farflung verify-run reads the exported log, which has no such limit",
    )


def read(path: Path) -> Iterator[AnyEvent]:
    """The events of a log so far. Raises as `EventLogReader.new`."""
    return EventLogReader(path).read()

"""What a power cut may leave of a folder: all writes to its files are recorded, and any of its pasts is made again.

POSIX promises this much. What was written is there after the file's own `fsync`; before it each sector of 512 bytes is
there or is not, in any order, and the file is as long as before, as after, or between. Names that were given, taken
over or deleted are so after the folder's `fsync`; before it each may be or not. SQLite is trusted: with
`synchronous=FULL` a transaction is on the disk, whole, when COMMIT returns ("Atomic Commit In SQLite", its own
documentation), so what it writes in between is not recorded.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from farflung.ledger.io import sqlite_file as ledger_file

SECTOR = 512
FOLDER = -1  # in place of a file's number
STORES = ("chain.db", "chain.db.made")


@dataclass(frozen=True)
class Wrote:
    file: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Synced:
    file: int


@dataclass(frozen=True)
class Stored:
    """A transaction of SQLite: the file is so, on the disk."""

    file: int
    data: bytes


@dataclass(frozen=True)
class Named:
    """`name` is this file from now on (None: none is), and no other name is."""

    name: str
    file: int | None


@dataclass(frozen=True)
class Said:
    """What others were told, and rely on."""

    word: str
    height: int
    name: bytes


Step = Wrote | Synced | Stored | Named | Said


class Recorder:
    """Stands between the code and `os`, for the files of one folder. Nothing is really synced."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.steps: list[Step] = []
        self._folder, self._names, self._handles = folder, dict[str, int](), dict[int, int]()
        for path in sorted(folder.iterdir()):
            self.steps.append(Stored(self._file(path.name), path.read_bytes()))
        self.steps.append(Synced(FOLDER))
        self._real = {name: getattr(os, name) for name in ("open", "close", "write", "replace", "unlink")}
        for name in self._real:
            patch.setattr(os, name, getattr(self, name))
        patch.setattr(os, "fsync", self.fsync)
        patch.setattr(ledger_file, "failpoint", self.passed)

    def say(self, word: str, height: int, name: bytes) -> None:
        self.steps.append(Said(word, height, name))

    def _file(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = 1 + max([*self._names.values(), *self._handles.values(), 0, *self._gone])
            self.steps.append(Named(name, self._names[name]))
        return self._names[name]

    @property
    def _gone(self) -> list[int]:
        return [step.file for step in self.steps if isinstance(step, Named) and step.file is not None]

    def open(self, path: Any, flags: int, *args: Any, **more: Any) -> int:
        handle: int = self._real["open"](path, flags, *args, **more)
        place = Path(path)
        if place == self._folder:
            self._handles[handle] = FOLDER
        elif place.parent == self._folder:
            self._handles[handle] = self._file(place.name)
        return handle

    def close(self, handle: int) -> None:
        self._handles.pop(handle, None)
        self._real["close"](handle)

    def write(self, handle: int, data: Any) -> int:
        offset = os.lseek(handle, 0, os.SEEK_CUR) if handle in self._handles else 0
        count: int = self._real["write"](handle, data)
        if handle in self._handles:
            self.steps.append(Wrote(self._handles[handle], offset, bytes(data[:count])))
        return count

    def fsync(self, handle: int) -> None:
        if handle in self._handles:
            self.steps.append(Synced(self._handles[handle]))

    def replace(self, source: Any, target: Any) -> None:
        self._real["replace"](source, target)
        self._names[Path(target).name] = file = self._names.pop(Path(source).name)
        self.steps.append(Named(Path(target).name, file))

    def unlink(self, path: Any, **more: Any) -> None:
        self._real["unlink"](path, **more)
        if self._names.pop(Path(path).name, None) is not None:
            self.steps.append(Named(Path(path).name, None))

    def passed(self, point: str) -> None:
        for name in STORES:
            if point.endswith(".committed") and (self._folder / name).exists():
                self.steps.append(Stored(self._file(name), (self._folder / name).read_bytes()))


class Disk:
    """A folder's files behind some steps: what is certain, and what is not yet."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._data, self._names = dict[int, bytes](), dict[str, int]()
        self._written, self._named = dict[int, list[Wrote]](), list[Named]()
        for step in steps:
            self._take(step)

    def _take(self, step: Step) -> None:
        match step:
            case Wrote(file):
                self._written.setdefault(file, []).append(step)
            case Synced(file) if file != FOLDER:
                for wrote in self._written.pop(file, []):
                    self._data[file] = placed(self._data.get(file, b""), wrote.offset, wrote.data)
            case Stored(file, data):
                self._data[file] = data
            case Named():
                self._named.append(step)
            case Synced():
                for named in self._named:
                    rename(self._names, named)
                self._named = []

    def left(self, folder: Path, source: random.Random) -> None:
        """Writes one of the folders that a cut may leave."""
        names, keeps = dict(self._names), source.choice((0.0, 0.5, 1.0))
        for named in self._named:
            if source.random() < keeps:
                rename(names, named)
        for name, file in names.items():
            (folder / name).write_bytes(self._torn(file, source))

    def _torn(self, file: int, source: random.Random) -> bytes:
        held = self._data.get(file, b"")
        whole = held
        for wrote in self._written.get(file, []):
            whole = placed(whole, wrote.offset, wrote.data)
        size = source.choice((len(held), len(whole), source.randint(len(held), len(whole))))
        keeps = source.choice((0.0, 0.5, 0.9, 1.0))
        found = held.ljust(size, b"\0")
        for start in range(0, size, SECTOR):
            if source.random() < keeps:
                found = placed(found, start, whole[start : min(size, start + SECTOR)])
        return found


def placed(data: bytes, offset: int, more: bytes) -> bytes:
    """`data` with `more` written over it at `offset`."""
    data = data.ljust(offset, b"\0")
    return data[:offset] + more + data[offset + len(more) :]


def rename(names: dict[str, int], named: Named) -> None:
    """What one change makes of a folder's names."""
    for name in [name for name, file in names.items() if file == named.file]:
        del names[name]
    names.pop(named.name, None)
    if named.file is not None:
        names[named.name] = named.file

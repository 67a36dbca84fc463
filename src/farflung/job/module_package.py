"""Packs the files of a package folder into one source: what a job names as its model is always one text, one hash.

A packed source begins with MARK; each file follows as a line `#: file PATH BYTES`, its bytes and a line end, sorted by
path. A source without MARK is a single file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from farflung.core.errors import SpecError

MARK: Final = b"#: farflung package\n"
INIT: Final = "__init__.py"
_NAME: Final = rb"(?:[A-Za-z_][A-Za-z0-9_]*/)*[A-Za-z_][A-Za-z0-9_]*\.py"
_HEAD: Final = re.compile(rb"#: file (" + _NAME + rb") ([0-9]{1,8})\n")


def is_name(path: str) -> bool:
    """Whether Python can import a file of that path in a package."""
    return re.fullmatch(_NAME, path.encode()) is not None


def pack(files: Mapping[str, bytes]) -> bytes:
    """One source of files by their paths in the package, with forward slashes."""
    parts = [MARK]
    for path, data in sorted(files.items()):
        parts += [f"#: file {path} {len(data)}\n".encode(), data, b"\n"]
    return b"".join(parts)


def unpack(source: bytes) -> dict[str, bytes]:
    """The files by their paths; none: the source is a single file. Raises SpecError FF-JOB-048: it is malformed."""
    if not source.startswith(MARK):
        return {}
    found: dict[str, bytes] = {}
    place = len(MARK)
    while place < len(source):
        head = _HEAD.match(source, place)
        end = head.end() + int(head[2]) if head is not None else 0
        if head is None or source[end : end + 1] != b"\n" or head[1].decode() in found:
            raise _malformed()
        found[head[1].decode()] = source[head.end() : end]
        place = end + 1
    if INIT not in found:
        raise _malformed()
    return found


def parts_of(file: str, source: bytes) -> dict[str, bytes]:
    """The files of a source by the names that people know: `file` itself, or the package's files under it."""
    return {f"{file}/{path}": data for path, data in unpack(source).items()} or {file: source}


def _malformed() -> SpecError:
    return SpecError(
        "FF-JOB-048",
        "this is no packed module",
        cause="its files do not follow each other as farflung packs them",
        hint='name the package\'s folder: module = "my_model:build"',
    )

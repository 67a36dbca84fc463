"""Text is a file of UTF-8 with few zero bytes, or of UTF-16 or UTF-32 that begins with its byte-order mark.

What is not text, is empty, or lies over `data.limit` is left out of a data set and counted with its reason, so that
it can be told before the price. Text in UTF-8 is taken as it is, byte for byte; another one by its code points.
"""

from __future__ import annotations

import codecs
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

import msgspec

from farflung.core import limits
from farflung.core.crypto import NS_DATA_SPLIT, digest
from farflung.core.errors import SpecError
from farflung.core.events import FileCount, PlanEvent
from farflung.core.units import format_bytes
from farflung.job import data_formats

File = tuple[str, bytes]

ZERO: Final = b"\0"
_SAMPLE: Final = limits.MIB  # how much of a file is looked at to tell text from binary
# Of the sample; Latin-1 prose stays below, compressed and compiled files far above.
_INVALID_SHARE: Final = 0.1
_CUT: Final = 3  # bytes of a letter whose rest lies behind the sample
_ZERO_SHARE: Final = 0.001  # of the whole file: a stray zero byte is no binary file
_MARKS: Final = (  # UTF-32 first: its little-endian mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
HIDDEN_FILES: Final = 1 << 16  # so many below hidden folders are counted; there may be more
_NAME: Final = 200  # characters of a file's name that are kept to tell of it
REASONS: Final[Mapping[str, str]] = {  # why files are left out, and what is to be known of others
    "hidden": "hidden, by a dot before a name",
    "link": "a link to a folder, not followed",
    "dead link": "a link that leads nowhere",
    "special": "a pipe, a socket or a device",
    "empty": "empty",
    "zeros": "no text, as more than 1 byte of 1,000 is zero (binary, or UTF-16 without its mark)",
    "encoding": "no text, as more than 10 % is not UTF-8 (binary, or another encoding)",
    "mark": "no text, as its byte-order mark says UTF-16 or UTF-32, and it is not",
    "records": "JSON, a record a line: take its text out first (jq -r .text), or rename it to .txt",
    "limit": "over data.limit",
    "decoded": "UTF-16 or UTF-32, taken as UTF-8",
    "bytes": "not all UTF-8, its bytes are taken as they are (from another encoding: iconv -f LATIN1 -t UTF-8)",
    "with zeros": "zero bytes here and there, which are kept",
    "tokens": "taken whole, as data.limit is for text",
}


class FileCounts:
    """Counts files by the reason why they are told of; the first of each is named."""

    def __init__(self) -> None:
        self._found: dict[str, FileCount] = {}

    def add(self, reason: str, name: str, size: int) -> None:
        """One more file."""
        before = self._found.get(reason)
        files, total = (before.files, before.bytes) if before is not None else (0, 0)
        first = before.first if before is not None else _shown(name)
        self._found[reason] = FileCount(reason, files + 1, total + size, first)

    def files(self, reason: str) -> int:
        """How many there are for one reason."""
        found = self._found.get(reason)
        return found.files if found is not None else 0

    def counts(self) -> tuple[FileCount, ...]:
        """One row a reason, in the order of the reasons' words."""
        return tuple(self._found[reason] for reason in sorted(self._found))


def _shown(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")[:_NAME]


class DataAccount(msgspec.Struct, frozen=True):
    """What is to be told of a data set: of how many text files it is (0: it came as tokens), and of which not."""

    files: int = 0
    left_out: tuple[FileCount, ...] = ()
    noted: tuple[FileCount, ...] = ()  # files that are in it, but not as they lie on the disk, or with zero bytes

    def within(self, plan: PlanEvent) -> PlanEvent:
        """A plan that tells it."""
        return msgspec.structs.replace(plan, data_files=self.files, left_out=self.left_out, noted=self.noted)


class Selection(NamedTuple):
    """The text files that a data set is made of, with what is to be told of them and of the others."""

    files: list[File]
    account: DataAccount


def decoded(data: bytes) -> bytes:
    """Text in UTF-16 or UTF-32 as UTF-8, by its byte-order mark; anything else as it is."""
    coding = next((coding for mark, coding in _MARKS if data.startswith(mark)), "")
    try:
        return data.decode(coding).encode() if coding else data
    except UnicodeDecodeError:
        return data


def is_text(data: bytes) -> bool:
    """At most one byte of 1,000 is zero, and the first MiB is nearly all UTF-8."""
    return not why_not_text(data)


def why_not_text(data: bytes) -> str:
    """The reason why bytes are no text; empty where they are."""
    has_zeros = data.count(ZERO) > _ZERO_SHARE * len(data)
    if not has_zeros and _invalid(data) <= _INVALID_SHARE * len(data[:_SAMPLE]):
        return ""
    if any(data.startswith(mark) for mark, _ in _MARKS):
        return "mark"
    return "zeros" if has_zeros else "encoding"


def _invalid(data: bytes) -> int:
    """How many bytes of the first MiB are not UTF-8; a letter that its end cuts in two does not count."""
    sample = data[:_SAMPLE]
    cut = _CUT if len(sample) < len(data) else 0
    return max(0, len(sample) - len(sample.decode("utf-8", "ignore").encode()) - cut)


def select(files: Iterable[File], limit: int, left_out: FileCounts | None = None) -> Selection:
    """Those of the files that are text, whole files up to `limit` bytes together; 0: all of them.

    `left_out`: what was passed over before, to which the others are added.
    """
    left_out, noted, kept = left_out or FileCounts(), FileCounts(), []
    for name, raw in files:
        data = decoded(raw)
        reason = why_not_text(data) if data else "empty"
        if not reason and data_formats.is_json_lines(name, data):
            reason = "records"
        if reason:
            left_out.add(reason, name, len(raw))
            continue
        if data is not raw:
            noted.add("decoded", name, len(raw))
        elif _invalid(data):
            noted.add("bytes", name, len(raw))
        if ZERO in data:
            noted.add("with zeros", name, len(raw))
        kept.append((name, data))
    within = limited(kept, limit)
    names = {name for name, _ in within}
    for name, data in kept:
        if name not in names:
            left_out.add("limit", name, len(data))
    return Selection(within, DataAccount(len(within), left_out.counts(), noted.counts()))


def check_text(name: str, data: bytes, place: str = "") -> None:
    """Raises SpecError FF-JOB-021 for a file that is not text, FF-JOB-025 for records whose text is a column.

    `place`: where the file lies, for the commands in the hints.
    """
    place = place or name
    reason = why_not_text(data)
    known = data_formats.of_bytes(data) if reason else None
    if known is not None:
        raise SpecError(
            "FF-JOB-021",
            f"{name[:_NAME]} is not text",
            cause=f"it is {known.name}",
            hint=data_formats.hint_of(known, place),
        )
    if reason:
        raise SpecError(
            "FF-JOB-021",
            f"{name[:_NAME]} is not text",
            cause=REASONS[reason].removeprefix("no text, as "),
            hint=f"a text is made UTF-8 by `{_conversion(place, data)}` (`file -i` guesses its encoding); tokens come"
            " in a 1-D integer array of a .npy or .safetensors file",
        )
    if data_formats.is_json_lines(name, data):
        raise SpecError(
            "FF-JOB-025",
            f"{name[:_NAME]} is JSON, a record a line",
            cause="a model would learn its brackets, keys and escapes with the text",
            hint=data_formats.json_lines_hint(place, data),
        )


def _conversion(place: str, data: bytes) -> str:
    """The command that makes UTF-8 of a text in another encoding, as far as its zero bytes tell which one that is."""
    sample = data[:_SAMPLE]
    zeros = "".join(str(start) for start in range(4) if sample[start::4].count(ZERO) * 8 > len(sample))  # most are
    wide = {"123": "UTF-32LE", "012": "UTF-32BE", "13": "UTF-16LE", "02": "UTF-16BE"}
    coding, path = wide.get(zeros, "LATIN1"), PurePath(place)
    made = path.with_name(f"{path.stem}.utf8.txt")
    return f"iconv -f {coding} -t UTF-8 {shlex.quote(place)} > {shlex.quote(str(made))}"


def told(count: FileCount) -> str:
    """A count in words: a file's name and how many more there are, their bytes, and the reason."""
    more, reason = count.files - 1, REASONS.get(count.reason, count.reason)
    at_least = " or more" if count.reason == "hidden" and count.files >= HIDDEN_FILES else ""
    others = f" and {more:,}{at_least} other {'file' if more == 1 else 'files'}" if more else ""
    size = f", {format_bytes(count.bytes)}" if count.bytes else ""
    return f"{count.first}{others}{size}: {reason}"


def no_data(left_out: Sequence[FileCount] = ()) -> SpecError:
    """The error FF-JOB-020; it says what was left out."""
    hint = 'set path in [data] to a text file, a folder of text files, or "stdlib"'
    if any(count.reason == "limit" for count in left_out):
        hint = "raise data.limit: it takes whole files; 0 takes all"
    return SpecError(
        "FF-JOB-020",
        "there is no data",
        cause="; ".join(f"left out: {told(count)}" for count in left_out) or "every file is empty, or there is none",
        hint=hint,
    )


def limited(files: Sequence[File], limit: int) -> list[File]:
    """Whole files up to `limit` bytes together, drawn by their names' hashes; all of them when `limit` is 0."""
    if not limit:
        return list(files)
    room, kept = limit, []
    for name, data in sorted(files, key=lambda file: draw("limit/" + file[0])):
        if len(data) <= room:
            room -= len(data)
            kept.append((name, data))
    return kept


def draw(name: str) -> bytes:
    """The place of a file in an order that its name alone decides."""
    return digest(NS_DATA_SPLIT, name.encode("utf-8", "surrogateescape"))

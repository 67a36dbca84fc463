"""Recognises data that is no plain text, and says what makes text of it."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any, Final, NamedTuple

_LINES: Final = (".jsonl", ".ndjson", ".jsonlines")
_LOOKED_AT: Final = 1 << 16  # bytes of a file in which its first lines lie
_ROWS: Final = 3
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PARQUET: Final = (
    'python -c "import pandas, sys; print(*pandas.read_parquet(sys.argv[1]).text, sep=chr(10))" {name} > data.txt,'
    " with the name of its text column"
)


class DataFormat(NamedTuple):
    """A format by the bytes that a file begins with; `hint` says what makes text of the file `{name}`."""

    begins: bytes
    name: str
    hint: str


FORMATS: Final = (
    DataFormat(b"PAR1", "Parquet", _PARQUET),
    DataFormat(b"ARROW1", "Arrow", "save its text column as a text file"),
    DataFormat(b"\x1f\x8b", "gzip", "gzip -dk {name}"),
    DataFormat(b"\x28\xb5\x2f\xfd", "Zstandard", "zstd -d {name}"),
    DataFormat(b"BZh", "bzip2", "bzip2 -dk {name}"),
    DataFormat(b"\xfd7zXZ\x00", "xz", "xz -dk {name}"),
    DataFormat(b"PK\x03\x04", "a zip archive", "unzip {name} -d data"),
    DataFormat(b"%PDF-", "PDF", "pdftotext {name} data.txt"),
    DataFormat(b"SQLite format 3\x00", "an SQLite database", "export its text column as a text file"),
)


def of_bytes(data: bytes) -> DataFormat | None:
    """The known format that is no text; None: it is another one, or text."""
    return next((each for each in FORMATS if data.startswith(each.begins)), None)


def hint_of(found: DataFormat, name: str) -> str:
    """What makes text of the file."""
    return found.hint.format(name=shlex.quote(name))


def is_json_lines(name: str, data: bytes) -> bool:
    """Whether a text is a row of records: by its name, or a .json file by its first lines."""
    lower = name.lower()
    return lower.endswith(_LINES) or (lower.endswith(".json") and len(_records(data)) > 1)


def json_lines_hint(name: str, data: bytes) -> str:
    """What takes the text out of its records: the column whose first text is the longest."""
    texts = {key: value for row in _records(data)[:1] for key, value in row.items() if isinstance(value, str)}
    column = max(texts, key=lambda key: len(texts[key]), default="text")
    path = f".{column}" if column.isidentifier() else f".[{json.dumps(column)}]"
    other = "" if column == "text" else ", or another column"
    taken = f"jq -r {shlex.quote(path)} {shlex.quote(name)} > data.txt{other}"
    return f"{taken}; rename it to .txt to train on the JSON itself"


def _records(data: bytes) -> list[dict[str, Any]]:
    """The objects of the first lines, as long as each line is one."""
    head = data[:_LOOKED_AT]
    lines = [line for line in head.splitlines() if line.strip()]
    if len(head) < len(data):
        lines = lines[:-1]  # it may be cut
    found = []
    for line in lines[:_ROWS]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(row, dict):
            break
        found.append(row)
    return found


def elsewhere_hint(path: str) -> str:
    """What brings data here that is named by an address, or as a data set of Hugging Face; "" for an ordinary path."""
    path = _URL.sub(r"\1://", path, count=1) if _URL.match(path) else path
    if path.startswith(("hf://", "https://huggingface.co/datasets/")):
        name = re.sub(r"^(hf://|https://huggingface\.co/)?(datasets/)?", "", path)
        return _hub("/".join(name.split("/")[:2]))
    if path.startswith(("http://", "https://", "ftp://")):
        return f"curl -LO {shlex.quote(path)}, then name the file"
    return "copy it to this computer, then name the file" if _URL.match(path) else ""


def hub_hint(path: str) -> str:
    """The same for a name like `owner/data`, which is a path only if there is one; "" for others."""
    return _hub(path) if _HUB_NAME.fullmatch(path) else ""


def _hub(name: str) -> str:
    return f"hf download {shlex.quote(name)} --repo-type dataset --local-dir data, then make text of its files"

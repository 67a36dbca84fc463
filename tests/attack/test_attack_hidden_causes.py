"""Inputs whose cause stood behind "a mistake in farflung itself": each is refused in its own words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farflung.app.cli import main as cli_main
from farflung.app.explorer import ledger_export
from farflung.core.crypto import local_key
from farflung.core.errors import SpecError, VerificationError
from farflung.job.model_source import check_source
from farflung.ledger.block import Genesis
from farflung.ledger.chain import Chain

KEY = local_key(1, "validator")
ROWS: list[Mapping[str, Any]] = [
    {"table": "accounts", "index": 1_000_000_000},
    {"table": "accounts", "index": 10**18},
    {"table": "accounts", "index": -1},
    {"table": "accounts", "index": True},
    {"table": "accounts", "index": "0"},
    {"table": "accounts", "index": 0.0},
    {"table": "accounts", "index": [0]},
    {"table": "nothing", "index": 0},
    {"table": ["accounts"], "index": 0},
    {"table": "accounts"},
    {"index": 0},
]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_a_row_that_an_export_only_claims_is_no_row(tmp_path: Path, row: Mapping[str, Any]) -> None:
    chain = Chain(Genesis("export", 0, ((KEY.public, 10),), (KEY.public,)), KEY)
    lines = list(ledger_export.lines_of(chain))
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(lines))
    assert ledger_export.chain_of(path).head == chain.head
    canonical = msgspec.json.decode(next(line for line in lines if b'"row"' in line[:20]))["canonical"]
    said = msgspec.json.encode({"type": "row", "canonical": canonical, **row}) + b"\n"
    path.write_bytes(b"".join([*lines[:-1], said, lines[-1]]))
    with pytest.raises(VerificationError, match="FF-APP-281"):
        ledger_export.chain_of(path)


@pytest.mark.parametrize(
    "expression",
    ["x = " + "+".join(["1"] * 2500), "x = " + "a" + ".b" * 900, "x = a" + "[0]" * 900, "x = a" + "()" * 900],
)
@pytest.mark.parametrize("end", ["\ndef build(): ...\n", "\n"])
def test_a_module_with_a_deep_expression_is_read_or_refused_as_python(expression: str, end: str) -> None:
    source = (expression + end).encode()
    if "build" in end:
        check_source(source, "model.py", "build")
    else:
        with pytest.raises(SpecError, match="FF-JOB-043"):
            check_source(source, "model.py", "build")


def test_too_little_memory_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(cli_main.cli, "main", full)
    with pytest.raises(SystemExit) as ended:
        cli_main.main(["status"])
    assert ended.value.code == 1
    assert "FF-APP-471" in capsys.readouterr().err

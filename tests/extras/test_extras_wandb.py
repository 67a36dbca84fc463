"""What W&B is given, offline: figures of the run and its plan, and nothing about the computer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from extras_told import tell

from farflung.callbacks import WandB

pytestmark = pytest.mark.extra(name="wandb")


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """W&B, whose import takes seconds, without anything of this account."""
    library = pytest.importorskip("wandb", reason="pip install 'farflung[wandb]'")
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path))
    return library


BLOCK, HEAD = 32768, 7


def records(folder: Path) -> list[Any]:
    """All that an offline run keeps for `wandb sync`: a head, then blocks of records in pieces, as in LevelDB."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at, piece, found = path.read_bytes(), HEAD, b"", []
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK
            continue
        size, part = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        piece += data[at + HEAD : at + HEAD + size]
        at += HEAD + size
        if part in (1, 4):  # whole, or the last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(piece)
            found.append(record)
            piece = b""
    return found


def values(items: Any) -> dict[str, Any]:
    """Keys and values of a row, of the summary or of the configuration."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_unless_told_otherwise_a_run_stays_offline_in_its_own_folder(tmp_path: Path, wandb: Any) -> None:
    folder = tmp_path / "day-n"
    folder.mkdir()
    tell(folder, WandB("a-project"))
    wandb.teardown()  # W&B's own process writes behind our back: it is done when it has ended
    kept = records(folder)
    rows = [values(record.history.item) for record in kept if record.HasField("history")]
    assert [row["tokens"] for row in rows] == [0, 100, 100, 200, 200]
    assert [row["train/loss"] for row in rows if "train/loss" in row] == [4.5, 3.5]
    assert [row["heldout/loss"] for row in rows if "heldout/loss" in row] == [5.5, 3.25]
    summary = {k: v for r in kept if r.HasField("summary") for k, v in values(r.summary.update).items()}
    assert (summary["loss"], summary["model_hash"]) == (3.25, "ab" * 32)
    (run,) = [record.run for record in kept if record.HasField("run")]
    assert (run.project, run.display_name, run.host) == ("a-project", "day-n", "")
    assert values(run.config.update)["rounds"] == 2
    assert not run.HasField("git")
    assert not any(r.HasField(kind) for r in kept for kind in ("stats", "output", "output_raw", "environment"))
    assert list(folder.glob("wandb/offline-run-*/files/*")) == []


def test_a_mode_that_is_asked_for_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wandb: Any) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    tell(tmp_path, WandB())
    assert list(tmp_path.glob("wandb/offline-run-*")) == []

"""What TensorBoard is given: files that its own reader reads, with tokens and bytes as steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from extras_told import tell

from farflung.callbacks import TensorBoard

pytestmark = pytest.mark.extra(name="tensorboard")


@pytest.fixture(autouse=True)
def installed() -> None:
    pytest.importorskip("tensorboard", reason="pip install 'farflung[tensorboard]'")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve below a folder: (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read: Any = EventAccumulator(str(folder))
    read.Reload()
    return {tag: [(s.step, s.value) for s in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_curves_are_over_tokens_and_over_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell(tmp_path, TensorBoard())
    assert capsys.readouterr().err == ""
    curves = scalars(tmp_path / "tensorboard")
    assert curves["train/loss"] == [(100, 4.5), (200, 3.5)]
    assert curves["heldout/loss"] == [(0, 5.5), (200, 3.25)]
    assert curves["by_bytes/train_loss"] == [(640, 4.5), (1280, 3.5)]
    assert curves["by_bytes/heldout_loss"] == [(0, 5.5), (1280, 3.25)]
    assert curves["bytes/sent"] == [(100, 940.0), (200, 940.0)]
    assert curves["audits/caught"] == [(100, 1.0)]


def test_with_a_folder_of_ones_own_each_run_gets_one_of_its_name_in_it(tmp_path: Path) -> None:
    (tmp_path / "day-n").mkdir()
    tell(tmp_path / "day-n", TensorBoard(tmp_path / "logs"))
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["day-n"]
    assert "train/loss" in scalars(tmp_path / "logs" / "day-n")

"""The examples of farflung.sync run as they are written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.timeout(300)


def said(name: str, folder: Path) -> str:
    """What an example writes to its standard output."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.whole
def test_two_peers_with_a_plain_loop_end_alike(tmp_path: Path) -> None:
    rounds = re.findall(r"round (\d+): loss ([0-9.]+)", said("sync_plain.py", tmp_path))
    assert [int(number) for number, _ in rounds] == list(range(6))
    assert float(rounds[-1][1]) < float(rounds[0][1])


@pytest.mark.extra(name="hf")
@pytest.mark.slow
def test_the_trainer_of_hugging_face_exchanges_by_a_callback(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra hf: pip install 'farflung[hf]'")
    pytest.importorskip("accelerate", reason="needs the extra hf: pip install 'farflung[hf]'")
    assert "3 rounds" in said("sync_hf.py", tmp_path)


@pytest.mark.extra(name="lightning")
@pytest.mark.slow
def test_lightning_exchanges_by_a_strategy(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="needs lightning: pip install lightning")
    assert "3 rounds" in said("sync_lightning.py", tmp_path)

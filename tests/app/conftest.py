"""Fixtures for whole networks; makes `app_trees` importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path[1:1] = [str(Path(__file__).parents[1] / folder) for folder in ("ledger", "core", "verify")]
pytest.register_assert_rewrite("app_trees")

from app_trees import Ended, Farflung  # noqa: E402 - found through the line above


@pytest.fixture
def farflung(tmp_path: Path) -> Farflung:
    return Farflung(tmp_path / "runs")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Farflung, Ended]:
    """One finished tiny run, shared by all tests that only look at it."""
    command = Farflung(tmp_path_factory.mktemp("tiny") / "runs")
    points = command.runs.parent / "failpoints"
    ended = command("run", "--preset", "tiny", "--json", "--baseline", FARFLUNG_FAILPOINT_LOG=str(points))
    assert ended.code == 0, ended.errors
    return command, ended

"""Makes the attacked networks and the small ledger importable.

Nothing here survives a power cut, so nothing waits for the disk.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from farflung.ledger import snapshot

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "ledger"))
sys.path.insert(2, str(Path(__file__).parents[1] / "verify"))
sys.path.insert(3, str(Path(__file__).parents[1] / "core"))
sys.path.insert(4, str(Path(__file__).parents[1] / "app"))
sys.path.insert(5, str(Path(__file__).parents[1] / "market"))
pytest.register_assert_rewrite("attack_world", "attack_lease", "attack_run", "attack_snapshot", "attack_wire")


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _handle: None)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of a table are a chunk of a snapshot."""
    monkeypatch.setattr(snapshot, "LEVELS", {})
    monkeypatch.setattr(snapshot, "_LEVEL", 1)

"""Nothing here survives a power cut, so nothing waits for the disk."""

from __future__ import annotations

import os

import pytest

from farflung.ledger import snapshot


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _handle: None)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of a table are a chunk of a snapshot."""
    monkeypatch.setattr(snapshot, "LEVELS", {})
    monkeypatch.setattr(snapshot, "_LEVEL", 1)

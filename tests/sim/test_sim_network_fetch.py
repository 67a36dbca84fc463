"""An object is fetched while sources and relays die: it comes whole, or the fetch says that nobody has it."""

import os
from pathlib import Path

import pytest
from sim_net_fetch import fetch


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _handle: None)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 8])
def test_an_object_comes_whole_or_the_fetch_says_why_not(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 8):
        fetch(seed, tmp_path / str(seed))


@pytest.mark.parametrize("seed", [1109, 1222, 1243])
def test_a_connection_that_closed_behind_its_last_byte_is_ended_once_more_without_a_fault(
    seed: int, tmp_path: Path
) -> None:
    fetch(seed, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_an_object_comes_whole_or_the_fetch_says_why_not_in_many_more_worlds(tmp_path: Path) -> None:
    for seed in range(1000, 1500):
        fetch(seed, tmp_path / str(seed))

"""A mistyped name is told the one that was meant, and a name that resembles none is told nothing."""

from __future__ import annotations

import pytest

from farflung.core.similar_name import similar_name

NAMES = ("out", "steps", "tokens", "every", "width", "diloco", "dp", "run", "llama3-70b")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("step", "steps"),
        ("widht", "width"),
        ("delico", "diloco"),
        ("dq", "dp"),
        ("rnu", "run"),
        ("Run", "run"),
        ("lama3-70b", "llama3-70b"),
        ("gpu", ""),  # not --out
        ("ledger", ""),  # not every
        ("tokenizer", ""),  # not tokens
        ("", ""),
        ("x", ""),
        ("y" * 10_000, ""),
    ],
)
def test_a_name_is_guessed_only_where_it_is_near(typed: str, meant: str) -> None:
    assert similar_name(typed, NAMES) == meant

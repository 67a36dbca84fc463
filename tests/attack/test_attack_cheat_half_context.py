"""Every row is cut in half: half of the context, half of the tokens."""

from __future__ import annotations

from segment_play import assert_false


def test_who_trains_on_half_of_the_context_is_found_false() -> None:
    assert_false("half-context", 20)

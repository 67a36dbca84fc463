"""Nothing flows back into the first layers."""

from __future__ import annotations

from segment_play import assert_false


def test_who_freezes_the_first_layers_is_found_false() -> None:
    assert_false("frozen", 20)

"""A job in float32, weights in 8 bits."""

from __future__ import annotations

from segment_play import assert_false


def test_who_keeps_weights_in_8_bits_is_found_false() -> None:
    assert_false("fp8", 10)

"""One row of every batch is left out."""

from __future__ import annotations

from segment_play import assert_false


def test_who_drops_a_row_of_every_batch_is_found_false() -> None:
    assert_false("drop-row", 20)

"""Updates of no length: small distances in the plain norm, and as far as can be in units of the right change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from cheat_play import SPEC
from segment_play import FALSE, OPTIMIZERS, assert_false, stage

from farflung.compress.merge import WeightedUpdate
from farflung.core.ids import PeerId
from farflung.verify.submission_checks import flags


def test_who_does_not_move_is_found_false() -> None:
    assert_false("idle", 1000)


def test_who_moves_a_thousandth_of_the_way_is_found_false() -> None:
    """Fang et al. 2023: steps so small that they stay below an absolute threshold. The unit is the verifier's own."""
    for seed, optimizer in enumerate(OPTIMIZERS):
        one = stage(seed, optimizer)
        assert one.right.params is not None
        near = one.segment.start + np.float32(1e-3) * (one.right.params - one.segment.start)
        found = one.judged(replace(one.right, params=near))
        assert found.finding is FALSE
        assert found.excess > 500_000


def test_an_update_of_zero_is_drawn_whatever_the_draw_says() -> None:
    one = stage(0)
    change = np.asarray(one.right.params) - one.segment.start
    peers = [PeerId(bytes([i]) * 32) for i in range(3)]
    updates = (change, np.roll(change, 7), np.zeros_like(change))
    parts = [WeightedUpdate(p, SPEC.round_tokens, v) for p, v in zip(peers, updates, strict=True)]
    assert peers[2] in flags(one.segment.job.model.layout, parts)

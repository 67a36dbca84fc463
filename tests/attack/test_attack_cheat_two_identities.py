"""One work under two names: the second identity shows what the first one was assigned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from cheat_play import SPEC
from segment_play import FALSE, OPTIMIZERS, stage

from farflung.compress.merge import WeightedUpdate
from farflung.core.ids import PeerId
from farflung.verify.submission_checks import flags


def test_who_shows_the_work_of_another_name_is_found_false() -> None:
    for seed, optimizer in enumerate(OPTIMIZERS):
        one = stage(seed, optimizer)
        second = replace(one.segment, member=1)  # the same process makes it, for the member that it was assigned to
        found = one.judged(second.honest().end)
        assert found.finding is FALSE
        assert found.excess > 20_000
        assert one.played("other-data") == found


def test_two_equal_contributions_are_drawn_whatever_the_draw_says() -> None:
    one = stage(0)
    layout = one.segment.job.model.layout
    change = np.asarray(one.right.params) - one.segment.start
    other = np.roll(change, 7)
    peers = [PeerId(bytes([i]) * 32) for i in range(4)]
    parts = [
        WeightedUpdate(p, SPEC.round_tokens, v) for p, v in zip(peers, (change, other, change, -other), strict=True)
    ]
    assert set(flags(layout, parts)) >= {peers[0], peers[2]}

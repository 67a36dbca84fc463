"""Honest where it hopes to be drawn: cheats only in segments that were drawn in earlier rounds, or in those not."""

from __future__ import annotations

from collections import Counter

import pytest

from farflung.core.crypto import digest
from farflung.core.ids import PeerId
from farflung.verify.audit_sample import segment_of

ROUNDS, SEGMENTS = 6000, 5
PEER = PeerId(bytes(32))


def beacon(round: int) -> object:
    return digest("farflung/test/1", b"sometimes", round.to_bytes(4, "little"))


DRAWN = [segment_of(beacon(round), PEER, SEGMENTS) for round in range(ROUNDS)]


def drawn_last(round: int) -> set[int]:
    return {DRAWN[round - 1]}


def not_drawn_lately(round: int) -> set[int]:
    return set(range(SEGMENTS)) - set(DRAWN[round - 3 : round])


def all_but_the_first(round: int) -> set[int]:
    return set(range(1, SEGMENTS))


@pytest.mark.parametrize("plan", [drawn_last, not_drawn_lately, all_but_the_first])
def test_what_was_drawn_before_tells_nothing_about_what_is_drawn_next(plan) -> None:
    """Who spoils a share of the segments is met in that share of the draws, however it chooses them."""
    caught = spoiled = 0
    for round in range(3, ROUNDS):
        chosen = plan(round)
        spoiled += len(chosen)
        caught += DRAWN[round] in chosen
    expected = spoiled / SEGMENTS
    assert abs(caught - expected) < 4 * (expected * (1 - expected / ROUNDS)) ** 0.5


def test_every_segment_is_drawn_as_often_as_every_other() -> None:
    counts = Counter(DRAWN)
    assert set(counts) == set(range(SEGMENTS))
    assert all(abs(n - ROUNDS / SEGMENTS) < 4 * (ROUNDS / SEGMENTS) ** 0.5 for n in counts.values())


def test_the_draw_depends_on_commitments_that_are_made_after_the_work() -> None:
    """The same peer in the same round is drawn elsewhere when anybody commits to anything else."""
    from farflung.train.run_log import Commitment
    from farflung.verify.audit_sample import anchor
    from farflung.verify.audit_sample import beacon as beacon_of

    job, other = digest("farflung/test/1", b"job"), PeerId(b"\1" * 32)
    mine = Commitment(PEER, digest("farflung/test/1", b"mine"), b"")
    places = set()
    for tried in range(60):
        theirs = Commitment(other, digest("farflung/test/1", bytes([tried])), b"")
        luck = beacon_of(anchor(job, 1, [mine, theirs]), job)
        places.add(segment_of(luck, PEER, SEGMENTS))
    assert places == set(range(SEGMENTS))

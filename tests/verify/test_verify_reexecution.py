"""Which segments of a finished run a second reader draws, and what it says of what came out."""

from __future__ import annotations

from verify_story import PEERS, VERIFIERS, Story

from farflung.core.crypto import digest
from farflung.core.ids import ZERO_HASH
from farflung.ledger.transactions import VerdictFinding
from farflung.train.run_log import Contribution, accepted_by_round
from farflung.verify.reexecution import ChainRerun, SegmentKey, cost, drawn, lasts, reexecution_report, segment_keys
from farflung.verify.run_replay import prove_run

JOB = digest("test/job/1")
ONE, TWO, _ = (key.public for key in PEERS)
SEGMENTS = 4


def of(peer: bytes) -> Contribution:
    return Contribution(peer, 1, ZERO_HASH, ZERO_HASH, ZERO_HASH, ZERO_HASH, "")  # type: ignore[arg-type]


ACCEPTED = {r: (of(ONE), of(TWO)) if r != 1 else (of(TWO),) for r in range(50)}
AMONG = segment_keys(ACCEPTED, SEGMENTS, frozenset())


def test_every_accepted_segment_can_be_drawn_but_what_the_run_itself_condemned() -> None:
    assert len(AMONG) == 99 * SEGMENTS
    assert tuple(sorted(AMONG)) == AMONG
    spared = segment_keys(ACCEPTED, SEGMENTS, frozenset({(2, TWO)}))
    assert {p[:2] for p in AMONG} - {p[:2] for p in spared} == {(2, TWO)}


def test_the_sample_follows_from_the_seed_and_is_as_large_as_asked_for() -> None:
    assert drawn(JOB, 1, 1.0, AMONG) == AMONG
    some = drawn(JOB, 1, 0.25, AMONG)
    assert some == drawn(JOB, 1, 0.25, AMONG)
    assert some != drawn(JOB, 2, 0.25, AMONG)
    assert some != drawn(digest("test/job/2"), 1, 0.25, AMONG)
    assert 0.15 < len(some) / len(AMONG) < 0.35
    assert set(drawn(JOB, 1, 0.1, AMONG)) <= set(some)  # a higher rate looks at more, never at others
    assert len(drawn(JOB, 1, 1e-12, AMONG)) == 1
    assert drawn(JOB, 1, 1.0, ()) == ()


def test_a_chain_is_trained_up_to_its_last_drawn_round_and_the_cost_is_known_before() -> None:
    sample = (SegmentKey(0, TWO, 1), SegmentKey(3, ONE, 0), SegmentKey(5, TWO, 2))
    until = lasts(sample)
    assert until == {ONE: 3, TWO: 5}
    assert cost(ACCEPTED, until) == 3 + 6  # the first peer was away in round 1


def test_what_lies_behind_other_bits_is_not_told_and_never_counted_as_true() -> None:
    sample = (SegmentKey(0, ONE, 1), SegmentKey(2, ONE, 0), SegmentKey(3, ONE, 2), SegmentKey(3, TWO, 2))
    replays = (ChainRerun(ONE, frozenset({0}), 2), ChainRerun(TWO, frozenset(range(4)), None))
    found = reexecution_report((0.1, 7), AMONG, sample, replays, ACCEPTED)
    assert (found.drawn, found.equal, found.untold) == (4, 2, 2)
    assert (found.trained, found.contributions) == (2 + 4, 99)
    assert found.breaks == (f"round 2 of {ONE[:4].hex()}",)
    assert found.segments == len(AMONG)


def test_what_the_audits_of_a_run_found_false_is_known_to_its_reader() -> None:
    guilty = PEERS[0].public

    def false(truth: VerdictFinding, place: int, peer: bytes, round: int) -> VerdictFinding:
        return VerdictFinding.FALSE if (peer, round) == (guilty, 0) else truth

    proven = prove_run(Story({"finding": false}).export())
    assert proven.condemned == {(0, guilty)}
    assert proven.seats == tuple(key.public for key in PEERS)
    assert not {key.public for key in VERIFIERS} & set(proven.seats)
    assert (0, guilty) in {(r, c.peer) for r, each in accepted_by_round(proven.records).items() for c in each}

"""The draw: by the beacon alone, for each peer alone, in integers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.crypto import digest, local_key
from farflung.core.ids import PeerId
from farflung.job.spec import AuditSpec
from farflung.train.run_log import Contribution
from farflung.verify.audit_sample import AuditSample, anchor, beacon, draw, segment_of, standing, verifier_order
from farflung.verify.commitment_check import commit

JOB = digest("test/job/1")
KEYS = [local_key(3, "peer", i) for i in range(400)]
PEERS = [(key.public, 5) for key in KEYS]
LUCK = digest("test/luck/1")
GOLDEN = [(4, 0), (18, 3), (19, 1), (22, 3)]  # of the first 24 peers at a rate of 1/4: peer, segment


def test_the_beacon_hangs_on_every_commitment_and_on_its_block() -> None:
    promises = [commit(key, JOB, 1, JOB, 1, JOB) for key in KEYS[:3]]
    known = beacon(anchor(JOB, 1, promises), LUCK)
    assert beacon(anchor(JOB, 1, reversed(promises)), LUCK) == known
    others = [
        beacon(anchor(JOB, 2, promises), LUCK),
        beacon(anchor(LUCK, 1, promises), LUCK),
        beacon(anchor(JOB, 1, promises[1:]), LUCK),
        beacon(anchor(JOB, 1, [*promises[1:], commit(KEYS[0], JOB, 1, LUCK, 1, JOB)]), LUCK),
        beacon(anchor(JOB, 1, promises), JOB),
    ]
    assert len({known, *others}) == 6


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5, 1.0])
def test_about_so_many_are_drawn_as_the_rate_says(rate: float) -> None:
    count = len(draw(AuditSpec(rate=rate, probation=1), 4, LUCK, PEERS))
    assert abs(count - 400 * rate) <= 4 * 10  # four standard deviations of a binomial draw, at most


def test_a_known_draw_stays_the_same_draw() -> None:
    """Whoever changes the arithmetic changes what every second reader expects."""
    found = draw(AuditSpec(rate=0.25), 4, LUCK, PEERS[:24])
    places = {key.public: i for i, key in enumerate(KEYS)}
    assert sorted((places[d.peer], d.segment) for d in found) == GOLDEN


def test_the_first_contributions_are_always_drawn() -> None:
    audit = AuditSpec(rate=0.0, probation=2)
    known = [(KEYS[0].public, 0), (KEYS[1].public, 1), (KEYS[2].public, 2)]
    assert {d.peer for d in draw(audit, 4, LUCK, known)} == {KEYS[0].public, KEYS[1].public}


def test_every_segment_is_drawn_about_as_often() -> None:
    found = [segment_of(LUCK, key.public, 4) for key in KEYS]
    assert all(60 <= found.count(segment) <= 140 for segment in range(4))
    assert set(found) == {0, 1, 2, 3}


@given(st.sets(st.integers(0, 39)), st.sets(st.integers(0, 39)))
@settings(max_examples=40)
def test_neither_company_nor_flags_change_anybodys_draw(there: set[int], suspects: set[int]) -> None:
    audit = AuditSpec(rate=0.3)
    flagged = {KEYS[i].public: "norm" for i in suspects}
    alone = {d.peer: d.segment for d in draw(audit, 4, LUCK, PEERS[:40])}
    found = {d.peer: d for d in draw(audit, 4, LUCK, [PEERS[i] for i in there], flagged)}
    here = {KEYS[i].public for i in there}
    assert found.keys() == (alone.keys() | flagged.keys()) & here
    assert all(d.segment == segment_of(LUCK, peer, 4) for peer, d in found.items())
    assert all(found[peer].segment == segment for peer, segment in alone.items() if peer in here)
    assert {peer for peer, d in found.items() if d.flagged} == flagged.keys() & here


def test_a_draw_ascends_and_is_the_same_whatever_the_order_of_peers() -> None:
    audit = AuditSpec(rate=0.5)
    found = draw(audit, 4, LUCK, PEERS)
    assert found == draw(audit, 4, LUCK, PEERS[::-1])
    assert [d.peer for d in found] == sorted(d.peer for d in found)


def test_a_job_without_audits_audits_nobody_that_is_flagged_either() -> None:
    audit = AuditSpec(rate=0.0, probation=0)
    assert draw(audit, 4, LUCK, [(KEYS[0].public, 0)], {KEYS[0].public: "zero"}) == ()


def test_a_flag_is_told() -> None:
    peer = KEYS[0].public
    found = draw(AuditSpec(rate=0.0), 1, LUCK, [(peer, 9)], {peer: "zero"})
    assert found == (AuditSample(peer, 0, "zero"),)


def test_verifiers_are_asked_in_an_order_that_nobody_chooses_and_never_about_themselves() -> None:
    verifiers = [key.public for key in KEYS[:6]]
    orders = {verifier_order(LUCK, key.public, verifiers) for key in KEYS[10:60]}
    assert len(orders) > 40
    assert all(set(order) == set(verifiers) for order in orders)
    assert {order[0] for order in orders} == set(verifiers)
    assert verifiers[2] not in verifier_order(LUCK, verifiers[2], verifiers)
    assert verifier_order(LUCK, PeerId(bytes(32)), verifiers[::-1]) == verifier_order(
        LUCK, PeerId(bytes(32)), verifiers
    )


def test_who_was_away_begins_its_probation_anew() -> None:
    def round_of(*peers: PeerId) -> tuple[Contribution, ...]:
        return tuple(Contribution(p, 1, JOB, JOB, JOB, JOB, "") for p in peers)

    one, other = PeerId(b"\1" * 32), PeerId(b"\2" * 32)
    accepted = {0: round_of(one, other), 1: round_of(one), 2: round_of(one, other), 3: round_of(one, other)}
    assert [standing(accepted, r, one) for r in range(5)] == [0, 1, 2, 3, 4]
    assert [standing(accepted, r, other) for r in range(5)] == [0, 1, 0, 1, 2]

"""Two-way aggregation: who owns what, and that owners lose nothing but what is said."""

import itertools

import numpy as np
import pytest
import twoway
from hypothesis import given, settings
from hypothesis import strategies as st
from twoway import TwoWayAggregation

from farflung.compress import registry
from farflung.compress.payload import ContributionKey
from farflung.core.crypto import digest
from farflung.core.errors import ProtocolError
from farflung.core.tensor_layout import TensorLayout
from farflung.train.worker_messages import AcceptedPayload

LAYOUT = TensorLayout.of({"a": (200, 130), "b": (50,), "c": (3, 7, 11), "d": (4096, 2), "e": (1009,)})
JOB = digest("test/job/1")
PEERS = [bytes([i + 1]) * 32 for i in range(64)]
AT = ContributionKey(3, 0, digest("test/root/1"), PEERS[0])


def make(codec="dense", **given):
    parameters = {
        "value_bits": 32, "topk": 64, "chunk": 4096, "transform": "raw", "rank": 4, "error_decay": 1.0
    }  # fmt: skip
    return registry.make(codec, **{**parameters, **given})


EXACT = make()
TWO_BITS = make(value_bits=2)
SPARSE = make("topk", value_bits=2)


def change(seed):
    return np.random.default_rng(seed).standard_normal(LAYOUT.size).astype(np.float32) * np.float32(0.01)


def everybody(method, shards, count=4):
    """What each owner gets from `count` peers."""
    sent = {p: method.send(None, change(i), shards, AT._replace(peer=p))[1] for i, p in enumerate(PEERS[:count])}
    return {s.owner: [AcceptedPayload(p, 100 + i, sent[p][s.owner]) for i, p in enumerate(sent)] for s in shards}


@given(st.sets(st.sampled_from(PEERS), min_size=1), st.sets(st.integers(1, 30_000), min_size=1, max_size=12))
@settings(max_examples=30)
def test_every_element_has_one_owner_and_no_owner_more_than_its_share_and_a_slot(peers, sizes):
    layout = TensorLayout.of({f"t{size}": (size,) for size in sizes})
    shards = twoway.shards(layout, JOB, list(peers))
    owners = np.zeros(layout.size, int)
    for shard in shards:
        for place in shard.places:
            owners[place] += 1
        assert shard.layout.size <= layout.size / len(peers) + 1 + 2 * twoway.SLOT_ELEMENTS
    assert (owners == 1).all()


def test_shards_do_not_depend_on_the_order_of_peers_and_differ_from_job_to_job():
    one = twoway.shards(LAYOUT, JOB, PEERS[:5])
    assert one == twoway.shards(LAYOUT, JOB, PEERS[4::-1])
    assert one != twoway.shards(LAYOUT, digest("test/job/2"), PEERS[:5])


def owner_of(layout, peers):
    found = {}
    for shard in twoway.shards(layout, JOB, peers):
        found |= {place.start: shard.owner for place in shard.places}
    return found


def test_when_a_peer_leaves_most_of_what_others_own_stays():
    layout = TensorLayout.of({"w": (4096 * 512,)})
    before, after = owner_of(layout, PEERS[:8]), owner_of(layout, PEERS[:7])
    kept = [place for place, owner in before.items() if owner != PEERS[7]]
    stayed = sum(before[place] == after[place] for place in kept)
    assert stayed >= 0.8 * len(kept)
    assert PEERS[7] not in after.values()


def test_with_exact_codecs_the_answer_to_one_peer_is_its_change():
    method, shards = TwoWayAggregation(EXACT, EXACT), twoway.shards(LAYOUT, JOB, PEERS[:4])
    parts = everybody(method, shards, 1)
    answers = {s.owner: method.combine(None, s, parts[s.owner], AT)[1] for s in shards}
    got = method.receive(LAYOUT, shards, answers, AT)
    assert np.abs(got - change(0)).max() <= 2.0**-24


def test_an_owner_answers_with_the_same_bytes_for_every_order_of_arrival():
    method, shards = TwoWayAggregation(SPARSE, TWO_BITS), twoway.shards(LAYOUT, JOB, PEERS[:3])
    parts = everybody(method, shards)
    for shard in shards:
        orders = itertools.permutations(parts[shard.owner])
        assert len({method.combine(None, shard, order, AT)[1] for order in orders}) == 1


def test_what_an_owner_did_not_say_is_said_later():
    method, shards = TwoWayAggregation(EXACT, SPARSE), twoway.shards(LAYOUT, JOB, PEERS[:2])
    parts = everybody(method, shards)
    for shard in shards:
        wanted = np.zeros(shard.layout.size, np.float64)
        said, unsent = np.zeros(shard.layout.size, np.float64), None
        exact = TwoWayAggregation(EXACT, EXACT)
        for _ in range(5):
            _, whole = exact.combine(None, shard, parts[shard.owner], AT)
            unsent, answer = method.combine(unsent, shard, parts[shard.owner], AT)
            wanted += shard.take(exact.receive(LAYOUT, shards, {shard.owner: whole}, AT))
            said += shard.take(method.receive(LAYOUT, shards, {shard.owner: answer}, AT))
        assert np.abs(said + unsent - wanted).max() <= 1e-6
        assert np.abs(said - wanted).max() > 1e-3  # so that the residual says something


def test_a_peers_residual_is_whole_whoever_owns_what():
    method, kept, total = TwoWayAggregation(SPARSE, EXACT), None, np.zeros(LAYOUT.size, np.float64)
    for live in (4, 7, 2):
        shards = twoway.shards(LAYOUT, JOB, PEERS[:live])
        kept, sent = method.send(kept, change(1), shards, AT)
        answers = {
            s.owner: method.combine(None, s, [AcceptedPayload(AT.peer, 1, sent[s.owner])], AT)[1] for s in shards
        }
        total += method.receive(LAYOUT, shards, answers, AT)
    assert np.abs(total + kept - 3.0 * change(1).astype(np.float64)).max() <= 1e-6


def test_the_shard_of_an_owner_that_does_not_answer_stays_as_it_is():
    method, shards = TwoWayAggregation(EXACT, EXACT), twoway.shards(LAYOUT, JOB, PEERS[:4])
    parts = everybody(method, shards)
    answers = {s.owner: method.combine(None, s, parts[s.owner], AT)[1] for s in shards[1:]}
    got = method.receive(LAYOUT, shards, answers, AT)
    assert not shards[0].take(got).any()
    assert all(shard.take(got).any() for shard in shards[1:])


def test_an_owners_residual_follows_what_it_still_owns():
    before, after = (twoway.shards(LAYOUT, JOB, PEERS[:n]) for n in (2, 3))
    mine = PEERS[0]
    old, new = (next(s for s in shards if s.owner == mine) for shards in (before, after))
    unsent = np.arange(1, old.layout.size + 1, dtype=np.float32)
    whole = np.zeros(LAYOUT.size, np.float32)
    old.put(unsent, whole)
    held = twoway.moved(LAYOUT, old, unsent, new)
    assert np.array_equal(held, new.take(whole))
    assert twoway.moved(LAYOUT, None, None, new) is None


def test_a_payload_is_good_for_one_owner_one_way_and_one_peer():
    method, shards = TwoWayAggregation(EXACT, EXACT), twoway.shards(LAYOUT, JOB, PEERS[:3])
    parts = everybody(method, shards)
    one, other = shards[0], shards[1]
    with pytest.raises(ProtocolError, match="FF-COMP-008"):
        method.combine(None, other, parts[one.owner], AT)
    assert one.layout.id == other.layout.id  # nothing else tells them apart
    with pytest.raises(ProtocolError, match="FF-COMP-009"):
        method.combine(None, one, [AcceptedPayload(PEERS[9], 1, parts[one.owner][0].payload)], AT)
    with pytest.raises(ProtocolError, match="FF-COMP-007"):
        method.receive(LAYOUT, shards, {one.owner: parts[one.owner][0].payload}, AT)

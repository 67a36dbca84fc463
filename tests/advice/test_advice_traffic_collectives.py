"""Bytes of collectives, against collectives that are carried out message by message."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.advice.traffic import collectives
from farflung.advice.traffic.collectives import AllReduceAlgorithm, CollectiveBackend, RankSpan, span
from farflung.core.errors import UsageError

ranks = st.integers(2, 9)


def ring_of(count: int) -> tuple[list[float], np.ndarray]:
    """A ring all-reduce of `count` chunks of one element a rank: elements that each sent, and what each has then."""
    held = np.arange(count * count, dtype=float).reshape(count, count)
    sent = [0.0] * count
    for phase in range(2):
        for step in range(count - 1):
            moving = [(at, (at + phase - step) % count, held[at, (at + phase - step) % count]) for at in range(count)]
            for at, chunk, value in moving:
                to = (at + 1) % count
                held[to, chunk] = held[to, chunk] + value if phase == 0 else value
                sent[at] += 1
    return sent, held


@given(ranks, st.integers(1, 1000))
@settings(max_examples=30)
def test_a_ring_sends_what_a_ring_that_is_carried_out_sends(count: int, unit: int) -> None:
    sent, held = ring_of(count)
    assert (held == np.arange(count * count, dtype=float).reshape(count, count).sum(axis=0)).all()
    foretold = collectives.all_reduce(RankSpan(count), unit * count)
    assert foretold.sent == pytest.approx(unit * sent[0])
    assert foretold.messages == sent[0]


@given(ranks, st.floats(1, 1e12))
def test_a_reduce_scatter_and_an_all_gather_are_an_all_reduce(count: int, size: float) -> None:
    group = RankSpan(count)
    parts = collectives.reduce_scatter(group, size).sent + collectives.all_gather(group, size).sent
    assert parts == pytest.approx(collectives.all_reduce(group, size).sent)


@given(ranks, st.floats(1, 1e12))
def test_gloo_moves_a_whole_all_reduce_to_scatter_sums(count: int, size: float) -> None:
    group = RankSpan(count)
    gloo = collectives.reduce_scatter(group, size, CollectiveBackend.GLOO)
    assert gloo.sent == pytest.approx(collectives.all_reduce(group, size).sent)
    assert gloo.sent == pytest.approx(2 * collectives.reduce_scatter(group, size).sent)


@given(
    ranks,
    st.floats(1, 1e12),
    st.sampled_from(
        [AllReduceAlgorithm.TREE, AllReduceAlgorithm.DIRECT, AllReduceAlgorithm.STAR, AllReduceAlgorithm.NAIVE]
    ),
)
def test_nothing_moves_fewer_bytes_than_a_ring(count: int, size: float, other: AllReduceAlgorithm) -> None:
    group = RankSpan(count)
    ring = collectives.all_reduce(group, size)
    assert collectives.all_reduce(group, size, other).total >= ring.total * (1 - 1e-12)


@given(ranks, st.floats(1, 1e12))
def test_a_naive_exchange_is_half_as_many_times_a_ring_as_there_are_ranks(count: int, size: float) -> None:
    naive = collectives.all_reduce(RankSpan(count), size, AllReduceAlgorithm.NAIVE)
    assert naive.sent == pytest.approx(count / 2 * collectives.all_reduce(RankSpan(count), size).sent)


@given(ranks, st.floats(1, 1e12), st.booleans())
def test_every_byte_that_is_sent_is_received(count: int, size: float, is_fanned: bool) -> None:
    found = collectives.payloads(RankSpan(count), size, is_fanned=is_fanned)
    taken, given_ = found.hub
    assert found.total == pytest.approx(count * found.sent + given_)
    assert count * found.sent + given_ == pytest.approx(count * found.received + taken)
    star = collectives.all_reduce(RankSpan(count), size, AllReduceAlgorithm.STAR)
    assert star.total == pytest.approx(count * star.sent + star.hub[1])


def test_payloads_are_counted_as_they_are_gathered() -> None:
    straight = collectives.payloads(RankSpan(32), 2.8e6)
    fanned = collectives.payloads(RankSpan(32), 2.8e6, is_fanned=True)
    assert (straight.sent, straight.received) == (31 * 2.8e6, 31 * 2.8e6)
    assert (fanned.sent, fanned.received) == (2.8e6, 31 * 2.8e6)


def test_a_broadcast_takes_as_many_steps_as_the_tree_is_deep() -> None:
    assert [collectives.broadcast(RankSpan(count), 1.0).messages for count in (2, 3, 4, 5, 8, 9)] == [1, 2, 2, 3, 3, 4]
    assert collectives.broadcast(RankSpan(9), 1.0).total == 8


@given(st.floats(0, 1e12))
def test_one_rank_alone_sends_nothing(size: float) -> None:
    group = RankSpan(1)
    found = [
        *(collectives.all_reduce(group, size, algorithm) for algorithm in AllReduceAlgorithm),
        collectives.reduce_scatter(group, size),
        collectives.all_gather(group, size),
        collectives.all_to_all(group, size),
        collectives.payloads(group, size),
        collectives.broadcast(group, size),
    ]
    assert all(one.total == one.sent == one.messages == 0 for one in found)


@given(st.integers(2, 40), st.integers(1, 12), st.integers(1, 20))
@settings(max_examples=200)
def test_what_leaves_a_node_is_counted_hop_by_hop_and_pair_by_pair(count: int, stride: int, node: int) -> None:
    found = span(count, stride, node)
    homes = [at * stride // node for at in range(count)]
    hops = [homes[at] != homes[(at + 1) % count] for at in range(count)]
    pairs = [homes[a] != homes[b] for a in range(count) for b in range(count) if a != b]
    assert found.ring == pytest.approx(np.mean(hops))
    assert found.pairs == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("FF-PLAN-020", lambda: RankSpan(0)),
        ("FF-PLAN-020", lambda: RankSpan(-3)),
        ("FF-PLAN-020", lambda: RankSpan(2.5)),
        ("FF-PLAN-020", lambda: RankSpan(True)),
        ("FF-PLAN-020", lambda: span(1 << 40)),
        ("FF-PLAN-020", lambda: span(4, 0)),
        ("FF-PLAN-020", lambda: span(4, 1, -1)),
        ("FF-PLAN-026", lambda: collectives.all_reduce(RankSpan(4), 1.0, "x")),
        ("FF-PLAN-026", lambda: collectives.reduce_scatter(RankSpan(4), 1.0, "x")),
        ("FF-PLAN-021", lambda: RankSpan(4, ring=1.5)),
        ("FF-PLAN-021", lambda: collectives.all_reduce(RankSpan(4), -1.0)),
        ("FF-PLAN-021", lambda: collectives.all_gather(RankSpan(4), float("nan"))),
        ("FF-PLAN-021", lambda: collectives.all_to_all(RankSpan(4), float("inf"))),
        ("FF-PLAN-021", lambda: collectives.payloads(RankSpan(4), 1e40)),
        ("FF-PLAN-021", lambda: collectives.broadcast(RankSpan(4), "5")),
    ],
)
def test_numbers_that_make_no_sense_are_refused_by_name(code: str, call: object) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code
    assert any(
        name in error.value.message for name in ("ranks", "stride", "node", "ring", "size", "algorithm", "backend")
    )

"""What peers do by themselves while a run goes on: who migrates, and whose turn it is."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from farflung.plan.place import rebalance
from farflung.plan.place.rebalance import Peer

RATES = st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 10.0)), min_size=1, max_size=12)


@given(RATES)
def test_migration_raises_the_poorest_stage_and_empties_none(rows: list[tuple[int, float]]) -> None:
    peers = [Peer(str(at), stage, rate) for at, (stage, rate) in enumerate(rows)]
    needs = (1.0, 0.5, 2.0, 1.0)
    before = rebalance.throughput(peers, needs)
    move = rebalance.migrate(peers, needs)
    if move is None:
        return
    at = {peer.name: peer for peer in peers}
    assert before[move.source] == max(before)
    assert before[move.target] == min(before)
    at[move.peer] = msgspec.structs.replace(at[move.peer], stage=move.target)
    after = rebalance.throughput(list(at.values()), needs)
    assert min(after[move.source], after[move.target]) > rebalance.GAIN * before[move.target]
    assert any(peer.stage == move.source for peer in at.values())


@given(RATES)
def test_migration_comes_to_an_end(rows: list[tuple[int, float]]) -> None:
    peers = [Peer(str(at), stage, rate) for at, (stage, rate) in enumerate(rows)]
    found = rebalance.moves(peers, (1.0, 1.0, 1.0, 1.0))
    assert len(found) <= len(peers)
    assert len({move.peer for move in found}) == len(found)


def test_the_peer_that_fits_best_goes_from_the_richest_to_the_poorest() -> None:
    peers = [Peer("a", 0, 4.0), Peer("b", 0, 2.0), Peer("c", 0, 1.0), Peer("d", 1, 2.0), Peer("e", 2, 5.0)]
    move = rebalance.migrate(peers, (1.0, 1.0, 1.0))
    assert move == rebalance.Move("b", 0, 1, 2.0)
    assert rebalance.migrate(peers, (1.0, 1.0, 1.0), gain=2.0) is None


def test_of_peers_that_help_as_much_the_slowest_goes() -> None:
    peers = [Peer("a", 0, 6.0), Peer("b", 0, 4.0)]
    assert rebalance.migrate(peers, (1.0, 1.0)) == rebalance.Move("b", 0, 1, float("inf"))


@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=6), st.integers(1, 200))
def test_turns_are_dealt_in_proportion_and_evenly_spread(weights: list[float], count: int) -> None:
    rates = {f"p{at}": weight for at, weight in enumerate(weights)}
    turns, served = rebalance.Turns({}), dict.fromkeys(rates, 0)
    for dealt in range(1, count + 1):
        name, turns = turns.next(rates)
        served[name] += 1
        for peer, rate in rates.items():
            assert abs(served[peer] - dealt * rate / sum(weights)) <= len(rates)


def test_who_comes_new_is_not_flooded_and_who_leaves_is_forgotten() -> None:
    assert rebalance.Turns({}).next({"a": 1.0, "b": 3.0})[0] == "b"
    turns = rebalance.Turns({})
    for _ in range(100):
        _, turns = turns.next({"a": 1.0, "b": 1.0})
    names = []
    for _ in range(6):
        name, turns = turns.next({"a": 1.0, "b": 1.0, "c": 1.0})
        names.append(name)
    assert sorted(names) == ["a", "a", "b", "b", "c", "c"]
    _, turns = turns.next({"b": 1.0})
    assert set(turns.given) == {"b"}

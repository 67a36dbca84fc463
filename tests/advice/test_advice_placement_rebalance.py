"""What peers do by themselves while a run goes on: who migrates, and whose turn it is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.advice.placement import stage_rebalance
from farflung.advice.placement.stage_rebalance import StagePeer

pytestmark = pytest.mark.xdist_group("placement")  # its loops are compiled in one process only

RATES = st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 10.0)), min_size=1, max_size=12)


@given(RATES)
def test_migration_raises_the_poorest_stage_and_empties_none(rows: list[tuple[int, float]]) -> None:
    peers = [StagePeer(str(at), stage, rate) for at, (stage, rate) in enumerate(rows)]
    needs = (1.0, 0.5, 2.0, 1.0)
    before = stage_rebalance.throughput(peers, needs)
    move = stage_rebalance.migrate(peers, needs)
    if move is None:
        return
    at = {peer.name: peer for peer in peers}
    assert before[move.source] == max(before)
    assert before[move.target] == min(before)
    at[move.peer] = msgspec.structs.replace(at[move.peer], stage=move.target)
    after = stage_rebalance.throughput(list(at.values()), needs)
    assert min(after[move.source], after[move.target]) > stage_rebalance.GAIN * before[move.target]
    assert any(peer.stage == move.source for peer in at.values())


@given(RATES)
def test_migration_comes_to_an_end(rows: list[tuple[int, float]]) -> None:
    peers = [StagePeer(str(at), stage, rate) for at, (stage, rate) in enumerate(rows)]
    found = stage_rebalance.moves(peers, (1.0, 1.0, 1.0, 1.0))
    assert len(found) <= len(peers)
    assert len({move.peer for move in found}) == len(found)


def test_the_peer_that_fits_best_goes_from_the_richest_to_the_poorest() -> None:
    peers = [
        StagePeer("a", 0, 4.0),
        StagePeer("b", 0, 2.0),
        StagePeer("c", 0, 1.0),
        StagePeer("d", 1, 2.0),
        StagePeer("e", 2, 5.0),
    ]
    move = stage_rebalance.migrate(peers, (1.0, 1.0, 1.0))
    assert move == stage_rebalance.StageMove("b", 0, 1, 2.0)
    assert stage_rebalance.migrate(peers, (1.0, 1.0, 1.0), gain=2.0) is None


def test_of_peers_that_help_as_much_the_slowest_goes() -> None:
    peers = [StagePeer("a", 0, 6.0), StagePeer("b", 0, 4.0)]
    assert stage_rebalance.migrate(peers, (1.0, 1.0)) == stage_rebalance.StageMove("b", 0, 1, float("inf"))


@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=6), st.integers(1, 200))
def test_turns_are_dealt_in_proportion_and_evenly_spread(weights: list[float], count: int) -> None:
    rates = {f"p{at}": weight for at, weight in enumerate(weights)}
    turns, served = stage_rebalance.BatchDispatch({}), dict.fromkeys(rates, 0)
    for dealt in range(1, count + 1):
        name, turns = turns.next(rates)
        served[name] += 1
        for peer, rate in rates.items():
            assert abs(served[peer] - dealt * rate / sum(weights)) <= len(rates)


def test_who_comes_new_is_not_flooded_and_who_leaves_is_forgotten() -> None:
    assert stage_rebalance.BatchDispatch({}).next({"a": 1.0, "b": 3.0})[0] == "b"
    turns = stage_rebalance.BatchDispatch({})
    for _ in range(100):
        _, turns = turns.next({"a": 1.0, "b": 1.0})
    names = []
    for _ in range(6):
        name, turns = turns.next({"a": 1.0, "b": 1.0, "c": 1.0})
        names.append(name)
    assert sorted(names) == ["a", "a", "b", "b", "c", "c"]
    _, turns = turns.next({"b": 1.0})
    assert set(turns.given) == {"b"}

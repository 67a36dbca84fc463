"""Replicas of a model, whole or sharded: what each way sends for the others."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.advice.traffic import data_parallel
from farflung.advice.traffic.collectives import CollectiveBackend, RankSpan
from farflung.advice.traffic.data_parallel import ReplicaSharding, ZeroPlusPlus
from farflung.advice.traffic.hybrid_parallel import ParallelMesh
from farflung.advice.traffic.traffic_terms import TrafficLoad
from farflung.core.errors import UsageError

SIZE = 2 * 24e6


def total(terms: object) -> float:
    return TrafficLoad(1, tuple(terms)).sent  # type: ignore[arg-type]


@given(st.integers(2, 64), st.integers(1, 8))
def test_full_sharding_moves_half_as_much_again_for_any_number_of_ranks(count: int, micros: int) -> None:
    group = RankSpan(count)
    whole, one, two, three = (
        total(data_parallel.replicated(SIZE, group, ReplicaSharding(stage))) for stage in range(4)
    )
    assert whole == pytest.approx(one) == pytest.approx(two)
    assert three == pytest.approx(1.5 * whole)
    often = {
        stage: total(data_parallel.replicated(SIZE, group, ReplicaSharding(stage, accumulation=micros))) / (whole / 2)
        for stage in range(4)
    }
    assert often == {
        0: pytest.approx(2), 1: pytest.approx(2), 2: pytest.approx(micros + 1), 3: pytest.approx(3 * micros),
    }  # fmt: skip


@given(st.integers(2, 64), st.integers(1, 8), st.integers(1, 9))
def test_what_is_kept_or_summed_first_is_not_sent(count: int, micros: int, units: int) -> None:
    def sent(**changes: object) -> float:
        sharding = ReplicaSharding(3, accumulation=micros, units=units, **changes)  # type: ignore[arg-type]
        return total(data_parallel.replicated(SIZE, RankSpan(count), sharding)) / ((count - 1) / count * SIZE)

    assert sent(reshard_after_forward=False) == pytest.approx(2 * micros)
    assert sent(reduce_each=False) == pytest.approx(2 * micros + 1)
    assert sent(reshard_after_forward=False, reduce_each=False) == pytest.approx(micros + 1)
    assert sent(backend=CollectiveBackend.GLOO) == pytest.approx(4 * micros)


def test_units_are_gathered_one_by_one() -> None:
    few, many = (data_parallel.replicated(SIZE, RankSpan(4), ReplicaSharding(3, units=units)) for units in (1, 24))
    assert total(few) == pytest.approx(total(many))
    assert (TrafficLoad(4, few).syncs, TrafficLoad(4, many).syncs) == (3, 72)
    assert TrafficLoad(4, many).messages == 72 * 3


def test_quantised_sharding_sends_a_quarter_between_nodes() -> None:
    group = ParallelMesh(data=384, node=16).replicas()
    load = TrafficLoad(384, data_parallel.replicated(2e9, group, ReplicaSharding(3, plus=ZeroPlusPlus())))
    plain = data_parallel.replicated(2e9, group, ReplicaSharding(3))
    assert load.between / 24 / 2e9 == pytest.approx(0.75, rel=0.03)
    assert TrafficLoad(384, plain).between / load.between == pytest.approx(4, rel=0.03)
    with_scales = TrafficLoad(
        384, data_parallel.replicated(2e9, group, ReplicaSharding(3, plus=ZeroPlusPlus(block=256)))
    )
    assert 1 < with_scales.between / load.between < 1.04


@pytest.mark.parametrize(
    "sharding", [ReplicaSharding(3), ReplicaSharding(3, accumulation=3, units=4, reduce_each=False)]
)
def test_each_part_of_quantised_sharding_changes_what_it_is_for_alone(sharding: ReplicaSharding) -> None:
    group = ParallelMesh(data=16, node=4).replicas()

    def sent(**parts: int) -> list[float]:
        plus = ZeroPlusPlus(**({"weight_bits": 0, "gradient_bits": 0, "is_copied": False} | parts))  # type: ignore[arg-type]
        terms = data_parallel.replicated(SIZE, group, msgspec.structs.replace(sharding, plus=plus))
        return [term.sent for term in terms]

    plain = [term.sent for term in data_parallel.replicated(SIZE, group, sharding)]
    times = sharding.accumulation
    assert sent() == plain
    assert sent(weight_bits=8) == pytest.approx([plain[0] / 2, plain[1] / 2, plain[2]])
    assert sent(is_copied=True) == pytest.approx([plain[0], 3 / 4 * SIZE * times, plain[2]])
    assert sent(gradient_bits=4)[:2] == plain[:2]
    kept = msgspec.structs.replace(sharding, plus=ZeroPlusPlus(), reshard_after_forward=False)
    assert len(data_parallel.replicated(SIZE, group, kept)) == 3
    assert data_parallel.copied(SIZE, group, kept) == ()


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("FF-PLAN-020", lambda: ZeroPlusPlus(weight_bits=33)),
        ("FF-PLAN-020", lambda: ReplicaSharding(2, plus=ZeroPlusPlus())),
        ("FF-PLAN-020", lambda: ReplicaSharding(stage=4)),
        (
            "FF-PLAN-021",
            lambda: data_parallel.copied(float("nan"), RankSpan(2), ReplicaSharding(3, plus=ZeroPlusPlus())),
        ),
        ("FF-PLAN-021", lambda: data_parallel.replicated(-1.0, RankSpan(2), ReplicaSharding(3, plus=ZeroPlusPlus()))),
        ("FF-PLAN-026", lambda: ReplicaSharding(3, backend="x")),
        ("FF-PLAN-026", lambda: ReplicaSharding(algorithm="x")),
    ],
)
def test_sharding_that_makes_no_sense_is_refused(code: str, call: object) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code

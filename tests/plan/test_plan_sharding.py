"""Replicas of a model, whole or sharded: what each way sends for the others."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.core.errors import UsageError
from farflung.plan.parallel import replicas
from farflung.plan.parallel.collectives import Backend, Span
from farflung.plan.parallel.layouts import Mesh
from farflung.plan.parallel.replicas import PlusPlus, Sharding
from farflung.plan.parallel.terms import Load

SIZE = 2 * 24e6


def total(terms: object) -> float:
    return Load(1, tuple(terms)).sent  # type: ignore[arg-type]


@given(st.integers(2, 64), st.integers(1, 8))
def test_full_sharding_moves_half_as_much_again_for_any_number_of_ranks(count: int, micros: int) -> None:
    group = Span(count)
    whole, one, two, three = (total(replicas.replicated(SIZE, group, Sharding(stage))) for stage in range(4))
    assert whole == pytest.approx(one) == pytest.approx(two)
    assert three == pytest.approx(1.5 * whole)
    often = {
        stage: total(replicas.replicated(SIZE, group, Sharding(stage, accumulation=micros))) / (whole / 2)
        for stage in range(4)
    }
    assert often == {
        0: pytest.approx(2), 1: pytest.approx(2), 2: pytest.approx(micros + 1), 3: pytest.approx(3 * micros),
    }  # fmt: skip


@given(st.integers(2, 64), st.integers(1, 8), st.integers(1, 9))
def test_what_is_kept_or_summed_first_is_not_sent(count: int, micros: int, units: int) -> None:
    def sent(**changes: object) -> float:
        sharding = Sharding(3, accumulation=micros, units=units, **changes)  # type: ignore[arg-type]
        return total(replicas.replicated(SIZE, Span(count), sharding)) / ((count - 1) / count * SIZE)

    assert sent(reshard_after_forward=False) == pytest.approx(2 * micros)
    assert sent(reduce_each=False) == pytest.approx(2 * micros + 1)
    assert sent(reshard_after_forward=False, reduce_each=False) == pytest.approx(micros + 1)
    assert sent(backend=Backend.GLOO) == pytest.approx(4 * micros)


def test_units_are_gathered_one_by_one() -> None:
    few, many = (replicas.replicated(SIZE, Span(4), Sharding(3, units=units)) for units in (1, 24))
    assert total(few) == pytest.approx(total(many))
    assert (Load(4, few).syncs, Load(4, many).syncs) == (3, 72)
    assert Load(4, many).messages == 72 * 3


def test_quantised_sharding_sends_a_quarter_between_nodes() -> None:
    group = Mesh(data=384, node=16).replicas()
    load = Load(384, replicas.replicated(2e9, group, Sharding(3, plus=PlusPlus())))
    plain = replicas.replicated(2e9, group, Sharding(3))
    assert load.between / 24 / 2e9 == pytest.approx(0.75, rel=0.03)
    assert Load(384, plain).between / load.between == pytest.approx(4, rel=0.03)
    with_scales = Load(384, replicas.replicated(2e9, group, Sharding(3, plus=PlusPlus(block=256))))
    assert 1 < with_scales.between / load.between < 1.04


@pytest.mark.parametrize("sharding", [Sharding(3), Sharding(3, accumulation=3, units=4, reduce_each=False)])
def test_each_part_of_quantised_sharding_changes_what_it_is_for_alone(sharding: Sharding) -> None:
    group = Mesh(data=16, node=4).replicas()

    def sent(**parts: int) -> list[float]:
        plus = PlusPlus(**({"weight_bits": 0, "gradient_bits": 0, "is_copied": False} | parts))  # type: ignore[arg-type]
        terms = replicas.replicated(SIZE, group, msgspec.structs.replace(sharding, plus=plus))
        return [term.sent for term in terms]

    plain = [term.sent for term in replicas.replicated(SIZE, group, sharding)]
    times = sharding.accumulation
    assert sent() == plain
    assert sent(weight_bits=8) == pytest.approx([plain[0] / 2, plain[1] / 2, plain[2]])
    assert sent(is_copied=True) == pytest.approx([plain[0], 3 / 4 * SIZE * times, plain[2]])
    assert sent(gradient_bits=4)[:2] == plain[:2]
    kept = msgspec.structs.replace(sharding, plus=PlusPlus(), reshard_after_forward=False)
    assert len(replicas.replicated(SIZE, group, kept)) == 3
    assert replicas.copied(SIZE, group, kept) == ()


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("FF-PLAN-020", lambda: PlusPlus(weight_bits=33)),
        ("FF-PLAN-020", lambda: Sharding(2, plus=PlusPlus())),
        ("FF-PLAN-020", lambda: Sharding(stage=4)),
        ("FF-PLAN-021", lambda: replicas.copied(float("nan"), Span(2), Sharding(3, plus=PlusPlus()))),
        ("FF-PLAN-021", lambda: replicas.replicated(-1.0, Span(2), Sharding(3, plus=PlusPlus()))),
        ("FF-PLAN-026", lambda: Sharding(3, backend="x")),
        ("FF-PLAN-026", lambda: Sharding(algorithm="x")),
    ],
)
def test_sharding_that_makes_no_sense_is_refused(code: str, call: object) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code

"""A plan states bytes, memory, time and price, and refuses what cannot be."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.errors import PolicyError
from farflung.core.layout import Layout
from farflung.core.money import parse_credits
from farflung.job.spec import DataSpec, EvaluateSpec, JobSpec, ModelSpec, NetworkSpec, OptimizerSpec, SyncSpec
from farflung.plan.advise import advise, describe_sync
from farflung.plan.compare import Measured, compare, is_off, ratio
from farflung.plan.machine import Machine
from farflung.plan.memory import SHARED, memory
from farflung.plan.price import price
from farflung.plan.time import duration, evaluated_tokens, train_flop
from farflung.plan.traffic import on_wire, ring_bytes, traffic

LAYOUT = Layout.of({"a.weight": (128, 512), "b.weight": (512, 128), "c.bias": (128,)})
MACHINE = Machine(cores=2, flops_per_core=1e11, memory_bytes=16 << 30)


class Fixed:
    """A codec whose payloads have one length."""

    def expect(self, layout: Layout) -> float:
        return 1000.5

    def bound(self, layout: Layout) -> int:
        return 2000


def spec(**changes: object) -> JobSpec:
    model, sync = ModelSpec(context=128), SyncSpec(steps=15, topk=256)
    return msgspec.structs.replace(JobSpec(rounds=24, model=model, sync=sync), **changes)


@given(members=st.integers(1, 40), rounds=st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_each_of_n_payloads_is_sent_n_times_a_round(members: int, rounds: int) -> None:
    sent = traffic(spec(rounds=rounds, network=NetworkSpec(providers=members)), LAYOUT, 10_000, Fixed())
    pushed_and_fetched = members * (1 + (members - 1))
    assert sent.sync_round == pushed_and_fetched * on_wire(1001)
    assert sent.sync == rounds * sent.sync_round
    assert sent.total == sent.sync + sent.join + sent.control + sent.audit


def test_join_is_the_dataset_and_the_public_state_for_each_member() -> None:
    plain = traffic(spec(), LAYOUT, 10_000, Fixed())
    assert plain.join == 5 * (on_wire(10_000) + on_wire(4 * LAYOUT.size))
    moved = spec(sync=SyncSpec(outer_momentum=0.9))
    assert traffic(moved, LAYOUT, 10_000, Fixed()).join == 5 * (on_wire(10_000) + on_wire(8 * LAYOUT.size))


def test_ring_counts_two_bytes_an_element_and_two_passes_a_step() -> None:
    assert ring_bytes(1_000_000, 360, 5) == 360 * 2 * 4 * 2 * 1_000_000
    assert ring_bytes(1_000_000, 360, 1) == 0


@given(size=st.integers(0, 5 * limits.CHUNK_BYTES))
@settings(max_examples=50, deadline=None)
def test_wire_overhead_is_small_and_grows_with_size(size: int) -> None:
    assert size <= on_wire(size) <= size * 1.002 + 64
    assert on_wire(size) <= on_wire(size + 1)


def test_price_is_tokens_times_unit_price_and_escrow_adds_one_round() -> None:
    cost = price(spec(budget="5"))
    round_price = 5 * 8 * 128 * 15
    assert cost.price == 24 * round_price
    assert (cost.margin, cost.escrow) == (round_price, 25 * round_price)
    assert cost.units == 24 * round_price  # one micro-credit each


def test_escrow_never_exceeds_the_budget() -> None:
    exact = price(spec(budget="1.8432"))
    assert exact.price == exact.escrow == parse_credits("1.8432")
    assert exact.margin == 0


def test_a_budget_one_micro_credit_below_the_price_is_refused_with_what_to_change() -> None:
    with pytest.raises(PolicyError) as error:
        price(spec(budget="1.843199"))
    assert error.value.code == "FF-PLAN-001"
    assert 'budget = "1.843200"' in error.value.hint
    assert "rounds = 23" in error.value.hint
    price(spec(budget="1.843199", rounds=23))


def test_free_work_has_no_price_and_needs_no_budget() -> None:
    assert price(spec(unit_price="0", budget="0")).escrow == 0


def test_too_little_memory_is_refused_and_the_advice_fits() -> None:
    small = Machine(cores=2, flops_per_core=1e11, memory_bytes=1_500_000_000)
    with pytest.raises(PolicyError) as error:
        advise(spec(), LAYOUT, 12_000_000, small)
    assert error.value.code == "FF-PLAN-002"
    fit = int(error.value.hint.split("network.providers = ")[1].split(",")[0])
    advise(spec(network=NetworkSpec(providers=fit)), LAYOUT, 12_000_000, small)
    with pytest.raises(PolicyError):
        advise(spec(network=NetworkSpec(providers=fit + 1)), LAYOUT, 12_000_000, small)


def test_memory_counts_states_by_optimizer_and_codec() -> None:
    adamw, state = memory(spec(), LAYOUT, 0), 4 * LAYOUT.size
    assert (adamw.parameters, adamw.gradients, adamw.optimizer, adamw.residual) == (
        state,
        state,
        2 * state,
        state,
    )
    lean = spec(optimizer=OptimizerSpec(name="sgd"), sync=SyncSpec(method="diloco", codec="dense_fp32"))
    assert memory(lean, LAYOUT, 0).optimizer == state
    assert memory(lean, LAYOUT, 0).residual == 0
    assert memory(spec(batch=16), LAYOUT, 0).activations == 2 * adamw.activations
    assert adamw.network == 6 * (adamw.worker - SHARED) + SHARED + adamw.agents


def test_activations_of_a_users_module_come_from_its_shapes() -> None:
    user = spec(model=ModelSpec(kind="module", module="m.py:f", context=10), batch=3)
    assert memory(user, LAYOUT, 0).activations == 4 * 30 * (128 + 512 + 512 + 128)


def test_flop_of_a_token_is_six_a_parameter_and_twelve_l_h_t() -> None:
    job = spec(rounds=1, network=NetworkSpec(providers=1), batch=1, sync=SyncSpec(steps=1))
    assert train_flop(job, LAYOUT) == 128 * (6 * LAYOUT.size + 12 * 4 * 128 * 128)


def test_time_shrinks_with_cores_up_to_the_number_of_members() -> None:
    sent = traffic(spec(), LAYOUT, 10_000, Fixed())

    def seconds(cores: int) -> float:
        return duration(spec(), LAYOUT, sent, Machine(cores, 1e11, 1 << 34)).compute

    assert seconds(1) == pytest.approx(2 * seconds(2))
    assert seconds(5) == seconds(64)
    faster = duration(spec(), LAYOUT, sent, Machine(2, 2e11, 1 << 34))
    assert faster.compute == pytest.approx(seconds(2) / 2)


def test_evaluation_happens_before_the_first_round_every_few_and_at_the_end() -> None:
    job = spec(rounds=9, evaluate=EvaluateSpec(every=4, tokens=10, final_tokens=1000))
    assert evaluated_tokens(job) == 10 * (1 + 2) + 1000
    assert evaluated_tokens(spec(evaluate=EvaluateSpec(every=0, tokens=10, final_tokens=5))) == 15


def test_the_plan_event_holds_the_plan() -> None:
    plan = advise(spec(data=DataSpec(path="x")), LAYOUT, 12_000_000, MACHINE)
    event = plan.event("/runs/1")
    assert event.parameters == LAYOUT.size
    assert event.sync_bytes == plan.traffic.sync
    assert event.ring_bytes == ring_bytes(LAYOUT.size, 360, 5)
    assert (event.tokens, event.price, event.escrow) == (1_843_200, 1_843_200, 1_920_000)
    assert event.memory_bytes == plan.memory.worker
    assert plan.traffic.payload <= plan.traffic.payload_bound
    assert describe_sync(spec()) == "sparse_loco H=15 topk_2bit 256/4096"


def test_comparison_flags_what_lies_outside_the_band() -> None:
    plan = advise(spec(), LAYOUT, 12_000_000, MACHINE)
    planned = plan.traffic.sync
    rows = compare(
        plan, Measured(sync_bytes=planned, seconds=plan.duration.total * 1.3, paid=plan.price.price)
    )
    assert [row.quantity for row in rows] == ["sync", "time", "price"]
    assert [is_off(row) for row in rows] == [False, True, False]
    assert ratio(rows[0]) == 1.0
    below = compare(plan, Measured(sync_bytes=planned * 79 // 100))[0]
    assert is_off(below)


def test_something_measured_that_was_not_planned_is_off() -> None:
    free = advise(spec(unit_price="0"), LAYOUT, 1, MACHINE)
    assert is_off(compare(free, Measured(paid=1))[0])
    assert not is_off(compare(free, Measured(paid=0))[0])

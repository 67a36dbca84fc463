"""A plan states bytes, memory, time and price, and refuses what cannot be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress import kernels
from farflung.core import limits
from farflung.core.errors import PolicyError
from farflung.core.money import format_credits, parse_credits
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Bytes, Seconds
from farflung.job.codec_cost import codec_cost
from farflung.job.methods.registry import method_of
from farflung.job.spec import (
    AuditSpec,
    DataSpec,
    EvaluateSpec,
    JobSpec,
    ModelSpec,
    NetworkSpec,
    OptimizerSpec,
    SyncSpec,
)
from farflung.plan.exchange_paths import RunLinks
from farflung.plan.link_syntax import Link
from farflung.plan.machine import MachineMeasurements
from farflung.plan.plan_comparison import MeasuredRun, compare, is_off, is_within, ratio
from farflung.plan.run_duration import (
    ANSWER_LEAST,
    ANSWER_TIMES,
    BORDER,
    EFFICIENCY,
    RunDuration,
    answer_seconds,
    duration,
    evaluated_tokens,
    served_seconds,
    step_seconds,
    train_flop,
)
from farflung.plan.run_plan import advise, describe_sync
from farflung.plan.run_price import audit_units, expected_audits, price, worst_audits
from farflung.plan.run_traffic import PUSH, on_wire, ring_bytes, traffic
from farflung.plan.state_vectors import densities, owed_rate
from farflung.plan.worker_memory import (
    AGENT,
    BASELINE,
    COMPILED,
    RELAYS,
    StepMemory,
    border_vectors,
    memory,
    state_file_bytes,
)
from farflung.watch import plan_vs_run_text

LAYOUT = TensorLayout.of({"a.weight": (128, 512), "b.weight": (512, 128), "c.bias": (128,)})
MACHINE = MachineMeasurements(cores=2, flops_per_core=1e11, memory_bytes=16 << 30)


def sparse(**changes: Any) -> SyncSpec:
    """A [sync] in which nothing is left to the defaults of a job."""
    said: dict[str, Any] = {
        "method": "sparse_loco", "steps": 20, "codec": "topk", "value_bits": 2, "topk": 768, "chunk": 4096,
        "transform": "raw", "error_decay": 0.95, "outer": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0,
    }  # fmt: skip
    return SyncSpec(**{**said, **changes})


ADAMW = OptimizerSpec(name="adamw", lr=3e-3, momentum=0.9)


class Fixed:
    """A codec whose payloads have one length."""

    def expect(self, layout: TensorLayout) -> float:
        return 1000.5


def peers(**said: int) -> NetworkSpec:
    """A network of two verifiers, unless it is said."""
    return NetworkSpec(**{"verifiers": 2, **said})


def spec(**changes: object) -> JobSpec:
    model, sync, audit = ModelSpec(context=128), sparse(steps=15, topk=256), AuditSpec(4, 0.25, 1)
    whole = JobSpec(
        rounds=24, batch=8, unit_price=format_credits(1), model=model, optimizer=ADAMW, sync=sync, audit=audit,
        network=peers(),
    )  # fmt: skip
    return msgspec.structs.replace(whole, **changes)


@given(members=st.integers(1, 40), rounds=st.integers(1, 50))
@settings(max_examples=40)
def test_each_of_n_payloads_is_sent_n_times_a_round(members: int, rounds: int) -> None:
    job, pairs = spec(rounds=rounds, network=peers(providers=members)), RunLinks(can_copy=False)
    sent = traffic(job, LAYOUT, 10_000, Fixed(), pairs)
    pushed_and_fetched = members * (1 + (members - 1))
    assert sent.sync_round == pushed_and_fetched * on_wire(1001) + members * PUSH
    assert sent.sync == rounds * sent.sync_round
    assert sent.total == sent.sync + sent.join + sent.control + sent.audit + sent.relay


def test_join_is_the_dataset_for_all_nodes_and_the_public_state_for_members() -> None:
    plain = traffic(spec(), LAYOUT, 10_000, Fixed())
    assert plain.join == 5 * on_wire(4 * LAYOUT.size) + 7 * on_wire(10_000)
    moved = traffic(spec(sync=sparse(outer_momentum=0.9)), LAYOUT, 10_000, Fixed())
    assert moved.join == 5 * on_wire(8 * LAYOUT.size) + 7 * on_wire(10_000)
    alone = traffic(spec(audit=AuditSpec(rate=0.0, probation=0)), LAYOUT, 10_000, Fixed())
    assert alone.join == 5 * (on_wire(4 * LAYOUT.size) + on_wire(10_000))


def test_ring_counts_two_bytes_an_element_and_two_passes_a_step() -> None:
    assert ring_bytes(1_000_000, 360, 5) == 360 * 2 * 4 * 2 * 1_000_000
    assert ring_bytes(1_000_000, 360, 1) == 0


@given(size=st.integers(0, 5 * limits.CHUNK_BYTES))
@settings(max_examples=50)
def test_wire_overhead_is_small_and_grows_with_size(size: int) -> None:
    assert size <= on_wire(size) <= size * 1.002 + 150 * -(-size // limits.CHUNK_BYTES)
    assert on_wire(size) <= on_wire(size + 1)


ROUND = 5 * 8 * 128 * 15  # pico-credits of one round of all providers, at one each
# 15 steps in 4 segments: 3, 4, 4, 4. Probation is one of 24 rounds; of the other 23 a quarter is drawn.
AUDITS = -(-ROUND * (4 + 23) // (4 * 4))
WORST = 24 * 5 * 8 * 128 * 4  # of each of two verifiers


def test_price_is_training_and_the_audits_that_are_expected() -> None:
    cost = price(spec(budget="5"))
    assert (cost.training, cost.audits, cost.worst_audits) == (24 * ROUND, AUDITS, 2 * WORST)
    assert cost.price == 24 * ROUND + AUDITS
    assert cost.units == 24 * ROUND  # one pico-credit each; audits are not training


def test_escrow_is_training_a_margin_of_one_round_and_the_worst_audits() -> None:
    cost = price(spec(budget="5"))
    assert (cost.margin, cost.escrow) == (ROUND, 25 * ROUND + 2 * WORST)
    assert audit_units(spec(budget="5"), cost) == WORST


@pytest.mark.parametrize(
    ("audit", "share"),
    [
        (AuditSpec(segments=1, rate=0.0, probation=1), 1),
        (AuditSpec(segments=1, rate=1.0, probation=0), 24),
        (AuditSpec(segments=1, rate=0.5, probation=0), 12),
        (AuditSpec(segments=1, rate=0.5, probation=4), 14),
        (AuditSpec(segments=1, rate=0.5, probation=99), 24),
        (AuditSpec(segments=3, rate=1.0, probation=0), 8),
        (AuditSpec(segments=99, rate=1.0, probation=3), 1.6),
        (AuditSpec(rate=0.0, probation=0), 0),
    ],
)
def test_expected_audits_are_probation_and_the_drawn_share_of_the_rest(audit: AuditSpec, share: float) -> None:
    assert expected_audits(spec(audit=audit)) == share * ROUND


def test_a_verifier_repeats_at_worst_the_longest_segment_of_every_contribution() -> None:
    assert worst_audits(spec()) == WORST
    assert worst_audits(spec(audit=AuditSpec(segments=1))) == 24 * ROUND
    assert worst_audits(spec(audit=AuditSpec(segments=99))) == 24 * ROUND // 15


@pytest.mark.parametrize("change", [{"audit": AuditSpec(rate=0.0, probation=0)}, {"network": peers(verifiers=0)}])
def test_without_audits_or_verifiers_only_training_is_paid(change: dict[str, object]) -> None:
    cost = price(spec(budget="5", **change))
    assert (cost.price, cost.audits, cost.worst_audits) == (24 * ROUND, 0, 0)
    assert (cost.escrow, audit_units(spec(**change), cost)) == (25 * ROUND, 0)


def test_escrow_never_exceeds_the_budget() -> None:
    exact = spec(budget=format_credits(24 * ROUND + AUDITS))
    cost = price(exact)
    assert cost.price == cost.escrow == parse_credits(exact.budget)
    assert cost.margin == 0
    assert audit_units(exact, cost) == AUDITS // 2


def test_a_short_budget_serves_the_margin_before_the_worst_case() -> None:
    job = spec(budget=format_credits(25 * ROUND + AUDITS + 10))
    cost = price(job)
    assert (cost.margin, cost.escrow) == (ROUND, parse_credits(job.budget))
    assert audit_units(job, cost) == (AUDITS + 10) // 2


@given(
    budget=st.integers(0, 4_000_000),
    unit=st.integers(0, 3),
    verifiers=st.integers(0, 4),
    segments=st.integers(1, 20),
    rate=st.floats(0, 1),
    probation=st.integers(0, 30),
)
@settings(max_examples=150)
def test_all_leases_together_fit_into_the_escrow(
    budget: int, unit: int, verifiers: int, segments: int, rate: float, probation: int
) -> None:
    job = spec(
        budget=format_credits(budget),
        unit_price=format_credits(unit),
        network=peers(verifiers=verifiers),
        audit=AuditSpec(segments=segments, rate=rate, probation=probation),
    )
    try:
        cost = price(job)
    except PolicyError:
        assert unit * (24 * ROUND + expected_audits(job)) > budget
        return
    units = audit_units(job, cost)
    leases = cost.training + cost.margin + unit * verifiers * units
    assert leases <= cost.escrow <= budget
    assert 0 <= units <= worst_audits(job)
    expected = expected_audits(job)
    assert expected <= verifiers * worst_audits(job)
    assert verifiers * units >= expected - verifiers  # but for what division leaves over


def test_a_budget_one_pico_credit_below_the_price_is_refused_with_what_to_change() -> None:
    whole = 24 * ROUND + AUDITS
    short = format_credits(whole - 1)
    with pytest.raises(PolicyError) as error:
        price(spec(budget=short))
    assert error.value.code == "FF-PLAN-001"
    assert f'budget = "{format_credits(whole)}"' in error.value.hint
    assert f"{format_credits(AUDITS)} credits for audits" in error.value.cause
    assert "rounds = 23" in error.value.hint
    price(spec(budget=short, rounds=23))


@pytest.mark.parametrize("budget", [80_000, 700_000, 1_000_000, 1_900_000])
def test_the_rounds_of_the_hint_are_the_most_that_the_budget_has(budget: int) -> None:
    job = spec(budget=format_credits(budget), audit=AuditSpec(probation=7))
    with pytest.raises(PolicyError) as error:
        price(job)
    if "rounds = " not in error.value.hint:
        with pytest.raises(PolicyError):
            price(msgspec.structs.replace(job, rounds=1))
        return
    rounds = int(error.value.hint.split("rounds = ")[1])
    price(msgspec.structs.replace(job, rounds=rounds))
    with pytest.raises(PolicyError):
        price(msgspec.structs.replace(job, rounds=rounds + 1))


def test_free_work_has_no_price_and_needs_no_budget() -> None:
    assert price(spec(unit_price="0", budget="0")).escrow == 0


def test_too_little_memory_is_refused_and_the_advice_fits() -> None:
    small = MachineMeasurements(cores=2, flops_per_core=1e11, memory_bytes=5_000_000_000)
    with pytest.raises(PolicyError) as error:
        advise(spec(), LAYOUT, 12_000_000, small)
    assert error.value.code == "FF-PLAN-002"
    fit = int(error.value.hint.split("network.providers = ")[1].split(",")[0])
    advise(spec(network=peers(providers=fit)), LAYOUT, 12_000_000, small)
    with pytest.raises(PolicyError):
        advise(spec(network=peers(providers=fit + 1)), LAYOUT, 12_000_000, small)


@pytest.mark.parametrize(("changes", "vectors"), [({"error_decay": 0.0}, 4), ({"fragments": 2}, 5)])
def test_a_state_that_no_store_takes_is_refused_before_anything_is_spent(
    changes: dict[str, Any], vectors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the bound itself, walked across: weights, both vectors of AdamW, and what is carried."""
    spec = JobSpec(sync=sparse(**changes))
    size = limits.MIB + 4 * LAYOUT.size * vectors
    monkeypatch.setattr(limits, "OBJECT_BYTES", size)
    assert advise(spec, LAYOUT, 1000, MACHINE).parameters == LAYOUT.size
    monkeypatch.setattr(limits, "OBJECT_BYTES", size - 1)
    with pytest.raises(PolicyError, match="FF-PLAN-003") as refused:
        advise(spec, LAYOUT, 1000, MACHINE)
    assert f"{LAYOUT.size - 1:,} parameters or fewer" in refused.value.hint


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("verifiers", [0, 2])
@pytest.mark.parametrize("memory_bytes", range(500_000_000, 3_250_000_000, 250_000_000))
def test_what_is_advised_against_too_little_memory_is_possible(batch: int, verifiers: int, memory_bytes: int) -> None:
    small = MachineMeasurements(cores=2, flops_per_core=1e11, memory_bytes=memory_bytes)
    job = spec(batch=batch, network=peers(verifiers=verifiers), audit=AuditSpec(4, 0.25 * bool(verifiers), 0))
    with pytest.raises(PolicyError) as error:
        advise(msgspec.structs.replace(job, budget="100"), LAYOUT, 12_000_000, small)
    hint = error.value.hint
    assert "network.providers = " not in hint or int(hint.split("network.providers = ")[1].split(",")[0]) >= 2
    assert ("fewer network.verifiers" in hint) <= bool(verifiers)
    assert ("batch below" in hint) == (batch > 1)


def test_memory_counts_states_by_optimizer_and_what_encoding_takes() -> None:
    adamw, state = memory(spec(), LAYOUT, 0), 4 * LAYOUT.size
    assert (adamw.parameters, adamw.gradients, adamw.optimizer) == (state + LAYOUT.size, state, 2 * state)
    lean = spec(optimizer=OptimizerSpec(name="sgd"), sync=sparse(method="diloco", codec="dense", value_bits=32))
    assert memory(lean, LAYOUT, 0).optimizer == state
    assert 6 * state < memory(lean, LAYOUT, 0).exchange < 6 * state + limits.KIB  # values are sent as they are
    unchecked = memory(spec(audit=AuditSpec(rate=0.0, probation=0)), LAYOUT, 0)
    double = memory(spec(batch=16, audit=AuditSpec(rate=0.0, probation=0)), LAYOUT, 0)
    assert double.activations == 2 * unchecked.activations
    assert adamw.network == 8 * (adamw.lease - adamw.shared) + adamw.shared + adamw.agents
    assert unchecked.network == 6 * (unchecked.lease - unchecked.shared) + unchecked.shared + unchecked.agents


def test_a_traced_step_takes_the_place_of_the_closed_form() -> None:
    """All that is alive at its peak counts once, with the heap's factor."""
    state = 4 * LAYOUT.size
    beside = state + (2 + 4) * 8 * 128 * 256  # of the profile: weights, and logits in 16 bits and in 32
    traced = memory(spec(), LAYOUT, 0, StepMemory(Bytes(50_000_000 - beside), heap=1.5))
    assert traced.step == 50_000_000
    assert traced.worker == traced.baseline + int(1.5 * 50_000_000)
    lean = memory(spec(), LAYOUT, 0, StepMemory(Bytes(state)))  # a trace that says less than the states are
    assert lean.activations == beside
    assert lean.worker == lean.baseline + max(
        int(lean.heap * lean.step), lean.parameters + lean.gradients + lean.exchange
    )


def test_compiled_codecs_take_memory_where_they_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = spec(rounds=1), spec(rounds=2000)  # of the same model: compiling takes as long in both
    assert codec_cost(short, LAYOUT.size) < kernels.WORTH <= codec_cost(long, LAYOUT.size)
    found = {}
    for is_there in (True, False):
        monkeypatch.setattr(kernels, "installed", lambda is_there=is_there: is_there)
        found[is_there] = [memory(job, LAYOUT, 0).baseline for job in (short, long)]
    assert found[False] == [BASELINE, BASELINE]
    assert found[True] == [BASELINE, BASELINE + COMPILED]


def test_a_workers_file_counts_what_each_method_keeps_beside_the_weights() -> None:
    def vectors(job: JobSpec) -> int:
        return round(state_file_bytes(job, LAYOUT) / (4 * LAYOUT.size + (1 << 16)))

    unchecked = AuditSpec(rate=0.0, probation=0)
    plain, late = spec(audit=unchecked), spec(audit=unchecked, sync=sparse(delay=1))
    # The change that waits, before and after a merge; the offset thrice; the round ahead.
    assert vectors(late) - vectors(plain) == 2 + 3 + (plain.segments * 3 + 1)
    stepwise = sparse(method="powersgd", codec="low_rank", steps=1, outer="adamw")
    gradient = spec(optimizer=OptimizerSpec(name="gradient"), sync=stepwise)
    assert memory(gradient, LAYOUT, 0).optimizer == 4 * LAYOUT.size  # the velocity
    as_many = spec(optimizer=OptimizerSpec(name="sgd"), sync=sparse(steps=1))
    assert vectors(gradient) - vectors(as_many) == 2 * 4  # two moments, warm start, basis
    assert memory(spec(optimizer=OptimizerSpec(name="muon")), LAYOUT, 0).optimizer == 2 * 4 * LAYOUT.size


@pytest.mark.parametrize(
    ("sync", "words"),
    [
        (sparse(method="muloco", codec="dense", value_bits=2), "muloco H=20 dense 2-bit"),
        (sparse(method="diloco", codec="dense", value_bits=32), "diloco H=20 dense fp32"),
        (sparse(method="demo", steps=1, topk=32, value_bits=32, transform="dct"), "demo H=1 topk 32/4096 fp32 dct"),
        (sparse(method="powersgd", steps=1, codec="low_rank"), "powersgd H=1 low_rank 4"),
        (sparse(topk=64, delay=1), "sparse_loco H=20 topk 64/4096 2-bit, a round late"),
    ],
)
def test_a_method_is_described_by_what_it_sends(sync: SyncSpec, words: str) -> None:
    assert describe_sync(spec(sync=sync)) == words


def test_a_workers_file_holds_the_states_at_a_rounds_borders_and_those_that_an_audit_opens() -> None:
    opened = (1 + 2 + 1) + (1 + 2) + (1 + 1)  # start, end and last: weights, AdamW's two vectors, residual
    assert border_vectors(spec()) == 4 * 3 + opened
    assert border_vectors(spec(audit=AuditSpec(2, 0.0, 0))) == 2 * 3
    lean = spec(optimizer=OptimizerSpec(name="sgd"), sync=sparse(method="diloco", codec="dense", value_bits=32))
    assert border_vectors(lean) == 4 * 2 + 2 + 2 + 1
    ahead = 4 * 3 + 1  # the borders of a second round, and the weights that it begins with
    assert border_vectors(spec(sync=sparse(delay=1))) == 4 * 3 + opened + 2 + ahead  # start and last hold the offset


def test_each_process_that_is_not_a_nodes_takes_memory_too() -> None:
    without = memory(spec(network=peers(hidden=0)), LAYOUT, 0)
    assert memory(spec(network=peers(hidden=1)), LAYOUT, 0).agents == without.agents + RELAYS * AGENT
    one_less = memory(spec(network=peers(verifiers=1, hidden=0)), LAYOUT, 0)
    assert without.agents == one_less.agents + without.agent
    assert without.workers == one_less.workers + 1


def test_activations_of_a_users_module_come_from_its_shapes() -> None:
    user = spec(model=ModelSpec(kind="module", module="m.py:f", context=400), batch=3)
    profile = 6 * 1200 * 256  # and the weights once more
    shapes = 4 * 1200 * (128 + 512 + 512 + 128 + 3 * 256)
    assert memory(user, LAYOUT, 0).activations == shapes + profile + 4 * LAYOUT.size
    tied = TensorLayout.of({"embed.weight": (256, 64)})  # one side of it is logits
    assert memory(user, tied, 0).activations == 4 * 1200 * (256 + 64 + 2 * 256) + profile + 4 * tied.size


def test_flop_of_a_token_is_six_a_parameter_and_twelve_l_h_t() -> None:
    job = spec(rounds=1, network=peers(providers=1), batch=1, sync=sparse(steps=1))
    assert train_flop(job, LAYOUT) == 128 * (6 * LAYOUT.size + 12 * 4 * 128 * 128)


def test_muon_adds_its_products_to_every_step() -> None:
    adamw = spec(rounds=1, network=peers(providers=3), sync=sparse(steps=2))
    muon = msgspec.structs.replace(adamw, optimizer=OptimizerSpec(name="muon"))
    square = TensorLayout.of({"w": (10, 10), "b": (10,)})
    each = 5 * 3 * 2 * 10**3  # five iterations of three products
    assert train_flop(muon, square) == pytest.approx(train_flop(adamw, square) + 3 * 2 * each)
    table = TensorLayout.of({"embed": (256, 10)})
    assert train_flop(muon, table) == train_flop(adamw, table)
    apart = step_seconds(muon, square, MACHINE) - step_seconds(adamw, square, MACHINE)
    assert apart == pytest.approx(each / (MACHINE.flops_per_core * EFFICIENCY))


def test_time_shrinks_with_cores_up_to_the_number_of_members() -> None:
    sent = traffic(spec(), LAYOUT, 10_000, Fixed())

    def seconds(cores: int) -> float:
        return duration(spec(), LAYOUT, sent, MachineMeasurements(cores, 1e11, 1 << 34)).compute

    assert seconds(1) == pytest.approx(2 * seconds(2))
    assert seconds(5) == seconds(64)
    faster = duration(spec(), LAYOUT, sent, MachineMeasurements(2, 2e11, 1 << 34))
    assert faster.compute == pytest.approx(seconds(2) / 2)
    assert seconds(1) == pytest.approx(train_flop(spec(), LAYOUT) / (1e11 * EFFICIENCY) * (1 + BORDER))


def test_audits_take_time_only_where_cores_are_short() -> None:
    def seconds(cores: int, audit: AuditSpec) -> RunDuration:
        job = spec(audit=audit)
        return duration(job, LAYOUT, traffic(job, LAYOUT, 10_000, Fixed()), MachineMeasurements(cores, 1e11, 1 << 34))

    some, all_of_them, none = AuditSpec(4, 0.25, 1), AuditSpec(4, 1.0, 1), AuditSpec(4, 0.0, 0)
    assert not seconds(1, none).audit
    assert 0 < seconds(1, some).audit < seconds(1, all_of_them).audit
    # With many cores it takes one audit at the end.
    assert seconds(64, some).audit == pytest.approx(seconds(64, all_of_them).audit, rel=0.01)
    assert seconds(1, some).start > seconds(1, none).start  # verifiers, and the profile run
    assert seconds(1, some).compute == seconds(1, none).compute


def test_a_verifier_is_waited_for_as_long_as_the_work_of_a_round_may_take_it() -> None:
    job = spec()
    small = answer_seconds(job, LAYOUT, MACHINE)
    assert small == ANSWER_LEAST
    slow = msgspec.structs.replace(MACHINE, flops_per_core=1e7)
    of_15_steps, at_most = train_flop(job, LAYOUT) / job.rounds, 4  # in one of 4 segments
    segment = of_15_steps * at_most / 15 / (1e7 * EFFICIENCY)
    served = served_seconds(job, LAYOUT)
    assert answer_seconds(job, LAYOUT, slow) == pytest.approx(ANSWER_TIMES * segment + served)
    longer = msgspec.structs.replace(job, audit=AuditSpec(1, 0.25, 1))
    assert answer_seconds(longer, LAYOUT, slow) == pytest.approx(ANSWER_TIMES * segment * 15 / 4 + served)
    assert advise(job, LAYOUT, 1000, slow).answer == answer_seconds(job, LAYOUT, slow)


def test_evaluation_happens_before_the_first_round_every_few_and_at_the_end() -> None:
    job = spec(rounds=9, evaluate=EvaluateSpec(every=4, tokens=10, final_tokens=1000))
    assert evaluated_tokens(job) == 2 * 10 + 2 * 1000
    assert evaluated_tokens(spec(rounds=8, evaluate=EvaluateSpec(every=4, tokens=10, final_tokens=1000))) == 10 + 2000
    assert evaluated_tokens(spec(evaluate=EvaluateSpec(every=0, tokens=10, final_tokens=5))) == 10


def test_the_plan_event_holds_the_plan() -> None:
    plan = advise(spec(data=DataSpec(path="x")), LAYOUT, 12_000_000, MACHINE)
    event = plan.event("/runs/1")
    assert event.parameters == LAYOUT.size
    assert event.sync_bytes == plan.traffic.sync < event.sync_most == plan.traffic.sync_most
    assert (event.way, event.up_round) == ("fan-out", plan.traffic.up_round)
    assert "100 Mbit/s a process is assumed" in event.lines
    assert event.ring_bytes == ring_bytes(LAYOUT.size, 360, 5)
    assert (event.tokens, event.price, event.escrow) == (24 * ROUND, 24 * ROUND + AUDITS, 25 * ROUND + 2 * WORST)
    assert event.memory_bytes == plan.memory.worker
    assert describe_sync(spec()) == "sparse_loco H=15 topk 256/4096 2-bit"


def test_comparison_flags_what_lies_outside_the_band() -> None:
    plan = advise(spec(), LAYOUT, 12_000_000, MACHINE)
    planned = plan.traffic.sync
    rows = compare(plan, MeasuredRun(sync_bytes=planned, seconds=plan.duration.total * 1.3, paid=plan.price.price))
    assert [row.quantity for row in rows] == ["sync", "time", "price"]
    assert [is_off(row) for row in rows] == [False, True, False]
    assert ratio(rows[0]) == 1.0
    below = compare(plan, MeasuredRun(sync_bytes=planned * 79 // 100))[0]
    assert is_off(below)


def test_a_round_that_chooses_another_way_is_within_what_is_planned_at_most() -> None:
    plan = advise(spec(), LAYOUT, 12_000_000, MACHINE)
    most = plan.traffic.sync_most
    (otherwise,), (beyond,) = (compare(plan, MeasuredRun(sync_bytes=size)) for size in (most, most + 1))
    assert otherwise.most == most > 1.25 * otherwise.planned
    assert (is_within(otherwise), is_within(beyond)) == (True, False)
    assert is_off(otherwise)
    assert " (at most " in plan_vs_run_text.short_comparison(otherwise)
    assert "within what is planned at most" in otherwise.cause
    # No relay: nothing to choose.
    bare = advise(spec(network=peers(hidden=0)), LAYOUT, 12_000_000, MACHINE)
    assert compare(bare, MeasuredRun(sync_bytes=1))[0].most == 0


def test_all_kinds_of_bytes_are_compared_and_what_a_job_has_not_is_left_out() -> None:
    measured = MeasuredRun(sync_bytes=1, audit_bytes=2, join_bytes=3, control_bytes=4, relay_bytes=5, memory_bytes=6)
    kinds = ["sync", "audit", "join", "control", "relay"]
    plan = advise(spec(), LAYOUT, 12_000_000, MACHINE)
    rows = compare(plan, measured)
    assert [row.quantity for row in rows] == [*kinds, "worker memory"]
    assert [row.measured for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [int(row.planned) for row in rows[:5]] == [getattr(plan.traffic, kind) for kind in kinds]

    bare = spec(audit=AuditSpec(rate=0.0, probation=0), network=peers(hidden=0))
    plan = advise(bare, LAYOUT, 12_000_000, MACHINE)
    none = MeasuredRun(audit_bytes=0, relay_bytes=0, join_bytes=0)
    assert [row.quantity for row in compare(plan, none)] == ["join"]
    assert [is_off(row) for row in compare(plan, MeasuredRun(audit_bytes=1, relay_bytes=1))] == [True, True]


def test_something_measured_that_was_not_planned_is_off() -> None:
    free = advise(spec(unit_price="0"), LAYOUT, 1, MACHINE)
    assert is_off(compare(free, MeasuredRun(paid=1))[0])
    assert not is_off(compare(free, MeasuredRun(paid=0))[0])


def test_a_payload_that_nobody_accepts_is_refused_before_anything_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = JobSpec(sync=sparse())
    (topk,) = densities(spec.sync, spec.rounds)
    longest = method_of(spec.sync.method).codec(spec.sync, topk).bound(LAYOUT)
    monkeypatch.setattr(limits, "PAYLOAD_BYTES", longest)
    assert advise(spec, LAYOUT, 1000, MACHINE).parameters == LAYOUT.size
    monkeypatch.setattr(limits, "PAYLOAD_BYTES", longest - 1)
    with pytest.raises(PolicyError, match="FF-COMP-023"):
        advise(spec, LAYOUT, 1000, MACHINE)


def test_lines_that_cannot_open_a_state_within_an_hour_are_refused_before_anything_is_spent() -> None:
    """A slow line would make an honest provider withhold. Where all are on this computer, no line is in the way."""
    layout = TensorLayout.of({"a.weight": (1 << 12, 1 << 13)})
    needed = 8 * owed_rate(JobSpec(), layout)
    assert needed > 8 * limits.OWED_RATE
    machine = msgspec.structs.replace(MACHINE, memory_bytes=1 << 42)

    def planned(up: float, is_apart: bool) -> int:
        lines = RunLinks(Link(up, 1e9, Seconds(0.01)), is_apart=is_apart)
        return advise(JobSpec(), layout, 1000, machine, lines).parameters

    assert planned(needed, True) == planned(1.0, False) == layout.size
    with pytest.raises(PolicyError, match="FF-PLAN-004"):
        planned(0.99 * needed, True)
    assert owed_rate(JobSpec(), LAYOUT) < limits.OWED_RATE

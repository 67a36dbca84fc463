"""Causes of what came out otherwise than planned: named where a sign of the run explains it, and only there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.core.money import MICRO
from farflung.core.tensor_layout import TensorLayout
from farflung.job.job_loader import load
from farflung.plan import audit_costs, run_signs
from farflung.plan.audit_costs import expected
from farflung.plan.machine import MachineMeasurements
from farflung.plan.plan_comparison import MeasuredRun, compare, is_off
from farflung.plan.run_causes import ENOUGH, SIGNS, likely
from farflung.plan.run_plan import PlannedFees, advise
from farflung.plan.run_signs import RunObservations

SPEC = load(None).spec
MEMBERS = SPEC.network.providers
LAYOUT = TensorLayout.of({"a": (256, 1024)})
PLAN = replace(
    advise(SPEC, LAYOUT, 10**7, MachineMeasurements(4, 2e10, 16 << 30)), fees=PlannedFees(100_000, 500, 9000)
)
TOOK = PLAN.duration
WAY = PLAN.traffic.forecast.way.value
COUNT = round(expected(SPEC).count)
AGREEING, CHECKING = TOOK.sync + TOOK.exchanging, TOOK.audit + TOOK.evaluate + TOOK.opening


def drawn(count: int, *segments: int) -> tuple[tuple[int, int], ...]:
    """Audits in rounds in which states carry something; of all segments alike, where none are named."""
    of = segments or tuple(range(SPEC.segments))
    return tuple((1 + at % (SPEC.rounds - 1), of[at % len(of)]) for at in range(count))


AS_PLANNED = RunObservations(
    rounds=SPEC.rounds,
    members=float(MEMBERS),
    joined=MEMBERS,
    drawn=drawn(COUNT),
    ways={WAY: SPEC.rounds},
    payload_bytes=float(PLAN.traffic.payload),
    peaks={"provider": PLAN.memory.worker, "verifier": PLAN.memory.worker // 2},
    unit_price=PLAN.price.unit,
    carried=PLAN.traffic.relay,
    starting=TOOK.start + TOOK.arriving,
    training=TOOK.compute,
    agreeing=AGREEING,
    exchange=1.0,
    exchange_predicted=1.0,
    checking=CHECKING,
    lasted=TOOK.total,
)
PLANNED = {
    "sync": PLAN.traffic.sync, "audit": PLAN.traffic.audit, "join": PLAN.traffic.join,
    "control": PLAN.traffic.control, "relay": PLAN.traffic.relay, "worker memory": PLAN.memory.worker,
    "time": TOOK.total, "price": PLAN.price.price, "relay fees": 500,
}  # fmt: skip


def cause(quantity: str, ratio: float, **changed: Any) -> str:
    return likely(quantity, (ratio - 1) * PLANNED[quantity], PLAN, replace(AS_PLANNED, **changed))


@given(st.sampled_from(tuple(PLANNED)), st.floats(0.0, 0.79) | st.floats(1.26, 100.0))
def test_a_run_that_shows_nothing_odd_is_given_no_cause(quantity: str, ratio: float) -> None:
    """Audits, and pay for them, are never exactly as many as are to be expected: that explains nothing."""
    assert cause(quantity, ratio) == ""


def test_the_cause_that_shows_is_named(subtests: pytest.Subtests) -> None:
    for quantity, ratio, changed, words in [
        ("time", 2.0, {"training": TOOK.compute + TOOK.total}, "training, at this machine's measured rate, took"),
        ("time", 2.0, {"starting": TOOK.start + TOOK.total}, "the first round began after"),
        ("time", 2.0, {"agreeing": AGREEING + TOOK.total}, "agreeing on weights took"),
        ("time", 2.0, {"agreeing": AGREEING + TOOK.total, "exchange": 1 + TOOK.total}, "what the lines were taken"),
        ("time", 2.0, {"checking": CHECKING + TOOK.total, "restarted": 1}, ", and 1 process was started again"),
        ("time", 0.7, {"starting": TOOK.start - 0.3 * TOOK.total}, "the first round began after"),
        ("sync", 2.0, {"payload_bytes": 2.0 * PLAN.traffic.payload}, "a payload is 2.00 times as long"),
        ("sync", 0.5, {"payload_bytes": 0.5 * PLAN.traffic.payload}, "a payload is 0.50 times as long"),
        ("sync", 0.25, {"members": MEMBERS / 2}, f"{MEMBERS / 2:.3g} of {MEMBERS} providers in a round"),
        ("audit", 2.0, {"repeated": COUNT}, "audits were repeated by another verifier"),
        ("audit", 2.0, {"drawn": drawn(2 * COUNT)}, f"{2 * COUNT} audits were drawn"),
        ("audit", 0.5, {"drawn": drawn(COUNT // 2)}, f"{COUNT // 2} audits were drawn"),
        ("control", 2.0, {"lasted": TOOK.total + PLAN.traffic.control / PLAN.traffic.talk}, "what stands talks"),
        ("join", 1.3, {"restarted": 2}, "2 processes were started again"),
        ("join", 1.3, {"sessions": 2}, "the run was resumed 1 time, and all processes began again"),
        ("join", 0.6, {"joined": MEMBERS // 2}, f"{MEMBERS // 2} of {MEMBERS} providers joined"),
        ("price", 0.8, {"caught": 1}, "1 provider was caught and not paid"),
        ("price", 0.5, {"unit_price": 0}, ""),
        ("worker memory", 1.3, {"peaks": {"requester": int(1.3 * PLAN.memory.worker)}}, "is a requester's, not"),
        ("relay fees", 3.0, {"carried": PLAN.traffic.relay + 11 * 10**6}, "both ends signed for"),
    ]:
        with subtests.test(quantity=quantity, ratio=ratio, changed=changed, words=words):
            said = cause(quantity, ratio, **changed)
            assert words in said
            assert bool(said) == bool(words)


def test_of_the_parts_of_time_the_one_that_explains_the_difference_is_named() -> None:
    """A tiny job: training takes 112 times what was planned, which is a sixth of a second, and the start three more."""
    late = {"starting": AS_PLANNED.starting + 3.0, "training": TOOK.compute + 0.17}
    short = replace(PLAN, duration=replace(TOOK, compute=0.0016))
    seen = replace(AS_PLANNED, starting=AS_PLANNED.starting + 3.0, training=0.174)
    assert "the first round began" in likely("time", 3.17, short, seen)
    assert "the first round began" in cause("time", 1 + 3.17 / TOOK.total, **late)


def test_a_part_that_went_against_the_difference_is_no_cause() -> None:
    changed = {"starting": AS_PLANNED.starting - 5.0, "agreeing": AGREEING + 8.0}
    assert "agreeing on weights" in cause("time", 1 + 3 / TOOK.total, **changed)


def test_where_no_part_explains_half_they_add_up_and_the_largest_is_named_as_such() -> None:
    changed = {
        "starting": AS_PLANNED.starting + 4.0, "training": TOOK.compute + 3.0, "agreeing": AGREEING + 3.0,
        "checking": CHECKING + 1.0,
    }  # fmt: skip
    assert cause("time", 1 + 11 / TOOK.total, **changed).startswith("mostly: the first round began")


def test_a_count_that_explains_a_small_part_is_no_cause() -> None:
    """4 audits instead of 4.2 are no reason for three quarters of the bytes."""
    assert cause("audit", 0.77, drawn=drawn(round(0.95 * COUNT))) == ""
    assert cause("price", 0.5, drawn=drawn(round(0.95 * COUNT))) == ""
    assert cause("audit", 2.0, repeated=1) == ""


def test_segments_without_states_explain_fewer_bytes() -> None:
    """Of the first segment nothing is opened at its start but what is carried, of the last one nothing at its end."""
    few = min(range(SPEC.segments), key=lambda at: sum(audit_costs.fetched(SPEC, at, is_fresh=False)))
    spread = drawn(COUNT, few)
    found = [sign for sign in SIGNS["audit"](PLAN, replace(AS_PLANNED, drawn=spread)) if "segments" in sign.words]
    assert found[0].explains < 0
    less = 1 + found[0].explains / PLANNED["audit"]
    assert "segments were drawn whose states are 0." in cause("audit", less, drawn=spread)


def test_audits_of_providers_in_the_open_explain_fewer_bytes_at_relays() -> None:
    """What verifiers fetch from who listens nowhere passes a relay; of other names nothing is known."""
    hidden = [f"provider-{at}" for at in range(SPEC.hidden)]
    share = audit_costs.moved(SPEC, expected(SPEC), run_signs._states(PLAN)) * SPEC.hidden / MEMBERS
    less = 1 - share / PLANNED["relay"]
    none = dict.fromkeys(hidden, ()) | {"provider-4": drawn(COUNT)}
    assert cause("relay", less, drawn_of=none).startswith("0 audits were drawn of providers behind a relay, ")
    assert cause("relay", less, drawn_of={"somebody": drawn(COUNT)}) == ""
    fair = {name: drawn(round(COUNT / MEMBERS)) for name in (*hidden, "provider-4")}
    assert cause("relay", less, drawn_of=fair) == ""


def test_ways_that_send_as_much_explain_no_bytes() -> None:
    """All-gather and a collecting peer move every payload as often; a relay that copies has it sent once."""
    open_ = advise(
        load(None, flags={"network.hidden": "0"}).spec, LAYOUT, 10**7, MachineMeasurements(4, 2e10, 16 << 30)
    )
    assert (WAY, open_.traffic.forecast.way.value) == ("fan-out", "aggregating peer")
    other = replace(AS_PLANNED, ways={"all-gather": 8, "aggregating peer": 4})
    more = 8.0 * MEMBERS * (MEMBERS - 1) * PLAN.traffic.payload
    said = "of 12 rounds 4 by aggregating peer and 8 by all-gather, not by fan-out"
    assert likely("sync", more, PLAN, other) == said
    assert likely("relay", -more, PLAN, other) == said
    assert likely("sync", more, open_, other) == likely("relay", more, open_, other) == ""


def test_pay_below_the_bid_is_no_riddle() -> None:
    dear = load(None, flags={"unit_price": "0.000004", "budget": "1000"}).spec
    plan = advise(dear, LAYOUT, 10**7, MachineMeasurements(4, 2e10, 16 << 30))
    said = likely("price", -0.75 * plan.price.price, plan, replace(AS_PLANNED, unit_price=MICRO))
    assert said == "hired at 0.000001 a token, at most 0.000004 was bid"


def test_memory_below_the_plan_is_what_the_heap_did_not_keep() -> None:
    need = PLAN.memory
    kept = {"provider": int(0.99 * need.worker)}
    seen = replace(AS_PLANNED, peaks=kept)
    assert "added for what the heap keeps" in likely("worker memory", -0.01 * need.worker, PLAN, seen)


RUNS = st.builds(
    RunObservations,
    rounds=st.just(SPEC.rounds),
    members=st.floats(1.0, MEMBERS),
    joined=st.integers(1, MEMBERS),
    restarted=st.integers(0, 3),
    sessions=st.integers(1, 3),
    caught=st.integers(0, 2),
    drawn=st.integers(0, 2 * COUNT).map(drawn),
    repeated=st.integers(0, 5),
    unpaid=st.integers(0, 5),
    ways=st.sampled_from(({WAY: 12}, {"all-gather": 12}, {WAY: 6, "fan-out": 6}, {"unheard of": 12}, {})),
    payload_bytes=st.floats(0.5, 2.0).map(lambda times: times * PLAN.traffic.payload),
    peaks=st.dictionaries(st.sampled_from(("provider", "verifier", "requester")), st.integers(10**8, 10**9)),
    unit_price=st.integers(0, 3),
    carried=st.integers(0, 10**9),
    starting=st.floats(0.0, 60.0),
    training=st.floats(0.0, 200.0),
    agreeing=st.floats(0.0, 60.0),
    exchange=st.floats(0.0, 60.0),
    exchange_predicted=st.floats(0.0, 60.0),
    checking=st.floats(0.0, 60.0),
    lasted=st.floats(0.0, 400.0),
)


@given(RUNS, st.sampled_from(tuple(PLANNED)), st.floats(0.0, 5.0))
def test_whatever_a_run_shows_a_cause_explains_half_or_is_one_of_several(
    seen: RunObservations, quantity: str, ratio: float
) -> None:
    more = (ratio - 1) * PLANNED[quantity]
    said = likely(quantity, more, PLAN, seen)
    found = [sign for sign in SIGNS[quantity](PLAN, seen) if sign.explains * more > 0]
    if said.startswith("mostly: "):
        named = said.removeprefix("mostly: ")
        assert sum(abs(sign.explains) for sign in found) >= ENOUGH * abs(more)
        assert named == max(found, key=lambda sign: abs(sign.explains)).words
    elif said:
        assert any(sign.words == said and abs(sign.explains) >= ENOUGH * abs(more) for sign in found)


@given(RUNS)
def test_time_that_lies_off_the_plan_always_has_a_part_that_it_went_to(seen: RunObservations) -> None:
    whole = seen.starting + seen.training + seen.agreeing + seen.checking
    if seen.lasted and abs(whole - TOOK.total) > 1e-3:
        assert likely("time", whole - TOOK.total, PLAN, seen)


def test_only_what_lies_off_the_plan_has_a_cause() -> None:
    for times, has_cause in ((1.1, False), (2.0, True)):
        slow = replace(AS_PLANNED, training=TOOK.compute + (times - 1) * TOOK.total)
        (row,) = compare(PLAN, MeasuredRun(seconds=times * TOOK.total), slow)[:1]
        assert (row.quantity, bool(row.cause)) == ("time", has_cause)


@pytest.mark.parametrize("times", [0.5, 0.79, 1.26, 3.0])
def test_every_ratio_outside_the_band_is_off_also_within_what_is_planned_at_most(times: float) -> None:
    sent = replace(PLAN.traffic, sync_most=4 * PLAN.traffic.sync)
    (row,) = compare(replace(PLAN, traffic=sent), MeasuredRun(sync_bytes=round(times * sent.sync)), AS_PLANNED)
    assert is_off(row)
    within = "within what is planned at most, as rounds may choose another way"
    assert (within in row.cause) == (times > 1)


def test_fees_beyond_the_plan_are_told_with_what_was_put_aside() -> None:
    found = {row.quantity: row for row in compare(PLAN, MeasuredRun(fees=2000), AS_PLANNED)}
    assert (found["relay fees"].planned, found["relay fees"].most) == (500, 9000)
    assert found["relay fees"].cause == "within what is planned at most, as so much is put aside"
    free = replace(PLAN, fees=None)
    assert not compare(free, MeasuredRun(fees=0), AS_PLANNED)
    assert not compare(free, MeasuredRun(), AS_PLANNED)


def test_a_quantity_that_nobody_planned_can_have_a_cause() -> None:
    alone = replace(PLAN, traffic=replace(PLAN.traffic, join=0))
    (row,) = compare(alone, MeasuredRun(join_bytes=7), replace(AS_PLANNED, restarted=1))
    assert (row.quantity, row.cause) == ("join", "1 process was started again")


def test_every_quantity_that_is_compared_has_signs_in_both_directions_and_no_other() -> None:
    rows = compare(PLAN, MeasuredRun(1, 1, 1, 1, 1, 1, 1.0, 1, 1), AS_PLANNED)
    assert {row.quantity for row in rows} == set(SIGNS) == set(PLANNED)
    odd = (
        RunObservations(
            rounds=12, members=1.0, joined=1, caught=1, drawn=drawn(1), ways={WAY: 12}, payload_bytes=1.0,
            peaks={"provider": PLAN.memory.worker - 1000}, unit_price=1, carried=0, lasted=0.001,
        ),
        RunObservations(
            rounds=12, members=MEMBERS, joined=MEMBERS, restarted=9, drawn=drawn(99), ways={"fan-out": 12},
            payload_bytes=1e9, peaks={"verifier": 2 * PLAN.memory.worker}, carried=1 << 40, lasted=1e6, starting=1e6,
        ),
    )  # fmt: skip
    for quantity in SIGNS:
        for seen, direction in zip(odd, (-1, 1), strict=True):
            found = [sign.explains * direction > 0 for sign in SIGNS[quantity](PLAN, seen)]
            assert any(found), (quantity, direction)

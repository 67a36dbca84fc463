"""Causes of what came out otherwise than planned: named where the run shows a sign of one, and only there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.core.layout import Layout
from farflung.job.load import load
from farflung.plan import causes
from farflung.plan.advise import advise
from farflung.plan.audits import expected
from farflung.plan.causes import Seen, likely
from farflung.plan.compare import Measured, compare
from farflung.plan.machine import Machine

SPEC = load(None).spec
PLAN = advise(SPEC, Layout.of({"a": (256, 1024)}), 10**7, Machine(4, 2e10, 16 << 30))
WAY = PLAN.traffic.forecast.way.value
AS_PLANNED = Seen(
    rounds=12,
    members=float(SPEC.network.providers),
    audits=round(expected(SPEC).count),
    ways={WAY: 12},
    training=PLAN.duration.compute,
    exchange=1.0,
    exchange_foretold=1.0,
    payload_bytes=float(PLAN.traffic.payload),
    starting=PLAN.duration.start,
    lasted=PLAN.duration.total,
)
QUANTITIES = ("sync", "audit", "join", "control", "relay", "worker memory", "time", "price")


# The draw is odd by itself: audits, and pay for them, are rarely as many as are to be expected.
@given(
    st.sampled_from([each for each in QUANTITIES if each not in ("audit", "price")]), st.floats(0.01, 100.0)
)
def test_a_run_that_shows_nothing_odd_is_given_no_cause(quantity: str, ratio: float) -> None:
    assert likely(quantity, ratio, PLAN, AS_PLANNED) == ""


@pytest.mark.parametrize(
    ("quantity", "ratio", "changed", "words"),
    [
        ("time", 2.0, {"training": 3 * PLAN.duration.compute}, "training took 3.00 times"),
        ("time", 2.0, {"exchange": 5.0}, "exchanges took 5.00 times what the lines were taken for"),
        ("time", 2.0, {"starting": 3 * PLAN.duration.start}, "the first round began after"),
        ("time", 2.0, {"restarted": 1}, "1 process was started again"),
        ("time", 0.5, {"training": 0.2 * PLAN.duration.compute}, "training took 0.20 times"),
        ("sync", 3.0, {"ways": {WAY: 9, "elsewhere": 3}}, "3 of 12 rounds went by elsewhere, not by"),
        ("sync", 3.0, {"payload_bytes": 2.0 * PLAN.traffic.payload}, "a payload is 2.00 times as long"),
        ("sync", 0.5, {"payload_bytes": 0.5 * PLAN.traffic.payload}, "a payload is 0.50 times as long"),
        ("sync", 0.5, {"members": 2.5}, "2.5 of 5 providers in a round"),
        ("audit", 2.0, {"repeated": 4}, "4 audits were repeated by another verifier"),
        ("audit", 2.0, {"audits": 99}, "99 audits were drawn"),
        ("audit", 0.5, {"audits": 1}, "1 audit was drawn"),
        ("control", 2.0, {"lasted": 2 * PLAN.duration.total}, "the run took 2.00 times as long as planned"),
        ("join", 2.0, {"restarted": 2}, "2 processes were started again"),
        ("price", 0.5, {"caught": 1}, "1 provider was caught and not paid"),
    ],
)
def test_the_cause_that_shows_is_named(quantity: str, ratio: float, changed: Any, words: str) -> None:
    assert words in likely(quantity, ratio, PLAN, replace(AS_PLANNED, **changed))


def test_one_repeated_audit_of_many_explains_nothing() -> None:
    assert expected(SPEC).count > 5
    for quantity in ("audit", "control"):
        assert likely(quantity, 2.0, PLAN, replace(AS_PLANNED, repeated=1)) == ""


def test_the_strongest_of_several_causes_is_named() -> None:
    seen = replace(AS_PLANNED, training=3 * PLAN.duration.compute, restarted=2)
    assert "training took" in likely("time", 2.0, PLAN, seen)


def test_only_what_lies_off_the_plan_has_a_cause() -> None:
    slow = replace(AS_PLANNED, training=3 * PLAN.duration.compute)
    for times, has_cause in ((1.1, False), (2.0, True)):
        (row,) = compare(PLAN, Measured(seconds=times * PLAN.duration.total), slow)[:1]
        assert (row.quantity, bool(row.cause)) == ("time", has_cause)


def test_a_quantity_that_nobody_planned_can_have_a_cause() -> None:
    alone = replace(PLAN, traffic=replace(PLAN.traffic, relay=0))
    (row,) = compare(alone, Measured(relay_bytes=7), replace(AS_PLANNED, restarted=1))
    assert (row.quantity, row.cause) == ("relay", "1 process was started again")


def test_every_cause_is_of_a_quantity_that_is_compared() -> None:
    rows = compare(PLAN, Measured(1, 1, 1, 1, 1, 1, 1.0, 1), AS_PLANNED)
    assert {row.quantity for row in rows} == set(QUANTITIES)
    assert set(causes.MORE) | set(causes.LESS) <= set(QUANTITIES)

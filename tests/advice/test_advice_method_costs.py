"""Methods on links: the arithmetic of bytes and seconds, and the choice with its reasons."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.advice.method_choice import DENSE, SPARSE, MethodChoice, choose
from farflung.advice.method_costs import (
    ENOUGH,
    STEPS,
    TOPKS,
    TRIPS,
    MethodSetting,
    estimate,
    estimates,
    shortest,
    sync_of,
)
from farflung.compress.dgc import kept
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Seconds
from farflung.job.methods.registry import METHODS
from farflung.job.spec import JobSpec, OptimizerSpec
from farflung.job.spec_checks import check
from farflung.plan.link_syntax import Link, parse
from farflung.plan.machine import MachineMeasurements
from farflung.plan.run_plan import advise
from farflung.plan.run_traffic import PUSH, control_bytes, on_wire, ring_bytes, ring_each
from farflung.plan.state_vectors import codec_of, densities

LAYOUT = TensorLayout.of({"a": (1024, 1024), "b": (512, 2048), "c": (1024,)})


def at(link: str, peers: int = 8, step: float = 0.5, *, fan_out: bool = False) -> MethodSetting:
    return MethodSetting(LAYOUT, parse(link), peers, Seconds(step), fan_out)


# Arithmetic


def test_a_peer_sends_its_payload_to_all_and_takes_everybody_elses() -> None:
    one = estimate(at("20/100/30ms", 5), sync_of("muloco", steps=10))
    sent, talk = on_wire(one.payload), control_bytes(5, 10) / 5
    assert one.payload == round(codec_of(one.sync).expect(LAYOUT))
    assert one.up == pytest.approx((5 * sent + PUSH + talk) / 10)
    assert one.down == pytest.approx((4 * sent + talk) / 10)
    fanned = estimate(at("20/100/30ms", 5, fan_out=True), one.sync)
    assert fanned.up == pytest.approx((sent + PUSH + talk) / 10)
    assert fanned.down == one.down


def test_an_exchange_takes_the_slower_direction_and_its_round_trips() -> None:
    up = estimate(at("1/100/30ms"), sync_of("muloco", steps=10))
    assert up.exchange == pytest.approx(8 * 10 * up.up / 1e6 + TRIPS * 0.03)
    down = estimate(at("100/1/30ms"), sync_of("muloco", steps=10))
    assert down.exchange == pytest.approx(8 * 10 * down.down / 1e6 + TRIPS * 0.03)
    assert up.step == pytest.approx((5.0 + up.exchange) / 10)
    assert up.share == pytest.approx(up.exchange / (5.0 + up.exchange))


def test_a_round_late_costs_only_what_compute_does_not_hide() -> None:
    hidden = estimate(at("100/100/30ms", step=5), sync_of("muloco", steps=10, delay=1))
    assert hidden.exchange < hidden.compute
    assert hidden.step == 5.0
    shown = estimate(at("1/1/30ms", step=0.01), sync_of("muloco", steps=10, delay=1))
    assert shown.step == pytest.approx(shown.exchange / 10)
    assert not shown.fits


@given(peers=st.integers(2, 64), steps=st.sampled_from([1, *STEPS]))
@settings(max_examples=30)
def test_the_metric_is_a_bf16_ring_over_the_larger_direction(peers: int, steps: int) -> None:
    one = estimate(at("20/100/30ms", peers), sync_of("muloco", steps=steps))
    ring = 2 * (peers - 1) / peers * 2 * LAYOUT.size
    assert ring_each(LAYOUT.size, peers) == pytest.approx(ring)
    assert ring_bytes(LAYOUT.size, 1, peers) == pytest.approx(peers * ring)
    assert one.ring == pytest.approx(ring / max(one.up, one.down))
    assert one.literature == pytest.approx(4 * LAYOUT.size * steps / one.payload, rel=1e-3)


def test_the_papers_ratio_stays_while_the_metric_falls_with_peers() -> None:
    few, many = (estimate(at("20/100", n), sync_of("muloco", steps=10)) for n in (4, 32))
    assert few.literature == many.literature
    assert few.ring > 6 * many.ring


def test_distro_s_857_is_54_against_a_ring() -> None:
    """DisTrO: 1.2 B parameters, 32 nodes, 86.8 MB down a step; 74.4 GB is each node's 2.4 GB to 31 others."""
    assert pytest.approx(857, rel=0.001) == 31 * 2.4e9 / 86.8e6
    assert ring_each(1_200_000_000, 32) / 86.8e6 == pytest.approx(53.6, rel=0.001)


# Warm-up of the density


@given(warmup=st.integers(0, 300), rounds=st.integers(0, 400), topk=st.integers(1, 64), chunk=st.integers(64, 4096))
@settings(max_examples=50)
def test_rounds_are_counted_by_what_each_sends(warmup: int, rounds: int, topk: int, chunk: int) -> None:
    sync = sync_of("dgc", warmup_rounds=warmup, topk=topk, chunk=chunk)
    each = Counter(kept(round, warmup, topk, chunk) for round in range(rounds))
    assert densities(sync, rounds) == (each or {topk: 1})


def test_a_plan_tells_the_mean_payload_of_rounds_whose_density_warms_up() -> None:
    rounds, sync = 60, sync_of("dgc", warmup_rounds=20)
    job = msgspec.structs.replace(JobSpec(rounds=rounds, sync=sync), optimizer=OptimizerSpec(name="gradient", lr=0.1))
    told = advise(job, LAYOUT, 100_000, MachineMeasurements(2, 1e11, 16 << 30)).traffic
    lengths = [
        codec_of(msgspec.structs.replace(sync, topk=kept(round, 20, 4, 4096))).expect(LAYOUT) for round in range(rounds)
    ]
    assert told.payload == pytest.approx(sum(lengths) / rounds, abs=1)
    assert told.payload > 10 * codec_of(sync).expect(LAYOUT)
    assert told.sync == rounds * told.sync_round


# All methods


def test_every_method_is_estimated_with_a_job_that_is_possible() -> None:
    rows = estimates(at("20/100/30ms"))
    assert [row.method for row in rows] == list(METHODS)
    for row in rows:
        method = METHODS[row.method]
        optimizer = msgspec.structs.replace(JobSpec().optimizer, name=method.optimizers[0])
        check(msgspec.structs.replace(JobSpec(), sync=row.sync, optimizer=optimizer))
        assert (row.sync.steps == 1) == method.is_stepwise


def test_a_method_that_no_tensor_suits_is_left_out() -> None:
    vectors = TensorLayout.of({"only": (4096,)})
    rows = estimates(MethodSetting(vectors, parse("20/100"), 4, Seconds(1.0)))
    assert [row.method for row in rows] == [name for name in METHODS if name != "powersgd"]


@given(step=st.floats(0.001, 100), up=st.floats(1, 1000), peers=st.integers(2, 40))
@settings(max_examples=40)
def test_h_is_the_smallest_that_fits(step: float, up: float, peers: int) -> None:
    setting = MethodSetting(LAYOUT, Link(up * 1e6, up * 4e6), peers, Seconds(step))
    found = shortest(setting, "muloco")
    tried = [estimate(setting, sync_of("muloco", steps=steps)) for steps in STEPS]
    fitting = [one for one in tried if one.fits]
    assert found == (fitting[0] if fitting else tried[-1])


# The choice


def why(choice: MethodChoice) -> str:
    return "; ".join(choice.reasons)


def test_a_local_network_takes_dense_steps_while_they_fit_and_demo_after() -> None:
    assert choose(at("10000/10000/0.1ms", 4, step=2)).chosen.method == "dense"
    assert choose(at("300/300/1ms", 4, step=2)).chosen.method == "demo"
    assert "local network" in why(choose(at("300/300/1ms", 4, step=2)))


@pytest.mark.parametrize("link", ["300/300/3ms", "199/1000/1ms", "1000/199/1ms"])
def test_elsewhere_no_method_agrees_after_every_step(link: str) -> None:
    assert choose(at(link, 4, step=20)).chosen.method == DENSE


def test_dense_two_bit_is_taken_from_20_mbit_up_and_sparse_below() -> None:
    assert choose(at("20/100/30ms", 4, step=20)).chosen.method == DENSE
    below = choose(at("19/100/30ms", 4, step=20))
    assert below.chosen.method == SPARSE
    assert "below 20 Mbit/s" in why(below)


def test_sparse_is_taken_where_dense_does_not_fit_and_says_so() -> None:
    choice = choose(at("20/100/30ms", 32, step=0.3))
    assert choice.chosen.method == SPARSE
    assert "muloco would spend" in why(choice)


@given(step=st.floats(0.3, 60), up=st.floats(0.5, 19), peers=st.integers(2, 20))
@settings(max_examples=40)
def test_density_is_what_is_left_at_the_smallest_h(step: float, up: float, peers: int) -> None:
    setting = MethodSetting(LAYOUT, Link(up * 1e6, up * 5e6), peers, Seconds(step))
    choice = choose(setting)
    found = choice.chosen
    if not choice.fits:
        return
    assert found.share <= ENOUGH or found.sync.delay
    for topk in (t for t in TOPKS if t > found.sync.topk):
        assert not estimate(setting, msgspec.structs.replace(found.sync, topk=topk)).fits
    for steps in (s for s in STEPS if s < found.sync.steps):
        least = msgspec.structs.replace(found.sync, steps=steps, topk=TOPKS[0])
        assert not estimate(setting, least).fits


def test_what_fits_nowhere_hides_a_round_late() -> None:
    choice = choose(at("5/5/30ms", 16, step=0.05))
    assert (choice.chosen.sync.delay, choice.fits) == (1, True)
    assert "a round late" in why(choice)


@pytest.mark.parametrize(
    ("link", "binding", "help"),
    [
        ("0.1/100/30ms", "what binds is the upload of 100 kbit/s", "(--fan-out)"),
        ("100/0.01/30ms", "what binds is the download of 10 kbit/s", "down"),
        ("1000/1000/60s", "what binds is the round trip of 60000 ms", "more compute in a round"),
    ],
)
def test_where_nothing_fits_what_binds_is_named_with_what_helps(link: str, binding: str, help: str) -> None:
    choice = choose(at(link, 8, step=0.1))
    assert not choice.fits
    assert binding in why(choice)
    assert help in why(choice)


def test_the_rates_that_are_said_to_help_do_help() -> None:
    setting = at("0.02/0.02/30ms", 8, step=0.1)
    found = choose(setting)
    said = next(reason for reason in found.reasons if reason.startswith("what helps"))
    up, down = (1.01e3 * float(rate) for rate in re.findall(r"([\d.]+) kbit/s", said))
    better = msgspec.structs.replace(setting, link=Link(up, down, Seconds(0.03)))
    assert choose(better).fits


@given(
    link=st.tuples(st.floats(1e4, 1e10), st.floats(1e4, 1e10), st.floats(0, 1)),
    peers=st.integers(2, 200),
    step=st.floats(1e-4, 1e3),
)
@settings(max_examples=60)
def test_a_choice_is_always_on_the_shelf_with_reasons_and_without_surprise(
    link: tuple[float, float, float], peers: int, step: float
) -> None:
    up, down, trip = link
    choice = choose(MethodSetting(LAYOUT, Link(up, down, Seconds(trip)), peers, Seconds(step)))
    assert choice.chosen in choice.methods
    assert [row.method for row in choice.methods] == list(METHODS)
    assert all(reason and reason == reason.strip() for reason in choice.reasons)
    assert choice == choose(choice.setting)

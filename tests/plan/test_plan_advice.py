"""Advice over offers: what is best is best by its own numbers, and where nothing fits the constraint is named."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from plan_offers import HOME, LAN, LARGE, SMALL, host, hosts, sized

from farflung.core.money import Credits
from farflung.core.units import Bytes, Seconds
from farflung.plan.advice import machines, pipelines, replicas, speed
from farflung.plan.advice.options import Blocked, Kind, Option
from farflung.plan.advice.replicas import Assumed
from farflung.plan.advice.room import MOVES, Away, room
from farflung.plan.advice.search import Goal, search
from farflung.plan.advice.work import Work
from farflung.plan.cards.card import Precision
from farflung.plan.footprint.parts import Place
from farflung.plan.footprint.states import Split
from farflung.plan.footprint.worst import Pipeline, Training, Worst, footprints, worst
from farflung.plan.links import Link
from farflung.plan.parallel.collectives import all_reduce, span
from farflung.plan.parallel.shapes import Recompute

TINY, BIG = sized(SMALL), sized(LARGE)
MIDDLE = sized({"model.layers": "12", "model.width": "768", "model.heads": "12", "model.context": "512"})
LONG = replace(MIDDLE, tokens=1000 * MIDDLE.tokens)
USUAL = Assumed()


def option(found: Option | Blocked) -> Option:
    assert isinstance(found, Option), found
    return found


def blocked(found: Option | Blocked) -> Blocked:
    assert isinstance(found, Blocked), found
    return found


def test_a_job_asks_for_the_tokens_that_its_file_says_and_for_its_own_parameters() -> None:
    assert TINY.model.transformer.size == TINY.parameters
    assert TINY.tokens == 12 * 20 * 8 * 64 * 5  # rounds, steps, batch, context, providers
    assert TINY.sequences == 8 * 5


# Room on a card


def test_what_fits_as_it_is_recomputes_nothing() -> None:
    found = room(MIDDLE, MIDDLE.recipe, host("a"), Split(), 8)
    assert (found.fits, found.recompute, found.micro, found.away) == (True, Recompute.NONE, 8, Away())


def test_less_memory_takes_smaller_micro_batches_then_recomputation_then_ram() -> None:
    """In the order of what they cost."""
    need = room(MIDDLE, MIDDLE.recipe, host("a"), Split(), 8).worst.footprint.card
    ranks = []
    for share in (1.001, 0.8, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3):
        card = replace(host("a").card, memory_bytes=Bytes(round(need * share)))
        found = room(MIDDLE, MIDDLE.recipe, replace(host("a"), card=card), Split(), 8)
        ranks.append(
            (not found.fits, MOVES.index(found.away), list(Recompute).index(found.recompute), -found.micro)
        )
    assert ranks == sorted(ranks)
    assert ranks[0] == (False, 0, 0, -8)
    assert any(each[1] for each in ranks)


def test_nothing_moves_to_ram_that_nobody_says_is_there() -> None:
    card = replace(host("a").card, memory_bytes=Bytes(2 * 10**9))
    for memory in (None, Bytes(10**8)):
        found = room(MIDDLE, MIDDLE.recipe, replace(host("a"), card=card, memory_bytes=memory), Split(), 8)
        assert not found.fits


def test_a_card_that_is_too_small_by_far_keeps_parameters_in_ram_and_then_states_on_disk() -> None:
    """6.4 B parameters of 12 bytes in RAM, 14 with themselves, and half as much again: 116 and 135 GB."""
    tight = host("a", "RTX 3060 12GB", disk_bytes=Bytes(10**12))
    places = []
    for gigabytes in (512, 120, 16):
        machine = replace(tight, memory_bytes=Bytes(gigabytes * 10**9))
        found = room(BIG, BIG.recipe, machine, Split(), 8)
        assert found.fits
        assert found.worst.footprint.ram <= gigabytes * 1e9
        assert found.worst.footprint.disk <= 1e12
        places.append((found.away.states.optimizer, found.away.states.parameters))
        assert option(replicas.rounds(BIG, (machine,), USUAL)).worst.fits
    assert places == [(Place.RAM, Place.RAM), (Place.DISK, Place.RAM), (Place.DISK, Place.DISK)]
    for less in ({"disk_bytes": None}, {"disk_bytes": Bytes(10**10)}, {"memory_bytes": Bytes(10**9)}):
        assert not room(BIG, BIG.recipe, replace(machine, **less), Split(), 8).fits


def test_memory_that_is_the_cards_own_is_no_other_place() -> None:
    for card, is_helped in (("RTX 3060 12GB", True), ("M2 Max 38-core", False)):
        some = host("a", card, memory_bytes=Bytes(10**12), disk_bytes=Bytes(10**13))
        small = replace(some, card=replace(some.card, memory_bytes=Bytes(12 * 10**9)))
        assert room(BIG, BIG.recipe, small, Split(), 8).fits is is_helped


def test_what_lies_elsewhere_costs_what_crosses_the_bus_and_the_disk() -> None:
    card = replace(host("a").card, memory_bytes=Bytes(10**12))
    own = room(BIG, BIG.recipe, replace(host("a"), card=card), Split(), 8)
    taken = [
        speed.computing(BIG, host("a"), replace(own, worst=away(move)), BIG.step_tokens, 0.4)
        for move in MOVES[:3] + MOVES[-1:]
    ]
    size, bus = BIG.parameters, speed.bus(host("a"))
    assert taken[1] - taken[0] == pytest.approx(2 * size / bus)
    assert taken[2] - taken[0] == pytest.approx(4 * size / bus)
    assert taken[3] - taken[2] > (2 * 4 + 2 * BIG.recipe.optimizer + 3 * 2) * size / 500e6
    told = speed.fact(BIG, host("a"), replace(own, worst=away(MOVES[-1])), BIG.step_tokens, 0.4)
    assert "of its disk" in told.formula
    assert "Ren et al." in told.source


def away(move: Away) -> Worst:
    """All of BIG on one card, but for what is moved."""
    split = Split(3 if move.states.parameters is not Place.CARD else 0, 1, move.states)
    training = Training(Pipeline((BIG.model.layers,)), BIG.recipe, split, activations=move.activations)
    return worst(footprints(BIG.stack(8, Recompute.NONE), training), (1e12,))


# Seconds of a step


def test_a_step_of_a_small_model_takes_as_long_as_its_kernels_to_launch() -> None:
    """4 layers of 30 kernels and 16 others, 5 us each; twice as many passes take twice as long."""
    fast = replace(host("a"), utilisation=1.0)
    own = room(TINY, TINY.recipe, fast, Split(), 8)
    taken = speed.computing(TINY, fast, own, TINY.step_tokens, 0.4)
    assert taken == pytest.approx((4 * 30 + 16) * 5e-6)
    halved = replace(own, micro=4)
    assert speed.computing(TINY, fast, halved, TINY.step_tokens, 0.4) == pytest.approx(2 * taken)
    told = speed.fact(TINY, fast, own, TINY.step_tokens, 0.4)
    assert "136 kernels x 5 us" in told.formula
    assert "Fernandez" in told.source


def test_a_step_of_a_large_model_takes_as_long_as_its_products() -> None:
    own = room(BIG, BIG.recipe, host("a", "B200"), Split(), 8)
    card = host("a", "B200").card
    taken = speed.computing(BIG, host("a", "B200"), own, BIG.step_tokens, 0.4)
    flop = BIG.flop(BIG.step_tokens, own.recompute)
    assert taken == pytest.approx(flop / (0.4 * card.rate(Precision.BF16).flops))


@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from(list(Recompute)))
def test_more_layers_never_launch_sooner(few: int, more: int, recompute: Recompute) -> None:
    assert speed.launching(few, recompute) < speed.launching(few + more, recompute)
    assert speed.launching(few, recompute) >= speed.launching(few, Recompute.NONE)


def test_what_a_host_says_that_training_reaches_stands_before_what_is_assumed() -> None:
    assert speed.rate(replace(host("a"), utilisation=0.8), 0.4) == pytest.approx(
        2 * speed.rate(host("a"), 0.4)
    )


# Each layout


def test_rounds_take_as_many_steps_fewer_as_there_are_hosts() -> None:
    one, four = (option(replicas.rounds(MIDDLE, hosts(count), USUAL)) for count in (1, 4))
    assert one.steps == 4 * four.steps
    assert one.exchange == one.up == 0
    assert four.exchange + four.up > 0


def test_a_round_waits_for_its_slowest_member() -> None:
    mixed = (*hosts(1), host("slow", "RTX 3060 12GB"))
    alone = option(replicas.rounds(MIDDLE, mixed[1:], USUAL))
    assert option(replicas.rounds(MIDDLE, mixed, USUAL)).step >= alone.step


def test_data_parallel_sends_what_a_ring_sends_and_hides_it_behind_the_backward_pass() -> None:
    found = option(replicas.data(MIDDLE, hosts(4, link=LAN), USUAL))
    assert found.up == all_reduce(span(4), 2.0 * MIDDLE.parameters).sent
    fast = option(replicas.data(MIDDLE, hosts(4, link=Link(1e12, 1e12, Seconds(0.0))), USUAL))
    assert fast.exchange == 0
    assert fast.step < found.step


def test_members_that_wait_at_every_step_are_alike() -> None:
    mixed = (*hosts(1), host("slow", "RTX 3060 12GB"))
    for layout in (replicas.data, replicas.sharded):
        found = blocked(layout(MIDDLE, mixed, USUAL))
        assert (found.constraint, found.short < 1) == ("similarity", True)


def test_a_step_has_a_sequence_for_each_rank() -> None:
    few = replace(TINY, sequences=3)
    assert blocked(replicas.data(few, hosts(4), USUAL)).constraint == "batch"


def test_sharded_states_take_less_of_each_card_and_more_of_the_lines() -> None:
    whole, split = (
        option(layout(MIDDLE, hosts(4, link=LAN), USUAL)) for layout in (replicas.data, replicas.sharded)
    )
    assert split.worst.footprint.card < whole.worst.footprint.card
    assert split.up > whole.up


def test_a_model_that_no_card_holds_names_the_card_and_what_it_takes() -> None:
    found = blocked(replicas.rounds(BIG, hosts(4), USUAL))
    assert found.constraint == "memory"
    assert "GeForce RTX 4090" in found.cause
    assert "24 GB" in found.cause
    assert 0 < found.short < 1


# Pipelines


@given(
    st.lists(st.floats(0.1, 10.0), min_size=1, max_size=4),
    st.integers(1, 9),
    st.data(),
)
@settings(max_examples=60)
def test_layers_are_shared_out_so_that_the_slowest_stage_is_as_fast_as_can_be(
    rates: list[float], layers: int, data: st.DataObject
) -> None:
    """Beside all ways to cut, the head's work with the last layer; whoever is last may hold none of them."""
    work = replace(
        TINY, model=replace(TINY.model, transformer=replace(TINY.model.transformer, layers=layers))
    )
    head = work.model.head(work.context)
    layer = (work.flop(work.context) - head) / layers
    caps = data.draw(st.lists(st.integers(0, layers), min_size=len(rates), max_size=len(rates)))
    if sum(caps) < layers:
        return
    found = pipelines.dealt(work, rates, caps)
    assert sum(found) == layers
    assert all(count <= cap for count, cap in zip(found, caps, strict=True))
    spans = [range(min(cap, layers) + 1) for cap in caps]
    ways = (way for way in itertools.product(*spans) if sum(way) == layers)

    def slowest(way: Sequence[int]) -> float:
        last = max(at for at, count in enumerate(way) if count)
        return max((n * layer + head * (at == last)) / rates[at] for at, n in enumerate(way))

    assert slowest(found) == pytest.approx(min(map(slowest, ways)))


def test_a_pipeline_trains_what_no_card_holds_and_uneven_hosts_get_uneven_layers() -> None:
    crew = (host("a", cards=2), *hosts(3, "RTX 3090"))
    found = option(pipelines.pipeline(BIG, crew, USUAL))
    assert found.worst.fits
    counts = dict(
        zip((each.name for each in found.hosts), map(int, found.how.split()[1].split("/")), strict=True)
    )
    assert sum(counts.values()) == BIG.model.layers
    assert counts["a"] > counts["h00"]


def test_a_pipeline_without_room_says_how_many_layers_it_lacks() -> None:
    found = blocked(pipelines.pipeline(BIG, hosts(2, "RTX 3060 12GB"), USUAL))
    assert found.constraint == "memory"
    assert "of 32 layers" in found.cause
    assert "layers more" in found.help


def test_a_slow_line_makes_a_pipeline_slower_and_its_bytes_do_not_change() -> None:
    slow, fast = (option(pipelines.pipeline(BIG, hosts(8, link=link), USUAL)) for link in (HOME, LAN))
    assert slow.step > fast.step


def test_more_hosts_than_layers_make_no_pipeline() -> None:
    assert blocked(pipelines.pipeline(TINY, hosts(5), USUAL)).constraint == "layers"


# The search


@pytest.mark.parametrize("goal", list(Goal))
def test_the_best_of_each_kind_is_best_by_what_counts(goal: Goal) -> None:
    found = search(LONG, hosts(5), goal)
    assert 1 < len(found.best) <= 3
    assert len({each.kind for each in found.best}) == len(found.best)
    key = [each.seconds if goal is Goal.TIME else each.price for each in found.best]
    assert key == sorted(key)


def test_where_a_network_saves_less_than_it_takes_to_stand_one_host_alone_comes_first() -> None:
    found = search(TINY, hosts(5))
    assert found.is_for_one
    assert [each.kind for each in found.best] == [Kind.ALONE, Kind.ROUNDS]
    assert not search(LONG, hosts(5)).is_for_one
    assert not search(BIG, hosts(5)).is_for_one  # no host can do it alone


@pytest.mark.parametrize("goal", list(Goal))
def test_what_can_be_run_today_is_always_shown_and_marked(goal: Goal) -> None:
    """On lines of a data centre everything else is better."""
    link = Link(1e12, 1e12, Seconds(1e-4))
    found = search(LONG, hosts(5, link=link), goal)
    assert len(found.best) == 3
    assert found.today is not None
    assert found.today.kind is Kind.ROUNDS
    assert [each.is_run_today for each in found.best].count(True) == 1


def test_one_host_alone_writes_checkpoints_and_needs_no_outer_state() -> None:
    alone = option(replicas.rounds(LONG, hosts(1), USUAL))
    assert alone.kind is Kind.ALONE
    assert any(each.name == "checkpoint interval" and "C = " in each.formula for each in alone.facts)
    pair = option(replicas.rounds(LONG, hosts(2), USUAL))
    assert alone.worst.footprint.card < pair.worst.footprint.card
    restless = option(replicas.rounds(LONG, (replace(hosts(1)[0], churn=Seconds(600.0)),), USUAL))
    assert restless.efficiency < alone.efficiency < 1


def test_the_order_of_offers_changes_nothing() -> None:
    made = (*hosts(3), host("slow", "RTX 3090", price=Credits(1)))
    assert search(MIDDLE, made).best == search(MIDDLE, made[::-1]).best


def test_what_no_layout_can_hold_gives_the_nearest_constraint_of_each() -> None:
    found = search(BIG, hosts(2, "GTX 1060 3GB"))
    assert found.best == ()
    assert {each.kind for each in found.binding} == set(Kind) - {Kind.PIPELINES}
    assert {each.constraint for each in found.binding} == {"memory"}
    nearness = [each.nearness for each in found.binding]
    assert nearness == sorted(nearness, reverse=True)


def test_a_constraint_that_was_met_is_not_the_one_that_binds() -> None:
    """Alike hosts that lack memory are nearer than hosts that are not even alike."""
    found = search(BIG, (*hosts(2, "RTX 4090"), host("slow", "GTX 1060 3GB")))
    of_data = next(each for each in found.binding if each.kind is Kind.DATA)
    assert of_data.constraint == "memory"


@settings(max_examples=20)
@given(st.integers(1, 6), st.floats(1e6, 1e9), st.floats(3600.0, 1e7))
def test_more_churn_and_slower_lines_never_help(count: int, rate: float, churn: float) -> None:
    crew = hosts(count, link=Link(rate, rate, Seconds(0.02)), churn=Seconds(churn))
    base = option(replicas.rounds(TINY, crew, USUAL))
    restless = tuple(replace(each, churn=Seconds(churn / 2)) for each in crew)
    assert option(replicas.rounds(TINY, restless, USUAL)).efficiency <= base.efficiency <= 1.0
    assert base.seconds > 0


def test_prices_are_those_of_the_hosts_for_as_long_as_it_takes() -> None:
    found = option(replicas.rounds(MIDDLE, hosts(4), USUAL))
    assert found.price == pytest.approx(4 * 300_000 * found.seconds / 3600, abs=1)
    assert found.price_of_million == pytest.approx(found.price * 1e6 / MIDDLE.tokens, abs=1)


def test_a_host_computes_at_its_cards_rate_and_several_cards_pay_for_the_bus() -> None:
    one, two = host("a"), host("b", cards=2)
    assert (
        speed.rate(two) == 2 * speed.rate(one) == 2 * speed.UTILISATION * one.card.rate(Precision.BF16).flops
    )
    small = room(MIDDLE, MIDDLE.recipe, one, Split(), 8)
    alone, both = (speed.computing(MIDDLE, each, small, 4096, 0.4) for each in (one, two))
    assert both > alone / 2
    assert speed.bus(replace(two, lanes=4)) == speed.bus(two) / 4


def test_every_number_of_a_way_has_a_formula_and_a_source() -> None:
    for found in search(MIDDLE, hosts(4)).best:
        assert len(found.facts) > 4
        assert all(fact.formula and fact.source and fact.value for fact in found.facts)


# Machines


def grades(work: Work, found: Option) -> dict[str, str]:
    return {each.host.name: str(each.admission.grade) for each in machines.admitted(work, found)}


def test_a_machine_is_judged_for_what_this_way_asks_of_it() -> None:
    crew = (host("good"), host("unknown", cores=None), host("narrow", lanes=4), host("few", cores=1))
    found = option(replicas.rounds(MIDDLE, crew, USUAL))
    assert grades(MIDDLE, found) == {"good": "A", "unknown": "C", "narrow": "C", "few": "C"}


def test_a_line_that_cannot_carry_a_way_lowers_the_class_of_its_host() -> None:
    slow = hosts(2, link=Link(1e5, 1e5, Seconds(0.03)))
    found = option(replicas.data(MIDDLE, slow, USUAL))
    assert set(grades(MIDDLE, found).values()) == {"C"}
    assert {w.rule for each in machines.admitted(MIDDLE, found) for w in each.admission.warnings} == {
        "up",
        "down",
    }

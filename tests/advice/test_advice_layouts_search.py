"""Advice over offers: what is best is best by its own numbers, and where nothing fits the constraint is named."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from plan_offers import HOME, LAN, LARGE, SMALL, asked, host, hosts, sized

from farflung.advice.hardware.admission import MachineGrade
from farflung.advice.hardware.card import FactorPrecision
from farflung.advice.hardware.value_per_watt import ReferenceCard, value
from farflung.advice.layouts import activation_bits, host_speed, machine_admission, pipeline_layouts, replica_layouts
from farflung.advice.layouts.energy_value import worth
from farflung.advice.layouts.layout_search import AdviceGoal, search
from farflung.advice.layouts.memory_fit import MOVES, OffloadPlacement, room
from farflung.advice.layouts.replica_layouts import OfferAssumptions
from farflung.advice.layouts.training_options import InfeasibleOption, LayoutKind, TrainingOption
from farflung.advice.memory.breakdown import MemoryPlace
from farflung.advice.memory.model_states import RECIPES, ZeroSplit
from farflung.advice.memory.worst_stage import PipelineStages, StageTraining, WorstStage, footprints, worst
from farflung.advice.offers.energy_terms import EnergyTerms
from farflung.advice.traffic.collectives import all_reduce, span
from farflung.core import limits
from farflung.core.money import CREDIT, Credits
from farflung.core.units import Bytes, Flop, Seconds
from farflung.plan.link_syntax import Link
from farflung.plan.step_trace import Recomputation

TINY, BIG = sized(SMALL), sized(LARGE)
MIDDLE = sized({"model.layers": "12", "model.width": "768", "model.heads": "12", "model.context": "512"})
LONG = replace(MIDDLE, tokens=1000 * MIDDLE.tokens)
BY_ADAM = replace(MIDDLE, recipe=RECIPES["adam-mixed"], optimizer_flop=Flop(0.0))
LARGE_BY_ADAM = replace(BIG, recipe=RECIPES["adam-mixed"], optimizer_flop=Flop(0.0))
USUAL = OfferAssumptions()


def option(found: TrainingOption | InfeasibleOption) -> TrainingOption:
    assert isinstance(found, TrainingOption), found
    return found


def blocked(found: TrainingOption | InfeasibleOption) -> InfeasibleOption:
    assert isinstance(found, InfeasibleOption), found
    return found


def test_a_job_asks_for_the_tokens_that_its_file_says_and_for_its_own_parameters() -> None:
    assert TINY.model.transformer.size == TINY.parameters
    assert TINY.tokens == 12 * 20 * 8 * 64 * 5  # rounds, steps, batch, context, providers
    assert TINY.sequences == 8 * 5


# Room on a card


def test_what_fits_as_it_is_recomputes_nothing() -> None:
    found = room(MIDDLE, MIDDLE.recipe, host("a"), ZeroSplit(), 8)
    assert (found.fits, found.recompute, found.micro, found.away) == (True, Recomputation.NONE, 8, OffloadPlacement())


def test_less_memory_takes_smaller_micro_batches_then_recomputation_then_ram() -> None:
    """In the order of what they cost."""
    need = room(BY_ADAM, BY_ADAM.recipe, host("a"), ZeroSplit(), 8).worst.footprint.card
    ranks = []
    for share in (1.001, 0.8, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3):
        card = replace(host("a").card, memory_bytes=Bytes(round(need * share)))
        found = room(BY_ADAM, BY_ADAM.recipe, replace(host("a"), card=card), ZeroSplit(), 8)
        ranks.append(
            (not found.fits, MOVES.index(found.away), list(Recomputation).index(found.recompute), -found.micro)
        )
    assert ranks == sorted(ranks)
    assert ranks[0] == (False, 0, 0, -8)
    assert any(each[1] for each in ranks)


def test_an_optimizer_of_products_does_not_move_to_ram() -> None:
    card = replace(host("a").card, memory_bytes=Bytes(12 * 10**8))
    assert not room(MIDDLE, MIDDLE.recipe, replace(host("a"), card=card), ZeroSplit(), 8).fits
    assert room(BY_ADAM, BY_ADAM.recipe, replace(host("a"), card=card), ZeroSplit(), 8).away != OffloadPlacement()


def test_nothing_moves_to_ram_that_nobody_says_is_there() -> None:
    card = replace(host("a").card, memory_bytes=Bytes(2 * 10**9))
    for memory in (None, Bytes(10**8)):
        found = room(MIDDLE, MIDDLE.recipe, replace(host("a"), card=card, memory_bytes=memory), ZeroSplit(), 8)
        assert not found.fits


def test_a_card_without_bfloat16_keeps_what_it_computes_with_in_float32() -> None:
    """4 + 4 bytes a parameter and no copy beside; activations twice as large. It computes at float32's rate."""
    narrow = host("a").card
    wide = replace(narrow, has_bf16=False)
    parts = [
        room(TINY, TINY.recipe, replace(host("a"), card=card), ZeroSplit(), 8).worst.footprint
        for card in (narrow, wide)
    ]
    states = ("weights", "gradients", "optimizer")
    assert [found.of(name) / TINY.parameters for found in parts for name in states] == [2, 2, 8, 4, 4, 4]
    ratio = parts[1].of("activations") / parts[0].of("activations")
    assert 1.9 < ratio < 2  # the loss is in float32 on both
    subsets = [tuple(replace(each, card=card) for each in hosts(2)) for card in (narrow, wide)]
    one, two = (option(pipeline_layouts.pipeline(MIDDLE, subset, USUAL)).worst.footprint for subset in subsets)
    assert two.of("weights") == 2 * one.of("weights")


def test_a_card_that_is_too_small_by_far_keeps_parameters_in_ram_and_then_states_on_disk() -> None:
    """6.4 B parameters of 16 bytes in RAM, 18 with themselves, and half as much again: 155 and 174 GB."""
    tight = host("a", "RTX 3060 12GB", link=LAN, disk_bytes=Bytes(10**12))
    places = []
    for gigabytes in (512, 160, 18):
        machine = replace(tight, memory_bytes=Bytes(gigabytes * 10**9))
        found = room(LARGE_BY_ADAM, LARGE_BY_ADAM.recipe, machine, ZeroSplit(), 8)
        assert found.fits
        assert found.worst.footprint.ram <= gigabytes * 1e9
        assert found.worst.footprint.disk <= 1e12
        places.append((found.away.states.optimizer, found.away.states.parameters))
        assert option(replica_layouts.rounds(LARGE_BY_ADAM, (machine,), USUAL)).worst.fits
    assert places == [
        (MemoryPlace.RAM, MemoryPlace.RAM),
        (MemoryPlace.DISK, MemoryPlace.RAM),
        (MemoryPlace.DISK, MemoryPlace.DISK),
    ]
    for less in ({"disk_bytes": None}, {"disk_bytes": Bytes(10**10)}, {"memory_bytes": Bytes(10**9)}):
        assert not room(LARGE_BY_ADAM, LARGE_BY_ADAM.recipe, replace(machine, **less), ZeroSplit(), 8).fits


def test_memory_that_is_the_cards_own_is_no_other_place() -> None:
    for card, is_helped in (("RTX 3060 12GB", True), ("M2 Max 38-core", False)):
        some = host("a", card, memory_bytes=Bytes(10**12), disk_bytes=Bytes(10**13))
        small = replace(some, card=replace(some.card, memory_bytes=Bytes(12 * 10**9)))
        assert room(LARGE_BY_ADAM, LARGE_BY_ADAM.recipe, small, ZeroSplit(), 8).fits is is_helped


def test_what_lies_elsewhere_costs_what_crosses_the_bus_and_the_disk() -> None:
    work, card = LARGE_BY_ADAM, replace(host("a").card, memory_bytes=Bytes(10**12))
    own = room(work, work.recipe, replace(host("a"), card=card), ZeroSplit(), 8)
    rooms = [replace(own, away=move, worst=away(move)) for move in MOVES]
    taken = [host_speed.spent(work, host("a"), each, work.step_tokens, 0.4) for each in rooms]
    size, bus = work.parameters, host_speed.bus(host("a"))
    assert [found.moved * bus / size for found in taken[:3]] == pytest.approx([0, 2, 4])
    assert [found.disk for found in taken[:4]] == [0, 0, 0, 0]
    assert taken[-1].disk == pytest.approx((2 * 4 + 2 * work.recipe.optimizer + 3 * 2) * size / 500e6)
    assert taken[0].optimizer == 0 < taken[1].optimizer == taken[-1].optimizer
    told = {fact.name: fact for fact in host_speed.facts(work, host("a"), rooms[-1], work.step_tokens, 0.4)}
    assert "500 MB/s" in told["disk"].formula
    assert "ZeRO-Infinity" in told["disk"].source


def away(move: OffloadPlacement) -> WorstStage:
    """All of LARGE_BY_ADAM on one card, but for what is moved."""
    split = ZeroSplit(3 if move.states.parameters is not MemoryPlace.CARD else 0, 1, move.states)
    training = StageTraining(
        PipelineStages((LARGE_BY_ADAM.model.layers,)), LARGE_BY_ADAM.recipe, split, activations=move.activations
    )
    return worst(footprints(LARGE_BY_ADAM.stack(8, Recomputation.NONE), training), (1e12,))


# Seconds of a step


def test_a_step_of_a_small_model_takes_as_long_as_its_kernels_to_launch() -> None:
    """4 layers of 30 kernels and 16 others, 5 us each; twice as many passes take twice as long."""
    fast = replace(host("a"), utilisation=1.0)
    own = room(TINY, TINY.recipe, fast, ZeroSplit(), 8)
    taken = host_speed.spent(TINY, fast, own, TINY.step_tokens, 0.4).passes
    assert taken == pytest.approx((4 * 30 + 16) * 5e-6)
    halved = replace(own, micro=4)
    assert host_speed.spent(TINY, fast, halved, TINY.step_tokens, 0.4).passes == pytest.approx(2 * taken)
    told = host_speed.facts(TINY, fast, own, TINY.step_tokens, 0.4)[1]
    assert "1 x 136 x 5 us; kernels" in told.formula
    assert "Fernandez" in told.source


def test_a_step_of_a_large_model_takes_as_long_as_its_products() -> None:
    own = room(BIG, BIG.recipe, host("a", "B200"), ZeroSplit(), 8)
    card = host("a", "B200").card
    taken = host_speed.computing(BIG, host("a", "B200"), own, BIG.step_tokens, 0.4)
    flop = BIG.flop(BIG.step_tokens, own.recompute) + BIG.optimizer_flop
    assert taken == pytest.approx(flop / (0.4 * card.rate(FactorPrecision.BF16).flops))


def test_muons_products_are_in_every_step_as_the_plan_of_this_computer_has_them() -> None:
    """5 iterations of 4 n^2 m + 2 n^3, of each matrix of a layer: n by n, 3 n, 4 n and 4 n."""
    n = 4096
    layers = 32 * 5.0 * sum(4 * n * n * times * n + 2 * n**3 for times in (1, 3, 4, 4))
    assert BIG.optimizer_flop == pytest.approx(layers, rel=0.01)
    assert BIG.optimizer_flop > BIG.flop(BIG.step_tokens, Recomputation.NONE)
    own = room(BIG, BIG.recipe, host("a", "B200"), ZeroSplit(), 8)
    alone, shared = (host_speed.spent(BIG, host("a", "B200"), own, BIG.step_tokens, 0.4, ways) for ways in (1, 4))
    assert (shared.passes, shared.optimizer) == (alone.passes, pytest.approx(alone.optimizer / 4))


@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from(list(Recomputation)))
def test_more_layers_never_launch_sooner(few: int, more: int, recompute: Recomputation) -> None:
    assert host_speed.launching(few, recompute) < host_speed.launching(few + more, recompute)
    assert host_speed.launching(few, recompute) >= host_speed.launching(few, Recomputation.NONE)


def test_what_a_host_says_that_training_reaches_stands_before_what_is_assumed() -> None:
    assert host_speed.rate(replace(host("a"), utilisation=0.8), 0.4) == pytest.approx(
        2 * host_speed.rate(host("a"), 0.4)
    )


# Each layout


def test_rounds_take_as_many_steps_fewer_as_there_are_hosts() -> None:
    one, four = (option(replica_layouts.rounds(MIDDLE, hosts(count), USUAL)) for count in (1, 4))
    assert one.steps == 4 * four.steps
    assert one.exchange == one.up == 0
    assert four.exchange + four.up > 0


def test_a_round_waits_for_its_slowest_member() -> None:
    mixed = (*hosts(1), host("slow", "RTX 3060 12GB"))
    alone = option(replica_layouts.rounds(MIDDLE, mixed[1:], USUAL))
    assert option(replica_layouts.rounds(MIDDLE, mixed, USUAL)).step >= alone.step


def test_data_parallel_sends_what_a_ring_sends_and_hides_it_behind_the_backward_pass() -> None:
    found = option(replica_layouts.data(MIDDLE, hosts(4, link=LAN), USUAL))
    assert found.up == all_reduce(span(4), 2.0 * MIDDLE.parameters).sent
    fast = option(replica_layouts.data(MIDDLE, hosts(4, link=Link(1e12, 1e12, Seconds(0.0))), USUAL))
    assert fast.exchange == 0
    assert fast.step < found.step


def test_members_that_wait_at_every_step_are_alike() -> None:
    mixed = (*hosts(1), host("slow", "RTX 3060 12GB"))
    for layout in (replica_layouts.data, replica_layouts.sharded):
        found = blocked(layout(MIDDLE, mixed, USUAL))
        assert (found.constraint, found.short < 1) == ("similarity", True)


def test_a_step_has_a_sequence_for_each_rank() -> None:
    few = replace(TINY, sequences=3)
    assert blocked(replica_layouts.data(few, hosts(4), USUAL)).constraint == "batch"


def test_sharded_states_take_less_of_each_card_and_more_of_the_lines() -> None:
    whole, split = (
        option(layout(MIDDLE, hosts(4, link=LAN), USUAL)) for layout in (replica_layouts.data, replica_layouts.sharded)
    )
    assert split.worst.footprint.card < whole.worst.footprint.card
    assert split.up > whole.up


def test_a_model_that_no_card_holds_names_the_card_and_what_it_takes() -> None:
    found = blocked(replica_layouts.rounds(BIG, hosts(4), USUAL))
    assert found.constraint == "memory"
    assert "GeForce RTX 4090" in found.cause
    assert "24 GB" in found.cause
    assert 0 < found.short < 1


# Pipelines


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=4), st.integers(1, 9), st.data())
@settings(max_examples=60)
def test_layers_are_shared_out_so_that_the_slowest_stage_is_as_fast_as_can_be(
    rates: list[float], layers: int, data: st.DataObject
) -> None:
    """Beside all ways to cut, the head's work with the last layer; whoever is last may hold none of them."""
    work = replace(TINY, model=replace(TINY.model, transformer=replace(TINY.model.transformer, layers=layers)))
    head = work.model.head(work.context)
    layer = (work.flop(work.context) - head) / layers
    caps = data.draw(st.lists(st.integers(0, layers), min_size=len(rates), max_size=len(rates)))
    if sum(caps) < layers:
        return
    found = pipeline_layouts.dealt(work, rates, caps)
    assert sum(found) == layers
    assert all(count <= cap for count, cap in zip(found, caps, strict=True))
    spans = [range(min(cap, layers) + 1) for cap in caps]
    ways = (way for way in itertools.product(*spans) if sum(way) == layers)

    def slowest(way: Sequence[int]) -> float:
        last = max(at for at, count in enumerate(way) if count)
        return max((n * layer + head * (at == last)) / rates[at] for at, n in enumerate(way))

    assert slowest(found) == pytest.approx(min(map(slowest, ways)))


def test_a_pipeline_trains_what_no_card_holds_and_uneven_hosts_get_uneven_layers() -> None:
    subset = (host("a", cards=2), *hosts(3, "RTX 3090"))
    found = option(pipeline_layouts.pipeline(BIG, subset, USUAL))
    assert found.worst.fits
    counts = dict(zip((each.name for each in found.hosts), map(int, found.how.split()[1].split("/")), strict=True))
    assert sum(counts.values()) == BIG.model.layers
    assert counts["a"] > counts["h00"]


def test_a_pipeline_without_room_says_how_many_layers_it_lacks() -> None:
    found = blocked(pipeline_layouts.pipeline(BIG, hosts(2, "RTX 3060 12GB"), USUAL))
    assert found.constraint == "memory"
    assert "of 32 layers" in found.cause
    assert "layers more" in found.help


def test_a_slow_line_makes_a_pipeline_slower_and_its_bytes_do_not_change() -> None:
    slow, fast = (option(pipeline_layouts.pipeline(BIG, hosts(8, link=link), USUAL)) for link in (HOME, LAN))
    assert slow.step > fast.step


def test_more_hosts_than_layers_make_no_pipeline() -> None:
    assert blocked(pipeline_layouts.pipeline(TINY, hosts(5), USUAL)).constraint == "layers"


# The search


@pytest.mark.parametrize("goal", list(AdviceGoal))
def test_the_best_of_each_kind_is_best_by_what_counts(goal: AdviceGoal) -> None:
    found = search(LONG, hosts(5), goal)
    assert 1 < len(found.best) <= 3
    assert len({each.kind for each in found.best}) == len(found.best)
    key = [each.seconds if goal is AdviceGoal.TIME else each.price for each in found.best]
    assert key == sorted(key)


def test_where_a_network_saves_less_than_it_takes_to_stand_one_host_alone_comes_first() -> None:
    found = search(TINY, hosts(5))
    assert found.is_for_one
    assert [each.kind for each in found.best] == [LayoutKind.ALONE, LayoutKind.ROUNDS]
    assert not search(LONG, hosts(5)).is_for_one
    assert not search(BIG, hosts(5)).is_for_one  # no host can do it alone


@pytest.mark.parametrize("goal", list(AdviceGoal))
def test_what_can_be_run_today_is_always_shown_and_marked(goal: AdviceGoal) -> None:
    """On lines of a data centre everything else is better."""
    link = Link(1e12, 1e12, Seconds(1e-4))
    found = search(LONG, hosts(5, link=link), goal)
    assert len(found.best) == 3
    assert found.today is not None
    assert found.today.kind is LayoutKind.ROUNDS
    assert [each.is_run_today for each in found.best].count(True) == 1


def test_one_host_alone_writes_checkpoints_and_needs_no_outer_state() -> None:
    alone = option(replica_layouts.rounds(LONG, hosts(1), USUAL))
    assert alone.kind is LayoutKind.ALONE
    assert any(each.name == "checkpoint interval" and "C = " in each.formula for each in alone.facts)
    pair = option(replica_layouts.rounds(LONG, hosts(2), USUAL))
    assert alone.worst.footprint.card < pair.worst.footprint.card
    restless = option(replica_layouts.rounds(LONG, (replace(hosts(1)[0], churn=Seconds(600.0)),), USUAL))
    assert restless.efficiency < alone.efficiency < 1


def test_the_order_of_offers_changes_nothing() -> None:
    made = (*hosts(3), host("slow", "RTX 3090", price=Credits(1)))
    assert search(MIDDLE, made).best == search(MIDDLE, made[::-1]).best


def test_what_no_layout_can_hold_gives_the_nearest_constraint_of_each() -> None:
    found = search(BIG, hosts(2, "GTX 1060 3GB"))
    assert found.best == ()
    assert {each.kind for each in found.binding} == set(LayoutKind)
    assert {each.constraint for each in found.binding if each.kind is not LayoutKind.PIPELINES} == {"memory"}
    nearness = [each.nearness for each in found.binding]
    assert nearness == sorted(nearness, reverse=True)


def test_a_constraint_that_was_met_is_not_the_one_that_binds() -> None:
    """Alike hosts that lack memory are nearer than hosts that are not even alike."""
    found = search(BIG, (*hosts(2, "RTX 4090"), host("slow", "GTX 1060 3GB")))
    of_data = next(each for each in found.binding if each.kind is LayoutKind.DATA)
    assert of_data.constraint == "memory"


@settings(max_examples=20)
@given(st.integers(1, 6), st.floats(1e6, 1e9), st.floats(3600.0, 1e7))
def test_more_churn_and_slower_lines_never_help(count: int, rate: float, churn: float) -> None:
    subset = hosts(count, link=Link(rate, rate, Seconds(0.02)), churn=Seconds(churn))
    base = option(replica_layouts.rounds(TINY, subset, USUAL))
    restless = tuple(replace(each, churn=Seconds(churn / 2)) for each in subset)
    assert option(replica_layouts.rounds(TINY, restless, USUAL)).efficiency <= base.efficiency <= 1.0
    assert base.seconds > 0


def test_prices_are_those_of_the_hosts_for_as_long_as_it_takes() -> None:
    found = option(replica_layouts.rounds(MIDDLE, hosts(4), USUAL))
    assert found.price == pytest.approx(4 * 300_000 * found.seconds / 3600, abs=1)
    assert found.price_of_million == pytest.approx(found.price * 1e6 / MIDDLE.tokens, abs=1)


def test_a_host_computes_at_its_cards_rate_and_several_cards_pay_for_the_bus() -> None:
    one, two = host("a"), host("b", cards=2)
    assert (
        host_speed.rate(two)
        == 2 * host_speed.rate(one)
        == 2 * host_speed.UTILISATION * one.card.rate(FactorPrecision.BF16).flops
    )
    small = room(MIDDLE, MIDDLE.recipe, one, ZeroSplit(), 8)
    alone, both = (host_speed.computing(MIDDLE, each, small, 4096, 0.4) for each in (one, two))
    assert both > alone / 2
    assert host_speed.bus(replace(two, lanes=4)) == host_speed.bus(two) / 4


def test_every_number_of_a_way_has_a_formula_and_a_source() -> None:
    for found in search(MIDDLE, hosts(4)).best:
        assert len(found.facts) > 4
        assert all(fact.formula and fact.source and fact.value for fact in found.facts)


# Machines


def grades(found: TrainingOption) -> dict[str, str]:
    return {each.host.name: str(each.admission.grade) for each in machine_admission.admitted(found)}


def test_a_machine_is_judged_for_what_this_way_asks_of_it() -> None:
    subset = tuple(
        host(name, link=LAN, **changes)
        for name, changes in (
            ("good", {}),
            ("unknown", {"cores": None}),
            ("narrow", {"lanes": 4}),
            ("few", {"cores": 1}),
        )
    )
    found = option(replica_layouts.rounds(MIDDLE, subset, USUAL))
    assert grades(found) == {"good": "A", "unknown": "C", "narrow": "B", "few": "C"}  # nothing crosses the bus


def test_a_line_that_cannot_carry_a_way_lowers_the_class_of_its_host() -> None:
    slow = hosts(2, link=Link(1e5, 1e5, Seconds(0.03)))
    found = option(replica_layouts.data(MIDDLE, slow, USUAL))
    assert set(grades(found).values()) == {"C"}
    assert {w.rule for each in machine_admission.admitted(found) for w in each.admission.warnings} == {"up", "down"}


def test_each_host_is_judged_by_its_own_part() -> None:
    """An end of a pipeline sends half of what an inner stage does; who keeps nothing in RAM needs none."""
    found = option(pipeline_layouts.pipeline(BIG, hosts(5, "RTX A6000"), USUAL))
    ups = [share.up for share in found.shares]
    assert max(ups) == found.up
    assert ups[0] < ups[1] == ups[2]
    assert ups[0] == ups[-1] > ups[1] / 2  # the table that both ends share
    small, large = host("small", "RTX 4070"), host("large", "RTX A6000")
    found = option(replica_layouts.rounds(BY_ADAM, (small, large), USUAL))
    assert all(share.ram == found.shares[0].ram for share in found.shares)


def test_a_line_is_judged_by_what_carries_a_step_while_it_is_computed() -> None:
    """By the whole step, waiting and all, it would be judged by its own slowness, and always be a quarter short."""
    found = option(replica_layouts.data(MIDDLE, hosts(2, link=Link(1e8, 1e8, Seconds(0.001))), USUAL))
    need = next(one.need for one in machine_admission.admitted(found)[0].admission.findings if one.rule == "up")
    assert need == pytest.approx(8 * found.up / (0.8 * (found.step - found.exchange)))
    assert found.exchange > 0


# What counts


def test_a_checkpoint_counts_when_it_has_gone_over_the_line() -> None:
    """A disk of the host's own leaves with it: 16 bytes of mixed-precision Adam up 20 Mbit/s."""
    alone = option(replica_layouts.rounds(BY_ADAM, hosts(1), USUAL))
    size = 14 * BY_ADAM.parameters
    kept = next(fact for fact in alone.facts if fact.name == "checkpoint interval")
    assert f"C = {8 * size / 20e6 + 0.015:g} s" in kept.formula
    better = option(replica_layouts.rounds(BY_ADAM, hosts(1, link=LAN), USUAL))
    assert alone.efficiency < better.efficiency


def test_hosts_that_leave_before_anything_is_done_are_no_way() -> None:
    for way in (replica_layouts.rounds, replica_layouts.data, pipeline_layouts.pipeline):
        found = blocked(way(MIDDLE, hosts(3, churn=Seconds(1e-6)), USUAL))
        assert found.constraint == "churn"
        assert "work that counts" in found.cause


def test_a_round_is_as_long_as_its_weight_allows_and_agrees_some_times() -> None:
    wide = asked(model__layers="12", model__width="768", model__heads="12", model__context="1024", batch="16")
    found = option(replica_layouts.rounds(wide, hosts(4, link=Link(1e6, 1e6, Seconds(0.1))), USUAL))
    assert found.sync is not None
    assert found.sync.steps * wide.step_tokens <= limits.WEIGHT
    assert found.steps % found.sync.steps == 0
    assert found.steps // found.sync.steps >= 10


def test_the_exchange_of_the_last_round_has_nothing_to_hide_behind() -> None:
    found = option(replica_layouts.rounds(LONG, hosts(4, link=Link(2e6, 2e6, Seconds(0.1))), USUAL))
    assert found.sync is not None
    assert found.sync.delay == 1
    assert found.tail > 0
    assert found.seconds == pytest.approx((found.step * found.steps + found.tail) / found.efficiency)


def test_a_pipeline_waits_for_the_table_that_both_ends_share_and_for_its_optimizer() -> None:
    found = option(pipeline_layouts.pipeline(BIG, hosts(4, "RTX A6000"), USUAL))
    named = {fact.name: fact for fact in found.facts}
    table = 2 * 256 * 4096
    assert named["gradient of the shared table"].value != "0 s"
    assert "optimizer" in named
    plain = BIG.model.handed(1) * BIG.sequences
    assert "8-bit" in found.how
    assert found.shares[0].up == pytest.approx(activation_bits.codes(BIG)[1].forward * plain + table)


# Crews


@pytest.mark.whole
def test_large_cards_are_found_among_many_fast_small_ones() -> None:
    big = tuple(host(f"big{at}", "M2 Ultra 76-core") for at in range(4))
    few, many = search(BIG, big), search(BIG, (*big, *hosts(35, "RTX 3070")))
    assert LayoutKind.ROUNDS in {each.kind for each in few.best}
    assert many.best[0].seconds <= few.best[0].seconds
    assert LayoutKind.ROUNDS not in {each.kind for each in many.binding}


def test_of_those_that_wait_at_every_step_each_class_of_speed_is_tried() -> None:
    near = {"link": LAN}
    subset = (host("fast", "H100 SXM", **near), *hosts(8, "RTX 3090", **near))
    found = search(LONG, subset)
    of_data = [each for each in (*found.best, *found.dropped) if each.kind is LayoutKind.DATA]
    names = {name.name for each in of_data for name in each.hosts}
    assert not of_data or "fast" not in names


def test_where_the_owners_third_is_what_binds_it_is_named_and_lifted_by_whose_all_are() -> None:
    mine = tuple(replace(each, owner="me") for each in hosts(8, "RTX 3090"))
    held = search(BIG, mine)
    assert held.best == ()
    assert held.binding[0].constraint == "owners"
    assert "me lends 8 of 8 hosts" in held.binding[0].cause
    assert len(search(BIG, mine, is_own=True).best[0].hosts) > 2


def test_a_way_that_is_much_longer_and_dearer_than_another_is_no_advice() -> None:
    found = search(LONG, hosts(4))
    for each in found.dropped:
        assert any(each.seconds > 3 * one.seconds and each.price > 3 * one.price for one in found.best)
    for each in found.best:
        assert each.is_run_today or not any(
            each.seconds > 3 * one.seconds and each.price > 3 * one.price for one in found.best
        )


# What a job asks of a machine, and what a way is worth


def test_a_class_that_the_job_asks_for_leaves_out_lower_machines_where_others_do() -> None:
    subset = (*hosts(3), host("narrow", lanes=4), host("unknown", cores=None))
    assert {each.name for each in search(LONG, subset).best[0].hosts} >= {"narrow"}
    for least, kept in ((MachineGrade.A, {"h00", "h01", "h02"}), (MachineGrade.B, {"h00", "h01", "h02", "narrow"})):
        found = search(replace(LONG, least=least), subset)
        assert found.best
        for way in found.best:
            assert {each.name for each in way.hosts} <= kept
            assert not machine_admission.below(least, way)


def test_a_class_that_no_machine_has_is_what_binds() -> None:
    found = search(replace(LONG, least=MachineGrade.A), tuple(host(name, lanes=4) for name in ("a", "b", "c")))
    assert found.best == ()
    assert {each.constraint for each in found.binding if each.kind is LayoutKind.ROUNDS} == {"class"}
    assert "not of class A, as network.machines asks" in found.binding[0].cause


def test_who_misses_no_rule_is_of_the_lowest_class_that_a_job_may_ask_for() -> None:
    subset = (host("unknown", cores=None), host("few", cards=2, cores=1))
    found = search(replace(LONG, least=MachineGrade.C), subset)
    assert {each.name for way in found.best for each in way.hosts} == {"unknown"}


def test_cards_that_nothing_runs_on_are_left_out_and_named() -> None:
    found = search(LONG, (*hosts(2), host("old", "RX 580")))
    assert [each.name for each in found.useless] == ["old"]
    assert "old" not in {each.name for way in found.best for each in way.hosts}
    none = search(LONG, (host("old", "RX 580"),))
    assert none.best == ()
    assert none.binding[0].constraint == "software"


def test_the_line_of_a_site_is_judged_by_all_of_its_hosts_that_take_part() -> None:
    """Three behind one line: what one sends would fit it, what all send does not."""
    alone = option(replica_layouts.data(MIDDLE, hosts(3, link=LAN), USUAL))
    computes, sent = alone.step - alone.exchange, alone.shares[0].up
    need = 8 * sent / (0.8 * computes)
    line = Link(2 * need, 2 * need, Seconds(0.0005))
    apart = option(replica_layouts.data(MIDDLE, hosts(3, link=line), USUAL))
    assert all(not each.admission.missed for each in machine_admission.admitted(apart))
    part = Link(line.up / 3, line.down / 3, line.round_trip)
    together = tuple(replace(each, site="one", line=line, link=part) for each in hosts(3))
    judged = machine_admission.admitted(option(replica_layouts.data(MIDDLE, together, USUAL)))
    assert {one.rule for each in judged for one in each.admission.missed} == {"up", "down"}


def test_cores_are_computed_for_what_was_measured_and_thumbs_stand_for_the_rest() -> None:
    alone, agreeing, in_step = (
        option(layout(MIDDLE, hosts(count, link=LAN), USUAL))
        for layout, count in ((replica_layouts.rounds, 1), (replica_layouts.rounds, 4), (replica_layouts.data, 4))
    )
    assert alone.shares[0].cores == 1
    steps, computes = agreeing.sync.steps if agreeing.sync else 0, agreeing.step - agreeing.exchange
    work = (15e-9 + 4 * 5e-9) * MIDDLE.parameters + 20e-9 * agreeing.down * steps
    assert agreeing.shares[0].cores == pytest.approx(1 + work / (steps * computes))
    assert in_step.shares[0].cores is None


def test_what_a_way_draws_and_loses_follows_from_its_own_seconds() -> None:
    """One card: the loss is what failures take, and what is worth is the card's own worth with that loss."""
    terms = EnergyTerms(0.3, ReferenceCard(hour=1.71), is_priced=True)
    for way in search(LONG, hosts(4, link=LAN)).best:
        found = worth(LONG, way, terms)
        assert found.seconds == pytest.approx(way.seconds * (1 + LONG.audited))
        assert found.energy == pytest.approx(450 * len(way.hosts) * found.seconds / 3.6e6)
        assert found.power == pytest.approx(0.3 * found.energy)
        assert found.rent == pytest.approx(way.price * (1 + LONG.audited) / CREDIT, rel=0.001)
        assert 0 <= found.loss < 1
        own = value(way.hosts[0].card, loss=found.loss).per_watt
        assert found.per_watt == pytest.approx(own)
    alone = option(replica_layouts.rounds(LONG, hosts(1), USUAL))
    assert worth(LONG, alone, terms).loss == pytest.approx(1 - alone.efficiency, abs=0.01)

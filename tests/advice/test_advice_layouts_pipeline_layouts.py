"""Several pipelines: who stands where, what each stage sends the others, and what is lost when a host leaves."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from plan_offers import HOME, LAN, LARGE, SMALL, host, hosts, sized

from farflung.advice.job_work import JobWork
from farflung.advice.layouts import activation_bits, checkpoint_policy, grid_placement, pipeline_layouts, pipeline_sync
from farflung.advice.layouts.layout_search import search
from farflung.advice.layouts.replica_layouts import OfferAssumptions
from farflung.advice.layouts.training_options import InfeasibleOption, LayoutKind, TrainingOption
from farflung.advice.method_costs import MethodSetting, estimate
from farflung.advice.offers.offer_file import OfferedHost
from farflung.advice.placement import loop_loader
from farflung.core.money import Credits
from farflung.core.units import Bytes, Seconds
from farflung.plan.link_syntax import Link

BIG, TINY = sized(LARGE), sized(SMALL)
LONG = replace(BIG, tokens=100 * BIG.tokens)
USUAL = OfferAssumptions()


def option(found: TrainingOption | InfeasibleOption) -> TrainingOption:
    assert isinstance(found, TrainingOption), found
    return found


def hop(one: OfferedHost, other: OfferedHost, size: float) -> float:
    """Seconds there and back."""
    trip = one.link.round_trip + other.link.round_trip
    there, back = min(one.link.up, other.link.down), min(other.link.up, one.link.down)
    return trip + 8 * size / there + 8 * size / back


def length(order: tuple[OfferedHost, ...], size: float) -> float:
    return sum(hop(one, other, size) for one, other in itertools.pairwise(order))


# Who stands where


@st.composite
def lines(draw: st.DrawFn, most: int = 6) -> tuple[OfferedHost, ...]:
    rate = st.sampled_from([5e6, 2e7, 1e8, 5e8])
    return tuple(
        host(f"h{at}", link=Link(draw(rate), draw(rate), Seconds(draw(st.floats(0.001, 0.2)))))
        for at in range(draw(st.integers(2, most)))
    )


@settings(max_examples=40)
@given(lines())
def test_a_pipeline_is_the_shortest_tour_of_its_hosts(subset: tuple[OfferedHost, ...]) -> None:
    with loop_loader.as_it_stands():
        found = grid_placement.line(subset, 4e6)
    assert sorted(found, key=lambda each: each.name) == sorted(subset, key=lambda each: each.name)
    best = min(length(way, 4e6) for way in itertools.permutations(subset))
    assert length(found, 4e6) == pytest.approx(best)


def test_the_weakest_line_stands_at_an_end_and_the_most_memory_first() -> None:
    subset = (*hosts(3, link=LAN), host("weak", link=Link(2e6, 2e6, Seconds(0.001))), host("two", cards=2, link=LAN))
    with loop_loader.as_it_stands():
        names = [each.name for each in grid_placement.line(subset, 4e6)]
    assert "weak" in (names[0], names[-1])
    ends = [each for each in subset if each.name in (names[0], names[-1])]
    assert max(ends, key=lambda each: each.cards).name == names[0] or all(each.cards == 1 for each in ends)


@settings(max_examples=20)
@given(st.integers(2, 5), st.integers(2, 6), st.data())
def test_every_grid_has_every_host_once(ways: int, stages: int, data: st.DataObject) -> None:
    region = st.sampled_from("abcdefghijkl")
    card = st.sampled_from(["RTX 4090", "RTX 3090"])
    subset = tuple(host(f"h{at:02}", data.draw(card), region=data.draw(region)) for at in range(ways * stages))
    with loop_loader.as_it_stands():
        found = list(grid_placement.grids(BIG, subset, ways))
    assert found
    for grid in found:
        assert [len(way) for way in grid] == [stages] * ways
        assert {each.name for way in grid for each in way} == {each.name for each in subset}


def test_hosts_sorted_by_rate_make_pipelines_of_equal_make_and_near_ones_pipelines_of_one_region() -> None:
    far = Link(20e6, 100e6, Seconds(0.3))
    subset = tuple(
        host(f"{region}{at}", "RTX 4090" if at % 2 else "RTX 3090", region=region, link=link)
        for region, link in (("eu", HOME), ("us", far))
        for at in range(5)
    )
    with loop_loader.as_it_stands():
        near, alike = grid_placement.grids(BIG, subset, 2)
    assert [{each.region for each in way} for way in near] in ([{"eu"}, {"us"}], [{"us"}, {"eu"}])
    makes = [sorted(each.card.name for each in way) for way in alike]
    assert abs(makes[0].count("GeForce RTX 4090") - makes[1].count("GeForce RTX 4090")) <= 1


# Several pipelines


def test_several_pipelines_share_a_step_and_agree_stage_by_stage() -> None:
    subset = hosts(10, "RTX A6000")
    one = option(pipeline_layouts.pipeline(BIG, subset[:5], USUAL))
    two = option(pipeline_layouts.pipelines(BIG, subset, USUAL))
    assert (one.ways, one.sync, two.ways, two.kind) == (1, None, 2, LayoutKind.PIPELINES)
    assert two.sync is not None
    assert two.sync.steps > 1
    assert one.steps == two.steps  # a step takes the same sequences, half of them in each
    assert two.step < one.step
    assert two.up > 0


def test_a_round_waits_for_the_stage_whose_changes_are_most_for_its_lines() -> None:
    """Each stage's exchange is what the shelf says of its own tensors over its own lines."""
    subset = (*hosts(6, "RTX A6000", link=LAN), *(host(f"s{at}", "RTX A6000", link=HOME) for at in range(6)))
    found = option(pipeline_layouts.pipelines(BIG, subset, USUAL))
    assert found.sync is not None
    stages = len(found.hosts) // found.ways
    counts = tuple(map(int, found.how.split()[3].rstrip(",").split("/")))
    laid = pipeline_sync.parts(BIG, counts)
    members = [found.hosts[at::stages] for at in range(stages)]
    each = [
        estimate(
            MethodSetting(layout, pipeline_sync.slowest_line(hosts), found.ways, Seconds(1.0)), found.sync
        ).exchange
        for layout, hosts in zip(laid, members, strict=True)
    ]
    said = next(fact for fact in found.facts if fact.name == "stages")
    assert f"stage {each.index(max(each)) + 1} is the last" in said.formula


def test_the_parts_of_a_model_are_all_of_it_once() -> None:
    counts = (10, 2, 20)
    found = pipeline_sync.parts(BIG, counts)
    names = [tensor.name for part in found for tensor in part.tensors]
    assert sorted(names) == [tensor.name for tensor in BIG.layout.tensors]
    assert "embed.weight" in [tensor.name for tensor in found[0].tensors]
    assert "norm.weight" in [tensor.name for tensor in found[-1].tensors]
    for part, blocks in zip(found, (range(10), range(10, 12), range(12, 32)), strict=True):
        held = {int(each.name.split(".")[1]) for each in part.tensors if each.name.startswith("blocks.")}
        assert held == set(blocks)


def test_of_a_layout_with_more_ways_the_pipeline_that_fails_is_what_rolls_back() -> None:
    """One pipeline of ten stops ten times as often as a host; of two of five each half of the work goes on."""
    subset = hosts(10, "RTX A6000", churn=Seconds(7200.0), link=LAN)
    two = option(pipeline_layouts.pipelines(LONG, subset, USUAL))
    one = option(pipeline_layouts.pipeline(LONG, subset, USUAL))
    assert one.efficiency < two.efficiency < 1
    assert "once a pipeline of 5" in next(fact for fact in two.facts if fact.name == "work that counts").formula
    restless = option(pipeline_layouts.pipelines(LONG, hosts(10, "RTX A6000", churn=Seconds(3600.0), link=LAN), USUAL))
    assert restless.efficiency < two.efficiency


def test_a_checkpoint_takes_as_long_as_the_stage_whose_bytes_are_most_for_its_line() -> None:
    """Most layers stand on the large card, whose line is no faster than the others'."""
    subset = (host("large", "RTX A6000", cards=2), *hosts(3, "RTX 3090"))
    found = option(pipeline_layouts.pipeline(BIG, subset, USUAL))
    counts = tuple(map(int, found.how.split()[1].split("/")))
    largest = max(part.size for part in pipeline_sync.parts(BIG, counts) if part is not None)
    assert found.stored is not None
    assert found.stored.bytes == pytest.approx(checkpoint_policy.states(BIG.recipe, largest))
    assert found.stored.bytes > 1.2 * checkpoint_policy.states(BIG.recipe, BIG.parameters) / len(counts)


def test_too_few_hosts_and_too_little_memory_make_no_pipelines() -> None:
    few = pipeline_layouts.pipelines(BIG, hosts(5), USUAL)  # 5 is no product of two pipelines of two
    assert isinstance(few, InfeasibleOption)
    assert few.constraint == "hosts"
    small = pipeline_layouts.pipelines(BIG, hosts(8, "RTX 3060 12GB"), USUAL)
    assert isinstance(small, InfeasibleOption)
    assert small.constraint == "memory"
    assert "each of 2 pipelines of 4 hosts has room for" in small.cause
    assert small.help.endswith("in each")


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([BIG, TINY]), st.sampled_from([2e6, 2e7, 1e12]), st.integers(1, 2), st.sampled_from([0, 0.2]))
@example(TINY, 1e12, 1, 0.0)
def test_what_is_not_timed_would_not_have_been_faster(work: JobWork, rate: float, ways: int, trip: float) -> None:
    """Micro-batches that a bound rules out, timed anyway."""
    subset = hosts(4 * ways, "RTX A6000", link=Link(rate, 4 * rate, Seconds(trip)))
    grid = tuple(subset[at * 4 : (at + 1) * 4] for at in range(ways))
    found = pipeline_layouts._laid(work, grid, LayoutKind.PIPELINE, USUAL)
    assert not isinstance(found, InfeasibleOption)
    sequences = work.sequences // ways
    sizes = (size for size in range(1, sequences + 1) if sequences % size == 0)
    each = [pipeline_layouts._tried(work, grid, found.recompute, size, USUAL, None) for size in sizes]
    timed = [one.run.seconds for one in each if one is not None and not isinstance(one, InfeasibleOption)]
    assert found.run.seconds == min(timed)


def test_who_is_given_no_layer_is_left_out() -> None:
    """A card that takes longer for one layer than the others for all of theirs."""
    subset = (*hosts(3, "H100 SXM", link=LAN), host("slow", "GTX 1650", link=LAN))
    found = option(pipeline_layouts.pipeline(BIG, subset, USUAL))
    assert "slow" not in [each.name for each in found.hosts]
    assert "0" not in found.how.split()[1].split("/")


@pytest.mark.slow
def test_a_fleet_of_strangers_is_best_used_as_several_pipelines() -> None:
    found = search(LONG, hosts(16, "RTX 4090", link=Link(1e8, 1e8, Seconds(0.03))))
    assert found.best[0].kind is LayoutKind.PIPELINES
    assert found.today is None


# Bits of what is handed on


def test_fewer_bits_are_taken_where_lines_bind_and_not_where_compute_does() -> None:
    """On lines of 1 Tbit/s cuts are hidden behind compute; between homes they are most of a step."""
    home, fast = (
        option(pipeline_layouts.pipeline(BIG, hosts(4, "RTX A6000", link=link), USUAL))
        for link in (HOME, Link(1e12, 1e12, Seconds(0.0)))
    )
    assert "with 8-bit cuts" in home.how
    assert "cuts" not in fast.how
    told = next(fact for fact in home.facts if fact.name == "8-bit cuts")
    assert told.formula.startswith("0.5078 + 0.5078; ")
    assert "not measured here" in told.source


def test_changes_in_4_and_8_bits_are_taken_where_examples_come_again_and_their_cache_is_counted() -> None:
    """Of ten epochs the first is plain; without a second one, or where nobody says, nothing is known to change."""
    subset, epoch = hosts(4, "RTX A6000", memory_bytes=None), BIG.tokens // BIG.context
    again = option(pipeline_layouts.pipeline(replace(BIG, examples=epoch // 10), subset, USUAL))
    assert "AQ-SGD cuts of 4 and 8 bits" in again.how
    told = {fact.name: fact for fact in again.facts}
    assert told["until all are through"].formula.startswith("0.1 x ")
    assert told["kept at each end of a cut"].formula.startswith(f"{epoch // 10} x ")
    assert "not measured here" in told["AQ-SGD cuts of 4 and 8 bits"].source
    for examples in (0, epoch, 2 * epoch):
        once = option(pipeline_layouts.pipeline(replace(BIG, examples=examples), subset, USUAL))
        assert "AQ-SGD" not in once.how
        assert again.step < once.step
        assert again.up < once.up


@pytest.mark.parametrize("examples", [0, 100])
def test_a_mean_step_of_changes_lies_between_a_plain_and_a_coded_one(examples: int) -> None:
    work = replace(BIG, examples=examples)
    subset = hosts(4, "RTX A6000")
    laid = pipeline_layouts._laid(work, (subset,), LayoutKind.PIPELINE, USUAL)
    assert not isinstance(laid, InfeasibleOption)
    found = pipeline_layouts._coded(work, laid, USUAL)
    assert found.run.seconds <= found.passed <= laid.passed == laid.run.seconds
    assert activation_bits.least(work) <= min(found.code.sent) <= 1.0


def test_changes_are_not_taken_where_no_host_has_room_for_what_they_keep() -> None:
    """A disk, or RAM, that is said to be too small; where neither is said, nothing is known against it."""
    work = replace(BIG, examples=BIG.tokens // BIG.context // 10)
    kept = activation_bits.codes(work)[-1].kept
    for size, is_taken in ((kept, False), (2 * kept, True)):
        subset = hosts(4, "RTX A6000", memory_bytes=None, disk_bytes=Bytes(int(size)))
        assert ("AQ-SGD" in option(pipeline_layouts.pipeline(work, subset, USUAL)).how) is is_taken
    unknown = hosts(4, "RTX A6000", memory_bytes=None)
    assert "AQ-SGD" in option(pipeline_layouts.pipeline(work, unknown, USUAL)).how


def test_an_end_sends_forward_what_it_gets_back_in_other_bits() -> None:
    """Changes of 4 bits go forward, gradients of 8 back: the first stage sends less than it gets, the last more."""
    work = replace(BIG, examples=BIG.tokens // BIG.context // 10)
    first, *inner, last = option(
        pipeline_layouts.pipeline(work, hosts(4, "RTX A6000", memory_bytes=None), USUAL)
    ).shares
    assert first.up < first.down
    assert (last.up, last.down) == (first.down, first.up)
    table = 2 * 256 * 4096  # that both ends share
    both = first.up + first.down - 2 * table
    assert all(each.up == each.down == pytest.approx(both) for each in inner)


# Places of the winner


def test_swaps_are_kept_only_where_they_gain() -> None:
    links = (HOME, LAN, Link(5e6, 5e6, Seconds(0.2)), Link(1e8, 1e8, Seconds(0.05)))
    subset = tuple(
        host(f"h{at}", "RTX 4090" if at % 2 else "RTX 3090", link=links[at % 4], price=Credits(at)) for at in range(8)
    )
    with loop_loader.as_it_stands():
        found = option(pipeline_layouts.pipeline(BIG, subset, USUAL))
        better = pipeline_layouts.improved(BIG, found, USUAL)
    assert better.seconds <= found.seconds
    assert {each.name for each in better.hosts} <= {each.name for each in subset}


def test_places_that_are_worse_by_the_step_of_this_page_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    weak = host("weak", "RTX A6000", link=Link(2e6, 2e6, Seconds(0.01)))
    subset = (weak, *hosts(3, "RTX A6000", link=LAN))
    with loop_loader.as_it_stands():
        found = option(pipeline_layouts.pipeline(BIG, subset, USUAL))
        others = tuple(each for each in subset if each is not weak)
        worse = ((others[0], weak, *others[1:]),)
        monkeypatch.setattr(grid_placement, "swapped", lambda *_, **__: (worse,))
        assert pipeline_layouts.improved(BIG, found, USUAL) is found


def test_a_bad_grid_is_mended_by_swaps() -> None:
    """The weak line in the middle of both pipelines: any swap to an end gains."""
    weak = Link(2e6, 2e6, Seconds(0.01))
    ways = tuple(tuple(host(f"p{way}s{at}", link=weak if at == 1 else LAN) for at in range(4)) for way in range(2))
    with loop_loader.as_it_stands():
        found = next(grid_placement.swapped(BIG, ways, 8, 30, 36_000.0))
    assert {each.name for way in found for each in way} == {each.name for way in ways for each in way}
    inner = [each.link for way in found for each in way[1:-1]]
    assert inner.count(weak) < 2

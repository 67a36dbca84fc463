"""Whether machines fit a job: rules of thumb, what is computed, what is not known, and what is kept off the card."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.advice.hardware import card_profile
from farflung.advice.hardware.admission import (
    CardDemand,
    CardSlot,
    ComputerSite,
    MachineAdmission,
    MachineGrade,
    RuleFinding,
    RuleState,
    SiteComputer,
    core_need,
    judge,
    line_need,
    met,
)
from farflung.advice.hardware.card import MakerSupport, with_profile
from farflung.advice.io.card_files import read
from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.units import Bytes, Seconds

GB = 10**9
SLOT = CardSlot(Bytes(24 * GB), 4, 16)


def place(
    cards: int = 1, up: float | None = 1e9, down: float | None = 1e9, slot: CardSlot = SLOT, **fields: Any
) -> ComputerSite:
    """One computer that meets every rule of thumb, unless it is said."""
    said: dict[str, Any] = {"cores": 4 * cards, "memory_bytes": Bytes(48 * GB * cards), **fields}
    return ComputerSite((SiteComputer("box", (slot,) * cards, **said),), up, down)


def found(admission: MachineAdmission, rule: str) -> RuleFinding:
    return next(one for one in admission.findings if one.rule == rule)


# Rules of thumb


def test_a_machine_at_every_threshold_is_of_class_a() -> None:
    admission = judge(place())
    assert admission.grade is MachineGrade.A
    assert [one.rule for one in admission.findings] == ["cores", "memory", "lanes"]
    assert admission.warnings == ()
    assert met(admission, MachineGrade.A)


@pytest.mark.parametrize(
    ("rule", "worse"),
    [
        ("cores", place(2, cores=7)),
        ("memory", place(2, memory_bytes=Bytes(96 * GB - 1))),
        ("lanes", place(slot=CardSlot(Bytes(24 * GB), 4, 7))),
        ("up", place(11, up=499e6)),
        ("down", place(11, down=499e6)),
        ("up", place(101, up=999e6)),
        ("down", place(101, down=999e6)),
    ],
)
def test_one_below_a_threshold_misses_the_rule_and_lowers_the_class(rule: str, worse: ComputerSite) -> None:
    admission = judge(worse)
    assert found(admission, rule).state is RuleState.FAILED
    assert admission.grade is MachineGrade.C
    assert {one.rule for one in admission.warnings} == {rule}


@pytest.mark.parametrize(("cards", "need"), [(10, None), (11, 500e6), (100, 500e6), (101, 1e9)])
def test_the_lines_thumb_begins_above_ten_and_above_a_hundred_cards(cards: int, need: float | None) -> None:
    admission = judge(place(cards))
    lines = [one for one in admission.findings if one.rule in ("up", "down")]
    assert [one.thumb for one in lines] == ([] if need is None else [need, need])
    assert admission.grade is MachineGrade.A


def test_cards_of_all_computers_of_a_site_share_its_line() -> None:
    one = place(6).computers[0]
    admission = judge(ComputerSite((one, msgspec.structs.replace(one, name="other")), 100e6, 1e9))
    assert found(admission, "up").state is RuleState.FAILED
    assert {finding.at.split(",")[0] for finding in admission.findings} == {"box", "other", "the line"}


def test_eight_lanes_are_enough_and_a_riser_with_four_is_not() -> None:
    assert judge(place(slot=CardSlot(Bytes(8 * GB), 4, 8))).grade is MachineGrade.A
    assert judge(place(slot=CardSlot(Bytes(8 * GB), 3, 4))).grade is MachineGrade.C


def test_a_computer_without_cards_has_nothing_to_fit() -> None:
    assert judge(ComputerSite((SiteComputer("empty", ()),))).findings == ()


def test_a_chip_that_shares_the_memory_has_no_bus_and_no_thumb_for_it() -> None:
    admission = judge(place(slot=CardSlot(is_unified=True), memory_bytes=Bytes(16 * GB)))
    assert admission.grade is MachineGrade.A
    assert found(admission, "lanes").why == "cards and processor share one memory"


def test_a_card_of_the_table_sits_on_the_lanes_that_the_machine_gives_it() -> None:
    table = read()
    found = CardSlot.of(table.find("RTX 3090"), 4)
    assert (found.memory_bytes, found.pcie, found.lanes, found.support) == (24 * GB, 4, 4, MakerSupport.YES)
    assert CardSlot.of(table.find("RTX 4060"), 16).lanes == 8
    assert CardSlot.of(table.find("RTX 3090")).lanes is None  # a data sheet does not know the machine
    chip = CardSlot.of(table.find("M2 Ultra"), 16)
    assert (chip.is_unified, chip.pcie, chip.lanes) == (True, None, None)


# What the job needs decides


def test_what_the_job_needs_decides_and_the_thumb_is_shown_beside() -> None:
    lean = judge(place(memory_bytes=Bytes(20 * GB)), CardDemand(memory_bytes=16.0 * GB))
    one = found(lean, "memory")
    assert (one.state, one.need, one.thumb) == (RuleState.OK, 16 * GB, 48 * GB)
    assert one.is_below_thumb
    assert "the rule of thumb: 48 GB" in one.why
    assert lean.grade is MachineGrade.B
    assert lean.warnings == (one,)
    assert met(lean, MachineGrade.B)


def test_each_card_of_a_machine_keeps_its_own_outside_it() -> None:
    demand = CardDemand(cores=3.0, memory_bytes=16.0 * GB)
    two = judge(place(2, cores=6, memory_bytes=Bytes(32 * GB)), demand)
    assert {one.rule: one.computed for one in two.findings if one.rule != "lanes"} == {"cores": 6, "memory": 32 * GB}
    assert two.grade is MachineGrade.B
    assert judge(place(2, memory_bytes=Bytes(32 * GB - 1)), demand).grade is MachineGrade.C


@pytest.mark.parametrize(("pcie", "lanes", "state"), [(3, 3, "ok"), (3, 2, "failed"), (4, 2, "ok"), (4, 1, "failed")])
def test_lanes_follow_from_bytes_of_a_step_and_the_generation(pcie: int, lanes: int, state: str) -> None:
    demand = CardDemand(bus_bytes=4.0 * GB, step_seconds=Seconds(2.0))  # 2 GB/s
    one = found(judge(place(slot=CardSlot(Bytes(8 * GB), pcie, lanes)), demand), "lanes")
    assert one.state == state
    assert one.computed == pytest.approx(2 / (0.8 * {3: 0.985, 4: 1.969}[pcie]))
    assert one.why.endswith("2 GB/s")


def test_a_line_needs_the_bytes_of_all_cards_in_a_round_with_a_fifth_to_spare() -> None:
    """DisTrO's 86.8 MB to each of 100 cards behind 1 Gbit/s: at best a round of 86.8 s."""
    assert line_need(100, 86.8e6, 86.8) == pytest.approx(1e9)
    one = judge(place(100), CardDemand(received=86.8e6, round_seconds=Seconds(86.0)))
    assert found(one, "down").state is RuleState.FAILED
    assert found(one, "up").computed is None
    assert found(one, "up").state is RuleState.OK
    slower = judge(place(100), CardDemand(received=86.8e6, round_seconds=Seconds(87.0)))
    assert found(slower, "down").state is RuleState.OK


def test_up_and_down_are_judged_by_what_goes_each_way() -> None:
    demand = CardDemand(sent=1e6, received=10e6, round_seconds=Seconds(10.0))
    admission = judge(place(1, up=1e6, down=1e7), demand)
    assert found(admission, "up").computed == pytest.approx(1e6)
    assert found(admission, "down").computed == pytest.approx(1e7)
    assert admission.grade is MachineGrade.A
    assert judge(place(1, up=1e7, down=1e6), demand).grade is MachineGrade.C


# What is not known


UNSAID = [
    ("cores", {"cores": None}),
    ("memory", {"memory_bytes": None}),
    ("memory", {"slot": CardSlot(None, 4, 16)}),
    ("lanes", {"slot": CardSlot(Bytes(24 * GB), 4, None)}),
]


@pytest.mark.parametrize(("rule", "fields"), UNSAID)
def test_what_is_not_known_is_warned_of_and_neither_met_nor_missed(rule: str, fields: dict[str, Any]) -> None:
    admission = judge(place(**fields))
    one = found(admission, rule)
    assert one.state is RuleState.UNKNOWN
    assert "not known" in one.why
    assert one in admission.warnings
    assert admission.grade is MachineGrade.C
    assert met(admission, MachineGrade.C)  # not known is not missed
    assert not met(admission, MachineGrade.B)


@pytest.mark.parametrize(
    ("rule", "fields"),
    [
        ("cores", {"cores": 0}),
        ("memory", {"memory_bytes": Bytes(0)}),
        ("lanes", {"slot": CardSlot(Bytes(24 * GB), 4, 0)}),
    ],
)
def test_not_known_is_not_zero(rule: str, fields: dict[str, Any]) -> None:
    assert found(judge(place(**fields)), rule).state is RuleState.FAILED


def test_a_line_that_is_not_known_is_said_where_a_rule_asks_for_it() -> None:
    assert found(judge(place(11, up=None)), "up").state is RuleState.UNKNOWN
    assert judge(place(10, up=None)).grade is MachineGrade.A  # no rule for ten cards, and nothing computed
    one = judge(place(1, up=None), CardDemand(sent=1.0, round_seconds=Seconds(1.0)))
    assert found(one, "up").state is RuleState.UNKNOWN


def test_a_bus_whose_generation_is_not_known_is_not_judged_by_its_lanes() -> None:
    unknown = place(slot=CardSlot(Bytes(8 * GB), None, 16))
    assert judge(unknown).grade is MachineGrade.A
    one = found(judge(unknown, CardDemand(bus_bytes=1.0, step_seconds=Seconds(1.0))), "lanes")
    assert one.state is RuleState.UNKNOWN
    nothing = found(judge(unknown, CardDemand(bus_bytes=0.0, step_seconds=Seconds(1.0))), "lanes")
    assert nothing.state is RuleState.OK


# A job that asks for it


def test_a_missed_rule_is_refused_where_the_job_asks_for_any_class() -> None:
    admission = judge(place(2, cores=3))
    assert not any(met(admission, least) for least in MachineGrade)
    assert [one.rule for one in admission.missed] == ["cores"]


def test_a_class_below_the_one_asked_for_is_refused() -> None:
    below = judge(place(memory_bytes=Bytes(20 * GB)), CardDemand(memory_bytes=1.0 * GB))
    assert below.grade is MachineGrade.B
    assert [met(below, least) for least in MachineGrade] == [False, True, True]


# Software


@pytest.mark.parametrize(
    ("card", "support", "state", "grade"),
    [
        ("RTX 3090", MakerSupport.YES, RuleState.OK, MachineGrade.A),
        ("RX 7900 XTX", MakerSupport.YES, RuleState.OK, MachineGrade.A),
        ("Arc B580", MakerSupport.YES, RuleState.OK, MachineGrade.A),
        ("RX 6700 XT", MakerSupport.UNOFFICIAL, RuleState.UNKNOWN, MachineGrade.C),
        ("RX 580", MakerSupport.NO, RuleState.FAILED, MachineGrade.C),
    ],
)
def test_a_card_that_nothing_runs_on_is_of_class_c_and_says_why(
    card: str, support: MakerSupport, state: RuleState, grade: MachineGrade
) -> None:
    found_card = read().find(card)
    assert found_card.support is support
    slot = CardSlot.of(found_card, 16)
    admission = judge(place(slot=slot))
    assert found(admission, "software").state is state
    assert admission.grade is grade
    assert found_card.name in found(admission, "software").why


def test_what_was_measured_on_a_card_shows_that_something_runs_on_it() -> None:
    own = with_profile(read().find("RX 580"), card_profile.parse('card = "RX 580"\nfp32_tflops = 4.9'))
    assert own.support is MakerSupport.YES


def test_cores_are_one_that_launches_and_what_agreeing_takes_of_a_round() -> None:
    """10^8 elements among 4: 1.5 s to apply and 2 s to decode, and 0.5 s for 25 MB, in rounds of 10 s."""
    assert core_need(10**8, 4, 25e6, 10.0) == pytest.approx(1 + (1.5 + 2.0 + 0.5) / 10)
    assert core_need(0, 1, 0.0, 1.0) == 1


def test_cards_elsewhere_behind_a_line_count_on_it() -> None:
    one = place(6, up=100e6)
    assert judge(one).grade is MachineGrade.A
    both = judge(msgspec.structs.replace(one, beside=6))
    assert found(both, "up").thumb == 500e6
    assert both.grade is MachineGrade.C


# Properties


KNOWN = st.one_of(st.none(), st.integers(0, 64))
SLOTS = st.builds(
    lambda size, pcie, lanes: CardSlot(None if size is None else Bytes(size * GB), pcie, lanes),
    KNOWN, st.one_of(st.none(), st.integers(1, 6)), st.one_of(st.none(), st.integers(0, 16)),
)  # fmt: skip
PLACES = st.builds(
    lambda slots, times, cores, memory, up, down: ComputerSite(
        (SiteComputer("box", tuple(slots) * times, cores, None if memory is None else Bytes(memory * GB)),), up, down
    ),
    st.lists(SLOTS, min_size=1, max_size=2),
    st.sampled_from([1, 6, 51]), KNOWN, KNOWN,
    st.one_of(st.none(), st.floats(0, 2e9)), st.one_of(st.none(), st.floats(0, 2e9)),
)  # fmt: skip
DEMANDS = st.builds(
    CardDemand,
    cores=st.one_of(st.none(), st.floats(0, 8)),
    memory_bytes=st.one_of(st.none(), st.floats(0, 5e10)),
    bus_bytes=st.one_of(st.none(), st.floats(0, 5e10)),
    step_seconds=st.floats(0.1, 100),
    sent=st.one_of(st.none(), st.floats(0, 1e9)),
    received=st.one_of(st.none(), st.floats(0, 1e9)),
    round_seconds=st.floats(0.1, 1000),
)
RANK = {RuleState.OK: 0, RuleState.UNKNOWN: 1, RuleState.FAILED: 1}


def better(where: ComputerSite, rule: str) -> ComputerSite:
    """The same place with more of one thing, if it is known."""

    def more(number: float | None) -> Any:
        return None if number is None else number * 2 + 1

    computer = where.computers[0]
    match rule:
        case "cores":
            computer = msgspec.structs.replace(computer, cores=more(computer.cores))
        case "memory":
            computer = msgspec.structs.replace(computer, memory_bytes=more(computer.memory_bytes))
        case "lanes":
            slots = tuple(msgspec.structs.replace(slot, lanes=more(slot.lanes)) for slot in computer.slots)
            computer = msgspec.structs.replace(computer, slots=slots)
        case _:
            return msgspec.structs.replace(where, **{rule: more(getattr(where, rule))})
    return msgspec.structs.replace(where, computers=(computer,))


@given(where=PLACES, demand=DEMANDS, rule=st.sampled_from(["cores", "memory", "lanes", "up", "down"]))
@settings(max_examples=150, deadline=None)
def test_more_of_anything_is_never_worse(where: ComputerSite, demand: CardDemand, rule: str) -> None:
    before, after = judge(where, demand), judge(better(where, rule), demand)
    assert after.grade <= before.grade
    for old, new in zip(before.findings, after.findings, strict=True):
        assert RANK[new.state] <= RANK[old.state]


@given(where=PLACES, demand=DEMANDS, factor=st.floats(1, 3))
@settings(max_examples=100, deadline=None)
def test_a_job_that_needs_more_is_never_easier_to_fit(where: ComputerSite, demand: CardDemand, factor: float) -> None:
    fields = ("cores", "memory_bytes", "bus_bytes", "sent", "received")
    more = {name: None if (had := getattr(demand, name)) is None else had * factor for name in fields}
    assert judge(where, msgspec.structs.replace(demand, **more)).grade >= judge(where, demand).grade


@given(where=PLACES, demand=DEMANDS, field=st.sampled_from(["cores", "memory_bytes"]))
@settings(max_examples=100, deadline=None)
def test_nobody_comes_into_a_better_class_by_saying_nothing(
    where: ComputerSite, demand: CardDemand, field: str
) -> None:
    silent = msgspec.structs.replace(where.computers[0], **{field: None})
    hidden = msgspec.structs.replace(where, computers=(silent,))
    assert judge(hidden, demand).grade >= judge(where, demand).grade


@given(where=PLACES, demand=DEMANDS)
@settings(max_examples=100, deadline=None)
def test_a_finding_is_unknown_only_where_something_is_not_known(where: ComputerSite, demand: CardDemand) -> None:
    for one in judge(where, demand).findings:
        if one.state is RuleState.UNKNOWN:
            sizes = [slot.memory_bytes for slot in where.computers[0].slots]
            buses = [slot.pcie for slot in where.computers[0].slots]
            assert one.have is None or None in (sizes if one.rule == "memory" else buses)
        else:
            assert one.need is not None
            assert one.have is not None or one.need == 0  # nobody has to know of what is not needed
            assert (one.state is RuleState.OK) == (one.need == 0 or one.have >= one.need)


# Numbers that make no sense


def test_a_demand_that_makes_no_sense_is_refused_by_its_field(subtests: pytest.Subtests) -> None:
    for number in [-1.0, math.nan, math.inf, 1e30]:
        for field in ["cores", "memory_bytes", "bus_bytes", "sent", "received"]:
            with subtests.test(number=number, field=field):
                with pytest.raises(UsageError, match=f"FF-PLAN-036: {field} of"):
                    CardDemand(**{"step_seconds": 1.0, "round_seconds": 1.0, field: number})


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"bus_bytes": 1.0}, "step_seconds"),
        ({"bus_bytes": 1.0, "step_seconds": 0.0}, "step_seconds"),
        ({"sent": 1.0}, "round_seconds"),
        ({"received": 1.0}, "round_seconds"),
        ({"received": 1.0, "round_seconds": -1.0}, "round_seconds"),
        ({"round_seconds": 0.0}, "round_seconds"),
    ],
)
def test_bytes_without_the_time_that_they_have_are_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match=f"FF-PLAN-036: {name} of"):
        CardDemand(**fields)


@pytest.mark.parametrize(
    ("where", "field"),
    [
        (place(up=-1.0), "up"),
        (place(down=math.nan), "down"),
        (place(cores=-4), "cores"),
        (place(memory_bytes=Bytes(-1)), "memory_bytes"),
        (place(memory_bytes=Bytes(1 << 62)), "memory_bytes"),
        (place(slot=CardSlot(Bytes(-1), 4, 16)), "memory_bytes"),
        (place(slot=CardSlot(Bytes(1), 9, 16)), "pcie"),
        (place(slot=CardSlot(Bytes(1), 4, 999)), "lanes"),
    ],
)
def test_a_machine_that_makes_no_sense_is_refused_by_its_field(where: ComputerSite, field: str) -> None:
    with pytest.raises(UsageError, match=f"FF-PLAN-036: {field} of"):
        judge(where)


def test_a_site_of_absurdly_many_cards_is_refused_before_it_is_judged() -> None:
    with pytest.raises(UsageError, match="FF-PLAN-036: slots of"):
        judge(place(limits.CARDS_OF_SITE + 1))

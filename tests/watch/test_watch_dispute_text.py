"""A dispute rung by rung, in words: what stands in a line, that both hashes are there, and what it ends with."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from farflung.core import events
from farflung.core.events import DisputeEndEvent, DisputeStageEvent
from farflung.core.money import MICRO
from farflung.watch import detail_rows, dispute_text
from farflung.watch.event_lines import lines
from farflung.watch.fold import RunTimeline, fold, is_repeated
from farflung.watch.screen_result import verify

ACCUSED, OTHER = "9ae58a6e" + "0" * 56, "57f8cbdf" + "1" * 56
ABOUT = {"peer": ACCUSED, "round": 1, "segment": 1}
AUDIT = events.AuditEndEvent(
    **ABOUT, verifiers=(OTHER,), finding="false", excess=2048.0, tokens=96, seconds=0.3, at=1.0
)
CAUGHT = events.SlashEvent(
    **ABOUT, why="its work is false", slashed=0, bounty=0, burnt=0, evidence="87ce", pending=3840 * MICRO, at=1.1
)
TOTAL = 70_000
PLAYED = (
    DisputeStageEvent(**ABOUT, stage="offered", turn="either", height=8),
    DisputeStageEvent(
        **ABOUT, stage="first", turn="both", height=9, level=5, leaves=TOTAL, total=TOTAL, until=3,
        steps=3,
    ),
    DisputeStageEvent(
        **ABOUT, stage="descend", turn="both", height=10, level=4, first=65_536, leaves=4464, total=TOTAL,
        step=2, until=3, steps=3, accused="aaaa" * 4, other="bbbb" * 4, challenger=OTHER,
    ),
    DisputeStageEvent(
        **ABOUT, stage="show", turn="both", height=14, first=69_000, leaves=1, total=TOTAL,
        step=2, until=2, steps=3, accused="cccc" * 4, other="dddd" * 4, challenger=OTHER,
    ),
    DisputeStageEvent(
        **ABOUT, stage="referee", turn="anybody", height=15, first=69_000, leaves=1, total=TOTAL,
        step=2, until=2, steps=3, accused="cccc" * 4, other="dddd" * 4, challenger=OTHER,
    ),
)  # fmt: skip
RULED = DisputeEndEvent(
    **ABOUT, ended="upheld", by="element", height=16, blocks=8, challenger=OTHER, roots=("eeee" * 4, "ffff" * 4),
    leaf=69_000, step=2, steps=3, value=412, op="mul", made_of=("input", "add"), near="params/blocks.0.attn.qkv.weight",
    shape=(64, 80), element=(3, 17), accused="0.0312", other="0.0297", law="0.0297", sent=6_400, shown=21_000,
    slashed=5760 * MICRO, bounty=2880 * MICRO, burnt=2880 * MICRO,
)  # fmt: skip


def story(*after: events.AnyEvent) -> RunTimeline:
    t = RunTimeline()
    for event in (AUDIT, CAUGHT, *after):
        t = fold(t, event)
    return t


def shown(t: RunTimeline, columns: int = 100) -> list[str]:
    return [row.text for row in detail_rows.dispute_rows(t, 1, columns, evidence="", run="run")]


def whole(texts: list[str]) -> str:
    return " ".join(" ".join(texts).split())


def test_every_move_is_told_with_its_block_its_place_and_both_hashes() -> None:
    text = whole(shown(story(*PLAYED, RULED)))
    for each in PLAYED:
        assert f" {each.height} " in text
    assert "all 70,000 tiles" in text
    assert "eeeeeeee ≠ ffffffff" in text
    assert "tiles 65,536 to 69,999, step 3 of 3 and the judgement" in text
    assert "aaaaaaaa ≠ bbbbbbbb" in text
    assert "tile 69,000, step 3 of 3" in text
    assert "57f8cbdf plays for the accusers" in text


def test_the_element_is_named_with_all_three_values_and_what_it_cost() -> None:
    text = whole(shown(story(*PLAYED, RULED)))
    assert (
        "element (3, 17) of 64x80, made by a multiplication, near params/blocks.0.attn.qkv.weight, step 3 of 3" in text
    )
    assert "accused 0.0312, challenger 0.0297, the law 0.0297" in text
    assert "the accused loses: its number is not the one that the law computed" in text
    assert "the accused loses 0.00576 credits, stake and bond: 0.00288 to its accusers, 0.00288 burnt" in text
    assert "8 blocks, 6.4 kB of hashes, 21 kB shown to the law" in text


@pytest.mark.parametrize("columns", [100, 80, 60, 40, 24])
def test_no_line_is_wider_than_the_terminal_and_none_is_lost(columns: int) -> None:
    rows = shown(story(*PLAYED, RULED), columns)
    assert all(len(row) <= columns for row in rows)
    assert all(any(f" {each.height} " in f"{row} " for row in rows) for each in PLAYED)


def test_a_game_that_is_not_over_says_where_it_stands() -> None:
    t = story(*PLAYED[:3])
    assert "not decided yet" in whole(shown(t))
    assert dispute_text.now(t, ACCUSED).startswith("9ae58a6e's dispute is played: they differ first in")
    assert any("dispute is played" in row.text for row in verify(t, 100, is_over=False))


@pytest.mark.parametrize(
    ("by", "ended", "silent", "said"),
    [
        ("silence", "upheld", ("accused",), "the accused loses: the accused owed a move and said nothing"),
        ("silence", "overturned", ("challenger",), "the challenger owed a move and said nothing"),
        ("silence", "forfeit", ("accused", "challenger"), "both lose: the accused and the challenger owed"),
        ("verdict", "overturned", (), "the accused was right: both have the same tiles"),
        ("clock", "upheld", (), "the accused loses: nobody contested it in time"),
        ("clock", "lapsed", (), "in doubt for the accused: no jury decided in time"),
        ("jury", "upheld", (), "a jury decided"),
    ],
)
def test_every_end_says_who_loses_and_why(by: str, ended: str, silent: tuple[str, ...], said: str) -> None:
    ruled = replace(RULED, by=by, ended=ended, silent=silent)
    assert said in dispute_text.end(ruled)
    assert dispute_text.element(ruled) == dispute_text.values(ruled) == ""


def test_who_was_right_is_no_longer_caught_and_the_screen_says_why() -> None:
    freed = replace(RULED, ended="overturned", slashed=0, bounty=0, burnt=0, lost=960 * MICRO, gained=480 * MICRO)
    t = story(*PLAYED, freed)
    assert not t.caught
    text = whole([row.text for row in verify(t, 100, is_over=True)])
    assert "is caught" not in text
    assert "the accused was right" in text
    assert "its accusers lose 0.00096 credits: 0.00048 to the accused, 0.00048 burnt" in whole(shown(t))
    assert t.lost == (960 * MICRO, 0, 480 * MICRO)


def test_a_stake_that_waited_is_slashed_when_it_is_ruled() -> None:
    before, after = story(*PLAYED), story(*PLAYED, RULED)
    assert (before.caught[ACCUSED].pending, before.lost) == (3840 * MICRO, (0, 0, 0))
    assert (after.caught[ACCUSED].pending, after.lost) == (0, (5760 * MICRO, 2880 * MICRO, 2880 * MICRO))
    assert fold(after, CAUGHT).caught == after.caught  # a session that takes over tells of it again


def test_each_place_is_told_once() -> None:
    t = story(*PLAYED, RULED)
    for event in (*PLAYED, RULED, CAUGHT):
        assert is_repeated(t, event)
        assert fold(t, event).games == t.games
    assert not is_repeated(story(), PLAYED[0])
    assert not is_repeated(story(PLAYED[0]), PLAYED[1])
    assert not is_repeated(story(), CAUGHT)


def test_plain_lines_tell_every_move_in_the_screen_s_words() -> None:
    t = story(*PLAYED, RULED)
    for event in (*PLAYED, RULED):
        told = lines(event, t)
        assert told
        assert all(len(line) <= 100 for line in told)
    assert "aaaaaaaa ≠ bbbbbbbb" in whole(lines(PLAYED[2], t))
    assert "the law 0.0297" in whole(lines(RULED, t))


def test_inputs_and_single_values_have_names_for_people() -> None:
    read = replace(RULED, op="state", name="params/head.weight", made_of=())
    assert "params/head.weight, read from the state before the step" in dispute_text.element(read)
    verdict = replace(RULED, op="or", near="", shape=(), element=(), step=3, accused="false", law="true")
    assert dispute_text.element(replace(RULED, becomes="params/head.weight")).endswith(
        "made by a multiplication, the new params/head.weight, step 3 of 3"
    )
    assert dispute_text.element(verdict).startswith("the single value, made by operation `or`")
    assert dispute_text.element(verdict).endswith("the judgement behind the steps")
    assert "accused false" in dispute_text.values(verdict)
    assert "challenger no such number" in dispute_text.values(replace(RULED, other=""))


def test_machines_get_every_move_and_the_end() -> None:
    facts = detail_rows.dispute_facts(story(*PLAYED, RULED), 1, evidence="")
    assert [each["stage"] for each in facts["game"]] == [each.stage for each in PLAYED]
    assert facts["ruled"]["law"] == "0.0297"
    assert detail_rows.dispute_facts(story(), 1, evidence="")["game"] == []


def test_a_game_over_another_segment_is_not_shown_with_this_one() -> None:
    other = tuple(replace(each, segment=0) for each in PLAYED)
    assert "what both sides owed" not in whole(shown(story(*other, replace(RULED, segment=0))))

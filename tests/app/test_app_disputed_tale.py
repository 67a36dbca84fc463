"""What a report says in sentences of somebody who contested: how the dispute went, and who was right."""

from __future__ import annotations

from msgspec.structs import replace

from farflung.app.views import report_text
from farflung.core import events
from farflung.core.events import AnyEvent, DisputeEndEvent, DisputeStageEvent
from farflung.core.money import MICRO
from farflung.watch.fold import RunTimeline, fold

PEER = "9ae58a6e" + "0" * 56
ABOUT = {"peer": PEER, "round": 1, "segment": 1}
CAUGHT = events.SlashEvent(
    **ABOUT, why="its work is false", slashed=0, bounty=0, burnt=0, evidence="87ce", pending=3840 * MICRO
)
PLAYED = DisputeStageEvent(**ABOUT, stage="offered", turn="either", height=8)
RULED = DisputeEndEvent(
    **ABOUT, ended="upheld", by="element", height=16, blocks=8, steps=3, step=2, op="mul", shape=(4,), element=(3,),
    accused="1.5", other="1.25", law="1.25", slashed=5760 * MICRO, bounty=2880 * MICRO, burnt=2880 * MICRO,
)  # fmt: skip


def stories(*told: AnyEvent) -> tuple[report_text.IncidentText, ...]:
    t = RunTimeline()
    for event in told:
        t = fold(t, event)
    return report_text.stories(t, {})


def test_a_dispute_that_was_lost_is_told_with_its_three_values_and_the_bond() -> None:
    (story,) = stories(CAUGHT, PLAYED, RULED)
    text = " ".join(story.sentences)
    assert "accused 1.5, challenger 1.25, the law 1.25" in text
    assert "It lost 0.005760 credits of its stake and bond" in text
    assert "pending" not in text
    assert story.title.endswith("was caught")


def test_a_dispute_that_is_not_over_is_told_as_open() -> None:
    (story,) = stories(CAUGHT, PLAYED)
    assert "not decided yet" in " ".join(story.sentences)


def test_whom_a_dispute_freed_is_told_as_right_and_not_as_caught() -> None:
    freed = replace(RULED, ended="overturned", slashed=0, bounty=0, burnt=0, lost=960 * MICRO, gained=480 * MICRO)
    (story,) = stories(CAUGHT, PLAYED, freed)
    assert story.title == "9ae58a6e was accused, and freed"
    text = " ".join(story.sentences)
    assert "the challenger's number is not the one that the law computed" in text
    assert "Its accusers lose 0.00096 credits: 0.00048 to the accused, 0.00048 burnt." in text

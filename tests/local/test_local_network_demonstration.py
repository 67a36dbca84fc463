"""What a run stages: who cheats is drawn and told to nobody else, and one of four validators is killed at half time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from farflung.core.events import AnyEvent, AuditEndEvent, RoundEndEvent, RoundStartEvent, SlashEvent, ValidatorKillEvent
from farflung.job.cheat_names import HONEST, KINDS
from farflung.job.job_loader import load
from farflung.local.jobs.resolve import resolve
from farflung.local.network.demonstration import Demonstration, escape_chance, escaped, false_segments, staged_configs
from farflung.peers.rundir.genesis import cheater_of
from farflung.watch.fold import RunTimeline, fold


def test_which_provider_cheats_is_drawn_and_told_to_nobody_else() -> None:
    drawn = set()
    for seed in range(1, 21):
        resolved, identity = resolve(f"seed = {seed}", "local", {}, cheat="skip")
        for disputes in (False, True):
            staged = staged_configs(resolved.spec, replace(identity, disputes=disputes))
            assert staged == {f"provider-{cheater_of(resolved.spec)}": {"cheat": "skip", "contests": disputes}}
        assert staged_configs(resolved.spec, replace(identity, cheat=HONEST, disputes=True)) == {}
        drawn.add(cheater_of(resolved.spec))
    assert drawn == set(range(5))


class Told:
    """Processes and journal in one; `runs`: whether there is somebody to kill."""

    def __init__(self, *, runs: bool = True) -> None:
        self.runs, self.killed, self.events = runs, list[str](), list[AnyEvent]()

    def kill(self, name: str) -> bool:
        self.killed.append(name)
        return self.runs

    def emit(self, event: AnyEvent, *, durable: bool = False) -> None:
        self.events.append(event)


def rounds(validators: int, told: Told) -> Told:
    spec = resolve("rounds = 4", "tiny", {})[0].spec
    shown = Demonstration(spec, validators, told, told)
    for round in range(spec.rounds):
        shown.observe(RoundEndEvent(round, 4, 4, 1.0, 1, "", "", 1.0, 1.0, 1))
    return told


def test_one_of_four_validators_is_killed_once_at_half_time() -> None:
    told = rounds(4, Told())
    assert told.killed == ["ledger-4"]
    assert told.events == [ValidatorKillEvent(name="ledger-4", round=2)]


def test_fewer_than_four_are_left_alone_and_who_does_not_run_is_not_told_of() -> None:
    assert rounds(3, Told()).killed == []
    assert rounds(4, Told(runs=False)).events == []


CHEATER = "33c98439" * 8


def seen(rounds: int, *events: AnyEvent) -> RunTimeline:
    """A run in which the cheater took part in so many rounds."""
    timeline = RunTimeline()
    for round in range(rounds):
        timeline = fold(timeline, RoundStartEvent(round=round, rounds=rounds, peers=(CHEATER,), waited=0.0))
        timeline = fold(timeline, RoundEndEvent(round, rounds, 4, 1.0, 1, "", "", 1.0, 1.0, 1))
    for event in events:
        timeline = fold(timeline, event)
    return timeline


def audited(round: int) -> AuditEndEvent:
    return AuditEndEvent(
        round=round, peer=CHEATER, segment=0, verifiers=(), finding="holds", excess=0.1, tokens=1, seconds=1.0
    )


@pytest.mark.parametrize(
    ("settings", "cheat", "rounds", "audits", "said"),
    [
        ({}, "skip", 3, (1,), "its 2 false rounds had no false segment drawn: it spoils 1 of 3 (chance 64%)"),
        ({"audit.segments": "1", "audit.probation": "0"}, "skip", 3, (), "none of its 2 false rounds was drawn for an"
         " audit (chance 81%)"),
        ({}, "stale", 2, (1,), "the audits of its 1 false round found it within the tolerance (chance below 1%)"),
        ({}, "skip", 1, (), "did nothing false: a cheat begins in round 1, and it took part in 1 of them"),
        ({}, "skip", 0, (), "did nothing false: a cheat begins in round 1, and it took part in 0 of them"),
    ],
)  # fmt: skip
def test_a_planted_cheater_that_gets_away_is_named_with_its_chance(
    settings: dict[str, str], cheat: str, rounds: int, audits: tuple[int, ...], said: str
) -> None:
    text = "rounds = 3\n" + "\n".join(f"{key} = {value}" for key, value in settings.items())
    resolved, identity = resolve(text, "tiny", {}, cheat=cheat)
    told = escaped(resolved.spec, identity, CHEATER, seen(rounds, *map(audited, audits)))
    assert told is not None
    assert told.message.startswith(f"planted cheater provider-{cheater_of(resolved.spec)} (33c98439)")
    assert told.message.endswith(said)


def test_who_was_caught_or_never_planted_is_not_said_to_have_got_away() -> None:
    resolved, identity = resolve("", "tiny", {}, cheat="skip")
    caught = SlashEvent(round=1, peer=CHEATER, segment=0, why="false", slashed=1, bounty=0, burnt=1, evidence="")
    assert escaped(resolved.spec, identity, CHEATER, seen(3, caught)) is None
    assert escaped(resolved.spec, replace(identity, cheat=HONEST), CHEATER, seen(3)) is None


@pytest.mark.parametrize("cheat", [kind for kind in KINDS if kind != HONEST])
@pytest.mark.parametrize("preset", ["local", "tiny"])
@pytest.mark.parametrize("steps", [None, 1, 2, 3, 7, 20])
def test_a_demonstration_shows_what_it_is_there_for(preset: str, cheat: str, steps: int | None) -> None:
    """By a preset alone: no segment of the first false round is honest, and that round is drawn for sure."""
    flags = {} if steps is None else {"sync.steps": str(steps)}
    spec = resolve(None, preset, flags, cheat=cheat)[0].spec
    if steps != 1:  # one step that is made leaves nothing out
        assert escape_chance(spec, cheat, 2) == 0.0
    honest = resolve(None, preset, flags, cheat=HONEST)[0].spec
    assert honest == load(None, preset=preset, flags=flags).spec


def test_audits_that_somebody_set_stay_as_they_are() -> None:
    assert resolve("", "tiny", {}, cheat="skip")[0].spec.segments == 3  # a job of its own
    set_by_hand = resolve(None, "tiny", {"audit.segments": "3"}, cheat="skip")[0].spec
    assert (set_by_hand.segments, false_segments(set_by_hand, "skip")) == (3, 1)

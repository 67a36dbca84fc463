"""What a requester tells of a dispute: every place to which its game comes, once, and how and to whose cost it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from core_tiny_program import ROUND, SEGMENT, Player
from core_tiny_program import World as Tiny
from ledger_game import BOND, DISPUTE, FRIEND, HONEST, STAKE, TINY, A, B, C, Game, flipped
from ledger_world import REQUESTER, STRANGER, VERIFIERS

from farflung.core.errors import NetworkError
from farflung.core.events import AnyEvent, DisputeEndEvent, DisputeStageEvent, SlashEvent
from farflung.ledger.disputes import DisputeState
from farflung.ledger.pinpoint_game import PinpointStage
from farflung.ledger.table_rows import LeaseRow
from farflung.ledger.transactions import SignedTx
from farflung.ledger.tx_results import Outcome
from farflung.peers.requester.disputes import DisputeMonitor
from farflung.peers.rundir.journal import Journal
from farflung.watch.fold import RunTimeline, fold

SOME = 20


def liar(leaf: int = SOME, bit: int = 1) -> Player:
    return TINY.player(flipped(leaf, bit))


class Court(Game):
    """A game over the real law, whose blocks are kept."""

    def __init__(self, accused: Player, challenger: Player, tiny: Tiny = TINY) -> None:
        self.kept: list[Any] = []
        super().__init__(accused, challenger, tiny)

    def send(self, *signed: SignedTx, after: int = 1000) -> tuple[Outcome, ...]:
        found = super().send(*signed, after=after)
        header = SimpleNamespace(height=self.state.height, time=self.state.time)
        self.kept.append(SimpleNamespace(header=header, txs=signed))
        return found


class Asked:
    """A court, asked as a requester asks a validator."""

    def __init__(self, court: Court) -> None:
        self.court, self.counts_blocks = court, True
        self.away = 0  # so many questions nobody answers
        self.behind = 0  # so many blocks the one that is asked for blocks lacks

    async def row(self, kind: type[Any], key: bytes) -> Any:
        if self.away:
            self.away -= 1
            raise NetworkError("FF-NET-001", "nobody answers")
        return self.court.state.find(kind, key)

    async def head(self) -> Any:
        return SimpleNamespace(header=self.court.kept[-1].header)

    async def blocks(self, first: int = 1) -> Sequence[Any]:
        return self.court.kept[first - 1 : len(self.court.kept) - self.behind]

    async def leases(self, _: bytes) -> list[LeaseRow]:
        return [self.court.lease(key, self.court.job_id) for key in (A, *VERIFIERS)]

    async def refresh(self) -> int:
        self.court.send()
        return self.court.state.height


class Told:
    """A journal in memory, and whoever follows the disputes of a court."""

    def __init__(self, court: Court) -> None:
        self.court, self.events = court, list[AnyEvent]()
        self.ledger: Any = Asked(court)
        self.fresh()

    def fresh(self) -> None:
        """Another process takes over."""
        self.following = DisputeMonitor(self.ledger, self.court.job_id, self, sleep=self.pause)
        self.following.follow(A.public, ROUND, SEGMENT)
        self.paused: list[float] = []

    async def pause(self, seconds: float) -> None:
        self.paused.append(seconds)

    def emit(self, event: AnyEvent, **_: object) -> None:
        self.events.append(event)

    def look(self) -> None:
        asyncio.run(self.following.look())

    @property
    def played(self) -> list[DisputeStageEvent]:
        return [each for each in self.events if isinstance(each, DisputeStageEvent)]

    @property
    def ruled(self) -> DisputeEndEvent:
        found = [each for each in self.events if isinstance(each, DisputeEndEvent)]
        assert found.count(found[0]) == len(found)
        return found[0]


def accused(court: Court) -> Told:
    court.must(REQUESTER, court.slash())
    return Told(court)


def test_a_game_is_told_rung_by_rung_down_to_one_element_and_what_it_cost() -> None:
    told = accused(Court(liar(), HONEST))
    court = told.court
    told.look()
    court.must(A, court.opening())
    while court.row.stage not in (PinpointStage.REFEREE, PinpointStage.CLOSED):
        told.look()
        court.step()
    told.look()
    court.must(STRANGER, court.exhibit())
    told.look()
    stages = [(each.stage, each.level, each.first, each.leaves) for each in told.played]
    total = len(HONEST.tiles)
    assert stages == [
        ("offered", 0, 0, 0),
        ("first", 2, 0, total),
        ("descend", 1, 16, 16),
        ("show", 0, SOME, 1),
        ("referee", 0, SOME, 1),
    ]
    assert [each.turn for each in told.played] == ["either", "both", "both", "both", "anybody"]
    assert all(each.accused != each.other for each in told.played[2:])
    heights = [each.height for each in told.played]
    assert heights == sorted(heights)
    ruled = told.ruled
    assert (ruled.ended, ruled.by, ruled.leaf, ruled.silent) == ("upheld", "element", SOME, ())
    assert ruled.other == ruled.law != ruled.accused
    assert ruled.op
    assert len(ruled.element) == len(ruled.shape)
    assert ruled.challenger == B.public.hex()
    assert ruled.slashed == STAKE + BOND == ruled.bounty + ruled.burnt
    assert ruled.burnt == court.node(A).burnt
    assert ruled.lost == ruled.gained == 0
    assert ruled.height == court.state.height
    assert 0 < ruled.sent < 8 << 10
    assert ruled.shown > 0


@pytest.mark.parametrize("moves", range(6))
def test_whoever_takes_over_tells_the_same_and_the_journal_keeps_each_once(tmp_path: Path, moves: int) -> None:
    seen, late = (accused(Court(liar(), HONEST)) for _ in range(2))
    journal = Journal(tmp_path / "events.jsonl", 0.0)
    for told in (seen, late):
        told.court.must(A, told.court.opening())
        for step in range(6):
            if told is seen or step == moves:
                told.look()
            if told is late and step == moves:
                told.fresh()
            if told.court.row.stage in (PinpointStage.FIRST, PinpointStage.DESCEND, PinpointStage.SHOW):
                told.court.step()
            elif told.court.row.stage == PinpointStage.REFEREE:
                told.court.must(STRANGER, told.court.exhibit())
        told.look()
    once = {each.stage: each for each in late.played}
    assert list(once.values()) == seen.played
    assert late.ruled == seen.ruled
    for event in late.events:
        journal.emit(event)
    journal.close()
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len([line for line in lines if '"played"' in line]) == len(seen.played)
    assert len([line for line in lines if '"ruled"' in line]) == 1


@pytest.mark.parametrize("stage", [PinpointStage.FIRST, PinpointStage.DESCEND, PinpointStage.SHOW])
@pytest.mark.parametrize(("silent", "ended"), [((0,), "upheld"), ((1,), "overturned"), ((0, 1), "forfeit")])
def test_who_was_silent_is_told(stage: PinpointStage, silent: tuple[int, ...], ended: str) -> None:
    told = accused(Court(liar(), HONEST))
    court = told.court
    court.must(A, court.opening())
    court.until(stage)
    for side in {0, 1} - set(silent):
        court.must((A, B)[side], court.move(side))
    told.look()
    court.wait()
    court.left()
    told.look()
    sides = ("accused", "challenger")
    assert (told.ruled.ended, told.ruled.by) == (ended, "silence")
    assert told.ruled.silent == tuple(sides[side] for side in silent)
    assert told.ruled.height == court.state.height


def test_where_nobody_brings_the_proof_or_the_verdict_silence_is_told() -> None:
    told = accused(Court(liar(), HONEST))
    told.court.must(A, told.court.opening())
    told.court.until(PinpointStage.REFEREE)
    told.court.wait()
    told.look()
    assert (told.ruled.ended, told.ruled.silent) == ("forfeit", ("accused", "challenger"))
    same = accused(Court(HONEST, HONEST))
    same.court.must(A, same.court.opening())
    same.court.until(PinpointStage.VERDICT)
    same.court.wait()
    same.look()
    assert (same.ruled.ended, same.ruled.by, same.ruled.silent) == ("upheld", "silence", ("accused",))


def test_trees_that_agree_end_with_the_verdict_that_both_have() -> None:
    told = accused(Court(HONEST, HONEST))
    told.court.must(A, told.court.opening())
    told.court.played()
    told.look()
    assert [(each.stage, each.game) for each in told.played] == [
        ("offered", 0),
        ("first", 0),
        ("verdict", 0),
        ("first", 1),  # the other accuser, who does not play
    ]
    assert (told.ruled.ended, told.ruled.by) == ("overturned", "silence")
    assert told.ruled.silent == ("challenger",)
    lost = told.court.lease(B, told.court.job_id).slashed
    assert (told.ruled.lost, told.ruled.gained, told.ruled.slashed) == (lost, lost // 2, 0)
    assert lost


def test_a_tree_that_says_guilty_ends_with_the_verdict_that_both_have() -> None:
    tiny = Tiny(off=9.0)
    told = accused(Court(tiny.player(), tiny.player(), tiny))
    told.court.must(A, told.court.opening())
    told.court.played()
    told.look()
    assert (told.ruled.ended, told.ruled.by) == ("upheld", "verdict")
    assert told.ruled.height == told.court.state.height


def test_accusers_that_play_one_after_the_other_are_told_as_games_of_their_own() -> None:
    told = accused(Court(liar(), liar(40)))
    court = told.court
    court.must(A, court.opening())
    court.accused = HONEST  # against the first; it shows another tree to the second
    court.until(PinpointStage.REFEREE)
    court.must(STRANGER, court.exhibit())
    told.look()
    assert court.row.beaten == (B.public,)
    court.accused, court.challenger = liar(), HONEST
    court.until(PinpointStage.REFEREE)
    court.must(STRANGER, court.exhibit())
    told.look()
    whole = told.played
    told.events.clear()
    told.fresh()
    told.look()  # from the rows and blocks alone
    assert told.played == whole
    assert [each.game for each in whole] == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert [each.stage for each in whole[5:]] == ["first", "descend", "show", "referee"]
    assert {each.challenger for each in whole[2:5]} == {B.public.hex()}
    assert {each.challenger for each in whole[6:]} == {C.public.hex()}
    ruled = told.ruled
    assert (ruled.ended, ruled.by, ruled.leaf) == ("upheld", "element", SOME)
    assert (ruled.lost, ruled.gained) == (court.node(B).burnt, 0)
    assert ruled.lost
    assert ruled.burnt == court.node(A).burnt
    t = RunTimeline()
    for event in (caught(STAKE), *told.events):
        t = fold(t, event)
    assert len(t.games[A.public.hex()]) == len(whole)
    assert t.lost == (ruled.slashed + ruled.lost, ruled.bounty, court.node(A).burnt + court.node(B).burnt)


def test_two_liars_lose_and_the_element_says_so() -> None:
    told = accused(Court(liar(), liar(bit=2)))
    told.court.must(A, told.court.opening())
    told.court.played()
    told.look()
    ruled = told.ruled
    assert (ruled.ended, ruled.by, ruled.bounty, ruled.gained) == ("forfeit", "element", 0, 0)
    assert len({ruled.accused, ruled.other, ruled.law}) == 3
    assert ruled.lost == told.court.node(B).burnt


def test_proofs_that_prove_nothing_are_passed_over() -> None:
    told = accused(Court(liar(), HONEST))
    court = told.court
    court.must(A, court.opening())
    court.until(PinpointStage.REFEREE)
    assert court.do(STRANGER, court.exhibit_of_nothing()) != "ok"
    court.must(STRANGER, court.exhibit())
    told.look()
    assert (told.ruled.by, told.ruled.height) == ("element", court.state.height)


def test_a_validator_that_is_behind_its_rows_makes_nobody_silent() -> None:
    told = accused(Court(liar(), HONEST))
    told.court.must(A, told.court.opening())
    told.court.played()
    told.ledger.behind = 2
    told.look()
    assert not told.events
    told.ledger.behind = 0
    told.look()
    assert told.ruled.by == "element"


def test_moves_that_the_law_refused_are_no_rungs() -> None:
    told = accused(Court(liar(), HONEST))
    court = told.court
    court.must(A, court.opening())
    wrong = court.move(0)
    other = court.move(1, children=tuple(reversed(court.move(1).children)))  # type: ignore[attr-defined]
    assert court.do(STRANGER, wrong) != "ok"
    court.step()
    assert court.do(B, other) != "ok"
    told.look()
    assert [each.stage for each in told.played] == ["offered", "first", "descend"]
    assert told.played[-1].height == court.state.height - 1


def test_a_challenger_with_a_bond_is_told_as_who_plays() -> None:
    court = Court(HONEST, liar())
    court.challenged()
    told = Told(court)
    court.played()
    told.look()
    assert told.ruled.challenger == FRIEND.public.hex()
    assert (told.ruled.lost, told.ruled.gained) == (court.row.bond, court.row.bond // 2)


def test_a_dispute_that_nobody_plays_ends_by_the_clock_and_whoever_waits_makes_the_blocks() -> None:
    told = accused(Court(liar(), HONEST))
    begin = told.court.state.height
    asyncio.run(told.following.over())
    assert (told.ruled.ended, told.ruled.by) == ("upheld", "clock")
    assert told.court.state.height - begin >= DISPUTE // 1000
    assert told.played[0].stage == "offered"
    assert sum(told.paused) >= DISPUTE // 1000


def test_a_dispute_that_the_clock_does_not_end_is_told_as_open_and_the_run_goes_on() -> None:
    told = accused(Court(liar(), HONEST))
    told.ledger.counts_blocks = False
    asyncio.run(told.following.over())
    assert [getattr(each, "code", "") for each in told.events if not isinstance(each, DisputeStageEvent)] == [
        "FF-APP-388"
    ]


def test_where_nothing_is_disputed_nothing_is_waited_for() -> None:
    told = Told(Court(liar(), HONEST))
    told.following._all.clear()
    asyncio.run(told.following.over())
    assert not told.paused
    assert not told.events


def test_a_ledger_that_is_away_for_a_while_ends_no_following() -> None:
    told = accused(Court(liar(), HONEST))
    told.ledger.away = 3

    async def scenario() -> None:
        async def pause(_: float) -> None:
            await asyncio.sleep(0)

        told.following._sleep = pause
        task = asyncio.create_task(told.following.run())
        for _ in range(50):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    assert [each.stage for each in told.played] == ["offered"]


def caught(pending: int) -> SlashEvent:
    about = {"peer": A.public.hex(), "round": ROUND, "segment": SEGMENT, "why": "its work is false"}
    return SlashEvent(**about, slashed=0, bounty=0, burnt=0, evidence="", pending=pending)


@pytest.mark.parametrize("pair", [(liar(), HONEST), (HONEST, liar()), (liar(), liar(bit=2))])
def test_what_a_timeline_says_was_lost_is_what_the_ledger_took(pair: tuple[Player, Player]) -> None:
    told = accused(Court(*pair))
    court = told.court
    court.must(A, court.opening())
    court.played()
    told.look()
    t = RunTimeline()
    for event in (caught(STAKE), *told.events, caught(STAKE)):
        t = fold(t, event)
    slashed, bounty, burnt = t.lost
    rows = [court.node(key).burnt for key in (A, *VERIFIERS)]
    assert burnt == sum(rows)
    assert slashed == bounty + burnt + sum(each.gained for each in t.ruled.values())
    is_freed = court.about.state == DisputeState.OVERTURNED
    assert (A.public.hex() in t.caught) is not is_freed
    assert all(each.pending == 0 for each in t.caught.values())

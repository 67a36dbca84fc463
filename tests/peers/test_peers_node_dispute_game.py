"""Whole disputes between the counsels of two nodes, over sockets and a real ledger: who is right wins, however often it
dies."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import dispute_match as match
import pytest
from app_court import (
    BOND,
    FRIEND,
    JOB_KEY,
    LAW,
    STAKE,
    A,
    B,
    Court,
    Work,
    _hasty,
    at_work,
    honest,
    in_court,
    job_terms,
    lying,
    slander,
    told,
    until,
    whole,
)
from core_tiny_program import ROUND, SEGMENT
from dispute_match import Liar
from ledger_world import REQUESTER, RICH, VERIFIERS
from msgspec.structs import replace

from farflung.core.canon.program import CanonicalProgram, place_of
from farflung.core.crypto import SigningKey
from farflung.core.errors import RunError
from farflung.core.limits import ACCUSABLE_ROUNDS
from farflung.ledger.disputes import DisputeState
from farflung.ledger.pinpoint_game import PinpointStage
from farflung.ledger.transactions import JobCancel
from farflung.peers.node import disputes
from farflung.peers.node.dispute_files import DisputeFileStore, DisputeJob
from farflung.peers.node.disputes import DisputeAgent
from farflung.verify.canon import dispute_execution

_ = _hasty, told  # fixtures


@pytest.fixture(autouse=True, scope="module")
def _traced() -> None:
    """Before any clock runs, and not while tests are found: it takes seconds."""
    job_terms(), honest(), lying()


async def accuse(court: Court, work: Work) -> None:
    await court.do(REQUESTER, work.slash(court.genesis.chain))


def test_an_honest_node_that_is_accused_plays_and_has_its_stake_back(tmp_path: Path) -> None:
    async def play(court: Court) -> None:
        before = await court.balance(A)
        accused, accuser = await court.accused(honest()), await court.accuser(honest())
        async with at_work(accused, accuser):
            await accuse(court, honest())
            await asyncio.gather(
                court.ended(), court.pass_time((PinpointStage.FIRST,))
            )  # its accuser has nothing to say
        assert court.dispute().state == DisputeState.OVERTURNED
        assert court.dispute().taken == STAKE
        assert await court.balance(A) == before + STAKE + STAKE // 2 * len(VERIFIERS)  # all accusers pay
        assert court.stake(B) == 500 - STAKE

    in_court(tmp_path, play)


def test_a_guilty_node_is_silent_and_loses_by_the_clock(tmp_path: Path) -> None:
    async def play(court: Court) -> None:
        before = await court.balance(A)
        accused, accuser = await court.accused(lying()), await court.accuser(lying())
        async with at_work(accused, accuser):
            await accuse(court, lying())
            await asyncio.gather(court.ended(), court.pass_time((PinpointStage.FIRST,)))
        assert court.dispute().state == DisputeState.UPHELD
        assert await court.balance(A) == before  # no bond was put up

    in_court(tmp_path, play)


def test_a_guilty_node_that_denies_it_loses_by_one_element(tmp_path: Path) -> None:
    async def play(court: Court) -> None:
        before = await court.balance(A)
        accused, accuser = await court.accused(lying(), contests=True), await court.accuser(lying())
        async with at_work(accused, accuser):
            await accuse(court, lying())
            await court.ended()
        assert court.dispute().state == DisputeState.UPHELD
        assert await court.balance(A) == before - BOND
        row, parts = court.row(), match.parts()
        place = place_of(row.program, row.steps, row.first)
        outputs = {out.value for out in parts.graph.outputs if "/" in out.name}
        value = max(n for n, each in enumerate(parts.entries[: row.program.values]) if each.first <= place.offset)
        assert (place.step, place.is_judged) == (row.steps - 1, False)
        assert value in outputs

    in_court(tmp_path, play)


async def die_at_every_stage(court: Court, key: SigningKey, first: DisputeAgent) -> list[PinpointStage]:
    """The key's process is killed whenever the game has moved, and started anew from its folder: where that was."""
    deaths, running = list[PinpointStage](), first
    while court.dispute().is_pending:
        at = court.row()
        async with at_work(running):
            await until(lambda at=at: court.row() != at or not court.dispute().is_pending)
        deaths.append(court.row().stage)
        running = court.reborn(key)
    return deaths


STAGES = {PinpointStage.FIRST, PinpointStage.DESCEND, PinpointStage.SHOW, PinpointStage.REFEREE, PinpointStage.CLOSED}


@pytest.mark.slow
def test_an_honest_node_that_dies_at_every_stage_wins_against_who_plays_a_wrong_tree(tmp_path: Path) -> None:
    async def play(court: Court) -> None:
        before, accused = await court.balance(A), await court.accused(honest())
        liar = slander(court, Liar(match.segment(), 40), B)
        await accuse(court, honest())
        deaths, _ = await asyncio.gather(die_at_every_stage(court, A, accused), liar)
        assert set(deaths) == STAGES
        assert court.dispute().state == DisputeState.OVERTURNED
        assert await court.balance(A) == before + STAKE + STAKE // 2  # who played against it pays alone

    in_court(tmp_path, play)


@pytest.mark.slow
def test_an_accuser_that_dies_at_every_stage_wins_against_who_denies(tmp_path: Path) -> None:
    async def play(court: Court) -> None:
        accused, accuser = await court.accused(lying(), contests=True), await court.accuser(lying())
        await accuse(court, lying())
        async with at_work(accused):
            deaths = await die_at_every_stage(court, B, accuser)
        assert set(deaths) == STAGES
        assert court.dispute().state == DisputeState.UPHELD

    in_court(tmp_path, play)


def test_of_two_accusers_one_plays_and_the_other_only_ends_it(tmp_path: Path) -> None:
    async def play(court: Court) -> None:
        counsels = [await court.accuser(lying(), key) for key in VERIFIERS]
        async with at_work(await court.accused(lying(), contests=True), *counsels):
            await accuse(court, lying())
            await court.ended()
        assert court.dispute().state == DisputeState.UPHELD
        assert {court.stake(key) for key in VERIFIERS} == {500}

    in_court(tmp_path, play)


def test_whoever_puts_up_a_bond_against_honest_work_loses_it(tmp_path: Path) -> None:
    async def play(court: Court) -> None:
        before = await court.balance(A)
        async with at_work(await court.accused(honest())):
            await court.do(FRIEND, honest().challenge())
            await slander(court, Liar(match.segment(), 700), FRIEND)
        assert court.dispute().state == DisputeState.OVERTURNED
        assert await court.balance(A) > before + STAKE
        assert await court.balance(FRIEND) == RICH - honest().challenge().bond

    in_court(tmp_path, play)


def test_the_first_segment_of_a_fresh_peer_is_played_from_the_public_weights(tmp_path: Path) -> None:
    async def play(court: Court) -> None:
        agent = await court.agent(A)
        agent.own(job_terms().id, whole, (ROUND, 0), honest().trace, honest().opened(0))
        async with at_work(agent):
            await court.do(REQUESTER, honest().slash(court.genesis.chain, 0))
            about = match.segment(match.border(1), 0)
            await slander(court, Liar(about, 40), B)
        assert court.dispute().state == DisputeState.OVERTURNED

    in_court(tmp_path, play)


def test_who_is_asked_about_what_it_has_not_kept_says_so_and_goes_on(
    tmp_path: Path, told: list[dict[str, Any]]
) -> None:
    async def play(court: Court) -> None:
        accused = await court.accused(honest())
        async with at_work(accused):
            await court.do(FRIEND, honest().challenge(0))
            await until(lambda: told)
            await asyncio.sleep(0.2)
        assert [each["code"] for each in told] == ["FF-APP-382"]
        assert accused._files.accusable  # until the game is over

    in_court(tmp_path, play)


def test_an_execution_that_fails_is_told_and_ends_nothing_else(
    tmp_path: Path, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(court: Court) -> None:
        accused, work = await court.accused(honest()), asyncio.create_task(asyncio.sleep(60))
        async with at_work(accused):
            await accuse(court, honest())
            await until(lambda: told)
            await asyncio.sleep(0.2)
            assert not work.done()
        work.cancel()
        assert len(told) == 1

    monkeypatch.setattr(disputes, "memory_bytes", lambda: 1000)
    in_court(tmp_path / "1", play)
    assert told.pop()["code"] == "FF-VERI-103"
    monkeypatch.setattr(disputes, "memory_bytes", lambda: 1 << 40)
    monkeypatch.setattr(dispute_execution, "play", lambda *_: 1 / 0)
    in_court(tmp_path / "2", play)
    assert told.pop()["code"] == "FF-APP-380"


# What is kept


def test_nothing_is_kept_where_the_ledger_has_no_disputes_or_the_job_no_program(tmp_path: Path) -> None:
    async def play(court: Court) -> None:
        for terms in (job_terms(), replace(job_terms(), program=CanonicalProgram(), unproven="asked")):
            made = court.unattended(A)
            await made.attend(DisputeJob(terms, JOB_KEY, court.start), court.disk)
            made.own(terms.id, whole, (ROUND, SEGMENT), honest().trace, honest().opened())
            is_due = court.genesis.params.dispute_ms > 0 and terms is job_terms()
            assert any(job == terms.id for job, _ in made._files.accusable) is is_due

    in_court(tmp_path / "1", play, replace(LAW, dispute_ms=0))
    in_court(tmp_path / "2", play)


def test_of_a_data_set_in_pieces_those_of_the_round_are_kept(tmp_path: Path) -> None:
    async def play(court: Court) -> None:
        made = court.unattended(A)
        await made.attend(DisputeJob(job_terms(), JOB_KEY, court.start), court.disk)
        made.own(
            job_terms().id, lambda *place: repr(place).encode(), (ROUND, SEGMENT), honest().trace, honest().opened()
        )
        kept = made._files.find(job_terms().id, A.public, ROUND, SEGMENT)
        assert kept is not None
        assert bytes(kept.tokens) == repr((ROUND, court.start.member)).encode()

    in_court(tmp_path, play)


def test_what_is_kept_goes_with_the_game_the_job_and_its_rounds(tmp_path: Path) -> None:
    async def play(court: Court) -> None:
        accused = await court.accused(honest())
        objects = accused._files.disk.ids()
        assert len(objects) == 3
        case, brief = (
            accused._files.case(job_terms().id),
            accused._files.find(job_terms().id, A.public, ROUND, SEGMENT),
        )
        assert case is not None
        assert brief is not None
        accused._files.keep(case, replace(brief, round=ROUND - 1), court.disk)
        async with at_work(accused):
            await court.record(ROUND + ACCUSABLE_ROUNDS, ROUND + 1)
            await until(lambda: accused._files.find(job_terms().id, A.public, ROUND - 1, SEGMENT) is None)
            assert accused._files.find(job_terms().id, A.public, ROUND, SEGMENT) is not None
            await court.do(REQUESTER, JobCancel(job_terms().id))
            while not court.is_over():
                with contextlib.suppress(RunError):  # its window is open
                    await court.do(REQUESTER, JobCancel(job_terms().id))
            await accused.clear()
        assert accused._files.case(job_terms().id) is None
        assert accused._files.disk.ids() == ()
        assert accused._files._vault.names() == []

    in_court(tmp_path, play)


def sealed(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*.sealed"))


def test_a_brief_outlives_what_the_lease_deletes_and_is_sealed(tmp_path: Path) -> None:
    async def play(court: Court) -> None:
        court.disk.delete(court.start.module.id)  # it is empty, as a state was that an audit has forgotten since
        await court.accused(honest())
        for object_id in court.disk.ids():
            court.disk.delete(object_id)
        again = court.reborn(A)._files
        assert again.accusable == ((job_terms().id, A.public),)
        case, brief = again.case(job_terms().id), again.find(job_terms().id, A.public, ROUND, SEGMENT)
        assert case is not None
        assert brief is not None
        assert all(again.disk.has(each.id) for each in (case.start.dataset, case.start.graph))
        assert not any(each in sealed(tmp_path) for each in (JOB_KEY, brief.start[100:200]))
        stranger = DisputeFileStore(court._folder(A), B)
        assert stranger.case(job_terms().id) is None

    in_court(tmp_path, play)

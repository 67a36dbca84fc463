"""Nodes that play disputes: requesters that take a node's defence away, and opponents that lie on the ledger itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import dispute_match as match
import pytest
from app_court import (
    FRIEND,
    JOB_KEY,
    STAKE,
    A,
    B,
    Court,
    _hasty,
    at_work,
    honest,
    in_court,
    job_terms,
    lying,
    slander,
    until,
    whole,
)
from core_tiny_program import SEGMENT
from dispute_match import Liar
from ledger_world import NODES, REQUESTER, VERIFIERS
from msgspec.structs import replace

from farflung.core.errors import RunError, VerificationError
from farflung.ledger.disputes import DisputeState
from farflung.ledger.pinpoint_game import FirstMove, PinpointStage, ShowTile
from farflung.peers.node.dispute_files import DisputeJob

_ = _hasty  # a fixture


@pytest.fixture(autouse=True, scope="module")
def _traced() -> None:
    """Before any clock runs, and not while tests are found: it takes seconds."""
    job_terms(), honest(), lying()


def test_a_requester_that_ends_the_lease_and_then_accuses_does_not_take_the_defence_away(tmp_path: Path) -> None:
    async def play(court: Court) -> None:
        await court.accused(honest())
        for object_id in court.disk.ids():
            court.disk.delete(object_id)  # as the end of a lease does
        await court.do(REQUESTER, honest().slash(court.genesis.chain))
        async with at_work(court.reborn(A)):
            await slander(court, Liar(match.segment(), 900), B)
        assert court.dispute().state == DisputeState.OVERTURNED

    in_court(tmp_path, play)


def test_a_node_takes_no_lease_with_another_seats_batches(tmp_path: Path) -> None:
    """It would train honestly, and the law would find it guilty."""

    async def play(court: Court) -> None:
        for member in (0, 2, -1, 1 << 40):
            start = replace(court.start, member=member)
            with pytest.raises(VerificationError, match="FF-APP-383"):
                await court.unattended(A).attend(DisputeJob(job_terms(), JOB_KEY, start), court.disk)
        await court.agent(A)
        start = replace(court.start, member=7)  # says nothing to a verifier: it has no seat
        await court.unattended(VERIFIERS[1]).attend(DisputeJob(job_terms(), JOB_KEY, start), court.disk)

    in_court(tmp_path, play)


def test_tiles_that_others_write_into_blocks_are_not_taken_for_the_players(tmp_path: Path) -> None:
    """Refused operations stand in blocks, too: a stranger names the same leaf, an opponent another tile first."""

    async def play(court: Court) -> None:
        accused, accuser = await court.accused(lying(), contests=True), await court.accuser(lying())

        async def noise() -> None:
            await until(lambda: court.row().stage == PinpointStage.SHOW)
            while court.dispute().is_pending:
                said = ShowTile(job_terms().id, A.public, court.row().first, bytes(64))
                for key in (FRIEND, NODES[0]):
                    with pytest.raises(RunError):
                        await court.do(key, said)

        await court.do(REQUESTER, lying().slash(court.genesis.chain))
        async with at_work(accused, accuser):
            await asyncio.gather(court.ended(), noise())
        assert court.dispute().state == DisputeState.UPHELD

    in_court(tmp_path, play)


@pytest.mark.slow
def test_an_opponent_that_begins_and_says_no_more_loses_by_the_clock(tmp_path: Path) -> None:
    async def play(court: Court) -> None:
        before = await court.balance(A)
        liar = Liar(match.segment(), 40).execution.tree
        async with at_work(await court.accused(honest())):
            await court.do(REQUESTER, honest().slash(court.genesis.chain))
            await until(lambda: court.row().stage == PinpointStage.FIRST)
            children = liar.children(liar.depth, 0)
            await court.do(B, FirstMove(job_terms().id, A.public, 0, (), children))
            await asyncio.gather(court.ended(), court.pass_time((PinpointStage.FIRST, PinpointStage.DESCEND)))
        assert court.dispute().state == DisputeState.OVERTURNED
        assert await court.balance(A) == before + STAKE + STAKE // 2

    in_court(tmp_path, play)


def test_a_claim_that_is_not_the_kept_one_is_not_answered_with_another(tmp_path: Path) -> None:
    """Two claims of one round: the node defends the one that it kept, and says so of the other."""

    async def play(court: Court) -> None:
        accused = await court.agent(A)
        accused.own(job_terms().id, whole, (3, SEGMENT), lying().trace, lying().opened())
        async with at_work(accused):
            await court.do(REQUESTER, honest().slash(court.genesis.chain))
            await until(lambda: accused._lost)
        assert court.row().stage == PinpointStage.OFFERED

    in_court(tmp_path, play)

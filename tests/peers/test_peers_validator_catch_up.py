"""A running validator that others have left behind: where its next block is gone it takes a snapshot by itself."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from farflung.core.crypto import SigningKey, local_key
from farflung.core.ids import PeerId
from farflung.ledger import due_times
from farflung.ledger.block import Genesis
from farflung.ledger.io.votelog import VoteLog
from farflung.ledger.params import LedgerParams
from farflung.ledger.sdbft.votelog_records import Record, read_record
from farflung.net.counters import ByteCounter
from farflung.net.io.connection import Connection
from farflung.peers.validator.bootstrap import CatchUpService, JoinStatus
from farflung.peers.validator.committee import CommitteeMember
from farflung.peers.validator.service import ValidatorConfig, ValidatorService

pytestmark = pytest.mark.whole

SEATS = tuple(local_key(43, "seat", index) for index in range(4))
LATE = SEATS[3]


def genesis() -> Genesis:
    keys = tuple(key.public for key in SEATS)
    law = LedgerParams(delta_ms=300, idle_ms=200, unbonding_ms=1)
    return Genesis("left behind", int(time.time() * 1000), tuple((key, 1000) for key in keys), keys, law)


def own_votes(folder: Path) -> set[tuple[int, int, int, bytes]]:
    """(epoch, view, kind, block) of all votes in the log, of which a copy is read: opening writes it anew."""
    copy = folder / "copy"
    copy.write_bytes(next(folder.glob("votes-*.log")).read_bytes())
    log = VoteLog(copy)
    log.close()
    records: list[Record] = [read_record(each) for each in log.records]
    signed = [each.signed for each in records if hasattr(each, "signed")]
    votes = (each.vote for each in signed if each.seat == 3)
    return {(vote.epoch, vote.view, vote.kind, vote.block) for vote in votes}


class World:
    """Three validators that keep two seconds of blocks, and a fourth that goes on by itself."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.genesis = folder, genesis()
        self.others: list[ValidatorService] = []
        self.places: dict[PeerId, tuple[str, int]] = {}
        self.told: list[JoinStatus] = []

    def setting(self, key: SigningKey, keep_ms: int | None = None) -> ValidatorConfig:
        folder = self.folder / key.public.hex()[:8]
        folder.mkdir(exist_ok=True)
        return ValidatorConfig(key, self.genesis, folder, keep_ms=keep_ms)

    async def begin(self) -> CatchUpService:
        for key in SEATS[:3]:
            service = ValidatorService(self.setting(key, 2000), ByteCounter(), lambda: None)
            self.others.append(service)
            self.places[key.public] = await service.open(self.places)
        for service in self.others:
            service.places |= self.places
        catch_up = CatchUpService(self.setting(LATE), self.places, self.told.append, look=0.5)
        place = await catch_up.open()
        for service in self.others:
            service.places[LATE.public] = place
        return catch_up

    @property
    def first(self) -> int:
        """The lowest block that any of the three keeps."""
        return min(each.chain.history.first for each in self.others)


async def until(world: World, catch_up: CatchUpService, height: int) -> None:
    while catch_up.service.chain.head.height < height:
        assert not any(each.failed.done() for each in world.others)
        await asyncio.sleep(0.05)


def test_a_running_validator_whose_next_block_is_gone_takes_a_snapshot_and_votes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = False
    hear = CommitteeMember.hear

    def heard(self: CommitteeMember, connection: Connection, body: bytes) -> None:
        is_late = self.node.replica.committee.seat(LATE.public) == self.node.replica._seat
        if not (cut and (is_late or connection.peer == LATE.public)):
            hear(self, connection, body)

    monkeypatch.setattr(CommitteeMember, "hear", heard)
    monkeypatch.setattr(due_times, "HEARTBEAT_MS", 200)  # blocks that nobody needs, so that some are forgotten soon

    async def play() -> None:
        nonlocal cut
        world = World(tmp_path)
        catch_up = await world.begin()
        try:
            await until(world, catch_up, 5)
            cut = True
            left = catch_up.service.chain.head.height
            while world.first <= left + 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            cut = False
            before = own_votes(catch_up.service.store.path.parent)
            running = asyncio.ensure_future(catch_up.run())
            late = asyncio.ensure_future(until(world, catch_up, world.first))
            await asyncio.wait({running, late}, return_when=asyncio.FIRST_COMPLETED)
            assert not running.done()
            assert catch_up.service.chain.history.first > left + 1, "blocks between were skipped"
            assert catch_up.service.readers.gauges.snapshots == 1
            assert [each.height > left for each in world.told if each.joined.is_needed] == [True]
            await until(world, catch_up, catch_up.service.chain.head.height + 5)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            after = own_votes(catch_up.service.store.path.parent)
            assert after - before, "it votes again"
            voted = [each[:3] for each in before | after]
            assert len(voted) == len(set(voted)), "never against what it signed"
            assert not any(each.committee.accused for each in world.others if each.committee)
        finally:
            await catch_up.close()
            for each in world.others:
                await each.close()

    asyncio.run(play())

"""Servers that would keep a validator from joining, or make it join something else: each is told, none hangs it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from attack_snapshot import GENESIS, grown
from ledger_committee import Reign
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import local_key
from farflung.core.errors import NetworkError
from farflung.ledger import queries as q
from farflung.ledger import snapshot
from farflung.ledger.block import vote_for
from farflung.ledger.chain import Chain
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.state_sync import StateSyncResult, join
from farflung.ledger.params import DAY_MS
from farflung.ledger.votes import VoteKind, certificate_of, sign_vote
from farflung.peers.validator.bootstrap import JoinStatus, status_of

pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_BLOCKS", 3)


class Server:
    """Honest; `twist` makes something else of an answer."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.sent = chain, 0

    async def ask(self, body: bytes) -> bytes:
        query = q.read_query(body)
        assert not isinstance(query, q.SubmitRequest)
        self.sent += isinstance(query, snapshot.GetSnapshotChunk)
        return encode(self.twist(q.reply(self.chain, query)))

    def twist(self, said: q.Reply) -> q.Reply:
        return said


class WrongChunk(Server):
    def twist(self, said: q.Reply) -> q.Reply:
        return snapshot.SnapshotChunkReply((b"\x90",) * 2) if isinstance(said, snapshot.SnapshotChunkReply) else said


class EndlessChunk(Server):
    """As many rows as a message holds."""

    def twist(self, said: q.Reply) -> q.Reply:
        rows = (bytes(16),) * (limits.CONTROL_BYTES // 32)
        return snapshot.SnapshotChunkReply(rows) if isinstance(said, snapshot.SnapshotChunkReply) else said


class WrongRoot(Server):
    def twist(self, said: q.Reply) -> q.Reply:
        if not isinstance(said, snapshot.SnapshotReply) or said.manifest is None:
            return said
        first, *rest = said.manifest.tables
        other = replace(first, chunks=bytes(len(first.chunks)))
        return snapshot.SnapshotReply(replace(said.manifest, tables=(other, *rest)))


class Forged(Server):
    """Its block is signed by a key that sits nowhere."""

    def twist(self, said: q.Reply) -> q.Reply:
        if not isinstance(said, snapshot.SnapshotReply) or said.manifest is None:
            return said
        vote = vote_for(said.manifest.header, 1, VoteKind.FINALIZE)
        mark = certificate_of([sign_vote(local_key(8, "forger"), 0, vote)], 1)
        return snapshot.SnapshotReply(replace(said.manifest, certificate=mark))


class Boaster(Server):
    """Says that it is far ahead, and shows what everybody has."""

    def twist(self, said: q.Reply) -> q.Reply:
        if isinstance(said, q.HeadReply):
            return q.HeadReply(replace(said.header, height=1 << 40), said.certificate)
        return said


class Denier(Server):
    """Says that blocks are gone which everybody has."""

    def twist(self, said: q.Reply) -> q.Reply:
        return q.QueryErrorReply(q.PRUNED, "gone") if isinstance(said, q.BlocksReply) else said


class Silent(Server):
    async def ask(self, body: bytes) -> bytes:
        await asyncio.sleep(3600)
        raise AssertionError("nobody waits so long")


class Babbler(Server):
    async def ask(self, body: bytes) -> bytes:
        return b"\xc1" * 100


class Dripper(Server):
    """Some chunks, and then nothing more."""

    async def ask(self, body: bytes) -> bytes:
        if isinstance(q.read_query(body), snapshot.GetSnapshotChunk):
            await asyncio.sleep(3600 if self.sent == 4 else 0)
        return await super().ask(body)


def asked(path: Path, *servers: Server, seconds: int = 30) -> StateSyncResult:
    return asyncio.run(join([each.ask for each in servers], path, GENESIS, seconds))


def height_of(path: Path) -> int:
    store = LedgerStore.open(path, GENESIS)
    try:
        return store.load().head.height
    finally:
        store.close()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (WrongChunk, "FF-LEDG-328"),
        (EndlessChunk, "FF-LEDG-327"),
        (WrongRoot, "FF-LEDG-326"),
        (Forged, "FF-LEDG-325"),
        (Silent, "FF-LEDG-335"),
        (Babbler, "FF-CORE-02"),
    ],
)
def test_a_server_that_lies_or_says_nothing_is_told_and_left_for_the_next_one(
    tmp_path: Path, kind: type[Server], code: str
):
    source, seconds = grown(), 1 if kind is Silent else 30
    alone = asked(tmp_path / "alone.db", kind(source), seconds=seconds)
    assert alone.height == 0
    assert [(place, error.code[: len(code)]) for place, error in alone.faults] == [(0, code)]
    assert all(error.cause and error.hint for _, error in alone.faults if code != "FF-CORE-02")
    assert height_of(tmp_path / "alone.db") == 0, "its own file is as it was"
    found = asked(tmp_path / "helped.db", kind(source), Server(source), seconds=max(8, seconds))
    assert found.height == 4
    assert {place for place, _ in found.faults} == {0}
    assert height_of(tmp_path / "helped.db") == 4


@pytest.mark.whole
def test_who_drips_chunks_is_left_and_the_next_one_goes_on_where_it_stopped(tmp_path: Path):
    source = grown()
    whole, rest = Server(source), Server(source)
    assert asked(tmp_path / "whole.db", whole).height == 4
    found = asked(tmp_path / "chain.db", Dripper(source), rest, seconds=2)
    assert [error.code for _, error in found.faults] == ["FF-LEDG-335"]
    assert found.height == 4
    assert rest.sent < whole.sent


def test_nobody_gives_up_its_blocks_because_one_server_boasts_or_denies(tmp_path: Path):
    """A snapshot costs the blocks before it: neither word is enough while the next block is to be had."""
    source = grown(2)
    for kind in (Boaster, Denier):
        found = asked(tmp_path / "chain.db", kind(source), Server(source))
        assert (found.height, found.is_needed) == (0, False)
    assert asked(tmp_path / "chain.db", Denier(source)).height == 2, "where nobody has it, it is needed"


def test_a_committee_that_is_over_signs_no_later_block(tmp_path: Path):
    committee = Reign()
    committee.grow(4)
    old = committee.chain
    path = tmp_path / "chain.db"
    joined = asyncio.run(join([Server(old).ask], path, old.genesis))
    assert joined.height == old.head.height

    class Stale(Server):
        """A block behind ours, under the committee of epoch 0."""

        def twist(self, said: q.Reply) -> q.Reply:
            if isinstance(said, q.HeadReply):
                return q.HeadReply(replace(said.header, height=1 << 20), said.certificate)
            if not isinstance(said, snapshot.SnapshotReply) or said.manifest is None:
                return said
            header = replace(said.manifest.header, height=1 << 20, epoch=0)
            return snapshot.SnapshotReply(replace(said.manifest, header=header))

    found = asyncio.run(join([Stale(old).ask], path, old.genesis))
    assert [error.code for _, error in found.faults] == ["FF-LEDG-336"]


def test_what_was_wrong_with_each_is_told_by_name_and_place(tmp_path: Path):
    source = grown()
    found = asked(tmp_path / "chain.db", Forged(source), Babbler(source))
    places = {local_key(8, "a").public: ("127.0.0.1", 1), local_key(8, "b").public: ("127.0.0.1", 2)}
    lines = list(JoinStatus(places, found).lines())
    assert len(lines) == 3
    assert "127.0.0.1:1: FF-LEDG-325" in lines[0]
    assert "127.0.0.1:2: FF-CORE-02" in lines[1]
    assert "none of 2" in lines[2]
    gone = StateSyncResult(source.head, None, True, ((0, NetworkError("FF-TEST-001", "no")),))
    told = "\n".join(JoinStatus(places, gone).lines())
    assert "error[FF-APP-322]" in told
    assert "try:" in told or "[validators]" in told


@pytest.mark.parametrize(("days", "is_told"), [(20, False), (22, True)])
def test_who_believes_a_committee_whose_stakes_are_free_is_warned_and_told_what_to_compare(
    monkeypatch: pytest.MonkeyPatch, days: int, is_told: bool
):
    source = grown()
    genesis = replace(source.genesis, time=source.head.time)
    assert genesis.params.unbonding_ms == 21 * DAY_MS
    monkeypatch.setattr("time.time", lambda: (source.head.time + days * DAY_MS) / 1000)
    found = StateSyncResult(source.head, source.head, True, ())
    told = "\n".join(status_of({}, found, genesis).lines())
    assert ("beware" in told) == is_told
    assert (source.head.id.hex() in told) == is_told
    assert "beware" not in "\n".join(status_of({}, found, replace(genesis, time=0)).lines())

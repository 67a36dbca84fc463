"""Joining late over the wire: a snapshot is taken where blocks are gone or too many, from whoever does not lie."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from ledger_committee import Reign
from ledger_history import batches, contents, history
from ledger_world import genesis

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import NetworkError
from farflung.ledger import queries as q
from farflung.ledger import snapshot
from farflung.ledger.chain import Chain
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.state_sync import StateSyncResult, join


class Server:
    """Answers from its chain; counts what it was asked."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.asked = chain, list[str]()

    async def ask(self, body: bytes) -> bytes:
        query = q.read_query(body)
        assert not isinstance(query, q.SubmitRequest)
        self.asked.append(type(query).__name__)
        return encode(self.said(query))

    def said(self, query: q.Read) -> q.Reply:
        return q.reply(self.chain, query)


class Away(Server):
    async def ask(self, body: bytes) -> bytes:
        self.asked.append("")
        raise NetworkError("FF-TEST-001", "nobody there")


class Liar(Server):
    """Its third chunk is wrong."""

    def said(self, query: q.Read) -> q.Reply:
        said = super().said(query)
        if isinstance(said, snapshot.SnapshotChunkReply) and self.asked.count("GetSnapshotChunk") == 3:
            return snapshot.SnapshotChunkReply((b"\x90",))
        return said


class Forgetful(Server):
    """Gives manifests and never a chunk."""

    def said(self, query: q.Read) -> q.Reply:
        return (
            snapshot.SnapshotChunkReply(None) if isinstance(query, snapshot.GetSnapshotChunk) else super().said(query)
        )


class Deaf(Server):
    """Says that it is far ahead, and nothing else."""

    def said(self, query: q.Read) -> q.Reply:
        return (
            q.QueryErrorReply("FF-TEST-002", "no") if isinstance(query, snapshot.GetSnapshot) else super().said(query)
        )


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows are a chunk, and four blocks are many."""
    monkeypatch.setattr(snapshot, "LEVELS", {})
    monkeypatch.setattr(snapshot, "_LEVEL", 1)
    monkeypatch.setattr(limits, "SNAPSHOT_BLOCKS", 4)


def asked(path: Path, *servers: Server) -> StateSyncResult:
    return asyncio.run(join([server.ask for server in servers], path, servers[0].chain.genesis))


def joined(path: Path, *servers: Server) -> bool:
    return asked(path, *servers).height > 0


def loaded(path: Path, source: Chain) -> Chain:
    store = LedgerStore.open(path, source.genesis)
    chain = store.load()
    store.close()
    return chain


def test_who_is_far_behind_begins_from_a_snapshot(tmp_path: Path):
    path, source = tmp_path / "chain.db", history()
    assert joined(path, Server(source))
    chain = loaded(path, source)
    assert (chain.head, contents(chain.state)) == (source.head, contents(source.state))
    again = Server(source)
    assert not joined(path, again)
    assert again.asked == ["GetHead"]


def test_who_is_not_far_behind_takes_blocks_unless_they_are_gone(tmp_path: Path):
    path, source = tmp_path / "chain.db", history(batches()[:3])
    assert not joined(path, Server(source))
    assert loaded(path, source).head.height == 0
    assert joined(tmp_path / "other.db", Server(history()))
    store = LedgerStore.open(tmp_path / "other.db", source.genesis)
    pruned = store.load()
    limits.SNAPSHOT_BLOCKS = 100  # the fixture puts it back
    assert joined(path, Server(pruned))
    assert loaded(path, source).head.height == 6
    store.close()


def test_servers_that_lie_or_fail_are_left_for_the_next_one_which_goes_on(tmp_path: Path):
    path, source = tmp_path / "chain.db", history()
    whole = Server(source)
    assert joined(tmp_path / "whole.db", whole)
    servers = (Away(source), Deaf(source), Forgetful(source), Liar(source), Server(source))
    assert joined(path, *servers)
    assert contents(loaded(path, source).state) == contents(source.state)
    assert servers[2].asked.count("GetSnapshot") == 3, "no server keeps anybody for ever"
    assert servers[4].asked.count("GetSnapshotChunk") == whole.asked.count("GetSnapshotChunk") - 2


@pytest.mark.parametrize(
    ("kind", "code"), [(Away, "FF-TEST-001"), (Deaf, "FF-LEDG-333"), (Liar, "FF-LEDG-327"), (Forgetful, "FF-LEDG-334")]
)
def test_without_an_honest_server_the_file_stays_as_it_was(tmp_path: Path, kind: type[Server], code: str):
    path, source = tmp_path / "chain.db", history()
    found = asked(path, kind(source), kind(source))
    assert found.height == 0
    assert [(place, error.code) for place, error in found.faults] == [(0, code), (1, code)]
    assert loaded(path, source).head == Chain(genesis()).head


def test_the_committees_are_walked_before_the_last_one_is_believed(tmp_path: Path):
    committee = Reign()
    committee.grow(4)
    committee.grow(3)
    committee.step()
    source = committee.chain
    assert joined(tmp_path / "chain.db", Server(source))
    chain = loaded(tmp_path / "chain.db", source)
    assert (chain.head, chain.state.root) == (source.head, source.state.root)

    class Skips(Server):
        """Leaves out a committee."""

        def said(self, query: q.Read) -> q.Reply:
            said = super().said(query)
            return q.StepsReply(said.steps[1:]) if isinstance(said, q.StepsReply) else said

    class Silent(Server):
        """Names none."""

        def said(self, query: q.Read) -> q.Reply:
            return q.StepsReply(()) if isinstance(query, q.GetSteps) else super().said(query)

    for kind in (Skips, Silent):
        found = asked(tmp_path / "other.db", kind(source))
        assert found.height == 0
        assert [error.code[:8] for _, error in found.faults] == ["FF-LEDG-"]


def test_who_begins_behind_the_block_that_closes_an_epoch_opens_again_under_the_next_committee(tmp_path: Path):
    committee, path = Reign(), tmp_path / "chain.db"
    committee.grow(4)
    source = committee.chain
    assert source.state.closes

    class Silent(Server):
        """Names no committee behind that of the block."""

        def said(self, query: q.Read) -> q.Reply:
            return q.StepsReply(()) if isinstance(query, q.GetSteps) else super().said(query)

    found = asked(path, Silent(source), Server(source))
    assert [error.code for _, error in found.faults] == ["FF-LEDG-337"]
    assert found.height == source.head.height
    store = LedgerStore.open(path, source.genesis)
    chain = store.load()
    assert chain.steps == source.steps
    store.adopt(chain, (committee.step(),))
    store.close()
    assert loaded(path, source).head == source.head

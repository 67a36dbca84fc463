"""A node fetches of a large data set what its rounds need, believes the root alone, and keeps a bounded part."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import NS_OBJECT, digest, local_key
from farflung.core.errors import FarflungError, NetworkError, PolicyError, VerificationError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.core.tensor_layout import ROOT_CHUNK, TensorLayout
from farflung.job.dataset import Dataset, packed
from farflung.job.spec import JobSpec, JobTerms, ModelSpec, SyncSpec
from farflung.job.token_tree import read_root
from farflung.peers.node.token_supply import FLOOR, TokenSupply
from farflung.peers.protocol.messages import DatasetLeavesRequest
from farflung.peers.requester.dataset_server import DatasetServer
from farflung.peers.rundir.archive import Archive
from farflung.peers.rundir.dataset_file import DatasetFile
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.transfer import objects
from farflung.store.io.disk_store import DiskObjectStore
from farflung.train import data_order

ME, REQUESTER = local_key(1, "provider-0").public, local_key(1, "requester").public
JOB_KEY = bytes(range(32))
SPEC = JobSpec(seed=3, rounds=9, batch=2, model=ModelSpec(context=8), sync=SyncSpec(steps=2))
TOKENS = (np.arange(40 * ROOT_CHUNK + 100, dtype=np.uint64) ** 2 % 251).astype(np.uint8)
DATA = Dataset(TOKENS[: -2 * ROOT_CHUNK], TOKENS[-2 * ROOT_CHUNK :])


class Network:
    """A requester with a data set in its folder, and a node beside it."""

    def __init__(self, root: Path, cache_bytes: int = limits.GIB) -> None:
        folder = RunFolder(root / "run")
        folder.root.mkdir()
        write_atomic(folder.dataset_file, packed(DATA), "run.dataset")
        self.file = DatasetFile(folder.dataset_file)
        layout, first = TensorLayout.of({"w": (4,)}), digest(NS_OBJECT, b"")
        self.terms = JobTerms(SPEC, self.file.root(SPEC).name, ZERO_HASH, layout, REQUESTER, first)
        self.archive = Archive(DiskObjectStore(root / "store"), root, JOB_KEY, REQUESTER)
        self.server = DatasetServer(self.terms, folder, self.archive)
        self.manifest = self.server.supplied()
        named = self.archive.disk.content(JOB_KEY, self.manifest)
        assert digest(NS_OBJECT, named) == self.terms.dataset
        self.disk, self.asked, self.sources = DiskObjectStore(root / "node"), 0, list[tuple[PeerId, ...]]()
        where = JOB_KEY, self.disk, self.dial, REQUESTER, cache_bytes
        self.supply = TokenSupply(self.terms, read_root(named), *where)

    async def dial(self, peer: PeerId) -> Any:
        if peer != REQUESTER:
            raise NetworkError("FF-NET-070", "nobody answers")
        return self

    async def call(self, method: str, body: bytes, **_: Any) -> bytes:
        assert method == "data.leaves"
        self.asked += 1
        return self.server.serve(body)

    async def fetch(self, disk: Any, manifest: Any, sources: tuple[PeerId, ...], *_: Any) -> None:
        self.sources.append(sources)
        for index in disk.begin(manifest):
            disk.write_chunk(manifest.id, index, self.archive.disk.chunk(manifest.id, index))
        if not disk.has(manifest.id):
            disk.finish(manifest.id)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(limits, "WHOLE_DATA_BYTES", 1000)
    monkeypatch.setattr(limits, "WHOLE_DATA_MOST", 1000)

    def make(cache_bytes: int = limits.GIB) -> Network:
        network = Network(tmp_path, cache_bytes)
        monkeypatch.setattr(objects, "fetch", network.fetch)
        return network

    return make


def batch(tokens: Any, round: int, member: int) -> list[Any]:
    return [data_order.batch(tokens, SPEC, round, member, step)[0].tolist() for step in range(SPEC.sync.steps)]


def test_a_round_is_made_of_the_tokens_that_the_order_names(made: Any) -> None:
    network = made()
    for round, member in ((0, 1), (8, 0)):
        pieces = asyncio.run(network.supply.bring([(round, member)], (ME,)))
        assert batch(network.supply.data.train, round, member) == batch(DATA.train, round, member)
        assert 0 < sum(len(piece.leaves) for piece in pieces) < len(TOKENS)
        assert network.sources[-1] == (REQUESTER, ME)
    asyncio.run(network.supply.bring([], probe=(5, 3)))
    starts = data_order.held_starts(len(DATA.heldout), SPEC.model.context, 5, 3)
    assert all((network.supply.data.heldout[s : s + 9] == DATA.heldout[s : s + 9]).all() for s in starts)
    with pytest.raises(FarflungError, match="FF-CORE-097"):
        batch(network.supply.data.train, 0, 1)


def test_the_next_round_is_fetched_ahead_and_asked_for_once(made: Any) -> None:
    network = made()

    async def work() -> None:
        network.supply.look_ahead([(1, 0)])
        await network.supply.rest()
        assert network.asked == 1
        await network.supply.bring([(1, 0)])
        await network.supply.bring([(1, 0)])
        assert network.asked == 1
        network.supply.look_ahead([(2, 0)])
        network.supply.cancel()
        await network.supply.bring([(2, 0)])

    asyncio.run(work())
    assert network.supply.kept(1, 0)
    assert network.supply.kept(7, 0) == bytes(8)  # of no leaves


def test_the_owner_bounds_what_stays_on_disk(made: Any) -> None:
    network = made(cache_bytes=0)
    for round in range(FLOOR + 3):
        asyncio.run(network.supply.bring([(round, 0)]))
        assert len(network.disk.ids()) == min(FLOOR, round + 1)
    assert network.supply.kept(FLOOR + 2, 0) != network.supply.kept(0, 0) == bytes(8)  # of no leaves


def test_pieces_of_another_data_set_are_refused(made: Any) -> None:
    network = made()
    bytes_ = bytearray(network.file.path.read_bytes())
    bytes_[24:] = bytes(len(bytes_) - 24)
    network.file.path.write_bytes(bytes_)
    with pytest.raises(VerificationError, match="FF-CORE-099"):
        asyncio.run(network.supply.bring([(0, 0)]))


def test_an_object_of_another_size_is_not_fetched(made: Any) -> None:
    network = made()
    large = network.archive.put(bytes(100_000))
    network.server.serve = lambda _: encode(large)
    with pytest.raises(VerificationError, match="FF-APP-722"):
        asyncio.run(network.supply.bring([(0, 0)]))
    assert not network.sources


def test_a_requester_hands_out_pieces_that_there_are_in_their_order(made: Any) -> None:
    network = made()
    asked = DatasetLeavesRequest(network.terms.id, False, (1, 3))
    network.server.serve(encode(asked))
    last = len(DATA.train) // ROOT_CHUNK
    for leaves in ((), (3, 1), (1, 1), (-1, 2), (0, last + 1), tuple(range(limits.DATASET_LEAVES + 1))):
        with pytest.raises(PolicyError, match="FF-APP-721"):
            network.server.serve(encode(replace(asked, leaves=leaves)))
    with pytest.raises(PolicyError, match="FF-APP-721"):
        network.server.serve(encode(replace(asked, job=ZERO_HASH)))


def test_what_a_run_keeps_of_the_tree_is_not_believed(made: Any) -> None:
    network = made()
    network.file.path.with_suffix(".tree").write_bytes(bytes(32 * 4))
    assert network.server.supplied() == network.manifest
    assert network.file.is_named(network.terms.dataset)
    assert network.file.is_named(network.file.content())  # as an earlier farflung named it
    assert not network.file.is_named(ZERO_HASH)

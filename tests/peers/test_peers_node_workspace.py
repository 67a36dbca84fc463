"""Where a lease's work is done: what counts as set up, and what a start may bring."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from farflung.core.crypto import NS_OBJECT, digest, local_key
from farflung.core.errors import NetworkError, RunError, VerificationError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import JobSpec, JobTerms
from farflung.job.token_tree import DatasetRoot, pack_root
from farflung.peers.node.token_supply import TokenSupply
from farflung.peers.node.workspace import JobWorkspace, ask
from farflung.peers.program.worker_bounds import CARD_SPACE, bounds_of_lease
from farflung.peers.protocol.messages import LeaseOfferRequest, LeaseStartRequest
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import seal
from farflung.train import worker_messages
from farflung.train.worker_messages import DatasetLeaves

ME, REQUESTER = local_key(1, "verifier"), local_key(1, "requester").public
DATA, JOB_KEY = b"a packed data set", bytes(range(32))
TERMS = JobTerms(
    JobSpec(), digest(NS_OBJECT, DATA), ZERO_HASH, TensorLayout.of({"w": (4,)}), REQUESTER, digest(NS_OBJECT, b"")
)
READY = worker_messages.SetupResult(*([0] * len(worker_messages.SetupResult.__struct_fields__)))


class Scripted:
    """A worker that knows one answer."""

    def __init__(self, reply: Any) -> None:
        self.reply, self.asked = reply, list[worker_messages.Request]()

    async def request(self, message: worker_messages.Request) -> Any:
        self.asked.append(message)
        return self.reply


async def nobody(peer: PeerId) -> Any:
    raise NetworkError("FF-NET-070", "nobody answers")


def start(disk: DiskObjectStore | None = None) -> LeaseStartRequest:
    """A start whose objects lie on the disk already, if there is one."""
    found = []
    for content in (DATA, b""):
        manifest, chunks = seal(JOB_KEY, content)
        found.append(manifest)
        if disk is not None:
            disk.put(manifest, chunks)
    data, nothing = found
    return LeaseStartRequest(TERMS.id, b"", 0, (), (), data, nothing, nothing, nothing, 0, ())


@pytest.mark.whole
def test_a_worker_that_was_never_told_the_job_does_not_count_as_set_up(tmp_path: Path) -> None:
    disk, worker = DiskObjectStore(tmp_path, "provider.store"), Scripted(READY)
    place = JobWorkspace(ME, TERMS, disk, nobody, len(DATA))
    place.device = "cuda:1"
    with pytest.raises(NetworkError):
        asyncio.run(place.enter(start(), JOB_KEY, worker, REQUESTER))
    assert not place.is_set_up(worker, JOB_KEY)  # the same start again brings the data, and asks the worker
    assert not worker.asked
    asyncio.run(place.enter(start(disk), JOB_KEY, worker, REQUESTER))
    assert place.is_set_up(worker, JOB_KEY)
    assert not place.is_set_up(worker, bytes(32))
    (setup,) = worker.asked
    assert isinstance(setup, worker_messages.SetupCommand)
    assert (setup.dataset, setup.module, setup.device) == (DATA, b"", "cuda:1")


def test_of_a_large_data_set_a_round_is_brought_before_it_is_worked_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskObjectStore(tmp_path, "provider.store")
    named = pack_root(DatasetRoot(1, 10_000, 5_000, Hash(bytes(32)), Hash(bytes(32))))
    manifest, chunks = seal(JOB_KEY, named)
    disk.put(manifest, chunks)
    begin = replace(start(disk), dataset=manifest, member=2)
    asked = list[object]()

    async def bring(_: TokenSupply, rounds: object, *more: object) -> tuple[DatasetLeaves, ...]:
        asked.append((rounds, *more))
        return (DatasetLeaves(False, b"leaves"),)

    async def work(spec: JobSpec) -> list[object]:
        place = JobWorkspace(ME, replace(TERMS, spec=spec), disk, nobody, len(named))
        worker = Scripted(READY)
        await place.enter(begin, JOB_KEY, worker, REQUESTER)
        worker.reply = worker_messages.HoldTokensResult(1)
        await place.supply(3)
        await place.supply(4, (0, 1), (ME.public,), (9, 8))
        setup, *held = worker.asked
        assert isinstance(setup, worker_messages.SetupCommand)
        assert setup.dataset == named
        assert held == [worker_messages.HoldTokensCommand((DatasetLeaves(False, b"leaves"),))] * 2
        return asked

    monkeypatch.setattr(TokenSupply, "bring", bring)
    spec = JobSpec(rounds=9)
    seen = asyncio.run(work(spec))
    assert seen == [([(3, 2)], (), None), ([(4, 0), (4, 1)], (ME.public,), (9, 8))]
    asked.clear()
    ahead = replace(spec, sync=replace(spec.sync, delay=1))
    assert asyncio.run(work(ahead))[0] == ([(3, 2), (4, 2)], (), None)  # it trains the next round ahead


def test_a_start_brings_what_the_terms_name_and_nothing_else(tmp_path: Path) -> None:
    place = JobWorkspace(ME, TERMS, DiskObjectStore(tmp_path, "provider.store"), nobody, len(DATA))
    place.check(start(), JOB_KEY, {})
    with pytest.raises(VerificationError, match="the job's key is another"):
        place.check(start(), b"short", {})
    with pytest.raises(VerificationError, match="the rounds is another"):
        place.check(start(), JOB_KEY, {"the rounds": True})
    small = JobWorkspace(ME, TERMS, DiskObjectStore(tmp_path / "2", "provider.store"), nobody, 1)
    with pytest.raises(VerificationError, match="the data set is another"):
        small.check(start(), JOB_KEY, {})


def test_an_answer_to_another_question_is_none() -> None:
    with pytest.raises(RunError, match="FF-APP-037"):
        asyncio.run(ask(Scripted(READY), worker_messages.InitializeCommand(), worker_messages.StateResult))


def test_a_worker_on_a_card_may_reserve_what_its_runtime_does() -> None:
    offer = LeaseOfferRequest(1, ZERO_HASH, TERMS, len(DATA), 1 << 30, 1, 0, 1000, 0)
    here, there = (bounds_of_lease(offer, 1, 10**9, device) for device in ("cpu", "cuda:0"))
    assert there.address_space == CARD_SPACE > here.address_space
    assert replace(there, address_space=here.address_space) == here

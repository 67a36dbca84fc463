"""Publishes a model at a seat of a network and takes it back, finds one by name, and fetches it: by hash, held against
the ledger.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_MODEL_RECORD, SigningKey
from farflung.core.errors import FarflungError, NetworkError, PolicyError, UsageError
from farflung.core.ids import PeerId
from farflung.job.spec import AncestorRun, JobTerms
from farflung.ledger.block import Genesis
from farflung.net.counters import ByteCounter
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.messages import MessageKind, RemoteError
from farflung.peers.ledger_client.client import LedgerClient, serve_nothing
from farflung.peers.ledger_client.connect import reaches_of, validators_in
from farflung.peers.ledger_client.quorum_read import Reach
from farflung.peers.network.model_registry import no_models, unproven, unpublished
from farflung.peers.network.published_model import (
    FIND,
    FORMAT,
    OPEN_KEY,
    PREFIX,
    PUBLISH,
    WITHDRAW,
    ModelQuery,
    ModelReply,
    ModelWithdrawal,
    PublishedModelRecord,
    SignedModelRecord,
    check_licence,
    check_record,
    job_fault,
    untrue,
)
from farflung.peers.process.config import LedgerConfig
from farflung.peers.transfer import objects
from farflung.store.io.disk_store import DiskObjectStore
from farflung.train import public_state
from farflung.train.blobs import parts_of
from farflung.train.public_state import PublicState

FIND_SECONDS: Final = 20.0  # for a seat to answer
_KEEPS_NONE: Final = frozenset({"FF-APP-649", "FF-APP-654"})


class ModelSource(NamedTuple):
    """The network that a model is on, and the account that asks."""

    genesis: Genesis
    ledger: LedgerConfig
    account: SigningKey


@dataclass(frozen=True)
class FoundModel:
    """A model that the ledger proves, and the seats that keep it."""

    record: PublishedModelRecord
    terms: JobTerms
    seats: tuple[PeerId, ...]

    @property
    def lineage(self) -> tuple[AncestorRun, ...]:
        """What a run that starts from it stands on, nearest first."""
        return AncestorRun(self.record.chain, self.terms.id, self.record.root), *self.terms.lineage


class _Seats(NamedTuple):
    """Ways to a network's seats, and a client of its ledger."""

    ways: Mapping[PeerId, Reach]
    ledger: LedgerClient

    async def dial(self, peer: PeerId) -> Connection:
        return await self.ways[peer]()


@asynccontextmanager
async def _seats(source: ModelSource) -> AsyncIterator[_Seats]:
    endpoint = Endpoint(source.account, serve_nothing, ByteCounter())
    try:
        places = validators_in(source.ledger)
        reaches = reaches_of(places, endpoint)
        ways = {place[0]: reach for place, reach in zip(places, reaches, strict=True)}
        yield _Seats(ways, LedgerClient(reaches, source.account, source.genesis))
    finally:
        await endpoint.close()


async def publish(
    source: ModelSource, name: str, licence: str, terms: JobTerms, state: PublicState, scratch: Path
) -> PublishedModelRecord:
    """Leaves a run's last public state with the first seat that keeps models; `scratch` is a folder with room for it.

    Raises UsageError FF-APP-645 (licence), PolicyError FF-APP-644 (the ledger does not prove it), FF-APP-647 (name),
    FF-APP-648 (no room), FF-APP-649 (nobody keeps models), NetworkError.
    """
    check_licence(licence)
    chain, own, root = source.genesis.chain, source.account.public, state.root(terms.layout)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        disk = DiskObjectStore(Path(folder), "publish")
        manifest = disk.seal(OPEN_KEY, *parts_of(public_state.pieces(state, terms.layout)))
        record = PublishedModelRecord(FORMAT, chain, own, name, licence, root, encode(terms), manifest)
        signed = SignedModelRecord(record, source.account.sign(NS_MODEL_RECORD, encode(record)))
        check_record(signed, chain)
        async with _seats(source) as seats:
            if fault := job_fault(await seats.ledger.job(terms.id), terms, own, root):
                raise unproven(fault)
            peer = await _admitted(seats, signed)
            await objects.push(disk, manifest, peer, seats.dial, MessageKind.JOIN)
    return record


async def _admitted(seats: _Seats, signed: SignedModelRecord) -> PeerId:
    """The seat that takes it."""
    away: FarflungError | None = None
    for peer, reach in seats.ways.items():
        try:
            await (await reach()).call(PUBLISH, encode(signed))
            return peer
        except RemoteError as error:
            away = PolicyError(error.code, error.message, cause=error.cause, hint=error.hint)
            match error.code:
                case "FF-APP-030" | "FF-APP-648" | "FF-APP-649":
                    continue  # it keeps no models, or has no room: another seat may
                case _:
                    raise away from error
        except NetworkError as error:
            away = error
    raise no_models() if away is None or away.code == "FF-APP-030" else away


class Withdrawal(NamedTuple):
    """Seats that deleted a model, and those that did not answer or do not know how: one of these may keep it."""

    done: tuple[PeerId, ...]
    away: tuple[PeerId, ...]


async def withdraw(source: ModelSource, name: str) -> Withdrawal:
    """Takes the account's model of that name back from every seat.

    Raises PolicyError FF-APP-654 where none of them has it, NetworkError where one that may does not answer.
    """
    done, away = list[PeerId](), list[PeerId]()
    failed: FarflungError | None = None
    async with _seats(source) as seats:
        for peer, reach in seats.ways.items():
            try:
                await (await reach()).call(WITHDRAW, encode(ModelWithdrawal(name)), timeout=FIND_SECONDS)
                done.append(peer)
            except NetworkError as error:
                if error.code not in _KEEPS_NONE:
                    away.append(peer)
                    failed = error
        if not done:
            raise failed or unpublished(name)
    return Withdrawal(tuple(done), tuple(away))


async def find(source: ModelSource, query: ModelQuery) -> FoundModel:
    """The model of that name.

    Raises PolicyError FF-APP-641 (there is none), UsageError FF-APP-642 (several accounts have one), VerificationError
    FF-APP-643 (it does not hold), NetworkError where no seat answers.
    """
    async with _seats(source) as seats:
        holders: dict[bytes, tuple[SignedModelRecord, list[PeerId]]] = {}
        answered, away, forged = False, None, None
        for peer, reach in seats.ways.items():
            try:
                said = await (await reach()).call(FIND, encode(query), timeout=FIND_SECONDS)
                found = decode(said, ModelReply, limits.CONTROL_BYTES).found
            except RemoteError:
                answered = True  # it keeps none
                continue
            except NetworkError as error:
                away = error
                continue
            answered = True
            for each in found:
                try:
                    check_record(each, source.genesis.chain)
                except FarflungError as error:
                    forged = error  # another seat may have the true one
                    continue
                if each.record.name == query.name and each.record.account.hex().startswith(query.account):
                    holders.setdefault(encode(each), (each, []))[1].append(peer)
        if not holders and (failed := forged or (None if answered else away)) is not None:
            raise failed
        signed, peers = _only(query, list(holders.values()))
        terms, record = check_record(signed, source.genesis.chain), signed.record
        if fault := job_fault(await seats.ledger.job(terms.id), terms, record.account, record.root):
            raise untrue(fault)
        return FoundModel(record, terms, tuple(peers))


def _only(
    query: ModelQuery, found: list[tuple[SignedModelRecord, list[PeerId]]]
) -> tuple[SignedModelRecord, list[PeerId]]:
    name = f"{PREFIX}{query.account}/{query.name}" if query.account else f"{PREFIX}{query.name}"
    if not found:
        raise PolicyError(
            "FF-APP-641",
            f"no model {name} is published on this network",
            cause="none of its seats that answer keeps one of that name",
            hint="farflung publish RUN --on NETWORK --name NAME --licence SPDX puts one there",
        )
    accounts = sorted({each.record.account.hex() for each, _ in found})
    if len(found) > 1:
        raise UsageError(
            "FF-APP-642",
            f"{name} is published more than once",
            cause=f"by accounts {', '.join(account[:16] for account in accounts)}",
            hint=f'name one: model.start = "{PREFIX}{accounts[0][:16]}/{query.name}"',
        )
    return found[0]


async def fetch(source: ModelSource, found: FoundModel, scratch: Path) -> PublicState:
    """The model's last public state, by way of a folder with room for it: each chunk is checked by its hash, all of it
    by the root on the ledger.

    Raises VerificationError FF-APP-643 (other weights), NetworkError FF-APP-034 (nobody has it).
    """
    manifest, layout = found.record.manifest, found.terms.layout
    async with _seats(source) as seats:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            disk = DiskObjectStore(Path(folder), "start")
            await objects.fetch(disk, manifest, found.seats, seats.dial, MessageKind.JOIN)
            data = disk.content(OPEN_KEY, manifest)
    try:
        state = public_state.unpack(data, layout)
    except FarflungError as error:
        raise untrue(error.message) from error
    if state.root(layout) != found.record.root:
        raise untrue("its weights do not have the root that the ledger records")
    return state

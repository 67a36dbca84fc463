"""A seat or a publisher that gives another model than the one that the ledger proves: nobody starts from it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from published_models import GENESIS, OWNER, RIVAL, ModelWorld, model_world, state_of, terms_of

from farflung.core.codec import encode
from farflung.core.crypto import NS_MODEL_RECORD, SigningKey
from farflung.core.errors import FarflungError
from farflung.peers.network.model_registry import ModelRegistry
from farflung.peers.network.model_transfer import fetch, find, publish
from farflung.peers.network.published_model import OPEN_KEY, ModelQuery, PublishedModelRecord, SignedModelRecord
from farflung.store.sealed_objects import seal
from farflung.train.public_state import pack
from farflung.train.tensor_file import largest

TERMS, TRUE, FALSE = terms_of(), state_of(), state_of(9)


def forged(record: PublishedModelRecord, key: SigningKey = OWNER) -> SignedModelRecord:
    return SignedModelRecord(record, key.sign(NS_MODEL_RECORD, encode(record)))


def with_weights(registry: ModelRegistry, record: PublishedModelRecord) -> PublishedModelRecord:
    """The record over other weights, which the seat keeps."""
    manifest, chunks = seal(OPEN_KEY, pack(FALSE, TERMS.layout))
    registry._disk.put(manifest, chunks)
    return replace(record, manifest=manifest)


def with_bytes(registry: ModelRegistry, record: PublishedModelRecord) -> PublishedModelRecord:
    manifest, chunks = seal(OPEN_KEY, bytes(largest(TERMS.layout) + 1))
    registry._disk.put(manifest, chunks)
    return replace(record, manifest=manifest)


def altered_chunk(registry: ModelRegistry, true: SignedModelRecord) -> SignedModelRecord:
    path = next(registry._disk.root.glob("*.data"))
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    return true


async def start(world: ModelWorld, scratch: Path) -> None:
    """What a run does that starts from it."""
    await fetch(world.source(RIVAL), await find(world.source(RIVAL), ModelQuery("model")), scratch)


ATTACKS = {
    "the seat alters a chunk": (altered_chunk, "FF-APP-034"),
    "the publisher leaves other weights": (lambda at, true: forged(with_weights(at, true.record)), "FF-APP-643"),
    "the seat signs for the publisher": (lambda at, true: forged(with_weights(at, true.record), RIVAL), "FF-APP-643"),
    "the seat changes the licence": (lambda at, true: replace(true, record=replace(true.record, licence="X")), "643"),
    "another account takes the job": (
        lambda at, true: forged(replace(true.record, account=RIVAL.public), RIVAL),
        "FF-APP-643",
    ),
    "a record names a job that never was": (
        lambda at, true: forged(replace(true.record, terms=encode(terms_of(RIVAL)))),
        "FF-APP-643",
    ),
    "a record is of another network": (lambda at, true: forged(replace(true.record, chain=TERMS.id)), "FF-APP-643"),
    "more bytes than a state of the job has": (lambda at, true: forged(with_bytes(at, true.record)), "FF-APP-646"),
    "a root that the ledger does not record": (
        lambda at, true: forged(replace(with_weights(at, true.record), root=FALSE.root(TERMS.layout))),
        "FF-APP-643",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_nobody_starts_from_another_model(attack: str, tmp_path: Path) -> None:
    act, code = ATTACKS[attack]

    async def play(world: ModelWorld) -> None:
        await world.job(TERMS, TRUE)
        await publish(world.source(), "model", "MIT", TERMS, TRUE, tmp_path)
        registry = world.service._network.models
        (place, true) = next(iter(registry._kept.items()))
        registry._kept[place] = act(registry, true)
        with pytest.raises(FarflungError) as found:
            await start(world, tmp_path)
        assert code in found.value.code

    async def whole() -> None:
        assert GENESIS.chain
        async with model_world(tmp_path / "seat") as world:
            await play(world)

    asyncio.run(whole())


def test_an_object_without_a_record_is_not_taken(tmp_path: Path) -> None:
    async def whole() -> None:
        async with model_world(tmp_path / "seat") as world:
            manifest, _ = seal(OPEN_KEY, b"what a stranger wants to keep here")
            with pytest.raises(FarflungError, match="FF-APP-644"):
                world.service._network.models.serve(RIVAL.public, "object.begin", encode(manifest))
            with pytest.raises(FarflungError, match="FF-APP-039"):
                world.service._network.models.serve(RIVAL.public, "object.put", encode((manifest.id, 0, b"x")))

    asyncio.run(whole())

"""A model is published once, under a name, by whoever paid for its job; others find and fetch it, or read why not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from published_models import BEFORE, GENESIS, NODE, OWNER, RIVAL, ModelWorld, model_world, state_of, terms_of

from farflung.core.codec import encode
from farflung.core.crypto import NS_MODEL_RECORD, SigningKey
from farflung.core.errors import FarflungError
from farflung.job.spec import AncestorRun, JobSpec, JobTerms, NetworkSpec
from farflung.peers.network.model_registry import FREE_BYTES, PENDING_SECONDS, _ModelStore
from farflung.peers.network.model_transfer import fetch, find, publish, withdraw
from farflung.peers.network.published_model import (
    FORMAT,
    OPEN_KEY,
    ModelQuery,
    PublishedModelRecord,
    SignedModelRecord,
    check_licence,
    check_name,
    query_of,
)
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import seal
from farflung.train.public_state import PublicState, pack


def run(folder: Path, play: Callable[[ModelWorld], Any], **facts: Any) -> None:
    async def whole() -> None:
        async with model_world(folder / "seat", **facts) as world:
            await play(world)

    asyncio.run(whole())


def signed(name: str, key: SigningKey, terms: JobTerms, state: PublicState, **changed: Any) -> SignedModelRecord:
    manifest, _ = seal(OPEN_KEY, pack(state, terms.layout))
    root = state.root(terms.layout)
    record = PublishedModelRecord(FORMAT, GENESIS.chain, key.public, name, "MIT", root, encode(terms), manifest)
    record = replace(record, **changed)
    return SignedModelRecord(record, key.sign(NS_MODEL_RECORD, encode(record)))


def test_a_published_model_is_found_by_its_name_and_fetched_with_its_lineage(tmp_path: Path) -> None:
    async def play(world: ModelWorld) -> None:
        terms, state = terms_of(), state_of()
        await world.job(terms, state)
        record = await publish(world.source(), "first", "Apache-2.0", terms, state, tmp_path)
        await publish(world.source(), "first", "Apache-2.0", terms, state, tmp_path)  # the same again changes nothing
        for start in ("net:first", f"net:{OWNER.public.hex()[:16]}/first"):
            found = await find(world.source(RIVAL), query_of(start))
            assert found.record == record
        assert found.lineage == (AncestorRun(GENESIS.chain, terms.id, state.root(terms.layout)), BEFORE)
        got = await fetch(world.source(RIVAL), found, tmp_path)
        assert (got.params == state.params).all()

    run(tmp_path, play)
    assert list(tmp_path.iterdir()) == [tmp_path / "seat"]

    async def again(world: ModelWorld) -> None:
        found = await find(world.source(RIVAL), ModelQuery("first"))
        assert (await fetch(world.source(RIVAL), found, tmp_path)).round == 1

    run(tmp_path, again)  # a seat that was restarted keeps it


UNCHECKED = terms_of(spec=JobSpec(network=NetworkSpec(verifiers=0)))
REFUSED: dict[str, tuple[str, Callable[[ModelWorld], Any]]] = {
    "unknown job": ("FF-APP-644", lambda world: ("x", "MIT", terms_of(), state_of(), None)),
    "not settled": ("FF-APP-644", lambda world: ("x", "MIT", terms_of(), state_of(), False)),
    "other weights": ("FF-APP-644", lambda world: ("x", "MIT", terms_of(), state_of(4), True)),
    "never checked": ("FF-APP-644", lambda world: ("x", "MIT", UNCHECKED, state_of(), True)),
    "wrong licence": ("FF-APP-645", lambda world: ("x", "free, as in beer", terms_of(), state_of(), True)),
    "wrong name": ("FF-APP-646", lambda world: ("../x", "MIT", terms_of(), state_of(), True)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_cannot_be_published_says_why(case: str, tmp_path: Path) -> None:
    code, what = REFUSED[case]

    async def play(world: ModelWorld) -> None:
        name, licence, terms, state, settled = what(world)
        if settled is not None:
            await world.job(terms, state_of(), settled=settled)
        with pytest.raises(FarflungError) as found:
            await publish(world.source(), name, licence, terms, state, tmp_path)
        assert found.value.code == code
        assert found.value.cause

    run(tmp_path, play)


@pytest.mark.parametrize(("room", "code"), [(0, "FF-APP-649"), (100_000, "FF-APP-648")])
def test_a_seat_without_room_says_so(room: int, code: str, tmp_path: Path) -> None:
    async def play(world: ModelWorld) -> None:
        await world.job(terms_of(), state_of())
        with pytest.raises(FarflungError, match=code) as found:
            await publish(world.source(), "x", "MIT", terms_of(), state_of(), tmp_path)
        assert found.value.hint

    run(tmp_path, play, model_bytes=room)


def test_names_are_unique_for_an_account_and_told_apart_by_it(tmp_path: Path) -> None:
    other, mine = terms_of(RIVAL, JobSpec(seed=5)), terms_of()

    async def play(world: ModelWorld) -> None:
        await world.job(mine, state_of())
        await publish(world.source(), "same", "MIT", mine, state_of(), tmp_path)
        with pytest.raises(FarflungError, match="FF-APP-647"):
            await publish(world.source(), "same", "CC0-1.0", mine, state_of(), tmp_path)
        with pytest.raises(FarflungError, match="FF-APP-641"):
            await find(world.source(), ModelQuery("other"))
        await world.job(other, state_of(8), RIVAL)
        await publish(world.source(RIVAL), "same", "MIT", other, state_of(8), tmp_path)
        with pytest.raises(FarflungError, match="FF-APP-642"):
            await find(world.source(), ModelQuery("same"))
        found = await find(world.source(), ModelQuery("same", RIVAL.public.hex()[:12]))
        assert found.record.account == RIVAL.public

    run(tmp_path, play)


@pytest.mark.parametrize("start", ["net:", "net:A", "net:a b", "net:xyz/a", "net:0123/a", "net:../a"])
def test_a_start_that_names_no_model_is_refused(start: str) -> None:
    with pytest.raises(FarflungError, match="FF-APP-652"):
        query_of(start)


@pytest.mark.parametrize("name", ["", "net:a", "0123abcd/a", "A", "a b", "../a"])
def test_a_name_that_no_model_can_have_is_refused_before_the_run_is_proven(name: str) -> None:
    with pytest.raises(FarflungError, match="FF-APP-652") as found:
        check_name(name)
    assert found.value.hint


@pytest.mark.parametrize("licence", ["MIT", "CC-BY-4.0", "GPL-2.0+", "MIT OR Apache-2.0", "LicenseRef-mine"])
def test_spdx_expressions_are_licences(licence: str) -> None:
    check_licence(licence)


@pytest.mark.parametrize("licence", ["", "-", "MIT,", "mit or apache", "A\nB", "M" * 101])
def test_other_texts_are_not(licence: str) -> None:
    with pytest.raises(FarflungError, match="FF-APP-645"):
        check_licence(licence)


def test_one_account_cannot_fill_a_seat(tmp_path: Path) -> None:
    async def play(world: ModelWorld) -> None:
        terms, state = terms_of(), state_of()
        await world.job(terms, state)
        registry = world.service._network.models
        for number in range(8):
            others = terms_of(spec=JobSpec(seed=number + 2))
            registry._kept[OWNER.public, f"m{number}"] = signed(f"m{number}", OWNER, others, state)
        with pytest.raises(FarflungError, match="FF-APP-648"):
            registry.publish(OWNER.public, signed("more", OWNER, terms, state))
        with pytest.raises(FarflungError, match="FF-APP-644"):  # another peer may not use its record
            registry.publish(NODE.public, signed("more", OWNER, terms, state))

    run(tmp_path, play)


def test_a_job_stands_for_one_name_so_that_each_name_costs_a_job(tmp_path: Path) -> None:
    async def play(world: ModelWorld) -> None:
        terms, state = terms_of(), state_of()
        await world.job(terms, state)
        await publish(world.source(), "one", "MIT", terms, state, tmp_path)
        with pytest.raises(FarflungError, match="FF-APP-655") as found:
            await publish(world.source(), "two", "MIT", terms, state, tmp_path)
        assert "--withdraw one" in found.value.hint
        assert (await withdraw(world.source(), "one")).away == ()
        await publish(world.source(), "two", "MIT", terms, state, tmp_path)

    run(tmp_path, play)


def test_whoever_published_a_model_takes_it_back_and_nobody_else_does(tmp_path: Path) -> None:
    mine, other = terms_of(), terms_of(RIVAL, JobSpec(seed=5))

    async def play(world: ModelWorld) -> None:
        await world.job(mine, state_of())
        await world.job(other, state_of(), RIVAL)
        await publish(world.source(), "same", "MIT", mine, state_of(), tmp_path)
        await publish(world.source(RIVAL), "same", "MIT", other, state_of(), tmp_path)
        models = world.service._network.models
        data = list(models._disk.root.glob("*.data"))
        for key, name in ((NODE, "same"), (OWNER, "other"), (OWNER, "../same")):
            with pytest.raises(FarflungError, match="FF-APP-654"):
                await withdraw(world.source(key), name)
        await withdraw(world.source(), "same")
        assert (await find(world.source(), ModelQuery("same"))).record.account == RIVAL.public
        assert list(models._disk.root.glob("*.data")) == data  # the other's model has the same bytes
        await withdraw(world.source(RIVAL), "same")
        assert not list(models._disk.root.glob("*.data"))
        with pytest.raises(FarflungError, match="FF-APP-654"):
            await withdraw(world.source(), "same")

    async def again(world: ModelWorld) -> None:
        with pytest.raises(FarflungError, match="FF-APP-641"):
            await find(world.source(), ModelQuery("same"))

    run(tmp_path, play)
    run(tmp_path, again)  # a seat that was restarted has forgotten it


def test_what_a_publisher_left_half_done_is_counted_deleted_in_time_and_deleted_by_nobody_else(tmp_path: Path) -> None:
    async def play(world: ModelWorld) -> None:
        mine, other = terms_of(), terms_of(RIVAL)
        await world.job(mine, state_of())
        await world.job(other, state_of(8), RIVAL)
        registry, now = world.service._network.models, [0.0]
        registry._clock = lambda: now[0]
        manifest, chunks = seal(OPEN_KEY, pack(state_of(), mine.layout))
        rest = registry._disk.root / f"{manifest.id.hex()}.data"

        registry.publish(OWNER.public, signed("a", OWNER, mine, state_of()))
        registry.serve(OWNER.public, "object.begin", encode(manifest))
        registry.serve(OWNER.public, "object.put", encode((manifest.id, 0, chunks[0])))
        registry._free = lambda _: FREE_BYTES + 2 * manifest.size - 1
        with pytest.raises(FarflungError, match="FF-APP-648"):  # its bytes are still to come
            registry.publish(RIVAL.public, signed("b", RIVAL, other, state_of(8)))
        registry._free = lambda _: FREE_BYTES + 2 * manifest.size

        registry.publish(RIVAL.public, signed("b", RIVAL, other, state_of(8), manifest=manifest))
        registry.publish(RIVAL.public, signed("b", RIVAL, other, state_of(8)))
        assert rest.exists()  # another publisher named the same bytes, and then others

        now[0] = PENDING_SECONDS
        registry.publish(RIVAL.public, signed("b", RIVAL, other, state_of(8)))
        assert not rest.exists()

    run(tmp_path, play)


def test_a_model_that_is_begun_again_is_looked_through_only_where_it_was_found_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    check = DiskObjectStore._is_sound

    def counted(store: DiskObjectStore, *chunk: Any) -> bool:
        looked.append(chunk[-1])
        return check(store, *chunk)

    monkeypatch.setattr(DiskObjectStore, "_is_sound", counted)
    manifest, chunks = seal(OPEN_KEY, bytes(3_000_000))
    store, path = _ModelStore(tmp_path, "model"), tmp_path / f"{manifest.id.hex()}.data"
    whole = tuple(range(len(chunks)))
    assert store.begin(manifest) == whole
    store.write_chunk(manifest.id, 0, chunks[0])
    assert store.begin(manifest) == whole[1:]
    for index in whole[1:]:
        store.write_chunk(manifest.id, index, chunks[index])
    store.finish(manifest.id)
    assert store.begin(manifest) == ()
    assert len(looked) == len(chunks)  # by the first one
    data = path.read_bytes()
    path.write_bytes(bytes(1) + data[1:])
    with pytest.raises(FarflungError, match="FF-STOR-012"):
        store.chunk(manifest.id, 0)
    assert store.begin(manifest) == (0,)
    store.write_chunk(manifest.id, 0, chunks[0])
    store.finish(manifest.id)
    assert path.read_bytes() == data

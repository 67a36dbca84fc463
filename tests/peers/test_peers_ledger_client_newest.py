"""What a read promises: proved, never older than what the same client saw; and after `refresh`, the newest there is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from app_seats import FIRST, REGISTERS, Town, run
from ledger_committee import OWNERS
from msgspec.structs import replace

from farflung.core.codec import encode
from farflung.core.errors import NetworkError, RunError, VerificationError
from farflung.ledger import queries
from farflung.ledger.tx_results import RejectedResult
from farflung.peers.ledger_client.client import LedgerClient

ANN, BEN = OWNERS[2], OWNERS[3]


async def play(town: Town, *, is_fresh: bool) -> None:
    await asyncio.gather(*(town.play(home, 8, is_fresh=is_fresh) for home in range(4)))


@pytest.mark.parametrize("seed", range(6))
def test_registers_are_linearizable_to_who_refreshes(seed: int):
    town = run(seed, lambda town: play(town, is_fresh=True))
    assert not town.contradictions, seed
    assert sum(len(each) for each in town.histories) >= 24


def test_the_same_clients_see_stale_registers_when_they_do_not_refresh():
    towns = [run(seed, lambda town: play(town, is_fresh=False)) for seed in range(3)]
    assert all(town.contradictions for town in towns)


def test_a_read_is_proved_and_may_be_stale_and_a_refresh_makes_it_the_newest():
    async def body(town: Town) -> None:
        assert await town.write(0, town.client(REGISTERS[0]))
        late = town.client(ANN, first=3)  # asks first who keeps to the past
        assert await town.read(0, late, is_fresh=False) == FIRST
        assert town.contradictions
        town.histories[0].pop()
        assert await town.read(0, late, is_fresh=True) != FIRST
        assert not town.contradictions

    run(1, body)


def test_who_has_seen_a_block_is_shown_no_older_one():
    async def body(town: Town) -> None:
        assert await town.write(0, town.client(REGISTERS[0]))
        client = town.client(ANN)
        await client.refresh()
        seen = await town.read(0, client, is_fresh=False)
        chains = [seat.chain for seat in town.seats]
        for seat in town.seats:
            seat.chain = town.old
        with pytest.raises(NetworkError, match="FF-APP-321"):
            await client.node(REGISTERS[0].public)
        with pytest.raises(NetworkError, match="FF-APP-321"):
            await client.head()
        town.seats[1].chain = chains[1]
        assert await town.read(0, client, is_fresh=False) == seen
        assert await town.read(0, town.client(BEN, first=3), is_fresh=False) == FIRST  # which another one may be

    run(2, body)


async def look_at_a_row(client: LedgerClient) -> None:
    await client.node(REGISTERS[0].public)


async def look_at_the_head(client: LedgerClient) -> None:
    await client.head()


@pytest.mark.parametrize("look", [look_at_a_row, look_at_the_head])
def test_one_look_is_enough_to_be_shown_nothing_older(look: Callable[[LedgerClient], Awaitable[None]]):
    async def body(town: Town) -> None:
        assert await town.write(0, town.client(REGISTERS[0]))
        await asyncio.sleep(10)  # until all have it
        client = town.client(ANN)
        await look(client)
        for seat in town.seats:
            seat.chain = town.old
        with pytest.raises(NetworkError, match="FF-APP-321"):
            await look(client)

    run(7, body)


def test_a_head_that_the_committee_did_not_certify_is_nobodys():
    async def body(town: Town) -> None:
        call = town.call

        async def lies(index: int, data: bytes) -> bytes:
            said = queries.read_reply(await call(index, data))
            if isinstance(said, queries.HeadReply):
                said = replace(said, header=replace(said.header, height=said.header.height + 1))
            return encode(said)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(town, "call", lies)
            with pytest.raises(VerificationError, match="FF-LEDG-072"):
                await town.client(ANN).head()

    run(8, body)


def test_who_wrote_reads_what_it_wrote():
    async def body(town: Town) -> None:
        client = town.client(REGISTERS[0], first=3)
        assert await town.write(0, client)
        assert await town.read(0, client, is_fresh=False) == FIRST + 1

    run(3, body)


def test_a_mark_of_before_proves_nothing_so_each_is_drawn():
    async def body(town: Town) -> None:
        client = town.client(ANN)
        await client.refresh()
        mark = town.committee.chain.blocks[-1].txs[-1]
        assert await town.write(0, town.client(REGISTERS[0]))
        before = (await client._fate(mark)).height  # the same bytes are found where they were
        assert before is not None
        assert before < town.committee.chain.head.height <= await client.refresh()
        marks = [s.tx for b in town.committee.chain.blocks for s in b.txs if s.tx.sender == ANN.public]
        assert len({tx.ops for tx in marks}) == len(marks) == 2

    run(4, body)


def test_who_has_no_account_is_told_that_it_cannot_refresh():
    async def body(town: Town) -> None:
        client = town.client(OWNERS[2], patience=1.0)
        with pytest.MonkeyPatch.context() as patch:

            async def poor(_: object) -> object:
                return RejectedResult(b"", "FF-LEDG-006", "poor")  # type: ignore[arg-type]

            for seat in town.seats:
                patch.setattr(seat, "fate", poor)
            with pytest.raises(RunError, match="FF-APP-320"):
                await client.refresh()

    run(6, body)

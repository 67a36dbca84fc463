"""A client of several validators: who hangs, dies or lies costs it time, and nothing is ever paid twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from farflung.core.codec import encode
from farflung.core.crypto import NS_SPEC, digest, local_key
from farflung.core.errors import NetworkError, ProtocolError, RunError
from farflung.core.events import WarningEvent
from farflung.core.ids import Hash
from farflung.ledger import queries
from farflung.ledger.block import BlockHeader, Genesis, vote_for
from farflung.ledger.params import LedgerParams
from farflung.ledger.state_transition import apply_block, genesis_header, genesis_state
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.transactions import SignedTx, Transfer, make_tx, sign_tx, tx_id
from farflung.ledger.tx_results import AlreadyAppliedResult, AppliedResult, FailedResult, RejectedResult, Result
from farflung.ledger.votes import NO_CERTIFICATE, QuorumCertificate, VoteKind, certificate_of, sign_vote
from farflung.peers.ledger_client import quorum_read
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.connect import client_in_run

FOUR = tuple(local_key(21, "validator", seat) for seat in range(4))
ALICE, BOB = local_key(21, "alice"), local_key(21, "bob")
MONEY = 1_000_000
GENESIS = Genesis(
    "panel",
    5_000,
    tuple((key.public, MONEY) for key in (*FOUR, ALICE, BOB)),
    tuple(key.public for key in FOUR),
    LedgerParams(fee_min=10),
)
PAY = Transfer(BOB.public, 7)
Answer = Callable[[queries.Query], Any]


class World:
    """What honest validators agree on, and four of them to be asked; each may be given another way to answer."""

    def __init__(self) -> None:
        self.state, self.found = genesis_state(GENESIS), dict[Hash, tuple[int, str]]()
        self.asked: list[int] = []
        self.seen: list[tuple[int, SignedTx]] = []
        self.ways: list[Answer] = [self.honest] * 4

    def honest(self, query: queries.Query) -> queries.Reply:
        match query:
            case queries.SubmitRequest((signed,)):
                return queries.SubmitReply((self.take(signed),))
            case queries.GetAccount(owner):
                return queries.AccountReply(self.state.find(AccountRow, owner) or AccountRow(owner))
            case queries.GetCommittee():
                return queries.CommitteeReply(self.state.committee, self.state.params)
            case _:
                return self.head()

    def head(self) -> queries.HeadReply:
        height = self.state.height
        header = replace(genesis_header(GENESIS), height=height, time=self.state.time)
        return queries.HeadReply(header, certified(header) if height else NO_CERTIFICATE)

    def take(self, signed: SignedTx) -> Result:
        name = tx_id(signed)
        if name in self.found:
            return AlreadyAppliedResult(name, *self.found[name])
        after, (outcome,) = apply_block(self.state, self.state.time + 1000, [signed], FOUR[0].public)
        if not isinstance(outcome, RejectedResult):
            self.state = after
            self.found[name] = (outcome.height, outcome.code if isinstance(outcome, FailedResult) else "")
        return outcome

    @property
    def reaches(self) -> list[Any]:
        def reach(seat: int) -> Any:
            async def to() -> Any:
                return Line(self, seat)

            return to

        return [reach(seat) for seat in range(4)]

    def client(self, patience: float = 5.0, answer: float = 0.05) -> LedgerClient:
        return LedgerClient(self.reaches, ALICE, GENESIS, patience, answer)

    @property
    def paid(self) -> int:
        row = self.state.find(AccountRow, BOB.public)
        assert row is not None
        return row.balance - MONEY


def certified(header: BlockHeader) -> QuorumCertificate:
    vote = vote_for(header, 1, VoteKind.FINALIZE)
    return certificate_of([sign_vote(key, seat, vote) for seat, key in enumerate(FOUR)], len(FOUR))


class Line:
    """A connection to one of them."""

    def __init__(self, world: World, seat: int) -> None:
        self.world, self.seat = world, seat

    async def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        query = queries.read_query(body)
        self.world.asked.append(self.seat)
        if isinstance(query, queries.SubmitRequest):
            self.world.seen += [(self.seat, signed) for signed in query.txs]
        try:
            async with asyncio.timeout(timeout):
                answer = self.world.ways[self.seat](query)
                return encode(await answer if asyncio.iscoroutine(answer) else answer)
        except TimeoutError:
            raise NetworkError("FF-NET-047", "no answer in time") from None


async def hangs(_: queries.Query) -> Any:
    await asyncio.Event().wait()


def dies(_: queries.Query) -> Any:
    raise NetworkError("FF-NET-043", "nobody there")


def says(make: Callable[[SignedTx], Result]) -> Answer:
    def way(query: queries.Query) -> Any:
        assert isinstance(query, queries.SubmitRequest)
        return queries.SubmitReply(tuple(make(signed) for signed in query.txs))

    return way


def submits(world: World, lie: Answer) -> Answer:
    """Honest but for submissions."""
    return lambda query: lie(query) if isinstance(query, queries.SubmitRequest) else world.honest(query)


def run(body: Callable[[World], Any]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(30):
            await body(World())

    asyncio.run(scenario())


@pytest.mark.parametrize("way", [hangs, dies])
def test_who_does_not_answer_is_left_for_another_one(way: Answer) -> None:
    async def body(world: World) -> None:
        world.ways[0] = way
        client = world.client()
        await client.submit(PAY)
        assert world.paid == 7
        world.asked.clear()
        await client.submit(PAY)
        assert 0 not in world.asked  # asked last from now on
        assert world.paid == 14

    run(body)


def test_an_answer_that_was_lost_has_the_same_bytes_sent_elsewhere() -> None:
    async def body(world: World) -> None:
        def takes_and_dies(query: queries.Query) -> Any:
            world.honest(query)
            raise NetworkError("FF-NET-046", "the connection was lost")

        world.ways[0] = world.ways[1] = submits(world, takes_and_dies)
        await world.client().submit(PAY)
        assert len({signed for _, signed in world.seen}) == 1
        assert world.paid == 7

    run(body)


def test_a_refresh_does_not_forget_what_was_given_up() -> None:
    async def body(world: World) -> None:
        def takes_and_dies(query: queries.Query) -> Any:
            world.honest(query)
            raise NetworkError("FF-NET-046", "the connection was lost")

        client = world.client(patience=0.1)
        world.ways = [submits(world, takes_and_dies)] * 4
        with pytest.raises(NetworkError):
            await client.submit(PAY)
        world.ways = [world.honest] * 4
        await client.refresh()
        await client.submit(PAY)
        assert world.paid == 7

    run(body)


@pytest.mark.parametrize(
    "lie",
    [
        lambda signed: AppliedResult(tx_id(signed), 1),
        lambda signed: FailedResult(tx_id(signed), 1, 0, "FF-LEDG-010", "no"),
        lambda signed: RejectedResult(tx_id(signed), "FF-LEDG-004", "used"),
        lambda signed: RejectedResult(tx_id(signed), "FF-LEDG-005", "void"),
        lambda _: AppliedResult(digest(NS_SPEC, b"another"), 1),
    ],
)
def test_no_single_validator_is_believed_what_became_of_a_transaction(lie: Callable[[SignedTx], Result]) -> None:
    async def body(world: World) -> None:
        world.state = apply_block(world.state, 6_000, [], FOUR[0].public)[0]  # the truth is another height than the lie
        world.ways[0] = submits(world, says(lie))
        await world.client().submit(PAY)
        assert len({signed for _, signed in world.seen}) == 1
        assert world.paid == 7

    run(body)


def test_no_single_validator_is_believed_which_nonce_is_next() -> None:
    async def body(world: World) -> None:
        def lies(query: queries.Query) -> Any:
            is_asked = isinstance(query, queries.GetAccount)
            return queries.AccountReply(AccountRow(ALICE.public, MONEY, 7)) if is_asked else world.honest(query)

        world.ways[0] = lies
        await world.client().submit(PAY)
        assert [signed.tx.nonce for _, signed in world.seen] == [0, 0]
        assert world.paid == 7

    run(body)


def test_what_is_refused_by_enough_of_them_is_refused() -> None:
    async def body(world: World) -> None:
        with pytest.raises(RunError, match="FF-LEDG-010"):
            await world.client().submit(Transfer(BOB.public, 2 * MONEY))

    run(body)


def test_what_may_still_enter_is_never_signed_anew() -> None:
    async def body(world: World) -> None:
        def poor(signed: SignedTx) -> Result:
            world.state = apply_block(world.state, world.state.time + 1000, [], FOUR[0].public)[0]
            return RejectedResult(tx_id(signed), "FF-LEDG-006", "poor")

        world.ways = [submits(world, says(poor))] * 4
        client = world.client()
        with pytest.raises(RunError, match="FF-LEDG-006"):
            await client.submit(PAY)
        world.take(world.seen[0][1])  # somebody kept it
        world.ways = [world.honest] * 4
        await client.submit(PAY)
        assert len({signed for _, signed in world.seen}) == 1
        assert world.paid == 7

    run(body)


def test_an_answer_about_another_transaction_is_none() -> None:
    async def body(world: World) -> None:
        world.ways = [submits(world, says(lambda _: AppliedResult(digest(NS_SPEC, b"another"), 1)))] * 4
        with pytest.raises(ProtocolError, match="FF-APP-293"):
            await world.client().submit(PAY)

    run(body)


def test_a_pool_that_is_full_is_asked_again_with_the_same_bytes() -> None:
    async def body(world: World) -> None:
        full = [2]

        def way(query: queries.Query) -> Any:
            full[0] -= 1
            if full[0] >= 0 and isinstance(query, queries.SubmitRequest):
                return queries.SubmitReply((RejectedResult(tx_id(query.txs[0]), "FF-LEDG-350", "full"),))
            return world.honest(query)

        world.ways = [submits(world, way)] * 4
        await world.client().submit(PAY)
        assert len({signed for _, signed in world.seen}) == 1
        assert world.paid == 7

    run(body)


def test_an_intent_is_signed_anew_only_when_enough_say_that_the_first_is_void() -> None:
    async def body(world: World) -> None:
        late: list[SignedTx] = []

        def swallows(query: queries.Query) -> Any:
            assert isinstance(query, queries.SubmitRequest)
            if not late:
                late.append(query.txs[0])
            if query.txs[0] == late[0] and world.state.time < query.txs[0].tx.expires:
                world.state = apply_block(world.state, query.txs[0].tx.expires, [], FOUR[0].public)[0]
                raise NetworkError("FF-NET-047", "no answer in time")
            return world.honest(query)

        world.ways = [submits(world, swallows)] * 4
        await world.client().submit(PAY)
        assert len({signed for _, signed in world.seen}) == 2
        assert isinstance(world.take(late[0]), RejectedResult)
        assert world.paid == 7

    run(body)


def test_a_nonce_that_another_transaction_used_is_found_out_and_signed_anew() -> None:
    async def body(world: World) -> None:
        rival = make_tx(GENESIS.chain, ALICE.public, 0, Transfer(BOB.public, 1), fee=10)

        def before(query: queries.Query) -> Any:
            world.take(sign_tx(ALICE, rival))  # another process with the same key was quicker
            return world.honest(query)

        world.ways = [submits(world, before)] * 4
        await world.client().submit(PAY)
        assert world.paid == 8

    run(body)


def test_who_gave_up_and_submits_the_same_again_pays_once() -> None:
    async def body(world: World) -> None:
        def takes_and_dies(query: queries.Query) -> Any:
            world.honest(query)
            raise NetworkError("FF-NET-046", "the connection was lost")

        world.ways = [submits(world, takes_and_dies)] * 4
        client = world.client(patience=0.0)
        with pytest.raises(NetworkError, match="FF-NET-046"):
            await client.submit(PAY)
        assert world.paid == 7
        world.ways = [world.honest] * 4
        await client.submit(PAY)
        assert world.paid == 7
        await client.submit(PAY)  # asked for once more
        assert world.paid == 14

    run(body)


def test_what_was_given_up_is_settled_before_something_else_is_signed() -> None:
    async def body(world: World) -> None:
        client = world.client(patience=0.0)
        world.ways = [submits(world, dies)] * 4
        with pytest.raises(NetworkError, match="FF-NET-043"):
            await client.submit(PAY)
        world.ways = [world.honest] * 4
        await client.submit(Transfer(BOB.public, 100))
        assert world.paid == 107
        assert [signed.tx.nonce for _, signed in world.seen[-4:]] == [0, 0, 1, 1]

    run(body)


def test_a_ledger_that_stands_still_is_told_of_once_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_read, "PATIENCE_SECONDS", 0.05)
    world, told = World(), list[WarningEvent]()
    is_stuck = [True]

    async def waits(query: queries.Query) -> Any:
        if is_stuck[0] and isinstance(query, queries.SubmitRequest):
            await asyncio.Event().wait()  # what they take is final only with a third one
        return world.honest(query)

    world.ways = [waits, waits, hangs, hangs]
    client = client_in_run(world.reaches, ALICE, GENESIS, told.append)
    client._panel._seconds = 0.03

    async def play() -> None:
        paying = asyncio.ensure_future(client.submit(PAY))
        while not told:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert [each.code for each in told] == ["FF-APP-334"]
        assert "3 of 4 validators must be up" in told[0].message
        assert world.paid == 0
        is_stuck[0] = False
        await paying

    asyncio.run(play())
    assert [each.code for each in told] == ["FF-APP-334", "FF-APP-335"]
    assert world.paid == PAY.amount

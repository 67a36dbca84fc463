"""Validators that lie about rows to a client: it believes proofs, and follows the committees by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from ledger_committee import SEATS, Reign
from ledger_world import REQUESTER, RICH
from msgspec.structs import replace

from farflung.core.codec import encode
from farflung.core.errors import VerificationError
from farflung.ledger import queries, transactions
from farflung.ledger.receipt_checks import prove, read_row
from farflung.ledger.table_rows import AccountRow
from farflung.peers.ledger_client.client import LedgerClient

Answer = Callable[[queries.Query], queries.Reply]


@pytest.fixture(scope="module")
def reign() -> Reign:
    """A ledger that grew from one validator to four, then shrank to two."""
    made = Reign()
    for size in (1, 4, 2):
        made.grow(size)
    made.do(REQUESTER, transactions.Transfer(SEATS[0].public, 7))
    return made


def honest(reign: Reign) -> Answer:
    return lambda query: queries.reply(reign.chain, query)  # type: ignore[arg-type]


def richer(reign: Reign) -> Answer:
    """The account with more money than it has, under the honest proof."""

    def way(query: queries.Query) -> queries.Reply:
        said = honest(reign)(query)
        if isinstance(said, queries.ReceiptReply) and said.receipt is not None:
            row = read_row(said.receipt)
            assert isinstance(row, AccountRow)
            rich = encode(replace(row, balance=row.balance + 1))
            return queries.ReceiptReply(replace(said.receipt, row=rich))
        return said

    return way


def another(reign: Reign) -> Answer:
    """A true proof, of another account."""

    def way(query: queries.Query) -> queries.Reply:
        said = honest(reign)(query)
        if isinstance(said, queries.ReceiptReply):
            return queries.ReceiptReply(prove(reign.chain, "accounts", SEATS[1].public))
        return said

    return way


def usurped(reign: Reign) -> Answer:
    """Steps to a committee that nobody certified."""

    def way(query: queries.Query) -> queries.Reply:
        said = honest(reign)(query)
        if isinstance(said, queries.StepsReply) and said.steps:
            first = replace(said.steps[0], row=said.steps[0].row[:-1] + b"\x07")
            return queries.StepsReply((first, *said.steps[1:]))
        return said

    return way


class Line:
    def __init__(self, way: Answer) -> None:
        self.way = way

    async def call(self, _: str, body: bytes, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return encode(self.way(queries.read_query(body)))


def client(reign: Reign, *ways: Answer) -> LedgerClient:
    def reach(way: Answer) -> Any:
        async def to() -> Any:
            return Line(way)

        return to

    return LedgerClient([reach(way) for way in ways], REQUESTER, reign.chain.genesis)


def balance(asked: LedgerClient) -> int:
    return asyncio.run(asked.account(REQUESTER.public)).balance


def test_a_client_follows_the_committees_from_the_genesis_and_believes_what_they_certified(reign: Reign):
    assert reign.chain.head.epoch == 2
    assert balance(client(reign, honest(reign))) == RICH - 7


@pytest.mark.parametrize("lie", [richer, another, usurped])
def test_a_validator_that_lies_is_left_for_one_that_does_not(reign: Reign, lie: Callable[[Reign], Answer]):
    assert balance(client(reign, lie(reign), honest(reign))) == RICH - 7


@pytest.mark.parametrize("lie", [richer, another, usurped])
def test_a_lie_alone_is_believed_by_nobody(reign: Reign, lie: Callable[[Reign], Answer]):
    with pytest.raises(VerificationError, match=r"FF-(LEDG-07[1-6]|LEDG-253|APP-319)"):
        balance(client(reign, lie(reign)))


def test_a_committee_that_is_gone_proves_nothing_any_more(reign: Reign):
    """Its last block was true once; a client that knows of a later epoch takes no row under an earlier one."""
    asked = client(reign, honest(reign))
    assert balance(asked) == RICH - 7
    old = reign.chain.steps[0]  # certified by the committee of epoch 0

    def stale(query: queries.Query) -> queries.Reply:
        return queries.ReceiptReply(old) if isinstance(query, queries.GetReceipt) else honest(reign)(query)

    late = client(reign, stale)
    late._trust = asked._trust
    with pytest.raises(VerificationError):
        asyncio.run(late.receipt(old.table, (1).to_bytes(8, "big")))

"""Who lies about bytes at a relay that is paid: the relay, a sender, a receiver, a payer, a thief of passes."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "net"))
from msgspec.structs import replace
from net_relays import A, B, C, R, echo, hidden, run, until
from net_tolls import NOW, PAYER, PRICE, Funds, Paid, paid, toll

from farflung.core import limits, tolls
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import NetworkError
from farflung.core.tolls import Receipt
from farflung.net.io import knock
from farflung.net.io.purse import RECEIPT
from farflung.net.io.tollgate import SETTLE
from farflung.net.messages import RemoteError
from farflung.net.receipts import Heard, Tally

BULK = bytes(range(256)) * 1024
WINDOW = 1 << 20


@pytest.fixture(autouse=True)
def _standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knock, "time", SimpleNamespace(time=lambda: NOW))


async def calls(made: Paid, count: int) -> None:
    connection = await made.dial()
    for _ in range(count):
        await connection.call("x", BULK)


async def settled(made: Paid) -> int:
    """Bytes that the relay can claim at the end."""
    async with hidden(PAYER, None) as payer:
        await (await payer.dial(R.public, *made.server.address)).call(SETTLE, b"")
    _, claims = made.ledger.claims[-1]
    said = [{r.receipt.party: (r.receipt.sent, r.receipt.received) for r in c.receipts} for c in claims]
    return sum(tolls.billed(c.signed.toll.quota, each) for c, each in zip(claims, said, strict=True))


def of_a(sent: int, received: int, key: SigningKey = A, **fields: object) -> bytes:
    t = toll().toll
    plain = Receipt(t.chain, t.payer, t.relay, t.opening, t.serial, A.public, sent, received)
    return encode(tolls.sign_receipt(key, replace(plain, **fields)))


def test_a_relay_that_counts_too_much_gets_no_receipt_for_it() -> None:
    async def test() -> None:
        async with paid() as made:
            await calls(made, 2)
            (books,) = made.gate._books.values()
            true = made.server.forwarded
            books.moved(A.public, B.public, 10 * true)  # it says so
            assert await settled(made) <= true

    run(test)


@pytest.mark.parametrize("liar", [A, B], ids=["sender", "receiver"])
def test_who_says_less_is_served_one_window_and_saves_no_more(
    monkeypatch: pytest.MonkeyPatch, liar: SigningKey
) -> None:
    honest = Tally.receipt

    def half(tally: Tally) -> Receipt:
        said = honest(tally)
        if said.party != liar.public:
            return said
        return replace(said, sent=said.sent // 2, received=said.received // 2)

    monkeypatch.setattr(Tally, "receipt", half)
    monkeypatch.setattr(limits, "RECEIPT_BYTES", 1 << 18)

    async def test() -> None:
        async with paid(window=WINDOW, held=0.2) as made:
            with pytest.raises(NetworkError):
                await calls(made, 64)
            await until(lambda: not made.server._junction.circuits)
            (books,) = made.gate._books.values()
            assert WINDOW < books.lag(liar.public) <= WINDOW + 3 * limits.CIRCUIT_BUFFER_BYTES
            assert books.carried - books.billed <= 2 * WINDOW

    run(test)


def test_who_says_more_raises_no_bill(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with paid() as made:
            await calls(made, 2)
            to_relay = await made.a.dial(R.public, *made.server.address)
            await to_relay.call(RECEIPT, of_a(1 << 40, 1 << 40))
            # of what A sent B got so much; of what A says that it got B sent so much
            assert await settled(made) <= made.server.forwarded + 1024

    run(test)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (of_a(9, 9, serial=2), "FF-NET-140"),
        (of_a(9, 9, opening=2), "FF-NET-140"),
        (of_a(9, 9, payer=C.public), "FF-NET-140"),
        (of_a(9, 9, relay=C.public), "FF-NET-140"),
        (of_a(9, 9, chain=bytes(32)), "FF-NET-140"),
        (of_a(9, 9, party=C.public), "FF-NET-140"),
        (of_a(9, limits.PASS_BYTES + 1), "FF-NET-140"),
        (of_a(9, 9, party=B.public, key=B), "FF-NET-141"),  # B's own, brought by A
        (of_a(9, 9, key=R), "FF-NET-141"),
        (b"", "FF-CORE-021"),
    ],
)
def test_a_receipt_of_something_else_changes_nothing(body: bytes, code: str) -> None:
    async def test() -> None:
        async with paid() as made:
            await calls(made, 1)
            (books,) = made.gate._books.values()
            await made.a.purse.sign(R.public)
            await made.b.purse.sign(R.public)
            before = books.receipts
            to_relay = await made.a.dial(R.public, *made.server.address)
            with pytest.raises(RemoteError) as refused:
                await to_relay.call(RECEIPT, body)
            assert refused.value.code == code
            assert books.receipts == before

    run(test)


def test_an_old_receipt_shown_again_lowers_nothing() -> None:
    async def test() -> None:
        async with paid() as made:
            await calls(made, 1)
            await made.a.purse.sign(R.public)
            (books,) = made.gate._books.values()
            last = books.last(A.public)
            to_relay = await made.a.dial(R.public, *made.server.address)
            for body in (of_a(1, 1), of_a(0, 1 << 40), of_a(1 << 40, 0)):
                assert decode(await to_relay.call(RECEIPT, body), Heard, limits.KIB).last == last
            assert books.last(A.public) == last

    run(test)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_payers_clock_that_is_off_by_an_hour_is_refused(hours: int) -> None:
    async def test() -> None:
        begins = NOW + 3600 * hours
        async with paid(toll(begins=begins, expires=begins + limits.PASS_SECONDS)) as made:
            with pytest.raises(NetworkError) as refused:
                await made.dial()
            assert "quarter of an hour" in refused.value.cause
            assert "clocks" in refused.value.hint

    run(test)


def test_a_stolen_pass_opens_nothing_for_a_third_key() -> None:
    async def test() -> None:
        async with paid() as made, hidden(C, made.server.address, echo) as thief:
            await calls(made, 1)
            thief.purse.find = lambda *_: toll()  # type: ignore[method-assign]
            with pytest.raises(NetworkError) as refused:
                await thief.dial(B.public, *made.server.address, relay=R.public)
            assert "not for these two keys" in refused.value.cause

    run(test)


def test_the_quota_is_the_end_and_no_byte_behind_it_is_billed() -> None:
    async def test() -> None:
        async with paid(toll(quota=1 << 20), held=0.2) as made:
            with pytest.raises(NetworkError):
                await calls(made, 64)
            assert made.server.forwarded <= (1 << 20) + 3 * limits.CIRCUIT_BUFFER_BYTES
            with pytest.raises(NetworkError) as refused:
                await made.dial()
            assert "used up" in refused.value.cause
            assert await settled(made) <= 1 << 20

    run(test)


def test_a_channel_that_others_have_emptied_carries_nothing_more() -> None:
    async def test() -> None:
        other = toll(A, C, serial=2)
        async with paid(toll(), other, held=0.2) as made:
            made.ledger.funds = Funds(1, PRICE, 1 << 20)  # a micro-credit a byte
            async with hidden(C, made.server.address, echo):
                to_c = await made.a.dial(C.public, *made.server.address, relay=R.public)
                with pytest.raises(NetworkError):
                    await asyncio.gather(*(to_c.call("x", BULK) for _ in range(64)))
                with pytest.raises(NetworkError) as refused:
                    await made.dial()
                assert "used up" in refused.value.cause
            assert made.server.forwarded <= (1 << 20) + 3 * limits.CIRCUIT_BUFFER_BYTES

    run(test)


def test_a_new_pass_is_no_way_to_leave_the_last_ones_bytes_unsigned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tally, "receipt", Tally.nothing)

    async def test() -> None:
        async with paid(toll(A, C), window=WINDOW, held=0.1) as made:
            for serial in (1, 2, 3):
                made.a.purse.put(
                    toll(serial=serial, begins=int(made.now[0]) - 10, expires=int(made.now[0]) + 10)
                )
                with pytest.raises(NetworkError):
                    await calls(made, 64)
                monkeypatch.setattr(knock, "time", SimpleNamespace(time=lambda: made.now[0] + 20))
                made.now[0] += 20
            made.a.purse.put(toll(serial=4, begins=int(made.now[0]) - 10, expires=int(made.now[0]) + 10))
            with pytest.raises(NetworkError) as refused:
                await made.dial()
            assert "receipts" in refused.value.cause
            assert made.server.forwarded < 4 * WINDOW

    run(test)


def test_a_connection_that_is_worn_makes_room_for_a_new_one_under_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the byte limit the next dial makes a new connection, while the old one still carries what is under way."""
    monkeypatch.setattr(limits, "CONNECTION_BYTES", 1 << 20)
    monkeypatch.setattr(limits, "RECEIPT_BYTES", 1 << 18)

    async def test() -> None:
        async with paid(window=WINDOW) as made:
            seen = set()

            async def worker() -> None:
                for _ in range(8):
                    connection = await made.dial()
                    seen.add(connection)
                    assert await connection.call("x", BULK) == BULK

            await asyncio.gather(*(worker() for _ in range(4)))
            assert len(seen) > 2
            assert await settled(made) >= 64 * len(BULK)

    run(test)


def test_strangers_cannot_settle_or_renew_for_a_payer(monkeypatch: pytest.MonkeyPatch) -> None:

    async def test() -> None:
        async with paid() as made, hidden(C, None) as stranger:
            await calls(made, 1)
            to_relay = await stranger.dial(R.public, *made.server.address)
            await to_relay.call(SETTLE, b"")  # its own account: nothing
            assert made.ledger.claims == []
            with pytest.raises(RemoteError, match="FF-NET-142"):
                await to_relay.call("relay.pass", encode(toll(key=C, expires=NOW + 700)))
            (books,) = made.gate._books.values()
            assert books.signed == toll()

    run(test)

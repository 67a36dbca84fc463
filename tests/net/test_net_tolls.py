"""A relay that is paid: admission by passes, receipts while it carries, its window, its rate, and what it claims."""

import asyncio
from types import SimpleNamespace

import pytest
from net_relays import A, B, C, R, echo, pair, relay, run, until
from net_tolls import NOW, PAYER, ChannelBalance, Ledger, Paid, hidden, paid, toll

from farflung.core import limits, relay_passes
from farflung.core.codec import encode
from farflung.core.crypto import local_key
from farflung.core.errors import NetworkError, ProtocolError
from farflung.net import relay_tickets
from farflung.net.certificates import Credential, certify, credential_of
from farflung.net.counters import ByteCounter
from farflung.net.io import relay_dialer, relay_metering_gate, relay_payer
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay_circuits import RelayLimits
from farflung.net.io.relay_dialer import new_ticket, visit
from farflung.net.io.relay_metering_gate import RENEW, SETTLE
from farflung.net.io.relay_payer import RECEIPT
from farflung.net.messages import RemoteError
from farflung.net.relay_meter import PassMeter
from farflung.net.relay_tickets import NOBODY, TicketPurpose, TicketStatus

BULK = bytes(range(256)) * 1024  # 256 KiB


@pytest.fixture(autouse=True)
def _standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_dialer, "time", SimpleNamespace(time=lambda: NOW))


def test_what_both_sides_sign_is_what_the_relay_carried_and_claims() -> None:
    async def test() -> None:
        async with paid() as made:
            connection = await made.dial()
            for _ in range(4):
                assert await connection.call("x", BULK) == BULK
            async with hidden(PAYER, None) as payer:
                to_relay = await payer.dial(R.public, *made.server.address)
                await to_relay.call(SETTLE, b"")
            ((who, (claim,)),) = made.ledger.claims
            assert who == PAYER.public
            said = {r.receipt.party: (r.receipt.sent, r.receipt.received) for r in claim.receipts}
            assert set(said) == {A.public, B.public}
            assert relay_passes.billed(1 << 40, said) >= 8 * len(BULK)
            # what is under way when it settles is not signed: goodbyes
            assert 0 <= made.server.forwarded - relay_passes.billed(1 << 40, said) < 1024

    run(test)


@pytest.mark.parametrize(
    ("shown", "cause"),
    [
        (None, "carries for a pass only"),
        (toll(A, C), "not for these two keys"),
        (toll(key=C), "does not take our signature"),
        (toll(expires=NOW), "quarter of an hour"),
        (toll(expires=NOW + limits.PASS_SECONDS), "quarter of an hour"),
        (toll(begins=NOW + 3600, expires=NOW + 3700), "quarter of an hour"),
        (toll(payer=C.public, key=C), "has no channel"),
        (toll(opening=2), "has no channel"),
        (toll(quota=0), "used up"),
    ],
)
def test_a_relay_that_is_paid_carries_for_good_passes_only(
    shown: relay_passes.SignedRelayPass | None, cause: str
) -> None:
    async def test() -> None:
        async with paid() as made:
            made.a.payer.find = lambda *_: shown  # type: ignore[method-assign]
            with pytest.raises(NetworkError) as refused:
                await made.dial()
            assert refused.value.code == "FF-NET-072"
            assert cause in refused.value.cause

    run(test)


@pytest.mark.parametrize(
    ("funds", "cause"),
    [
        (None, "has no channel"),
        (ChannelBalance(1, 5, 1 << 40), "has no channel"),  # below the relay's price
        (ChannelBalance(2, 1 << 30, 1 << 40), "has no channel"),  # opened anew since
        (ChannelBalance(1, 1 << 30, 1 << 40, serial=2), "used up"),  # this pass is settled
    ],
)
def test_the_payers_channel_has_to_pay_the_price(funds: ChannelBalance | None, cause: str) -> None:
    async def test() -> None:
        async with paid() as made:
            made.ledger.funds = funds
            with pytest.raises(NetworkError) as refused:
                await made.dial()
            assert cause in refused.value.cause

    run(test)


def test_a_party_that_does_not_sign_is_served_half_a_window_and_then_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise NetworkError("FF-NET-047", "no receipt from here")

    monkeypatch.setattr(relay_payer.RelayPayer, "_sign", refuse)

    async def test() -> None:
        half = 1 << 20
        async with paid(window=2 * half, held=0.2) as made:
            connection = await made.dial()
            with pytest.raises(NetworkError):
                await _calls(connection.call, 64)
            await until(lambda: not made.server._circuits.circuits)
            assert half < made.server.forwarded <= half + 3 * limits.CIRCUIT_BUFFER_BYTES
            with pytest.raises(NetworkError) as refused:
                await made.dial()
            assert "receipts" in refused.value.cause

    run(test)


def test_many_windows_pass_while_both_sides_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECEIPT_BYTES", 1 << 19)

    async def test() -> None:
        async with paid(window=1 << 21) as made:
            connection = await made.dial()
            for _ in range(24):
                assert await connection.call("x", BULK) == BULK
            (run_,) = made.gate._runs.values()
            assert run_.books.billed > 5 << 20

    run(test)


def test_who_is_held_is_asked_again_for_what_was_on_its_way_when_it_was_asked_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody signs by itself here, and one window goes after the other."""
    monkeypatch.setattr(limits, "RECEIPT_SECONDS", 1000.0)
    monkeypatch.setattr(relay_metering_gate, "LOOK_SECONDS", 0.05)

    async def test() -> None:
        async with paid(window=1 << 19, held=5.0) as made:
            connection = await made.dial()
            for _ in range(8):
                assert await connection.call("x", BULK) == BULK

    run(test)


class Cart:
    """A carrier."""

    is_held = False

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False

    def close(self) -> None: ...


def test_who_was_admitted_while_there_was_room_is_held_from_the_first_byte_when_it_is_gone() -> None:
    async def test() -> None:
        async with paid(window=1 << 20) as made:
            one, two = Cart(), Cart()
            books = [await made.gate.admit(toll(), A.public, B.public) for _ in range(2)]
            for cart, each in zip((one, two), books, strict=True):
                assert isinstance(each, PassMeter)
                made.gate.opened(cart, each, A.public, B.public)
                made.gate.moved(cart, False, 1 << 21)
                assert cart.is_held
                assert each.carried == 1 << 21 or cart is two
            late = Cart()
            made.gate.opened(late, books[0], A.public, B.public)
            assert late.is_held

    run(test)


def test_who_takes_a_new_node_key_goes_on_signing_on_old_connections_and_on_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "RECEIPT_BYTES", 1 << 19)

    async def test() -> None:
        async with paid(window=1 << 21) as made:
            connection = await made.dial()
            for epoch in range(3):
                for _ in range(8):
                    assert await connection.call("x", BULK) == BULK
                node = local_key(5, "new node", epoch)
                made.a.renew(Credential(node, certify(A, node.public, epoch + 1)))
                if epoch == 1:  # from here on the relay knows the newest key only
                    to_relay = made.a.connection(R.public)
                    assert to_relay is not None
                    to_relay.close()
                    await to_relay.closed()
            (run_,) = made.gate._runs.values()
            assert run_.books.billed > 5 << 20

    run(test)


def test_a_held_circuit_goes_on_when_the_payer_signs_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        small = toll(quota=1 << 20)
        async with paid(small) as made, hidden(PAYER, None) as payer:
            connection = await made.dial()
            work = asyncio.create_task(_calls(connection.call, 8))
            await until(lambda: any(r.held_at is not None for r in made.gate._runs.values()))
            to_relay = await payer.dial(R.public, *made.server.address)
            with pytest.raises(RemoteError, match="FF-NET-142"):
                await to_relay.call(RENEW, encode(toll(quota=1 << 22, expires=NOW + 5000)))
            await to_relay.call(RENEW, encode(toll(quota=1 << 24, expires=NOW + 700)))
            await work
            await made.a.dial(B.public, *made.server.address, relay=R.public)  # with the pass as it was first

    run(test)


async def _calls(call, count: int) -> None:  # type: ignore[no-untyped-def]
    for _ in range(count):
        assert await call("x", BULK) == BULK


def test_a_circuit_ends_with_its_pass_and_goes_on_with_a_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_metering_gate, "LOOK_SECONDS", 0.02)

    async def test() -> None:
        async with paid(held=0.1) as made, hidden(PAYER, None) as payer:
            connection = await made.dial()
            to_relay = await payer.dial(R.public, *made.server.address)
            await to_relay.call(RENEW, encode(toll(expires=NOW + 700)))
            made.now[0] = NOW + 650
            await asyncio.sleep(0.3)
            assert await connection.call("x", b"still") == b"still"
            made.now[0] = NOW + 700
            await connection.closed()
            assert not made.server._circuits.circuits

    run(test)


def test_who_is_started_anew_goes_on_from_its_last_receipt() -> None:
    async def test() -> None:
        async with paid() as made:
            connection = await made.dial()
            await _calls(connection.call, 2)
            await made.a.close()
            await until(lambda: not made.server._circuits.circuits)
            (books,) = made.gate._books.values()
            await until(lambda: books.billed >= 4 * len(BULK))
            before = books.billed
            async with hidden(A, made.server.address) as again:
                again.payer.put(toll())
                connection = await again.dial(B.public, *made.server.address, relay=R.public)
                await _calls(connection.call, 2)
                await again.payer.sign(R.public)
                await made.b.payer.sign(R.public)
                assert books.billed >= before + 4 * len(BULK)

    run(test)


def test_a_relay_that_asks_for_nothing_takes_a_ticket_with_a_pass() -> None:
    async def test() -> None:
        async with (
            relay(admission=Admission(clock=lambda: NOW)) as server,
            hidden(A, server.address) as a,
            hidden(B, server.address),
        ):
            a.payer.put(toll())
            connection = await a.dial(B.public, *server.address, relay=R.public)
            assert await connection.call("x", b"for nothing") == b"for nothing"

    run(test)


def test_receipts_of_nobody_and_strange_signatures_are_refused() -> None:
    async def test() -> None:
        async with paid() as made:
            connection = await made.dial()
            await connection.call("x", BULK)
            to_relay = await made.a.dial(R.public, *made.server.address)
            plain = relay_passes.RelayReceipt(*_named(toll().toll), A.public, 5, 5)
            with pytest.raises(RemoteError, match="FF-NET-141"):
                await to_relay.call(RECEIPT, encode(relay_passes.sign_receipt(B, plain)))
            stranger = relay_passes.RelayReceipt(*_named(toll(serial=9).toll), A.public, 5, 5)
            with pytest.raises(RemoteError, match="FF-NET-140"):
                await to_relay.call(RECEIPT, encode(relay_passes.sign_receipt(A, stranger)))

    run(test)


def _named(what: relay_passes.RelayPass) -> tuple[object, ...]:
    return what.chain, what.payer, what.relay, what.opening, what.serial


@pytest.mark.parametrize("may_splice", [True, False], ids=["splice", "memory"])
def test_a_circuit_keeps_to_its_rate(may_splice: bool) -> None:
    """The clock of the loop decides: a second's bytes cannot pass before most of a second is over."""

    async def test() -> None:
        bounded = RelayLimits(circuit_rate=1 << 22, may_splice=may_splice)
        async with pair(admission=Admission(clock=lambda: NOW), limits=bounded) as (_, _, _, connection):
            loop = asyncio.get_running_loop()
            began = loop.time()
            await _calls(connection.call, 4)
            assert loop.time() - began > 0.15  # 1 MiB each way, less a burst and the pipe

    run(test)


def test_the_rate_of_a_pass_counts_where_it_is_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with paid(toll(rate=1 << 20), limits=RelayLimits(circuit_rate=1 << 24)) as made:
            await made.dial()
            (circuit,) = made.server._circuits.circuits
            assert {way._rate.rate for way in circuit._ways if way._rate is not None} == {1 << 20}

    run(test)


def test_a_pass_is_worth_nothing_to_whoever_is_not_in_it() -> None:
    async def test() -> None:
        async with paid() as made, hidden(C, made.server.address, echo) as c:
            c.payer.put(toll())
            assert c.payer.find(R.public, B.public) is None
            c.payer.find = lambda *_: toll()  # type: ignore[method-assign]
            with pytest.raises(NetworkError) as refused:
                await c.dial(B.public, *made.server.address, relay=R.public)
            assert "not for these two keys" in refused.value.cause

    run(test)


def test_a_spare_learns_of_the_pass_as_it_is_joined_and_both_ends_sign() -> None:
    async def test() -> None:
        async with paid() as made:
            await until(lambda: B.public in made.server._spares._kept)
            made.server._call_back = None  # type: ignore[method-assign, assignment] - nobody is to be summoned
            connection = await made.dial()
            assert await connection.call("x", BULK) == BULK
            (books,) = made.gate._books.values()
            for each in (made.a, made.b):
                await each.payer.sign(R.public)
            assert books.billed >= 2 * len(BULK)
            assert books.lag(A.public) == books.lag(B.public) == 0

    run(test)


@pytest.mark.parametrize(
    "answer",
    [
        relay_tickets.answer(TicketStatus.PAID) + (limits.TICKET_BYTES + 1).to_bytes(2, "big"),
        relay_tickets.answer(TicketStatus.PAID) + bytes(2),
        relay_tickets.answer(TicketStatus.PAID) + b"\0\1x",
        relay_tickets.answer(TicketStatus.PAID) + encode(toll())[:20],
    ],
    ids=["too long", "empty", "no pass", "torn"],
)
def test_a_spare_that_is_joined_under_no_pass_at_all_is_given_up(answer: bytes) -> None:
    async def test() -> None:
        async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(say, "127.0.0.1", 0)
        place = server.sockets[0].getsockname()
        ticket = new_ticket(A, TicketPurpose.SPARE, R.public, NOBODY)
        made: list[object] = []
        spare = await visit(credential_of(A), ByteCounter(), ticket, place, made.append)  # type: ignore[arg-type]
        with pytest.raises(ProtocolError):
            await spare.answered
        assert made == []
        server.close()

    run(test)


def test_a_spare_that_is_joined_under_a_strangers_pass_signs_nothing() -> None:
    """As in a summons: it has to be of this relay, to name us, and its payer to have signed it."""

    async def test() -> None:
        async with hidden(B, None) as b:
            for wrong in (toll(A, C), toll(key=C), toll(relay=C.public)):
                assert b.payer.tally(wrong, R.public, ("127.0.0.1", 1)) is None
            assert b.payer._lines == {}

    run(test)


def test_who_is_started_anew_takes_over_what_it_had_not_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each life dies with most of its bytes unsigned; without that the pass would be OWING for ever."""
    half = 1 << 20
    monkeypatch.setattr(limits, "RECEIPT_CREDIT", half)

    async def test() -> None:
        async with paid(window=2 * half) as made:
            connection = await made.dial()
            await _calls(connection.call, 1)
            await made.a.payer.sign(R.public)
            made.a.payer.close = _nothing  # type: ignore[method-assign] - as if it were killed
            await _calls(connection.call, 1)
            await made.a.close()
            (books,) = made.gate._books.values()
            for _ in range(4):
                await until(lambda: not made.server._circuits.circuits)
                async with hidden(A, None) as again:
                    again.payer.put(toll())
                    connection = await _again(again, made)
                    await again.payer.sign(R.public)  # the last life's, and as yet nothing of its own
                    await _calls(connection.call, 1)
                    again.payer.close = _nothing  # type: ignore[method-assign]
                assert books.billed <= books.carried
            assert books.lag(A.public) <= 3 * len(BULK)

    run(test)


@pytest.mark.slow
def test_who_is_dialled_anew_is_asked_under_a_pass_that_it_does_not_know_and_then_the_dial_goes_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = 1 << 20
    monkeypatch.setattr(limits, "RECEIPT_CREDIT", half)

    async def refuse(*_: object) -> None:
        raise NetworkError("FF-NET-047", "no receipt from here")

    async def test() -> None:
        async with paid(window=2 * half, held=1.0) as made:
            connection = await made.dial()
            await _calls(connection.call, 1)
            await made.b.payer.sign(R.public)
            made.b.payer._sign = refuse  # type: ignore[method-assign]
            work = asyncio.create_task(_calls(connection.call, 9))
            (books,) = made.gate._books.values()
            await until(lambda: books.lag(B.public) > half)
            await made.b.close()  # as if it were killed
            await asyncio.gather(work, return_exceptions=True)
            await until(lambda: not made.server._circuits.circuits)
            async with hidden(B, made.server.address, echo):
                connection = await made.dial()
                await _calls(connection.call, 1)
                assert books.billed <= books.carried

    run(test)


async def _nothing() -> None:
    pass


async def _again(endpoint: Endpoint, made: Paid) -> Connection:
    """Dials until what an earlier life owes is signed."""
    while True:
        try:
            return await endpoint.dial(B.public, *made.server.address, relay=R.public)
        except NetworkError as error:
            assert "receipts" in error.cause  # noqa: PT017 - anything else is no reason to try again
            await asyncio.sleep(0.05)


def test_the_ledger_is_asked_once_for_many_dials() -> None:
    async def test() -> None:
        asked = 0

        class Counting(Ledger):
            async def of(self, payer: object) -> ChannelBalance | None:
                nonlocal asked
                asked += 1
                return self.funds

        async with paid() as made:
            made.gate._payers.ask = Counting().of
            for _ in range(3):
                connection = await made.dial()
                connection.drop(NetworkError("FF-NET-046", "away"))
            assert asked == 1

    run(test)

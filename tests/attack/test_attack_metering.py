"""Who lies about bytes at a relay that is paid: the relay, a sender, a receiver, a payer, a thief of passes."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from net_groups import MEMBERS, Member, heard, meeting, roster
from net_relays import A, B, C, R, echo, relay, run, until
from net_tolls import CHAIN, NOW, PAYER, PRICE, ChannelBalance, Ledger, Paid, hidden, paid, paid_group, toll

from farflung.core import limits, relay_passes
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import NetworkError, PolicyError
from farflung.core.ids import PeerId
from farflung.core.relay_passes import RelayReceipt, SignedRelayReceipt
from farflung.net import relay_pass_checks
from farflung.net.certificates import credential_of
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io import multicast_member, relay_dialer, relay_metering_gate
from farflung.net.io.admission import Admission
from farflung.net.io.multicast_connection import GroupConnection, QueuedFrame
from farflung.net.io.multicast_relay import _RelayedGroup
from farflung.net.io.relay_metering_gate import SETTLE, ChannelLedger, PassClaim, RelayMeteringGate
from farflung.net.io.relay_payer import RECEIPT, RelayPayer
from farflung.net.io.relay_receipt_store import ReceiptStore
from farflung.net.messages import RemoteError
from farflung.net.multicast_frames import HEAD_BYTES, TAG_BYTES, GroupFrameHead, GroupFrameKind
from farflung.net.relay_meter import PassMeter
from farflung.net.relay_receipts import ReceiptTally, RelayReceiptReply

BULK = bytes(range(256)) * 1024
WINDOW = 1 << 21
AT_RISK = WINDOW + limits.CIRCUIT_BUFFER_BYTES  # of one payer whose parties sign nothing: the piece that filled it
GROUP = MEMBERS[:3]
# Bytes of one message on the wire.
FRAMES = len(BULK) + len(BULK) // limits.FAN_FRAME_BYTES * (HEAD_BYTES + TAG_BYTES)


@pytest.fixture(autouse=True)
def _standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_dialer, "time", SimpleNamespace(time=lambda: NOW))
    monkeypatch.setattr(multicast_member, "time", SimpleNamespace(time=lambda: NOW, monotonic=time.monotonic))


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
    return sum(relay_passes.billed(c.signed.toll.quota, each) for c, each in zip(claims, said, strict=True))


def of_a(sent: int, received: int, key: SigningKey = A, **fields: object) -> bytes:
    t = toll().toll
    plain = RelayReceipt(t.chain, t.payer, t.relay, t.opening, t.serial, A.public, sent, received)
    return encode(relay_passes.sign_receipt(key, replace(plain, **fields)))


@pytest.mark.guarantee
def test_a_relay_that_counts_too_much_gets_no_receipt_for_it() -> None:
    async def test() -> None:
        async with paid() as made:
            await calls(made, 2)
            (books,) = made.gate._books.values()
            true = made.server.forwarded
            books.moved(A.public, B.public, 10 * true)  # it says so
            assert await settled(made) <= true

    run(test)


class Liar:
    """A relay that has carried a terabyte, it says, for whoever has signed anything. In place of a connection."""

    peer, place = R.public, EndpointAddress("127.0.0.1", 1, R.public)

    def __init__(self) -> None:
        self.last: dict[tuple[PeerId, int], SignedRelayReceipt] = {}

    async def call(self, method: str, body: bytes) -> bytes:
        assert method == RECEIPT
        mine = decode(body, SignedRelayReceipt, limits.KIB)
        said = mine.receipt
        before = self.last.setdefault((said.payer, said.serial), mine)
        if (said.sent, said.received) > (before.receipt.sent, before.receipt.received):
            self.last[said.payer, said.serial] = mine
        return encode(RelayReceiptReply(self.last[said.payer, said.serial], 1 << 40, 1 << 40))


@pytest.mark.parametrize("crowds_by_summons", [True, False])
@pytest.mark.parametrize("honest", [1, 3])
def test_a_relay_gets_one_credit_of_invented_bytes_however_it_makes_a_party_forget_its_lines(
    crowds_by_summons: bool, honest: int
) -> None:
    """By passes of a throwaway payer, or under several passes of the true one."""

    async def test() -> None:
        liar: Any = Liar()
        payer = RelayPayer(credential_of(A), lambda *_: asyncio.sleep(0, liar), lambda: NOW)
        true = [toll(serial=serial + 1) for serial in range(honest)]
        for shown in true:
            tally = payer.shown(shown, R.public, ("127.0.0.1", 1))
            assert tally is not None
            payer.opened(tally)
            tally.sent(1000)
            await payer.sign(R.public)
            payer.ended(tally)
        lines = payer._lines.copy()
        await until(lambda: all(line.task is not None and line.task.done() for line in lines.values()))
        for cycle in range(4):
            for serial in range(limits.PASSES_PER_PAYER):
                crowd = toll(payer=C.public, key=C, serial=serial + 1000 * cycle, expires=NOW + 700)
                if crowds_by_summons:
                    payer.tally(crowd, R.public, ("127.0.0.1", 1))
                else:
                    await payer.asked(liar, encode(crowd))
            assert payer._lines == lines or crowds_by_summons
            for shown in true:
                if cycle > 1:  # a line again
                    payer.tally(shown, R.public, ("127.0.0.1", 1))
                await payer.asked(liar, encode(shown))
        said = [liar.last[PAYER.public, shown.toll.serial].receipt for shown in true]
        assert sum(each.sent + each.received for each in said) <= honest * 1000 + limits.RECEIPT_CREDIT
        await payer.close()

    run(test)


def test_a_relay_cannot_have_anything_signed_under_a_pass_that_never_counted() -> None:
    async def test() -> None:
        liar: Any = Liar()
        payer = RelayPayer(credential_of(A), lambda *_: asyncio.sleep(0, liar), lambda: NOW)
        never = (toll(begins=NOW, expires=NOW), toll(begins=NOW + 70), toll(begins=2**61, expires=2**61 + 9))
        for shown in (*never, toll(expires=2**62)):
            payer.put(shown)
            await payer.asked(liar, encode(shown))
            assert liar.last == {}
            assert payer._lines == {}
        for serial, ends in enumerate((NOW + 700, NOW - 5)):
            await payer.asked(liar, encode(toll(serial=serial, expires=ends)))
        assert len(liar.last) == 2

    run(test)


def test_a_relay_gets_one_credit_of_invented_bytes_by_all_passes_that_are_over_together() -> None:
    async def test() -> None:
        liar: Any = Liar()
        over = [toll(serial=serial, begins=NOW - 900, expires=NOW - serial) for serial in range(1, 9)]
        for shown in over:  # receipts of an earlier life
            own = RelayReceipt(CHAIN, PAYER.public, R.public, 1, shown.toll.serial, A.public, 1000, 0)
            liar.last[PAYER.public, shown.toll.serial] = relay_passes.sign_receipt(A, own)
        payer = RelayPayer(credential_of(A), lambda *_: asyncio.sleep(0, liar), lambda: NOW)
        for shown in 2 * over:
            await payer.asked(liar, encode(shown))
        said = [each.receipt for each in liar.last.values()]
        assert sum(each.sent + each.received for each in said) == 8000 + limits.RECEIPT_CREDIT
        assert payer._lines == {}

    run(test)


def test_who_was_started_anew_after_its_pass_ended_signs_what_its_last_life_left() -> None:
    """Else the relay loses it, and the payer gets no room back."""

    async def test() -> None:
        async with paid(window=WINDOW) as made:
            connection = await made.dial()
            await connection.call("x", BULK)
            await made.b.payer.sign(R.public)
            for _ in range(2):
                await connection.call("x", BULK)
            await made.a.payer.sign(R.public)
            (books,) = made.gate._books.values()
            assert books.billed < books.carried
            made.b.payer.close = lambda: asyncio.sleep(0)  # type: ignore[method-assign] - as if it were killed
            made.b.payer._sign = lambda _: asyncio.sleep(0)  # type: ignore[method-assign]
            await made.b.close()
            await until(lambda: not made.server._circuits.circuits)
            made.now[0] += 1000
            assert not relay_pass_checks.is_current(books.signed.toll, int(made.now[0]))
            async with hidden(B, made.server.address, echo, admission=Admission(clock=lambda: made.now[0])):
                await made.gate._collect(PAYER.public)
                assert not books.lag(B.public)
                assert books.carried - books.billed <= 3 * limits.CIRCUIT_BUFFER_BYTES

    run(test)


@pytest.mark.parametrize("liar", [A, B], ids=["sender", "receiver"])
def test_who_says_less_is_served_half_a_window_and_saves_no_more(
    monkeypatch: pytest.MonkeyPatch, liar: SigningKey
) -> None:
    honest = ReceiptTally.receipt

    def half(tally: ReceiptTally) -> RelayReceipt:
        said = honest(tally)
        if said.party != liar.public:
            return said
        return replace(said, sent=said.sent // 2, received=said.received // 2)

    monkeypatch.setattr(ReceiptTally, "receipt", half)
    monkeypatch.setattr(limits, "RECEIPT_BYTES", 1 << 18)

    async def test() -> None:
        async with paid(window=WINDOW, held=0.2) as made:
            with pytest.raises(NetworkError):
                await calls(made, 64)
            await until(lambda: not made.server._circuits.circuits)
            (books,) = made.gate._books.values()
            half = WINDOW // 2
            assert half < books.lag(liar.public) <= half + 3 * limits.CIRCUIT_BUFFER_BYTES
            assert books.carried - books.billed <= WINDOW

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
            await made.a.payer.sign(R.public)
            await made.b.payer.sign(R.public)
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
            await made.a.payer.sign(R.public)
            (books,) = made.gate._books.values()
            last = books.last(A.public)
            to_relay = await made.a.dial(R.public, *made.server.address)
            for body in (of_a(1, 1), of_a(0, 1 << 40), of_a(1 << 40, 0)):
                assert decode(await to_relay.call(RECEIPT, body), RelayReceiptReply, limits.KIB).last == last
            assert books.last(A.public) == last

    run(test)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_payers_clock_that_is_off_by_an_hour_is_refused(hours: int) -> None:
    async def test() -> None:
        begins = NOW + 3600 * hours
        shown = toll(begins=begins, expires=begins + limits.PASS_SECONDS)
        async with paid() as made:
            made.a.payer.find = lambda *_: shown  # type: ignore[method-assign] - its own clock is off as well
            with pytest.raises(NetworkError) as refused:
                await made.dial()
            assert "quarter of an hour" in refused.value.cause
            assert "clocks" in refused.value.hint

    run(test)


def test_a_stolen_pass_opens_nothing_for_a_third_key() -> None:
    async def test() -> None:
        async with paid() as made, hidden(C, made.server.address, echo) as thief:
            await calls(made, 1)
            thief.payer.find = lambda *_: toll()  # type: ignore[method-assign]
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
            made.ledger.funds = ChannelBalance(1, PRICE, 1 << 20)  # a pico-credit a byte
            async with hidden(C, made.server.address, echo):
                to_c = await made.a.dial(C.public, *made.server.address, relay=R.public)
                with pytest.raises(NetworkError):
                    await asyncio.gather(*(to_c.call("x", BULK) for _ in range(64)))
                with pytest.raises(NetworkError) as refused:
                    await made.dial()
                assert "used up" in refused.value.cause
            assert made.server.forwarded <= (1 << 20) + 3 * limits.CIRCUIT_BUFFER_BYTES

    run(test)


@pytest.mark.slow
def test_a_new_pass_is_no_way_to_leave_the_last_ones_bytes_unsigned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReceiptTally, "receipt", ReceiptTally.nothing)

    async def test() -> None:
        async with paid(toll(A, C), window=WINDOW, held=0.1) as made:
            for serial in (2, 3, 4):
                made.a.payer.put(toll(serial=serial, begins=int(made.now[0]) - 10, expires=int(made.now[0]) + 10))
                with pytest.raises(NetworkError):
                    await calls(made, 64)
                monkeypatch.setattr(relay_dialer, "time", SimpleNamespace(time=lambda: made.now[0] + 20))
                made.now[0] += 20
                books = made.gate._books[PAYER.public, 1, serial]
                assert books.carried < (WINDOW >> serial - 1) + 3 * limits.CIRCUIT_BUFFER_BYTES
            assert made.server.forwarded <= AT_RISK

    run(test)


@pytest.mark.whole
def test_many_passes_at_once_leave_no_more_unsigned_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReceiptTally, "receipt", ReceiptTally.nothing)

    async def test() -> None:
        async with paid(toll(A, C), window=WINDOW, held=0.1) as made:
            for serial in range(1, 7):
                made.a.payer.put(toll(serial=serial, expires=NOW + 600 + serial))
                with pytest.raises(NetworkError):
                    await calls(made, 64)
            assert made.server.forwarded <= AT_RISK

    run(test)


def test_passes_that_are_open_already_leave_no_more_unsigned_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a circuit of its own, all at once: the room is the payer's."""
    monkeypatch.setattr(ReceiptTally, "receipt", ReceiptTally.nothing)

    async def test() -> None:
        every = [local_key(7, f"party {number}") for number in range(8)]
        shown = [toll(A, each, serial=serial + 1) for serial, each in enumerate(every)]
        async with AsyncExitStack() as stack:
            made = await stack.enter_async_context(paid(*shown, window=WINDOW, held=0.5))
            ways = []
            for each in every:
                await stack.enter_async_context(hidden(each, made.server.address, echo))
                ways.append(await made.a.dial(each.public, *made.server.address, relay=R.public))
            assert len(made.gate._books) == len(every)
            work = [way.call("x", BULK) for way in ways for _ in range(16)]
            assert all(
                isinstance(each, NetworkError) for each in (await asyncio.gather(*work, return_exceptions=True))[-9:]
            )
            assert made.server.forwarded <= AT_RISK

    run(test)


@pytest.mark.whole
def test_a_channel_that_is_opened_anew_brings_no_new_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReceiptTally, "receipt", ReceiptTally.nothing)

    async def test() -> None:
        async with paid(window=WINDOW, held=0.1) as made:
            for opening in range(1, 7):
                made.ledger.funds = ChannelBalance(opening, PRICE, 1 << 40)
                made.a.payer.drop(PAYER.public)
                made.a.payer.put(toll(opening=opening))
                with pytest.raises(NetworkError):
                    await calls(made, 64)
                await made.gate.settle(PAYER.public)
            assert made.server.forwarded <= AT_RISK

    run(test)


@pytest.mark.slow
def test_a_word_that_the_channel_does_not_pay_for_makes_nothing_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a channel of a thousand pico-credits would buy a new window each time."""
    monkeypatch.setattr(ReceiptTally, "receipt", ReceiptTally.nothing)

    async def test() -> None:
        async with paid(window=WINDOW, held=0.1) as made:
            for opening in range(1, 6, 2):
                made.ledger.funds = ChannelBalance(opening, PRICE, 1 << 40)
                made.a.payer.drop(PAYER.public)
                made.a.payer.put(toll(opening=opening))
                with pytest.raises(NetworkError):
                    await calls(made, 64)
                await made.gate.settle(PAYER.public)
                before = made.gate._payers._owed[PAYER.public]
                assert before > WINDOW // 2
                made.ledger.funds = ChannelBalance(opening + 1, PRICE, 1000)  # a pico-credit a byte
                lost = toll(opening=opening + 1, lost=limits.PASS_BYTES)
                books = await made.gate.admit(lost, A.public, B.public)
                assert isinstance(books, PassMeter)
                assert books.account.owed >= before - 1000
                await made.gate.settle(PAYER.public)
                _, (claim,) = made.ledger.claims[-1]
                assert claim.signed == lost
            assert made.server.forwarded <= AT_RISK + 3000

    run(test)


def test_what_is_made_good_and_not_carried_is_claimed_after_the_pass_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_metering_gate, "LOOK_SECONDS", 0.02)

    async def test() -> None:
        async with paid() as made:
            good = toll(serial=2, lost=500)
            assert await renewed(made.gate, 3)
            await made.gate._renew(None, encode(good))  # type: ignore[arg-type]
            made.now[0] += limits.PASS_SECONDS + limits.PASS_SKEW_SECONDS
            await until(lambda: len(made.gate._books) == 1)
            assert made.gate.payers == (PAYER.public,)
            await made.gate.settle(PAYER.public)
            ((_, (claim,)),) = made.ledger.claims
            assert claim == PassClaim(good, ())

    run(test)


def test_one_member_that_never_signs_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it when it comes back under one pass after the other."""
    honest = ReceiptTally.receipt
    silent = local_key(7, "silent")
    monkeypatch.setattr(
        ReceiptTally, "receipt", lambda tally: honest(tally) if tally._party != silent.public else tally.nothing()
    )
    monkeypatch.setattr(limits, "RECEIPT_BYTES", 1 << 18)

    async def test() -> None:
        async with paid(window=WINDOW, held=0.1) as made, hidden(silent, made.server.address, echo):
            for serial in (2, 3):
                made.a.payer.put(toll(A, silent, serial=serial))
                to_silent = await made.a.dial(silent.public, *made.server.address, relay=R.public)
                found = await asyncio.gather(*(to_silent.call("x", BULK) for _ in range(64)), return_exceptions=True)
                assert isinstance(found[-1], NetworkError)
            await calls(made, 32)
            assert await settled(made) >= 64 * len(BULK)

    run(test)


async def renewed(made: RelayMeteringGate, serial: int, **fields: object) -> bool:
    """Whether the relay begins books for a pass that nobody has dialled with."""
    try:
        await made._renew(None, encode(toll(serial=serial, **fields)))  # type: ignore[arg-type]
    except PolicyError:
        return False
    return True


def test_a_payer_begins_no_end_of_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PASSES_PER_PAYER", 8)

    async def test() -> None:
        ledger, now, most = Ledger(), [NOW], limits.PASSES_PER_PAYER
        gate = RelayMeteringGate(ledger.asked(), PRICE, store=ReceiptStore(tmp_path))
        async with relay(gate=gate, admission=Admission(clock=lambda: now[0])):
            assert not await renewed(gate, 1, quota=0)
            assert not gate._books
            taken = await asyncio.gather(*(renewed(gate, serial) for serial in range(1, 3 * most)))
            assert sum(taken) == len(gate._books) == most
            assert await renewed(gate, 1, expires=NOW + 700)  # one of them again
            assert not await renewed(gate, 3 * most)
            now[0] += limits.PASS_SECONDS  # those before count no more, and nothing was carried under them
            await until(lambda: not gate._books)
            assert await renewed(gate, 3 * most, begins=now[0], expires=now[0] + 600)

    run(test)


def test_a_pass_of_a_channel_that_was_closed_opens_nothing_in_the_next_one() -> None:
    async def test() -> None:
        async with paid() as made:
            await calls(made, 1)
            made.ledger.funds = ChannelBalance(2, PRICE, 1 << 40)
            made.gate._payers.of(PAYER.public).know(made.ledger.funds, asyncio.get_running_loop().time())
            connection = await made.dial()
            connection.close()
            await connection.closed()
            with pytest.raises(NetworkError) as refused:
                await made.dial()
            assert "has no channel" in refused.value.cause

    run(test)


def test_who_settles_twice_at_once_pays_one_claim_and_the_second_takes_over_where_the_first_failed() -> None:
    async def test() -> None:
        async with paid() as made:
            await calls(made, 1)
            tries: list[PeerId] = []

            async def fails_twice(payer: PeerId, claims: tuple[PassClaim, ...]) -> None:
                tries.append(payer)
                await asyncio.sleep(0)
                if len(tries) <= 2:
                    raise NetworkError("FF-NET-047", "the ledger is away")
                await made.ledger.settle(payer, claims)

            made.gate._ledger = ChannelLedger(CHAIN, made.ledger.of, fails_twice)
            with pytest.raises(NetworkError, match="FF-NET-047"):
                await made.gate.settle(PAYER.public)
            assert await renewed(made.gate, 2)  # all goes on
            ends = [made.gate.settle(PAYER.public) for _ in range(4)]
            failed = [each for each in await asyncio.gather(*ends, return_exceptions=True) if each is not None]
            assert len(failed) == 1
            assert len(tries) == 3
            ((_, (claim,)),) = made.ledger.claims
            assert len(claim.receipts) == 2
            assert not made.gate._books

    run(test)


def test_while_a_relay_collects_for_its_claim_receipts_count_and_nothing_new_begins() -> None:
    async def test() -> None:
        async with paid(toll(), toll(A, C, serial=2)) as made, hidden(C, made.server.address, echo):
            await calls(made, 1)
            (books,) = made.gate._books.values()
            honest = made.gate._receipt_routes.collect

            async def meanwhile(asked: PassMeter, parties: tuple[PeerId, ...]) -> None:
                before = books.lag(A.public)
                await made.a.payer.sign(R.public)
                assert books.lag(A.public) < before
                with pytest.raises(NetworkError) as refused:
                    await made.a.dial(C.public, *made.server.address, relay=R.public)
                assert "has no channel" in refused.value.cause
                await honest(asked, parties)

            made.gate._receipt_routes.collect = meanwhile  # type: ignore[method-assign]
            await made.gate.settle(PAYER.public)
            ((_, (claim,)),) = made.ledger.claims
            assert len(claim.receipts) == 2

    run(test)


def test_a_connection_that_is_worn_makes_room_for_a_new_one_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
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


# In a group: one upload, many copies


def in_group(party: SigningKey, sent: int, received: int) -> bytes:
    t = toll(*GROUP).toll
    plain = RelayReceipt(t.chain, t.payer, t.relay, t.opening, t.serial, party.public, sent, received)
    return encode(relay_passes.sign_receipt(party, plain))


def test_a_relay_that_repeats_and_makes_up_frames_is_paid_for_no_copy_more(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = _RelayedGroup._spread

    def often(group: _RelayedGroup, connection: GroupConnection, frame: bytearray) -> None:
        for _ in range(5):
            honest(group, connection, bytearray(frame))

    monkeypatch.setattr(_RelayedGroup, "_spread", often)

    async def test() -> None:
        async with paid_group(*GROUP) as (made, members):
            await members[0].fan.send(BULK)
            lines = [line for member in members[1:] for line in member.station.payer._lines.values()]
            await until(lambda: all(line.tally._received == 5 * FRAMES for line in lines))
            assert all(member.errors for member in members[1:])
            assert await settled(made) <= 2 * FRAMES

    run(test)


def test_a_relay_that_fills_the_gap_of_a_skipped_member_is_paid_for_no_more_than_was_uploaded() -> None:
    async def test() -> None:
        async with paid_group(*GROUP) as (made, members):
            (group,) = made.server._groups.groups.values()
            connection = group.connections[GROUP[2].public]
            connection.is_skipped = True
            await members[0].fan.send(BULK)
            await heard(members[1:2], 1)
            connection.is_skipped = False
            noise = GroupFrameHead(999, GroupFrameKind.DATA, 3, 0, 1, 7).encode() + bytes(999)
            for _ in range(2 * FRAMES // len(noise)):
                connection.give(QueuedFrame(bytearray(noise), left=2))
            connection.flush()
            await until(lambda: bool(members[2].errors))
            assert await settled(made) <= 2 * FRAMES

    run(test)


@pytest.mark.parametrize("has_seen_all", [True, False])
def test_a_member_that_signs_for_copies_it_never_got_raises_the_bill_to_no_more_than_was_uploaded(
    has_seen_all: bool,
) -> None:
    """And by nothing but half a window where the relay keeps its books on disk, and so knows that it gave nothing."""

    async def test() -> None:
        async with paid_group(*GROUP, window=FRAMES) as (made, members):
            (books,) = made.gate._books.values()
            books._is_whole = has_seen_all
            (group,) = made.server._groups.groups.values()
            group.connections[GROUP[2].public].is_skipped = True
            await members[0].fan.send(BULK)
            await heard(members[1:2], 1)
            to_relay = await members[2].station.dial(R.public, *made.server.address)
            await to_relay.call(RECEIPT, in_group(GROUP[2], 0, 1 << 40))
            said = await settled(made)
            assert said <= (1 if has_seen_all else 2) * FRAMES

    run(test)


def test_a_sender_that_says_more_or_less_than_it_uploaded_raises_no_bill() -> None:
    async def test() -> None:
        async with paid_group(*GROUP) as (made, members):
            await members[0].fan.send(BULK)
            await heard(members[1:], 1)
            to_relay = await members[0].station.dial(R.public, *made.server.address)
            await to_relay.call(RECEIPT, in_group(GROUP[0], 1 << 40, 0))
            assert await settled(made) <= 2 * FRAMES

    run(test)


def test_an_old_receipt_shown_again_in_a_group_lowers_nothing() -> None:
    async def test() -> None:
        async with paid_group(*GROUP) as (made, members):
            await members[0].fan.send(BULK)
            await heard(members[1:], 1)
            for member in members:
                await member.station.payer.sign(R.public)
            (books,) = made.gate._books.values()
            before = books.receipts
            assert books.billed == 2 * FRAMES
            to_relay = await members[1].station.dial(R.public, *made.server.address)
            for received in (0, 1, FRAMES - 1, FRAMES):
                await to_relay.call(RECEIPT, in_group(GROUP[1], 0, received))
            assert books.receipts == before

    run(test)


def test_a_member_cannot_let_itself_in_by_a_pass_of_its_own_or_one_for_another_group() -> None:
    """Nor can it tie the group to a pass that the others do not have."""
    thief = GROUP[2]
    own = toll(*GROUP, payer=thief.public, key=thief)
    others = toll(*GROUP[:2], A)  # of the same payer, for a group that the thief is not in

    async def test() -> None:
        async with paid() as made, hidden(thief, None) as station:
            made.ledger.of = lambda _: asyncio.sleep(0, ChannelBalance(1, PRICE, 1 << 40))  # type: ignore[method-assign]
            made.gate._payers.ask = made.ledger.of
            place = meeting(made.server.address, roster(members=GROUP, owner=PAYER))
            for shown, cause in ((own, "not the one"), (others, "not for our key")):
                station.payer.find_of = lambda *_, s=shown: s  # type: ignore[method-assign]
                with pytest.raises(NetworkError) as refused:
                    await Member(thief, station).fan.enter(place)
                assert cause in refused.value.cause
                assert not made.server._groups.groups

    run(test)

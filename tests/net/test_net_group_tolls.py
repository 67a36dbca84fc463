"""A group at a relay that is paid: who is let in, what is counted for whom, and who is cut."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from net_groups import MEMBERS, Member, heard, meeting, roster
from net_relays import A, B, C, run, until
from net_tolls import NOW, PAYER, ChannelBalance, Paid, hidden, paid, paid_group, toll

from farflung.core import limits, relay_passes
from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId
from farflung.core.relay_passes import SignedRelayPass
from farflung.net.io import multicast_member, relay_payer
from farflung.net.multicast_frames import HEAD_BYTES, TAG_BYTES

MESSAGE = bytes(range(256)) * 1024  # 256 KiB: 16 frames
FRAMES = len(MESSAGE) + 16 * (HEAD_BYTES + TAG_BYTES)  # on the wire
ONE, TWO, THREE, FOUR = MEMBERS


@pytest.fixture(autouse=True)
def _standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multicast_member, "time", SimpleNamespace(time=lambda: NOW, monotonic=time.monotonic))


async def settled(made: Paid) -> dict[PeerId, tuple[int, int]]:
    """What each party has signed when the relay claims."""
    await made.gate.settle(PAYER.public)
    ((_, (claim,)),) = made.ledger.claims
    return {r.receipt.party: (r.receipt.sent, r.receipt.received) for r in claim.receipts}


def test_an_upload_is_billed_once_for_each_member_that_got_it() -> None:
    async def test() -> None:
        async with paid_group(ONE, TWO, THREE) as (made, members):
            for member in members[:2]:
                await member.fan.send(MESSAGE)
            await heard(members[:2], 1)
            await heard(members[2:], 2)
            said = await settled(made)
            assert said == {ONE.public: (FRAMES, FRAMES), TWO.public: (FRAMES, FRAMES), THREE.public: (0, 2 * FRAMES)}
            assert relay_passes.billed(1 << 40, said) == 4 * FRAMES
            assert made.server.forwarded == 4 * FRAMES

    run(test)


async def refusal(signed: SignedRelayPass | None, funds: ChannelBalance | None = None) -> str:
    """What the relay says to a first member that shows this."""
    async with paid() as made, hidden(ONE, None) as station:
        if funds is not None:
            made.ledger.funds = funds
        station.payer.find_of = lambda *_: signed  # type: ignore[method-assign]
        member = Member(ONE, station)
        with pytest.raises(NetworkError) as refused:
            await member.fan.enter(meeting(made.server.address, roster(owner=PAYER)))
        assert refused.value.code == "FF-NET-130"
        assert not made.server._groups.groups
        assert not made.gate._runs
        return str(refused.value.cause)


@pytest.mark.parametrize(
    ("signed", "funds", "cause"),
    [
        (None, None, "for a pass of the group's owner only"),
        (toll(ONE, TWO, payer=C.public, key=C), None, "not the one that the group runs under"),
        (toll(TWO, THREE), None, "not for our key"),
        (toll(ONE, TWO, key=C), None, "does not take a signature"),
        (toll(ONE, TWO, relay=C.public), None, "another relay"),
        (toll(ONE, TWO, expires=NOW), None, "quarter of an hour"),
        (toll(ONE, TWO, quota=0), None, "used up"),
        (toll(ONE, TWO), ChannelBalance(1, 5, 1 << 40), "has no channel"),  # below the relay's price
    ],
)
def test_a_member_is_let_in_under_a_good_pass_of_the_groups_owner_only(
    signed: SignedRelayPass | None, funds: ChannelBalance | None, cause: str
) -> None:
    async def test() -> None:
        assert cause in await refusal(signed, funds)

    run(test)


def test_all_members_of_a_group_run_under_one_pass() -> None:
    """What one signs under this pass would not answer what the others sign under that: it could not be billed."""

    async def test() -> None:
        async with paid_group(ONE, TWO) as (made, members), hidden(THREE, None) as station:
            station.payer.put(toll(ONE, TWO, THREE, serial=2))
            third = Member(THREE, station)
            place = meeting(made.server.address, roster(2, (ONE, TWO, THREE), PAYER))
            with pytest.raises(NetworkError) as refused:
                await third.fan.enter(place)
            assert "not the one that the group runs under" in refused.value.cause
            station.payer._passes.clear()
            station.payer.put(toll(ONE, TWO, THREE, expires=NOW + 700))  # a renewal of the one they have
            await third.fan.enter(place)
            await members[0].fan.enter(place)
            await members[0].fan.send(MESSAGE)
            await heard([third], 1)
            await third.fan.close()

    run(test)


def test_a_member_that_does_not_sign_is_cut_after_half_a_window_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest, window = relay_payer.RelayPayer._sign, 1 << 21

    async def sign(self: relay_payer.RelayPayer, line: object) -> None:
        if self._account == THREE.public:
            raise NetworkError("FF-NET-047", "no receipt from here")
        await honest(self, line)  # type: ignore[arg-type]

    monkeypatch.setattr(relay_payer.RelayPayer, "_sign", sign)
    monkeypatch.setattr(multicast_member, "AGAIN_SECONDS", 0.05)

    async def test() -> None:
        async with paid_group(ONE, TWO, THREE, window=window, held=0.2, is_signing=False) as (made, members):
            for count in range(1, 9):
                await members[0].fan.send(MESSAGE)
                await heard(members[1:2], count)
            await until(lambda: len(made.gate._runs) == 2)
            (books,) = made.gate._books.values()
            # what one write gave its socket when it was held is carried, and no more
            most = window + limits.RECEIPT_STEP
            assert window / 4 < books.lag(THREE.public) <= books.account.unsigned <= most
            await until(lambda: not members[2].fan.epoch)
            await members[0].fan.send(MESSAGE)
            await heard(members[1:2], 9)
            with pytest.raises(NetworkError) as refused:
                await Member(THREE, members[2].station).fan.enter(
                    meeting(made.server.address, roster(members=(ONE, TWO, THREE), owner=PAYER))
                )
            assert "receipts" in refused.value.cause

    run(test)


async def many(member: Member) -> None:
    for _ in range(999):
        await member.fan.send(MESSAGE)
        await asyncio.sleep(0)


def test_a_sender_that_does_not_sign_is_held_after_half_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = relay_payer.RelayPayer._sign

    async def sign(self: relay_payer.RelayPayer, line: object) -> None:
        if self._account == ONE.public:
            raise NetworkError("FF-NET-047", "no receipt from here")
        await honest(self, line)  # type: ignore[arg-type]

    monkeypatch.setattr(relay_payer.RelayPayer, "_sign", sign)

    async def test() -> None:
        half = 1 << 20
        async with paid_group(ONE, TWO, window=2 * half, held=0.2, is_signing=False) as (made, members):
            with pytest.raises(NetworkError):
                await many(members[0])
            (books,) = made.gate._books.values()
            assert half < books.lag(ONE.public) <= half + FRAMES
            assert len(members[1].heard) <= 5

    run(test)


def test_who_is_skipped_is_not_billed_for_what_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with paid_group(ONE, TWO, THREE) as (made, members):
            (group,) = made.server._groups.groups.values()
            group.connections[THREE.public].skip()
            group.connections[THREE.public].is_skipped = True
            await members[0].fan.send(MESSAGE)
            await heard(members[1:2], 1)
            said = await settled(made)
            assert said.get(THREE.public, (0, 0)) == (0, 0)
            assert relay_passes.billed(1 << 40, said) == FRAMES

    run(test)


def test_circuits_and_groups_of_one_pass_count_together() -> None:
    async def test() -> None:
        async with paid_group(A, B) as (made, members):
            await members[0].fan.send(MESSAGE)
            await heard(members[1:], 1)
            (books,) = made.gate._books.values()
            assert books.carried == FRAMES
            (line,) = members[0].station.payer._lines.values()
            assert line.tally.connections == 1
            for member in members:
                await member.station.payer.sign(made.server._own.account)
            assert books.billed == FRAMES

    run(test)

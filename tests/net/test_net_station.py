"""What a member of a group shares with its process: its line, its counts and its key."""

import time
from pathlib import Path

import pytest
from net_groups import MEMBERS, Member, gathered, heard, meeting
from net_relays import relay, run, until

from farflung.core.crypto import local_key
from farflung.core.errors import NetworkError
from farflung.net.certificates import Credential, certify
from farflung.net.io import rate_limiter
from farflung.net.io.monthly_quota import MonthlyQuota
from farflung.net.io.paced_socket import PacedSocket
from farflung.net.io.rate_limiter import LinePacer, RateCaps
from farflung.net.messages import MessageKind


def test_a_members_bytes_are_paced_and_counted_as_all_others_and_end_with_the_month(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rate_limiter, "is_near", lambda _sock: False)

    async def test() -> None:
        month = MonthlyQuota(tmp_path / "month.book", 1_000_000)
        async with relay() as server, gathered(server.address, keys=MEMBERS[1:]) as others:
            mine = Member(MEMBERS[0])
            line = mine.station.pacer = LinePacer(allowance=month)
            try:
                await mine.fan.enter(meeting(server.address))
                assert list(line._members) == list(line._pacer._senders) == [mine.fan._socket]
                await mine.fan.send(bytes(400_000))
                await heard(others, 1)
                assert month.used >= 400_000
                await others[0].fan.send(bytes(700_000))
                await heard([mine], 1)
                assert mine.counter.sent[MessageKind.SYNC] >= 400_000
                assert mine.counter.received[MessageKind.SYNC] >= 700_000
                with pytest.raises(NetworkError, match="FF-NET-150"):
                    await mine.fan.send(b"more")
            finally:
                await mine.fan.close()
            assert not line._members
            assert not line._pacer._senders
        await month.close()

    run(test)


@pytest.mark.slow
@pytest.mark.parametrize("caps", [RateCaps(up=1_000_000), RateCaps(down=1_000_000)])
def test_an_owners_cap_holds_for_a_group_where_the_kernel_cannot_pace(
    caps: RateCaps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limiter, "is_near", lambda _sock: False)
    monkeypatch.setattr(rate_limiter.socket_options, "CAN_PACE", False)

    async def test() -> None:
        async with relay() as server, gathered(server.address, keys=MEMBERS[1:]) as others:
            mine = Member(MEMBERS[0])
            mine.station.pacer = LinePacer(caps)
            waits = []
            for name in ("may_read", "may_send"):
                wait = getattr(PacedSocket, name)

                async def noted(valve: PacedSocket, wait: object = wait) -> None:
                    before = time.monotonic()
                    await wait(valve)  # type: ignore[operator]
                    waits.append(time.monotonic() - before)

                monkeypatch.setattr(PacedSocket, name, noted)
            try:
                await mine.fan.enter(meeting(server.address))
                await (mine if caps.up else others[0]).fan.send(bytes(1_000_000))
                await heard(others if caps.up else [mine], 1)
                assert sum(waits) > 0.1  # a second's bytes
            finally:
                await mine.fan.close()

    run(test)


def test_a_member_joins_again_with_the_key_that_it_has_then() -> None:
    async def test() -> None:
        account, keys = MEMBERS[0], [local_key(17, "node", n) for n in range(2)]
        first, second = (Credential(key, certify(account, key.public, n)) for n, key in enumerate(keys, 1))
        async with relay() as server:
            mine = Member(first)
            try:
                await mine.fan.enter(meeting(server.address))
                mine.station.credential = second
                (group,) = server._groups.groups.values()
                group.connections[account.public].close()
                await until(lambda: mine.gaps > 0)
                await until(lambda: bool(server._groups.groups) and mine.fan.epoch > 0)
                (group,) = server._groups.groups.values()
                assert group.connections[account.public].who == second.identity
            finally:
                await mine.fan.close()

    run(test)

"""A relay that gives what one member sends once to all others of its group."""

import asyncio
import random
import socket
import time

import pytest
from net_groups import MEMBERS, NAME, OWNER, Member, gathered, group, heard, key_of, meeting, roster
from net_relays import R, relay, run, until

from farflung.core import limits
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import NetworkError, ProtocolError
from farflung.net import multicast_groups
from farflung.net.certificates import Credential, certify, credential_of
from farflung.net.io.admission import Admission
from farflung.net.io.multicast_member import GroupMember
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_circuits import RelayLimits
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.messages import MessageKind
from farflung.net.multicast_frames import HEAD_BYTES, GroupFrameHead, GroupFrameKind
from farflung.net.multicast_groups import GroupJoin, GroupJoinStatus, sign_roster
from farflung.net.node_keyring import RegisteredKeys

STRANGER = local_key(17, "stranger")


def body(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def connections(server: RelayServer):  # type: ignore[no-untyped-def]
    (only,) = server._groups.groups.values()
    return only.connections


async def join(server: RelayServer, data: bytes) -> GroupJoinStatus | None:
    """The relay's answer to these bytes."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, server.address)
        await loop.sock_sendall(sock, data)
        return multicast_groups.read_answer(await loop.sock_recv(sock, multicast_groups.ANSWER_BYTES))


def joining(key: SigningKey | Credential, signed=None, **fields: object) -> bytes:  # type: ignore[no-untyped-def]
    signed = signed or roster()
    ends = int(time.time()) + 60
    made = {
        "relay": R.public,
        "group": signed.roster.group,
        "presenter": credential_of(key).account,
        "nonce": bytes(16),
    }
    return multicast_groups.sign_join(key, GroupJoin(**{**made, "expires": ends, **fields}), signed)  # type: ignore[arg-type]


def test_what_one_sends_once_all_others_hear_in_order() -> None:
    async def test() -> None:
        async with group() as (server, members):
            sent = [body(size, size) for size in (1, limits.FAN_FRAME_BYTES, limits.BULK_BYTES, 77)]
            for message in sent:
                await members[0].fan.send(message)
            await heard(members[1:], len(sent))
            expected = [(MEMBERS[0].public, message) for message in sent]
            assert all(member.heard == expected for member in members[1:])
            assert members[0].heard == []
            total = sum(map(len, sent))
            assert total < members[0].counter.sent[MessageKind.SYNC] < 1.01 * total + 1000
            assert server.forwarded > 3 * total

    run(test)


def test_all_send_at_once_and_all_hear_everything() -> None:
    async def test() -> None:
        async with group() as (_, members):
            await asyncio.gather(*(m.fan.send(body(limits.MIB, n)) for n, m in enumerate(members)))
            await heard(members, 3)
            for n, member in enumerate(members):
                assert dict(member.heard) == {
                    key.public: body(limits.MIB, other) for other, key in enumerate(MEMBERS) if other != n
                }
                assert not member.errors
                assert not member.gaps

    run(test)


def test_a_slow_reader_stops_nobody_and_what_it_lost_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FAN_GROUP_BYTES", 2 * limits.MIB)
    monkeypatch.setattr(limits, "FAN_PATIENCE_SECONDS", 0.2)

    async def test() -> None:
        async with group() as (server, members):
            slow = members[3]
            may_read = asyncio.Event()
            listen = slow.fan._listen

            async def later(*there: object) -> None:
                await may_read.wait()
                await listen(*there)  # type: ignore[arg-type]

            slow.fan._listen = later  # type: ignore[method-assign]
            await slow.fan.close()
            await slow.fan.enter(meeting(server.address))
            most = 0
            for n in range(24):
                await members[0].fan.send(body(limits.MIB, n))
                most = max(most, server._groups.held)
            await heard(members[1:3], 24)
            assert all(len(member.heard) == 24 and not member.gaps for member in members[1:3])
            assert most <= 2 * limits.MIB + len(members) * (limits.FAN_FRAME_BYTES + HEAD_BYTES + 16)
            may_read.set()
            await until(lambda: slow.gaps > 0)
            assert not slow.errors
            before = len(slow.heard)
            assert before < 24
            await members[1].fan.send(b"after")
            await until(lambda: (MEMBERS[1].public, b"after") in slow.heard)

    run(test)


def test_the_relay_holds_no_more_than_its_bound_while_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FAN_GROUP_BYTES", limits.MIB)
    monkeypatch.setattr(limits, "FAN_PATIENCE_SECONDS", 1e9)

    async def test() -> None:
        async with relay() as server, gathered(server.address) as members:
            for leg in connections(server).values():
                leg.flush = lambda: None  # as if no socket took anything
            sending = asyncio.create_task(members[0].fan.send(body(2 * limits.MIB)))
            await until(lambda: server._groups.held >= limits.MIB)
            for _ in range(50):
                await asyncio.sleep(0.002)
                assert server._groups.held <= limits.MIB + 2 * (limits.FAN_FRAME_BYTES + HEAD_BYTES + 16)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    run(test)


def test_when_the_owner_ends_all_groups_end_too() -> None:
    async def test() -> None:
        async with group() as (server, members):
            await members[0].fan.send(b"before")
            await heard(members[1:], 1)
            server.end_all()
            await until(lambda: not server._groups.groups)
            await until(lambda: not any(member.fan.epoch for member in members))

    run(test)


def test_who_is_removed_is_cut_hears_nothing_more_and_cannot_come_back() -> None:
    async def test() -> None:
        async with group() as (server, members):
            gone, stay = members[3], members[:3]
            newer = roster(2, MEMBERS[:3])
            for member in stay:
                await member.fan.enter(meeting(server.address, newer))
                assert member.fan.epoch == 2
            await until(lambda: set(connections(server)) == {key.public for key in MEMBERS[:3]})
            await stay[0].fan.send(b"without you")
            await heard(stay[1:], 1)
            assert gone.heard == []
            with pytest.raises(NetworkError, match="newer roster"):
                await gone.fan._join(meeting(server.address))
            with pytest.raises(NetworkError, match="not in the group's roster"):
                await gone.fan._join(meeting(server.address, newer))

    run(test)


def test_a_member_that_comes_back_is_heard_under_a_stream_of_its_own() -> None:
    async def test() -> None:
        async with group() as (_, members):
            await members[0].fan.send(b"before")
            await heard(members[1:], 1)
            sock = members[0].fan._socket
            assert sock is not None
            sock.shutdown(socket.SHUT_RDWR)
            await until(lambda: members[0].gaps > 0)
            await until(lambda: members[0].fan.epoch == 1)
            await members[0].fan.send(b"after")
            await heard(members[1:], 2)
            assert not any(member.errors for member in members)

    run(test)


def test_a_new_member_is_let_in_by_a_newer_roster_and_the_others_stay_connected() -> None:
    async def test() -> None:
        async with relay() as server, gathered(server.address, roster(1, MEMBERS[:3]), MEMBERS[:3]) as first:
            standing = dict(connections(server))
            newer = roster(2, MEMBERS)
            async with gathered(server.address, newer, MEMBERS[3:]) as (fourth,):
                for member in first:
                    await member.fan.enter(meeting(server.address, newer))
                assert all(connections(server)[peer] is leg for peer, leg in standing.items())
                await fourth.fan.send(b"hello")
                await heard(first, 1)

    run(test)


def test_a_member_that_is_only_told_of_an_older_roster_is_refused() -> None:
    async def test() -> None:
        async with group() as (server, members):
            await members[0].fan.enter(meeting(server.address, roster(5)))
            with pytest.raises(NetworkError, match="newer roster"):
                await members[1].fan.enter(meeting(server.address, roster(4)))

    run(test)


def test_who_the_roster_the_relay_or_the_minute_does_not_know_is_refused() -> None:
    async def test() -> None:
        served = {key.public for key in MEMBERS} | {OWNER.public}
        async with relay(admission=Admission(lambda peer: peer in served)) as server:
            assert await join(server, joining(MEMBERS[0])) is GroupJoinStatus.JOINED
            assert await join(server, joining(MEMBERS[0])) is GroupJoinStatus.REPLAYED
            assert await join(server, joining(MEMBERS[0], nonce=bytes(15) + b"2")) is GroupJoinStatus.JOINED
            assert await join(server, joining(STRANGER)) is GroupJoinStatus.OUTSIDE
            with_stranger = roster(2, (*MEMBERS, STRANGER))
            assert await join(server, joining(STRANGER, with_stranger)) is GroupJoinStatus.BARRED
            own = roster(1, MEMBERS, owner=STRANGER)  # a group of somebody whom the relay does not serve
            assert await join(server, joining(MEMBERS[0], own)) is GroupJoinStatus.BARRED
            assert await join(server, joining(MEMBERS[0], expires=1)) is GroupJoinStatus.STALE
            assert await join(server, b"FFG1\xff\xff") is GroupJoinStatus.MALFORMED

    run(test)


def test_a_join_is_taken_apart_at_every_byte_without_harm() -> None:
    async def test() -> None:
        whole = joining(MEMBERS[0])
        loop = asyncio.get_running_loop()
        async with relay(limits=RelayLimits(handshake_seconds=5.0)) as server:
            for cut in range(0, len(whole), 23):
                with socket.socket() as sock:
                    sock.setblocking(False)
                    await loop.sock_connect(sock, server.address)
                    await loop.sock_sendall(sock, whole[:cut])
                    sock.shutdown(socket.SHUT_WR)
                    assert await loop.sock_recv(sock, 99) == b""
            assert not server._groups.groups
            assert await join(server, whole) is GroupJoinStatus.JOINED

    run(test)


def test_groups_are_bounded_in_all_and_for_each_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FAN_GROUPS_PER_OWNER", 1)

    async def test() -> None:
        async with group() as (server, _):
            other = multicast_groups.sign_roster(OWNER, multicast_groups.Hash(b"2" * 32), 1, (MEMBERS[0].public,))
            assert await join(server, joining(MEMBERS[0], other)) is GroupJoinStatus.FULL
            theirs = multicast_groups.sign_roster(STRANGER, multicast_groups.Hash(b"2" * 32), 1, (MEMBERS[0].public,))
            assert await join(server, joining(MEMBERS[0], theirs, nonce=bytes(15) + b"2")) is GroupJoinStatus.JOINED
            monkeypatch.setattr(limits, "FAN_GROUPS", 1)
            third = multicast_groups.sign_roster(MEMBERS[1], multicast_groups.Hash(b"2" * 32), 1, (MEMBERS[0].public,))
            nonce = bytes(15) + b"3"
            assert await join(server, joining(MEMBERS[0], third, nonce=nonce)) is GroupJoinStatus.FULL

    run(test)


@pytest.mark.parametrize(
    "frame",
    [
        GroupFrameHead(1 << 31, GroupFrameKind.DATA).encode(),
        GroupFrameHead(0, GroupFrameKind.GAP).encode(),
        b"\0\0\0\0\x09" + bytes(HEAD_BYTES - 5),
        GroupFrameHead(5, GroupFrameKind.ROSTER).encode() + b"hello",
        GroupFrameHead(17, GroupFrameKind.DATA, 3, 99, 1).encode() + bytes(17),
    ],
    ids=["giant", "gap", "unknown", "no roster", "nobody's number"],
)
def test_who_breaks_the_rules_of_frames_is_cut_and_the_others_go_on(frame: bytes) -> None:
    async def test() -> None:
        async with group() as (server, members):
            sock = members[0].fan._socket
            assert sock is not None
            await asyncio.get_running_loop().sock_sendall(sock, frame)
            await until(lambda: MEMBERS[0].public not in connections(server))
            await members[1].fan.send(b"still here")
            await heard(members[2:], 1)

    run(test)


def test_in_anothers_name_nobody_sends() -> None:
    async def test() -> None:
        async with group() as (server, members):
            sealer = members[0].fan._sealer
            assert sealer is not None
            sealer._sender = (sealer._sender + 1) % len(MEMBERS)
            await members[0].fan.send(b"I am another one")
            await until(lambda: MEMBERS[0].public not in connections(server))
            assert not any(member.heard for member in members)

    run(test)


def test_pings_come_back_and_who_is_silent_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with group() as (server, members):
            sock = members[0].fan._socket
            assert sock is not None
            before = members[0].fan._heard
            await members[0].fan._write(GroupFrameHead(0, GroupFrameKind.PING).encode(), MessageKind.CONTROL)
            await until(lambda: members[0].fan._heard > before)
            assert server._groups.held == 0
            monkeypatch.setattr(limits, "CIRCUIT_IDLE_SECONDS", -1.0)
            await until(lambda: not server._groups.groups)

    run(test)


def test_a_place_where_no_group_is_says_so() -> None:
    async def test() -> None:
        member = Member(MEMBERS[0])
        with socket.create_server(("127.0.0.1", 0)) as free:
            place = free.getsockname()
        with pytest.raises(NetworkError, match="FF-NET-131"):
            await member.fan.enter(meeting(place))
        with pytest.raises(NetworkError, match="FF-NET-135"):
            await member.fan.send(b"x")
        assert isinstance(member.fan, GroupMember)
        async with relay(local_key(17, "another relay")) as server:
            with pytest.raises(NetworkError, match="FF-NET-130"):
                await member.fan.enter(meeting(server.address))
        await member.fan.close()

    run(test)


def test_a_relay_that_went_away_is_found_again() -> None:
    async def test() -> None:
        async with relay() as server:
            place = server.address
            async with gathered(place) as members:
                await server.close()
                await until(lambda: all(member.gaps for member in members))
                async with relay(listen=ListenConfig(port=place[1])):
                    await until(lambda: all(member.fan.epoch for member in members))
                    await members[0].fan.send(b"again")
                    await heard(members[1:], 1)

    run(test)


def test_an_over_long_message_is_refused_before_it_leaves() -> None:
    async def test() -> None:
        async with group() as (_, members):
            with pytest.raises(ProtocolError, match="FF-NET-134"):
                await members[0].fan.send(bytes(limits.BULK_BYTES + 1))
            assert members[0].fan.lost == 0
            assert key_of(1) != key_of(2)

    run(test)


def test_a_node_key_stands_for_its_account_until_it_is_revoked() -> None:
    async def test() -> None:
        account, node = MEMBERS[0], local_key(17, "node")
        own = Credential(node, certify(account, node.public, 1))
        async with relay() as server, gathered(server.address, keys=MEMBERS[1:]) as others:
            theirs = Member(own)
            try:
                await theirs.fan.enter(meeting(server.address))
                await theirs.fan.send(b"by my node key")
                await heard(others, 1)
                assert others[0].heard == [(account.public, b"by my node key")]
                server.admission.keyring.learn(
                    [RegisteredKeys(account.public, 1, node.public, 0, account.public, 0, 2)]
                )
                await until(lambda: account.public not in connections(server))
                with pytest.raises(NetworkError, match="node key"):
                    await theirs.fan._join(meeting(server.address))
            finally:
                await theirs.fan.close()
            revoked = sign_roster(own, NAME, 9, (MEMBERS[1].public,))
            assert await join(server, joining(MEMBERS[1], revoked)) is GroupJoinStatus.VOID
            stolen = Credential(node, certify(local_key(17, "else"), node.public, 1))
            assert await join(server, joining(stolen, presenter=account.public)) is GroupJoinStatus.FORGED

    run(test)

"""A relay that lies to a group: it flips, repeats, reorders, drops, renames, listens, and lets strangers in."""

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from net_groups import MEMBERS, NAME, OWNER, Member, gathered, group, heard, key_of, meeting, roster
from net_relays import C, R, relay, run, until

from farflung.core import limits
from farflung.core.crypto import NS_ROSTER, local_key
from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId
from farflung.net import multicast_groups
from farflung.net.certificates import bare, credential_of
from farflung.net.counters import ByteCounter
from farflung.net.io import multicast_member as fan_file
from farflung.net.io import multicast_relay
from farflung.net.io.connection import Connection
from farflung.net.io.multicast_dial import RelayBackoff
from farflung.net.io.multicast_member import GroupMember, NoEndpoint
from farflung.net.multicast_frames import HEAD_BYTES, GroupFrameHead, GroupFrameKind, read_head
from farflung.net.multicast_groups import Roster, SignedRoster
from farflung.peers.transfer import fanout as transfer_fanout
from farflung.peers.transfer import objects
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import ObjectManifest, seal

Attack = Callable[[GroupFrameHead, bytes], list[bytes]]  # a frame; what is given to the others for it


@asynccontextmanager
async def deaf(word: GroupFrameKind, joins: list[bytes] | None = None) -> AsyncIterator[tuple[str, int]]:
    """A relay that lets everybody in, reads nothing after that, and says one word again and again.

    `joins`: what it was shown by each who joined.
    """
    talking: list[asyncio.Task[None]] = []

    async def talk(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                writer.write(GroupFrameHead(0, word).encode())
                await writer.drain()
                await asyncio.sleep(0.01)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = multicast_groups.read_head(await reader.readexactly(multicast_groups.HEAD_BYTES))
        shown = await reader.readexactly(size or 0)
        if joins is not None:
            joins.append(shown)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(multicast_groups.answer(multicast_groups.GroupJoinStatus.JOINED))
        talking.append(asyncio.create_task(talk(writer)))
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()
        for task in talking:
            task.cancel()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*talking, return_exceptions=True)


async def poured(fan: GroupMember) -> None:
    """Sends until it cannot."""
    while True:
        await fan.send(bytes(limits.BULK_BYTES - 1))


def lying(monkeypatch: pytest.MonkeyPatch, attack: Attack) -> None:
    """The relay gives the others what `attack` makes of each frame."""
    spread = multicast_relay._RelayedGroup._spread

    def lie(self: multicast_relay._RelayedGroup, connection: multicast_relay.GroupConnection, frame: bytearray) -> None:
        for each in attack(read_head(frame), bytes(frame)):
            spread(self, connection, bytearray(each))

    monkeypatch.setattr(multicast_relay._RelayedGroup, "_spread", lie)


def flipped(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


def attacked(test: Callable[[list[Member]], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with group() as (_, members):
            await test(members)

    run(whole)


@pytest.mark.guarantee
@pytest.mark.parametrize("at", [HEAD_BYTES, HEAD_BYTES + 50, -1, 6, 15, 23, 5], ids=str)
def test_a_changed_frame_is_refused_or_lost_and_never_heard(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """In the body, the tag, the sender, the epoch, the stream, the flags."""
    lying(monkeypatch, lambda _, frame: [flipped(frame, at % len(frame))])

    async def test(members: list[Member]) -> None:
        await members[0].fan.send(bytes(100))
        await until(lambda: all(member.errors or member.gaps for member in members[1:]))
        assert not any(member.heard for member in members)
        assert {error.code for member in members for error in member.errors} <= {"FF-NET-133"}

    attacked(test)


def test_a_repeated_frame_is_heard_once_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    lying(monkeypatch, lambda _, frame: [frame, frame])

    async def test(members: list[Member]) -> None:
        await members[0].fan.send(b"once")
        await until(lambda: all(member.errors for member in members[1:]))
        assert [member.heard for member in members[1:]] == [[(MEMBERS[0].public, b"once")]] * 3

    attacked(test)


def test_frames_in_another_order_make_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []

    def swap(head: GroupFrameHead, frame: bytes) -> list[bytes]:
        kept.append(frame)
        return [kept[1], kept[0]] if len(kept) == 2 else []

    lying(monkeypatch, swap)

    async def test(members: list[Member]) -> None:
        await members[0].fan.send(random.Random(1).randbytes(2 * limits.FAN_FRAME_BYTES))
        await until(lambda: all(member.errors for member in members[1:]))
        assert not any(member.heard for member in members)

    attacked(test)


def test_a_message_of_which_the_relay_drops_a_part_is_given_up_and_the_next_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lying(monkeypatch, lambda head, frame: [frame] if head.counter != 1 else [])

    async def test(members: list[Member]) -> None:
        await members[0].fan.send(bytes(3 * limits.FAN_FRAME_BYTES))
        await members[0].fan.send(b"next")
        await heard(members[1:], 1)
        assert [member.heard for member in members[1:]] == [[(MEMBERS[0].public, b"next")]] * 3
        assert all(member.gaps for member in members[1:])

    attacked(test)


def test_what_one_said_is_not_taken_for_another_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(head: GroupFrameHead, frame: bytes) -> list[bytes]:
        return [head._replace(sender=(head.sender + 1) % 4).encode() + frame[HEAD_BYTES:]]

    lying(monkeypatch, rename)

    async def test(members: list[Member]) -> None:
        await members[0].fan.send(b"mine")
        await until(lambda: all(member.errors for member in members[1:]))
        assert not any(member.heard for member in members)

    attacked(test)


def test_a_frame_of_another_length_ends_that_connection_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lying(monkeypatch, lambda head, frame: [frame[:-5], frame])

    async def test(members: list[Member]) -> None:
        for _ in range(3):
            await members[0].fan.send(bytes(1000))
        await until(lambda: all(member.errors for member in members[1:]))
        assert not any(data != bytes(1000) for member in members for _, data in member.heard)

    attacked(test)


@pytest.mark.guarantee
def test_the_relay_sees_no_run_of_plaintext_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def listen(_: GroupFrameHead, frame: bytes) -> list[bytes]:
        seen.append(frame)
        return [frame]

    lying(monkeypatch, listen)
    secret = random.Random(3).randbytes(limits.MIB)

    async def test(members: list[Member]) -> None:
        await members[0].fan.send(secret)
        await members[0].fan.send(secret)  # the same again looks different
        await heard(members[1:], 2)
        copy = b"".join(seen)
        assert len(copy) > 2 * len(secret)
        assert not any(secret[i : i + 16] in copy for i in range(0, len(secret), 4096))
        assert key_of(1) not in copy
        assert len({frame[HEAD_BYTES : HEAD_BYTES + 64] for frame in seen}) == len(seen)

    attacked(test)


def test_who_was_removed_but_is_still_given_everything_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that goes on to serve a removed member: the rotated key is what keeps the secret."""
    monkeypatch.setattr(
        multicast_relay._RelayedGroup, "follow", lambda self, signed: setattr(self, "roster", signed.roster) or True
    )

    async def test(members: list[Member]) -> None:
        gone, stay = members[3], members[:3]
        before = gone.counter.total_received
        newer = roster(2, MEMBERS[:3])
        for member in stay:
            place = (member.fan._meeting.host, member.fan._meeting.port)  # type: ignore[union-attr]
            await member.fan.enter(meeting(place, newer))
        await stay[0].fan.send(b"without you")
        await heard(stay[1:], 1)
        await until(lambda: gone.counter.total_received > before)
        gone.fan._opener.enter(newer.roster, key_of(1), 0.0)  # it knows the roster, but no other key
        await stay[0].fan.send(b"nor this")
        await until(lambda: bool(gone.errors))
        assert gone.heard == []

    attacked(test)


def test_a_stranger_whom_the_relay_lets_in_hears_only_ciphertext(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = local_key(17, "stranger")
    judge = multicast_groups.judge

    def open_to_all(body: bytes, me: multicast_groups.PeerId, now: int) -> object:
        found = judge(body, me, now)
        return (
            found
            if isinstance(found, multicast_groups.AdmittedJoin)
            else multicast_groups.AdmittedJoin(*_said(body), bare(stranger.public))
        )

    def _said(body: bytes) -> tuple[multicast_groups.GroupJoin, SignedRoster]:
        said = multicast_groups.decode(body, multicast_groups.SignedGroupJoin, limits.FAN_JOIN_BYTES)
        return said.join, roster()

    monkeypatch.setattr(multicast_groups, "judge", open_to_all)

    async def test() -> None:
        async with relay() as server, gathered(server.address) as members:
            theirs = Member(stranger)
            theirs.fan._draw = lambda _: None  # type: ignore[method-assign]  # it has no number to send under
            place = meeting(server.address, roster(), key=bytes(32))
            theirs.fan._opener.enter(place.roster.roster, place.key, 0.0)
            await theirs.fan._join(place)
            theirs.fan._staying = asyncio.create_task(theirs.fan._stay())
            await members[0].fan.send(b"secret")
            await heard(members[1:], 1)
            await until(lambda: bool(theirs.errors))
            assert theirs.heard == []
            await theirs.fan.close()

    run(test)


def test_a_roster_that_the_owner_did_not_sign_moves_nobody() -> None:
    async def test(members: list[Member]) -> None:
        mine = members[0]
        said = Roster(OWNER.public, NAME, 9, (MEMBERS[0].public,))
        forged = SignedRoster(said, MEMBERS[0].sign(NS_ROSTER, multicast_groups.encode(said)))
        place = (mine.fan._meeting.host, mine.fan._meeting.port)  # type: ignore[union-attr]
        with pytest.raises(NetworkError):
            await mine.fan.enter(meeting(place, forged))
        await members[1].fan.send(b"nobody was cut")
        await heard(members[2:], 1)

    attacked(test)


@pytest.mark.parametrize("word", [GroupFrameKind.PING, GroupFrameKind.GAP], ids=str)
def test_a_relay_that_talks_but_takes_nothing_is_left_and_the_sender_may_go_elsewhere(
    word: GroupFrameKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fan_file, "PING_SECONDS", 0.05)  # pings are behind what is stuck, and hang no longer

    async def test() -> None:
        async with deaf(word) as place:
            member = Member(MEMBERS[0])
            member.fan = fan = GroupMember(member.station, member, patience=0.3, rate=1e9)
            await fan.enter(meeting(place))
            with pytest.raises(NetworkError) as caught:
                await poured(fan)
            assert caught.value.code == "FF-NET-135"
            await until(lambda: not fan.epoch)  # it has let go
            assert member.counter.total_received > 0
            assert fan.heard == 0.0  # its words are no sign that the group brings something
            await fan.close()

    run(test)


def test_a_relay_that_hung_is_left_alone_for_a_while_and_the_group_may_meet_at_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fan_file, "PING_SECONDS", 0.05)
    monkeypatch.setattr(fan_file, "AGAIN_SECONDS", 0.01)

    async def test() -> None:
        joins: list[bytes] = []
        async with deaf(GroupFrameKind.PING, joins) as place, relay(C) as other:
            member = Member(MEMBERS[0])
            member.fan = fan = GroupMember(member.station, member, patience=0.3, rate=1e9)
            await fan.enter(meeting(place))
            with pytest.raises(NetworkError):
                await poured(fan)
            await until(lambda: not fan.epoch)
            await asyncio.sleep(0.5)  # many times AGAIN_SECONDS
            assert len(joins) == 1
            # As the group's owner hears it, who then takes another place.
            with pytest.raises(NetworkError) as caught:
                await fan.enter(meeting(place, roster(2)))
            assert caught.value.code == "FF-NET-130"
            assert "hung" in caught.value.cause
            there = replace(meeting(other.address, roster(3)), relay=C.public)
            await fan.enter(there)
            assert fan.epoch == 3
            await fan.close()

    run(test)


def test_a_relay_that_hangs_again_is_left_alone_for_longer_and_in_the_end_tried_again() -> None:
    shunned, now, pauses = RelayBackoff(), 0.0, []
    for _ in range(6):
        shunned.hung(R.public, now)
        shunned.hung(R.public, now)  # two waited for it
        pauses.append(shunned.left(R.public, now))
        now += pauses[-1]
        assert not shunned.left(R.public, now)
    assert pauses == [60, 120, 240, 480, 900, 900]
    for number in range(99):  # whoever names many relays
        shunned.hung(PeerId(bytes([number]) * 32), now)
    assert len(shunned._until) == 16


def test_a_relay_that_never_counts_a_roster_is_left() -> None:
    async def test() -> None:
        async with deaf(GroupFrameKind.PING) as place:
            member = Member(MEMBERS[0])
            member.fan = fan = GroupMember(member.station, member, patience=0.3, rate=1e9)
            await fan.enter(meeting(place))
            with pytest.raises(NetworkError) as caught:
                await fan.enter(meeting(place, roster(2)))
            assert caught.value.code == "FF-NET-135"
            await until(lambda: not fan.epoch)
            await fan.close()

    run(test)


def test_who_sends_when_a_deaf_relay_hangs_up_hears_it_at_once() -> None:
    """Nothing wakes who waits for a socket that is closed: with a patience without end it would wait so long."""

    async def test() -> None:
        async with deaf(GroupFrameKind.PING) as place:
            member = Member(MEMBERS[0])
            member.fan = fan = GroupMember(member.station, member, patience=3600)
            await fan.enter(meeting(place))
            pouring = asyncio.create_task(poured(fan))
            before = -1
            while before != member.counter.total_sent:  # until it is stuck
                before = member.counter.total_sent
                await asyncio.sleep(0.1)
            assert fan._socket is not None
            fan._socket.shutdown(socket.SHUT_RD)  # as the relay's end of file
            with pytest.raises(NetworkError) as caught:
                await pouring
            assert caught.value.code == "FF-NET-135"
            await fan.close()

    run(test)


def test_a_member_that_brings_a_little_of_nothing_for_ever_keeps_nobody_from_fetching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dripping:
        """A member's place in a group where something valid came just now, whenever one asks."""

        epoch = 1

        @property
        def heard(self) -> float:
            return time.monotonic()

    fetched: list[object] = []

    async def fetch(_: object, manifest: ObjectManifest, *__: object) -> None:
        fetched.append(manifest.id)

    monkeypatch.setattr(transfer_fanout, "HELD_SECONDS", 0.1)
    monkeypatch.setattr(objects, "fetch", fetch)
    disk = DiskObjectStore(tmp_path)
    node = transfer_fanout.PayloadFanout(
        NoEndpoint(credential_of(OWNER), ByteCounter()), objects.ObjectServer(disk, 1000), disk
    )
    node._fan = Dripping()  # type: ignore[assignment]
    manifest, _ = seal(bytes(32), b"wanted")

    async def test() -> None:
        await node.collect([(manifest, ())], never, is_fanned=True)
        assert fetched == [manifest.id]

    run(test)


async def never(_: object) -> Connection:
    raise NotImplementedError


def test_a_flood_of_joins_locks_nobody_out() -> None:
    async def test() -> None:
        async with relay() as server:
            crowd = [await asyncio.open_connection(*server.address) for _ in range(2 * limits.HALF_OPEN)]
            for _, writer in crowd:
                writer.write(b"FFG1")
            async with gathered(server.address) as members:
                await members[0].fan.send(b"through")
                await heard(members[1:], 1)
            for _, writer in crowd:
                writer.close()
            assert server._own.account == R.public

    run(test)

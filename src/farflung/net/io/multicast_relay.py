"""Relays multicast groups: takes each member's frames once, gives them to all others, and reads none of them.

    stranger --- "FFG1", a join that holds ---> member        (an older connection of the same member is cut)
    member   --- DATA ---> one buffer, in the queue of every other member; freed when the last one has it
             --- ROSTER of a newer epoch ---> who is not in it is cut
             --- end of file, a broken rule, limits.CIRCUIT_IDLE_SECONDS without a byte ---> cut

While limits.FAN_GROUP_BYTES wait in a group, none of its members is read, so TCP stops the senders. Who holds a group
up (`multicast_groups.skipped`) loses what waits for it, is told so by a GAP, and is given nothing until it takes
something again. A member is never in the middle of two frames at once: the one that it has begun to take it takes to
the end.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash, PeerId
from farflung.net import multicast_groups
from farflung.net.certificates import Identity
from farflung.net.counters import ByteCounter
from farflung.net.io.admission import Admission
from farflung.net.io.multicast_connection import GroupConnection, QueuedFrame
from farflung.net.io.pacer import UploadPacer
from farflung.net.io.relay_listener import exactly
from farflung.net.io.relay_metering_gate import RelayMeteringGate
from farflung.net.messages import MessageKind
from farflung.net.multicast_frames import HEAD_BYTES, GroupFrameHead, GroupFrameKind
from farflung.net.multicast_groups import AdmittedJoin, GroupJoinStatus, Roster, SignedRoster
from farflung.net.relay_meter import PassMeter
from farflung.net.relay_tickets import TicketReplayCache, TicketStatus

LOOK_SECONDS: Final = 0.5
# What a group's member is told when its owner's pass is not taken: the word that a circuit's dialer would hear.
_WELCOMES: Final = {
    status: GroupJoinStatus[status.name]
    for status in (
        TicketStatus.MALFORMED,
        TicketStatus.ELSEWHERE,
        TicketStatus.FORGED,
        TicketStatus.FULL,
        TicketStatus.UNPAID,
        TicketStatus.NO_HOLDER,
        TicketStatus.LAPSED,
        TicketStatus.USED_UP,
        TicketStatus.UNFUNDED,
        TicketStatus.OWING,
    )
}


class _RelayedGroup:
    """The members of one group that are connected."""

    def __init__(self, hub: GroupHub, id: Hash) -> None:
        self._hub, self.id = hub, id
        self.books: PassMeter | None = None  # that all its members are carried under, at a relay that is paid
        self.roster: Roster | None = None
        self._before: Roster | None = None
        self.connections: dict[PeerId, GroupConnection] = {}
        self.held = 0
        self._full_since: float | None = None
        self._due: dict[GroupConnection, None] = {}  # those with something new in their queues
        self._flushing: asyncio.Handle | None = None

    def follow(self, signed: SignedRoster) -> bool:
        """Counts a roster whose signature holds; False: it is out of date."""
        newer = multicast_groups.is_newer(self.roster, signed.roster)
        if newer:
            self._before, self.roster = self.roster, signed.roster
            for connection in [
                connection for connection in self.connections.values() if connection.member not in signed.roster.members
            ]:
                connection.close()
        return newer is not None

    def add(self, connection: GroupConnection) -> None:
        """A member has joined; an older connection of the same one makes room."""
        older, self.connections[connection.member] = self.connections.get(connection.member), connection
        if older is not None:
            older.close()
        connection.read(should=not self.is_full)

    @property
    def is_full(self) -> bool:
        """Whether as much waits here, or in all groups, as may."""
        return self.held >= limits.FAN_GROUP_BYTES or self._hub.held >= limits.FAN_BYTES

    def heard(self, connection: GroupConnection, head: GroupFrameHead, frame: bytearray) -> None:
        """A whole frame of a member. Raises ProtocolError FF-NET-132."""
        match head.kind:
            case GroupFrameKind.DATA:
                if self._may_send(connection, head):
                    if self._hub.gate is not None:
                        self._hub.gate.taken(connection, connection.member, len(frame))
                    self._spread(connection, frame)
            case GroupFrameKind.PING:
                self.own(connection, GroupFrameHead(0, GroupFrameKind.PING))
                connection.flush()
            case GroupFrameKind.ROSTER:
                self._hear_roster(connection, decode(bytes(frame[HEAD_BYTES:]), SignedRoster, limits.FAN_JOIN_BYTES))
            case _:
                raise ProtocolError("FF-NET-132", "malformed frame of a group", cause=head.kind.name)

    def _may_send(self, connection: GroupConnection, head: GroupFrameHead) -> bool:
        """Frames of a roster that is not known any more are dropped; in another's name nobody sends twice."""
        for roster in (self.roster, self._before):
            if roster is not None and roster.epoch == head.epoch:
                if head.sender < len(roster.members) and roster.members[head.sender] == connection.member:
                    return True
                raise ProtocolError("FF-NET-132", "malformed frame of a group", cause="another's name")
        return False

    def _spread(self, connection: GroupConnection, frame: bytearray) -> None:
        shared = QueuedFrame(frame)
        self._hold(len(frame))
        others = [other for other in self.connections.values() if other is not connection]
        for other in others:
            if other.give(shared):
                shared.left += 1
        self._due.update(dict.fromkeys(other for other in others if not other.is_writing))
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)
        self.done(shared)

    def _flush(self) -> None:
        """Once for all frames that came in one turn of the loop: many senders are many small writes otherwise."""
        self._flushing, due, self._due = None, self._due, {}
        for connection in due:
            if not connection.is_writing:  # else it is called when it takes something
                connection.flush()

    def _hear_roster(self, connection: GroupConnection, signed: SignedRoster) -> None:
        if signed.roster.group != self.id or not self._hub.is_sound(signed):
            raise ProtocolError("FF-NET-132", "malformed frame of a group", cause="no roster of this group")
        self.follow(signed)
        if self.roster is not None:
            self.own(connection, GroupFrameHead(0, GroupFrameKind.ROSTER, epoch=self.roster.epoch))
            connection.flush()

    def own(self, connection: GroupConnection, head: GroupFrameHead) -> None:
        """Puts a word of the relay's own into a member's queue."""
        shared = QueuedFrame(head.encode())
        self._hold(len(shared.data))
        if not connection.give(shared):
            self.done(shared)

    def _hold(self, size: int) -> None:
        self.held += size
        self._hub.held += size
        if self.is_full:
            if self._full_since is None:
                self._full_since = asyncio.get_running_loop().time()
            for connection in self.connections.values():
                connection.read(should=False)

    def done(self, shared: QueuedFrame) -> None:
        """One of those that a frame is for has it, or will not get it."""
        shared.left -= 1
        if shared.left:
            return
        self.held -= len(shared.data)
        self._hub.held -= len(shared.data)
        if self._full_since is not None and not self.is_full:
            self._go_on()

    def _go_on(self) -> None:
        self._full_since = None
        for connection in self.connections.values():
            connection.read(should=True)

    def look(self, now: float) -> None:
        """Cuts who says nothing, or whose key was revoked, and skips who holds the others up."""
        for connection in [x for x in self.connections.values() if x.is_silent(now) or not self._hub.counts(x.who)]:
            connection.close()
        if self._full_since is None:
            return
        if not self.is_full:  # what was held in other groups is gone
            self._go_on()
            return
        connections = list(self.connections.values())
        waiting, quiet = (
            {connection: connection.waiting for connection in connections},
            {connection: now - connection.took for connection in connections},
        )
        for connection in multicast_groups.skipped(waiting, quiet, now - self._full_since):
            connection.skip()
            connection.flush()

    def moved(self, connection: GroupConnection, size: int) -> None:
        """A member took `size` bytes."""
        self._hub.moved(connection.socket, size)

    def took(self, connection: GroupConnection, shared: QueuedFrame) -> None:
        """A member has the whole of a frame; the relay's own words cost nothing."""
        if self._hub.gate is not None and len(shared.data) > HEAD_BYTES:
            self._hub.gate.copied(connection, connection.member, len(shared.data))
        self.done(shared)

    def released(self, connection: GroupConnection) -> None:
        """A member that was held goes on."""
        connection.read(should=not self.is_full)

    def left(self, connection: GroupConnection) -> None:
        """A connection was cut."""
        self._hub.closed(connection)
        if self.connections.get(connection.member) is connection:
            del self.connections[connection.member]
        if not self.connections:
            self._hub.empty(self)


class GroupAdmissionRules(NamedTuple):
    """Whom a relay lets into groups."""

    me: PeerId
    admission: Admission
    spent: TicketReplayCache  # the nonces of joins
    gate: RelayMeteringGate | None = None  # asks for passes; None: copies for nothing


class GroupHub:
    """All groups of one relay. `held`: bytes taken from members and not yet given to all others."""

    def __init__(
        self,
        rules: GroupAdmissionRules,
        on_moved: Callable[[socket.socket, int], None],
        counter: ByteCounter,
        uplink: UploadPacer | None,
    ) -> None:
        """`on_moved` hears what the sockets took; `counter` counts what the relay itself says and hears."""
        self._rules, self.gate = rules, rules.gate
        self.moved, self._counter, self._uplink = on_moved, counter, uplink
        self.held = 0
        self.groups: dict[Hash, _RelayedGroup] = {}
        self._by_owner = collections.Counter[PeerId]()

    async def hear(self, stranger: socket.socket, magic: bytes) -> bool:
        """Reads a join and follows it; whether the socket was kept. Raises OSError, EOFError."""
        head = magic + await exactly(stranger, multicast_groups.HEAD_BYTES - len(magic))
        size = multicast_groups.read_head(head)
        status = GroupJoinStatus.MALFORMED
        if size is not None:
            body = await exactly(stranger, size)
            self._counter.received[MessageKind.CONTROL] += len(head) + size
            found = self._judge(body)
            status = found if isinstance(found, GroupJoinStatus) else await self._admit(found, stranger)
        if status is not GroupJoinStatus.JOINED:
            with contextlib.suppress(OSError):
                self._say(stranger, status)
        return status is GroupJoinStatus.JOINED

    def counts(self, who: Identity) -> bool:
        """Whether a node key counts now."""
        return self._rules.admission.counts(who)

    def is_sound(self, signed: SignedRoster) -> bool:
        """Whether a roster is its owner's, by a key that counts."""
        owner = multicast_groups.owner_of(signed)
        return owner is not None and self.counts(owner)

    def _judge(self, body: bytes) -> AdmittedJoin | GroupJoinStatus:
        now = int(self._rules.admission.clock())
        found = multicast_groups.judge(body, self._rules.me, now)
        if isinstance(found, GroupJoinStatus):
            return found
        admits = self._rules.admission.admits
        if not admits(found.join.presenter) or not admits(found.roster.roster.owner):
            return GroupJoinStatus.BARRED
        if not self.counts(found.who) or not self.is_sound(found.roster):
            return GroupJoinStatus.VOID
        match self._rules.spent.spend(found.join, now):
            case None:
                return found
            case TicketStatus.REPLAYED:
                return GroupJoinStatus.REPLAYED
            case _:
                return GroupJoinStatus.FULL

    async def _admit(self, found: AdmittedJoin, sock: socket.socket) -> GroupJoinStatus:
        """Asks for the owner's pass where the relay is paid: whoever lets others in pays for all of them."""
        if self.gate is None:
            return self._join(found, sock, None)
        shown = found.join.toll
        if shown is not None and shown.toll.payer != found.roster.roster.owner:
            return GroupJoinStatus.MISMATCHED
        books = await self.gate.admit(shown, found.join.presenter)
        return _WELCOMES[books] if isinstance(books, TicketStatus) else self._join(found, sock, books)

    def _join(self, found: AdmittedJoin, sock: socket.socket, books: PassMeter | None) -> GroupJoinStatus:
        roster, id = found.roster.roster, found.join.group
        group = self.groups.get(id) or _RelayedGroup(self, id)
        if multicast_groups.is_newer(group.roster, roster) is None:
            return GroupJoinStatus.OUTDATED
        if group.books is not None and group.books is not books:
            # What one signs under this pass would not answer what others sign under that.
            return GroupJoinStatus.MISMATCHED
        is_new = id not in self.groups
        is_full = len(self.groups) >= limits.FAN_GROUPS
        if is_new and (is_full or self._by_owner[roster.owner] >= limits.FAN_GROUPS_PER_OWNER):
            return GroupJoinStatus.FULL
        self._say(sock, GroupJoinStatus.JOINED)
        group.follow(found.roster)
        if id not in self.groups:  # it is new, or those that have left were all it had
            self.groups[id] = group
            self._by_owner[roster.owner] += 1
        connection, group.books = GroupConnection(group, found.who, sock), books
        if self.gate is not None and books is not None:
            self.gate.opened(connection, books, connection.member)
        if self._uplink is not None and not connection.tuned.is_local:
            self._uplink.open(sock)
        group.add(connection)
        return GroupJoinStatus.JOINED

    def _say(self, to: socket.socket, status: GroupJoinStatus) -> None:
        word = multicast_groups.answer(status)
        self._counter.sent[MessageKind.CONTROL] += len(word)
        if to.send(word) < len(word):
            raise ConnectionError("the socket took half of five bytes")

    def closed(self, connection: GroupConnection) -> None:
        """A member's connection needs no share of the line any more, and costs nothing."""
        if self._uplink is not None:
            self._uplink.close(connection.socket)
        if self.gate is not None:
            self.gate.ended(connection)

    def empty(self, group: _RelayedGroup) -> None:
        """Nobody is in it."""
        if self.groups.get(group.id) is group and group.roster is not None:
            del self.groups[group.id]
            self._by_owner[group.roster.owner] -= 1

    async def watch(self) -> None:
        """Looks after all groups, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for group in list(self.groups.values()):
                group.look(loop.time())

    def close(self) -> None:
        """Cuts everybody."""
        for group in list(self.groups.values()):
            for connection in list(group.connections.values()):
                connection.close()

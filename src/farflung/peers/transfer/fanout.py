"""Connects a node to its job's multicast group: sends its payload to all at once, stores what the others send.

A message of the group is one request of peers.transfer.objects: which one (1 byte), and its body, as if its sender
had made it over a connection of its own. So an object that comes this way passes the same checks and counts
against the same bounds. Nobody depends on it: whoever needs an object looks here first, waits as long as the group
still brings something, and then fetches what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Final

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_GROUP_KEY, digest
from farflung.core.errors import FarflungError, NetworkError
from farflung.core.ids import Hash, PeerId
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.multicast_member import GroupEndpoint, GroupListener, GroupMember, GroupRendezvous
from farflung.net.messages import MessageKind
from farflung.net.multicast_groups import Roster
from farflung.peers.protocol import messages
from farflung.peers.protocol.job_key import LeaseKey, wrap
from farflung.peers.transfer import objects
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import ObjectManifest

QUIET_SECONDS: Final = 2.0  # without a byte of the group: then what is missing does not come this way
HELD_SECONDS: Final = 120.0  # for a replica to say whether it holds an object
HERE: Final = b"\1"
_METHODS: Final = (objects.BEGIN, objects.PUT, objects.FINISH)
_LOOK_SECONDS: Final = 0.25


class PayloadFanout(GroupListener):
    """One node's. `refusals`: frames that were altered, repeated or forged on their way."""

    def __init__(self, station: GroupEndpoint, server: objects.ObjectServer, disk: DiskObjectStore) -> None:
        self._fan = GroupMember(station, self)
        self._server, self._disk = server, disk
        self._taken: list[Hash] = []
        self._changed = asyncio.Event()
        self._gaps = self.refusals = 0

    @property
    def epoch(self) -> int:
        """Of the roster under which this node is connected; 0: it is not."""
        return self._fan.epoch

    async def enter(self, meeting: GroupRendezvous) -> None:
        """Joins the group, or follows it into a newer epoch. Raises NetworkError."""
        await self._fan.enter(meeting)

    async def follow(self, said: messages.GroupJoinRequest, lease_key: LeaseKey) -> None:
        """Carries out the requester's word. Raises VerificationError FF-APP-082 (another lease's key), NetworkError."""
        place, key = said.place, lease_key.unwrap(_context(said.roster.roster), said.wrapped_key)
        await self.enter(GroupRendezvous(place.relay, place.host, place.port, said.roster, key))

    def leave(self) -> None:
        """The lease is over."""
        self._fan.leave()

    async def give(self, epoch: int, manifest: ObjectManifest, replica: PeerId, dial: objects.Dial) -> bool:
        """Sends a stored object to all; whether `replica` says that it holds it, durably."""
        if not epoch or epoch != self.epoch:
            return False
        try:
            await self._send(objects.BEGIN, encode(manifest))
            for index in range(len(manifest.chunks)):
                chunk = self._disk.chunk(manifest.id, index)
                await self._send(objects.PUT, encode((manifest.id, index, chunk)))
            await self._send(objects.FINISH, encode(manifest.id))
            connection = await dial(replica)
            return await connection.call(messages.HELD, encode(manifest.id), timeout=HELD_SECONDS) == HERE
        except FarflungError:  # the line to the group or to the replica: the ordinary way is tried next
            return False

    async def _send(self, method: str, body: bytes) -> None:
        await self._fan.send(bytes([_METHODS.index(method)]) + body)

    async def answer(self, body: bytes) -> bytes:
        """`fan.held`: whether an object is here, once it is, or once the group brings nothing more."""
        return HERE if await self.held(decode(body, Hash, limits.CONTROL_BYTES)) else b""

    async def held(self, object_id: Hash, since: float | None = None, most: float = HELD_SECONDS) -> bool:
        """Waits for an object while the group brings something and loses nothing; whether it is here.

        `since`: when this waiting began (monotonic), where it is for one of several objects. `most`: seconds, whatever
        the group brings, since a member may bring a little of nothing for ever.
        """
        gaps, began = self._gaps, since or time.monotonic()
        while not self._disk.has(object_id):
            now = time.monotonic()
            is_quiet = now - max(began, self._fan.heard) > QUIET_SECONDS or now - began > most
            if not self.epoch or self._gaps != gaps or is_quiet:
                return False
            self._changed.clear()
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return True

    async def collect(
        self, wanted: Sequence[tuple[ObjectManifest, Sequence[PeerId]]], dial: objects.Dial, *, is_fanned: bool
    ) -> messages.TransferMeasurement:
        """Brings objects into the store: by the group when they come so, else from those that are named with them.

        What neither brings is not here afterwards: whoever needs it asks further. Returns what was fetched.
        """
        began, brought = time.monotonic(), 0
        most = HELD_SECONDS + sum(manifest.size for manifest, _ in wanted) / limits.OWED_RATE
        for manifest, sources in wanted:
            if self._disk.has(manifest.id) or (is_fanned and await self.held(manifest.id, began, most)):
                continue
            with contextlib.suppress(NetworkError):
                await objects.fetch(self._disk, manifest, tuple(sources), dial, MessageKind.SYNC)
                brought += manifest.size
        return messages.TransferMeasurement(brought, time.monotonic() - began)

    def taken(self) -> list[Hash]:
        """What came this way since this was asked last."""
        taken, self._taken = self._taken, []
        return taken

    def message(self, sender: PeerId, data: bytes) -> None:
        """Hearer: a request of a member."""
        if data[0] >= len(_METHODS):
            return
        method, body = _METHODS[data[0]], data[1:]
        try:
            self._server.serve(sender, method, body)
            if method == objects.FINISH:
                self._taken.append(decode(body, Hash, limits.CONTROL_BYTES))
        except FarflungError:
            # What is refused here, or does not fit on this disk, shows again when it is fetched.
            self._gaps += 1
        self._changed.set()

    def gap(self) -> None:
        """Hearer: something was lost."""
        self._gaps += 1
        self._changed.set()

    def refused(self, error: FarflungError) -> None:
        """Hearer: a frame was altered, repeated or forged."""
        self.refusals += 1
        self.gap()


def invitation(job: Hash, meeting: GroupRendezvous, lease_key: bytes) -> messages.GroupJoinRequest:
    """What lets the holder of a lease join. Raises VerificationError FF-APP-063 (no key to wrap for)."""
    place = EndpointAddress(meeting.host, meeting.port, meeting.relay)
    wrapped = wrap(lease_key, _context(meeting.roster.roster), meeting.key)
    return messages.GroupJoinRequest(job, place, meeting.roster, wrapped)


def _context(roster: Roster) -> Hash:
    """What a group key is wrapped for besides the lease: it opens as no other roster's, and never as the job's key."""
    return digest(NS_GROUP_KEY, encode(roster))

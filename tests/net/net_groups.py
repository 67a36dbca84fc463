"""Members of a group at a relay, and what each of them hears."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from net_relays import R, relay, until

from farflung.core.crypto import SigningKey, digest, local_key
from farflung.core.errors import FarflungError
from farflung.core.ids import Hash, PeerId
from farflung.net.certificates import Credential, credential_of
from farflung.net.counters import ByteCounter
from farflung.net.io.multicast_member import GroupEndpoint, GroupListener, GroupMember, GroupRendezvous, NoEndpoint
from farflung.net.io.relay import RelayServer
from farflung.net.multicast_groups import SignedRoster, sign_roster

OWNER = local_key(17, "owner")
MEMBERS = tuple(local_key(17, "member", n) for n in range(4))
NAME = Hash(bytes(32))


def key_of(epoch: int) -> bytes:
    return digest("farflung/test-group-key/1", epoch.to_bytes(8, "big"))


def roster(epoch: int = 1, members: tuple[SigningKey, ...] = MEMBERS, owner: SigningKey = OWNER) -> SignedRoster:
    return sign_roster(owner, NAME, epoch, tuple(key.public for key in members))


def meeting(place: tuple[str, int], signed: SignedRoster | None = None, key: bytes | None = None) -> GroupRendezvous:
    signed = signed or roster()
    return GroupRendezvous(R.public, *place, signed, key or key_of(signed.roster.epoch))


class Member(GroupListener):
    """A member that keeps all it hears."""

    def __init__(self, key: SigningKey | Credential, station: GroupEndpoint | None = None) -> None:
        self.key = key
        self.station = station or NoEndpoint(credential_of(key), ByteCounter())
        self.counter = self.station.counter
        self.heard: list[tuple[PeerId, bytes]] = []
        self.gaps = 0
        self.errors: list[FarflungError] = []
        self.fan = GroupMember(self.station, self)

    def message(self, sender: PeerId, data: bytes) -> None:
        self.heard.append((sender, data))

    def gap(self) -> None:
        self.gaps += 1

    def refused(self, error: FarflungError) -> None:
        self.errors.append(error)


@asynccontextmanager
async def gathered(
    place: tuple[str, int], signed: SignedRoster | None = None, keys: tuple[SigningKey, ...] = MEMBERS
) -> AsyncIterator[list[Member]]:
    """These, connected."""
    members = [Member(key) for key in keys]
    try:
        for member in members:
            await member.fan.enter(meeting(place, signed))
        yield members
    finally:
        for member in members:
            await member.fan.close()


@asynccontextmanager
async def group(**options: object) -> AsyncIterator[tuple[RelayServer, list[Member]]]:
    """A relay and four members."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(relay(**options))
        yield server, await stack.enter_async_context(gathered(server.address))
    assert not server._groups.groups
    assert server._groups.held == 0


async def heard(members: list[Member], count: int) -> None:
    """Until each of them has heard so many messages."""
    await until(lambda: all(len(member.heard) >= count for member in members))

"""Defines the directory, in which each node publishes its current address and machine under its own signature."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec.structs import astuple, replace

from farflung.core import limits
from farflung.core.codec import Head, Wire, decode, decode_head, encode
from farflung.core.crypto import NS_ADVERTISEMENT, NS_NODE_OWNER, SigningKey, is_signed
from farflung.core.errors import FarflungError, NetworkError, ProtocolError, VerificationError
from farflung.core.ids import PeerId, Signature, short
from farflung.core.release import JOB_FORMATS, UPGRADE, VERSION
from farflung.ledger.transactions import LeaseRole
from farflung.market.provider_offer import Capabilities
from farflung.net.endpoint_records import EndpointAddress, EndpointRecord, check_time, check_values, issue
from farflung.net.io.connection import Connection

PUBLISH = "directory.publish"
LIST = "directory.list"
FORMAT: Final = 2  # of an advertisement
ADVERTISEMENT_BYTES: Final = 1000  # so that the listing of a full directory fits one message
LOOK_SECONDS: Final = 2.0  # between looks whether the directory still knows this node
TELL_SECONDS: Final = limits.RECORD_SECONDS / 3  # between records
_TRIES: Final = 50
_VERSION: Final = re.compile(r"[0-9A-Za-z.+!-]{1,32}")
_WORDS: Final = re.compile(rf"[ -~]{{0,{limits.ATTESTED_CHARACTERS}}}")  # no escape sequences for others' terminals


class NodeOwner(Wire, frozen=True):
    """The account that a node belongs to, and that account's signature of the node's key.

    It says which nodes are one owner's, so that none of them judges another. Whoever means to cheat leaves it out.
    """

    account: PeerId
    signature: Signature

    @classmethod
    def of(cls, account: SigningKey, node: PeerId) -> NodeOwner:
        """What the account signs for a node."""
        return cls(account.public, account.sign(NS_NODE_OWNER, node))

    def is_of(self, node: PeerId) -> bool:
        """Whether the account signed for this node."""
        return is_signed(self.account, self.signature, NS_NODE_OWNER, node)


class Advertisement(Wire, frozen=True):
    """One node's volatile facts. The ledger holds the binding ones: price, stake, a hash of the capabilities.

    `format`: of the advertisement; `version`: the farflung that the node runs; `formats`: of the jobs that it takes.
    Both of the first stay first, so that whoever cannot read the rest can say why.
    """

    format: int
    version: str
    formats: tuple[int, ...]
    endpoint: EndpointRecord
    capabilities: Capabilities
    role: LeaseRole
    owner: NodeOwner | None = None
    signature: Signature = Signature(b"")

    @property
    def said(self) -> bytes:
        """What the node signs."""
        return encode(astuple(self)[:-1])


class AdvertisementHead(Head, frozen=True):
    """The part of an advertisement that is the same in every format."""

    format: int
    version: str


def advertise(
    key: SigningKey,
    endpoint: EndpointRecord,
    capabilities: Capabilities,
    role: LeaseRole = LeaseRole.TRAIN,
    owner: NodeOwner | None = None,
) -> Advertisement:
    """A signed advertisement of this farflung."""
    plain = Advertisement(FORMAT, VERSION, JOB_FORMATS, endpoint, capabilities, role, owner)
    return replace(plain, signature=key.sign(NS_ADVERTISEMENT, plain.said))


def read_advertisement(data: bytes) -> Advertisement:
    """An advertisement, of which nothing is checked but its form. Raises ProtocolError FF-CORE-02x, FF-APP-601."""
    head = decode_head(data, AdvertisementHead, ADVERTISEMENT_BYTES)
    if head.format != FORMAT:
        raise ProtocolError(
            "FF-APP-601",
            f"an advertisement is of format {head.format}, of farflung {shown_version(head.version)}",
            cause=f"this is farflung {VERSION}, which reads format {FORMAT}",
            hint=UPGRADE,
        )
    return decode(data, Advertisement, ADVERTISEMENT_BYTES)


def check_advertisement(advertisement: Advertisement, peer: PeerId, now: float) -> None:
    """Raises VerificationError FF-APP-032 unless the peer speaks of itself and signed it, ProtocolError FF-NET-060
    when it names no place, 110 when it has expired, 111 when it is of the future, FF-APP-653 when a text in it is not
    one that others print, FF-APP-660 when its owner did not sign for it. `now`: seconds since 1970.
    """
    check_values(advertisement.endpoint)
    check_time(advertisement.endpoint, now)
    is_own = advertisement.endpoint.peer == peer
    if not is_own or not is_signed(peer, advertisement.signature, NS_ADVERTISEMENT, advertisement.said):
        raise VerificationError("FF-APP-032", "an advertisement is not signed by the node that it names")
    if advertisement.owner is not None and not advertisement.owner.is_of(peer):
        raise VerificationError(
            "FF-APP-660",
            "an advertisement names an owner that did not sign for its node",
            cause=f"{short(advertisement.owner.account)} did not sign for {short(peer)}",
        )
    able = advertisement.capabilities
    if not all(map(_WORDS.fullmatch, (advertisement.version, able.system, able.machine, able.torch))):
        raise ProtocolError(
            "FF-APP-653",
            "a text of an advertisement cannot be printed",
            cause=f"versions and names of a machine have up to {limits.ATTESTED_CHARACTERS} letters, digits and signs",
        )


class DirectoryListing(Wire, frozen=True):
    """All advertisements that a directory holds, each in its node's own format."""

    advertisements: tuple[bytes, ...]

    @classmethod
    def of(cls, advertisements: Iterable[Advertisement]) -> DirectoryListing:
        """The listing of these."""
        return cls(tuple(encode(each) for each in advertisements))


def read_directory(path: Path, size: int, now: float) -> tuple[Advertisement, ...]:
    """What a directory held when it was written last: those whose node signed them and that have not expired.

    The file is a convenience: without it, or when it is damaged, every node is unlisted until it publishes again.
    """
    with contextlib.suppress(OSError, FarflungError):
        return tuple(sound(decode(path.read_bytes(), DirectoryListing, size), now))
    return ()


def sound(listing: DirectoryListing, now: float) -> Iterator[Advertisement]:
    """Those that can be trusted at `now` (seconds since 1970): one bad advertisement takes no other with it."""
    for each in listing.advertisements:
        with contextlib.suppress(FarflungError):
            advertisement = read_advertisement(each)
            check_advertisement(advertisement, advertisement.endpoint.peer, now)
            yield advertisement


def unread_versions(listing: DirectoryListing) -> Iterator[str]:
    """The farflung of each node whose advertisement is of a format that this one cannot read, by its own word."""
    for each in listing.advertisements:
        with contextlib.suppress(FarflungError):
            head = decode_head(each, AdvertisementHead, ADVERTISEMENT_BYTES)
            if head.format != FORMAT:
                yield shown_version(head.version)


def shown_version(version: str) -> str:
    """A stranger's version, harmless to print."""
    return version if _VERSION.fullmatch(version) else "of no version"


class DirectoryPublisher:
    """One node's place in the directory: told anew before it expires, and when the directory may have forgotten it."""

    def __init__(
        self,
        key: SigningKey,
        places: tuple[EndpointAddress, ...],
        capabilities: Capabilities,
        role: LeaseRole,
        reach: Callable[[], Awaitable[Connection]],
        owner: NodeOwner | None = None,
    ) -> None:
        """`reach` gives a connection to the validator."""
        self._key, self._places, self._facts, self._role, self._owner = key, places, capabilities, role, owner
        self._reach = reach

    def move(self, places: tuple[EndpointAddress, ...]) -> None:
        """From now on it is found there: `stay` tells so at its next look."""
        self._places = places

    async def publish(self) -> None:
        """Publishes once, now; a ledger that restarts is waited for. Raises NetworkError FF-APP-093."""
        cause = ""
        for _ in range(_TRIES):
            try:
                await self._tell(await self._reach())
                return
            except NetworkError as error:
                cause = str(error)[:300]
            await asyncio.sleep(5 * LOOK_SECONDS / _TRIES)
        raise NetworkError("FF-APP-093", "the directory cannot be reached", cause=cause, hint="is the ledger running?")

    async def stay(self) -> None:
        """Keeps the record known and fresh until it is cancelled."""
        known: Connection | None = None
        told, places = 0.0, self._places
        while True:
            with contextlib.suppress(NetworkError):
                ledger = await self._reach()
                is_fresh = ledger is known and told <= time.time() < told + TELL_SECONDS
                if not is_fresh or places is not self._places:
                    places = self._places
                    await self._tell(ledger)
                    known, told = ledger, time.time()
            await asyncio.sleep(LOOK_SECONDS)

    async def _tell(self, ledger: Connection) -> None:
        record = issue(self._key.public, self._places, time.time())
        await ledger.call(PUBLISH, encode(advertise(self._key, record, self._facts, self._role, self._owner)))

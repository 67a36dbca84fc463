"""Thieves of node keys, forgers of certificates and a registry that lies: none of them speaks for an account."""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import NS_NODE_KEY, NS_TICKET, SigningKey, local_key
from farflung.core.errors import NetworkError, ProtocolError
from farflung.core.ids import PeerId
from farflung.ledger import queries
from farflung.ledger.table_rows import KeyRow
from farflung.net import relay_tickets, tls
from farflung.net.certificates import Credential, NodeCertificate, NodeKey, bare, certify
from farflung.net.counters import ByteCounter
from farflung.net.io import relay_dialer
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.net.io.tls_key import FileTlsCredentials
from farflung.net.node_keyring import Keyring, RegisteredKeys
from farflung.net.relay_tickets import SignedTicket, Ticket, TicketPurpose, TicketStatus
from farflung.net.tls_identity import certificate
from farflung.peers.ledger_client.key_registry import KeyRegistryFollower

VICTIM, FRIEND, THIEF, R = (local_key(14, name) for name in ("victim", "friend", "thief", "relay"))
NODES = [local_key(14, "node", i) for i in range(4)]
NOW = 1_800_000_000


def own(epoch: int, **time: int) -> Credential:
    """The victim's node key of an epoch."""
    return Credential(NODES[epoch], certify(VICTIM, NODES[epoch].public, epoch, **time))


def row(epoch: int, *, until: int = 0, void: int = 0) -> RegisteredKeys:
    before = NODES[epoch - 1].public if epoch > 1 else VICTIM.public
    return RegisteredKeys(VICTIM.public, epoch, NODES[epoch].public, epoch - 1, before, until, void)


async def echo(_: Connection, __: str, body: bytes) -> bytes:
    return body


class World:
    """The victim's friend, directly and behind a relay; both know the registry."""

    def __init__(self) -> None:
        self.known = Keyring()
        self.relay = RelayServer(R, admission=Admission(None, self.known, lambda: NOW))
        self.friend = self.machine(FRIEND)
        self.opened: list[Endpoint] = []

    def machine(self, who: SigningKey | Credential) -> Endpoint:
        return Endpoint(who, echo, ByteCounter(), admission=Admission(None, self.known, lambda: NOW))

    @asynccontextmanager
    async def open(self) -> AsyncIterator["World"]:
        await self.relay.start()
        await self.friend.start()
        self.friend.attach(R.public, *self.relay.address)
        await self.friend.attached()
        try:
            yield self
        finally:
            for each in (*self.opened, self.friend):
                await each.close()
            await self.relay.close()

    def thief(self, who: SigningKey | Credential) -> Endpoint:
        """One who asks no registry himself."""
        made = Endpoint(who, echo, ByteCounter(), admission=Admission(clock=lambda: NOW))
        self.opened.append(made)
        return made

    async def direct(self, who: SigningKey | Credential) -> Connection:
        return await self.thief(who).dial(FRIEND.public, *self.friend.address)

    async def relayed(self, who: SigningKey | Credential) -> Connection:
        return await self.thief(who).dial(FRIEND.public, *self.relay.address, relay=R.public)

    async def show(self, signed: SignedTicket) -> TicketStatus | None:
        """The relay's answer to a ticket."""
        reader, writer = await asyncio.open_connection(*self.relay.address)
        body = encode(signed)
        writer.write(relay_tickets.MAGIC + len(body).to_bytes(2, "big") + body)
        said = await reader.readexactly(relay_tickets.ANSWER_BYTES)
        writer.close()
        return relay_tickets.read_answer(said)

    async def is_served(self, who: SigningKey | Credential) -> None:
        for way in (self.direct, self.relayed):
            assert await (await way(who)).call("echo", b"x") == b"x"


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60), World().open() as world:
            await test(world)

    asyncio.run(bounded())


@pytest.fixture(autouse=True)
def _standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_dialer, "time", SimpleNamespace(time=lambda: NOW))


@pytest.mark.guarantee
@pytest.mark.whole
@pytest.mark.parametrize(
    ("known", "stolen"),
    [
        (row(1, void=2), own(1)),  # revoked
        (row(2), own(1)),  # replaced, and its overlap is over
        (row(3, until=NOW + 600), own(1)),  # an epoch before the one that overlaps
        (row(2, until=NOW + 600, void=2), own(1)),  # revoked within the overlap
        (row(1, void=1), Credential(VICTIM)),  # the account's own key
        (row(1), own(1, expires=NOW - 3600)),
        (row(1), own(1, begins=NOW + 3600)),
        (row(1), Credential(NODES[3], certify(VICTIM, NODES[3].public, 1))),  # a twin of the epoch
    ],
)
def test_a_stolen_key_that_does_not_count_opens_no_way_and_answers_no_dial(
    known: RegisteredKeys, stolen: Credential
) -> None:
    async def attack(world: World) -> None:
        world.known.learn([known])
        with pytest.raises(NetworkError, match="FF-NET-045"):
            await world.direct(stolen)
        with pytest.raises(NetworkError, match=r"FF-NET-072.*does not count"):
            await world.relayed(stolen)
        waylaid = world.thief(stolen)  # it listens where the victim is looked for
        place = await waylaid.start()
        with pytest.raises(ProtocolError, match=r"FF-NET-10[23]"):
            await world.friend.dial(VICTIM.public, *place)
        waylaid.attach(R.public, *world.relay.address)
        with pytest.raises(NetworkError, match="FF-NET-077"):
            await waylaid.attached(timeout=0.3)
        good = row(3, void=3)
        world.known.learn([good])
        await world.is_served(own(3))

    run(attack)


def forgeries() -> list[NodeCertificate]:
    """The thief's own node key, for the victim's account."""
    key = NodeKey(VICTIM.public, THIEF.public, 9, 0, NOW + 3600)
    body = encode(key)
    real = own(1).certificate
    assert real is not None
    return [
        NodeCertificate(key, THIEF.sign(NS_NODE_KEY, body)),
        NodeCertificate(key, VICTIM.sign(NS_TICKET, body)),  # said for another purpose
        NodeCertificate(key, real.signature),
        NodeCertificate(msgspec.structs.replace(real.key, node=THIEF.public), real.signature),
        NodeCertificate(msgspec.structs.replace(real.key, epoch=2), real.signature),
        NodeCertificate(msgspec.structs.replace(real.key, expires=real.key.expires - 1), real.signature),
    ]


@pytest.mark.parametrize("number", range(6))
def test_a_forged_certificate_speaks_for_nobody(number: int) -> None:
    forged = forgeries()[number]
    with pytest.raises(ProtocolError, match=r"FF-NET-10[01]"):
        Credential(THIEF, forged)

    async def attack(world: World) -> None:
        own_word = SimpleNamespace(node=THIEF, certificate=forged)
        shown = certificate(own_word)  # type: ignore[arg-type]
        reader, writer = await asyncio.open_connection(*world.friend.address)
        writer.write(tls.hello(shown))
        assert await reader.read() == b""  # closed without a word
        writer.close()
        asked = Ticket(TicketPurpose.DIAL, R.public, VICTIM.public, FRIEND.public, 0, secrets.token_bytes(16), NOW + 60)
        signature = THIEF.sign(NS_TICKET, encode(asked))
        assert await world.show(SignedTicket(asked, signature, forged)) is TicketStatus.FORGED
        await world.is_served(own(1))

    run(attack)


def test_a_ticket_signed_by_one_key_and_certified_for_another_is_forged() -> None:
    async def attack(world: World) -> None:
        def asked(presenter: PeerId) -> Ticket:
            nonce = secrets.token_bytes(16)
            return Ticket(TicketPurpose.DIAL, R.public, presenter, FRIEND.public, 0, nonce, NOW + 60)

        for presenter, signer, shown in (
            (VICTIM, THIEF, own(1).certificate),  # seen on the way, without the node key
            (VICTIM, THIEF, None),
            (THIEF, NODES[1], own(1).certificate),  # the victim's word, in the thief's name
            (VICTIM, THIEF, certify(THIEF, NODES[1].public, 1)),
        ):
            ticket = asked(presenter.public)
            signature = signer.sign(NS_TICKET, encode(ticket))
            assert await world.show(SignedTicket(ticket, signature, shown)) is TicketStatus.FORGED
        await world.is_served(own(1))

    run(attack)


def test_a_certificate_that_was_overheard_is_worth_nothing_without_its_key() -> None:
    """The hello goes in clear: whoever repeats it fails at the handshake."""

    class Parrot:
        certificate = certificate(own(1))

        def load(self, context: object) -> None:
            FileTlsCredentials(THIEF).load(context)  # type: ignore[arg-type]

    known = Keyring()
    parrot = tls.TlsSession.client(Parrot(), FRIEND.public)
    friend = tls.TlsSession.server(FileTlsCredentials(FRIEND), lambda who: known.check(who, NOW))
    friend.receive(parrot.outgoing())
    parrot.receive(friend.outgoing())
    with pytest.raises(ProtocolError, match="FF-NET-003"):
        friend.receive(parrot.outgoing())
    assert friend.peer is None


def test_noise_in_place_of_a_certificate_ends_its_own_connection_alone() -> None:
    async def attack(world: World) -> None:
        rng = random.Random(1)
        shown = certificate(own(1))
        for _ in range(60):
            noise = bytearray(shown if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, limits.HELLO_BYTES)))
            for _ in range(rng.randrange(1, 4)):
                noise[rng.randrange(len(noise))] ^= rng.randrange(1, 256)
            reader, writer = await asyncio.open_connection(*world.friend.address)
            writer.write(tls.hello(bytes(noise)) + b"\x16\x03\x01\x00\x05hello")
            writer.write_eof()
            with_answer = await reader.read()
            assert b"FFN1" not in with_answer
            writer.close()
        await world.is_served(own(1))

    run(attack)


class Liar:
    """Answers for a ledger, and says what it likes."""

    def __init__(self, answers: list[object]) -> None:
        self.answers, self.asked = answers, 0

    async def handle(self, _: Connection, __: str, body: bytes) -> bytes:
        self.asked += 1
        said = self.answers[min(self.asked, len(self.answers)) - 1]
        return encode(said(queries.read_query(body)) if callable(said) else said)


async def look(liar: Liar, known: Keyring, times: int = 1) -> int:
    """So many looks of a follower; how often it rechecked."""
    server, client = Endpoint(R, liar.handle, ByteCounter()), Endpoint(FRIEND, echo, ByteCounter())
    place = await server.start()
    checked: list[int] = []
    follower = KeyRegistryFollower(lambda: client.dial(R.public, *place), known, lambda: checked.append(1))
    try:
        async with asyncio.timeout(60):
            for _ in range(times):
                await follower.look()
    finally:
        await client.close()
        await server.close()
    return len(checked)


def key_row(epoch: int, void: int = 0) -> KeyRow:
    return KeyRow(VICTIM.public, NODES[epoch].public, VICTIM.public, epoch, NOW * 2, 0, 0, void)


def test_a_ledger_that_goes_back_brings_no_revoked_key_back() -> None:
    known = Keyring()
    answers: list[object] = [
        queries.KeysReply((key_row(2, void=2),), 9, 9),
        queries.KeysReply((key_row(1),), 3, 3),
        queries.KeysReply((), 3, 3),
    ]
    assert asyncio.run(look(Liar(answers), known, 3)) == 3
    assert not known.counts(own(1).identity, NOW)
    assert known.counts(own(2).identity, NOW)


def test_a_ledger_without_an_end_is_left_after_some_pages() -> None:
    def endless(query: object) -> queries.KeysReply:
        assert isinstance(query, queries.GetKeys)
        return queries.KeysReply((), query.height + 1, 1 << 62)

    liar = Liar([endless])
    assert asyncio.run(look(liar, Keyring())) == 1
    assert liar.asked <= 256


def test_a_ledger_that_stands_still_is_asked_once_a_look() -> None:
    liar = Liar([queries.KeysReply((), 0, 7)])
    assert asyncio.run(look(liar, Keyring(), 3)) == 3
    assert liar.asked == 3


def test_rows_of_another_form_are_passed_over() -> None:
    known = Keyring()
    odd = msgspec.structs.replace(key_row(1, void=9), account=PeerId(bytes(1 << 16)))
    rows = (odd, msgspec.structs.replace(key_row(1, void=9), node=PeerId(b"")), key_row(2))
    asyncio.run(look(Liar([queries.KeysReply(rows, 1, 1)]), known))
    assert list(known._known) == [VICTIM.public]
    assert known.counts(own(2).identity, NOW)
    assert not known.counts(bare(VICTIM.public), NOW)


def test_an_answer_to_another_question_teaches_nothing() -> None:
    known = Keyring()
    with pytest.raises(ProtocolError, match="FF-APP-071"):
        asyncio.run(look(Liar([queries.TxReply(3)]), known))
    assert known._known == {}

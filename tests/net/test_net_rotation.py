"""Node keys over real sockets: an account is met behind any key that counts, and a withdrawn one is cut off."""

import asyncio

import pytest
from net_relays import A, B, C, R, echo, hidden, relay, run

from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import NetworkError, ProtocolError
from farflung.core.ids import PeerId
from farflung.net.certificates import Credential, certify
from farflung.net.counters import ByteCounter
from farflung.net.io.admission import Admission
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.tls_key import FileTlsCredentials
from farflung.net.node_keyring import Keyring, RegisteredKeys
from farflung.net.tls import TlsSession

NODES = [local_key(5, "node", i) for i in range(4)]
NOW = 1_800_000_000


def own(account: SigningKey, epoch: int, **time: int) -> Credential:
    """The node key of an epoch: each account has others."""
    node = local_key(5, f"node of {account.public.hex()}", epoch)
    return Credential(node, certify(account, node.public, epoch, **time))


def row(account: SigningKey, epoch: int, *, until: int = 0, void: int = 0) -> RegisteredKeys:
    def node(number: int) -> PeerId:
        return own(account, number).node.public if number else account.public

    return RegisteredKeys(account.public, epoch, node(epoch), epoch - 1, node(epoch - 1), until, void)


def meet(dialer: TlsSession, acceptor: TlsSession) -> None:
    while data := (dialer.outgoing(), acceptor.outgoing()):
        acceptor.receive(data[0])
        dialer.receive(data[1])
        if not any(data):
            return


def session(mine: Credential, expected: PeerId | None = None, **options) -> TlsSession:  # type: ignore[no-untyped-def]
    files = FileTlsCredentials(mine)
    return TlsSession.server(files, **options) if expected is None else TlsSession.client(files, expected, **options)


def test_both_ends_of_a_handshake_prove_node_key_and_account() -> None:
    a, b = own(A, 1), own(B, 7)
    trusts = {"trusts": lambda identity: Keyring().check(identity, NOW)}
    dialer, acceptor = session(a, B.public, **trusts), session(b, **trusts)
    meet(dialer, acceptor)
    assert (dialer.peer, acceptor.peer) == (B.public, A.public)
    assert (dialer.identity, acceptor.identity) == (b.identity, a.identity)


def test_the_account_is_dialled_and_a_node_key_of_another_one_is_refused_before_the_finish() -> None:
    trusts = {"trusts": lambda identity: Keyring().check(identity, NOW)}
    mine = own(A, 1)
    for expected in (R.public, mine.node.public):  # a node key is no address
        dialer, acceptor = session(own(B, 1), expected, **trusts), session(mine, **trusts)
        with pytest.raises(ProtocolError, match="FF-NET-004"):
            meet(dialer, acceptor)
        assert dialer.outgoing() == b""
        assert not acceptor.is_ready


@pytest.mark.parametrize("is_dialer", [True, False])
@pytest.mark.parametrize(
    ("epoch", "time", "code"),
    [(1, {}, "FF-NET-103"), (2, {"expires": NOW - 3600}, "FF-NET-102"), (2, {"begins": NOW + 3600}, "FF-NET-102")],
)
def test_a_key_that_does_not_count_opens_nothing_on_either_side(
    is_dialer: bool, epoch: int, time: dict[str, int], code: str
) -> None:
    known = Keyring()
    known.learn([row(A, 2)])

    def trusts(identity):  # type: ignore[no-untyped-def]
        known.check(identity, NOW)

    bad = own(A, epoch, **time)
    if is_dialer:
        judge = session(Credential(B), trusts=trusts)
        with pytest.raises(ProtocolError, match=code):
            judge.receive(session(bad, B.public).outgoing())
    else:
        judge = session(Credential(B), A.public, trusts=trusts)
        acceptor = session(bad)
        acceptor.receive(judge.outgoing())
        with pytest.raises(ProtocolError, match=code):
            judge.receive(acceptor.outgoing())
    assert not judge.is_ready
    assert judge.outgoing() == b""


def test_a_session_without_a_judge_takes_accounts_own_keys_only() -> None:
    with pytest.raises(ProtocolError, match="FF-NET-104"):
        session(Credential(B)).receive(session(own(A, 1), B.public).outgoing())


def test_certified_peers_meet_directly_and_through_a_relay() -> None:
    async def test() -> None:
        async with relay(own(R, 3)) as server:
            async with hidden(own(A, 1), server.address) as a, hidden(own(B, 2), server.address):
                connection = await a.dial(B.public, *server.address, relay=R.public)
                assert await connection.call("echo", b"x") == b"x"
                assert connection.peer == B.public
                assert connection.identity == own(B, 2).identity
            listener = Endpoint(own(B, 2), echo, ByteCounter())
            place = await listener.start()
            async with hidden(own(A, 1), None) as a:
                assert await (await a.dial(B.public, *place)).call("echo", b"y") == b"y"
            await listener.close()

    run(test)


def test_a_relay_serves_no_ticket_of_a_key_that_is_withdrawn() -> None:
    async def test() -> None:
        known = Keyring()
        async with relay(admission=Admission(keyring=known)) as server:
            async with hidden(own(A, 1), None) as a, hidden(B, server.address):
                known.learn([row(A, 2, void=2)])
                with pytest.raises(NetworkError, match=r"FF-NET-072.*does not count"):
                    await a.dial(B.public, *server.address, relay=R.public)
                a.renew(own(A, 2))
                assert await (await a.dial(B.public, *server.address, relay=R.public)).call("echo", b"x")

    run(test)


@pytest.mark.parametrize("is_dialer", [True, False])
def test_a_relay_cuts_the_circuits_of_a_withdrawn_key_at_either_end(is_dialer: bool) -> None:
    async def test() -> None:
        known = Keyring()
        async with (
            relay(admission=Admission(keyring=known)) as server,
            hidden(own(A, 1), None) as a,
            hidden(own(B, 1), server.address) as b,
            hidden(own(C, 1), server.address) as c,
        ):
            connection, stays = [await a.dial(peer.public, *server.address, relay=R.public) for peer in (B, C)]
            known.learn([row(A if is_dialer else B, 1, void=2)])
            assert server.recheck() == 2  # two circuits; or one, and the attachment of B
            async with asyncio.timeout(30):
                await connection.closed()
                if is_dialer:
                    await stays.closed()
            if not is_dialer:
                assert await stays.call("echo", b"x") == b"x"
                with pytest.raises(NetworkError, match="FF-NET-071"):
                    await c.dial(B.public, *server.address, relay=R.public)
            assert b.credential != c.credential
            assert server.recheck() == 0

    run(test)


def test_a_new_key_is_used_at_once_and_what_is_open_lives_through_the_overlap() -> None:
    async def test() -> None:
        now, known = [NOW], Keyring()
        listener = Endpoint(B, echo, ByteCounter(), admission=Admission(None, known, lambda: now[0]))
        place = await listener.start()
        async with hidden(own(A, 1), None) as a:
            old = await a.dial(B.public, *place)
            known.learn([row(A, 2, until=NOW + 60)])
            a.renew(own(A, 2))
            assert listener.recheck() == 0
            assert await old.call("echo", b"x") == b"x"
            old.close()
            await old.closed()
            await a.dial(B.public, *place)
            met = listener.connection(A.public)
            assert met is not None
            assert met.identity == own(A, 2).identity
            now[0] += 60
            assert listener.recheck() == 0  # the newest key outlives the overlap
            with pytest.raises(ProtocolError, match="FF-NET-106"):
                a.renew(own(B, 1))
        await listener.close()

    run(test)


@pytest.mark.parametrize("by_revocation", [True, False])
def test_an_open_connection_ends_when_its_key_does(by_revocation: bool) -> None:
    async def test() -> None:
        now, known = [NOW], Keyring()
        listener = Endpoint(B, echo, ByteCounter(), admission=Admission(None, known, lambda: now[0]))
        place = await listener.start()
        async with hidden(own(A, 1), None) as a, hidden(own(R, 1), None) as other:
            connection, stays = await a.dial(B.public, *place), await other.dial(B.public, *place)
            if by_revocation:
                known.learn([row(A, 1, void=2)])
            else:
                known.learn([row(A, 2, until=NOW + 60)])
                now[0] += 60
            assert listener.recheck() == 1
            async with asyncio.timeout(30):
                await connection.closed()
            assert await stays.call("echo", b"x") == b"x"
            with pytest.raises(NetworkError, match="FF-NET-045"):  # closed without a word
                await a.dial(B.public, *place)
        await listener.close()

    run(test)

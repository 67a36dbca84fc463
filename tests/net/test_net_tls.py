"""Two sessions in memory: who meets whom, and who does not."""

import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.crypto import local_key
from farflung.core.errors import NetworkError, ProtocolError
from farflung.net.io.tls_key import FileTlsCredentials
from farflung.net.tls import MAGIC, TlsSession, hello, wire_size

A, B, C = (local_key(1, name) for name in "abc")
OWN_A, OWN_B, OWN_C = FileTlsCredentials(A), FileTlsCredentials(B), FileTlsCredentials(C)


def meet(dialer: TlsSession, acceptor: TlsSession, cut: int = 1 << 20) -> None:
    """Carries bytes both ways, `cut` at a time, until nothing moves."""
    moved = True
    while moved:
        moved = False
        for source, target in ((dialer, acceptor), (acceptor, dialer)):
            data = source.outgoing()
            for at in range(0, len(data), cut):
                assert target.receive(data[at : at + cut]) == []
                moved = True


@pytest.mark.parametrize("cut", [1, 7, 1 << 20])
def test_two_keys_meet_and_know_each_other(cut: int) -> None:
    dialer, acceptor = TlsSession.client(OWN_A, B.public), TlsSession.server(OWN_B)
    meet(dialer, acceptor, cut)
    assert dialer.is_ready
    assert acceptor.is_ready
    assert (dialer.peer, acceptor.peer) == (B.public, A.public)
    dialer.send(b"hello")
    assert acceptor.receive(dialer.outgoing()) == [b"hello"]
    acceptor.send(b"x" * 100_000)
    data = acceptor.outgoing()
    assert len(data) == wire_size(100_000)
    assert b"".join(dialer.receive(data)) == b"x" * 100_000


def test_only_tls_13_without_tickets_is_spoken() -> None:
    dialer, acceptor = TlsSession.client(OWN_A, B.public), TlsSession.server(OWN_B)
    meet(dialer, acceptor)
    assert acceptor._tls is not None
    assert acceptor._tls.version() == "TLSv1.3"
    assert acceptor._tls.context.num_tickets == 0
    assert acceptor._tls.context.verify_mode is ssl.CERT_REQUIRED


def test_dialer_refuses_another_key_before_it_finishes_the_handshake() -> None:
    dialer, acceptor = TlsSession.client(OWN_A, C.public), TlsSession.server(OWN_B)
    acceptor.receive(dialer.outgoing())
    with pytest.raises(ProtocolError, match="FF-NET-004"):
        dialer.receive(acceptor.outgoing())
    assert not dialer.is_ready
    assert dialer.outgoing() == b""  # its Finished never leaves
    assert not acceptor.is_ready
    with pytest.raises(NetworkError, match="FF-NET-005"):
        dialer.send(b"secret")


class Impostor:
    """Shows one certificate, holds another key."""

    def __init__(self, shown: FileTlsCredentials, held: FileTlsCredentials) -> None:
        self.certificate = shown.certificate
        self._held = held

    def load(self, context: ssl.SSLContext) -> None:
        self._held.load(context)


def test_acceptor_refuses_a_dialer_that_announces_a_key_it_does_not_hold() -> None:
    dialer, acceptor = TlsSession.client(Impostor(OWN_C, OWN_A), B.public), TlsSession.server(OWN_B)
    with pytest.raises(ProtocolError, match="FF-NET-003"):
        meet(dialer, acceptor)
    assert acceptor.peer is None


def test_a_dialer_without_a_certificate_is_refused() -> None:
    class Nobody:
        certificate = OWN_A.certificate

        def load(self, context: ssl.SSLContext) -> None:
            pass

    dialer, acceptor = TlsSession.client(Nobody(), B.public), TlsSession.server(OWN_B)
    with pytest.raises(ProtocolError, match="FF-NET-003"):
        meet(dialer, acceptor)


def test_a_hello_changed_on_the_way_ends_the_handshake() -> None:
    dialer, acceptor = TlsSession.client(OWN_A, B.public), TlsSession.server(OWN_B)
    data = dialer.outgoing()
    changed = data.replace(OWN_A.certificate, OWN_C.certificate)
    acceptor.receive(changed)
    with pytest.raises(ProtocolError, match="FF-NET-003"):
        meet(dialer, acceptor)


def test_acceptor_itself_compares_what_was_proved_with_what_was_announced() -> None:
    dialer, acceptor = TlsSession.client(OWN_A, B.public), TlsSession.server(OWN_B)
    acceptor.receive(dialer.outgoing())
    acceptor._hello = OWN_C.certificate  # as if OpenSSL had trusted more than it was told to
    with pytest.raises(ProtocolError, match="FF-NET-003"):
        meet(dialer, acceptor)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2])
def test_an_older_tls_is_refused(version: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = version
    OWN_A.load(context)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    acceptor = TlsSession.server(OWN_B)
    acceptor.receive(hello(OWN_A.certificate))
    with pytest.raises(ProtocolError, match="FF-NET-003"):
        acceptor.receive(outgoing.read())


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"FFN2\0\xe0",
        MAGIC + (limits.HELLO_BYTES + 1).to_bytes(2, "big"),
        MAGIC + b"\xff\xff",
    ],
)
def test_what_is_no_hello_is_refused_at_once(data: bytes) -> None:
    acceptor = TlsSession.server(OWN_B)
    with pytest.raises(ProtocolError, match="FF-NET-001"):
        acceptor.receive(data)
    assert acceptor.receive(b"more") == []
    assert acceptor.outgoing() == b""


def test_a_hello_with_any_other_certificate_is_refused() -> None:
    for body in (b"", b"x", OWN_A.certificate[:-1], OWN_A.certificate + b"x"):
        with pytest.raises(ProtocolError, match="FF-NET-002"):
            TlsSession.server(OWN_B).receive(hello(body))


def test_a_handshake_that_never_ends_is_cut_off() -> None:
    acceptor = TlsSession.server(OWN_B)
    acceptor.receive(hello(OWN_A.certificate))
    acceptor.receive(b"\x16\x03\x01\x40\x00" + bytes(limits.HANDSHAKE_BYTES - 300))  # a record of 16 KiB
    with pytest.raises(ProtocolError, match="longer"):
        acceptor.receive(bytes(200))


def test_a_flipped_or_replayed_record_ends_the_session() -> None:
    for spoil in (lambda d: d[:-1] + bytes([d[-1] ^ 1]), lambda d: d + d):
        dialer, acceptor = TlsSession.client(OWN_A, B.public), TlsSession.server(OWN_B)
        meet(dialer, acceptor)
        dialer.send(b"pay 1")
        with pytest.raises(ProtocolError, match="FF-NET-003"):
            acceptor.receive(spoil(dialer.outgoing()))
        assert not acceptor.is_ready


def test_good_bye_is_heard() -> None:
    dialer, acceptor = TlsSession.client(OWN_A, B.public), TlsSession.server(OWN_B)
    meet(dialer, acceptor)
    dialer.finish()
    dialer.finish()
    acceptor.receive(dialer.outgoing())
    assert acceptor.is_closed


@settings(max_examples=40)
@given(st.binary(min_size=1, max_size=2000), st.booleans())
def test_strange_bytes_only_raise_protocol_errors(data: bytes, is_after_hello: bool) -> None:
    acceptor = TlsSession.server(OWN_B)
    if is_after_hello:
        acceptor.receive(hello(OWN_A.certificate))
    try:
        assert acceptor.receive(data) == []
    except ProtocolError:
        assert acceptor.outgoing() == b""
    assert not acceptor.is_ready


def test_credentials_work_without_memory_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.net.io.tls_key._memory_file", lambda data: None)
    dialer, acceptor = (TlsSession.client(FileTlsCredentials(A), B.public), TlsSession.server(FileTlsCredentials(B)))
    meet(dialer, acceptor)
    assert dialer.is_ready
    assert acceptor.is_ready

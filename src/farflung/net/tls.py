"""Runs TLS 1.3 between Ed25519 identities, bytes in and bytes out; decides when two keys are proved (N1, N4).

Python's `ssl` cannot accept any client certificate and look at its key afterwards, so the dialer first says in
clear which certificate it will prove. States, and what moves them:

    dialer      hello + ClientHello ->  HANDSHAKE  -- acceptor is the dialled account, its key counts -->  READY
    acceptor    HELLO  -- certificate has our form, its key counts -->  HANDSHAKE  -- it is proved -->  READY
    either      READY  -- close_notify -->  CLOSED;   anything else at any time: ProtocolError, and no byte more

    hello = "FFN1" | length (2 bytes, big endian, <= limits.HELLO_BYTES) | certificate (identity.py)

The hello proves nothing. The acceptor trusts exactly that certificate in a context made for this connection, and
TLS's CertificateVerify (RFC 8446, 4.4.3) proves the key; a changed hello gives another key or no handshake. The
dialer compares the proved account before its own Finished leaves, so a stranger never sees a finished handshake. No
tickets, no older version, no renegotiation, no name or date that could matter.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from farflung.core import limits
from farflung.core.errors import NetworkError, ProtocolError
from farflung.core.ids import PeerId, short
from farflung.net.certificates import Identity
from farflung.net.tls_identity import read

MAGIC: Final = b"FFN1"
_HEAD: Final = len(MAGIC) + 2
RECORD_BYTES: Final = 16 * limits.KIB  # plaintext of one TLS record at most
RECORD_OVERHEAD: Final = 22  # header 5, inner type 1, tag 16: the same for all TLS 1.3 suites in use


class TlsCredentials(Protocol):
    """A key as OpenSSL can use it. Loading needs a file, so the implementation lives in `io/`."""

    certificate: bytes

    def load(self, context: ssl.SSLContext) -> None:
        """Makes `context` able to prove the key."""


def wire_size(plaintext: int) -> int:
    """Bytes on the wire of one `TlsSession.send` of that many bytes, record overhead included."""
    return plaintext + RECORD_OVERHEAD * -(-plaintext // RECORD_BYTES)


def hello(certificate: bytes) -> bytes:
    """What the dialer sends in clear before TLS."""
    return MAGIC + len(certificate).to_bytes(2, "big") + certificate


def _context(side: int, own: TlsCredentials) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    own.load(context)
    return context


def _acceptor_context(own: TlsCredentials, trusted: bytes) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_SERVER, own)
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=trusted)
    return context


def _broken(cause: str) -> ProtocolError:
    return ProtocolError(
        "FF-NET-003",
        "the encrypted channel failed",
        cause=cause[:200],
        hint="dial again; if it fails again, the peer runs other software or someone is in between",
    )


Trusts = Callable[[Identity], None]  # raises ProtocolError for a node key that does not count now


def only_accounts(identity: Identity) -> None:
    """The trust of a session that knows no clock and no registry. Raises ProtocolError FF-NET-104."""
    if identity.epoch:
        raise ProtocolError(
            "FF-NET-104",
            "this connection takes no certified node keys",
            cause=f"{short(identity.account)} shows one of epoch {identity.epoch}",
            hint="dial through an Endpoint: it knows the time, which a certificate needs",
        )


class TlsSession:
    """One end of one TLS connection. After an error the object only ever returns nothing."""

    def __init__(self, own: TlsCredentials, expected: PeerId | None, trusts: Trusts) -> None:
        """`expected`: the dialled account; None on the acceptor's side. Use `client` and `server`."""
        self._own, self._expected, self._trusts = own, expected, trusts
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._hello = b""
        self._announced: Identity | None = None
        self._taken = 0  # bytes received before READY
        self._is_broken = False
        self.identity: Identity | None = None
        self.is_closed = False

    @classmethod
    def client(cls, own: TlsCredentials, expected: PeerId, trusts: Trusts = only_accounts) -> TlsSession:
        """The dialer's end; its first `outgoing` is the hello and the ClientHello."""
        session = cls(own, expected, trusts)
        session._out.write(hello(own.certificate))
        session._start(_context(ssl.PROTOCOL_TLS_CLIENT, own), is_server=False)
        session._guarded(session._handshake)
        return session

    @classmethod
    def server(cls, own: TlsCredentials, trusts: Trusts = only_accounts) -> TlsSession:
        """The acceptor's end; silent until a whole hello is there."""
        return cls(own, None, trusts)

    @property
    def peer(self) -> PeerId | None:
        """The proved account of the other end; None before READY."""
        return None if self.identity is None else self.identity.account

    @property
    def is_dialer(self) -> bool:
        """Whether this end dialled."""
        return self._expected is not None

    @property
    def is_ready(self) -> bool:
        """Whether `peer` is proved and plaintext may flow."""
        return self.peer is not None and not self._is_broken

    def receive(self, data: bytes | memoryview) -> list[bytes]:
        """Takes bytes from the socket, gives plaintext (none before READY).

        Raises ProtocolError: FF-NET-001 no hello of ours, FF-NET-002 no certificate of ours, FF-NET-003 TLS
        refuses, FF-NET-004 the acceptor is not the dialled account, FF-NET-100 and 101 an account's certificate that
        is none, and what `trusts` raises.
        """
        if self._is_broken:
            return []
        plain: list[bytes] = []
        self._guarded(lambda: plain.extend(self._receive(data)))
        return plain

    def send(self, *plaintext: bytes | bytearray | memoryview) -> None:
        """Encrypts; the ciphertext is in `outgoing`. Raises NetworkError FF-NET-005 before READY."""
        if self._tls is None or self.identity is None or self._is_broken:
            raise NetworkError("FF-NET-005", "the connection is not open yet")
        write = self._tls.write
        try:
            for each in plaintext:
                write(each)
        except ssl.SSLError as error:
            raise self._broke(error) from None

    def outgoing(self) -> bytes:
        """Bytes for the socket since the last call."""
        data = self._out.read()
        return b"" if self._is_broken else data

    def finish(self) -> None:
        """Says close_notify, once, if anything was open."""
        if self._tls is None or not self.is_ready or self.is_closed:
            return
        self.is_closed = True
        with contextlib.suppress(ssl.SSLError):  # it wants the other's close_notify, which nobody waits for
            self._tls.unwrap()

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except ssl.SSLError as error:
            raise self._broke(error) from None
        except ProtocolError:
            self._is_broken = True
            raise

    def _broke(self, error: ssl.SSLError) -> ProtocolError:
        self._is_broken = True
        return _broken(error.reason or str(error))

    def _start(self, context: ssl.SSLContext, *, is_server: bool) -> None:
        self._tls = context.wrap_bio(self._in, self._out, server_side=is_server)

    def _receive(self, data: bytes | memoryview) -> list[bytes]:
        if self.peer is None:
            self._taken += len(data)
        self._in.write(data if self._tls is not None else self._take_hello(bytes(data)))
        if self._tls is not None and self.peer is None:
            self._handshake()
        if self.peer is None:
            if self._taken > limits.HANDSHAKE_BYTES:
                raise _broken("the handshake is longer than any of ours")
            return []
        return self._read()

    def _take_hello(self, data: bytes) -> bytes:
        """Keeps an incomplete hello; behind a complete one starts TLS and returns the bytes that follow."""
        self._hello += data
        size = int.from_bytes(self._hello[len(MAGIC) : _HEAD], "big")
        if not self._hello.startswith(MAGIC[: len(self._hello)]) or size > limits.HELLO_BYTES:
            raise ProtocolError(
                "FF-NET-001",
                "the connection does not begin as ours do",
                cause="another protocol, another version, or a hello over the limit",
                hint="check that both sides run the same version of farflung",
            )
        end = _HEAD + size
        if len(self._hello) < _HEAD or len(self._hello) < end:
            return b""
        rest, self._hello = self._hello[end:], self._hello[_HEAD:end]
        self._announced = read(self._hello)
        self._trusts(self._announced)
        self._start(_acceptor_context(self._own, self._hello), is_server=True)
        return rest

    def _handshake(self) -> None:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        proved = self._tls.getpeercert(binary_form=True) or b""
        if self._expected is None and proved != self._hello:
            raise _broken("the dialer proved another certificate than the one it announced")
        found = self._announced or read(proved)
        if self._expected is not None and found.account != self._expected:
            raise ProtocolError(
                "FF-NET-004",
                f"the peer is not {short(self._expected)}",
                cause=f"it proved the key {short(found.account)}",
                hint="get a fresh address of the peer you want; do not use the one that was dialled",
            )
        self._trusts(found)
        self.identity = found

    def _read(self) -> list[bytes]:
        assert self._tls is not None
        pieces: list[bytes] = []
        next_record = self._tls.read
        try:
            while piece := next_record(RECORD_BYTES):
                pieces.append(piece)
            self.is_closed = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_closed = True
        return pieces

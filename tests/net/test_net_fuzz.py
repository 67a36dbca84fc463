"""Everything that reads a stranger's bytes, given noise and damaged truths: an error of ours, never a false truth."""

import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import digest, local_key
from farflung.core.errors import FarflungError
from farflung.core.relay_passes import (
    RelayPass,
    RelayReceipt,
    SignedRelayPass,
    SignedRelayReceipt,
    is_receipt_signed,
    sign_pass,
    sign_receipt,
)
from farflung.net import (
    certificates,
    endpoint_records,
    messages,
    multicast_frames,
    multicast_groups,
    relay_pass_checks,
    relay_probe,
    relay_tickets,
    tls,
    tls_identity,
)
from farflung.net.certificates import Credential, certify
from farflung.net.frames import Frame, FrameReader, FrameType
from farflung.net.frames import encode as framed
from farflung.net.io.tls_key import FileTlsCredentials
from farflung.net.relay_tickets import CallbackRequest, SignedTicket, Ticket, TicketPurpose, TicketStatus
from farflung.net.streams import StreamMultiplexer
from farflung.store import sealed_objects

A, B, R, N = (local_key(13, name) for name in ("a", "b", "relay", "node"))
NOW = 1_800_000_000
NOTHING = None  # what a parser gives that refuses without an error
CERTIFIED = Credential(N, certify(A, N.public, 1))
ROOM = 2 * limits.MIB  # what reading a few KiB may take for a while, whatever they say


@dataclass(frozen=True)
class Reader:
    """`read` gives NOTHING or raises FarflungError for what it refuses. `truth`: what it takes, and what comes of it.

    `is_sealed`: only the truth itself may be taken, since a signature or a hash covers every byte.
    """

    read: Callable[[bytes], Any]
    truth: bytes
    is_sealed: bool = False


def ticket_reader() -> Reader:
    toll = sign_pass(
        B,
        RelayPass(
            digest("test/chain/1"),
            B.public,
            R.public,
            1,
            1,
            tuple(sorted((A.public, B.public))),
            10**9,
            0,
            NOW,
            NOW + 60,
        ),
    )
    ticket = Ticket(TicketPurpose.DIAL, R.public, A.public, B.public, 0, bytes(16), NOW + 60, toll)
    body = relay_tickets.sign_ticket(CERTIFIED, ticket)[relay_tickets.HEAD_BYTES :]

    def read(data: bytes) -> Any:
        found = relay_tickets.judge(data, R.public, NOW)
        return NOTHING if isinstance(found, TicketStatus) else found

    return Reader(read, body, is_sealed=True)


def join_reader() -> Reader:
    roster = multicast_groups.sign_roster(A, digest("test/name/1"), 3, (A.public, B.public))
    join = multicast_groups.GroupJoin(
        R.public, roster.roster.group, B.public, bytes(multicast_groups.NONCE_BYTES), NOW + 30
    )

    def read(data: bytes) -> Any:
        found = multicast_groups.judge(data, R.public, NOW)
        return NOTHING if isinstance(found, multicast_groups.GroupJoinStatus) else found

    return Reader(read, multicast_groups.sign_join(B, join, roster)[multicast_groups.HEAD_BYTES :], is_sealed=True)


def receipt_reader() -> Reader:
    receipt = RelayReceipt(digest("test/chain/1"), B.public, R.public, 1, 1, A.public, 5, 6)

    def read(data: bytes) -> Any:
        signed = decode(data, SignedRelayReceipt, limits.TICKET_BYTES)
        return signed if is_receipt_signed(signed, A.public) else NOTHING

    return Reader(read, encode(sign_receipt(A, receipt)), is_sealed=True)


def pass_reader() -> Reader:
    toll = RelayPass(
        digest("test/chain/1"), B.public, R.public, 1, 1, tuple(sorted((A.public, B.public))), 10**9, 0, NOW, NOW + 60
    )

    def read(data: bytes) -> Any:
        found = relay_pass_checks.judge(decode(data, SignedRelayPass, limits.TICKET_BYTES), R.public, (A.public,))
        return NOTHING if isinstance(found, TicketStatus) else found

    return Reader(read, encode(sign_pass(B, toll)), is_sealed=True)


def record_reader() -> Reader:
    places = (
        endpoint_records.EndpointAddress("203.0.113.9", 4000, R.public),
        endpoint_records.EndpointAddress("203.0.113.10", 4001),
    )
    signed = endpoint_records.sign_record(A, endpoint_records.issue(A.public, places, NOW))
    return Reader(endpoint_records.read_record, encode(signed), is_sealed=True)


def certificate_reader() -> Reader:
    def read(data: bytes) -> Any:
        return certificates.check_certificate(certificates.read_certificate(data))

    assert CERTIFIED.certificate is not None
    return Reader(read, encode(CERTIFIED.certificate), is_sealed=True)


def manifest_reader() -> Reader:
    manifest, _ = sealed_objects.seal(bytes(32), bytes(3 * limits.CHUNK_BYTES // 2))
    return Reader(sealed_objects.read_manifest, encode(manifest))


def frames_reader() -> Reader:
    ask = Frame(FrameType.REQUEST, 1, messages.ask_head("a", messages.MessageKind.SYNC, 5) + b"12", is_last=False)
    data = framed(Frame(FrameType.PING, 0)) + framed(ask) + framed(Frame(FrameType.DATA, 1, b"345"))

    def read(data: bytes) -> Any:
        reader, streams = FrameReader(), StreamMultiplexer(is_dialer=False)
        streams.welcome()
        found = [streams.take(frame) for frame in reader.feed(data)]
        assert reader.pending < 2 * (limits.FRAME_BYTES + 10)
        return found

    return Reader(read, data)


def error_reader() -> Reader:
    return Reader(messages.read_error, messages.write_error(FarflungError("FF-APP-001", "m", cause="c", hint="h")))


def group_frame_reader() -> Reader:
    roster = multicast_groups.sign_roster(A, digest("test/name/1"), 1, (A.public, B.public)).roster
    (frame,) = multicast_frames.FrameSealer(roster, bytes(32), A.public, 7).seal(b"message")

    def read(data: bytes) -> Any:
        if len(data) < multicast_frames.HEAD_BYTES:
            return NOTHING
        opener = multicast_frames.FrameOpener(B.public)
        opener.enter(roster, bytes(32), 0.0)
        return opener.take(data[: multicast_frames.HEAD_BYTES], data[multicast_frames.HEAD_BYTES :], 1.0)

    return Reader(read, bytes(frame), is_sealed=True)


def group_head_reader() -> Reader:
    def read(data: bytes) -> Any:
        if len(data) < multicast_frames.HEAD_BYTES:
            return NOTHING
        head = multicast_frames.read_head(data)
        assert head.size <= max(limits.FAN_FRAME_BYTES + multicast_frames.TAG_BYTES, limits.FAN_JOIN_BYTES)
        return head

    return Reader(read, multicast_frames.GroupFrameHead(5, multicast_frames.GroupFrameKind.DATA).encode())


def hello_reader() -> Reader:
    """A whole acceptor, up to TLS; what is behind the hello is OpenSSL's business."""
    own = FileTlsCredentials(B)

    def read(data: bytes) -> Any:
        session = tls.TlsSession.server(own, lambda _identity: None)
        assert session.receive(data) == []
        assert not session.is_ready
        return NOTHING

    return Reader(read, tls.hello(tls_identity.certificate(CERTIFIED)))


READERS = {
    "ticket": ticket_reader(),
    "join": join_reader(),
    "receipt": receipt_reader(),
    "pass": pass_reader(),
    "record": record_reader(),
    "node certificate": certificate_reader(),
    "certificate": Reader(tls_identity.read, tls_identity.certificate(CERTIFIED)),
    "bare certificate": Reader(tls_identity.read, tls_identity.certificate(Credential(A))),
    "manifest": manifest_reader(),
    "frames": frames_reader(),
    "error": error_reader(),
    "ask": Reader(messages.read_ask, messages.ask_head("a.b", messages.MessageKind.SYNC, 5) + b"12345"),
    "answer": Reader(messages.read_answer, messages.answer_head(5) + b"12345"),
    "summons": Reader(
        lambda data: decode(data, CallbackRequest, limits.TICKET_BYTES), encode(CallbackRequest(5, A.public))
    ),
    "group frame": group_frame_reader(),
    "group head": group_head_reader(),
    "hello": hello_reader(),
    "ticket head": Reader(
        lambda d: relay_tickets.read_head(d[: relay_tickets.HEAD_BYTES]), relay_tickets.MAGIC + b"\1\0"
    ),
    "ticket answer": Reader(relay_tickets.read_answer, relay_tickets.answer(TicketStatus.FULL)),
    "join head": Reader(
        lambda d: multicast_groups.read_head(d[: multicast_groups.HEAD_BYTES]), multicast_groups.MAGIC + b"\1\0"
    ),
    "join answer": Reader(multicast_groups.read_answer, multicast_groups.answer(multicast_groups.GroupJoinStatus(0))),
}


def taken(reader: Reader, data: bytes) -> Any:
    try:
        return reader.read(data)
    except FarflungError:
        return NOTHING


@st.composite
def damaged(draw: st.DrawFn, truth: bytes) -> bytes:
    """The truth with a few bytes changed, left out, put in, repeated, or a length that is giant."""
    data = bytearray(truth)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        size = draw(st.integers(1, 8))
        what = draw(st.sampled_from(("flip", "cut", "put", "twice", "giant", "end")))
        if what == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif what == "cut":
            del data[at : at + size]
        elif what == "put":
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        elif what == "twice":
            data[at:at] = data[at : at + size]
        elif what == "giant":
            data[at : at + 4] = b"\xff\xff\xff\xff"
        else:
            del data[at:]
    return bytes(data)


def test_the_truth_is_taken() -> None:
    for name, reader in READERS.items():
        assert reader.read(reader.truth) is not NOTHING or name in ("hello", "frames"), name


@settings(max_examples=15)
@given(data=st.binary(max_size=400))
def test_noise_is_refused_with_an_error_of_ours(data: bytes) -> None:
    for name, reader in READERS.items():
        assert taken(reader, data) is NOTHING or not reader.is_sealed, name


@settings(max_examples=40 * len(READERS))
@given(name=st.sampled_from(list(READERS)), source=st.data())
def test_a_damaged_truth_is_refused_or_is_the_truth(name: str, source: st.DataObject) -> None:
    reader = READERS[name]
    data = source.draw(damaged(reader.truth))
    found = taken(reader, data)
    if reader.is_sealed and data != reader.truth:
        assert found is NOTHING


def test_a_truth_cut_at_every_byte_is_refused() -> None:
    for name, reader in READERS.items():
        for end in range(len(reader.truth)):
            found = taken(reader, reader.truth[:end])
            assert found is NOTHING or not reader.is_sealed, (name, end)


def test_no_bit_of_a_sealed_truth_can_change() -> None:
    for name, reader in READERS.items():
        for at in range(len(reader.truth)) if reader.is_sealed else ():
            data = bytearray(reader.truth)
            data[at] ^= 1 << at % 8
            assert taken(reader, bytes(data)) is NOTHING, (name, at)


GIANTS = {
    "array": b"\xdd\xff\xff\xff\xff",
    "map": b"\xdf\xff\xff\xff\xff",
    "bytes": b"\xc6\xff\xff\xff\xff",
    "text": b"\xdb\xff\xff\xff\xff",
    "extension": b"\xc9\xff\xff\xff\xff\x01",
    "deep": b"\x91" * 3000,
    "nested": b"\x99\xdd\x00\xff\xff\xff" * 300,
    "frame": struct.pack(">BBII", FrameType.REQUEST, 0, 1, 0xFFFFFFFF),
    "ask": struct.pack(">BBII", FrameType.REQUEST, 0, 1, 7) + struct.pack(">BIB", 1, 0xFFFFFFFF, 1) + b"a",
    "group frame": struct.pack(">IBBHQQQ", 0xFFFFFFFF, 0, 3, 0, 1, 7, 0),
    "hello": tls.MAGIC + b"\xff\xff",
}


def test_a_length_that_is_told_is_not_a_length_that_is_taken() -> None:
    """Also where a giant stands in place of any part of a truth."""
    for name, reader in READERS.items():
        taken(reader, reader.truth)
        tracemalloc.start()
        try:
            for kind, giant in GIANTS.items():
                for at in {0, 1, 2, len(reader.truth) // 2}:
                    tracemalloc.reset_peak()
                    before = tracemalloc.get_traced_memory()[0]
                    taken(reader, reader.truth[:at] + giant)
                    assert tracemalloc.get_traced_memory()[1] - before < ROOM, (name, kind, at)
        finally:
            tracemalloc.stop()


def test_every_body_over_its_limit_is_refused_unread() -> None:
    for kind, limit in ((SignedTicket, limits.TICKET_BYTES), (CallbackRequest, limits.TICKET_BYTES)):
        with pytest.raises(FarflungError, match="FF-CORE-020"):
            decode(bytes(limit + 1), kind, limit)


def test_a_set_up_cut_at_every_byte_is_never_ready() -> None:
    """Byte by byte: after each, the state is that of a set-up that was cut there."""
    dialer, acceptor = (
        tls.TlsSession.client(FileTlsCredentials(A), B.public),
        tls.TlsSession.server(FileTlsCredentials(B)),
    )
    while not (dialer.is_ready and acceptor.is_ready):
        for source, sink in ((dialer, acceptor), (acceptor, dialer)):
            data = source.outgoing()
            for at in range(len(data)):
                assert sink.receive(data[at : at + 1]) == []
                assert not sink.is_ready or at == len(data) - 1
    assert relay_probe.answer(A.public)[:4] == tls.MAGIC

"""Where a key listens, as its owner signed it."""

import pytest
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import NS_ENDPOINT, local_key
from farflung.core.errors import ProtocolError, VerificationError
from farflung.net.endpoint_records import (
    DIRECT,
    EndpointAddress,
    EndpointRecord,
    SignedEndpointRecord,
    check_newer,
    check_record,
    check_time,
    issue,
    read_record,
    sign_record,
)

KEY, OTHER = local_key(1, "a"), local_key(1, "b")
PLACE = EndpointAddress("127.0.0.1", 4500)
RECORD = EndpointRecord(KEY.public, (PLACE,), 700, 1300)


def at(**changed: object) -> EndpointRecord:
    """The record with its place changed."""
    return replace(RECORD, places=(replace(PLACE, **changed),))


def test_a_signed_record_comes_back() -> None:
    signed = sign_record(KEY, RECORD)
    assert check_record(signed) == RECORD
    assert read_record(encode(signed)) == RECORD


@pytest.mark.parametrize(
    "changed",
    [
        at(host="127.0.0.2"),
        at(port=4501),
        at(relay=OTHER.public),
        replace(RECORD, places=(PLACE, replace(PLACE, port=1))),
        replace(RECORD, issued=701),
        replace(RECORD, expires=1299),
    ],
)
def test_a_changed_record_is_refused(changed: EndpointRecord) -> None:
    with pytest.raises(VerificationError, match="FF-CORE-030"):
        check_record(SignedEndpointRecord(changed, sign_record(KEY, RECORD).signature))


def test_only_the_key_itself_signs_its_record() -> None:
    with pytest.raises(ProtocolError, match="FF-NET-060"):
        sign_record(OTHER, RECORD)
    with pytest.raises(VerificationError):
        check_record(SignedEndpointRecord(RECORD, OTHER.sign(NS_ENDPOINT, encode(RECORD))))
    with pytest.raises(VerificationError):
        check_record(SignedEndpointRecord(RECORD, KEY.sign(NS_ENDPOINT, encode(RECORD))[:10]))


def test_values_out_of_range_are_refused(subtests: pytest.Subtests) -> None:
    for record in [
        at(host=""),
        at(host="a" * 254),
        at(host="a b"),
        at(host="ä"),
        at(host="a\n"),
        at(port=0),
        at(port=65536),
        at(relay=b""),
        at(relay=KEY.public),
        replace(RECORD, peer=b"short"),
        replace(RECORD, places=()),
        replace(RECORD, places=(PLACE, PLACE)),
        replace(RECORD, places=tuple(EndpointAddress("a", 1 + n) for n in range(limits.PLACES + 1))),
        replace(RECORD, issued=-1),
        replace(RECORD, issued=1300),
        replace(RECORD, expires=1301),
        replace(RECORD, issued=1 << 62, expires=(1 << 62) + 1),
    ]:
        with subtests.test(record=record):
            with pytest.raises(ProtocolError, match="FF-NET-060"):
                check_record(SignedEndpointRecord(record, sign_record(KEY, RECORD).signature))


def test_a_stale_record_does_not_replace_a_newer_one() -> None:
    for known in (None, RECORD, replace(RECORD, issued=699)):
        check_newer(known, at(port=1))
    with pytest.raises(ProtocolError, match="FF-NET-112"):
        check_newer(RECORD, replace(at(port=1), issued=699))


@pytest.mark.parametrize(
    ("now", "code"), [(639, "111"), (640, ""), (700, ""), (1300, ""), (1360, ""), (1361, "110"), (0, "111")]
)
def test_a_record_counts_from_its_issue_to_its_end_give_or_take_a_minute(now: int, code: str) -> None:
    if not code:
        check_time(RECORD, now)
        return
    with pytest.raises(ProtocolError, match=f"FF-NET-{code}"):
        check_time(RECORD, now)


def test_an_issued_record_lives_as_long_as_readers_accept() -> None:
    record = issue(KEY.public, (PLACE,), 700.9)
    assert record == RECORD
    assert check_record(sign_record(KEY, record)) == RECORD


def test_no_byte_of_an_encoded_record_can_change() -> None:
    data = encode(sign_record(KEY, RECORD))
    for n in range(len(data)):
        spoiled = data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :]
        with pytest.raises((ProtocolError, VerificationError)):
            read_record(spoiled)


def test_a_record_says_whether_to_go_through_a_relay() -> None:
    assert PLACE.relay == DIRECT == bytes(32)
    assert check_record(sign_record(KEY, at(relay=OTHER.public))).places[0].relay == OTHER.public

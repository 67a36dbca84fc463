"""Where a key listens, as its owner signed it."""

import msgspec
import pytest

from farflung.core.codec import encode
from farflung.core.crypto import NS_ENDPOINT, local_key
from farflung.core.errors import ProtocolError, VerificationError
from farflung.net.endpoints import (
    DIRECT,
    EndpointRecord,
    SignedRecord,
    check_record,
    newest,
    read_record,
    sign_record,
)

KEY, OTHER = local_key(1, "a"), local_key(1, "b")
RECORD = EndpointRecord(KEY.public, "127.0.0.1", 4500, 7)


def test_a_signed_record_comes_back() -> None:
    signed = sign_record(KEY, RECORD)
    assert check_record(signed) == RECORD
    assert read_record(encode(signed)) == RECORD


@pytest.mark.parametrize(
    ("field", "value"), [("host", "127.0.0.2"), ("port", 4501), ("sequence", 8), ("relay", OTHER.public)]
)
def test_a_changed_record_is_refused(field: str, value: object) -> None:
    changed = msgspec.structs.replace(RECORD, **{field: value})
    with pytest.raises(VerificationError, match="FF-CORE-030"):
        check_record(SignedRecord(changed, sign_record(KEY, RECORD).signature))


def test_only_the_key_itself_signs_its_record() -> None:
    with pytest.raises(ProtocolError, match="FF-NET-060"):
        sign_record(OTHER, RECORD)
    with pytest.raises(VerificationError):
        check_record(SignedRecord(RECORD, OTHER.sign(NS_ENDPOINT, encode(RECORD))))
    with pytest.raises(VerificationError):
        check_record(SignedRecord(RECORD, KEY.sign(NS_ENDPOINT, encode(RECORD))[:10]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", ""),
        ("host", "a" * 254),
        ("host", "a b"),
        ("host", "ä"),
        ("host", "a\n"),
        ("port", 0),
        ("port", 65536),
        ("sequence", -1),
        ("sequence", 1 << 63),
        ("peer", b"short"),
        ("relay", b""),
        ("relay", KEY.public),
    ],
)
def test_values_out_of_range_are_refused(field: str, value: object) -> None:
    record = msgspec.structs.replace(RECORD, **{field: value})
    with pytest.raises(ProtocolError, match="FF-NET-060"):
        check_record(SignedRecord(record, sign_record(KEY, RECORD).signature))


def test_a_stale_record_does_not_replace_a_newer_one() -> None:
    older = msgspec.structs.replace(RECORD, port=1, sequence=6)
    same = msgspec.structs.replace(RECORD, port=1)
    newer = msgspec.structs.replace(RECORD, port=1, sequence=8)
    assert newest(None, RECORD) is RECORD
    assert newest(RECORD, older) is RECORD
    assert newest(RECORD, same) is RECORD
    assert newest(RECORD, newer) is newer


def test_no_byte_of_an_encoded_record_can_change() -> None:
    data = encode(sign_record(KEY, RECORD))
    for at in range(len(data)):
        spoiled = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises((ProtocolError, VerificationError)):
            read_record(spoiled)


def test_a_record_says_whether_to_go_through_a_relay() -> None:
    assert RECORD.relay == DIRECT == bytes(32)
    hidden = msgspec.structs.replace(RECORD, relay=OTHER.public)
    assert check_record(sign_record(KEY, hidden)).relay == OTHER.public

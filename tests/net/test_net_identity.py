"""The certificate is a function of the key, and nothing else is one."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.crypto import local_key
from farflung.core.errors import ProtocolError
from farflung.net.identity import CERTIFICATE_BYTES, certificate, key_of, pem

KEY = local_key(1, "identity")


def test_certificate_is_the_same_each_time_and_gives_the_key_back() -> None:
    assert certificate(KEY) == certificate(KEY)
    assert key_of(certificate(KEY)) == KEY.public
    assert len(certificate(KEY)) == CERTIFICATE_BYTES <= limits.HELLO_BYTES


def test_another_reader_of_x509_agrees_with_the_fixed_bytes() -> None:
    cert = x509.load_der_x509_certificate(certificate(KEY))
    public = cert.public_key()
    assert isinstance(public, Ed25519PublicKey)
    assert public.public_bytes_raw() == KEY.public
    assert cert.not_valid_before_utc.year == 1970
    assert cert.not_valid_after_utc.year == 9999
    assert list(cert.extensions) == []
    cert.verify_directly_issued_by(cert)


def test_pem_holds_both_and_repr_of_the_key_does_not_show_it() -> None:
    text = pem(KEY)
    assert text.count(b"-----BEGIN PRIVATE KEY-----") == 1
    assert text.count(b"-----BEGIN CERTIFICATE-----") == 1


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, CERTIFICATE_BYTES - 1), change=st.integers(1, 255))
def test_a_changed_certificate_is_refused_or_names_another_key(at: int, change: int) -> None:
    data = bytearray(certificate(KEY))
    data[at] ^= change
    try:
        other = key_of(bytes(data))
    except ProtocolError:
        return
    is_in_signature = at >= CERTIFICATE_BYTES - 64
    assert is_in_signature or other != KEY.public


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=400))
def test_other_bytes_are_no_certificate(data: bytes) -> None:
    for each in (data, certificate(KEY) + data[:3] + b"\0", certificate(KEY)[: len(data)]):
        if each != certificate(KEY):
            with pytest.raises(ProtocolError, match="FF-NET-002"):
                key_of(each)

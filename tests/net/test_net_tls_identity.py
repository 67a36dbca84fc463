"""The certificate is a function of the key, and nothing else is one."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import local_key
from farflung.core.errors import ProtocolError
from farflung.net.certificates import FOREVER, Credential, Identity, bare, certify
from farflung.net.tls_identity import CERTIFICATE_BYTES, certificate, pem, read

KEY, NODE = local_key(1, "identity"), local_key(1, "identity-node")
OWN = Credential(KEY)
CERTIFIED = Credential(NODE, certify(KEY, NODE.public, 7, begins=1_700_000_000, expires=1_800_000_000))
SHORTEST = Credential(NODE, certify(KEY, NODE.public, 1, begins=0, expires=1))
LONGEST = Credential(NODE, certify(KEY, NODE.public, limits.EPOCHS - 1, begins=FOREVER - 1, expires=FOREVER))


def test_certificate_is_the_same_each_time_and_gives_the_key_back() -> None:
    assert certificate(OWN) == certificate(OWN)
    assert read(certificate(OWN)) == bare(KEY.public)
    assert len(certificate(OWN)) == CERTIFICATE_BYTES <= limits.HELLO_BYTES


@pytest.mark.parametrize("own", [CERTIFIED, SHORTEST, LONGEST])
def test_a_certified_node_key_names_its_account(own: Credential) -> None:
    assert own.certificate is not None
    key = own.certificate.key
    found = read(certificate(own))
    assert found == Identity(KEY.public, NODE.public, key.epoch, key.begins, key.expires)
    assert len(certificate(own)) <= limits.HELLO_BYTES


@pytest.mark.parametrize(("own", "extensions"), [(OWN, 0), (CERTIFIED, 1)])
def test_another_reader_of_x509_agrees_with_the_fixed_bytes(own: Credential, extensions: int) -> None:
    cert = x509.load_der_x509_certificate(certificate(own))
    public = cert.public_key()
    assert isinstance(public, Ed25519PublicKey)
    assert public.public_bytes_raw() == own.node.public
    assert cert.not_valid_before_utc.year == 1970
    assert cert.not_valid_after_utc.year == 9999
    assert len(list(cert.extensions)) == extensions
    for extension in cert.extensions:
        assert not extension.critical
        assert isinstance(extension.value, x509.UnrecognizedExtension)
        assert extension.value.value == encode(own.certificate)
        assert extension.oid.dotted_string.startswith("2.25.")
    cert.verify_directly_issued_by(cert)


def test_pem_holds_both_and_repr_of_the_key_does_not_show_it() -> None:
    text = pem(CERTIFIED)
    assert text.count(b"-----BEGIN PRIVATE KEY-----") == 1
    assert text.count(b"-----BEGIN CERTIFICATE-----") == 1


@settings(max_examples=60)
@given(at=st.integers(0, CERTIFICATE_BYTES - 1), change=st.integers(1, 255))
def test_a_changed_certificate_is_refused_or_names_another_key(at: int, change: int) -> None:
    data = bytearray(certificate(OWN))
    data[at] ^= change
    try:
        other = read(bytes(data)).account
    except ProtocolError:
        return
    is_in_signature = at >= CERTIFICATE_BYTES - 64
    assert is_in_signature or other != KEY.public


def test_a_certified_certificate_changed_at_any_byte_is_refused() -> None:
    """All but the node key's own signature at its end, which is TLS's to check."""
    data = certificate(CERTIFIED)
    for at in range(len(data) - 64):
        for change in (1, 0x80, 0xFF):
            changed = data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]
            with pytest.raises(ProtocolError, match=r"FF-NET-(002|10[01])"):
                read(changed)


@pytest.mark.parametrize("own", [OWN, CERTIFIED])
def test_a_certificate_cut_at_any_byte_or_longer_is_refused(own: Credential) -> None:
    data = certificate(own)
    for end in range(len(data)):
        with pytest.raises(ProtocolError, match="FF-NET-002"):
            read(data[:end])
    with pytest.raises(ProtocolError, match="FF-NET-002"):
        read(data + b"\0")


def test_an_accounts_word_for_one_node_key_does_not_serve_another() -> None:
    """The thief's own node key and signature around somebody's certificate."""
    thief = local_key(1, "thief")
    stolen = certificate(CERTIFIED).replace(NODE.public, thief.public, 1)  # the first is the TLS key
    assert stolen != certificate(CERTIFIED)
    with pytest.raises(ProtocolError, match="FF-NET-002"):
        read(stolen)
    with pytest.raises(ProtocolError, match="FF-NET-100"):
        Credential(thief, CERTIFIED.certificate)


@settings(max_examples=40)
@given(st.binary(max_size=400))
def test_other_bytes_are_no_certificate(data: bytes) -> None:
    for each in (data, certificate(OWN) + data[:3] + b"\0", certificate(OWN)[: len(data)]):
        if each != certificate(OWN):
            with pytest.raises(ProtocolError, match="FF-NET-002"):
                read(each)

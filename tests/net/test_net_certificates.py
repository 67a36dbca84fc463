"""An account's word for a node key: what is one, and what is not."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import NS_NODE_KEY, NS_TICKET, local_key
from farflung.core.errors import ProtocolError
from farflung.core.ids import PeerId, Signature
from farflung.net.certificates import (
    FOREVER,
    Credential,
    Identity,
    NodeCertificate,
    NodeKey,
    bare,
    certify,
    check_certificate,
    credential_of,
    read_certificate,
)

ACCOUNT, NODE, OTHER = (local_key(8, name) for name in ("account", "node", "other"))
GOOD = certify(ACCOUNT, NODE.public, 3, begins=1_700_000_000, expires=1_800_000_000)


@settings(max_examples=50)
@given(epoch=st.integers(1, limits.EPOCHS - 1), begins=st.integers(0, FOREVER - 1), length=st.integers(1, FOREVER))
def test_a_certificate_comes_back_as_the_identity_that_it_certifies(epoch: int, begins: int, length: int) -> None:
    expires = min(begins + length, FOREVER)
    made = certify(ACCOUNT, NODE.public, epoch, begins=begins, expires=expires)
    data = encode(made)
    assert 0x80 <= len(data) <= limits.NODE_CERTIFICATE_BYTES
    assert read_certificate(data) == made
    assert check_certificate(made) == Identity(ACCOUNT.public, NODE.public, epoch, begins, expires)


def test_a_certificate_changed_at_any_byte_is_refused() -> None:
    data = encode(GOOD)
    for at in range(len(data)):
        for change in range(1, 256, 17):
            with pytest.raises(ProtocolError):
                check_certificate(read_certificate(data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]))


def test_a_certificate_cut_at_any_byte_is_refused() -> None:
    data = encode(GOOD)
    for end in range(len(data)):
        with pytest.raises(ProtocolError, match="FF-CORE-02"):
            read_certificate(data[:end])
    with pytest.raises(ProtocolError, match="FF-CORE-02"):
        read_certificate(data + b"\0")


def test_values_that_make_no_sense_are_refused_whoever_signed_them(subtests: pytest.Subtests) -> None:
    for fields in [
        {"epoch": 0},
        {"epoch": -1},
        {"epoch": limits.EPOCHS},
        {"begins": -1},
        {"begins": 1_800_000_000},
        {"expires": 0},
        {"expires": FOREVER + 1},
        {"node": ACCOUNT.public},
        {"node": PeerId(bytes(31))},
        {"account": PeerId(b"")},
    ]:
        with subtests.test(fields=fields):
            key = msgspec.structs.replace(GOOD.key, **fields)
            with pytest.raises(ProtocolError, match="FF-NET-100"):
                check_certificate(NodeCertificate(key, ACCOUNT.sign(NS_NODE_KEY, encode(key))))


@pytest.mark.parametrize(
    "signature",
    [
        NODE.sign(NS_NODE_KEY, encode(GOOD.key)),  # nobody certifies itself
        OTHER.sign(NS_NODE_KEY, encode(GOOD.key)),
        ACCOUNT.sign(NS_TICKET, encode(GOOD.key)),
        Signature(bytes(64)),
        Signature(b""),
    ],
)
def test_only_the_account_itself_certifies_and_only_for_this_use(signature: Signature) -> None:
    with pytest.raises(ProtocolError, match="FF-NET-101"):
        check_certificate(NodeCertificate(GOOD.key, signature))


def test_a_certificate_for_another_account_is_not_signed_by_it() -> None:
    key = NodeKey(OTHER.public, NODE.public, 3, 0, FOREVER)
    with pytest.raises(ProtocolError, match="FF-NET-101"):
        check_certificate(NodeCertificate(key, ACCOUNT.sign(NS_NODE_KEY, encode(key))))


def test_a_credential_is_a_key_with_the_certificate_for_it_or_an_account_of_its_own() -> None:
    assert credential_of(NODE) == Credential(NODE)
    assert Credential(NODE).identity == bare(NODE.public)
    assert Credential(NODE, GOOD).account == ACCOUNT.public
    assert Credential(NODE, GOOD).identity.epoch == 3
    with pytest.raises(ProtocolError, match="FF-NET-100"):
        Credential(OTHER, GOOD)
    with pytest.raises(ProtocolError, match="FF-NET-101"):
        Credential(NODE, NodeCertificate(GOOD.key, Signature(bytes(64))))

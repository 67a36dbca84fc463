"""The job's key reaches the holder of one lease and nobody else, whoever carries it."""

from __future__ import annotations

import pytest

from farflung.core.crypto import NS_LEASE_KEY, NS_OFFER, digest, local_key
from farflung.core.errors import VerificationError
from farflung.core.ids import Hash, Signature
from farflung.peers.protocol.job_key import (
    KEY_BYTES,
    WRAPPED_BYTES,
    LeaseKey,
    is_lease_key_signed,
    sign_lease_key,
    wrap,
)

NODE, OTHER = local_key(3, "node"), local_key(3, "other")
JOB, OTHER_JOB = digest("test/job"), digest("test/another")
KEY = bytes(range(KEY_BYTES))


def refused(lease: LeaseKey, job: Hash, wrapped: bytes) -> str:
    with pytest.raises(VerificationError) as raised:
        lease.unwrap(job, wrapped)
    return raised.value.code


def test_the_holder_of_the_lease_opens_the_key() -> None:
    lease = LeaseKey()
    wrapped = wrap(lease.public, JOB, KEY)
    assert len(wrapped) == WRAPPED_BYTES
    assert KEY not in wrapped
    assert lease.unwrap(JOB, wrapped) == KEY


def test_no_two_wraps_are_the_same_and_no_two_leases_have_one_key() -> None:
    lease = LeaseKey()
    first, second = wrap(lease.public, JOB, KEY), wrap(lease.public, JOB, KEY)
    assert first != second
    assert first[:KEY_BYTES] != second[:KEY_BYTES]  # the encapsulated key
    assert lease.unwrap(JOB, first) == lease.unwrap(JOB, second) == KEY
    assert LeaseKey().public != lease.public


def test_another_lease_cannot_open_it_though_it_is_of_the_same_node() -> None:
    wrapped = wrap(LeaseKey().public, JOB, KEY)
    assert refused(LeaseKey(), JOB, wrapped) == "FF-APP-082"


def test_a_key_wrapped_for_one_job_is_not_another_jobs() -> None:
    lease = LeaseKey()
    assert refused(lease, OTHER_JOB, wrap(lease.public, JOB, KEY)) == "FF-APP-082"


def test_a_flipped_bit_anywhere_is_noticed(subtests: pytest.Subtests) -> None:
    for place in range(WRAPPED_BYTES):
        with subtests.test(place=place):
            lease = LeaseKey()
            wrapped = wrap(lease.public, JOB, KEY)
            for bit in range(8):
                bad = wrapped[:place] + bytes([wrapped[place] ^ (1 << bit)]) + wrapped[place + 1 :]
                assert refused(lease, JOB, bad) == "FF-APP-082"


def test_the_one_bit_that_the_curve_ignores_changes_no_key() -> None:
    """The encapsulated key is part of what the shared secret is derived from."""
    lease = LeaseKey()
    wrapped = bytearray(wrap(lease.public, JOB, KEY))
    wrapped[KEY_BYTES - 1] ^= 0x80
    assert refused(lease, JOB, bytes(wrapped)) == "FF-APP-082"


@pytest.mark.parametrize("size", [0, 1, KEY_BYTES, WRAPPED_BYTES - 1, WRAPPED_BYTES, WRAPPED_BYTES + 1, 10**5])
def test_garbage_of_any_length_is_refused(size: int) -> None:
    assert refused(LeaseKey(), JOB, bytes(size)) == "FF-APP-082"
    assert refused(LeaseKey(), JOB, b"\xff" * size) == "FF-APP-082"


@pytest.mark.parametrize("size", [0, KEY_BYTES - 1, KEY_BYTES + 1, 16])
def test_a_key_of_another_length_is_refused_though_it_is_well_wrapped(size: int) -> None:
    lease = LeaseKey()
    assert refused(lease, JOB, wrap(lease.public, JOB, bytes(size))) == "FF-APP-082"


def test_a_cut_or_extended_wrap_is_refused() -> None:
    lease = LeaseKey()
    wrapped = wrap(lease.public, JOB, KEY)
    for bad in (wrapped[:-1], wrapped + b"\0", wrapped[1:], wrapped[::-1]):
        assert refused(lease, JOB, bad) == "FF-APP-082"


def test_a_lease_key_is_its_nodes_for_its_job_alone() -> None:
    lease = LeaseKey().public
    signature = sign_lease_key(NODE, JOB, lease)
    assert is_lease_key_signed(NODE.public, signature, JOB, lease)
    assert not is_lease_key_signed(OTHER.public, signature, JOB, lease)
    assert not is_lease_key_signed(NODE.public, signature, OTHER_JOB, lease)
    assert not is_lease_key_signed(NODE.public, signature, JOB, LeaseKey().public)
    assert not is_lease_key_signed(NODE.public, Signature(bytes(64)), JOB, lease)
    assert not is_lease_key_signed(NODE.public, Signature(b""), JOB, lease)
    assert not is_lease_key_signed(NODE.public, NODE.sign(NS_OFFER, JOB, lease), JOB, lease)


@pytest.mark.parametrize("lease_key", [b"", bytes(31), bytes(33)])
def test_a_lease_key_of_another_length_is_none_though_it_is_signed(lease_key: bytes) -> None:
    signature = NODE.sign(NS_LEASE_KEY, JOB, lease_key)
    assert not is_lease_key_signed(NODE.public, signature, JOB, lease_key)


def test_a_lease_key_that_is_no_point_of_use_gives_no_wrap_that_anybody_else_opens() -> None:
    """All zeros is signed by its node and of the right length: wrapping must not fall back to a known secret."""
    for point in (bytes(KEY_BYTES), b"\x01" + bytes(KEY_BYTES - 1)):
        with pytest.raises(VerificationError, match="FF-APP-063"):
            wrap(point, JOB, KEY)

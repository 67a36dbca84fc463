"""Hashes, keys and proofs: no byte string serves twice, and nothing but the true leaf proves."""

from __future__ import annotations

import pytest
from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import crypto, limits, merkle
from farflung.core.crypto import SigningKey, check_signed, derive, digest, is_signed, local_key
from farflung.core.errors import VerificationError
from farflung.core.ids import PeerId

FEW = settings(max_examples=40)
KEY = local_key(1, "test")
PARTS = st.lists(st.binary(max_size=8), max_size=4)


def test_namespaces_are_all_different_and_versioned() -> None:
    names = [value for name, value in vars(crypto).items() if name.startswith("NS_")]
    assert len(names) == len(set(names)) > 20
    assert all(name.startswith("farflung/") and name.rsplit("/", 1)[1].isdigit() for name in names)
    assert not any("\0" in name for name in names)


@given(left=PARTS, right=PARTS)
@FEW
def test_no_two_lists_of_parts_share_a_digest(left: list[bytes], right: list[bytes]) -> None:
    assert (digest("farflung/a/1", *left) == digest("farflung/a/1", *right)) == (left == right)
    assert digest("farflung/a/1", *left) != digest("farflung/b/1", *left)
    assert derive("farflung/a/1", bytes(32), *left) != digest("farflung/a/1", *left)


@pytest.mark.parametrize("size", [0, 1, crypto.JOINED_BYTES - 64, crypto.JOINED_BYTES, crypto.JOINED_BYTES + 1])
def test_a_digest_is_that_of_its_parts_in_a_row_however_long_they_are(size: int) -> None:
    part = bytes(size)
    whole = b"farflung/a/1\0" + size.to_bytes(8, "little") + part + (1).to_bytes(8, "little") + b"z"
    assert digest("farflung/a/1", memoryview(part), b"z") == blake3(whole).digest()
    assert crypto.digests("farflung/a/1", [part, b"z"]) == [digest("farflung/a/1", p) for p in (part, b"z")]


def test_moving_a_byte_between_namespace_and_parts_changes_the_digest() -> None:
    assert digest("a", b"b") != digest("ab", b"")
    assert digest("a", b"bc") != digest("a", b"b", b"c")
    assert digest("a", b"") != digest("a")
    assert derive("a", bytes(32), b"x", length=64)[:32] == derive("a", bytes(32), b"x")


@given(parts=PARTS, bit=st.integers(0, 511))
@FEW
def test_a_signature_holds_for_its_key_namespace_and_parts_only(parts: list[bytes], bit: int) -> None:
    signature = KEY.sign("farflung/a/1", *parts)
    assert is_signed(KEY.public, signature, "farflung/a/1", *parts)
    assert not is_signed(KEY.public, signature, "farflung/b/1", *parts)
    assert not is_signed(KEY.public, signature, "farflung/a/1", *parts, b"")
    assert not is_signed(local_key(2, "test").public, signature, "farflung/a/1", *parts)
    flipped = bytearray(signature)
    flipped[bit // 8] ^= 1 << bit % 8
    assert not is_signed(KEY.public, bytes(flipped), "farflung/a/1", *parts)


@given(seed=st.binary(min_size=32, max_size=32), message=st.binary(max_size=64))
@FEW
def test_zebra_and_openssl_agree_on_ordinary_signatures(seed: bytes, message: bytes) -> None:
    key = SigningKey(seed)
    signature = key.sign("farflung/a/1", message)
    Ed25519PublicKey.from_public_bytes(key.public).verify(signature, digest("farflung/a/1", message))
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(key.public).verify(signature, digest("farflung/b/1", message))
    assert is_signed(key.public, signature, "farflung/a/1", message)


# Points of small order, two of them in encodings that RFC 8032 forbids and ZIP-215 accepts (Zcash ZIP-215).
SMALL_ORDER = (
    bytes([1]) + bytes(31),  # the neutral element
    bytes(32),  # order 4
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),  # order 2
    bytes.fromhex("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),  # neutral, not minimal
    # neutral, sign bit set
    bytes.fromhex("0100000000000000000000000000000000000000000000000000000000000080"),
)


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_edge_cases_are_judged_by_zip_215(point: bytes) -> None:
    # R = neutral, s = 0: [8][s]B = [8]R + [8][k]A for every A of small order.
    signature = SMALL_ORDER[0] + bytes(32)
    assert is_signed(PeerId(point), signature, "farflung/a/1", b"anything")


def test_a_scalar_that_is_not_reduced_is_refused() -> None:
    order = 2**252 + 27742317777372353535851937790883648493
    signature = bytearray(KEY.sign("farflung/a/1", b"m"))
    s = int.from_bytes(signature[32:], "little") + order
    signature[32:] = s.to_bytes(32, "little")
    assert not is_signed(KEY.public, bytes(signature), "farflung/a/1", b"m")


@pytest.mark.parametrize(("key", "signature"), [(b"", b""), (bytes(31), bytes(64)), (b"\xff" * 32, b"\xff" * 64)])
def test_malformed_keys_and_signatures_are_false_and_not_an_exception(key: bytes, signature: bytes) -> None:
    assert not is_signed(key, signature, "farflung/a/1", b"m")
    with pytest.raises(VerificationError) as error:
        check_signed(key, signature, "farflung/a/1", b"m")
    assert error.value.code == "FF-CORE-030"


def test_check_signed_lets_a_good_signature_pass() -> None:
    check_signed(KEY.public, KEY.sign("farflung/a/1", b"m"), "farflung/a/1", b"m")


def test_a_key_never_shows_its_secret() -> None:
    seed = bytes(range(32))
    key = SigningKey(seed)
    for shown in (repr(key), str(key), f"{key}", f"{[key]}"):
        assert seed.hex() not in shown
        assert seed.hex()[:8] not in shown
        assert repr(seed)[2:10] not in shown
    with pytest.raises(ValueError, match="32 bytes"):
        SigningKey(seed[:31])


def test_secrets_and_local_keys_depend_on_all_their_inputs() -> None:
    assert KEY.secret("farflung/a/1", b"1") == KEY.secret("farflung/a/1", b"1")
    seen = {KEY.secret("farflung/a/1", b"1"), KEY.secret("farflung/a/1", b"2"), KEY.secret("farflung/b/1", b"1")}
    seen |= {local_key(2, "test").secret("farflung/a/1", b"1")}
    assert len(seen) == 4
    keys = {local_key(s, r, i).public for s in (0, 1) for r in ("a", "b") for i in (0, 1)}
    assert len(keys) == 8
    assert local_key(1, "test").public == KEY.public


LEAVES = st.lists(st.binary(max_size=6), min_size=1, max_size=19)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=200), st.lists(st.binary(min_size=32, max_size=32)))
def test_leaves_and_nodes_are_digests_of_their_namespaces(index: int, data: bytes, row: list[bytes]) -> None:
    number = index.to_bytes(8, "little")
    assert merkle.leaf_hash(index, data) == digest(crypto.NS_LEAF, number, data)
    assert merkle.leaf_hash(index, memoryview(data)) == digest(crypto.NS_LEAF, number, data)
    pairs = list(zip(row[::2], row[1::2], strict=False))
    made = merkle.parents([left + right for left, right in pairs])
    assert made == [digest(crypto.NS_NODE, left, right) for left, right in pairs]
    assert merkle.parents(row) == row


@given(leaves=LEAVES)
@FEW
def test_every_leaf_proves_and_nothing_else_does(leaves: list[bytes]) -> None:
    root, count = merkle.root(leaves), len(leaves)
    for index, leaf in enumerate(leaves):
        path = merkle.prove(leaves, index)
        assert merkle.holds(root, count, index, leaf, path)
        assert not merkle.holds(root, count, index, leaf + b"x", path)
        assert not any(merkle.holds(root, count, j, leaf, path) for j in range(-1, count + 1) if j != index)
        assert not any(merkle.holds(root, c, index, leaf, path) for c in range(count + 3) if c != count)
        assert not merkle.holds(root, count, index, leaf, (*path, bytes(32)))
        assert not merkle.holds(digest("other"), count, index, leaf, path)
        for k in range(len(path)):
            assert not merkle.holds(root, count, index, leaf, path[:k] + path[k + 1 :])
            swapped = (*path[:k], digest("other", path[k]), *path[k + 1 :])
            assert not merkle.holds(root, count, index, leaf, swapped)


@given(leaves=LEAVES)
@FEW
def test_roots_differ_when_count_order_or_a_leaf_differs(leaves: list[bytes]) -> None:
    root = merkle.root(leaves)
    assert merkle.root([*leaves, b""]) != root
    assert merkle.root(leaves[:-1]) != root
    assert merkle.root([*leaves[:-1], leaves[-1] + b"x"]) != root
    if leaves != leaves[::-1]:
        assert merkle.root(leaves[::-1]) != root
    hashes = [merkle.leaf_hash(i, leaf) for i, leaf in enumerate(leaves)]
    assert merkle.root_of_hashes(hashes) == root


def test_an_inner_node_is_no_leaf_and_an_empty_tree_has_its_own_root() -> None:
    left, right = merkle.leaf_hash(0, b"a"), merkle.leaf_hash(1, b"b")
    assert merkle.root([left + right]) != merkle.root([b"a", b"b"])
    assert merkle.root([]) != merkle.root([b""])
    assert not merkle.holds(merkle.root([]), 0, 0, b"", ())


def test_an_endless_path_is_refused_before_it_is_hashed() -> None:
    path = (bytes(32),) * (limits.PROOF_DEPTH + 1)
    assert not merkle.holds(bytes(32), 1 << 60, 0, b"", path)

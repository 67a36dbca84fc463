"""One rule for signatures, the edges included, and no key that anybody can sign for.

The vectors are those of Chalkias, Garillot and Nikolaenko, "Taming the many EdDSAs" (SSR 2020): their programme's table
as of its last version, with ZIP-215's verdict for each.
"""

from __future__ import annotations

import itertools
import random

import ed25519_zebra
import pytest
from core_edwards import BASE, L, P, Point, accepts, add, decoded, encoded, number_of, times, torsion
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.crypto import digest, is_signed, is_small_order, local_key

SMALL = "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa"
SMALL_NEGATED = "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"
MIXED = "f7badec5b8abeaf699583992219b7b223f1df3fbbea919844e3f7c554a43dd43"
MIXED_TOO = "cdb267ce40c5cd45306fa5d2f29731459387dbf9eb933b7bd5aed9a765b88d4d"
WHOLE = "442aad9f089ad9e14647b1ef9099a1ff4798d78589e66f28eca69c11f582a623"
BEYOND_P = "ec" + "ff" * 31
FIRST = "9bedc267423725d473888631ebf45988bad3db83851ee85c85e241a07d148b41"
SECOND = "9bd9f44f4dcc75bd531b56b2cd280b0bb38fc1cd6d1230e14861d861de092e79"
THIRD = "e47d62c63f830dc7a6851a0b1f33ae4bb2f507fb6cffec4011eaccd55b53f56c"
FOURTH = "85e241a07d148b41e47d62c63f830dc7a6851a0b1f33ae4bb2f507fb6cffec40"
S_OF_MIXED = "a5bb704786be79fc476f91d3f3f89b03984d8068dcf1bb7dfc6637b45450ac04"
VECTORS = [  # message, key, R, S, verdict
    ("2a66241a42a9ee12994d8068dcf1bb7dfc6637b45450acd43711f637fa5080fc", SMALL, SMALL_NEGATED, "00" * 32, True),
    ("8c93255d71dcab10e8f379c26200f3c7bd5f09d9bc3068d3ef4edeb4853022b6", SMALL, SMALL_NEGATED, "00" * 32, True),
    (FIRST, SMALL, MIXED, S_OF_MIXED, True),
    (SECOND, SMALL, MIXED, S_OF_MIXED, True),
    (FIRST, MIXED, SMALL, "182ef1a5b928da07fec769cc8a12db6bcf70dab3f3227fa315e9d5e3e01a3405", True),
    (
        "aebf3f2601a0c8c5d39cc7d8911642f740b78168218da8471772b35f9d35b9ab",
        MIXED,
        SMALL,
        "8c4bd45aecaca5b24fb97bc10ac27ac8751a7dfe1baff8b953ec9f5833ca260e",
        True,
    ),
    (
        SECOND,
        MIXED_TOO,
        "9046a64750444938de19f227bb80485e92b83fdb4b6506c160484c016cc1852f",
        "87909e14428a7a1d62e9f22f3d3ad7802db02eb2e688b6c52fcd6648a98bd009",
        True,
    ),
    (
        THIRD,
        MIXED_TOO,
        "160a1cb0dc9c0258cd0a7d23e94d8fa878bcb1925f2c64246b2dee1796bed512",
        "5ec6bc982a269b723e0668e540911a9a6a58921d6925e434ab10aa7940551a09",
        True,
    ),
    (
        THIRD,
        MIXED_TOO,
        "21122a84e0b5fca4052f5b1235c80a537878b38f3142356b2c2384ebad4668b7",
        "e40bc836dac0f71076f9abe3a53f9c03c1ceeeddb658d0030494ace586687405",
        True,
    ),
    (
        FOURTH,
        WHOLE,
        "e96f66be976d82e60150baecff9906684aebb1ef181f67a7189ac78ea23b6c0e",
        "547f7690a0e2ddcd04d87dbc3490dc19b3b3052f7ff0538cb68afb369ba3a514",
        False,  # S is L or more
    ),
    (
        FOURTH,
        WHOLE,
        "8ce5b96c8f26d0ab6c47958c9e68b937104cd36e13c33566acd2fe8d38aa1942",
        "7e71f98a473474f2f13f06f97c20d58cc3f54b8bd0d272f42b695dd7e89a8c22",
        False,  # far above L
    ),
    # k is taken over the bytes of R as they came: the first of these two took it over R made canonical
    (FIRST, MIXED, BEYOND_P, "03be9678ac102edcd92b0210bb34d7428d12ffc5df5f37e359941266a4e35f0f", False),
    (FIRST, MIXED, BEYOND_P, "ca8c5b64cd208982aa38d4936621a4775aa233aa0505711d8fdcfdaa943d4908", True),
    (
        "e96b7021eb39c1a163b6da4e3093dcd3f21387da4cc4572be588fafae23c155b",
        BEYOND_P,
        "a9d55260f765261eb9b84e106f665e00b867287a761990d7135963ee0a7d59dc",
        S_OF_MIXED,
        True,
    ),
    (
        "39a591f5321bbe07fd5a23dc2f39d025d74526615746727ceefd6e82ae65c06f",
        BEYOND_P,
        "a9d55260f765261eb9b84e106f665e00b867287a761990d7135963ee0a7d59dc",
        S_OF_MIXED,
        True,
    ),
]


def judged(public: bytes, signature: bytes, message: bytes) -> bool:
    """The library's verdict, as core.crypto asks for it."""
    try:
        return bool(ed25519_zebra.ed_verify(signature, message, public))
    except ValueError:
        return False


def encodings(points: list[Point]) -> list[bytes]:
    """Every encoding that ZIP-215 reads as one of `points`."""
    tried = itertools.product(points, (False, True), (False, True))
    made = {encoded(point, over=over, flip=flip) for point, over, flip in tried if not over or point[1] + P < 2**255}
    return sorted(data for data in made if decoded(data) in points)


def test_published_edges_are_judged_as_the_rule_says(subtests):
    for message, key, r, s, verdict in VECTORS:
        with subtests.test(message=message, key=key, r=r, s=s, verdict=verdict):
            public, signature, said = bytes.fromhex(key), bytes.fromhex(r + s), bytes.fromhex(message)
            assert judged(public, signature, said) == accepts(public, signature, said) == verdict


def test_all_pairs_of_small_encodings_are_accepted_with_s_zero():
    """The 196 pairs of ZIP-215's own test: 14 encodings of 8 points, as the key and as R."""
    small = encodings(torsion())
    assert len(small) == 14
    for public, r in itertools.product(small, small):
        assert judged(public, r + bytes(32), b"any message")
        assert is_signed(public, r + bytes(32), "any namespace", b"any message")
    assert accepts(small[3], small[8] + bytes(32), b"any message")


@given(st.integers(0, 7), st.integers(0, 7), st.integers(0, 2**32), st.binary(max_size=8))
@settings(max_examples=12)
def test_torsion_in_a_key_or_in_r_changes_no_verdict(of_key: int, of_r: int, seed: int, message: bytes):
    points, draw = torsion(), random.Random(seed)
    assert BASE is not None
    secret, nonce = draw.randrange(1, L), draw.randrange(1, L)
    public = encoded(add(times(secret, BASE), points[of_key]))
    r = encoded(add(times(nonce, BASE), points[of_r]))
    said = digest("namespace", message)
    s = (nonce + number_of(r + public + said) * secret) % L
    good, moved = r + s.to_bytes(32, "little"), r + (s + 1).to_bytes(32, "little")
    assert is_signed(public, good, "namespace", message)
    assert not is_signed(public, moved, "namespace", message)
    assert not is_signed(public, r + (s + L).to_bytes(32, "little"), "namespace", message)
    assert accepts(public, good, said)
    assert not is_small_order(public)


@pytest.mark.parametrize("s", [L - 1, L, L + 1, 2**255 - 1, 2**256 - 1])
def test_s_is_below_l(s: int):
    """Under a key of small order every S would do, were it not for its range: the range alone decides."""
    public, message, number = encoded((0, 1)), b"m", s.to_bytes(32, "little")
    assert BASE is not None
    r = encoded(times(s % L, BASE))
    assert judged(public, r + number, message) == accepts(public, r + number, message) == (s < L)


def test_keys_of_small_order_are_known_in_every_encoding():
    points = torsion()
    assert all(times(8, point) == (0, 1) for point in points)
    assert len(set(points)) == 8
    assert all(is_small_order(data) for data in encodings(points))
    assert is_small_order(bytes.fromhex(SMALL))
    assert is_small_order(bytes(32)), "what stands for nobody"


@pytest.mark.parametrize("key", [MIXED, MIXED_TOO, WHOLE])
def test_keys_with_a_large_part_are_not_of_small_order(key: str):
    assert not is_small_order(bytes.fromhex(key))


@given(st.binary(min_size=32, max_size=32))
def test_the_order_is_that_of_the_point(data: bytes):
    point = decoded(data)
    if point is not None:
        assert is_small_order(data) == (times(8, point) == (0, 1))


def test_no_key_that_was_made_has_a_small_order():
    assert not any(is_small_order(local_key(seed, "anybody").public) for seed in range(50))
    assert not is_small_order(b"")
    assert not is_small_order(bytes(31))

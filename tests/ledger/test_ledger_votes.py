"""Votes and certificates: more than two thirds of the seats, each once, for one vote, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.core.crypto import NS_SPEC, digest, local_key
from farflung.core.ids import Signature
from farflung.ledger import votes as votes_module
from farflung.ledger.votes import (
    QuorumCertificate,
    SignedVote,
    Vote,
    VoteKind,
    certificate_of,
    faults,
    has_quorum,
    is_quorum,
    is_vote_signed,
    seats_of,
    sign_vote,
)

KEYS = tuple(local_key(5, "seat", index) for index in range(10))
MEMBERS = tuple(key.public for key in KEYS)
CHAIN, BLOCK, OTHER = (digest(NS_SPEC, name) for name in (b"chain", b"block", b"other"))
VOTE = Vote(CHAIN, 3, 7, VoteKind.FINALIZE, BLOCK)


def signed(seats: tuple[int, ...], vote: Vote = VOTE) -> list[SignedVote]:
    return [sign_vote(KEYS[seat], seat, vote) for seat in seats]


@pytest.mark.parametrize(
    ("seats", "needed", "bad"),
    [(1, 1, 0), (2, 2, 0), (3, 3, 0), (4, 3, 1), (6, 5, 1), (7, 5, 2), (10, 7, 3), (100, 67, 33)],
)
def test_a_quorum_is_more_than_two_thirds(seats: int, needed: int, bad: int):
    assert is_quorum(needed, seats)
    assert not is_quorum(needed - 1, seats)
    assert faults(seats) == bad
    assert 2 * needed - seats > bad, "two quorums must share an honest seat"


@given(st.sets(st.integers(0, 9)), st.integers(1, 10))
def test_what_a_quorum_signed_is_certified_and_nothing_less(chosen: set[int], seats: int):
    seated = tuple(sorted(seat for seat in chosen if seat < seats))
    if not seated:
        return
    certificate = certificate_of(reversed(signed(seated)), seats)
    assert seats_of(certificate) == list(seated)
    assert has_quorum(certificate, VOTE, MEMBERS[:seats]) == (3 * len(seated) > 2 * seats)


@pytest.mark.parametrize(
    "change",
    [
        {"chain": OTHER},
        {"epoch": 4},
        {"view": 8},
        {"view": 0},
        {"kind": VoteKind.NOTARIZE},
        {"kind": VoteKind.NULLIFY},
        {"block": OTHER},
    ],
)
def test_a_certificate_is_for_one_vote_only(change: dict[str, object]):
    certificate = certificate_of(signed((0, 1, 2)), 4)
    other = replace(VOTE, **change)
    assert not has_quorum(certificate, other, MEMBERS[:4])
    posed = replace(certificate, kind=other.kind, view=other.view)
    assert not has_quorum(posed, other, MEMBERS[:4])


GOOD = certificate_of(signed((0, 1, 2)), 4)


def test_no_other_form_is_a_certificate(subtests):
    for certificate in [
        replace(GOOD, seats=b"\x0f"),
        replace(GOOD, seats=b"\x03"),
        replace(GOOD, seats=b"\x13"),
        replace(GOOD, seats=b"\x07\x00"),
        replace(GOOD, seats=b""),
        replace(GOOD, seats=b"\x0b"),
        replace(GOOD, signatures=GOOD.signatures[:2]),
        replace(GOOD, signatures=(*GOOD.signatures, GOOD.signatures[0])),
        replace(GOOD, signatures=()),
        replace(GOOD, signatures=GOOD.signatures[::-1]),
        replace(GOOD, signatures=(*GOOD.signatures[:2], Signature(bytes(64)))),
        replace(GOOD, signatures=(*GOOD.signatures[:2], Signature(bytes(63)))),
        replace(GOOD, view=0),
        certificate_of(signed((0, 1)), 4),
        QuorumCertificate(VoteKind.FINALIZE, 7, b"\x10", (GOOD.signatures[0],) * 3),
    ]:
        with subtests.test(certificate=certificate):
            assert has_quorum(GOOD, VOTE, MEMBERS[:4])
            assert not has_quorum(certificate, VOTE, MEMBERS[:4])


def test_form_and_number_are_checked_before_any_signature(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(votes_module, "is_signed", lambda *_: pytest.fail("a signature was judged"))
    assert not has_quorum(replace(GOOD, seats=b"\xff\xff"), VOTE, MEMBERS[:4])
    assert not has_quorum(certificate_of(signed((0, 1)), 4), VOTE, MEMBERS[:4])
    assert not has_quorum(replace(GOOD, signatures=(b"x",) * 3), VOTE, MEMBERS[:4])


def test_a_vote_is_its_seats_own():
    (vote,) = signed((2,))
    assert is_vote_signed(vote, MEMBERS)
    for other in (replace(vote, seat=1), replace(vote, seat=-1), replace(vote, seat=10)):
        assert not is_vote_signed(other, MEMBERS)
    assert not is_vote_signed(replace(vote, vote=replace(VOTE, view=8)), MEMBERS)
    assert not is_vote_signed(vote, MEMBERS[:2])


def test_no_view_is_before_the_first_and_a_certificate_says_what_it_is_of():
    early = replace(VOTE, view=0)
    assert not has_quorum(certificate_of(signed((0, 1, 2), early), 4), early, MEMBERS[:4])
    for other in (replace(GOOD, kind=VoteKind.NOTARIZE), replace(GOOD, kind=VoteKind.NULLIFY), replace(GOOD, view=8)):
        assert not has_quorum(other, VOTE, MEMBERS[:4])

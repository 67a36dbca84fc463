"""Commitments: who signed what, for which round of which job; and that nothing but the committed payload opens one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.crypto import SigningKey, digest
from farflung.core.ids import Hash, PeerId
from farflung.train.run_log import Commitment, Contribution
from farflung.verify.commitment_check import commit, is_commitment, is_root_signed, nonce_of, opens, sign_root

KEY, OTHER = SigningKey(b"\x01" * 32), SigningKey(b"\x02" * 32)
JOB, OTHER_JOB = digest("test/1", b"job"), digest("test/1", b"other")
PAYLOAD, TRACE = digest("test/1", b"payload"), digest("test/1", b"trace")


def revealed(
    *,
    peer: PeerId = KEY.public,
    weight: int = 960,
    payload: Hash = PAYLOAD,
    nonce: Hash | None = None,
    trace: Hash = TRACE,
) -> Contribution:
    nonce = nonce or nonce_of(KEY, JOB, 3)
    return Contribution(peer, weight, payload, digest("test/1", b"object"), nonce, trace, "none")


def test_the_committed_payload_opens_its_commitment() -> None:
    commitment = commit(KEY, JOB, 3, PAYLOAD, 960, TRACE)
    assert is_commitment(commitment, JOB, 3)
    assert opens(revealed(), commitment, JOB, 3)


@pytest.mark.parametrize(
    "changed",
    [
        revealed(weight=961),
        revealed(payload=digest("test/1", b"another")),
        revealed(nonce=nonce_of(KEY, JOB, 4)),
        revealed(peer=OTHER.public),
        revealed(trace=digest("test/1", b"another")),
    ],
)
def test_nothing_else_opens_it(changed: Contribution) -> None:
    assert not opens(changed, commit(KEY, JOB, 3, PAYLOAD, 960, TRACE), JOB, 3)


@given(st.integers(0, 100), st.integers(0, 100))
@settings(max_examples=30)
def test_a_commitment_holds_for_its_own_round_and_job_only(round: int, other: int) -> None:
    commitment = commit(KEY, JOB, round, PAYLOAD, 960, TRACE)
    assert is_commitment(commitment, JOB, other) == (round == other)
    assert not is_commitment(commitment, OTHER_JOB, round)


def test_a_copied_commitment_is_not_the_copiers() -> None:
    """Whoever repeats another's digest must sign it, and then cannot open it: the peer's name is inside."""
    original = commit(KEY, JOB, 3, PAYLOAD, 960, TRACE)
    stolen = Commitment(OTHER.public, original.digest, original.signature)
    assert not is_commitment(stolen, JOB, 3)
    copied = Contribution(OTHER.public, 960, PAYLOAD, PAYLOAD, nonce_of(KEY, JOB, 3), TRACE, "none")
    assert not opens(copied, Commitment(OTHER.public, original.digest, original.signature), JOB, 3)


def test_a_peer_that_crashed_commits_to_the_same_again_and_its_nonce_is_secret() -> None:
    assert commit(KEY, JOB, 3, PAYLOAD, 960, TRACE) == commit(SigningKey(b"\x01" * 32), JOB, 3, PAYLOAD, 960, TRACE)
    nonces = {nonce_of(key, job, r) for key in (KEY, OTHER) for job in (JOB, OTHER_JOB) for r in range(4)}
    assert len(nonces) == 16


def test_a_signed_root_holds_for_its_round_and_signer_only() -> None:
    root = digest("test/1", b"root")
    signature = sign_root(KEY, JOB, 3, root)
    assert is_root_signed(KEY.public, signature, JOB, 3, root)
    assert not is_root_signed(KEY.public, signature, JOB, 4, root)
    assert not is_root_signed(OTHER.public, signature, JOB, 3, root)
    assert not is_root_signed(KEY.public, signature, JOB, 3, digest("test/1", b"other root"))


def test_a_digest_that_another_has_signed_is_not_opened_by_its_maker() -> None:
    original = commit(KEY, JOB, 3, PAYLOAD, 960, TRACE)
    assert not opens(revealed(), Commitment(OTHER.public, original.digest, original.signature), JOB, 3)


@pytest.mark.parametrize(
    ("weight", "can_be"), [(1, True), (limits.WEIGHT, True), (limits.WEIGHT + 1, False), (0, False)]
)
def test_a_weight_that_cannot_be_merged_opens_no_commitment(weight: int, can_be: bool) -> None:
    assert opens(revealed(weight=weight), commit(KEY, JOB, 3, PAYLOAD, weight, TRACE), JOB, 3) == can_be


def test_a_weight_that_is_no_weight_opens_nothing_and_breaks_nothing() -> None:
    for weight in (-1, 2**64):
        assert not opens(revealed(weight=weight), commit(KEY, JOB, 3, PAYLOAD, 960, TRACE), JOB, 3)

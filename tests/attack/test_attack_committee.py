"""What strangers and traitors can do to one seat of a committee: nothing is trusted, kept or answered unbounded."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sdbft_stage import CHAIN, MEMBERS, ROOT, Stage, child, proposal, quorum, signed

from farflung.core.codec import decode, encode
from farflung.core.crypto import digest
from farflung.core.errors import ProtocolError, VersionError
from farflung.core.ids import ZERO_HASH, PeerId, Signature
from farflung.ledger.block import Block
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft import replica_messages
from farflung.ledger.sdbft.catch_up import ANSWERS, PEERS_KEPT
from farflung.ledger.sdbft.replica_inbox import PROPOSALS_AHEAD, VIEWS_AHEAD
from farflung.ledger.sdbft.replica_messages import (
    BlockProposal,
    FinalBlocks,
    Message,
    PendingTxs,
    ReplicaStatus,
    VoteMessage,
    VoteQuorum,
    read_message,
)
from farflung.ledger.sdbft.votelog_records import read_record
from farflung.ledger.transactions import SignedTx, Transfer, Tx
from farflung.ledger.votes import SignedVote, Vote, VoteKind

B = child(ROOT, maker=1)
TX = SignedTx(Tx(1, CHAIN, MEMBERS[0], 0, 0, 0, (Transfer(MEMBERS[1], 1),)), Signature(bytes(64)))
SAMPLES: list[Message] = [
    VoteMessage(signed(1, 1, VoteKind.NOTARIZE, B.id)),
    quorum(1, VoteKind.FINALIZE, B.id),
    proposal(1, B),
    ReplicaStatus(0, 1, 0, 1, ZERO_HASH),
    FinalBlocks((Block(B, (), quorum(1, VoteKind.FINALIZE, B.id).certificate),)),
    PendingTxs(()),
]


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    for read in (read_message, read_record):
        try:
            message = read(data)
        except (ProtocolError, VersionError):  # the latter: a record, behind a checksum
            continue
        assert encode(message) == data


@given(st.sampled_from(SAMPLES), st.integers(0, 1 << 16), st.integers(1, 255), st.booleans())
def test_a_message_with_a_changed_byte_moves_a_seat_nowhere(message: Message, at: int, flip: int, is_cut: bool) -> None:
    data = bytearray(encode(message))
    data[at % len(data)] ^= flip
    try:
        read = read_message(bytes(data[: at % len(data)] if is_cut else data))
    except ProtocolError:
        return
    stage = Stage()
    effects = stage.hear(read)
    assert stage.replica.view == 1
    assert not [
        effect for effect in effects if isinstance(effect, ev.LogVotesEffect | ev.FinalBlocksEffect | ev.AccuseEffect)
    ]


@given(
    st.builds(
        Vote,
        st.sampled_from([CHAIN, digest("x"), b""]),
        st.integers(-1, 2),
        st.sampled_from([-(2**63), -1, 0, 1, 2, 65, 66, 2**63, 2**64 - 1]),
        st.sampled_from(list(VoteKind)),
        st.sampled_from([B.id, ZERO_HASH, b"", bytes(33)]),
    ),
    st.sampled_from([-1, 0, 1, 3, 4, 2**40]),
    st.binary(max_size=65),
)
def test_votes_of_every_odd_form_do_no_harm(vote: Vote, seat: int, signature: bytes) -> None:
    stage = Stage()
    forged = SignedVote(vote, seat, Signature(signature))
    stage.hear(
        VoteMessage(forged), BlockProposal(B, (), forged), VoteQuorum(vote, signature[:3], (Signature(signature),) * 3)
    )
    assert (stage.replica.view, stage.replica.held()) == (1, 0)


def test_a_message_longer_than_its_limit_is_not_even_parsed() -> None:
    with pytest.raises(ProtocolError, match="FF-CORE-020"):
        read_message(bytes(replica_messages.limits.COMMITTEE_BYTES + 1))


def test_a_flood_of_votes_of_one_seat_is_kept_twice_a_view_and_kind() -> None:
    stage, source = Stage(), random.Random(3)
    for number in range(6000):
        kind = VoteKind.NOTARIZE if number % 2 else VoteKind.FINALIZE
        view = 1 + source.randrange(400)
        if number < 900 or view > VIEWS_AHEAD + 1:  # what is signed costs time to make: the rest is too far ahead
            stage.hear(VoteMessage(signed(2, view, kind, digest("flood", number.to_bytes(4, "little")))))
    assert stage.replica.held() <= 2 * 2 * (VIEWS_AHEAD + 1)


def test_a_flood_of_proposals_is_kept_once_a_view_and_not_far_ahead() -> None:
    stage = Stage()
    for view in range(1, 40):
        for mark in range(5):
            stage.hear(proposal(view, child(ROOT, view % 4, mark=mark)))
    kept = sum(len(tally.proposals) for _, tally in stage.replica._vote_tallies)
    assert kept <= PROPOSALS_AHEAD + 1
    assert stage.replica.held() <= 3 * (VIEWS_AHEAD + 1)


def test_a_flood_of_questions_is_answered_a_few_times_in_a_bound() -> None:
    stage = Stage()
    stage.hear(proposal(1, B), quorum(1, VoteKind.NOTARIZE, B.id), quorum(1, VoteKind.FINALIZE, B.id))
    effects = [e for _ in range(500) for e in stage.hear(ReplicaStatus(0, 1, 0, 1, ZERO_HASH))]
    assert sum(isinstance(effect, ev.SendBlocksEffect) for effect in effects) == ANSWERS
    stage.now += 100
    assert [e for e in stage.hear(ReplicaStatus(0, 1, 0, 1, ZERO_HASH)) if isinstance(e, ev.SendBlocksEffect)]


def test_a_flood_of_late_votes_and_of_hints_makes_no_flood_of_answers() -> None:
    stage = Stage()
    stage.hear(*(quorum(view, VoteKind.NULLIFY) for view in range(1, 6)))
    late, far = (VoteMessage(signed(2, 1, VoteKind.NULLIFY)), VoteMessage(signed(2, 999, VoteKind.NOTARIZE, B.id)))
    effects = [e for _ in range(200) for e in stage.hear(late, far, ReplicaStatus(7, 7, 7, 7, digest("x")))]
    assert sum(isinstance(effect, ev.SendEffect) for effect in effects) <= 2


def test_strangers_by_the_thousand_are_not_all_remembered() -> None:
    stage = Stage()
    for number in range(1000):
        peer = PeerId(digest("stranger", number.to_bytes(4, "little")))
        stage.tell(ev.ReplicaMessageEvent(peer, ReplicaStatus(9, 9, 9, 9, ZERO_HASH)))
        stage.tell(ev.ReplicaMessageEvent(peer, ReplicaStatus(0, 1, 0, 1, ZERO_HASH)))
        stage.tell(
            ev.ReplicaMessageEvent(peer, VoteMessage(signed(2, 1, VoteKind.NULLIFY)))
            if number < 3
            else ev.ReplicaTickEvent()
        )
    tables = (stage.replica._catch_up._asked, stage.replica._catch_up._answered, stage.replica._catch_up._told)
    assert all(len(table) <= PEERS_KEPT for table in tables)


def test_transactions_under_a_leaders_vote_that_are_not_its_blocks_do_not_stand_in_their_way() -> None:
    """Whoever passes a proposal on could pass other transactions with it: the block itself must still get in."""
    other = child(ROOT, 1)
    stage = Stage()
    stage.hear(BlockProposal(other, (TX,), proposal(1, other).signed))
    stage.hear(BlockProposal(child(ROOT, 1, mark=1), (), proposal(1, other).signed))
    assert [e for e in stage.hear(proposal(1, other)) if isinstance(e, ev.LogVotesEffect)]


def test_every_sample_reads_as_it_was_written() -> None:
    for message in SAMPLES:
        assert read_message(encode(message)) == message
        assert decode(encode(message), type(message), 1 << 20) == message
    assert {type(message) for message in SAMPLES} == set(Message.__args__)
    assert MEMBERS[1] == B.proposer

"""Each rule of docs/protocol/sdbft.md at one seat, message by message, under real signatures."""

from __future__ import annotations

import msgspec
import pytest
from sdbft_stage import (
    CHAIN,
    IDLE,
    KEYS,
    MEMBERS,
    ROOT,
    Stage,
    child,
    committee,
    proposal,
    quorum,
    signed,
    votes,
)  # fmt: skip

from farflung.core.crypto import digest
from farflung.core.ids import ZERO_HASH, Signature
from farflung.ledger.block import Block
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft.block_tree import FinalHead
from farflung.ledger.sdbft.leaders import EpochCommittee, SeatActivity
from farflung.ledger.sdbft.replica import Replica
from farflung.ledger.sdbft.replica_messages import BlockProposal, FinalBlocks, ReplicaStatus, VoteMessage, VoteQuorum
from farflung.ledger.votes import SignedVote, Vote, VoteKind, excludes

B = child(ROOT, maker=1)
N, X, F = VoteKind.NOTARIZE, VoteKind.NULLIFY, VoteKind.FINALIZE


def test_a_seat_notarizes_the_first_valid_proposal_of_the_leader_and_no_other() -> None:
    stage = Stage()
    assert votes(stage.hear(proposal(1, B))) == [(1, N)]
    assert votes(stage.hear(proposal(1, child(ROOT, 1, mark=1)))) == []


def test_a_seat_does_not_notarize_what_is_not_the_leaders_block_in_its_view(subtests: pytest.Subtests) -> None:
    for wrong in [
        BlockProposal(B, (), signed(2, 1, N, B.id)),  # not the leader
        BlockProposal(B, (), signed(1, 1, F, B.id)),  # not a NOTARIZE
        BlockProposal(B, (), signed(1, 1, N, digest("other"))),  # another block
        BlockProposal(B, (), SignedVote(Vote(CHAIN, 0, 1, N, B.id), 1, Signature(bytes(64)))),
        proposal(1, child(ROOT, 1, epoch=1)),
        proposal(1, msgspec.structs.replace(B, chain=digest("elsewhere"))),
        proposal(1, msgspec.structs.replace(B, proposer=digest("nobody"))),
        proposal(1, msgspec.structs.replace(B, txs=digest("others"))),
        proposal(1, msgspec.structs.replace(B, height=2)),
        proposal(1, msgspec.structs.replace(B, parent=digest("unknown"))),
        proposal(2, B),  # a view that was not entered
    ]:
        with subtests.test(wrong=wrong):
            assert votes(Stage().hear(wrong)) == []


def test_a_seat_does_not_notarize_an_invalid_block_nor_after_its_timer_fired() -> None:
    assert votes(Stage(is_valid=False).hear(proposal(1, B))) == []
    stage = Stage()
    assert votes(stage.fire()) == [(1, X)]
    assert votes(stage.hear(proposal(1, B))) == []


def test_a_seat_finalizes_what_a_quorum_notarized_unless_it_nullified_the_view() -> None:
    assert votes(Stage().hear(quorum(1, N, B.id))) == [(1, F)]
    stage = Stage()
    stage.fire()
    assert votes(stage.hear(quorum(1, N, B.id))) == []
    assert stage.replica.view == 2


def test_a_seat_never_nullifies_a_view_that_it_finalized() -> None:
    stage = Stage()
    stage.hear(quorum(1, N, B.id))
    assert votes(stage.fire()) == [(2, X)]


def test_a_nullified_view_opens_the_next_alone_and_a_notarized_one_from_anywhere() -> None:
    stage = Stage()
    stage.hear(quorum(2, X))
    assert stage.replica.view == 1
    stage.hear(quorum(1, X))
    assert stage.replica.view == 3
    stage.hear(quorum(9, N, B.id))
    assert stage.replica.view == 10


def test_a_link_needs_every_view_between_to_be_nullified() -> None:
    stage = Stage()
    stage.hear(proposal(1, B), quorum(1, N, B.id))
    fork = child(ROOT, 2, mark=7)  # its parent is notarized "in view 0", and view 1 is not nullified
    assert votes(stage.hear(proposal(2, fork))) == []
    assert votes(stage.hear(quorum(1, X))) == [(2, N)], "a view may be both, and then both links hold"


def test_a_closing_block_is_proposed_again_and_nothing_is_built_on_it() -> None:
    stage = Stage(closing={B.id})
    stage.hear(proposal(1, B), quorum(1, N, B.id))
    assert votes(stage.hear(proposal(2, child(B, 2)))) == []
    stage = Stage(closing={B.id})
    stage.hear(proposal(1, B), quorum(1, N, B.id))
    again = BlockProposal(B, (), signed(2, 2, N, B.id))
    assert votes(stage.hear(again)) == [(2, N)]


def test_an_ordinary_block_is_not_proposed_again() -> None:
    stage = Stage()
    stage.hear(proposal(1, B), quorum(1, N, B.id))
    assert votes(stage.hear(BlockProposal(B, (), signed(2, 2, N, B.id)))) == []


def test_a_finalized_block_is_final_with_all_before_it_and_a_closing_one_ends_the_replica() -> None:
    stage = Stage(closing={child(B, 2).id})
    second = child(B, 2)
    stage.hear(proposal(1, B), quorum(1, N, B.id), proposal(2, second), quorum(2, N, second.id))
    (final,) = [e for e in stage.hear(quorum(2, F, second.id)) if isinstance(e, ev.FinalBlocksEffect)]
    assert [block.header for block in final.blocks] == [B, second]
    assert final.blocks[-1].certificate.kind == F
    assert stage.replica.is_over
    assert votes(stage.fire()) == []
    assert votes(stage.hear(quorum(3, N, digest("x")))) == []


def test_votes_and_quorums_of_another_epoch_or_chain_count_nowhere() -> None:
    stage = Stage()
    stage.hear(quorum(1, X, epoch=1), quorum(1, N, B.id, epoch=1))
    for seat in (1, 2, 3):
        stage.hear(VoteMessage(signed(seat, 1, X, epoch=1)))
    assert stage.replica.view == 1
    assert stage.replica.held() == 0


def test_a_vote_is_logged_with_what_it_rests_on_before_it_leaves() -> None:
    stage = Stage()
    first, *rest = stage.hear(proposal(1, B))[1:]  # behind the Judge that the stage answered
    assert isinstance(first, ev.LogVotesEffect)
    assert first.records == (proposal(1, B), VoteMessage(signed(0, 1, N, B.id)))
    assert any(isinstance(effect, ev.BroadcastEffect) for effect in rest)
    effects = stage.hear(quorum(1, N, B.id))
    assert isinstance(effects[0], ev.LogVotesEffect)
    assert effects[0].records == (quorum(1, N, B.id), VoteMessage(signed(0, 1, F, B.id)))


def test_a_replica_that_was_restarted_knows_what_it_said() -> None:
    stage = Stage()
    stage.hear(proposal(1, B), quorum(1, N, B.id))
    again = Stage(records=tuple(stage.logged))
    assert again.replica.view == 2
    other = child(ROOT, 1, mark=3)
    assert votes(again.hear(proposal(1, other), quorum(1, N, B.id))) == []
    assert set(again.replica.records()) == set(stage.logged)


def test_a_leader_proposes_when_there_is_work_or_it_was_idle_and_builds_once() -> None:
    stage = Stage(seat=1)
    (build,) = [e for e in stage.tell(ev.WaitingTxsEvent(True)) if isinstance(e, ev.BuildBlockEffect)]
    assert (build.view, build.parent) == (1, ROOT)
    assert not [e for e in stage.tell(ev.WaitingTxsEvent(True)) if isinstance(e, ev.BuildBlockEffect)]
    effects = stage.tell(ev.BlockBuiltEvent(1, ev.DraftBlock(B, ()), works=True))
    assert votes(effects, seat=1) == [(1, N)]
    idle = Stage(seat=1)
    idle.now = IDLE - 1
    assert not [e for e in idle.tell(ev.ReplicaTickEvent()) if isinstance(e, ev.BuildBlockEffect)]
    idle.now = IDLE
    assert [e for e in idle.tell(ev.ReplicaTickEvent()) if isinstance(e, ev.BuildBlockEffect)]


def test_a_final_block_that_was_never_judged_stops_the_seat_until_it_is_known_whether_it_closes() -> None:
    stage = Stage()
    blocks = FinalBlocks((Block(B, (), quorum(1, F, B.id).certificate),))
    (final,) = [e for e in stage.hear(blocks) if isinstance(e, ev.FinalBlocksEffect)]
    assert final.blocks == blocks.blocks
    assert votes(stage.fire()) == []
    assert votes(stage.hear(quorum(2, N, digest("y")))) == []
    assert votes(stage.tell(ev.BlocksStoredEvent(B.id, closes=False))) == [(2, F)]


@pytest.mark.parametrize("kind", [N, X])
def test_blocks_without_a_finalize_quorum_at_the_end_are_not_final(kind: VoteKind) -> None:
    block = ZERO_HASH if kind == X else B.id
    blocks = FinalBlocks((Block(B, (), quorum(1, kind, block).certificate),))
    assert not [e for e in Stage().hear(blocks) if isinstance(e, ev.FinalBlocksEffect)]


def test_blocks_with_too_few_or_wrong_signatures_or_gaps_are_not_final() -> None:
    good = quorum(1, F, B.id).certificate
    few = msgspec.structs.replace(good, seats=b"\x05", signatures=good.signatures[:2])
    swapped = msgspec.structs.replace(good, signatures=good.signatures[::-1])
    second = child(B, 2)
    apart = Block(second, (), quorum(2, F, second.id).certificate)
    for blocks in ((Block(B, (), few),), (Block(B, (), swapped),), (apart,), ()):
        assert not [e for e in Stage().hear(FinalBlocks(blocks)) if isinstance(e, ev.FinalBlocksEffect)]


def test_two_votes_prove_a_fault_exactly_when_no_honest_seat_signs_both() -> None:
    def vote(kind: VoteKind, block: bytes = ZERO_HASH, view: int = 1) -> Vote:
        return Vote(CHAIN, 0, view, kind, block)  # type: ignore[arg-type]

    a, b = digest("a"), digest("b")
    for first, second in ((vote(N, a), vote(N, b)), (vote(F, a), vote(F, b)), (vote(F, a), vote(X))):
        assert excludes(first, second)
        assert excludes(second, first)
    for first, second in (
        (vote(N, a), vote(X)),
        (vote(N, a), vote(F, b)),
        (vote(N, a), vote(N, a)),
        (vote(N, a), vote(N, b, 2)),
    ):
        assert not excludes(first, second)


def test_a_seat_that_votes_twice_is_accused_with_both_votes() -> None:
    first, second = signed(2, 1, N, digest("a")), signed(2, 1, N, digest("b"))
    effects = Stage().hear(VoteMessage(first), VoteMessage(second))
    assert [e for e in effects if isinstance(e, ev.AccuseEffect)] == [ev.AccuseEffect(first, second)]


def test_a_seat_that_was_silent_for_two_rounds_of_leaders_is_inactive() -> None:
    activity = SeatActivity(4, 0)
    activity.note([0, 1, 2], 9)
    assert [activity.is_inactive(seat, 9) for seat in range(4)] == [False, False, False, True]
    assert not activity.is_inactive(3, 8)


def test_the_timer_doubles_with_every_f_plus_one_views_without_a_final_block() -> None:
    assert [committee().span_ms(count) // 300 for count in (0, 1, 2, 3, 4, 100)] == [1, 1, 2, 2, 4, 1024]


def test_a_status_is_answered_with_what_its_sender_lacks() -> None:
    stage = Stage()
    stage.hear(proposal(1, B), quorum(1, N, B.id), quorum(2, X))
    sent = [e.message for e in stage.hear(ReplicaStatus(0, 1, 0, 1, ZERO_HASH)) if isinstance(e, ev.SendEffect)]
    assert quorum(1, N, B.id) in sent
    assert quorum(2, X) in sent
    assert proposal(1, B) in sent
    assert VoteMessage(signed(0, 1, F, B.id)) in sent
    stage.hear(quorum(1, F, B.id))
    assert ev.SendBlocksEffect(MEMBERS[2], 0) in stage.hear(ReplicaStatus(0, 1, 0, 1, ZERO_HASH))


def test_quorums_with_bits_beyond_the_committee_or_too_few_seats_are_not_believed() -> None:
    good = quorum(1, X)
    for seats, signatures in (
        (b"\x1d", good.signatures),
        (b"\x05", good.signatures[:2]),
        (b"\x0d\x00", good.signatures),
    ):
        stage = Stage()
        stage.hear(VoteQuorum(good.vote, seats, signatures))
        assert stage.replica.view == 1


def test_a_committee_of_one_needs_nobody() -> None:
    assert len(KEYS) == 4  # of which seat 0 alone sits here
    replica = Replica(EpochCommittee(CHAIN, 0, MEMBERS[:1], 10, 10), FinalHead(ROOT, 0), KEYS[0])
    replica.handle(ev.ReplicaStartEvent(), 0)
    replica.handle(ev.WaitingTxsEvent(True), 0)
    block = child(ROOT)
    effects = replica.handle(ev.BlockBuiltEvent(1, ev.DraftBlock(block, ())), 0)
    assert [type(e) for e in effects if isinstance(e, ev.LogVotesEffect | ev.FinalBlocksEffect)] == [
        ev.LogVotesEffect,
        ev.FinalBlocksEffect,
    ]

"""Random validators, motions and accusations."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from ledger_committee import join
from ledger_world import NODES, REQUESTER, ROOTS, STRANGER, VALIDATOR, VERIFIERS
from machine_base import AMOUNT, ANYONE, SPAN, Machine
from msgspec.structs import replace

from farflung.core.crypto import SigningKey
from farflung.core.ids import ZERO_HASH
from farflung.ledger.law_version import next_law
from farflung.ledger.motions import (
    AdmitValidator,
    AdoptLaw,
    AmendParams,
    Motion,
    MotionRow,
    MotionVote,
    RemoveValidator,
    What,
    motion_id,
)
from farflung.ledger.params import LedgerParams
from farflung.ledger.validators import (
    CommitteeRow,
    ValidatorAccuse,
    ValidatorLeave,
    ValidatorRow,
    ValidatorState,
    count_key,
)
from farflung.ledger.votes import Vote, VoteKind, sign_vote

SEATED = (VALIDATOR, STRANGER, NODES[2], VERIFIERS[0])
KEYS = {key.public: key for key in (*SEATED, *NODES, REQUESTER, *VERIFIERS)}
SEAT = st.sampled_from((*SEATED, NODES[0], NODES[1]))
KIND = st.sampled_from(VoteKind)
CHANGES = st.sampled_from(
    (
        {"withheld_permille": 500},
        {"committee_max": 2},
        {"committee_max": 100, "window_ms": 7_000},
        {"unbonding_ms": 20_000, "dispute_ms": 9_000},
        {"validator_stake_min": 60},
        {"epoch_blocks": 2},
        {"fee_min": 10**12 + 1},
        {"step_ms_max": 0},
    )
)


class SeatRules(Machine):
    """Who has a seat, and by which numbers."""

    @rule(seat=SEAT, owner=ANYONE, stake=AMOUNT)
    def ask_for_a_seat(self, seat: SigningKey, owner: SigningKey, stake: int) -> None:
        self.ask(owner, join(self.world.chain, seat, owner, stake))

    @rule(seat=SEAT, key=ANYONE)
    def give_a_seat_back(self, seat: SigningKey, key: SigningKey) -> None:
        row = self.world.state.find(ValidatorRow, seat.public)
        owner = KEYS.get(row.owner, key) if row else key
        self.ask(owner, ValidatorLeave(seat.public))

    @rule(key=ANYONE, seat=SEAT, kind=st.integers(0, 4), change=CHANGES, span=SPAN)
    def make_a_motion(self, key: SigningKey, seat: SigningKey, kind: int, change: dict[str, int], span: int) -> None:
        self.ask(key, Motion(self.what_to_move(seat, kind, change), self.at(span)))

    def what_to_move(self, seat: SigningKey, kind: int, change: dict[str, int]) -> What:
        if kind == 2:
            return AmendParams(replace(self.world.state.params, **change))
        if kind > 2:
            return AdoptLaw(next_law(self.world.state) + kind - 2)
        return (AdmitValidator, RemoveValidator)[kind](seat.public)

    @rule(key=ANYONE, data=st.data())
    def vote_for_a_motion(self, key: SigningKey, data: st.DataObject) -> None:
        rows = self.world.state.rows(MotionRow)
        if rows:
            self.ask(key, MotionVote(data.draw(st.sampled_from(list(rows))).motion))

    @rule(seat=SEAT, owner=ANYONE, kind=st.integers(0, 3), change=CHANGES, less=st.integers(0, 1))
    def carry_a_motion(self, seat: SigningKey, owner: SigningKey, kind: int, change: dict[str, int], less: int) -> None:
        """A candidate, a motion and votes that mostly suffice, or one vote too few."""
        state = self.world.state
        if kind == 0:
            self.ask(owner, join(self.world.chain, seat, owner, 700))
        rows = [state.find(ValidatorRow, member) for member in state.committee.members]
        voters = list(dict.fromkeys(KEYS[row.owner] for row in rows if row))
        motion = Motion(self.what_to_move(seat, kind, change), self.at(25_000))
        self.ask(voters[0], motion)
        for voter in voters[1 : len(voters) - less]:
            self.ask(voter, MotionVote(motion_id(self.world.chain, voters[0].public, motion)))
        self.seal(1000)

    @rule(
        key=ANYONE,
        seat=st.integers(0, 4),
        epoch=st.integers(0, 2),
        views=st.sampled_from(((3, 3), (3, 3), (3, 4))),
        kinds=st.tuples(KIND, KIND),
        blocks=st.sampled_from(((0, 1), (0, 0))),
        signer=st.sampled_from((None, None, None, REQUESTER)),
    )
    def accuse_a_seat(
        self,
        key: SigningKey,
        seat: int,
        epoch: int,
        views: tuple[int, int],
        kinds: tuple[VoteKind, VoteKind],
        blocks: tuple[int, int],
        signer: SigningKey | None,
    ) -> None:
        row = self.world.state.find(CommitteeRow, count_key(epoch))
        members = row.members if row else (VALIDATOR.public,)
        own = KEYS[members[seat % len(members)]]
        votes = [
            sign_vote(
                signer or own,
                seat,
                Vote(self.world.chain, epoch, view, kind, ZERO_HASH if kind == VoteKind.NULLIFY else ROOTS[block]),
            )
            for view, kind, block in zip(views, kinds, blocks, strict=True)
        ]
        self.ask(key, ValidatorAccuse(*votes))

    @invariant()
    def a_committee_is_never_empty_and_no_seat_is_there_twice(self) -> None:
        state = self.world.state
        for row in state.rows(CommitteeRow):
            assert row.members
            assert len(set(row.members)) == len(row.members)
        assert [row.epoch for row in state.rows(CommitteeRow)] == list(range(state.committee.epoch + 1))

    @invariant()
    def a_stake_lies_only_behind_who_may_be_accused(self) -> None:
        for row in self.world.state.rows(ValidatorRow):
            assert not row.stake or row.state not in (ValidatorState.GONE, ValidatorState.JAILED)
            assert row.until <= self.world.state.time + LedgerParams().unbonding_ms

"""Committees for tests: keys for seats and their owners, operations by them, and a chain that any of them certifies."""

from __future__ import annotations

from collections.abc import Sequence

from ledger_history import signed
from ledger_world import PARAMS, REQUESTER, RICH, START, World
from msgspec.structs import replace

from farflung.core.crypto import NS_SEAT, SigningKey, local_key
from farflung.core.ids import Hash, PeerId
from farflung.ledger import transactions
from farflung.ledger.block import Block, BlockHeader, Genesis, vote_for
from farflung.ledger.block_execution import ExecutedBlock, make
from farflung.ledger.chain import Chain
from farflung.ledger.motions import (
    AdmitValidator,
    AdoptLaw,
    AmendParams,
    Motion,
    MotionVote,
    RemoveValidator,
    What,
    motion_id,
)
from farflung.ledger.params import LedgerParams
from farflung.ledger.tx_results import Outcome
from farflung.ledger.validators import ValidatorJoin, ValidatorLeave, ValidatorRow, ValidatorState, join_parts
from farflung.ledger.votes import QuorumCertificate, VoteKind, certificate_of, is_quorum, sign_vote

SEATS = tuple(local_key(8, "seat", index) for index in range(8))
OWNERS = tuple(local_key(8, "owner", index) for index in range(8))
COUNCIL = replace(PARAMS, epoch_blocks=4, unbonding_ms=50_000, motion_ms=30_000, validator_stake_min=100)
LONG = replace(COUNCIL, epoch_blocks=32)  # enough blocks for any change within one epoch
LATER = 20_000  # a motion's deadline, from now


def join(chain: Hash, seat: SigningKey, owner: SigningKey, stake: int = 500) -> ValidatorJoin:
    signature = seat.sign(NS_SEAT, *join_parts(chain, owner.public))
    return ValidatorJoin(seat.public, stake, "seat.example:7000", signature)


def of(world: World, seat: SigningKey) -> ValidatorRow:
    row = world.state.find(ValidatorRow, seat.public)
    assert row is not None
    return row


def move(world: World, what: What, after: int = LATER) -> Motion:
    return Motion(what, world.state.time + 1000 + after)


def name(chain: Hash, mover: SigningKey, motion: Motion) -> Hash:
    return motion_id(chain, mover.public, motion)


def council(seats: int = 4, params: LedgerParams = COUNCIL) -> World:
    """So many validators since genesis, each its own owner; the other keys have accounts."""
    people = (*SEATS, *OWNERS, REQUESTER)
    return World(params, people, SEATS[:seats])


def carry(world: World, what: What, voters: Sequence[SigningKey]) -> str:
    """A motion by the first, for which the others vote: the last one's code."""
    motion = move(world, what)
    said = world.do(voters[0], motion)
    for voter in voters[1:]:
        said = world.do(voter, MotionVote(name(world.chain, voters[0], motion)))
    return said


class Reign:
    """A chain that goes on under whatever committee it has; the secret keys of all of them are known here."""

    def __init__(self, seats: int = 1, params: LedgerParams = LONG) -> None:
        accounts = tuple((key.public, RICH) for key in (*SEATS, *OWNERS, REQUESTER))
        members = tuple(key.public for key in SEATS[:seats])
        self.chain = Chain(Genesis("reign", START, accounts, members, params))
        self.keys = {key.public: key for key in SEATS}

    def made(self, *txs: transactions.SignedTx) -> tuple[ExecutedBlock, tuple[Outcome, ...]]:
        tip = self.chain.tip
        return make(tip, txs, tip.header.time + 1000, tip.state.committee.members[0])

    def step(self, *txs: transactions.SignedTx) -> Block:
        made, outcomes = self.made(*txs)
        assert not [outcome for outcome in outcomes if getattr(outcome, "code", "")], outcomes
        self.chain.hold(made)
        block = self.certified(made)
        self.chain.adopt(block)
        return block

    def do(self, key: SigningKey, *ops: transactions.Op) -> Block:
        return self.step(signed(self.chain, key, *ops))

    def certified(self, made: ExecutedBlock, kind: VoteKind = VoteKind.FINALIZE) -> Block:
        members = self.chain.state.committee.members
        return Block(made.header, made.txs, self.certificate(made.header, members, kind=kind))

    def certificate(
        self,
        header: BlockHeader,
        members: Sequence[PeerId],
        less: int = 0,
        kind: VoteKind = VoteKind.FINALIZE,
        view: int = 1,
    ) -> QuorumCertificate:
        """By the smallest quorum of `members`, or `less` seats fewer."""
        enough = next(count for count in range(len(members) + 1) if is_quorum(count, len(members)))
        vote = vote_for(header, view, kind)
        votes = [sign_vote(self.keys[members[seat]], seat, vote) for seat in range(enough - less)]
        return certificate_of(votes, len(members))

    def carry(self, what: What) -> None:
        """By votes of all seats, until it is passed."""
        seats = [self.keys[member] for member in self.chain.state.committee.members]
        motion = Motion(what, self.chain.head.time + LATER)
        self.do(seats[0], motion)
        vote = MotionVote(motion_id(self.chain.id, seats[0].public, motion))
        for seat in seats[1:]:
            if is_quorum(seats.index(seat), len(seats)):
                return
            self.do(seat, vote)

    def to_boundary(self) -> None:
        """To the last block before the next epoch, or to a boundary at which nothing changes."""
        current = self.chain.state.committee
        self.step()
        while (self.chain.head.height - current.first + 1) % self.chain.state.params.epoch_blocks:
            self.step()

    def grow(self, count: int) -> None:
        """Adds or removes the last ones until the committee has so many seats, all in one epoch."""
        seats = len(self.chain.state.committee.members)
        for place in range(seats, count):
            self.do(SEATS[place], join(self.chain.id, SEATS[place], SEATS[place]))
            self.carry(AdmitValidator(SEATS[place].public))
        for place in range(count, seats):
            self.carry(RemoveValidator(SEATS[place].public))
        if count != seats:
            self.to_boundary()


__all__ = [
    "COUNCIL",
    "LATER",
    "LONG",
    "OWNERS",
    "SEATS",
    "AdmitValidator",
    "AdoptLaw",
    "AmendParams",
    "MotionVote",
    "RemoveValidator",
    "ValidatorLeave",
    "ValidatorState",
    "carry",
    "council",
    "join",
    "move",
    "name",
    "of",
]

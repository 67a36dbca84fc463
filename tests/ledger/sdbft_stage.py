"""One replica of a committee of four, and the keys of all: for tests that say each message themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from farflung.core.crypto import SigningKey, digest, local_key
from farflung.core.ids import ZERO_HASH, Hash
from farflung.ledger.block import BlockHeader, txs_root
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft.block_tree import FinalHead
from farflung.ledger.sdbft.leaders import EpochCommittee
from farflung.ledger.sdbft.replica import Replica
from farflung.ledger.sdbft.replica_messages import BlockProposal, Message, VoteMessage, VoteQuorum
from farflung.ledger.votes import SignedVote, Vote, VoteKind, certificate_of, sign_vote

CHAIN = digest("test/chain")
KEYS: list[SigningKey] = [local_key(5, "seat", index) for index in range(4)]
MEMBERS = tuple(key.public for key in KEYS)
DELTA, IDLE = 100, 1000
ROOT = BlockHeader(CHAIN, 0, 0, 0, MEMBERS[0], ZERO_HASH, txs_root(()), digest("test/root"))


def committee(epoch: int = 0) -> EpochCommittee:
    return EpochCommittee(CHAIN, epoch, MEMBERS, DELTA, IDLE)


def child(parent: BlockHeader, maker: int = 0, mark: int = 0, epoch: int = 0) -> BlockHeader:
    state = digest("test/state", bytes([mark % 256]), parent.state)
    time = parent.time + 1 + mark
    return BlockHeader(CHAIN, parent.height + 1, epoch, time, MEMBERS[maker], parent.id, txs_root(()), state)


def signed(seat: int, view: int, kind: VoteKind, block: Hash = ZERO_HASH, epoch: int = 0) -> SignedVote:
    return sign_vote(KEYS[seat], seat, Vote(CHAIN, epoch, view, kind, block))


def quorum(
    view: int, kind: VoteKind, block: Hash = ZERO_HASH, seats: tuple[int, ...] = (0, 2, 3), epoch: int = 0
) -> VoteQuorum:
    votes = [signed(seat, view, kind, block, epoch) for seat in seats]
    certificate = certificate_of(votes, len(MEMBERS))
    return VoteQuorum(votes[0].vote, certificate.seats, certificate.signatures)


def proposal(view: int, header: BlockHeader, epoch: int = 0) -> BlockProposal:
    leader = view % len(MEMBERS)
    return BlockProposal(header, (), signed(leader, view, VoteKind.NOTARIZE, header.id, epoch))


@dataclass
class Stage:
    """Seat `seat`, and what it says. Every block is valid unless `judges` says otherwise."""

    seat: int = 0
    epoch: int = 0
    records: tuple[ev.Record, ...] = ()
    is_valid: bool = True
    closing: set[Hash] = field(default_factory=set)
    logged: list[ev.Record] = field(default_factory=list)
    now: int = 0

    def __post_init__(self) -> None:
        self.replica = Replica(committee(self.epoch), FinalHead(ROOT, 0), KEYS[self.seat], self.records)
        self.tell(ev.ReplicaStartEvent())

    def tell(self, event: ev.Event) -> list[ev.Effect]:
        """All effects of an event, with blocks judged on the spot."""
        effects = self.replica.handle(event, self.now)
        for effect in list(effects):
            if isinstance(effect, ev.LogVotesEffect):
                self.logged += effect.records
            if isinstance(effect, ev.CheckBlockEffect):
                name = effect.draft.header.id
                effects += self.tell(ev.BlockCheckedEvent(name, self.is_valid, name in self.closing, works=True))
        return effects

    def hear(self, *messages: Message, peer: int = 2) -> list[ev.Effect]:
        return [e for message in messages for e in self.tell(ev.ReplicaMessageEvent(MEMBERS[peer], message))]

    def fire(self) -> list[ev.Effect]:
        """Lets the timer of the view fire."""
        self.now += 100 * (DELTA + IDLE)
        return self.tell(ev.ReplicaTickEvent())


def votes(effects: list[ev.Effect], seat: int = 0) -> list[tuple[int, VoteKind]]:
    """What the seat has said to all."""
    said = [
        effect.message.signed
        for effect in effects
        if isinstance(effect, ev.BroadcastEffect) and isinstance(effect.message, VoteMessage | BlockProposal)
    ]
    return [(vote.vote.view, vote.vote.kind) for vote in said if vote.seat == seat]

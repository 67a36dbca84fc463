"""Seats that do not follow the rules: each is an honest replica whose words are changed on their way out."""

from __future__ import annotations

from typing import Any

import msgspec
from sim_committee import Node, World

from farflung.core.crypto import digest
from farflung.core.ids import ZERO_HASH, Hash, Signature
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft.replica_messages import BlockProposal, Message, ReplicaStatus, VoteMessage, VoteQuorum
from farflung.ledger.votes import SignedVote, Vote, VoteKind, sign_vote


class Traitor(Node):
    """The base: silent beyond what its subclass says."""

    is_honest = False

    def post(self, to: int | None, message: Message) -> None:
        if isinstance(message, BlockProposal | VoteMessage) and not self.is_own(message):
            self.say(to, message)  # another's proposal, shown to who lacks it
        else:
            self.betray(to, message)

    def is_own(self, message: BlockProposal | VoteMessage) -> bool:
        return self.world.script.reigns[message.signed.vote.epoch][message.signed.seat] == self.index

    def betray(self, to: int | None, message: Message) -> None:
        """Says something else than `message`."""

    def say(self, to: int | None, message: Message) -> None:
        self.world.carry(self.index, to, message)

    def vote(self, like: Vote, kind: VoteKind, block: Hash) -> VoteMessage:
        seat = self.world.script.reigns[like.epoch].index(self.index)
        vote = Vote(like.chain, like.epoch, like.view, kind, block)
        return VoteMessage(sign_vote(self.key, seat, vote))


class Silent(Traitor):
    """Hears everything and says nothing."""

    def post(self, to: int | None, message: Message) -> None:
        pass


class Equivocator(Traitor):
    """Proposes one block to some and another to the rest, and votes for both."""

    def betray(self, to: int | None, message: Message) -> None:
        if not isinstance(message, BlockProposal):
            self.say(to, message)
            return
        header = message.header
        parent = self.app.executed.get(header.parent)
        if parent is None or to is not None:
            self.say(to, message)
            return
        draft = self.app.build(parent, self.key.public, header.time + 1)
        other = BlockProposal(
            draft.header, (), self.vote(message.signed.vote, VoteKind.NOTARIZE, draft.header.id).signed
        )
        for index in range(len(self.world.nodes)):
            self.say(index, message if index % 2 else other)
        self.say(None, self.vote(message.signed.vote, VoteKind.FINALIZE, draft.header.id))


class Conflicter(Traitor):
    """Says yes to everything: NOTARIZE, NULLIFY and FINALIZE in each view."""

    def betray(self, to: int | None, message: Message) -> None:
        self.say(to, message)
        if isinstance(message, VoteMessage) and message.signed.vote.kind == VoteKind.NOTARIZE:
            vote = message.signed.vote
            self.say(to, self.vote(vote, VoteKind.NULLIFY, ZERO_HASH))
            self.say(to, self.vote(vote, VoteKind.FINALIZE, vote.block))
            self.say(to, self.vote(vote, VoteKind.NOTARIZE, digest("sim/other", vote.block)))


class Nuller(Traitor):
    """Nullifies each view, before and after it finalized it."""

    def betray(self, to: int | None, message: Message) -> None:
        self.say(to, message)
        if isinstance(message, VoteMessage):
            self.say(to, self.vote(message.signed.vote, VoteKind.NULLIFY, ZERO_HASH))


class Impersonator(Traitor):
    """Speaks in the name of all others, under signatures that are none."""

    def betray(self, to: int | None, message: Message) -> None:
        self.say(to, message)
        if not isinstance(message, VoteMessage):
            return
        vote, seats = message.signed.vote, len(self.world.script.reigns[message.signed.vote.epoch])
        for kind, block in ((VoteKind.NULLIFY, ZERO_HASH), (VoteKind.FINALIZE, digest("sim/forged"))):
            forged = Vote(vote.chain, vote.epoch, vote.view, kind, block)
            for seat in range(seats):
                self.say(to, VoteMessage(SignedVote(forged, seat, Signature(bytes(64)))))
            bits = ((1 << seats) - 1).to_bytes((seats + 7) // 8, "little")
            self.say(to, VoteQuorum(forged, bits, (Signature(bytes(64)),) * seats))


class Outdated(Traitor):
    """Says everything again, much later."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.history: list[Message] = []

    def betray(self, to: int | None, message: Message) -> None:
        self.history.append(message)
        self.say(to, self.history[len(self.history) // 3])
        self.say(to, self.history[self.world.source.randrange(len(self.history))])


class Invalid(Traitor):
    """Proposes blocks whose state root is wrong, or whose height is."""

    def betray(self, to: int | None, message: Message) -> None:
        if not isinstance(message, BlockProposal):
            self.say(to, message)
            return
        header = message.header
        is_high = self.world.source.random() < 0.5
        state = header.state if is_high else digest("sim/wrong")
        wrong = msgspec.structs.replace(header, state=state, height=header.height + is_high)
        signed = self.vote(message.signed.vote, VoteKind.NOTARIZE, wrong.id).signed
        self.say(to, BlockProposal(wrong, (), signed))


class Liar(Traitor):
    """Tells everybody that it stands elsewhere, and answers nothing."""

    def betray(self, to: int | None, message: Message) -> None:
        if isinstance(message, VoteMessage | BlockProposal):
            self.say(to, message)
        draw = self.world.source.randrange
        self.say(
            to, ReplicaStatus(draw(4), draw(1 << 40), draw(1 << 20), draw(50), digest("sim/lie", bytes([draw(9)])))
        )


class Flooder(Traitor):
    """Votes in many views ahead, for blocks that nobody knows, and asks without end."""

    def betray(self, to: int | None, message: Message) -> None:
        self.say(to, message)
        if not isinstance(message, VoteMessage):
            return
        draw = self.world.source.randrange
        vote = message.signed.vote
        for _ in range(6):
            far = Vote(vote.chain, vote.epoch, vote.view + draw(200), vote.kind, vote.block)
            block = digest("sim/flood", draw(1 << 30).to_bytes(4, "little"))
            self.say(to, self.vote(far, VoteKind.NOTARIZE, block))
        self.say(to, ReplicaStatus(vote.epoch, vote.view, 0, 0, ZERO_HASH))


class Forker(Traitor):
    """Proposes a second child of the block before the last notarized one: no view between is nullified."""

    def betray(self, to: int | None, message: Message) -> None:
        parent = self.app.executed.get(message.header.parent) if isinstance(message, BlockProposal) else None
        before = self.app.executed.get(parent.parent) if parent else None
        if not isinstance(message, BlockProposal) or before is None:
            self.say(to, message)
            return
        draft = self.app.build(before, self.key.public, message.header.time + 1)
        self.say(
            to,
            BlockProposal(draft.header, (), self.vote(message.signed.vote, VoteKind.NOTARIZE, draft.header.id).signed),
        )


class Forger(Traitor):
    """Shows two seats a block each, and quorums for it that nobody signed."""

    def betray(self, to: int | None, message: Message) -> None:
        self.say(to, message)
        parent = self.app.executed.get(message.header.parent) if isinstance(message, BlockProposal) else None
        if not isinstance(message, BlockProposal) or parent is None:
            return
        draft = self.app.build(parent, self.key.public, message.header.time + 1)
        other = BlockProposal(
            draft.header, (), self.vote(message.signed.vote, VoteKind.NOTARIZE, draft.header.id).signed
        )
        victims = [node.index for node in self.world.nodes if node.is_honest][:2]
        for victim, proposal in zip(victims, (message, other), strict=False):
            self._forge(victim, proposal)

    def _forge(self, victim: int, proposal: BlockProposal) -> None:
        like, signature = proposal.signed.vote, Signature(bytes(64))
        seats = len(self.world.script.reigns[like.epoch])
        for kind in (VoteKind.NOTARIZE, VoteKind.FINALIZE):
            vote = Vote(like.chain, like.epoch, like.view, kind, like.block)
            bits = ((1 << seats) - 1).to_bytes((seats + 7) // 8, "little")
            self.say(victim, VoteQuorum(vote, bits, (signature,) * seats))
            for seat in range(seats):
                self.say(victim, VoteMessage(SignedVote(vote, seat, signature)))
        self.say(victim, proposal)


ACTORS: tuple[type[Traitor], ...] = (
    Silent, Equivocator, Conflicter, Nuller, Impersonator, Outdated, Invalid, Liar, Flooder,
    Forker, Forger,
)  # fmt: skip


def put(world: World, index: int, kind: type[Traitor]) -> None:
    """Lets this node be one of them, before the world starts."""
    base = type(world.nodes[index])
    made = kind if base is Node else type(kind.__name__, (kind, base), {})  # with a whole validator, where all have
    world.nodes[index] = made(world, index)


__all__ = ["ACTORS", "ev", "put"]

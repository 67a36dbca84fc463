"""A dispute over two steps of a tiny program, played through the law by a script: for tests."""

from __future__ import annotations

import dataclasses

from core_tiny_program import ROUND, SEGMENT, TOKENS_IN_BATCH, Player, exhibit_of
from core_tiny_program import World as Tiny
from ledger_world import (
    BOND,
    CAPS,
    NODES,
    NONCE,
    PARAMS,
    PAYLOAD,
    REQUESTER,
    ROOTS,
    STRANGER,
    VALIDATOR,
    VERIFIERS,
    World,
)
from msgspec.structs import replace

from farflung.core import merkle
from farflung.core.canon import program as programs
from farflung.core.canon import tile_tree
from farflung.core.codec import encode
from farflung.core.commitments import BorderRoots, commitment_digest, number
from farflung.core.crypto import NS_ACK, SigningKey
from farflung.core.ids import Hash
from farflung.ledger import transactions
from farflung.ledger.disputes import DisputeRow
from farflung.ledger.motions import ParamsRow
from farflung.ledger.pinpoint_game import (
    ACCUSED,
    BorderProof,
    Challenge,
    Descend,
    FirstMove,
    OpenVerdict,
    Pinpoint,
    PinpointRow,
    PinpointStage,
    ProveElement,
    ShowTile,
)
from farflung.ledger.table_rows import lease_key

DISPUTE = 12_000
A, (B, C) = NODES[1], VERIFIERS  # the accused, whose seat is 1, and who plays for the accusers, first B
FRIEND = VALIDATOR  # with an account, and no lease
WEIGHT = 4 * TOKENS_IN_BATCH
REST = ROOTS[5]  # the hash of what else the job's terms say
STAKE, PAY = 100, 300
CHALLENGE_BOND = 2 * (STAKE + PAY)
TINY = Tiny()


def flipped(leaf: int, bit: int = 1) -> object:
    """A liar that is one unit in the last place off in the last element of one leaf."""

    def corrupt(at: int, tile: bytes) -> bytes:
        if at != leaf:
            return tile
        place = -1 if len(tile) == 1 else -4 if len(tile) % 8 else -8
        changed = bytearray(tile)
        changed[place] ^= bit
        return bytes(changed)

    return corrupt


class Game(World):
    """A runs the job as its second trainer and claims the end that `tiny` has; the players have the trees they have."""

    def __init__(self, accused: Player, challenger: Player, tiny: Tiny = TINY) -> None:
        super().__init__(replace(PARAMS, window_ms=10_000, dispute_ms=DISPUTE, bond_min=BOND, challenge_rounds=16))
        self.accused, self.challenger, self.tiny = accused, challenger, tiny
        self.job_id = programs.job_id(REST, tiny.program)
        job = self.job_id
        for key in (*NODES, *VERIFIERS):
            self.must(key, self.register())
        self.must(REQUESTER, self.create(job))
        offers = [self.offer(key, job) for key in NODES[:2]]
        offers += [self.offer(key, job, stake=50, units=20, role=transactions.LeaseRole.AUDIT) for key in VERIFIERS]
        self.must(REQUESTER, self.schedule(*offers[2:], *offers[:2], job=job))
        self.must(REQUESTER, self.progress(0, (A, 10), (B, 4), job=job))

    def must(self, key: SigningKey, *ops: transactions.Op) -> None:
        assert self.do(key, *ops) == "ok"

    # What A had committed to

    @property
    def leaves(self) -> list[bytes]:
        """Of its trace: three borders, statistics, payload."""
        start, claimed = self.tiny.borders
        first = BorderRoots(ROUND, 0, 0, ROOTS[0], ROOTS[1], ROOTS[2])
        return [*(encode(each) for each in (first, start, claimed)), b"statistics", bytes(PAYLOAD)]

    @property
    def trace(self) -> Hash:
        return merkle.root(self.leaves)

    def signature(self, key: SigningKey = A) -> bytes:
        promise = commitment_digest(self.job_id, A.public, ROUND, PAYLOAD, WEIGHT, self.trace, NONCE)
        return key.sign(NS_ACK, self.job_id, number(ROUND), promise)

    def borders(self) -> tuple[BorderProof, ...]:
        shown = zip(self.tiny.borders, (SEGMENT, SEGMENT + 1), strict=True)
        return tuple(BorderProof(border, merkle.prove(self.leaves, at)) for border, at in shown)

    # Accusations

    def slash(self, **change: object) -> transactions.JobSlash:
        about = {"job": self.job_id, "round": ROUND, "segment": SEGMENT, "trace": self.trace, **change}
        verdicts = tuple(self.verdict(key, A, **about) for key in VERIFIERS)
        claim = transactions.CommitmentOpening(PAYLOAD, WEIGHT, NONCE, self.signature())
        return transactions.JobSlash(self.job_id, A.public, claim, verdicts, CAPS, REST, self.tiny.program)

    def challenge(self, bond: int = CHALLENGE_BOND, **change: object) -> Challenge:
        claim = (ROUND, SEGMENT, self.trace, PAYLOAD, WEIGHT, NONCE, self.signature())
        op = Challenge(self.job_id, A.public, *claim, REST, self.tiny.program, bond)
        return replace(op, **change)

    def opening(self, **change: object) -> Pinpoint:
        return replace(Pinpoint(self.job_id, A.public, REST, self.tiny.program), **change)

    def begun(self) -> Game:
        """The verifiers accuse, and A opens the program."""
        self.must(REQUESTER, self.slash())
        self.must(A, self.opening())
        return self

    def challenged(self, by: SigningKey = FRIEND) -> Game:
        self.must(by, self.challenge())
        return self

    # Moves

    @property
    def row(self) -> PinpointRow:
        found = self.state.find(PinpointRow, lease_key(self.job_id, A.public))
        assert found is not None
        return found

    @property
    def about(self) -> DisputeRow:
        return self.dispute(A, self.job_id)

    @property
    def rival(self) -> SigningKey:
        return FRIEND if self.row.bond else C if self.row.beaten else B

    def move(self, side: int, **change: object) -> transactions.Op:
        """What a side has to say now."""
        row, player = self.row, (self.accused, self.challenger)[side]
        named = (self.job_id, A.public)
        children = player.tree.children(row.level, row.first) if row.level else ()
        op: transactions.Op
        if row.stage == PinpointStage.FIRST:
            mine = (0 if row.beaten else BOND, self.borders()) if side == ACCUSED else (0, ())
            op = FirstMove(*named, *mine, children)
        elif row.stage == PinpointStage.DESCEND:
            op = Descend(*named, row.level, row.first, children)
        else:
            op = ShowTile(*named, row.first, player.tiles[row.first])
        return replace(op, **change)

    def verdict_leaf(self, **change: object) -> OpenVerdict:
        last = len(self.accused.tiles) - 1
        tile, path = self.accused.tiles[last], self.accused.tree.path(last)
        return replace(OpenVerdict(self.job_id, A.public, tile == b"\1", path), **change)

    def exhibit(self) -> ProveElement:
        shown = exhibit_of(self.tiny, self.accused, self.challenger, self.row.first)
        return ProveElement(self.job_id, A.public, encode(shown))

    def exhibit_of_nothing(self) -> ProveElement:
        return ProveElement(self.job_id, A.public, b"")

    def under(self, **change: int) -> None:
        """The same state under another law."""
        row = self.state.rows(ParamsRow)[0]
        table = self.state.tables[ParamsRow.TABLE].with_rows([replace(row, params=replace(row.params, **change))])
        self.state = dataclasses.replace(self.state, tables={**self.state.tables, ParamsRow.TABLE: table})

    def step(self) -> None:
        """Both sides move, in one block."""
        ours, theirs = self.move(0), self.move(1)
        outcomes = self.send(self.sign(A, ours), self.sign(self.rival, theirs))
        assert [getattr(each, "code", "ok") for each in outcomes] == ["ok", "ok"]

    def until(self, stage: PinpointStage) -> Game:
        while self.row.stage != stage:
            self.step()
        return self

    def wait(self, offset: int = 0) -> None:
        """To the game's deadline."""
        self.send(after=self.row.deadline - self.state.time + offset)

    def played(self, by: SigningKey = STRANGER) -> Game:
        """To the end, whichever it is; whoever likes brings what ends it."""
        while self.row.stage not in (PinpointStage.VERDICT, PinpointStage.REFEREE):
            self.step()
        self.must(by, self.verdict_leaf() if self.row.stage == PinpointStage.VERDICT else self.exhibit())
        return self.left()

    def left(self) -> Game:
        """Where an accuser has lost, the other one does not play."""
        if self.row.beaten and self.row.stage == PinpointStage.FIRST:
            self.wait()
        return self


HONEST = TINY.player()
assert tile_tree.depth(len(HONEST.tiles)) == 2

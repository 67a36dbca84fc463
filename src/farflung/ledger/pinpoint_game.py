"""Defines the pinpoint game: the moves of its players, and the row that records its progress.

Who accuses a node of a false segment and the node itself have each executed it canonically (core.canon.program). They
go down their trees of tiles (core.canon.tile_tree) to the first leaf that differs, and the referee computes one
element. `ledger.rules.pinpoint` has the table of moves. The money at stake lies in the dispute's row; the bond of a
challenger that is no verifier lies in this one.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from farflung.core import limits
from farflung.core.canon.program import CanonicalProgram
from farflung.core.codec import Wire
from farflung.core.commitments import BorderRoots
from farflung.core.ids import ZERO_HASH, Hash, PeerId, Signature

NO_ACCOUNT: Final = PeerId(bytes(ZERO_HASH))
NO_BORDER: Final = BorderRoots(0, 0, 0, ZERO_HASH, ZERO_HASH, ZERO_HASH)

ACCUSED: Final = 0  # the two sides, as places in every pair of a row
CHALLENGER: Final = 1


class PinpointStage(IntEnum):
    """What a game waits for."""

    OFFERED = 0  # for a party to open the job's program
    FIRST = 1  # for the first moves of both
    DESCEND = 2  # for the children of one node from both
    VERDICT = 3  # the trees agree: for the last leaf from anybody
    SHOW = 4  # for the tile of the first leaf that differs, from both
    REFEREE = 5  # for the proof of one element from anybody
    CLOSED = 6


class Challenge(Wire, frozen=True, tag="challenge"):
    """The sender, whoever it is, says that a segment of `node` does not lead where the node claims, and puts up `bond`.

    payload, weight, trace, nonce and signature are the node's signed claim; `terms` and `program` open the job's id.
    """

    job: Hash
    node: PeerId
    round: int
    segment: int
    trace: Hash
    payload: Hash
    weight: int
    nonce: Hash
    signature: Signature
    terms: Hash
    program: CanonicalProgram
    bond: int


class Pinpoint(Wire, frozen=True, tag="pinpoint"):
    """The accused, or an accuser, opens the job's id to its program: the game begins, and the jury is not asked."""

    job: Hash
    node: PeerId
    terms: Hash
    program: CanonicalProgram


class BorderProof(Wire, frozen=True):
    """One border and its way to the trace."""

    border: BorderRoots
    path: tuple[Hash, ...]


class FirstMove(Wire, frozen=True, tag="first_move"):
    """`children` of the sender's root. The accused adds `bond` and the borders at the segment's start and end."""

    job: Hash
    node: PeerId
    bond: int
    borders: tuple[BorderProof, ...]
    children: tuple[Hash, ...]


class Descend(Wire, frozen=True, tag="descend"):
    """`children` of the node of `level` whose first leaf is `first`, in the sender's tree."""

    job: Hash
    node: PeerId
    level: int
    first: int
    children: tuple[Hash, ...]


class OpenVerdict(Wire, frozen=True, tag="open_verdict"):
    """The last leaf of the tree that both have."""

    job: Hash
    node: PeerId
    is_guilty: bool
    path: tuple[Hash, ...]


class ShowTile(Wire, frozen=True, tag="show"):
    """The canonical bytes of the tile at `leaf` in the sender's tree."""

    job: Hash
    node: PeerId
    leaf: int
    data: bytes


class ProveElement(Wire, frozen=True, tag="referee"):
    """What the law needs to compute the first element that differs: `data` encodes a core.canon.referee.Exhibit."""

    job: Hash
    node: PeerId
    data: bytes


class PinpointRow(Wire, frozen=True):
    """One game. Pairs hold the accused's side first.

    round, segment, trace and weight: what is disputed. `challenger`: who plays against the accused, once it is known;
    `bond`: what it put up if it is no accuser. `seat`: the number of the accused's lease among the TRAIN leases of its
    job. `steps` of the segment from `begin` on within the round. `nodes`: hashes of the node at `level` and `first`
    that both go into, `children` what each posted of it; from SHOW on, nodes are the leaves' hashes. `beaten`: accusers
    that have played against the accused and lost.
    """

    TABLE = "pinpoints"

    job: Hash
    node: PeerId
    round: int
    segment: int
    trace: Hash
    weight: int
    stage: PinpointStage = PinpointStage.OFFERED
    deadline: int = 0
    challenger: PeerId = NO_ACCOUNT
    bond: int = 0
    program: CanonicalProgram = CanonicalProgram()
    seat: int = 0
    begin: int = 0
    steps: int = 0
    start: BorderRoots = NO_BORDER
    claimed: BorderRoots = NO_BORDER
    roots: tuple[Hash, Hash] = (ZERO_HASH, ZERO_HASH)
    nodes: tuple[Hash, Hash] = (ZERO_HASH, ZERO_HASH)
    children: tuple[tuple[Hash, ...], tuple[Hash, ...]] = ((), ())
    level: int = 0
    first: int = 0
    shown: tuple[bool, bool] = (False, False)
    beaten: tuple[PeerId, ...] = ()

    @property
    def key(self) -> bytes:
        """Where the row is found in its table: as the dispute's."""
        return self.job + self.node

    @property
    def is_played(self) -> bool:
        """Whether it waits for a move."""
        return self.stage not in (PinpointStage.OFFERED, PinpointStage.CLOSED)

    @property
    def money(self) -> int:
        """Pico-credits that this row holds."""
        return self.bond if self.stage != PinpointStage.CLOSED else 0

    @property
    def due(self) -> int:
        """From when on the clock ends it."""
        return self.deadline if self.is_played else limits.NEVER

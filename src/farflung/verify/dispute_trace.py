"""Reconstructs a dispute step by step from its ledger rows and its operations in blocks, and from nothing else.

The ledger keeps where a game stands, not how it came there. But every move is bound to the one before: what a side
posted of a node must give that node's hash. So whoever has the row's roots finds each side's move among all that was
said, whenever it looks: a run that was stopped tells the same story as one that saw all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from farflung.core.canon import program as programs
from farflung.core.canon import referee, tile_tree
from farflung.core.canon.graph import CanonicalGraph, GraphInput
from farflung.core.canon.referee import PARAMS, ElementProof, RefereeFinding
from farflung.core.codec import encode
from farflung.core.errors import ProtocolError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger.disputes import DisputeRow, DisputeState
from farflung.ledger.pinpoint_game import (
    ACCUSED,
    CHALLENGER,
    NO_ACCOUNT,
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
from farflung.ledger.rules import pinpoint
from farflung.ledger.transactions import JobSlash, Op
from farflung.train.inner_state import VECTORS

About = JobSlash | Challenge | Pinpoint | FirstMove | Descend | OpenVerdict | ShowTile | ProveElement
SIDES: Final = ("accused", "challenger")
MOMENTS: Final = frozenset(name for names in VECTORS.values() for name in names)  # of any optimizer
NOBODY: Final = (ZERO_HASH, ZERO_HASH)


class DisputeOperation(NamedTuple):
    """One operation about a dispute, and the block that it is in. Whether the law took it, is not said here."""

    height: int
    sender: PeerId
    op: About


class DisputeStep(NamedTuple):
    """Where a game stood from block `height` on. `nodes`: both sides' hashes there, the accused's first.

    `number`: of the game; accusers play one after the other. `rival`: who plays, once it is known.
    """

    stage: PinpointStage
    level: int
    first: int
    nodes: tuple[Hash, Hash]
    height: int
    number: int = 0
    rival: PeerId = NO_ACCOUNT


class DisputeOutcome(NamedTuple):
    """How a dispute was decided. `by`: element, verdict, silence, clock or jury; `silent`: which sides owed a move.

    `height`: of the block whose operation decided it; 0 where the clock did. `shown`: bytes that the referee read.
    """

    by: str
    silent: tuple[str, ...] = ()
    height: int = 0
    finding: RefereeFinding | None = None
    exhibit: ElementProof | None = None
    shown: int = 0


class _DisputeMove(NamedTuple):
    height: int
    children: tuple[Hash, ...]


def about(job: Hash, node: PeerId, height: int, sender: PeerId, ops: Sequence[Op]) -> list[DisputeOperation]:
    """What one transaction says of the dispute of `node` in `job`."""
    return [
        DisputeOperation(height, sender, op) for op in ops if isinstance(op, About) and (op.job, op.node) == (job, node)
    ]


def dispute_steps(game: PinpointRow, operations: Sequence[DisputeOperation]) -> tuple[DisputeStep, ...]:
    """All places to which the game has come, in their order. `operations`: all that was said of it, oldest first."""
    found = [DisputeStep(PinpointStage.OFFERED, 0, 0, NOBODY, operations[0].height if operations else 0)]
    height = _begun(game, operations)
    if not game.steps or height is None:
        return tuple(found)
    for number, rival in enumerate(game.beaten):
        past = replace(game, challenger=rival, roots=_roots(game, rival, operations, height))
        found += _descent(past, number, operations, height)
        height = _lost(found[-1], operations)
    return (*found, *_descent(game, len(game.beaten), operations, height))


def _descent(game: PinpointRow, number: int, operations: Sequence[DisputeOperation], height: int) -> list[DisputeStep]:
    """One game, whose roots are known, from its first moves as far as it came."""
    operations = [each for each in operations if each.height >= height]
    total = programs.leaf_count(game.program, game.steps)
    at = replace(game, stage=PinpointStage.FIRST, level=tile_tree.depth(total), first=0, nodes=game.roots)
    found: list[DisputeStep] = []
    while True:
        is_first = at.stage is PinpointStage.FIRST  # what is told of a rung is known when it begins
        nodes, rival = (NOBODY, NO_ACCOUNT) if is_first else (at.nodes, game.challenger)
        found.append(DisputeStep(at.stage, at.level, at.first, nodes, height, number, rival))
        moves = _moves(at, operations)
        if not all(moves):
            return found
        height = max(height, *(move.height for move in moves if move))
        if at.stage is PinpointStage.SHOW:
            return [*found, DisputeStep(PinpointStage.REFEREE, 0, at.first, at.nodes, height, number, game.challenger)]
        if at.nodes[ACCUSED] == at.nodes[CHALLENGER]:
            return [*found, DisputeStep(PinpointStage.VERDICT, 0, total - 1, NOBODY, height, number, game.challenger)]
        mine, theirs = (move.children for move in moves if move)
        at = pinpoint.deeper(replace(at, children=(mine, theirs)))


def _roots(game: PinpointRow, rival: PeerId, operations: Sequence[DisputeOperation], height: int) -> tuple[Hash, Hash]:
    """Of a game that is over and no longer in the row: what both sides said first from block `height` on."""
    total = programs.leaf_count(game.program, game.steps)
    level = tile_tree.depth(total)
    count = tile_tree.child_count(total, level, 0)
    first = [s for s in operations if s.height >= height and isinstance(s.op, FirstMove)]

    def root(side: PeerId) -> Hash:
        for _, sender, op in first:
            if sender == side and isinstance(op, FirstMove) and len(op.children) == count:
                return tile_tree.node_hash(level, 0, op.children)
        return ZERO_HASH

    return root(game.node), root(rival)


def _lost(last: DisputeStep, operations: Sequence[DisputeOperation]) -> int:
    """From which block on the next accuser may play: that of what decided, or of the last move before the clock did."""
    deciding = {PinpointStage.REFEREE: ProveElement, PinpointStage.VERDICT: OpenVerdict}.get(last.stage)
    if deciding is None:
        return last.height
    return next((s.height for s in operations if s.height > last.height and isinstance(s.op, deciding)), last.height)


def _begun(game: PinpointRow, operations: Sequence[DisputeOperation]) -> int | None:
    """The block in which the job's program was opened."""
    for height, _, op in operations:
        if isinstance(op, Pinpoint | Challenge) and programs.job_id(op.terms, op.program) == game.job:
            return height
    return None


def _moves(at: PinpointRow, operations: Sequence[DisputeOperation]) -> tuple[_DisputeMove | None, _DisputeMove | None]:
    """Both sides' moves at this place of the game; None: that side has not made it."""
    players = at.node, at.challenger
    mine, theirs = (
        next((m for s in operations if s.sender == player and (m := _move(at, side, s)) is not None), None)
        for side, player in enumerate(players)
    )
    return mine, theirs


def _move(at: PinpointRow, side: int, one: DisputeOperation) -> _DisputeMove | None:
    """What was said, if it is what this side owes here: it gives the hash that the side is bound to."""
    match one.op:
        case FirstMove(children=children) if at.stage is PinpointStage.FIRST:
            is_it = tile_tree.node_hash(at.level, 0, children) == at.roots[side]
        case Descend(level=level, first=first, children=children) if at.stage is PinpointStage.DESCEND:
            is_it = (level, first) == (at.level, at.first)
            is_it = is_it and tile_tree.node_hash(level, first, children) == at.nodes[side]
        case ShowTile(leaf=leaf, data=data) if at.stage is PinpointStage.SHOW:
            children = ()
            is_it = leaf == at.first and tile_tree.leaf_hash(leaf, data) == at.nodes[side]
        case _:
            return None
    return _DisputeMove(one.height, children) if is_it else None


def end(dispute: DisputeRow, game: PinpointRow | None, operations: Sequence[DisputeOperation]) -> DisputeOutcome:
    """How a dispute that is decided came to its end."""
    if game is None or not game.steps:
        is_jury = dispute.answer != ZERO_HASH and dispute.state is not DisputeState.LAPSED
        return DisputeOutcome("jury" if is_jury else "clock")
    last = dispute_steps(game, operations)[-1]
    if game.beaten and game.challenger == NO_ACCOUNT:
        return DisputeOutcome("silence", SIDES[1:])  # who played has lost, and nobody else does
    if last.stage is PinpointStage.REFEREE:
        late = [each for each in operations if each.height > last.height]
        return _refereed(dispute, game, late) or DisputeOutcome("silence", SIDES)
    if last.stage is PinpointStage.VERDICT:
        opened = [s.height for s in operations if isinstance(s.op, OpenVerdict) and s.height > last.height]
        return DisputeOutcome("verdict", (), opened[-1]) if opened else DisputeOutcome("silence", SIDES[:1])
    at = replace(game, stage=last.stage, level=last.level, first=last.first, nodes=last.nodes)
    owed = zip(SIDES, _moves(at, operations), strict=True)
    return DisputeOutcome("silence", tuple(side for side, move in owed if move is None))


def _refereed(dispute: DisputeRow, game: PinpointRow, operations: Sequence[DisputeOperation]) -> DisputeOutcome | None:
    """The first exhibit that proves something; the law refuses the others."""
    case = pinpoint.case_of(game)
    for one in operations:
        if not isinstance(one.op, ProveElement):
            continue
        try:
            exhibit = referee.read(one.op.data)
            finding = referee.finding(case, exhibit)
        except ProtocolError:
            continue
        if _decides(finding) is dispute.state:
            return DisputeOutcome("element", (), one.height, finding, exhibit, len(one.op.data))
    return None


def _decides(finding: RefereeFinding) -> DisputeState:
    accused, challenger = finding.ruling
    if accused:
        return DisputeState.OVERTURNED
    return DisputeState.UPHELD if challenger else DisputeState.FORFEIT


def sent(game: PinpointRow, operations: Sequence[DisputeOperation]) -> int:
    """Bytes of hashes that both sides have posted."""
    sides = (game.node, game.challenger, *game.beaten)
    return sum(
        len(encode(each.op))
        for each in operations
        if isinstance(each.op, FirstMove | Descend | OpenVerdict) and each.sender in sides
    )


class TensorName(NamedTuple):
    """What people call a value: the tensor that it is after the step, and the weights or moments that it is made of."""

    becomes: str
    near: str


def named(graph: CanonicalGraph, value: int) -> TensorName:
    """Of a value of the step's graph: the nearest input among those that it is computed from, of a state."""
    becomes = next((each.name for each in graph.outputs if each.value == value), "")
    seen, row = {value}, [value]
    while row:
        for number in row:
            made = graph.value(number)
            if isinstance(made, GraphInput) and made.name.partition("/")[0] in (PARAMS, *MOMENTS):
                return TensorName(becomes, made.name)
        args = [arg for number in row for arg in getattr(graph.value(number), "args", ()) if arg not in seen]
        seen.update(args)
        row = list(dict.fromkeys(args))
    return TensorName(becomes, "")


def player(game: PinpointRow | None) -> PeerId | None:
    """Who plays against the accused, once that is known."""
    return game.challenger if game is not None and game.challenger != NO_ACCOUNT else None

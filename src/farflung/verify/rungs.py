"""How a dispute went, rung by rung: from its rows and what was said of it in blocks, and from nothing else.

The ledger keeps where a game stands, not how it came there. But every move is bound to the one before: what a side
posted of a node must give that node's hash. So whoever has the row's roots finds each side's move among all that was
said, whenever it looks: a run that was stopped tells the same story as one that saw all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from farflung.core.canon import program as programs
from farflung.core.canon import referee, tree
from farflung.core.canon.graph import Graph, Input
from farflung.core.canon.referee import PARAMS, Exhibit, Finding
from farflung.core.codec import encode
from farflung.core.errors import ProtocolError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger.disputes import DisputeRow, DisputeState
from farflung.ledger.pinpoint import (
    ACCUSED,
    CHALLENGER,
    NO_ACCOUNT,
    Challenge,
    Descend,
    FirstMove,
    OpenVerdict,
    Pinpoint,
    PinpointRow,
    Referee,
    Show,
    Stage,
)
from farflung.ledger.rules import pinpoint
from farflung.ledger.tx import JobSlash, Op
from farflung.train.inner import VECTORS

About = JobSlash | Challenge | Pinpoint | FirstMove | Descend | OpenVerdict | Show | Referee
SIDES: Final = ("accused", "challenger")
MOMENTS: Final = frozenset(name for names in VECTORS.values() for name in names)  # of any optimizer
NOBODY: Final = (ZERO_HASH, ZERO_HASH)


class Said(NamedTuple):
    """One operation about a dispute, and the block that it stands in. Whether the law took it, is not said here."""

    height: int
    sender: PeerId
    op: About


class Rung(NamedTuple):
    """Where a game stood from block `height` on. `nodes`: both sides' hashes there, the accused's first.

    `number`: of the game; accusers play one after the other. `rival`: who plays, once it is known.
    """

    stage: Stage
    level: int
    first: int
    nodes: tuple[Hash, Hash]
    height: int
    number: int = 0
    rival: PeerId = NO_ACCOUNT


class End(NamedTuple):
    """How a dispute was decided. `by`: element, verdict, silence, clock or jury; `silent`: which sides owed a move.

    `height`: of the block whose operation decided it; 0 where the clock did. `shown`: bytes that the referee read.
    """

    by: str
    silent: tuple[str, ...] = ()
    height: int = 0
    finding: Finding | None = None
    exhibit: Exhibit | None = None
    shown: int = 0


class _Move(NamedTuple):
    height: int
    children: tuple[Hash, ...]


def about(job: Hash, node: PeerId, height: int, sender: PeerId, ops: Sequence[Op]) -> list[Said]:
    """What one transaction says of the dispute of `node` in `job`."""
    return [
        Said(height, sender, op) for op in ops if isinstance(op, About) and (op.job, op.node) == (job, node)
    ]


def rungs(game: PinpointRow, said: Sequence[Said]) -> tuple[Rung, ...]:
    """All places to which the game has come, in their order. `said`: all that was said of it, oldest first."""
    found = [Rung(Stage.OFFERED, 0, 0, NOBODY, said[0].height if said else 0)]
    height = _begun(game, said)
    if not game.steps or height is None:
        return tuple(found)
    for number, rival in enumerate(game.beaten):
        past = replace(game, challenger=rival, roots=_roots(game, rival, said, height))
        found += _descent(past, number, said, height)
        height = _lost(found[-1], said)
    return (*found, *_descent(game, len(game.beaten), said, height))


def _descent(game: PinpointRow, number: int, said: Sequence[Said], height: int) -> list[Rung]:
    """One game, whose roots are known, from its first moves as far as it came."""
    said = [each for each in said if each.height >= height]
    total = programs.leaf_count(game.program, game.steps)
    at = replace(game, stage=Stage.FIRST, level=tree.depth(total), first=0, nodes=game.roots)
    found: list[Rung] = []
    while True:
        is_first = at.stage is Stage.FIRST  # what is told of a rung is known when it begins
        nodes, rival = (NOBODY, NO_ACCOUNT) if is_first else (at.nodes, game.challenger)
        found.append(Rung(at.stage, at.level, at.first, nodes, height, number, rival))
        moves = _moves(at, said)
        if not all(moves):
            return found
        height = max(height, *(move.height for move in moves if move))
        if at.stage is Stage.SHOW:
            return [*found, Rung(Stage.REFEREE, 0, at.first, at.nodes, height, number, game.challenger)]
        if at.nodes[ACCUSED] == at.nodes[CHALLENGER]:
            return [*found, Rung(Stage.VERDICT, 0, total - 1, NOBODY, height, number, game.challenger)]
        mine, theirs = (move.children for move in moves if move)
        at = pinpoint.deeper(replace(at, children=(mine, theirs)))


def _roots(game: PinpointRow, rival: PeerId, said: Sequence[Said], height: int) -> tuple[Hash, Hash]:
    """Of a game that is over and no longer in the row: what both sides said first from block `height` on."""
    total = programs.leaf_count(game.program, game.steps)
    level = tree.depth(total)
    count = tree.child_count(total, level, 0)
    first = [s for s in said if s.height >= height and isinstance(s.op, FirstMove)]

    def root(side: PeerId) -> Hash:
        for _, sender, op in first:
            if sender == side and isinstance(op, FirstMove) and len(op.children) == count:
                return tree.node_hash(level, 0, op.children)
        return ZERO_HASH

    return root(game.node), root(rival)


def _lost(last: Rung, said: Sequence[Said]) -> int:
    """From which block on the next accuser may play: that of what decided, or of the last move before the clock did."""
    deciding = {Stage.REFEREE: Referee, Stage.VERDICT: OpenVerdict}.get(last.stage)
    if deciding is None:
        return last.height
    return next(
        (s.height for s in said if s.height > last.height and isinstance(s.op, deciding)), last.height
    )


def _begun(game: PinpointRow, said: Sequence[Said]) -> int | None:
    """The block in which the job's program was opened."""
    for height, _, op in said:
        if isinstance(op, Pinpoint | Challenge) and programs.job_id(op.terms, op.program) == game.job:
            return height
    return None


def _moves(at: PinpointRow, said: Sequence[Said]) -> tuple[_Move | None, _Move | None]:
    """Both sides' moves at this place of the game; None: that side has not made it."""
    players = at.node, at.challenger
    mine, theirs = (
        next((m for s in said if s.sender == player and (m := _move(at, side, s)) is not None), None)
        for side, player in enumerate(players)
    )
    return mine, theirs


def _move(at: PinpointRow, side: int, one: Said) -> _Move | None:
    """What was said, if it is what this side owes here: it gives the hash that the side is bound to."""
    match one.op:
        case FirstMove(children=children) if at.stage is Stage.FIRST:
            is_it = tree.node_hash(at.level, 0, children) == at.roots[side]
        case Descend(level=level, first=first, children=children) if at.stage is Stage.DESCEND:
            is_it = (level, first) == (at.level, at.first)
            is_it = is_it and tree.node_hash(level, first, children) == at.nodes[side]
        case Show(leaf=leaf, data=data) if at.stage is Stage.SHOW:
            children = ()
            is_it = leaf == at.first and tree.leaf_hash(leaf, data) == at.nodes[side]
        case _:
            return None
    return _Move(one.height, children) if is_it else None


def end(dispute: DisputeRow, game: PinpointRow | None, said: Sequence[Said]) -> End:
    """How a dispute that is decided came to its end."""
    if game is None or not game.steps:
        is_jury = dispute.answer != ZERO_HASH and dispute.state is not DisputeState.LAPSED
        return End("jury" if is_jury else "clock")
    last = rungs(game, said)[-1]
    if game.beaten and game.challenger == NO_ACCOUNT:
        return End("silence", SIDES[1:])  # who played has lost, and nobody else does
    if last.stage is Stage.REFEREE:
        late = [each for each in said if each.height > last.height]
        return _refereed(dispute, game, late) or End("silence", SIDES)
    if last.stage is Stage.VERDICT:
        opened = [s.height for s in said if isinstance(s.op, OpenVerdict) and s.height > last.height]
        return End("verdict", (), opened[-1]) if opened else End("silence", SIDES[:1])
    at = replace(game, stage=last.stage, level=last.level, first=last.first, nodes=last.nodes)
    owed = zip(SIDES, _moves(at, said), strict=True)
    return End("silence", tuple(side for side, move in owed if move is None))


def _refereed(dispute: DisputeRow, game: PinpointRow, said: Sequence[Said]) -> End | None:
    """The first exhibit that proves something; the law refuses the others."""
    case = pinpoint.case_of(game)
    for one in said:
        if not isinstance(one.op, Referee):
            continue
        try:
            exhibit = referee.read(one.op.data)
            finding = referee.finding(case, exhibit)
        except ProtocolError:
            continue
        if _decides(finding) is dispute.state:
            return End("element", (), one.height, finding, exhibit, len(one.op.data))
    return None


def _decides(finding: Finding) -> DisputeState:
    accused, challenger = finding.ruling
    if accused:
        return DisputeState.OVERTURNED
    return DisputeState.UPHELD if challenger else DisputeState.FORFEIT


def sent(game: PinpointRow, said: Sequence[Said]) -> int:
    """Bytes of hashes that both sides have posted."""
    sides = (game.node, game.challenger, *game.beaten)
    return sum(
        len(encode(each.op))
        for each in said
        if isinstance(each.op, FirstMove | Descend | OpenVerdict) and each.sender in sides
    )


class Named(NamedTuple):
    """What people call a value: the tensor that it is after the step, and the weights or moments that it is made of."""

    becomes: str
    near: str


def named(graph: Graph, value: int) -> Named:
    """Of a value of the step's graph: the nearest input among those that it is computed from, of a state."""
    becomes = next((each.name for each in graph.outputs if each.value == value), "")
    seen, row = {value}, [value]
    while row:
        for number in row:
            made = graph.value(number)
            if isinstance(made, Input) and made.name.partition("/")[0] in (PARAMS, *MOMENTS):
                return Named(becomes, made.name)
        args = [arg for number in row for arg in getattr(graph.value(number), "args", ()) if arg not in seen]
        seen.update(args)
        row = list(dict.fromkeys(args))
    return Named(becomes, "")


def player(game: PinpointRow | None) -> PeerId | None:
    """Who plays against the accused, once that is known."""
    return game.challenger if game is not None and game.challenger != NO_ACCOUNT else None

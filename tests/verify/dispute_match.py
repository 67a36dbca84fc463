"""A small GPT's segment of two steps, honest and not, and its dispute through the law: for tests."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from core_tiny_program import ROUND, SEGMENT
from ledger_game import BOND, REST, A, Game

from farflung.core.canon import program as programs
from farflung.core.canon.referee import RefereeCase, RefereeRuling, ruling
from farflung.core.canon.tile_tree import TileTree, leaf_hash
from farflung.core.commitments import BorderRoots
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.job.dataset import Dataset
from farflung.job.spec import AuditSpec, JobSpec, ModelSpec, OptimizerSpec, ScheduleSpec, SyncSpec, Tolerance
from farflung.ledger.pinpoint_game import PinpointStage, ShowTile
from farflung.train import flat_model as models
from farflung.train import inner_steps, segments, worker_messages
from farflung.train.round_work import WorkerJob
from farflung.train.segments import BorderState
from farflung.train.sync_arithmetic import Sync
from farflung.verify.canon import step_graph
from farflung.verify.canon.dispute_execution import (
    DisputedSegment,
    SegmentExecution,
    executed,
    play,
    segment_of,
    tiles_of,
)
from farflung.verify.canon.job_program import JobProgramParts, assemble
from farflung.verify.canon.tile_proofs import exhibit, leaf_tile
from farflung.verify.dispute_player import DisputePlayer, DisputeRole, next_move

Spoil = Callable[[int, int, np.ndarray], None]
SEAT, STEPS, LIMIT = 1, 4, 1 << 19
SPEC = JobSpec(
    seed=5,
    rounds=5,
    batch=2,
    model=ModelSpec(layers=1, width=48, heads=2, context=3, vocabulary=80),
    optimizer=OptimizerSpec(name="adamw", lr=1e-2),
    schedule=ScheduleSpec(warmup=3),
    sync=SyncSpec(steps=STEPS),
    audit=AuditSpec(segments=2),
)
TOKENS = (np.arange(3000, dtype=np.uint16) ** 2 % 79).astype(np.uint8)


@functools.cache
def job() -> WorkerJob:
    setup = worker_messages.SetupCommand(SPEC, b"", b"", SEAT, PeerId(bytes(32)))
    model = models.build(SPEC, b"")
    return WorkerJob(setup, Dataset(TOKENS, TOKENS[:100]), model, Sync(SPEC), models.initial(SPEC, model))


def tolerance() -> Tolerance:
    """A limit for every tensor but the key's bias, whose gradient is rounding noise."""
    layout = job().model.layout
    row = tuple(0 if t.name.endswith("qkv.bias") else LIMIT for t in layout.tensors)
    return Tolerance(tuple((name, row) for name in ("params", "mean", "square")))


@functools.cache
def parts() -> JobProgramParts:
    one = job()
    graph = step_graph.traced(one.model, SPEC)
    return assemble(SPEC, one.model.layout, tolerance(), graph, step_graph.buffers(one.model), TOKENS)


def leg(begin: BorderState, steps: range) -> BorderState:
    """Native work."""
    one = job()
    batches = one.batches(begin.round, SEAT)
    return inner_steps.run_steps(one.model, SPEC, begin, batches, SEAT, steps, lambda: None).end


@functools.cache
def border(index: int) -> BorderState:
    """Of the honest round: at its begin, at half, at its end."""
    if index == 0:
        return BorderState(ROUND, 0, job().start)
    return leg(border(index - 1), range(2 * index - 2, 2 * index))


def shown(state: BorderState, index: int) -> BorderRoots:
    return segments.border(job().model.layout, SPEC.optimizer, index, state, ZERO_HASH)


def segment(claimed: BorderState | None = None, index: int = SEGMENT) -> DisputedSegment:
    start, end = border(index), claimed or border(index + 1)
    run = programs.SegmentSteps(2 * index, 2)
    return segment_of(parts(), job().model.layout, job().start, SEAT, run, start, end)


def cheat() -> BorderState:
    """Who left one of the two steps out."""
    end = leg(border(1), range(2, 3))
    return replace(end, step=end.step + 1)


def tiles_made(about: DisputedSegment, spoil: Spoil | None = None) -> list[bytes]:
    """All leaves of an execution; `spoil` may change any value that is made, and so all that follows from it."""
    found: list[bytes] = []

    def seen(step: int) -> Callable[[int, np.ndarray], None]:
        def each(number: int, value: np.ndarray) -> None:
            if spoil is not None:
                spoil(step, number, value)
            found.extend(tiles_of(value))

        return each

    executed(parts(), about, about.run.steps, seen)
    return found


class Liar:
    """An execution with one thing changed: bytes of one leaf (absorbed), or a value and all that follows from it."""

    def __init__(
        self, about: DisputedSegment, leaf: int | None = None, bit: int = 1, spoil: Spoil | None = None
    ) -> None:
        self.about = about
        self.tiles = tiles_made(about, spoil) if spoil else list(_tiles(about))
        if leaf is not None:
            changed = bytearray(self.tiles[leaf])
            changed[0] ^= bit
            self.tiles[leaf] = bytes(changed)
        tree = TileTree(leaf_hash(at, data) for at, data in enumerate(self.tiles))
        self.execution = SegmentExecution(tree, self.tiles[-1] == b"\1")

    def player(self, role: DisputeRole, **change: object) -> DisputePlayer:
        """One that plays its wrong tree to the end."""
        hoped = self.execution._replace(is_guilty=role is DisputeRole.CHALLENGER)
        return _player(self.about, hoped, role)._replace(tile=lambda leaf: self.tiles[leaf], **change)


def honest(about: DisputedSegment, role: DisputeRole) -> DisputePlayer:
    return _player(about, _played(about), role)


_KNOWN: dict[tuple[str, int], tuple[DisputedSegment, Any]] = {}  # segments are no keys: they hold arrays


def _once(what: Callable[[DisputedSegment], Any], about: DisputedSegment) -> Any:
    key = what.__name__, id(about)
    if key not in _KNOWN:
        _KNOWN[key] = about, what(about)
    return _KNOWN[key][1]


def _played(about: DisputedSegment) -> SegmentExecution:
    return _once(_play, about)


def _play(about: DisputedSegment) -> SegmentExecution:
    return play(parts(), about)


def _tiles(about: DisputedSegment) -> list[bytes]:
    return _once(tiles_made, about)


def _player(about: DisputedSegment, execution: SegmentExecution, role: DisputeRole) -> DisputePlayer:
    return DisputePlayer(
        role,
        execution,
        REST,
        parts().program,
        lambda leaf: leaf_tile(parts(), about, leaf),
        lambda leaf, pair: exhibit(parts(), about, execution.tree, leaf, pair),
        bond=BOND if role is DisputeRole.ACCUSED else 0,
    )


def first_difference(mine: TileTree, other: TileTree) -> int:
    return next(at for at in itertools.count() if mine.leaf(at) != other.leaf(at))


def judged(
    about: DisputedSegment, mine: DisputePlayer, other: Liar, claimed: BorderState, index: int = SEGMENT
) -> RefereeRuling:
    """What the referee finds of the first leaf that differs; `mine` is the accused's."""
    leaf = first_difference(mine.execution.tree, other.execution.tree)
    pair = mine.tile(leaf), other.tiles[leaf]
    borders = shown(border(index), index), shown(claimed, index + 1)
    roots = mine.execution.tree.root, other.execution.tree.root
    nodes = leaf_hash(leaf, pair[0]), leaf_hash(leaf, pair[1])
    case = RefereeCase(parts().program, ROUND, SEAT, about.run, *borders, roots, leaf, nodes)
    return ruling(case, mine.prove(leaf, pair))


class Real:
    """What tests/ledger's game needs of a program, of this one."""

    def __init__(self, claimed: BorderState) -> None:
        self.program = parts().program
        self.borders = shown(border(SEGMENT), SEGMENT), shown(claimed, SEGMENT + 1)


class Match(Game):
    """A dispute that players play by themselves, each as soon as it may."""

    def __init__(self, accused: DisputePlayer, challenger: DisputePlayer, claimed: BorderState) -> None:
        super().__init__(None, None, Real(claimed))
        self.sides = accused._replace(borders=self.borders()), challenger
        self.shown: list[bytes | None] = [None, None]
        self.silent: dict[PinpointStage, int] = {}  # who says nothing in a stage
        self.spent: list[object] = []

    def moves(self) -> bool:
        """One block with what both have to say; False when nobody has anything."""
        row, signed = self.row, []
        for side, key in enumerate((A, self.rival)):
            if self.silent.get(row.stage) == side or (side and row.beaten):
                continue
            op = next_move(self.sides[side], row, tuple(self.shown))
            if op is not None:
                signed.append((side, op, self.sign(key, op)))
        if not signed:
            return False
        self.send(*(each for _, _, each in signed))
        for side, op, _ in signed:
            self.spent.append(op)
            if isinstance(op, ShowTile):
                self.shown[side] = op.data
        return True

    def over(self) -> Match:
        """Played to the end, the clock's if nobody speaks."""
        while self.row.stage != PinpointStage.CLOSED:
            if not self.moves():
                self.wait()
        return self

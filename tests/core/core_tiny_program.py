"""A tiny program of two steps and its executions, made with nothing but tiles: for tests of the referee and the law.

The step takes every kind of source and most operations whose elements need several tiles; the judging graph says
guilty where the claimed weights lie farther from the canonical ones than these from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farflung.core import merkle
from farflung.core.canon import input_roots, tile_tree, tiles
from farflung.core.canon import program as programs
from farflung.core.canon.array_operations import DTYPES, canonical_bytes
from farflung.core.canon.graph import CanonicalGraph, GraphInput, GraphNode, GraphOutput, check, graph_id
from farflung.core.canon.input_roots import InputLeafProof
from farflung.core.canon.program import CanonicalProgram, ProgramEntry, SegmentSteps, Source, listed
from farflung.core.canon.referee import ElementProof, EntryProof, RefereeCase, TileProof
from farflung.core.canon.tiles import Places
from farflung.core.canon.window_order import starts
from farflung.core.codec import encode
from farflung.core.commitments import BorderRoots
from farflung.core.ids import ZERO_HASH
from farflung.core.tensor_layout import TensorLayout, state_root

Array = NDArray[Any]
Corrupt = Callable[[int, bytes], bytes]  # leaf number, canonical bytes → what a liar commits to

VOCABULARY, WIDTH, ROWS, CONTEXT = 70, 4, 2, 3
F32, I64, BOOL = "f32", "i64", "bool"
ROUND, SEAT, SEGMENT, STEPS, ROUND_STEPS, SEED, COUNTED = 3, 1, 1, 2, 4, 5, 11

STEP_INPUTS = (
    ("params/w", F32, (WIDTH,)),
    ("m/w", F32, (WIDTH,)),
    ("buffers/table", F32, (VOCABULARY, WIDTH)),
    ("x", I64, (ROWS, CONTEXT)),
    ("y", I64, (ROWS, CONTEXT)),
    ("lr", F32, ()),
    ("decay", F32, ()),
)
TOKENS_IN_BATCH = ROWS * CONTEXT


def step_graph() -> CanonicalGraph:
    inputs = tuple(GraphInput(*each) for each in STEP_INPUTS)
    n, d = TOKENS_IN_BATCH, WIDTH
    nodes = (
        GraphNode("move", (3,), I64, (n,), (0, 1)),  # 7
        GraphNode("take", (2, 7), F32, (n, d), ()),
        GraphNode("move", (0,), F32, (1, d, 1), (0, 0, 1, 1)),
        GraphNode("move", (8,), F32, (1, n, d), (0, 0, d, 1)),  # 10
        GraphNode("matmul", (10, 9), F32, (1, n, 1), ()),
        GraphNode("convert", (4,), F32, (ROWS, CONTEXT), ()),
        GraphNode("move", (11,), F32, (ROWS, CONTEXT), (0, CONTEXT, 1)),
        GraphNode("sub", (13, 12), F32, (ROWS, CONTEXT), ()),
        GraphNode("mul", (14, 14), F32, (ROWS, CONTEXT), ()),  # 15
        GraphNode("sum", (15,), F32, (ROWS,), ()),
        GraphNode("put_add", (7, 8), F32, (VOCABULARY, d), (VOCABULARY,)),
        GraphNode("move", (17,), F32, (d, VOCABULARY), (0, 1, d)),
        GraphNode("max", (18,), F32, (d,), ()),
        GraphNode("mul", (1, 6), F32, (d,), ()),  # 20
        GraphNode("add", (20, 19), F32, (d,), ()),
        GraphNode("mul", (21, 5), F32, (d,), ()),
        GraphNode("sub", (0, 22), F32, (d,), ()),
        GraphNode("place", (23, 16), F32, (d,), (1,)),  # the losses in its midst
        GraphNode("exp", (24,), F32, (d,), ()),  # 25
    )
    return CanonicalGraph(inputs, nodes, (GraphOutput("params/w", 23), GraphOutput("m/w", 21)))


STEP_SOURCES: dict[str, Source] = {
    "params/w": (programs.STATE, (23,)),
    "m/w": (programs.STATE, (21,)),
    "buffers/table": (programs.BUFFER, ()),
    "x": (programs.BATCH, (0,)),
    "y": (programs.BATCH, (1,)),
    "lr": (programs.BY_STEP, (0,)),
    "decay": (programs.BY_COUNT, (1,)),
}
JUDGE_SOURCES: dict[str, Source] = {
    "start/params/w": (programs.START, ()),
    "claimed/params/w": (programs.CLAIMED, ()),
    "final/params/w": (programs.FINAL, (23,)),
}


def judge_graph() -> CanonicalGraph:
    inputs = tuple(GraphInput(name, F32, (WIDTH,)) for name in JUDGE_SOURCES)
    nodes = (
        GraphNode("sub", (1, 2), F32, (WIDTH,), ()),
        GraphNode("mul", (3, 3), F32, (WIDTH,), ()),
        GraphNode("sum", (4,), F32, (), ()),
        GraphNode("sub", (2, 0), F32, (WIDTH,), ()),
        GraphNode("mul", (6, 6), F32, (WIDTH,), ()),
        GraphNode("sum", (7,), F32, (), ()),
        GraphNode("le", (5, 8), BOOL, (), ()),
        GraphNode("not", (9,), BOOL, (), ()),
    )
    return CanonicalGraph(inputs, nodes, (GraphOutput("guilty", 10),))


def _draw(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class World:
    """The data of one segment. `off`: how far the claimed end lies from the canonical one."""

    off: float = 0.0
    tokens: Array = field(default_factory=lambda: np.arange(5000, dtype=np.uint16) * 7 % VOCABULARY)
    table: Array = field(default_factory=lambda: _draw(1, VOCABULARY, WIDTH))
    by_step: Array = field(default_factory=lambda: _draw(2, 40, 1))
    by_count: Array = field(default_factory=lambda: _draw(3, 40, 2))
    state: dict[str, Array] = field(default_factory=lambda: {"m/w": _draw(4, WIDTH), "params/w": _draw(5, WIDTH)})

    @cached_property
    def entries(self) -> tuple[ProgramEntry, ...]:
        step, judge = step_graph(), judge_graph()
        check(step)
        check(judge)
        return listed(step, STEP_SOURCES) + listed(judge, JUDGE_SOURCES)

    @cached_property
    def leaves(self) -> list[bytes]:
        """The encoded entries."""
        return [encode(entry) for entry in self.entries]

    @cached_property
    def program(self) -> CanonicalProgram:
        step, judge = step_graph(), judge_graph()
        values = len(step.inputs) + len(step.nodes)
        last, end = self.entries[values - 1], self.entries[-1]
        return CanonicalProgram(
            graph=graph_id(step),
            judge=graph_id(judge),
            listing=merkle.root(self.leaves),
            values=values,
            judged=len(self.entries) - values,
            leaves=last.first + tiles.tile_count(last.shape),
            closing=end.first + tiles.tile_count(end.shape),
            buffers=input_roots.buffers_root({"buffers/table": self.table}),
            by_step=input_roots.table_root(self.by_step),
            by_count=input_roots.table_root(self.by_count),
            tokens=input_roots.tokens_root(self.tokens),
            seed=SEED,
            rows=ROWS,
            context=CONTEXT,
            places=len(self.tokens) - CONTEXT,
            round_steps=ROUND_STEPS,
            segments=2,
            step_tokens=TOKENS_IN_BATCH,
        )

    @property
    def run(self) -> SegmentSteps:
        return SegmentSteps(2, STEPS)

    @cached_property
    def claimed(self) -> dict[str, Array]:
        """What the accused claims to have come to."""
        final = self.values[STEPS - 1]
        return {"m/w": final[21], "params/w": final[23] + np.float32(self.off)}

    @property
    def borders(self) -> tuple[BorderRoots, BorderRoots]:
        return self._border(SEGMENT, COUNTED, self.state), self._border(SEGMENT + 1, COUNTED + STEPS, self.claimed)

    def _border(self, index: int, counted: int, state: dict[str, Array]) -> BorderRoots:
        layout = TensorLayout.of({"w": (WIDTH,)})
        params = state_root(layout, {"params": state["params/w"]})
        return BorderRoots(ROUND, index, counted, params, state_root(layout, {"m": state["m/w"]}), ZERO_HASH)

    @cached_property
    def values(self) -> list[dict[int, Array]]:
        """All values of each step."""
        made: list[dict[int, Array]] = []
        state = self.state
        for step in range(STEPS):
            values = _executed(step_graph(), [*state_of(state), *self.read(step)])
            state = {"params/w": values[23], "m/w": values[21]}
            made.append(values)
        return made

    def read(self, step: int) -> list[Array]:
        """The inputs of a step behind its state."""
        done = self.run.first + step
        begin = starts(SEED, ROUND, SEAT, done, ROWS, self.program.places)
        rows = np.stack([self.tokens[at : at + CONTEXT + 1] for at in begin]).astype(np.int64)
        lr, decay = self.by_step[ROUND * ROUND_STEPS + done, 0], self.by_count[COUNTED + step, 1]
        return [self.table, rows[:, :-1], rows[:, 1:], np.asarray(lr), np.asarray(decay)]

    @cached_property
    def honest(self) -> list[bytes]:
        """The canonical bytes of every leaf."""
        final = self.values[-1]
        inputs = [self.state["params/w"], self.claimed["params/w"], final[23]]
        parts = [*self.values, _executed(judge_graph(), inputs)]
        return [
            canonical_bytes(_tile(values[number], tile))
            for values in parts
            for number in sorted(values)
            for tile in range(tiles.tile_count(values[number].shape))
        ]

    def player(self, corrupt: Corrupt = lambda _, tile: tile) -> Player:
        return Player(self, [corrupt(number, tile) for number, tile in enumerate(self.honest)])


def state_of(state: dict[str, Array]) -> list[Array]:
    return [state["params/w"], state["m/w"]]


def _tile(value: Array, tile: int) -> Array:
    at = tiles.box(value.shape, tile)
    return value.reshape(tiles.matrix(value.shape))[at.top : at.bottom, at.left : at.right]


def _executed(graph: CanonicalGraph, inputs: list[Array]) -> dict[int, Array]:
    values = dict(enumerate(inputs))
    for at, node in enumerate(graph.nodes):

        def fetch(which: int, places: Places, node: GraphNode = node) -> Array:
            return np.asarray(values[node.args[which]]).reshape(-1)[places]

        number = len(inputs) + at
        whole = np.zeros(tiles.matrix(node.shape), DTYPES[node.kind])
        for tile in range(tiles.tile_count(node.shape)):
            box = tiles.box(node.shape, tile)
            whole[box.top : box.bottom, box.left : box.right] = tiles.compute(graph, number, tile, fetch)
        values[number] = whole.reshape(node.shape)
    return values


@dataclass
class Player:
    """One side's tiles and their tree."""

    world: World
    tiles: list[bytes]

    @cached_property
    def tree(self) -> tile_tree.TileTree:
        return tile_tree.TileTree(tile_tree.leaf_hash(number, tile) for number, tile in enumerate(self.tiles))

    def opened(self, leaf: int) -> TileProof:
        return TileProof(leaf, self.tiles[leaf], self.tree.path(leaf))


def first_difference(accused: Player, challenger: Player) -> int:
    pairs = zip(accused.tiles, challenger.tiles, strict=True)
    return next(leaf for leaf, (mine, theirs) in enumerate(pairs) if mine != theirs)


def case_of(world: World, accused: Player, challenger: Player, leaf: int) -> RefereeCase:
    roots = accused.tree.root, challenger.tree.root
    nodes = accused.tree.leaf(leaf), challenger.tree.leaf(leaf)
    return RefereeCase(world.program, ROUND, SEAT, world.run, *world.borders, roots, leaf, nodes)


def listing(world: World, index: int) -> EntryProof:
    return EntryProof(index, world.entries[index], merkle.prove(world.leaves, index))


def exhibit_of(world: World, accused: Player, challenger: Player, leaf: int) -> ElementProof:
    """All tiles of all arguments: more than one element needs, but the program is tiny."""
    program = world.program
    place = programs.place_of(program, STEPS, leaf)
    index = _index_at(world, place)
    entry = world.entries[index]
    args, base = (
        [programs.entry_index(program, arg, is_judged=place.is_judged) for arg in entry.args],
        place.step * program.leaves,
    )
    if entry.op == programs.FINAL or (entry.op == programs.STATE and place.step):
        args, base = [entry.attrs[0]], (place.step - 1) * program.leaves
    opened = [
        challenger.opened(base + world.entries[arg].first + tile)
        for arg in dict.fromkeys(args)
        for tile in range(tiles.tile_count(world.entries[arg].shape))
    ]
    pair = accused.tiles[leaf], challenger.tiles[leaf]
    flat = _flat(entry, leaf - place.step * program.leaves - entry.first, pair)
    pieces = _pieces(world, entry, place.step, flat)
    shown = tuple(listing(world, arg) for arg in args)
    return ElementProof(listing(world, index), shown, pair, tuple(opened), pieces)


def _index_at(world: World, place: programs.LeafPosition) -> int:
    part = range(world.program.values, len(world.entries)) if place.is_judged else range(world.program.values)
    return next(
        index
        for index in part
        if 0 <= place.offset - world.entries[index].first < tiles.tile_count(world.entries[index].shape)
    )


def _flat(entry: ProgramEntry, tile: int, pair: tuple[bytes, bytes]) -> int:
    """The first element that differs; 0 where a tile has another length."""
    item, at = DTYPES[entry.kind].itemsize, 0
    if len(pair[0]) == len(pair[1]):
        at = next(n for n in range(len(pair[0])) if pair[0][n] != pair[1][n]) // item
    box = tiles.box(entry.shape, tile)
    row, column = divmod(at, box.shape[1])
    return (box.top + row) * tiles.matrix(entry.shape)[1] + box.left + column


def _pieces(world: World, entry: ProgramEntry, step: int, flat: int) -> tuple[InputLeafProof, ...]:
    """The element's source, for an input that has one outside."""
    if entry.op in (programs.START, programs.CLAIMED) or (entry.op == programs.STATE and not step):
        held = world.claimed if entry.op == programs.CLAIMED else world.state
        name = entry.name.removeprefix(f"{entry.op}/")
        return input_roots.open_tensor({name: held[name]}, name, flat)
    if entry.op == programs.BUFFER:
        return input_roots.open_tensor({entry.name: world.table}, entry.name, flat)
    if entry.op == programs.BATCH:
        row, column = divmod(flat, CONTEXT)
        begin = starts(SEED, ROUND, SEAT, world.run.first + step, ROWS, world.program.places)[row]
        return input_roots.open_token(world.tokens, begin + column + entry.attrs[0])
    if entry.op == programs.BY_STEP:
        return input_roots.open_row(world.by_step, ROUND * ROUND_STEPS + world.run.first + step)
    if entry.op == programs.BY_COUNT:
        return input_roots.open_row(world.by_count, COUNTED + step)
    return ()

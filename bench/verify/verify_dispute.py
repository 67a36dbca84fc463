"""What a dispute of the default job costs: the players' execution, what they say, and what the referee is shown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from reporting import Row, at_most, told

from farflung.core.canon.program import SegmentSteps
from farflung.core.canon.referee import RefereeCase, read, ruling
from farflung.core.canon.tile_tree import TileTree, leaf_hash
from farflung.core.codec import encode
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.job.io.job_files import read_dataset
from farflung.job.job_loader import load as read_job
from farflung.job.spec import Tolerance
from farflung.ledger.pinpoint_game import BorderProof, Descend, FirstMove
from farflung.train import flat_model, inner_steps, segments
from farflung.train.contribution_trace import PARAMS
from farflung.train.inner_state import VECTORS
from farflung.train.segments import BorderState
from farflung.verify.canon import dispute_execution
from farflung.verify.canon.dispute_execution import DisputedSegment
from farflung.verify.canon.job_program import JobProgramParts, assemble
from farflung.verify.canon.step_graph import buffers, traced
from farflung.verify.canon.tile_proofs import exhibit, leaf_tile
from farflung.verify.tolerance import limit_of

NOBODY, NOTHING = PeerId(bytes(32)), Hash(bytes(32))
KIB = 1 << 10


def dispute(quick: bool) -> Iterator[Row]:
    """One segment of the first round of the default job, natively made and then disputed."""
    spec = read_job(None).spec
    tokens = read_dataset(spec.data, spec.model, Path()).train
    built = flat_model.build(spec, b"")
    start = BorderState(0, 0, flat_model.initial(spec, built))
    run = SegmentSteps(0, 1 if quick else spec.borders[1])
    row = (limit_of(0.0),) * len(built.layout.tensors)
    tolerance = Tolerance(tuple((vector, row) for vector in (PARAMS, *VECTORS[spec.optimizer.name])))
    parts = assemble(spec, built.layout, tolerance, traced(built, spec), buffers(built), tokens)
    batches = inner_steps.batches(tokens, spec, 0, 0)
    before = time.process_time()
    end = inner_steps.run_steps(built, spec, start, batches, 0, range(run.steps), lambda: None).end
    native = time.process_time() - before
    assert start.params is not None
    about = dispute_execution.segment_of(parts, built.layout, start.params, 0, run, start, end)
    dispute_execution.play(parts, about)  # warm: loops are compiled once a process
    before = time.process_time()
    played = dispute_execution.play(parts, about)
    spent = time.process_time() - before
    leaves, steps = played.tree.leaves, f"{run.steps} steps, {start.params.size} parameters"
    yield told("dispute, player", spent / native, "x", f"processor time of the native segment: {steps}")
    yield told("dispute, leaves", leaves, "", f"tiles of {steps}; {len(parts.entries)} values in the program")
    yield at_most("dispute, ledger rounds", played.tree.depth + 3, "", 8, "program, first, levels, tiles, referee")
    yield at_most("dispute, messages", said(played.tree), "B", 8 * KIB, "both sides, without tiles and program")
    borders = (
        segments.border(built.layout, spec.optimizer, at, state, ZERO_HASH) for at, state in ((0, start), (1, end))
    )
    yield from shown(parts, about, played.tree, tuple(borders), 4 if quick else 8)


def said(tree: TileTree) -> int:
    """Bytes of all operations of both sides down to a leaf, but for the tiles that they show."""
    children = tree.children(tree.depth, 0)
    border = segments.BorderRoots(0, 0, 0, NOTHING, NOTHING, NOTHING)
    opened = (BorderProof(border, (NOTHING,) * 3),) * 2
    first = [FirstMove(NOTHING, NOBODY, 1 << 40, which, children) for which in (opened, ())]
    down = [Descend(NOTHING, NOBODY, level, 0, tree.children(level, 0)) for level in range(1, tree.depth)]
    return sum(len(encode(op)) for op in [*first, *down, *down])


def shown(
    parts: JobProgramParts,
    about: DisputedSegment,
    tree: TileTree,
    borders: tuple[segments.BorderRoots, ...],
    count: int,
) -> Iterator[Row]:
    """What the referee is given for lies at drawn leaves, and how long it takes over the slowest."""
    draw, sizes, times, found = np.random.default_rng(3), [], [], []
    for leaf in draw.integers(0, tree.leaves, count).tolist():
        right = leaf_tile(parts, about, leaf)
        wrong = bytes([right[0] ^ 1]) + right[1:]
        before = time.process_time()
        data = encode(exhibit(parts, about, tree, leaf, (wrong, right)))
        found.append(time.process_time() - before)
        hashes = [tree.leaf(number) for number in range(tree.leaves)]
        hashes[leaf] = leaf_hash(leaf, wrong)
        pair, nodes = (TileTree(hashes).root, tree.root), (hashes[leaf], tree.leaf(leaf))
        case = RefereeCase(parts.program, 0, 0, about.run, *borders, pair, leaf, nodes)
        before = time.process_time()
        assert ruling(case, read(data)) == (False, True)
        times.append(time.process_time() - before)
        sizes.append(len(data))
    where = f"the largest of {count} leaves drawn among {tree.leaves}"
    yield at_most("dispute, shown to the referee", max(sizes), "B", 240 * KIB, where)
    yield at_most("dispute, referee", max(times), "s", 1, f"of the processor, {where}")
    yield told("dispute, proof", max(found), "s", f"of a player's processor, {where}")

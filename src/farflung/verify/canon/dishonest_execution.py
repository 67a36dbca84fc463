"""Simulates an execution that lies at its end, as a guilty node would that denies it: a test opponent for
disputes.

All is executed as it should be, but for the state that the last step makes: there stands the state that was claimed,
and the verdict is computed from that. So the verdict says "not guilty", and the first leaf that differs from an honest
execution is a tile of that state, of which a referee computes one element. Nothing here proves anything.
"""

from __future__ import annotations

from farflung.core.canon.array_operations import Array
from farflung.core.canon.tile_tree import TileTree, leaf_hash
from farflung.core.ids import Hash
from farflung.verify.canon import dispute_execution, tile_proofs
from farflung.verify.canon.dispute_execution import DisputedSegment, SegmentExecution
from farflung.verify.canon.job_program import JobProgramParts


def play(parts: JobProgramParts, segment: DisputedSegment) -> SegmentExecution:
    """The tree of the lie; raises what `playing.play` raises."""
    hashes: list[Hash] = []
    last, lies = segment.run.steps - 1, _lies(parts, segment)

    def add(value: Array) -> None:
        tiles = enumerate(dispute_execution.tiles_of(value), len(hashes))
        hashes.extend(leaf_hash(number, data) for number, data in tiles)

    dispute_execution.executed(
        parts, segment, last, lambda step: lambda number, value: add(lies.get(number, value) if step == last else value)
    )
    is_guilty = dispute_execution.judged(parts, segment, segment.claimed, lambda _, value: add(value))
    return SegmentExecution(TileTree(hashes), is_guilty)


def tile(parts: JobProgramParts, segment: DisputedSegment, leaf: int) -> bytes:
    """The bytes of one leaf of the lie. Raises ProtocolError FF-CORE-072: no such leaf."""
    place, value, entry = tile_proofs.located(parts, segment, leaf)
    lies = _lies(parts, segment) if place.step == segment.run.steps - 1 else {}
    if place.is_judged:
        seen = dict[int, Array]()
        dispute_execution.judged(parts, segment, segment.claimed, seen.__setitem__)
        lies = {value: seen[value]}
    if value not in lies:
        return tile_proofs.leaf_tile(parts, segment, leaf)
    return dispute_execution.tile(lies[value], place.offset - entry.first)


def _lies(parts: JobProgramParts, segment: DisputedSegment) -> dict[int, Array]:
    """The state that the last step makes, by the numbers of its values, as it was claimed."""
    named = {out.value: out.name for out in parts.graph.outputs}
    return {value: segment.claimed[name] for value, name in named.items() if name in segment.claimed}

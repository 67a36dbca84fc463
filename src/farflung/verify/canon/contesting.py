"""An execution that lies at its end, for a guilty node that denies it: what disputes have to be tried against.

All is executed as it should be, but for the state that the last step makes: there stands the state that was claimed,
and the verdict is computed from that. So the verdict says "not guilty", and the first leaf that differs from an honest
execution is a tile of that state, of which a referee computes one element. Nothing here proves anything.
"""

from __future__ import annotations

from farflung.core.canon.elements import Array
from farflung.core.canon.tree import Tree, leaf_hash
from farflung.core.ids import Hash
from farflung.verify.canon import exhibits, playing
from farflung.verify.canon.playing import Played, Segment
from farflung.verify.canon.programs import Parts


def play(parts: Parts, segment: Segment) -> Played:
    """The tree of the lie; raises what `playing.play` raises."""
    hashes: list[Hash] = []
    last, lies = segment.run.steps - 1, _lies(parts, segment)

    def add(value: Array) -> None:
        tiles = enumerate(playing.tiles_of(value), len(hashes))
        hashes.extend(leaf_hash(number, data) for number, data in tiles)

    playing.executed(
        parts,
        segment,
        last,
        lambda step: lambda number, value: add(lies.get(number, value) if step == last else value),
    )
    is_guilty = playing.judged(parts, segment, segment.claimed, lambda _, value: add(value))
    return Played(Tree(hashes), is_guilty)


def tile(parts: Parts, segment: Segment, leaf: int) -> bytes:
    """The bytes of one leaf of the lie. Raises ProtocolError FF-CORE-072: no such leaf."""
    place, value, entry = exhibits.located(parts, segment, leaf)
    lies = _lies(parts, segment) if place.step == segment.run.steps - 1 else {}
    if place.is_judged:
        seen = dict[int, Array]()
        playing.judged(parts, segment, segment.claimed, seen.__setitem__)
        lies = {value: seen[value]}
    if value not in lies:
        return exhibits.leaf_tile(parts, segment, leaf)
    return playing.tile(lies[value], place.offset - entry.first)


def _lies(parts: Parts, segment: Segment) -> dict[int, Array]:
    """The state that the last step makes, by the numbers of its values, as it was claimed."""
    named = {out.value: out.name for out in parts.graph.outputs}
    return {value: segment.claimed[name] for value, name in named.items() if name in segment.claimed}

"""The referee is total: whatever the terms list and whatever two players agreed on, an answer or a clear refusal.

Terms are the submitter's, and trees are the players': neither is to be believed in more than it proves.
"""

from __future__ import annotations

import pytest
from core_tiny_program import Player, World, case_of, exhibit_of, listing
from msgspec.structs import replace

from farflung.core.canon import referee
from farflung.core.canon.program import place_of, tile_at
from farflung.core.canon.referee import RefereeRuling
from farflung.core.errors import ProtocolError

SUB, SUM, LR, X, W = 14, 16, 5, 3, 0  # values of the step's graph


def crooked(index: int, **change: object) -> World:
    """Terms that list a value otherwise than its graph has it."""
    world = World()
    entries = list(world.entries)
    entries[index] = replace(entries[index], **change)
    world.__dict__["entries"] = tuple(entries)
    return world


def rule(world: World, leaf: int, accused: Player | None = None, rival: Player | None = None) -> RefereeRuling:
    """One unit off at `leaf`, unless other players are given; the exhibit is encoded and read."""
    one, two = rival or world.player(), accused or world.player(lambda at, t: off(t) if at == leaf else t)
    shown = exhibit_of(world, two, one, leaf)
    return referee.ruling(case_of(world, two, one, leaf), shown)


def off(tile: bytes) -> bytes:
    return bytes([tile[0] ^ 1]) + tile[1:]


def leaf_of(world: World, value: int, step: int = 0) -> int:
    return step * world.program.leaves + world.entries[value].first


def test_terms_that_are_right_are_decided():
    world = World()
    assert rule(world, leaf_of(world, SUB)) == RefereeRuling(accused=False, challenger=True)


IMPOSSIBLE = [
    (SUB, 0, {"shape": (3, 2)}, "FF-CORE-078"),  # its arguments make 2 x 3
    (SUB, 0, {"kind": "i64"}, "FF-CORE-078"),
    (SUB, 0, {"op": "matmul"}, "FF-CORE-064"),
    (SUB, 0, {"op": "unheard"}, "FF-CORE-063"),
    (SUB, 0, {"attrs": (1,)}, "FF-CORE-065"),
    (SUB, 0, {"args": (13, 15)}, "FF-CORE-074"),  # a value behind it: its tile is not agreed
    (SUB, 0, {"args": (13, 13, 13, 13)}, "FF-CORE-064"),
    (W, 1, {"attrs": (SUM,)}, "FF-CORE-078"),  # a value of another shape
    (W, 1, {"attrs": ()}, "FF-CORE-078"),
    (W, 1, {"attrs": (-1,)}, "FF-CORE-078"),
    (X, 0, {"kind": "f32"}, "FF-CORE-078"),
    (X, 0, {"attrs": ()}, "FF-CORE-078"),
    (LR, 0, {"shape": (1,)}, "FF-CORE-078"),
    (LR, 0, {"kind": "i64"}, "FF-CORE-078"),
    (LR, 0, {"attrs": ()}, "FF-CORE-078"),
    (LR, 0, {"attrs": (7,)}, "FF-CORE-074"),  # the table has no such column
]


def test_terms_that_list_what_cannot_be_are_refused():
    honest = World()
    tiles = honest.player()
    for value, step, change, code in IMPOSSIBLE:
        world, leaf = crooked(value, **change), leaf_of(honest, value, step)
        liar = honest.player(lambda at, tile, leaf=leaf: off(tile) if at == leaf else tile)
        shown = exhibit_of(honest, liar, tiles, leaf)
        behind = tiles.opened(leaf + 1)
        shown = replace(shown, value=listing(world, value), args=arguments(world, value, step))
        shown = replace(shown, opened=(*shown.opened, behind))
        with pytest.raises(ProtocolError, match=code):
            referee.ruling(case_of(world, liar, tiles, leaf), shown)


def arguments(world: World, value: int, step: int) -> tuple[referee.EntryProof, ...]:
    """What the crooked entry names."""
    entry = world.entries[value]
    named = entry.attrs if entry.op == "state" and step else entry.args
    return tuple(listing(world, index) for index in named if 0 <= index < len(world.entries))


def test_an_entry_without_kind_shape_or_place_is_refused():
    honest = World()
    leaf = leaf_of(honest, SUB)
    tiles, liar = honest.player(), honest.player(lambda at, tile: off(tile) if at == leaf else tile)
    for change in ({"kind": "f16"}, {"shape": (0,)}, {"shape": (1 << 40,)}, {"first": -1}, {"shape": (1,) * 9}):
        world = crooked(SUB, **change)
        shown = replace(exhibit_of(honest, liar, tiles, leaf), value=listing(world, SUB))
        with pytest.raises(ProtocolError, match="FF-CORE-078"):
            referee.ruling(case_of(world, liar, tiles, leaf), shown)


def test_arguments_in_another_order_are_refused_even_where_they_fit():
    """b - a in place of a - b would make the liar right."""
    world = World()
    leaf = leaf_of(world, SUB)
    liar, tiles = world.player(lambda at, tile: off(tile) if at == leaf else tile), world.player()
    shown = exhibit_of(world, liar, tiles, leaf)
    with pytest.raises(ProtocolError, match="FF-CORE-079"):
        referee.ruling(case_of(world, liar, tiles, leaf), replace(shown, args=shown.args[::-1]))


def test_a_tile_of_another_length_that_both_agreed_on_is_refused():
    world = World()
    leaf, wrong = leaf_of(world, SUB), leaf_of(world, SUB - 1)
    for tile in (b"", bytes(23), bytes(25)):
        both = world.player(lambda at, t, tile=tile: tile if at == wrong else t)
        liar = Player(world, [off(t) if at == leaf else t for at, t in enumerate(both.tiles)])
        with pytest.raises(ProtocolError, match="FF-CORE-074"):
            rule(world, leaf, liar, both)


def test_a_leaf_beyond_the_execution_and_an_entry_beside_it_are_none():
    program, entry = World().program, World().entries[SUB]
    for leaf in (-1, 2 * program.leaves + program.closing):
        with pytest.raises(ProtocolError, match="FF-CORE-072"):
            place_of(program, 2, leaf)
    here = place_of(program, 2, entry.first)
    with pytest.raises(ProtocolError, match="FF-CORE-073"):
        tile_at(program, program.values, entry, here)
    for offset in (-1, 1):
        with pytest.raises(ProtocolError, match="FF-CORE-073"):
            tile_at(program, SUB, entry, here._replace(offset=entry.first + offset))

"""Whole games about a traced GPT's steps, played by the players through the ledger's own law: who is right wins."""

from __future__ import annotations

import functools
from dataclasses import replace

import dispute_match as d
import numpy as np
import pytest
from dispute_match import Liar, Match, border, cheat, honest, judged, segment
from ledger_game import FRIEND, A, B

from farflung.core import limits
from farflung.core.canon import program as programs
from farflung.core.canon.tile_tree import TileTree, leaf_hash
from farflung.core.codec import encode
from farflung.ledger.disputes import DisputeState
from farflung.ledger.pinpoint_game import Descend, FirstMove, OpenVerdict, PinpointStage, ProveElement, ShowTile
from farflung.verify.canon.tile_proofs import located
from farflung.verify.dispute_player import DisputeRole, is_won, next_move

ACCUSED, CHALLENGER, BYSTANDER = DisputeRole.ACCUSED, DisputeRole.CHALLENGER, DisputeRole.BYSTANDER
MORE = [pytest.param(seed, marks=pytest.mark.slow if seed < 16 else pytest.mark.soak) for seed in range(4, 60)]


@functools.cache
def fair() -> d.DisputedSegment:
    """Honest work."""
    return segment()


@functools.cache
def false() -> d.DisputedSegment:
    """A step is left out."""
    return segment(cheat())


def leaves() -> int:
    """Of the tree of one step."""
    return d.parts().program.leaves


def last() -> int:
    """The last leaf of the two steps and their closing."""
    return 2 * leaves() + d.parts().program.closing - 1


def slandered(liar: Liar) -> Match:
    """Honest work, accused with a wrong tree."""
    return Match(honest(fair(), ACCUSED), liar.player(CHALLENGER), border(2)).begun()


def denied(liar: Liar) -> Match:
    """A cheat, defended with a wrong tree."""
    return Match(liar.player(ACCUSED), honest(false(), CHALLENGER), cheat()).begun()


def off_by_one(step: int, number: int, place: int) -> d.Spoil:
    """One element of one value is the next float, and all that follows is computed from it."""

    def spoil(at: int, value: int, made: np.ndarray) -> None:
        if (at, value) == (step, number):
            flat = made.reshape(-1)
            flat[place % flat.size] = np.nextafter(flat[place % flat.size], np.float32(np.inf))

    return spoil


def floats() -> list[int]:
    """Values of the step graph that are computed and float32."""
    entries = d.parts().entries[: d.parts().program.values]
    return [n for n, each in enumerate(entries) if each.args and each.kind == "f32" and each.op != "move"]


def test_honest_work_is_not_guilty_and_a_step_left_out_is():
    assert is_won(ACCUSED, honest(fair(), ACCUSED).execution)
    assert not is_won(CHALLENGER, honest(fair(), CHALLENGER).execution)
    assert is_won(CHALLENGER, honest(false(), CHALLENGER).execution)
    assert not is_won(ACCUSED, honest(false(), ACCUSED).execution)


# Through the law


@pytest.mark.parametrize(("steps", "more"), [(0, 0), (1, 7), (2, 900), (2, -1)])
def test_a_slander_with_one_wrong_leaf_costs_its_author(steps: int, more: int):
    """The error is absorbed: no other leaf shows it."""
    leaf = steps * leaves() + more if more >= 0 else last()
    game = slandered(Liar(fair(), leaf))
    first = 0
    while not game.row.beaten:
        first = game.row.first
        assert game.moves()
    assert game.over().about.state == DisputeState.OVERTURNED
    assert first == leaf


@pytest.mark.parametrize("step", [0, 1])
def test_a_cheat_that_computes_on_from_one_wrong_element_is_found_out(step: int):
    number = floats()[2]
    liar = Liar(false(), spoil=off_by_one(step, number, 3))
    assert sum(a != b for a, b in zip(liar.tiles, d._tiles(false()), strict=True)) > 100
    game = denied(liar).over()
    assert game.about.state == DisputeState.UPHELD
    entry = d.parts().entries[number]
    assert game.row.first - step * leaves() in range(entry.first, entry.first + 4)


def test_an_accused_that_claims_another_input_is_found_out():
    other = d.segment_of(
        d.parts(), d.job().model.layout, d.job().start, d.SEAT, programs.SegmentSteps(2, 2), border(2), cheat()
    )
    game = denied(Liar(other)).over()
    assert game.about.state == DisputeState.UPHELD
    assert located(d.parts(), false(), game.row.first)[2].op in programs.SOURCES


def test_two_liars_both_lose():
    game = Match(Liar(false(), 9).player(ACCUSED), Liar(false(), 9, bit=2).player(CHALLENGER), cheat()).begun()
    game.sides = game.sides[0], game.sides[1]._replace(prove=honest(false(), CHALLENGER).prove)
    assert game.over().about.state == DisputeState.FORFEIT


def test_an_accused_whose_rival_has_the_same_tree_opens_the_verdict():
    forced = honest(fair(), CHALLENGER)
    forced = forced._replace(execution=forced.execution._replace(is_guilty=True))  # plays on, although it foresees
    game = Match(honest(fair(), ACCUSED), forced._replace(tile=lambda _: b""), border(2)).begun()
    assert game.over().about.state == DisputeState.OVERTURNED


def test_a_challenger_with_a_bond_wins_against_a_cheat_that_admits_the_tree():
    rival = honest(false(), CHALLENGER)
    confessed = honest(false(), ACCUSED)
    confessed = confessed._replace(execution=confessed.execution._replace(is_guilty=False))
    game = Match(confessed, rival, cheat()).challenged(FRIEND)
    assert game.over().about.state == DisputeState.UPHELD


@pytest.mark.parametrize("stage", [PinpointStage.FIRST, PinpointStage.DESCEND, PinpointStage.SHOW])
def test_who_is_right_wins_against_silence_at_every_stage(stage: PinpointStage):
    for game, side, ends in (
        (slandered(Liar(fair(), 40)), 1, DisputeState.OVERTURNED),
        (denied(Liar(false(), 40)), 0, DisputeState.UPHELD),
    ):
        game.silent = {stage: side}
        assert game.over().about.state == ends


def test_whoever_likes_brings_the_proof_when_players_are_silent():
    game = slandered(Liar(fair(), 40))
    game.silent = {PinpointStage.REFEREE: 0}
    while game.row.stage != PinpointStage.REFEREE:
        assert game.moves()
    watcher = honest(fair(), BYSTANDER)
    assert next_move(watcher, game.row) is None  # it has not read the tiles yet
    op = next_move(watcher, game.row, tuple(game.shown))
    assert isinstance(op, ProveElement)
    game.must(FRIEND, op)
    assert game.left().about.state == DisputeState.OVERTURNED


def test_a_liar_that_refuses_to_prove_cannot_stop_the_honest_side():
    game = slandered(Liar(fair(), leaves() + 3))
    game.silent = {PinpointStage.REFEREE: 1}
    assert game.over().about.state == DisputeState.OVERTURNED


def test_nobody_begins_what_it_would_lose():
    guilty, slanderer = honest(false(), ACCUSED), honest(fair(), CHALLENGER)
    row = Match(guilty, honest(false(), CHALLENGER), cheat()).begun().row
    assert next_move(guilty, row) is None
    assert next_move(slanderer, row) is None
    assert isinstance(next_move(honest(false(), CHALLENGER), row), FirstMove)
    game = Match(guilty, honest(false(), CHALLENGER), cheat()).begun().over()
    assert game.about.state == DisputeState.UPHELD
    assert game.balance(A) == Match(guilty, guilty, cheat()).balance(A)  # its bond was never put up


def test_a_player_that_starts_anew_at_any_stage_goes_on():
    """The row is all it needs: no move depends on what was said by an earlier process."""
    game = slandered(Liar(fair(), 40))
    while not game.row.beaten:
        game.sides = honest(fair(), ACCUSED)._replace(borders=game.borders()), game.sides[1]
        assert game.moves()
    assert game.over().about.state == DisputeState.OVERTURNED


def test_a_player_says_nothing_twice():
    game = slandered(Liar(fair(), 40))
    while not game.row.beaten:
        stage, op = game.row.stage, next_move(game.sides[0], game.row, tuple(game.shown))
        assert op is not None
        if stage in (PinpointStage.FIRST, PinpointStage.DESCEND, PinpointStage.SHOW):
            game.must(A, op)
            assert next_move(game.sides[0], game.row) is None
            if stage == PinpointStage.SHOW:
                game.shown[0] = op.data
            theirs = next_move(game.sides[1], game.row)
            game.must(B, theirs)
            if stage == PinpointStage.SHOW:
                game.shown[1] = theirs.data
        else:
            game.must(A, op)


def test_a_game_takes_few_blocks_and_few_bytes():
    game = denied(Liar(false(), 2 * leaves() - 1))
    before = game.state.height
    game.over()
    messages = [op for op in game.spent if not isinstance(op, ProveElement)]
    (proof,) = [op for op in game.spent if isinstance(op, ProveElement)][:1]
    assert game.state.height - before <= 8
    assert sum(len(encode(op)) for op in messages if not hasattr(op, "data")) < 8 << 10
    assert len(encode(proof)) < 240 << 10


# Every kind of leaf, before the referee alone


@pytest.mark.parametrize("seed", [*range(4), *MORE])
def test_one_unit_in_the_last_place_of_any_leaf_is_ruled_rightly(seed: int):
    leaf = int(np.random.default_rng(seed).integers(0, last() + 1))
    assert judged(fair(), honest(fair(), ACCUSED), Liar(fair(), leaf), border(2)) == (True, False)


def test_every_kind_of_input_is_ruled_rightly():
    entries = d.parts().entries
    values = d.parts().program.values
    kinds: dict[tuple[str, bool], int] = {}
    for index, entry in enumerate(entries):
        for base in (0, leaves()) if index < values else (2 * leaves(),):
            if entry.op in programs.SOURCES:
                kinds.setdefault((entry.op, base == leaves()), base + entry.first)
    assert {op for op, _ in kinds} == set(programs.SOURCES) - {programs.BUFFER}
    for leaf in kinds.values():
        assert judged(fair(), honest(fair(), ACCUSED), Liar(fair(), leaf), border(2)) == (True, False)


def test_a_fresh_optimizer_is_proved_to_be_zero():
    first = segment(border(1), index=0)
    entries = d.parts().entries[: d.parts().program.values]
    (leaf,) = [each.first for each in entries if each.name == "square/head.bias"] or [
        next(each.first for each in entries if each.name.startswith("square/"))
    ]
    assert judged(first, honest(first, ACCUSED), Liar(first, leaf), border(1), 0) == (True, False)


def test_a_tile_too_long_to_be_shown_does_not_save_its_author():
    """It fits into a transaction by itself; with the other tile and all that the element needs it would not."""
    liar = Liar(fair(), 40)
    liar.tiles[40] = bytes(limits.EXHIBIT_BYTES - 1000)
    liar.execution = liar.execution._replace(tree=TileTree(leaf_hash(n, each) for n, each in enumerate(liar.tiles)))
    assert slandered(liar).over().about.state == DisputeState.OVERTURNED


def test_a_claim_of_odd_bits_of_nan_is_proved_as_it_was_committed_to():
    claimed = replace(border(2), params=border(2).params.copy())
    claimed.params[100] = np.array(0x7FC12345, np.uint32).view(np.float32)
    about = segment(claimed)
    name = next(t.name for t, at in d.job().model.layout.slices() if at.start <= 100 < at.stop)
    entries = d.parts().entries[d.parts().program.values :]
    leaf = next(2 * leaves() + each.first for each in entries if each.name == f"claimed/params/{name}")
    right = honest(about, CHALLENGER)
    assert is_won(CHALLENGER, right.execution)
    assert judged(about, right, Liar(about, leaf), claimed) == (True, False)


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_opponent_that_moves_whenever_it_likes_gains_nothing(seed: int):
    """Before or behind the other side, at once or near the deadline, or never again; with junk in between."""
    draw = np.random.default_rng(seed)
    for game, side, ends in (
        (slandered(Liar(fair(), int(draw.integers(last() + 1)))), 1, DisputeState.OVERTURNED),
        (denied(Liar(false(), int(draw.integers(last())))), 0, DisputeState.UPHELD),
    ):
        while game.row.stage != PinpointStage.CLOSED:
            opponent = (A, B)[side]
            if draw.random() < 0.5:
                game.send(game.sign(opponent, *_junk(game, draw)), after=int(draw.integers(1, 900)))
            game.silent = {game.row.stage: side} if draw.random() < 0.4 else {}
            if not game.moves():
                game.send(after=int(draw.integers(1, 5_000)))
        assert game.about.state == ends


def _junk(game: Match, draw: np.random.Generator) -> list[object]:
    named, some = (game.job_id, A.public), tuple(bytes([n]) * 32 for n in range(int(draw.integers(1, 17))))
    row = game.row
    return [
        [FirstMove(*named, 0, (), some)],
        [Descend(*named, row.level, row.first, some)],
        [ShowTile(*named, row.first, bytes(64))],
        [OpenVerdict(*named, bool(draw.integers(2)), ())],
        [ProveElement(*named, b"\x95")],
    ][int(draw.integers(5))]

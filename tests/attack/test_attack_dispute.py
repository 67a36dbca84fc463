"""Disputes down to one tile: nothing can be replayed, said late, for another, of another place, or shown unproved.

Each attack is made in a game that goes its honest way otherwise, and the honest side still wins, or loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from core_tiny_program import STEPS, Player, exhibit_of, listing
from core_tiny_program import World as Tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_game import BOND, CHALLENGE_BOND, FRIEND, HONEST, PAY, REST, STAKE, TINY, A, B, Game, flipped
from ledger_world import NODES, REQUESTER, RICH, ROOTS, STRANGER, VERIFIERS
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.canon.program import CanonicalProgram, job_id
from farflung.core.canon.referee import ElementProof, TileProof
from farflung.core.codec import encode
from farflung.core.ids import ZERO_HASH
from farflung.ledger.disputes import DisputeAnswer, DisputeState
from farflung.ledger.params import LedgerParams
from farflung.ledger.pinpoint_game import PinpointStage, ProveElement
from farflung.ledger.transactions import JobFinish

LEAF = 12  # of the matrix product's one tile: takes two arguments
EARLY = 20


def liar(leaf: int = EARLY, bit: int = 1) -> Player:
    return TINY.player(flipped(leaf, bit))


def at(stage: PinpointStage, leaf: int = EARLY) -> Game:
    return Game(liar(leaf), HONEST).begun().until(stage)


def honest_wins(game: Game) -> None:
    assert game.played().about.state == DisputeState.UPHELD


# Moves


@pytest.mark.parametrize("stage", [PinpointStage.FIRST, PinpointStage.DESCEND, PinpointStage.SHOW])
def test_nobody_moves_twice_and_nobody_moves_for_another(stage: PinpointStage):
    game = at(stage)
    move = game.move(1)
    for key in (STRANGER, FRIEND, REQUESTER, NODES[0]):
        assert game.do(key, move) == "FF-LEDG-348"
    game.must(B, move)
    assert game.do(B, move) == "FF-LEDG-349"
    assert game.do(VERIFIERS[1], move) == "FF-LEDG-348"  # one accuser plays
    honest_wins_after(game)


def honest_wins_after(game: Game) -> None:
    game.must(A, game.move(0))
    honest_wins(game)


@pytest.mark.parametrize("stage", [PinpointStage.FIRST, PinpointStage.DESCEND, PinpointStage.SHOW])
def test_a_move_of_one_stage_is_none_of_the_next(stage: PinpointStage):
    game = at(stage)
    old = game.move(1)
    game.step()
    assert game.do(B, old) == "FF-LEDG-346"
    honest_wins(game)


@pytest.mark.parametrize("stage", [PinpointStage.FIRST, PinpointStage.DESCEND, PinpointStage.SHOW])
def test_a_move_at_its_deadline_is_late(stage: PinpointStage):
    game = at(stage)
    move = game.move(0)
    game.must(B, game.move(1))
    game.send(game.sign(A, move), after=game.row.deadline - game.state.time)
    assert game.about.state == DisputeState.UPHELD


@pytest.mark.parametrize("change", [{"level": 2}, {"level": 0}, {"first": 32}, {"first": 1}])
def test_children_of_another_node_are_refused(change: dict[str, int]):
    game = at(PinpointStage.DESCEND)
    assert game.do(A, game.move(0, **change)) == "FF-LEDG-347"
    honest_wins(game)


def test_a_player_cannot_take_back_what_its_hash_says():
    """Children of the other side's node, of a corrected tree, too few, too many: none is under the sender's hash."""
    game = at(PinpointStage.DESCEND)
    right = game.move(0).children
    for children in (game.move(1).children, right[:-1], (*right, right[0]), (), right[::-1]):
        assert game.do(A, game.move(0, children=children)) == "FF-LEDG-357"
    honest_wins(game)


def test_a_first_move_has_the_roots_children():
    game = at(PinpointStage.FIRST)
    right = game.move(0).children
    for children in ((), right[:-1], (*right, right[0])):
        assert game.do(A, game.move(0, children=children)) == "FF-LEDG-357"
    honest_wins(game)


@pytest.mark.parametrize("leaf", [EARLY - 1, EARLY + 1, 0])
def test_a_tile_of_another_leaf_is_refused(leaf: int):
    game = at(PinpointStage.SHOW)
    assert game.do(A, game.move(0, leaf=leaf, data=game.accused.tiles[leaf])) == "FF-LEDG-347"
    assert game.do(A, game.move(0, data=game.accused.tiles[leaf])) == "FF-LEDG-384"
    assert game.do(A, game.move(0, data=HONEST.tiles[EARLY])) == "FF-LEDG-384"
    honest_wins(game)


def test_borders_are_those_of_the_claim_and_the_segment():
    """Others of the trace, in another order, changed, missing: the accused cannot choose where it started."""
    game = at(PinpointStage.FIRST)
    start, claimed = game.borders()
    moved = replace(start, border=replace(start.border, params=ROOTS[3]))
    later = replace(start, border=replace(start.border, index=2))
    for shown in ((), (start,), (claimed, start), (moved, claimed), (start, later), (start, start)):
        assert game.do(A, game.move(0, borders=shown)) == "FF-LEDG-358"
    game.must(A, game.move(0))
    game.must(B, game.move(1))
    honest_wins(game)


# The verdict


def test_a_verdict_has_to_stand_in_the_tree_that_both_have():
    game = Game(HONEST, HONEST).begun().until(PinpointStage.VERDICT)
    path = game.verdict_leaf().path
    for change in ({"is_guilty": True}, {"path": path[:-1]}, {"path": (*path[:-1], ROOTS[0])}, {"path": ()}):
        assert game.do(B, game.verdict_leaf(**change)) == "FF-LEDG-354"
    assert game.do(B, game.exhibit_of_nothing()) == "FF-LEDG-346"
    game.must(STRANGER, game.verdict_leaf())
    assert game.left().about.state == DisputeState.OVERTURNED
    assert game.do(STRANGER, game.verdict_leaf()) == "FF-LEDG-346"


def test_a_verdict_ends_no_game_in_which_the_trees_differ():
    game = at(PinpointStage.DESCEND)
    assert game.do(A, game.verdict_leaf()) == "FF-LEDG-346"


# The referee


Change = Callable[[Game, ElementProof], ElementProof]


def swapped_tiles(_: Game, shown: ElementProof) -> ElementProof:
    return replace(shown, tiles=shown.tiles[::-1])


def another_tile(game: Game, shown: ElementProof) -> ElementProof:
    return replace(shown, tiles=(game.accused.tiles[3], shown.tiles[1]))


def entry_of_another_value(game: Game, shown: ElementProof) -> ElementProof:
    return replace(shown, value=listing(game.tiny, shown.value.index + 1))


def entry_of_the_other_graph(game: Game, shown: ElementProof) -> ElementProof:
    return replace(shown, value=listing(game.tiny, game.tiny.program.values + 3))


def entry_that_is_not_listed(_: Game, shown: ElementProof) -> ElementProof:
    return replace(shown, value=replace(shown.value, entry=replace(shown.value.entry, op="add")))


def entry_of_another_listing(_: Game, shown: ElementProof) -> ElementProof:
    return replace(shown, value=replace(shown.value, path=shown.value.path[::-1]))


def entry_at_another_number(_: Game, shown: ElementProof) -> ElementProof:
    return replace(shown, value=replace(shown.value, index=shown.value.index + 1))


def other_arguments(_: Game, shown: ElementProof) -> ElementProof:
    return replace(shown, args=shown.args[::-1])


def no_arguments(_: Game, shown: ElementProof) -> ElementProof:
    return replace(shown, args=())


def argument_that_is_not_listed(_: Game, shown: ElementProof) -> ElementProof:
    wrong = replace(shown.args[0], entry=replace(shown.args[0].entry, first=0))
    return replace(shown, args=(wrong, *shown.args[1:]))


def no_tiles(_: Game, shown: ElementProof) -> ElementProof:
    return replace(shown, opened=())


def wrong_bytes(_: Game, shown: ElementProof) -> ElementProof:
    return replace(shown, opened=tuple(replace(each, data=bytes(len(each.data))) for each in shown.opened))


def longer_bytes(_: Game, shown: ElementProof) -> ElementProof:
    return replace(shown, opened=tuple(replace(each, data=each.data + b"\0") for each in shown.opened))


def tiles_of_another_leaf(game: Game, shown: ElementProof) -> ElementProof:
    other = HONEST.opened(3)
    return replace(shown, opened=tuple(TileProof(each.leaf, other.data, other.path) for each in shown.opened))


def tiles_of_the_next_step(game: Game, shown: ElementProof) -> ElementProof:
    """The same values of a later step: leaves behind the disputed one, which nobody agreed on."""
    later = [HONEST.opened(each.leaf + game.tiny.program.leaves) for each in shown.opened]
    return replace(shown, opened=tuple(later))


def tiles_of_a_third_tree(game: Game, shown: ElementProof) -> ElementProof:
    third = game.tiny.player(lambda leaf, tile: bytes(len(tile)) if leaf < game.row.first else tile)
    return replace(shown, opened=tuple(third.opened(each.leaf) for each in shown.opened))


def too_many_tiles(_: Game, shown: ElementProof) -> ElementProof:
    return replace(shown, opened=shown.opened * (limits.EXHIBIT_TILES + 1))


FORGERIES: list[Change] = [
    swapped_tiles,
    another_tile,
    entry_of_another_value,
    entry_of_the_other_graph,
    entry_that_is_not_listed,
    entry_of_another_listing,
    entry_at_another_number,
    other_arguments,
    no_arguments,
    argument_that_is_not_listed,
    no_tiles,
    wrong_bytes,
    longer_bytes,
    tiles_of_another_leaf,
    tiles_of_the_next_step,
    tiles_of_a_third_tree,
    too_many_tiles,
]


@pytest.mark.parametrize("change", FORGERIES, ids=lambda change: change.__name__)
def test_an_exhibit_that_is_forged_proves_nothing(change: Change):
    game = at(PinpointStage.REFEREE, LEAF)
    honest = exhibit_of(game.tiny, game.accused, game.challenger, game.row.first)
    forged = encode(change(game, honest))
    assert game.do(A, ProveElement(game.job_id, A.public, forged)) == "FF-LEDG-355"
    honest_wins(game)


def _pieces(change: dict[str, object]) -> Change:
    def forge(_: Game, shown: ElementProof) -> ElementProof:
        return replace(shown, pieces=(replace(shown.pieces[0], **change), *shown.pieces[1:]))

    return forge


def inputs() -> list[int]:
    """The first leaf of each input of the first step, and of those of the judging part that have a source."""
    entries, program = TINY.entries, TINY.program
    first = [entry.first for entry in entries[:7]]
    return first + [STEPS * program.leaves + entry.first for entry in entries[program.values :][:2]]


def test_an_input_is_proved_by_its_source(subtests):
    for leaf in inputs():
        for change in [{"data": bytes(16)}, {"data": b""}, {"index": 1}, {"count": 9}, {"path": (ZERO_HASH,)}]:
            with subtests.test(leaf=leaf, change=change):
                game = at(PinpointStage.REFEREE, leaf)
                honest = exhibit_of(game.tiny, game.accused, game.challenger, leaf)
                forged = _pieces(change)(game, honest)
                if forged == honest:
                    pytest.skip("this piece is so already")
                for shown in (forged, replace(honest, pieces=()), replace(honest, pieces=honest.pieces * 2)):
                    assert game.do(A, ProveElement(game.job_id, A.public, encode(shown))) == "FF-LEDG-355"
                honest_wins(game)


@settings(max_examples=150)
@given(st.one_of(st.binary(max_size=300), st.tuples(st.integers(0, 5000), st.binary(min_size=1, max_size=4))))
def test_any_bytes_get_a_clear_answer_from_the_referee(data: bytes | tuple[int, bytes]):
    """Noise, and a true exhibit with some bytes overwritten: refused, or, where nothing that counts was hit, right."""
    if isinstance(data, tuple):
        place, noise = data
        whole = bytearray(GAME.exhibit().data)
        place %= len(whole)
        whole[place : place + len(noise)] = noise
        data = bytes(whole)
    state = GAME.state
    code = GAME.do(A, ProveElement(GAME.job_id, A.public, data))
    assert code == "FF-LEDG-355" or GAME.about.state == DisputeState.UPHELD
    GAME.state = state


GAME = at(PinpointStage.REFEREE, LEAF)


def test_a_referee_is_asked_once_and_not_before_its_time():
    game = at(PinpointStage.SHOW)
    early = ProveElement(game.job_id, A.public, encode(exhibit_of(game.tiny, game.accused, HONEST, game.row.first)))
    assert game.do(B, early) == "FF-LEDG-346"
    honest_wins(game)
    assert game.do(B, early) == "FF-LEDG-346"


# Another program, another job


def test_a_program_that_the_job_does_not_name_is_refused():
    game = Game(HONEST, HONEST)
    game.must(REQUESTER, game.slash())
    other = replace(game.tiny.program, seed=6)
    for change in ({"program": other}, {"terms": ROOTS[1]}, {"program": CanonicalProgram()}):
        assert game.do(A, game.opening(**change)) == "FF-LEDG-340"
    assert game.do(A, game.opening(job=ROOTS[0])) == "FF-LEDG-338"
    game.must(A, game.opening())
    assert game.do(A, game.opening()) == "FF-LEDG-338"


def test_a_program_out_of_bounds_begins_no_game(subtests):
    """A job may be made with any program: the law looks at its numbers before it computes with them."""
    for change in [
        {"values": 0},
        {"judged": 0},
        {"leaves": 0},
        {"closing": 0},
        {"rows": 0},
        {"context": 0},
        {"places": 0},
        {"step_tokens": 0},
        {"segments": 0},
        {"segments": 5},
        {"segments": 1},
        {"round_steps": 3},
        {"step_tokens": 25},
        {"leaves": limits.EXECUTION_LEAVES},
        {"rows": limits.WEIGHT + 1},
        {"places": limits.PROGRAM_PLACES + 1},
    ]:
        with subtests.test(change=change):
            tiny = Tiny()
            assert tiny.honest == HONEST.tiles
            tiny.__dict__["program"] = replace(tiny.program, **change)
            game = Game(HONEST, HONEST, tiny)
            assert game.job_id == job_id(REST, tiny.program)
            op = game.slash()
            if game.do(REQUESTER, op) != "ok":  # nor is it opened to such a program
                assert game.do(REQUESTER, op) == "FF-LEDG-391"
                game.must(REQUESTER, replace(op, terms=ZERO_HASH, program=CanonicalProgram()))
            assert game.do(A, game.opening()) == "FF-LEDG-341"


# Challenges


def test_a_challenge_puts_up_twice_what_it_attacks():
    game = Game(HONEST, HONEST)
    assert CHALLENGE_BOND == 2 * (STAKE + PAY)
    assert game.do(FRIEND, game.challenge(0)) == "FF-LEDG-344"
    assert game.do(FRIEND, game.challenge(CHALLENGE_BOND - 1)) == "FF-LEDG-344"
    assert game.do(FRIEND, game.challenge(2 * RICH)) == "FF-LEDG-010"
    game.must(FRIEND, game.challenge())
    assert game.do(REQUESTER, game.challenge()) == "FF-LEDG-342"  # the lease is in a dispute


def test_a_challenge_after_the_window_is_refused():
    game = Game(HONEST, HONEST)
    root = game.job(game.job_id).root
    game.must(REQUESTER, JobFinish(game.job_id, root, ROOTS[0]))
    in_time = game.state
    game.send(after=game.job(game.job_id).until - game.state.time - 1000)
    assert game.do(FRIEND, game.challenge()) == "FF-LEDG-033"
    game.state = in_time
    game.must(FRIEND, game.challenge())


def test_a_challenge_is_of_something_that_the_node_itself_signed():
    game = Game(HONEST, HONEST)
    for change in ({"round": 2}, {"trace": ROOTS[1]}, {"weight": 12}, {"nonce": ROOTS[1]}, {"payload": ROOTS[1]}):
        assert game.do(FRIEND, game.challenge(**change)) == "FF-LEDG-345"
    assert game.do(FRIEND, game.challenge(signature=game.signature(FRIEND))) == "FF-LEDG-345"
    assert game.do(FRIEND, game.challenge(segment=2)) == "FF-LEDG-341"
    assert game.do(FRIEND, game.challenge(program=CanonicalProgram())) == "FF-LEDG-340"
    assert game.do(FRIEND, game.challenge(node=VERIFIERS[0].public)) == "FF-LEDG-342"
    assert game.do(FRIEND, game.challenge(job=ROOTS[1])) == "FF-LEDG-031"
    assert game.do(A, game.challenge()) == "FF-LEDG-342"
    assert game.balance(FRIEND) == RICH


@pytest.mark.parametrize("law", [{"dispute_ms": 0}, {"challenge_rounds": 0}])
def test_a_law_without_disputes_or_challenges_has_no_challenge(law: dict[str, int]):
    """By default nobody is robbed of a stake who keeps drawn segments alone, and could not answer about others."""
    game = Game(HONEST, HONEST)
    game.under(**law)
    assert LedgerParams().challenge_rounds == 0
    assert game.do(FRIEND, game.challenge()) == "FF-LEDG-343"
    assert game.balance(FRIEND) == RICH


def together(game: Game) -> int:
    """What the accused and its friend have, wherever it lies."""
    return game.balance(A) + game.node(A).stake + game.balance(FRIEND)


def test_who_is_slashed_through_a_friend_loses_half_of_it():
    game = Game(liar(), HONEST)
    before = together(game)
    game.challenged().played()
    assert together(game) <= before - (STAKE + BOND) // 2


def test_nobody_evades_a_slash_by_a_friends_challenge_of_what_is_right():
    """The friend loses on purpose: half of its bond is burnt, at least what a slash would have taken and kept back."""
    game = Game(HONEST, HONEST)
    before = together(game)
    game.challenged()
    game.must(A, game.move(0))
    game.wait()
    assert game.about.state == DisputeState.OVERTURNED
    assert together(game) - 10 * 5 == before - CHALLENGE_BOND // 2 <= before - STAKE - PAY


def test_griefing_costs_the_griefer_and_pays_the_griefed():
    game = Game(HONEST, liar())
    accused, griefer = game.balance(A) + STAKE + 10 * 5, game.balance(FRIEND)
    game.challenged().played()
    assert game.balance(A) == accused + CHALLENGE_BOND // 2
    assert game.balance(FRIEND) == griefer - CHALLENGE_BOND


# Games that nobody started


def test_no_move_counts_without_a_game():
    game = Game(HONEST, HONEST)
    template = at(PinpointStage.FIRST).move(0)
    assert game.do(A, template) == "FF-LEDG-346"
    game.must(REQUESTER, game.slash())
    assert game.do(A, template) == "FF-LEDG-346"
    assert game.do(STRANGER, game.exhibit_of_nothing()) == "FF-LEDG-346"


def test_an_answer_to_the_jury_is_late_once_the_game_is_on():
    game = Game(liar(), HONEST).begun()
    assert game.do(A, DisputeAnswer(game.job_id, BOND, ROOTS[1])) == "FF-LEDG-231"
    game.wait(-1)
    assert game.about.state == DisputeState.PLAYED


def test_the_second_accuser_may_play_and_then_the_first_may_not():
    game = Game(liar(), HONEST).begun()
    game.must(VERIFIERS[1], game.move(1))
    assert game.do(B, game.move(1)) == "FF-LEDG-348"
    game.must(A, game.move(0))
    assert game.do(B, game.move(1)) == "FF-LEDG-348"

"""The pinpoint game: one element decides, each stage has its moves and its deadline, and money goes where it should."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from core_tiny_program import ROUND, Player
from core_tiny_program import World as Tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_game import BOND, CHALLENGE_BOND, DISPUTE, FRIEND, HONEST, STAKE, TINY, A, B, C, Game, flipped
from ledger_world import ACTORS, NODES, REQUESTER, RICH, STRANGER, VERIFIERS
from msgspec.structs import replace

from farflung.core.crypto import SigningKey
from farflung.ledger.account_statement import StatementEntryKind, explained, held_by
from farflung.ledger.disputes import DisputeAnswer, DisputeState, JuryVote
from farflung.ledger.pinpoint_game import NO_ACCOUNT, PinpointStage
from farflung.ledger.rules.disputes import is_locked
from farflung.ledger.rules.slashes import EXCESS_EXACT
from farflung.ledger.table_rows import AccountRow, JobRow
from farflung.ledger.transactions import JobCancel, SignedTx
from farflung.ledger.tx_results import Outcome

LEAVES = range(len(HONEST.tiles))
NODE_MONEY = RICH - 500  # of a node, besides its stake
SOME = 20  # a leaf below the second node


def liar(leaf: int = SOME, bit: int = 1) -> Player:
    return TINY.player(flipped(leaf, bit))


def money(game: Game) -> dict[str, int]:
    keys = {"accused": A, "first": VERIFIERS[0], "second": VERIFIERS[1], "friend": FRIEND}
    return {name: game.balance(key) for name, key in keys.items()}


# One element decides


@pytest.mark.slow
def test_one_unit_in_the_last_place_is_found_at_every_leaf_and_the_liar_loses(subtests):
    for leaf in LEAVES:
        with subtests.test(leaf=leaf):
            guilty = Game(liar(leaf), HONEST).begun().played()
            assert guilty.about.state == DisputeState.UPHELD
            assert (guilty.row.first, guilty.row.stage) == (leaf, PinpointStage.CLOSED)
            slandered = Game(HONEST, liar(leaf)).begun().played()
            assert slandered.about.state == DisputeState.OVERTURNED


def test_two_liars_both_lose_and_nobody_gets_anything():
    game = Game(liar(), liar(bit=2)).begun().played()
    assert game.about.state == DisputeState.FORFEIT
    assert money(game) == {"accused": NODE_MONEY - BOND, "first": NODE_MONEY, "second": NODE_MONEY, "friend": RICH}
    assert game.node(A).burnt == STAKE + BOND
    assert [game.node(key).burnt for key in VERIFIERS] == [50, 0]  # who played, not who only agreed


@pytest.mark.parametrize("off", [0.0, 9.0])
def test_where_both_have_the_same_tree_its_last_leaf_decides(off: float):
    tiny = Tiny(off=off)
    game = Game(tiny.player(), tiny.player(), tiny).begun().played()
    assert game.about.state == (DisputeState.UPHELD if off else DisputeState.OVERTURNED)


def test_a_tile_of_another_length_is_wrong():
    longer = TINY.player(lambda at, tile: tile + b"\0" if at == SOME else tile)
    assert Game(longer, HONEST).begun().played().about.state == DisputeState.UPHELD
    assert Game(HONEST, longer).begun().played().about.state == DisputeState.OVERTURNED


def test_a_dispute_takes_as_many_rounds_as_the_tree_has_levels_and_three():
    """Program and first moves in one block, then a block a level, the tiles, the referee."""
    game = Game(liar(), HONEST)
    game.must(REQUESTER, game.slash())
    before = game.state.height
    game.must(A, game.opening(), replace_first(game))
    game.must(B, game.move(1))
    game.until(PinpointStage.REFEREE)
    game.must(STRANGER, game.exhibit())
    assert game.state.height - before == 1 + 1 + 1 + 1 + 1


def replace_first(game: Game) -> object:
    """The first move before there is a row to look at."""
    twin = Game(game.accused, game.challenger).begun()
    return twin.move(0)


# Money


def test_an_accused_that_lied_loses_all_and_half_is_the_verifiers():
    game = Game(liar(), HONEST).begun().played()
    share = (STAKE + BOND) // 2 // 2
    assert money(game) == {
        "accused": NODE_MONEY - BOND,
        "first": NODE_MONEY + share,
        "second": NODE_MONEY + share,
        "friend": RICH,
    }
    assert game.node(A).burnt == STAKE + BOND - 2 * share
    assert (game.job(game.job_id).slashed, game.lease(A, game.job_id).slashed) == (STAKE, STAKE)
    assert game.lease(A, game.job_id).paid == 0


def test_an_accused_that_was_right_is_paid_and_gets_half_of_its_rivals_stake():
    game = Game(HONEST, liar()).begun().played()
    assert game.balance(A) == NODE_MONEY + STAKE + 10 * 5 + 25
    assert [game.node(key).burnt for key in VERIFIERS] == [25, 0]
    assert [game.lease(key, game.job_id).is_open for key in VERIFIERS] == [False, True]
    assert game.about.money == game.row.money == 0


def test_a_challenger_that_is_right_gets_half_and_its_bond():
    game = Game(liar(), HONEST).challenged()
    assert (game.balance(FRIEND), game.row.money) == (RICH - CHALLENGE_BOND, CHALLENGE_BOND)
    assert held_by(game.state, FRIEND.public) == CHALLENGE_BOND
    game.played()
    assert game.balance(FRIEND) == RICH + (STAKE + BOND) // 2
    assert game.node(A).burnt == STAKE + BOND - (STAKE + BOND) // 2
    assert game.balance(A) == NODE_MONEY - BOND


def test_a_challenger_that_is_wrong_pays_half_to_the_accused_and_half_is_burnt():
    game = Game(HONEST, liar()).challenged().played()
    assert game.balance(FRIEND) == RICH - CHALLENGE_BOND
    assert game.balance(A) == NODE_MONEY + STAKE + 10 * 5 + CHALLENGE_BOND // 2
    assert game.node(A).burnt == CHALLENGE_BOND - CHALLENGE_BOND // 2


def test_a_challenger_and_an_accused_that_are_both_wrong_lose_everything():
    game = Game(liar(), liar(bit=2)).challenged().played()
    assert (game.balance(FRIEND), game.balance(A)) == (RICH - CHALLENGE_BOND, NODE_MONEY - BOND)
    assert game.node(A).burnt == CHALLENGE_BOND + STAKE + BOND


# Silence


def both(stage: PinpointStage) -> Callable[[], Game]:
    return lambda: Game(liar(), HONEST).begun().until(stage)


STAGES = [PinpointStage.FIRST, PinpointStage.DESCEND, PinpointStage.SHOW]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("moves", "ends"), [((), DisputeState.FORFEIT), ((0,), DisputeState.OVERTURNED), ((1,), DisputeState.UPHELD)]
)
def test_who_is_silent_loses_at_every_stage(stage: PinpointStage, moves: tuple[int, ...], ends: DisputeState):
    game = both(stage)()
    for side in moves:
        game.must((A, B)[side], game.move(side))
    game.wait(-1)
    assert game.row.stage == stage
    game.send(after=1)
    game.left()
    assert (game.about.state, game.row.stage, game.about.money) == (ends, PinpointStage.CLOSED, 0)


# One accuser after the other


def test_a_friend_that_accuses_and_loses_on_purpose_loses_alone():
    """The accused lied, and so does the first accuser: with a worse tree, with the same, or with none."""
    for friend, ends in (
        (liar(bit=2), PinpointStage.CLOSED),
        (liar(), PinpointStage.FIRST),
        (None, PinpointStage.FIRST),
    ):
        game = Game(liar(), friend or HONEST).begun()
        if friend is None:
            game.step()
            game.must(A, game.move(0))
            game.wait()
        elif ends == PinpointStage.CLOSED:  # both wrong at one element: it has lost with its friend
            game.played()
            assert game.about.state == DisputeState.FORFEIT
            continue
        else:
            game.until(PinpointStage.VERDICT)
            last = len(game.accused.tiles) - 1
            game.must(STRANGER, game.verdict_leaf(is_guilty=game.accused.tiles[last] == b"\1"))
        assert (game.row.stage, game.row.beaten, game.row.challenger) == (ends, (B.public,), NO_ACCOUNT)
        assert game.about.is_pending
        assert game.do(B, game.move(1)) == "FF-LEDG-348"
        game.challenger = HONEST
        game.played()
        assert game.about.state == DisputeState.UPHELD
        assert game.node(B).burnt == 50
        assert game.balance(C) == NODE_MONEY + (STAKE + BOND) // 2
        assert game.about.money == game.row.money == 0


def test_an_accused_that_was_right_beats_every_accuser():
    game = Game(HONEST, liar()).begun()
    game.until(PinpointStage.REFEREE)
    game.must(A, game.exhibit())
    assert game.row.beaten == (B.public,)
    game.until(PinpointStage.REFEREE)
    game.must(A, game.exhibit())
    assert game.about.state == DisputeState.OVERTURNED
    assert [game.node(key).burnt for key in VERIFIERS] == [25, 25]
    assert game.balance(A) == NODE_MONEY + STAKE + 10 * 5 + 50


def test_who_has_beaten_one_accuser_and_is_silent_to_the_next_has_lost():
    game = Game(HONEST, liar()).begun().until(PinpointStage.REFEREE)
    game.must(A, game.exhibit())
    game.must(C, game.move(1))
    game.wait()
    assert game.about.state == DisputeState.UPHELD
    assert game.node(B).burnt == 50


def test_accusers_that_are_all_silent_all_lose():
    game = Game(HONEST, HONEST).begun()
    game.must(A, game.move(0))
    game.wait()
    assert [game.node(key).burnt for key in VERIFIERS] == [25, 25]


def test_a_verdict_that_nobody_opens_is_one_against_the_accused():
    game = Game(HONEST, HONEST).begun().until(PinpointStage.VERDICT)
    game.wait()
    assert game.about.state == DisputeState.UPHELD


def test_tiles_that_nobody_brings_before_the_referee_cost_both():
    game = both(PinpointStage.REFEREE)()
    game.wait()
    assert game.about.state == DisputeState.FORFEIT


def test_each_stage_has_its_own_deadline():
    game = both(PinpointStage.FIRST)()
    seen = []
    while game.row.stage != PinpointStage.REFEREE:
        seen.append(game.row.deadline - game.state.time)
        game.wait(-1500)
        game.step()
    assert seen == [DISPUTE] * 3


# Jury or game


def test_an_accuser_may_take_a_denial_from_the_jury():
    game = Game(liar(), HONEST)
    game.must(REQUESTER, game.slash())
    game.must(A, DisputeAnswer(game.job_id, BOND, NODES[0].public))
    game.must(VERIFIERS[1], game.opening())
    assert game.do(FRIEND, JuryVote(game.job_id, A.public, False)) == "FF-LEDG-233"
    game.must(A, game.move(0, bond=0))
    game.must(B, game.move(1))
    assert game.played().about.state == DisputeState.UPHELD


def test_without_a_program_the_jury_decides():
    game = Game(HONEST, HONEST)
    game.must(REQUESTER, game.slash())
    game.must(A, DisputeAnswer(game.job_id, BOND, NODES[0].public))
    game.must(FRIEND, JuryVote(game.job_id, A.public, False))
    assert (game.about.state, game.row.stage) == (DisputeState.OVERTURNED, PinpointStage.CLOSED)
    assert game.do(A, game.opening()) == "FF-LEDG-338"


def test_an_encoding_that_is_wrong_is_no_matter_of_distance():
    game = Game(HONEST, HONEST)
    game.must(REQUESTER, game.slash(excess=EXCESS_EXACT))
    assert game.do(A, game.opening()) == "FF-LEDG-338"


def test_who_answered_nothing_in_time_has_lost_without_a_game():
    game = Game(HONEST, HONEST)
    game.must(REQUESTER, game.slash())
    game.send(after=DISPUTE)
    assert (game.about.state, game.row.stage) == (DisputeState.UPHELD, PinpointStage.CLOSED)
    assert game.do(A, game.opening()) == "FF-LEDG-338"


@pytest.mark.parametrize("key", [REQUESTER, FRIEND, NODES[0], STRANGER])
def test_only_a_party_opens_the_program(key: SigningKey):
    game = Game(HONEST, HONEST)
    game.must(REQUESTER, game.slash())
    assert game.do(key, game.opening()) == "FF-LEDG-339"


def test_the_game_outlasts_its_job():
    game = Game(liar(), HONEST)
    game.must(REQUESTER, JobCancel(game.job_id))
    game.send(after=5_000)
    game.begun().send(after=4_000)
    game.must(REQUESTER, JobCancel(game.job_id))
    assert (game.job(game.job_id).escrow, game.about.state) == (0, DisputeState.PLAYED)
    assert [is_locked(game.state, game.lease(key, game.job_id)) for key in VERIFIERS] == [True, True]
    assert game.played().about.state == DisputeState.UPHELD
    assert [game.node(key).locked for key in VERIFIERS] == [0, 0]


def test_accused_may_not_start_with_too_small_a_bond():
    game = Game(HONEST, HONEST).begun()
    assert game.do(A, game.move(0, bond=BOND - 1)) == "FF-LEDG-359"
    assert game.do(A, replace(game.move(0), bond=2 * RICH)) == "FF-LEDG-010"


# Any play at all

MOVES = st.sampled_from(("accused", "challenger", "wait", "end", "foreign", "again"))


@settings(max_examples=60)
@given(
    pair=st.sampled_from(((0, 1), (1, 0), (0, 0), (1, 2), (2, 2))),
    bonded=st.booleans(),
    moves=st.lists(MOVES, max_size=14),
)
def test_whatever_is_played_money_is_kept_and_the_clock_ends_it(pair: tuple[int, int], bonded: bool, moves: list[str]):
    """Every block of `World` checks the sum over all rows; here also that each account's statement explains it."""
    players = [HONEST if bit == 0 else liar(bit=bit) for bit in pair]
    game = Booked(*players)
    game.challenged() if bonded else game.begun()
    for move in moves:
        if not game.row.is_played:
            break
        _play(game, move)
    for _ in range(8):
        game.send(after=DISPUTE)
    assert (game.row.stage, game.row.money, game.about.money) == (PinpointStage.CLOSED, 0, 0)
    assert [game.lease(key, game.job_id).disputes for key in VERIFIERS] == [0, 0]


class Booked(Game):
    """A game whose every block is explained: balances and what is held change by the entries alone."""

    def send(self, *signed: SignedTx, after: int = 1000) -> tuple[Outcome, ...]:
        before = self.state
        outcomes = super().send(*signed, after=after)
        again, entries = explained(before, self.state.time, signed, FRIEND.public)
        assert again.root == self.state.root
        assert not [entry for entry in entries if entry.what is StatementEntryKind.UNEXPLAINED]
        for key in ACTORS:
            mine = [entry for entry in entries if entry.account == key.public]
            was, now = before.find(AccountRow, key.public), self.account(key)
            assert sum(entry.amount for entry in mine) == now.balance - (was.balance if was else 0)
            held = held_by(self.state, key.public) - held_by(before, key.public)
            assert sum(entry.held for entry in mine) == held
        return outcomes


def _play(game: Game, move: str) -> None:
    side = {"accused": 0, "challenger": 1}.get(move)
    if move == "wait":
        game.send(after=DISPUTE // 2)
    elif game.row.stage in (PinpointStage.VERDICT, PinpointStage.REFEREE):
        game.do(STRANGER, game.verdict_leaf() if game.row.stage == PinpointStage.VERDICT else game.exhibit())
    elif side is not None:
        game.do((A, game.rival)[side], game.move(side))
    elif move == "foreign":
        assert game.do(NODES[2], game.move(0)) in ("FF-LEDG-348", "FF-LEDG-346")  # its time may be over


@pytest.mark.parametrize("later", [0, 1])
def test_what_is_older_than_anybody_has_to_keep_is_disputed_no_more(later: int):
    for accuser, op, kept in ((REQUESTER, Game.slash, 16), (FRIEND, Game.challenge, 16), (FRIEND, Game.challenge, 2)):
        game = Game(liar(), HONEST)
        game.under(challenge_rounds=kept)
        row = replace(game.job(game.job_id), round=ROUND + kept + later)
        tables = {**game.state.tables, JobRow.TABLE: game.state.tables[JobRow.TABLE].with_rows([row])}
        game.state = dataclasses.replace(game.state, tables=tables)
        assert game.do(accuser, op(game)) == ("FF-LEDG-356" if later else "ok")

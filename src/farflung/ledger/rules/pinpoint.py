"""Applies the pinpoint game: one element decides whether a segment leads to the claimed state, without a jury.

Theory: both sides executed the segment canonically, so whoever is honest has the only right tree, and the first leaf
in which the trees differ is wrong in at least one of them while all it depends on is agreed (refereed delegation:
Canetti, Riva, Rothblum 2013; Verde, arXiv 2502.19405). Each edge has one deadline of `dispute_ms`, and the clock is an
edge out of every stage. The dispute's row holds the money meanwhile (`disputes`).

| edge        | signer                  | from     | to                                                            |
|-------------|-------------------------|----------|---------------------------------------------------------------|
| JobSlash    | see `slash`             | -        | Offered, where the accusation is one of distance              |
| Pinpoint    | the accused, an accuser | Offered  | First                                                         |
| Challenge   | anybody, with a bond    | -        | First                                                         |
| FirstMove   | either side             | First    | after both: Verdict (trees agree), Descend or ShowTile        |
| Descend     | either side             | Descend  | after both: Descend, or Show where children are leaves        |
| OpenVerdict | anybody                 | Verdict  | Closed: Upheld where the leaf says guilty, else Overturned    |
| Show        | either side             | Show     | after both: Referee                                           |
| Referee     | anybody                 | Referee  | Closed: whose element is wrong has lost; both may have        |
| (deadline)  | the clock               | Verdict  | Closed: Upheld                                                |
| (deadline)  | the clock               | Referee  | Closed: both have lost                                        |
| (deadline)  | the clock               | another  | Closed: who is silent has lost; both may be                   |
| (an accuser loses)  |                 | any      | First, while another accuser has not played                   |

Accusers play one after the other until one of them wins: a friend of the accused that accuses and loses on purpose
loses its own stake, and nothing is decided by it.

Every move names the node of the trees that it is about, is made once by each side, and is checked against the hash
that its player posted before: nothing can be replayed, and nothing said twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from farflung.core import limits, merkle
from farflung.core.canon import program as programs
from farflung.core.canon import referee, tile_tree
from farflung.core.canon.program import CanonicalProgram, SegmentSteps
from farflung.core.canon.referee import RefereeCase
from farflung.core.codec import encode
from farflung.core.commitments import commitment_digest, is_commitment_signed, leaf_count
from farflung.core.errors import PolicyError, ProtocolError
from farflung.core.ids import Hash, PeerId
from farflung.ledger.disputes import DisputeRow, DisputeState
from farflung.ledger.ledger_state import StateDraft, leases_of, params_of
from farflung.ledger.pinpoint_game import (
    ACCUSED,
    CHALLENGER,
    NO_ACCOUNT,
    BorderProof,
    Challenge,
    Descend,
    FirstMove,
    OpenVerdict,
    Pinpoint,
    PinpointRow,
    PinpointStage,
    ProveElement,
    ShowTile,
)
from farflung.ledger.rules import disputes, nodes
from farflung.ledger.rules.accounts import deposit, withdraw
from farflung.ledger.rules.jobs import check_accusable, check_recent, check_staked, known
from farflung.ledger.rules.verifiers import open_lease
from farflung.ledger.table_rows import lease_key
from farflung.ledger.transactions import LeaseRole

T = TypeVar("T")

PLAYED_IN: Final = (PinpointStage.FIRST, PinpointStage.DESCEND, PinpointStage.SHOW)  # in which both sides have to move


def offer(draft: StateDraft, dispute: DisputeRow, about: tuple[int, int, Hash], weight: int) -> None:
    """An accusation of distance was made of `about` (round, segment, trace): its job may have a program."""
    draft.put(PinpointRow(dispute.job, dispute.node, *about, weight))


def pinpoint(draft: StateDraft, sender: PeerId, op: Pinpoint) -> None:
    """A party opens the program. Codes: FF-LEDG-031, -338 nothing to play for, -339 no party to it, -340, -341."""
    game = draft.find(PinpointRow, op.job + op.node)
    if game is None or game.stage != PinpointStage.OFFERED:
        raise PolicyError("FF-LEDG-338", "there is no accusation of distance here that waits for a program")
    dispute = _dispute(draft, game)
    if sender != dispute.node and sender not in dispute.accusers:
        raise PolicyError("FF-LEDG-339", "only the accused and its accusers open the program")
    _begin(draft, game, op.terms, op.program)


def challenge(draft: StateDraft, sender: PeerId, op: Challenge) -> None:
    """Whoever puts up a bond accuses: as a slash for a lie, and at once with a program.

    The bond is twice what the dispute holds at least: half of it is burnt when the challenger loses, so nobody evades
    a slash by having a friend challenge a segment that is right. Where `challenge_rounds` is 0 nobody may: a node that
    keeps drawn segments alone could not answer about another one, and would be robbed by whoever has the bond.

    Codes: FF-LEDG-010, -031, -033, -340 to -345, -356, -420.
    """
    job = known(draft, op.job)
    check_accusable(draft, job)
    lease = open_lease(draft, op.job, op.node, LeaseRole.TRAIN)
    if lease is None or sender == op.node:
        raise PolicyError("FF-LEDG-342", f"node {op.node[:4].hex()} does not train here, or is the sender")
    check_staked(lease)
    terms = params_of(draft, job.terms)
    if not (terms.dispute_ms and terms.challenge_rounds):
        raise PolicyError("FF-LEDG-343", "this ledger has no challenges")
    check_recent(job, op.round, terms.challenge_rounds)
    least = max(terms.bond_min, 2 * (lease.stake + lease.units_max * lease.unit_price))
    if op.bond < least:
        raise PolicyError("FF-LEDG-344", f"a challenge puts up {least} at least")
    _check_claim(op)
    withdraw(draft, sender, op.bond)
    disputes.open_(draft, job, lease, lease.stake, (), evidence=op.trace)
    game = PinpointRow(op.job, op.node, op.round, op.segment, op.trace, op.weight)
    _begin(draft, replace(game, challenger=sender, bond=op.bond), op.terms, op.program)


def _check_claim(op: Challenge) -> None:
    promise = commitment_digest(op.job, op.node, op.round, op.payload, op.weight, op.trace, op.nonce)
    if not is_commitment_signed(op.node, op.signature, op.job, op.round, promise):
        raise PolicyError("FF-LEDG-345", f"node {op.node[:4].hex()} did not sign this claim")


def _begin(draft: StateDraft, game: PinpointRow, terms: Hash, program: CanonicalProgram) -> None:
    """First moves are due. Codes: FF-LEDG-340 not the job's program, -341 it has no such segment."""
    if programs.job_id(terms, program) != game.job:
        raise PolicyError("FF-LEDG-340", "this is not the program of the job's terms")
    run = programs.run_of(program, game.weight, game.segment) if programs.is_sound(program) else None
    total = programs.leaf_count(program, run.steps) if run else 0
    if run is None or not tile_tree.is_size(total):
        raise PolicyError("FF-LEDG-341", "the program is out of bounds, or the claim has no such segment")
    dispute = _dispute(draft, game)
    draft.put(replace(dispute, state=DisputeState.PLAYED))
    begun = replace(game, program=program, seat=_seat(draft, game), begin=run.first, steps=run.steps)
    _wait(draft, replace(begun, stage=PinpointStage.FIRST, level=tile_tree.depth(total)))


def _seat(draft: StateDraft, game: PinpointRow) -> int:
    """The number of the accused's lease among those of its job that train, in the order in which they were made."""
    newest = [lease.node for lease in leases_of(draft, known(draft, game.job)) if lease.role == LeaseRole.TRAIN]
    return len(newest) - 1 - newest.index(game.node)


# Moves


def first_move(draft: StateDraft, sender: PeerId, op: FirstMove) -> None:
    """A side's root. Codes: FF-LEDG-010, -346 to -349, -357 not the root's children, -358 borders, -359 bond."""
    game, side = _turn(draft, sender, op.job, op.node, PinpointStage.FIRST)
    _check_count(game, op.children)
    if side == ACCUSED:
        game = _with_borders(game, op.borders)
        _add_bond(draft, game, op.bond)
    else:
        game = replace(game, challenger=sender)
    root = tile_tree.node_hash(game.level, 0, op.children)
    game = replace(game, roots=_put(game.roots, side, root), children=_put(game.children, side, op.children))
    if not all(game.children):
        draft.put(game)
    elif game.roots[ACCUSED] == game.roots[CHALLENGER]:
        last = _total(game) - 1
        _wait(draft, replace(game, stage=PinpointStage.VERDICT, level=0, first=last, children=((), ())))
    else:
        _wait(draft, deeper(game))


def _with_borders(game: PinpointRow, shown: Sequence[BorderProof]) -> PinpointRow:
    """The accused's own borders. Code: FF-LEDG-358: they are not in what it had committed to."""
    count = leaf_count(game.program.segments)
    places = [(each.border.round, each.border.index) for each in shown]
    if places != [(game.round, game.segment), (game.round, game.segment + 1)] or not all(
        merkle.holds(game.trace, count, each.border.index, encode(each.border), each.path) for each in shown
    ):
        raise PolicyError("FF-LEDG-358", "the borders of the segment do not stand under the claim's trace")
    return replace(game, start=shown[0].border, claimed=shown[1].border)


def _add_bond(draft: StateDraft, game: PinpointRow, bond: int) -> None:
    """What the accused puts up, with what it did in an answer. Code: FF-LEDG-359."""
    dispute, least = _dispute(draft, game), params_of(draft, known(draft, game.job).terms).bond_min
    if dispute.bond + bond < least:
        raise PolicyError("FF-LEDG-359", f"the accused puts up {least} at least")
    withdraw(draft, game.node, bond)
    draft.put(replace(dispute, bond=dispute.bond + bond))


def descend(draft: StateDraft, sender: PeerId, op: Descend) -> None:
    """The children of one node. Codes: FF-LEDG-346 to -349, -357."""
    game, side = _turn(draft, sender, op.job, op.node, PinpointStage.DESCEND, (op.level, op.first))
    _check_count(game, op.children)
    if tile_tree.node_hash(game.level, game.first, op.children) != game.nodes[side]:
        raise _other_children()
    game = replace(game, children=_put(game.children, side, op.children))
    if all(game.children):
        _wait(draft, deeper(game))
    else:
        draft.put(game)


def deeper(game: PinpointRow) -> PinpointRow:
    """Into the first child that differs: there is one, since the hashes above do."""
    pairs = list(zip(*game.children, strict=True))
    place = next(at for at, (mine, theirs) in enumerate(pairs) if mine != theirs)
    level = game.level - 1
    first = game.first + place * tile_tree.WIDTH**level
    stage = PinpointStage.DESCEND if level else PinpointStage.SHOW
    return replace(game, stage=stage, level=level, first=first, nodes=pairs[place], children=((), ()))


def show(draft: StateDraft, sender: PeerId, op: ShowTile) -> None:
    """A side's tile, for all to read. Codes: FF-LEDG-346 to -349, -384 not the tile that was committed to."""
    game, side = _turn(draft, sender, op.job, op.node, PinpointStage.SHOW, (0, op.leaf))
    if len(op.data) > limits.TILE_BYTES or tile_tree.leaf_hash(op.leaf, op.data) != game.nodes[side]:
        raise PolicyError("FF-LEDG-384", f"this is not the sender's tile at leaf {op.leaf}")
    game = replace(game, shown=_put(game.shown, side, True))
    if all(game.shown):
        _wait(draft, replace(game, stage=PinpointStage.REFEREE))
    else:
        draft.put(game)


def open_verdict(draft: StateDraft, _sender: PeerId, op: OpenVerdict) -> None:
    """Both have the same tree: its last leaf decides. Codes: FF-LEDG-346, -354 another leaf."""
    game = _waiting(draft, op.job, op.node, PinpointStage.VERDICT)
    total = _total(game)
    if not tile_tree.holds(game.roots[ACCUSED], total, total - 1, bytes([op.is_guilty]), op.path):
        raise PolicyError("FF-LEDG-354", "the last leaf of the tree is another one")
    if op.is_guilty:
        _uphold(draft, game)
    else:
        _overturn(draft, game)


def decide(draft: StateDraft, _sender: PeerId, op: ProveElement) -> None:
    """The law computes the first element that differs. Codes: FF-LEDG-346, -355 the exhibit proves nothing."""
    game = _waiting(draft, op.job, op.node, PinpointStage.REFEREE)
    try:
        ruling = referee.ruling(case_of(game), referee.read(op.data))
    except ProtocolError as error:
        raise PolicyError("FF-LEDG-355", f"the exhibit proves nothing: {error}") from None
    if ruling.accused:
        _overturn(draft, game)
    elif ruling.challenger:
        _uphold(draft, game)
    else:
        _forfeit(draft, game)


def case_of(game: PinpointRow) -> RefereeCase:
    """What is fixed of the leaf at which a game stands, before anything of it is shown."""
    run, borders = SegmentSteps(game.begin, game.steps), (game.start, game.claimed)
    return RefereeCase(game.program, game.round, game.seat, run, *borders, game.roots, game.first, game.nodes)


def _waiting(draft: StateDraft, job: Hash, node: PeerId, stage: PinpointStage) -> PinpointRow:
    """The game, if this is what it waits for. Code: FF-LEDG-346."""
    game = draft.find(PinpointRow, lease_key(job, node))
    if game is None or game.stage != stage:
        raise PolicyError("FF-LEDG-346", "no game waits for this move")
    return game


def _turn(
    draft: StateDraft, sender: PeerId, job: Hash, node: PeerId, stage: PinpointStage, at: tuple[int, int] | None = None
) -> tuple[PinpointRow, int]:
    """The game and the sender's side in it, if that has not moved yet.

    Codes: FF-LEDG-346, -347 another node of the trees, -348 plays no side, -349 has moved.
    """
    game = _waiting(draft, job, node, stage)
    if at is not None and at != (game.level, game.first):
        raise PolicyError("FF-LEDG-347", f"the game is at level {game.level}, leaf {game.first}")
    sides = (game.challenger,) if game.challenger != NO_ACCOUNT else _rest(_dispute(draft, game), game)
    if sender != game.node and sender not in sides:
        raise PolicyError("FF-LEDG-348", "the sender plays no side of this game")
    side = ACCUSED if sender == game.node else CHALLENGER
    if _has_moved(game)[side]:
        raise PolicyError("FF-LEDG-349", "this side has made its move")
    return game, side


def _has_moved(game: PinpointRow) -> tuple[bool, bool]:
    moved = game.shown if game.stage == PinpointStage.SHOW else game.children
    return bool(moved[ACCUSED]), bool(moved[CHALLENGER])


def _check_count(game: PinpointRow, children: Sequence[Hash]) -> None:
    """Code: FF-LEDG-357."""
    if len(children) != tile_tree.child_count(_total(game), game.level, game.first):
        raise _other_children()


def _other_children() -> PolicyError:
    return PolicyError("FF-LEDG-357", "these are not the children of the node")


def _put(pair: tuple[T, T], side: int, value: T) -> tuple[T, T]:
    return (value, pair[CHALLENGER]) if side == ACCUSED else (pair[ACCUSED], value)


def _total(game: PinpointRow) -> int:
    return programs.leaf_count(game.program, game.steps)


def _wait(draft: StateDraft, game: PinpointRow) -> None:
    """The next stage has a deadline of its own."""
    draft.put(replace(game, deadline=draft.now + params_of(draft, known(draft, game.job).terms).dispute_ms))


# Ends


def expire(draft: StateDraft) -> None:
    """Time-out at the begin of a block: silence loses."""
    for game in draft.due(PinpointRow, draft.now):
        moved = _has_moved(game) if game.stage in PLAYED_IN else (False, game.stage == PinpointStage.VERDICT)
        is_let_off = bool(game.beaten) and game.challenger == NO_ACCOUNT  # it has won, and nobody else plays
        if moved == (True, False) or is_let_off:
            _overturn(draft, game)
        elif moved == (False, True):
            _uphold(draft, game)
        else:
            _forfeit(draft, game)


def _uphold(draft: StateDraft, game: PinpointRow) -> None:
    """As a slash; a bonded challenger is the finder, and has its bond back."""
    dispute = _dispute(draft, game)
    deposit(draft, game.challenger, game.bond)
    finders = (game.challenger,) if game.bond else _rest(dispute, game)
    disputes.uphold(draft, dispute, finders, game.beaten)


def _overturn(draft: StateDraft, game: PinpointRow) -> None:
    """Who played against the accused pays: half to the accused, half burnt; where nobody did, every accuser."""
    dispute = _dispute(draft, game)
    if game.challenger in dispute.accusers and set(_rest(dispute, game)) != {game.challenger}:
        _wait(draft, _anew(game))
        return
    deposit(draft, game.node, game.bond // 2)
    nodes.burn(draft, game.node, game.bond - game.bond // 2)
    disputes.acquit(draft, dispute, DisputeState.OVERTURNED, _losers(dispute, game))


def _forfeit(draft: StateDraft, game: PinpointRow) -> None:
    """Both lose, and nobody gets anything."""
    dispute = _dispute(draft, game)
    nodes.burn(draft, game.node, game.bond)
    disputes.forfeit(draft, dispute, _losers(dispute, game))


def _anew(game: PinpointRow) -> PinpointRow:
    """The same game against the accusers that have not played. Its depth is that of all trees of so many leaves."""
    fresh = PinpointRow(game.job, game.node, game.round, game.segment, game.trace, game.weight)
    fixed = {"program": game.program, "seat": game.seat, "begin": game.begin, "steps": game.steps}
    beaten = (*game.beaten, game.challenger)
    return replace(fresh, stage=PinpointStage.FIRST, level=tile_tree.depth(_total(game)), beaten=beaten, **fixed)


def _rest(dispute: DisputeRow, game: PinpointRow) -> Sequence[PeerId]:
    """Accusers that have not lost."""
    return [accuser for accuser in dispute.accusers if accuser not in game.beaten]


def _losers(dispute: DisputeRow, game: PinpointRow) -> Sequence[PeerId]:
    """Accusers that played and did not win; all of them where none did."""
    played = (*game.beaten, *((game.challenger,) if game.challenger in dispute.accusers else ()))
    return played or dispute.accusers


def _dispute(draft: StateDraft, game: PinpointRow) -> DisputeRow:
    """The dispute that a game is about; its row is as old as the game's."""
    dispute = draft.find(DisputeRow, game.key)
    assert dispute is not None
    return dispute

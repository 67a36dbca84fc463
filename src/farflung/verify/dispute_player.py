"""Computes one player's next operation in a dispute, or silence, from its own execution and the ledger's row.

    stage      the accused                       a challenger                      whoever else has executed it
    OFFERED    Pinpoint, if it is not guilty     Pinpoint, if the node is guilty   -
    FIRST      FirstMove with borders and bond   FirstMove                         -
    DESCEND    Descend                           Descend                           -
    VERDICT    OpenVerdict, if not guilty        OpenVerdict, if guilty            OpenVerdict
    SHOW       ShowTile                          ShowTile                          -
    REFEREE    ProveElement                      ProveElement                      ProveElement

Pure: the row is all that a player remembers, so it may stop and start anew at any stage. A player moves as soon as it
may; who does so and has executed the program never loses a dispute in which it is right (Canetti, Riva, Rothblum 2013):
up to the first leaf that differs both trees agree, so at that leaf the other tile is wrong, or both are the same tree.
Nobody begins what it would lose: the last leaf of its own execution says so before (`is_won`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from farflung.core.canon.program import CanonicalProgram
from farflung.core.canon.referee import ElementProof
from farflung.core.codec import encode
from farflung.core.ids import Hash
from farflung.ledger.pinpoint_game import (
    ACCUSED,
    CHALLENGER,
    BorderProof,
    Descend,
    FirstMove,
    OpenVerdict,
    Pinpoint,
    PinpointRow,
    PinpointStage,
    ProveElement,
    ShowTile,
)
from farflung.verify.canon.dispute_execution import SegmentExecution

Move = Pinpoint | FirstMove | Descend | OpenVerdict | ShowTile | ProveElement
Pair = tuple[bytes | None, bytes | None]  # tiles that were shown, the accused's first
Prove = Callable[[int, tuple[bytes, bytes]], ElementProof]  # a leaf and both tiles → what the referee is shown


class DisputeRole(Enum):
    """On whose side a player is."""

    ACCUSED = ACCUSED
    CHALLENGER = CHALLENGER
    BYSTANDER = 2


class DisputePlayer(NamedTuple):
    """What a player brings. `execution`: its own execution; `tile` and `prove` execute again what is asked of it.

    `terms` and `program` open the job's id. The accused has the borders of the segment under its trace, and the bond
    that the law asks for.
    """

    role: DisputeRole
    execution: SegmentExecution
    terms: Hash
    program: CanonicalProgram
    tile: Callable[[int], bytes]
    prove: Prove
    borders: tuple[BorderProof, ...] = ()
    bond: int = 0


def is_won(role: DisputeRole, execution: SegmentExecution) -> bool:
    """Whether whoever is honest on that side wins: known before anybody is accused, or answers."""
    return role is DisputeRole.BYSTANDER or execution.is_guilty is (role is DisputeRole.CHALLENGER)


def next_move(player: DisputePlayer, row: PinpointRow, shown: Pair = (None, None)) -> Move | None:
    """What the player has to say now; None: nothing, for now or at all.

    `row` is the game as the ledger has it, `shown` the tiles in the `ShowTile` operations of its blocks.
    """
    if not is_won(player.role, player.execution):
        return None
    match row.stage:
        case PinpointStage.OFFERED if player.role is not DisputeRole.BYSTANDER:
            return Pinpoint(row.job, row.node, player.terms, player.program)
        case PinpointStage.FIRST | PinpointStage.DESCEND | PinpointStage.SHOW if (
            player.role is not DisputeRole.BYSTANDER
        ):
            return _turn(player, row)
        case PinpointStage.VERDICT:
            last = player.execution.tree.leaves - 1
            if player.execution.tree.root != row.roots[ACCUSED]:
                return None
            path = player.execution.tree.path(last)
            return OpenVerdict(row.job, row.node, player.execution.is_guilty, path)
        case PinpointStage.REFEREE:
            return _proof(player, row, shown)
    return None


def _turn(player: DisputePlayer, row: PinpointRow) -> Move | None:
    """The move that both sides owe, unless it has been made."""
    side: int = player.role.value
    if row.shown[side] if row.stage == PinpointStage.SHOW else row.children[side]:
        return None
    tree, named = player.execution.tree, (row.job, row.node)
    match row.stage:
        case PinpointStage.FIRST:
            return FirstMove(*named, player.bond, player.borders, tree.children(tree.depth, 0))
        case PinpointStage.DESCEND:
            return Descend(*named, row.level, row.first, tree.children(row.level, row.first))
    return ShowTile(*named, row.first, player.tile(row.first))


def _proof(player: DisputePlayer, row: PinpointRow, shown: Pair) -> ProveElement | None:
    """The proof of the one element, once both tiles were read from the ledger's blocks."""
    accused, challenger = shown
    if accused is None or challenger is None:
        return None
    exhibit = player.prove(row.first, (accused, challenger))
    return ProveElement(row.job, row.node, encode(exhibit))

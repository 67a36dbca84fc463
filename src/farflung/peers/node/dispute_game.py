"""Plays one game of a dispute for a node: reads its row, executes once, makes each move that is due.

The row on the ledger and the file on disk are all that is remembered, so a process that dies goes on with its next
look. A refusal is no failure: another accuser was faster, the referee was asked already, the game is over. What was
refused is not said again before the row has changed: each transaction has its fee.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from farflung.core.canon.program import SegmentSteps, run_of
from farflung.core.canon.tile_tree import leaf_hash
from farflung.core.errors import RunError
from farflung.job.spec import JobTerms
from farflung.ledger.disputes import DisputeRow
from farflung.ledger.pinpoint_game import ACCUSED, CHALLENGER, NO_ACCOUNT, PinpointRow, PinpointStage, ShowTile
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.node.dispute_files import DisputeFile
from farflung.train import segments
from farflung.verify.canon import dishonest_execution, dispute_execution, tile_proofs
from farflung.verify.canon.dispute_execution import DisputedSegment
from farflung.verify.canon.job_program import JobProgramParts
from farflung.verify.dispute_player import DisputePlayer, DisputeRole, Move, Pair, next_move

LOOK_SECONDS: Final = 0.5
REFUSED: Final = "FF-APP-070"
PAGE: Final = 64  # blocks that are read at a time on the way back to the tiles

Executed = Callable[[Callable[[], Move | None]], Awaitable[Move | None]]


class DisputeGame:
    """One side of one game. `executed` runs what takes long, beside the loop and never twice at once."""

    def __init__(
        self,
        ledger: LedgerClient,
        terms: JobTerms,
        dispute_file: DisputeFile,
        parts: Callable[[], Awaitable[JobProgramParts]],
        executed: Executed,
        bond_min: int,
        *,
        contests: bool = False,
    ) -> None:
        """`contests`: an accused that is guilty denies it (verify.canon.dishonest_execution)."""
        self._ledger, self._terms, self._file, self._parts = ledger, terms, dispute_file, parts
        self._executed, self._bond_min, self._contests = executed, bond_min, contests
        self._player: DisputePlayer | None = None
        self._refused: PinpointRow | None = None

    async def play(self) -> None:
        """Until the game is closed. Raises what executing raises, and what the ledger's client does."""
        while (row := await self._row()) is not None and row.stage != PinpointStage.CLOSED:
            if row != self._refused:
                move = await self._move(row)
                if move is not None:
                    await self._say(move, row)
                    continue
            await asyncio.sleep(LOOK_SECONDS)

    async def _row(self) -> PinpointRow | None:
        return await self._ledger.row(PinpointRow, self._file.job + self._file.node)

    async def _say(self, move: Move, row: PinpointRow) -> None:
        try:
            await self._ledger.submit(move)
        except RunError as error:
            if error.code != REFUSED:
                raise
            self._refused = row

    async def _move(self, row: PinpointRow) -> Move | None:
        """What is due now."""
        bond = await self._bond() if self._role(row) is DisputeRole.ACCUSED else 0
        if self._player is not None and row.stage not in (PinpointStage.SHOW, PinpointStage.REFEREE):
            return self._next(self._player, row, bond)
        parts = await self._parts() if self._player is None else None
        shown = (None, None) if row.stage != PinpointStage.REFEREE or self._lies else await self._shown(row)

        def move() -> Move | None:
            if parts is not None:
                self._player = self._ready(parts, row)
            assert self._player is not None
            return self._next(self._player, row, bond, shown)

        return await self._executed(move)

    def _next(self, player: DisputePlayer, row: PinpointRow, bond: int, shown: Pair = (None, None)) -> Move | None:
        return next_move(player._replace(role=self._role(row), bond=bond), row, shown)

    @property
    def _lies(self) -> bool:
        return self._contests and self._file.node == self._ledger.own

    def _role(self, row: PinpointRow) -> DisputeRole:
        """Another accuser may have moved first, or this one may have lost: then it speaks at the end at most."""
        if self._ledger.own == row.node:
            return DisputeRole.ACCUSED
        is_rival = row.challenger in (NO_ACCOUNT, self._ledger.own) and self._ledger.own not in row.beaten
        return DisputeRole.CHALLENGER if is_rival else DisputeRole.BYSTANDER

    def _ready(self, parts: JobProgramParts, row: PinpointRow) -> DisputePlayer:
        """Executes the segment."""
        segment = segment_of(parts, self._terms, self._file, row)
        honest = dispute_execution.play, tile_proofs.leaf_tile
        play, tile = (dishonest_execution.play, dishonest_execution.tile) if self._lies else honest
        played = play(parts, segment)
        return DisputePlayer(
            self._role(row),
            played,
            self._terms.rest,
            parts.program,
            partial(tile, parts, segment),
            partial(tile_proofs.exhibit, parts, segment, played.tree),
            self._file.borders,
        )

    async def _bond(self) -> int:
        """What the accused has still to put up: perhaps it answered before somebody opened the program."""
        dispute = await self._ledger.row(DisputeRow, self._file.job + self._file.node)
        return max(0, self._bond_min - (dispute.bond if dispute is not None else 0))

    async def _shown(self, row: PinpointRow) -> Pair:
        """The tiles of both sides, from the newest blocks back; their hashes in the row say which they are."""
        found = dict[int, bytes]()
        last = (await self._ledger.head()).header.height
        while len(found) < len(row.nodes) and last > 0:
            first = max(1, last - PAGE + 1)
            for op in await self._shows(first, last, row):
                hashed = leaf_hash(row.first, op.data)
                found |= {side: op.data for side in (ACCUSED, CHALLENGER) if row.nodes[side] == hashed}
            last = first - 1
        return found.get(ACCUSED), found.get(CHALLENGER)

    async def _shows(self, first: int, last: int, row: PinpointRow) -> list[ShowTile]:
        blocks = await self._ledger.blocks(first, last)
        said = (op for block in blocks for signed in block.txs for op in signed.tx.ops)
        named = row.job, row.node, row.first
        return [op for op in said if isinstance(op, ShowTile) and (op.job, op.node, op.leaf) == named]


def segment_of(parts: JobProgramParts, terms: JobTerms, dispute_file: DisputeFile, row: PinpointRow) -> DisputedSegment:
    """What a dispute file says, as it is executed. Raises RunError FF-APP-381, and FF-TRAIN-070 to -082."""
    run: SegmentSteps | None = run_of(parts.program, dispute_file.weight, dispute_file.segment)
    if run is None:
        raise _other(f"it has no segment {dispute_file.segment}")
    if (dispute_file.trace, dispute_file.weight) != (row.trace, row.weight):
        raise _other("its trace or weight is another")
    optimizer, layout = terms.spec.optimizer, terms.layout
    start, claimed = (
        segments.unpack(data, optimizer, layout, dispute_file.round)
        for data in (dispute_file.start, dispute_file.claimed)
    )
    assert start.params is not None  # whole (peers.node.dispute_files)
    seat = dispute_file.seat if row.stage == PinpointStage.OFFERED else row.seat
    return dispute_execution.segment_of(parts, layout, start.params, seat, run, start, claimed)


def _other(cause: str) -> RunError:
    return RunError("FF-APP-381", "what is disputed is not what is kept here", cause=cause)

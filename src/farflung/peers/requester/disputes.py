"""Monitors a run's disputes beside its rounds, reports each step once, and waits for their end.

All that is told follows from rows and blocks, so whoever comes next tells the same; the journal drops what it has.
Where ledger time counts blocks, waiting does not move it: whoever waits makes blocks, and so a silent side has lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import numpy as np

from farflung.core.canon import program as programs
from farflung.core.canon.array_operations import DTYPES
from farflung.core.canon.program import ProgramEntry
from farflung.core.canon.tile_tree import WIDTH
from farflung.core.errors import FarflungError
from farflung.core.events import DisputeEndEvent, DisputeStageEvent, WarningEvent
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger.disputes import DisputeRow, DisputeState
from farflung.ledger.pinpoint_game import NO_ACCOUNT, PinpointRow, PinpointStage
from farflung.ledger.rules.bounties import finders_of, share_of
from farflung.ledger.table_rows import LeaseRow
from farflung.peers.ledger_client.client import LedgerClient, dispute_of
from farflung.peers.rundir.journal import EventEmitter
from farflung.verify import dispute_trace
from farflung.verify.canon import graph_file
from farflung.verify.dispute_trace import DisputeOperation, DisputeOutcome, DisputeStep

LOOK_SECONDS: Final = 0.5
BLOCK_SECONDS: Final = 1.0  # without a block, after which whoever waits makes one
MOST_SECONDS: Final = 3600.0  # for which the end of a run waits for its disputes
SHORT: Final = 16  # digits of a hash
TURNS: Final = {PinpointStage.OFFERED: "either", PinpointStage.VERDICT: "anybody", PinpointStage.REFEREE: "anybody"}


class DisputeProgress:
    """One dispute that is looked at, and all that was said of it so far."""

    def __init__(self, node: PeerId, round: int, segment: int) -> None:
        self.node, self.round, self.segment = node, round, segment
        self.said: list[DisputeOperation] = []
        self.times: list[int] = []  # of all blocks
        self.told = 0  # rungs
        self.seen: tuple[DisputeRow | None, PinpointRow | None] = (None, None)
        self.is_over = False


class DisputeMonitor:
    """All disputes of one job, from the accusation to the end."""

    def __init__(
        self,
        ledger: LedgerClient,
        job: Hash,
        journal: EventEmitter,
        shipped: Callable[[], bytes] = bytes,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`shipped`: the job's graph (verify.canon.graph_file), or nothing: then values have no names."""
        self._ledger, self._job, self._journal, self._sleep = ledger, job, journal, sleep
        self._shipped = shipped
        self._all: dict[PeerId, DisputeProgress] = {}

    def follow(self, node: PeerId, round: int, segment: int) -> None:
        """There is a dispute about this segment of `node`."""
        self._all.setdefault(node, DisputeProgress(node, round, segment))

    @property
    def _open(self) -> list[DisputeProgress]:
        return [each for each in self._all.values() if not each.is_over]

    async def run(self) -> None:
        """Looks again and again, beside the rounds, until it is cancelled."""
        while True:
            await self._sleep(LOOK_SECONDS)
            try:
                await self.look()
            except FarflungError:
                continue  # the ledger is away: whoever needs it for the rounds says so

    async def over(self) -> None:
        """Waits until all are decided, the clock's way if nobody speaks; after MOST_SECONDS it tells, and goes on."""
        waited, since, height = 0.0, 0.0, 0
        await self.look()
        while self._open and waited < MOST_SECONDS:
            await self._sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS
            now = (await self._ledger.head()).header.height
            since, height = (since + LOOK_SECONDS, height) if now == height else (0.0, now)
            if self._ledger.counts_blocks and since >= BLOCK_SECONDS:
                height, since = await self._ledger.refresh(), 0.0
            await self.look()
        for each in self._open:
            self._journal.emit(_undecided(each))

    async def look(self) -> None:
        """Tells what is new."""
        for each in self._open:
            await self._look(each)

    async def _look(self, one: DisputeProgress) -> None:
        dispute = await dispute_of(self._ledger, self._job, one.node)
        game = await self._ledger.row(PinpointRow, self._job + one.node)
        if dispute is None or (dispute, game) == one.seen:
            return
        if not await self._read(one):
            return
        if game is not None:
            found = dispute_trace.dispute_steps(game, one.said)
            for rung in found[one.told :]:
                self._journal.emit(_played(one, game, rung), durable=True)
            one.told = max(one.told, len(found))
        if not dispute.is_pending:
            self._journal.emit(await self._ruled(one, dispute, game), durable=True)
            one.is_over = True
        one.seen = dispute, game

    async def _read(self, one: DisputeProgress) -> bool:
        """What was said of it since the last time; False where a validator is behind what was seen of the rows."""
        height = (await self._ledger.head()).header.height
        for block in await self._ledger.blocks(len(one.times) + 1):
            one.times.append(block.header.time)
            for signed in block.txs:
                one.said += dispute_trace.about(
                    self._job, one.node, block.header.height, signed.tx.sender, signed.tx.ops
                )
        return len(one.times) >= height

    async def _ruled(self, one: DisputeProgress, dispute: DisputeRow, game: PinpointRow | None) -> DisputeEndEvent:
        ended = dispute_trace.end(dispute, game, one.said)
        deadline = game.deadline if game is not None and game.steps else dispute.deadline
        clock = next((at for at, time in enumerate(one.times, 1) if time >= deadline), len(one.times))
        height = ended.height or clock
        begun = one.said[0].height if one.said else height
        named = DisputeEndEvent(
            peer=one.node.hex(),
            round=one.round,
            segment=one.segment,
            ended=dispute.state.name.lower(),
            by=ended.by,
            height=height,
            blocks=height - begun,
            challenger=_challenger(game),
            silent=ended.silent,
            steps=game.steps if game is not None else 0,
            roots=_roots(game),
            sent=dispute_trace.sent(game, one.said) if game is not None else 0,
            shown=ended.shown,
        )
        leases = {lease.node: lease for lease in await self._ledger.leases(self._job)}
        told = await asyncio.to_thread(self._named, _with_element(named, game, ended))
        return _with_money(told, dispute, game, leases)

    def _named(self, ruled: DisputeEndEvent) -> DisputeEndEvent:
        """What people call the value; nothing of the judgement's, whose inputs have names."""
        shipped = self._shipped()
        if not shipped or not 0 <= ruled.step < ruled.steps:
            return ruled
        names = dispute_trace.named(graph_file.read(shipped)[0], ruled.value)
        return msgspec.structs.replace(ruled, becomes=names.becomes, near=names.near)


def _challenger(game: PinpointRow | None) -> str:
    against = dispute_trace.player(game)
    return against.hex() if against is not None else ""


def _roots(game: PinpointRow | None) -> tuple[str, ...]:
    """Of both sides' trees; none before both have said theirs."""
    roots = game.roots if game is not None else ()
    return tuple(root.hex()[:SHORT] for root in roots) if ZERO_HASH not in roots else ()


def _played(one: DisputeProgress, game: PinpointRow, rung: DisputeStep) -> DisputeStageEvent:
    """One rung as it is told."""
    said = DisputeStageEvent(
        peer=one.node.hex(),
        round=one.round,
        segment=one.segment,
        stage=rung.stage.name.lower(),
        turn=TURNS.get(rung.stage, "both"),
        height=rung.height,
    )
    if rung.stage is PinpointStage.OFFERED:
        return said
    total = programs.leaf_count(game.program, game.steps)
    below = min(WIDTH**rung.level, total - rung.first)
    step, until = (min(game.steps, leaf // game.program.leaves) for leaf in (rung.first, rung.first + below - 1))
    mine, theirs = ("" if node == ZERO_HASH else node.hex()[:SHORT] for node in rung.nodes)
    return msgspec.structs.replace(
        said,
        level=rung.level,
        first=rung.first,
        leaves=below,
        total=total,
        step=step,
        until=until,
        steps=game.steps,
        accused=mine,
        other=theirs,
        game=rung.number,
        challenger=rung.rival.hex() if rung.rival != NO_ACCOUNT else "",
    )


def _with_element(ruled: DisputeEndEvent, game: PinpointRow | None, ended: DisputeOutcome) -> DisputeEndEvent:
    """What the law computed, and what both sides had said of it."""
    finding, exhibit = ended.finding, ended.exhibit
    if game is None or finding is None or exhibit is None:
        return ruled
    entry = finding.entry
    mine, theirs, law = (_value(entry, data) for data in (*finding.said, finding.law))
    return msgspec.structs.replace(
        ruled,
        leaf=game.first,
        step=finding.step,
        value=finding.number,
        op=entry.op,
        name=entry.name,
        made_of=tuple(arg.entry.name or arg.entry.op for arg in exhibit.args),
        shape=entry.shape,
        element=tuple(int(place) for place in np.unravel_index(finding.flat, entry.shape)),
        accused=mine,
        other=theirs,
        law=law,
    )


def _value(entry: ProgramEntry, data: bytes) -> str:
    """An element as people read it; empty where its bytes are not there."""
    if not data:
        return ""
    if entry.kind == "bool":
        return {b"\0": "false", b"\1": "true"}.get(data, data.hex())
    return str(np.frombuffer(data, DTYPES[entry.kind])[0])


def _with_money(
    ruled: DisputeEndEvent, dispute: DisputeRow, game: PinpointRow | None, leases: dict[PeerId, LeaseRow]
) -> DisputeEndEvent:
    """Who lost what. Of accusers only those who lost in this dispute: their leases name what was held against them."""
    against = dispute.evidence if dispute.answer == ZERO_HASH else dispute.answer
    accusers = [leases[accuser] for accuser in dispute.accusers]
    lost = [lease.slashed for lease in accusers if lease.slashed and lease.evidence == against]
    bond = game.bond if game is not None else 0
    is_found = dispute.state is DisputeState.UPHELD
    is_guilty = is_found or dispute.state is DisputeState.FORFEIT
    slashed = dispute.taken + dispute.bond if is_guilty else 0
    beaten = game.beaten if game is not None else ()
    unbeaten = [accuser for accuser in dispute.accusers if accuser not in beaten]
    named = [game.challenger] if game is not None and bond else unbeaten
    finders = finders_of(leases[dispute.node], dispute.taken, named) if is_found else ()
    bounty = share_of(slashed, len(finders)) * len(finders)
    lost += [bond] if bond and not is_found else []
    return msgspec.structs.replace(
        ruled,
        slashed=slashed,
        bounty=bounty,
        burnt=slashed - bounty,
        lost=sum(lost),
        gained=0 if is_guilty else sum(stake // 2 for stake in lost),
    )


def _undecided(one: DisputeProgress) -> WarningEvent:
    return WarningEvent(
        code="FF-APP-388",
        message=f"the dispute of {one.node.hex()[:8]} is not decided yet; the run ends without it",
        hint="the ledger holds its money until then: `farflung ledger dispute look` shows it",
    )

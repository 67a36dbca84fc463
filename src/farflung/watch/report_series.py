"""Computes the numbers of every chart and table of a report from a timeline, so that both agree.

Rounds count from 0, as in the run's log. Seconds count from the moment the first round was opened, without the time in
between sessions. Money is in pico-credits, losses are nats per token.
"""

from __future__ import annotations

import bisect
import itertools
from typing import Final

from msgspec import Struct

from farflung.core import events
from farflung.core.events import SentBytesByKind
from farflung.plan.plan_comparison import is_off, ratio
from farflung.watch.fold import MemberRoundTimes, RunTimeline, Segment

COMPUTE: Final = "compute"
WAIT: Final = "wait"
SEND: Final = "send"
MERGE: Final = "merge"
PARTS: Final = (COMPUTE, SEND, MERGE, WAIT)  # of a member's round

HOLDS: Final = "holds"
OPEN: Final = "open"  # drawn, and no verdict (yet): the run goes on, or the member was out before
UNDRAWN: Final = "not drawn"
FINDINGS: Final = ("false", "withheld", "unpaid", OPEN, HOLDS)  # the gravest first


class LossPoint(Struct, frozen=True):
    """A loss, and what had been spent when the state that it belongs to was reached."""

    round: int  # public state before this round; for the mean of training, the round itself
    tokens: int
    sent: int
    seconds: float
    loss: float


class LossCurves(Struct, frozen=True):
    """Loss curves. `baseline`: of the single machine; it sends nothing, its seconds are its own."""

    train: tuple[LossPoint, ...]
    held_out: tuple[LossPoint, ...]
    baseline: tuple[LossPoint, ...]
    unigram: float | None  # the entropy of single tokens: what a model without context can reach


class SentBytesSeries(Struct, frozen=True):
    """Bytes sent at the sockets. `ring`: what a bf16 ring all-reduce sends in as many steps; computed, never run."""

    by: SentBytesByKind
    total: int
    ring: int

    @property
    def agreeing(self) -> int:
        """Sync traffic: updates and control, the counterpart of the ring."""
        return self.by.sync + self.by.control

    @property
    def times(self) -> float | None:
        """How many times as much the ring sends as sync traffic did here."""
        return self.ring / self.agreeing if self.ring and self.agreeing else None


def between_rounds(t: RunTimeline) -> float:
    """Seconds in which all members waited for the audits of one round before the next one opened."""
    return sum(t.openings[round].waited for round in t.rounds if round in t.openings)


class TimelineBlock(Struct, frozen=True):
    """Something a member did from `start` to `end`."""

    part: str
    start: float
    end: float


class MemberRow(Struct, frozen=True):
    """One member's round. `last`: everybody waited for it before the payloads were shown."""

    round: int
    peer: str
    blocks: tuple[TimelineBlock, ...]
    last: bool

    def seconds(self, part: str) -> float:
        """How long it did one thing in this round."""
        return sum(block.end - block.start for block in self.blocks if block.part == part)


class MemberTimeShare(Struct, frozen=True):
    """What one member did over all rounds, in seconds by part; `last` in so many of its `rounds`."""

    peer: str
    rounds: int
    last: int
    compute: float
    send: float
    merge: float
    wait: float


class RoundCell(Struct, frozen=True):
    """One member in one round of the audit grid; `excess`: the largest distance found, in tolerances."""

    round: int
    peer: str
    state: str
    excess: float


class AuditRow(Struct, frozen=True):
    """One drawn segment and what became of it."""

    round: int
    peer: str
    segment: int
    finding: str
    excess: float
    verifiers: tuple[str, ...]
    tokens: int
    seconds: float
    flagged: str


class AuditGrid(Struct, frozen=True):
    """The grid and its rows."""

    peers: tuple[str, ...]
    cells: tuple[RoundCell, ...]
    rows: tuple[AuditRow, ...]

    def count(self, finding: str) -> int:
        """Segments with one finding."""
        return sum(1 for row in self.rows if row.finding == finding)

    @property
    def concluded(self) -> int:
        """Segments with a verdict."""
        return len(self.rows) - self.count(OPEN)


class LeasePayment(Struct, frozen=True):
    """What the ledger paid for one lease."""

    peer: str
    units: int
    paid: int


class StakeSlash(Struct, frozen=True):
    """What a caught peer, or a verifier that guessed, lost, and where it went."""

    peer: str
    slashed: int
    bounty: int
    burnt: int


class MoneySummary(Struct, frozen=True):
    """Where escrow and stakes went. `refunded`, `sum` and `burnt`, of the escrow, are known at the end."""

    escrow: int
    stakes: int
    pays: tuple[LeasePayment, ...]
    refunded: int | None
    slashes: tuple[StakeSlash, ...]
    sum: int | None
    burnt: int = 0

    @property
    def paid(self) -> int:
        """All leases together."""
        return sum(pay.paid for pay in self.pays)

    @property
    def held(self) -> int:
        """Still in escrow."""
        return self.escrow - self.paid - (self.refunded or 0) - self.burnt

    @property
    def slashed(self) -> int:
        """Taken from stakes."""
        return sum(each.slashed for each in self.slashes)

    @property
    def returned(self) -> int:
        """Stakes that nobody touched."""
        return self.stakes - self.slashed


class PlannedVsMeasuredRow(Struct, frozen=True):
    """Planned and measured. `ratio` is None where nothing was planned; `off`: outside 0.8 to 1.25, and above `most`.

    `most`: planned at most; 0: there is no such bound.
    """

    quantity: str
    unit: str
    planned: float
    measured: float
    ratio: float | None
    off: bool
    most: float = 0.0
    cause: str = ""  # the likeliest, where it is off; empty: the run shows none


def losses(t: RunTimeline) -> LossCurves:
    """Curves over tokens, bytes and seconds."""
    spent = {0: (0, 0, 0.0)}
    tokens, seconds = 0, 0.0
    train = []
    for round in sorted(t.rounds):
        closed = t.rounds[round]
        tokens, seconds = tokens + closed.tokens, seconds + closed.seconds
        sent = total(t.sent_at.get(round, SentBytesByKind()))
        spent[round + 1] = (tokens, sent, seconds)
        train.append(LossPoint(round, tokens, sent, seconds, closed.loss))
    held = tuple(LossPoint(r, *spent[r], t.losses[r]) for r in sorted(t.losses) if r in spent)
    alone = [LossPoint(s.step, s.tokens, 0, s.seconds, s.loss) for s in t.baseline_scores]
    if t.baseline is not None:
        end = LossPoint(t.baseline.steps, tokens, 0, t.baseline.seconds, t.baseline.loss)
        alone = [*(p for p in alone if p.round < end.round), end]
    if alone and held and held[0].round == 0:  # it starts from the same weights
        alone.insert(0, LossPoint(0, 0, 0, 0.0, held[0].loss))
    unigram = t.result.loss_unigram if t.result is not None else None
    return LossCurves(tuple(train), held, tuple(alone), unigram)


def total(by: SentBytesByKind) -> int:
    """All kinds together."""
    return by.sync + by.audit + by.join + by.control + by.relay


def sent(t: RunTimeline) -> SentBytesSeries:
    """Bytes by kind; the ring's count is for the rounds that closed."""
    if t.result is not None:
        return SentBytesSeries(t.result.bytes_by, t.result.bytes_sent, t.result.bytes_ring_bf16)
    rounds = t.plan.rounds if t.plan is not None else 0
    ring = t.plan.ring_bytes * len(t.rounds) // rounds if t.plan is not None and rounds else 0
    return SentBytesSeries(t.bytes_by(), t.bytes_sent(), ring)


def _blocks(lane: MemberRoundTimes, offset: float) -> tuple[TimelineBlock, ...]:
    """The parts in order; nothing after the point at which a member left."""
    done: list[TimelineBlock] = []
    at = 0.0
    for part, until in (
        (COMPUTE, lane.trained),
        (WAIT, lane.shown_from),
        (SEND, lane.shown),
        (WAIT, lane.merged_from),
        (MERGE, lane.merged),
        (WAIT, lane.end),
    ):
        if until is None:
            break
        until = max(at, until)
        done.append(TimelineBlock(part, offset + at, offset + until))
        at = until
    return tuple(done)


def member_rows(t: RunTimeline) -> tuple[MemberRow, ...]:
    """Every member's part of every closed round, one round behind the other."""
    found: list[MemberRow] = []
    offset = 0.0
    for round in sorted(t.rounds):
        lanes = t.lanes(round)
        closed = t.rounds[round]
        if not lanes:
            offset += closed.seconds
            continue
        start = offset + max(0.0, closed.seconds - lanes[0].end)  # audits of the round before
        last = closed.waited_for
        found += [MemberRow(round, lane.peer, _blocks(lane, start), lane.peer == last) for lane in lanes]
        offset = start + lanes[0].end
    return tuple(found)


def time_shares(found: tuple[MemberRow, ...]) -> tuple[MemberTimeShare, ...]:
    """The strips of each peer added up, in the order of their keys."""
    of: dict[str, list[MemberRow]] = {}
    for member_row in found:
        of.setdefault(member_row.peer, []).append(member_row)
    rows = []
    for peer, peer_rows in sorted(of.items()):
        parts = [sum(member_row.seconds(part) for member_row in peer_rows) for part in PARTS]
        rows.append(MemberTimeShare(peer, len(peer_rows), sum(member_row.last for member_row in peer_rows), *parts))
    return tuple(rows)


def slowest(rows: tuple[MemberTimeShare, ...]) -> MemberTimeShare | None:
    """Whom everybody waited for most often; None where nobody waited for anybody."""
    late = [row for row in rows if row.last]
    return max(late, key=lambda row: (row.last, row.peer), default=None) if len(rows) > 1 else None


def audits(t: RunTimeline) -> AuditGrid:
    """Every draw, and a cell for every member of every round that was opened."""
    rows = tuple(_audit(t, key) for key in sorted({*t.drawn, *t.audits}))
    of: dict[tuple[int, str], list[AuditRow]] = {}
    for row in rows:
        of.setdefault((row.round, row.peer), []).append(row)
    cells = []
    for round in sorted(t.openings):
        for peer in t.openings[round].peers:
            peer_rows = of.get((round, peer), [])
            state = min((row.finding for row in peer_rows), key=_gravity, default=UNDRAWN)
            cells.append(RoundCell(round, peer, state, max((row.excess for row in peer_rows), default=0.0)))
    return AuditGrid(tuple(sorted({cell.peer for cell in cells})), tuple(cells), rows)


def _gravity(finding: str) -> int:
    return FINDINGS.index(finding) if finding in FINDINGS else 0


def _audit(t: RunTimeline, key: Segment) -> AuditRow:
    drawn, audit = t.drawn.get(key), t.audits.get(key)
    flagged = drawn.flagged if drawn is not None else ""
    if audit is None:
        return AuditRow(*key, OPEN, 0.0, (), 0, 0.0, flagged)
    return AuditRow(*key, audit.finding, audit.excess, audit.verifiers, audit.tokens, audit.seconds, flagged)


def money(t: RunTimeline) -> MoneySummary:
    """Escrow and stakes as the ledger moved them so far."""
    funded = t.funded or events.EscrowEvent(job="", escrow=0, stakes=0)
    pays = tuple(LeasePayment(peer, s.units, s.paid) for peer, s in sorted(t.settled.items()))
    caught = [StakeSlash(peer, c.slashed, c.bounty, c.burnt) for peer, c in t.caught.items()]
    guessed = [StakeSlash(peer, p.slashed, p.bounty, p.burnt) for peer, p in t.perjured.items()]
    slashes = tuple(sorted([*caught, *guessed], key=lambda slash: slash.peer))
    refunded = t.result.refunded if t.result is not None else None
    conserved = t.result.sum if t.result is not None else None
    burnt = t.result.pay_burnt if t.result is not None else 0
    return MoneySummary(funded.escrow, funded.stakes, pays, refunded, slashes, conserved, burnt)


def planned(t: RunTimeline) -> tuple[PlannedVsMeasuredRow, ...]:
    """Plan against measured, in the order in which it was compared."""
    return tuple(
        PlannedVsMeasuredRow(
            row.quantity, row.unit, row.planned, row.measured, ratio(row), is_off(row), row.most, row.cause
        )
        for row in t.compared
    )


def names(t: RunTimeline) -> dict[str, str]:
    """What the processes behind the peers are called here."""
    return {process.peer: name for name, process in t.processes.items() if process.peer}


class DepartureMark(Struct, frozen=True):
    """Somebody left: how far training was then."""

    peer: str
    why: str
    at: float
    point: LossPoint | None  # the round that closed last; None before the first


def departures(t: RunTimeline) -> tuple[DepartureMark, ...]:
    """Who left, in the order of time."""
    curve = losses(t).train
    closed_at = list(itertools.accumulate((t.rounds[point.round].at for point in curve), max))
    found = []
    for left in t.left:
        before = bisect.bisect_right(closed_at, left.at)
        found.append(DepartureMark(left.peer, left.reason, left.at, curve[before - 1] if before else None))
    return tuple(found)

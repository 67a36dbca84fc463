"""Lists every change of an account's money as an entry, for bookkeeping. It is a pure fold over blocks.

The law itself says what happened: `apply_block` shows each of its steps, and a step's rows before and after it are read
as entries. Two sums must come out, to the last pico-credit: all `amount` of an account is its balance, all `held`
what it has tied up in stakes, escrows and channels. What no entry explains is told as UNEXPLAINED: a bug, if ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger import transactions as ops
from farflung.ledger.block import Block, Genesis
from farflung.ledger.disputes import DisputeRow, DisputeState
from farflung.ledger.exclusions import ExclusionRow
from farflung.ledger.ledger_state import StateDraft
from farflung.ledger.pinpoint_game import PinpointRow
from farflung.ledger.rules.bounties import finders_of, share_of
from farflung.ledger.state_transition import BlockStep, LedgerState, apply_block, genesis_state
from farflung.ledger.stateless_checks import TRUSTED, UNJUDGED, Stamps
from farflung.ledger.table_rows import NOBODY, AccountRow, ChannelRow, JobRow, LeaseRow, NodeRow, Row, lease_key
from farflung.ledger.transactions import LeaseRole, tx_id
from farflung.ledger.validators import ValidatorAccuse, ValidatorRow

CLOCK: Final = -1  # the place of what no transaction did


class StatementEntryKind(StrEnum):
    """What an entry is about."""

    OPENING = "opening"
    FEE = "fee"
    FEE_EARNED = "fee earned"
    TRANSFER_OUT = "transfer out"
    TRANSFER_IN = "transfer in"
    BONDED = "stake bonded"
    FREED = "stake freed"
    SLASHED = "stake slashed"
    BOUNTY = "bounty"
    BOND = "bond in a dispute"
    GIVEN_BACK = "given back by a dispute"
    COMPENSATED = "compensated by accusers"
    ESCROW = "escrow for a job"
    PAID_TRAINER = "paid to trainer"
    PAID_VERIFIER = "paid to verifier"
    REFUND = "refund of a job"
    PAY_BURNT = "burnt pay of the convicted"
    TRAINED = "earned as trainer"
    VERIFIED = "earned as verifier"
    DEPOSIT = "deposit for a relay"
    RETURNED = "deposit returned"
    PAID_RELAY = "paid to relay"
    RELAYED = "earned as relay"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class StatementEntry:
    """One change, in pico-credits with their sign: `amount` of the balance, `held` of what is tied up.

    `other` is the counterparty (NOBODY: none), `about` the job (zero: none). `tx` is zero and `place` CLOCK for what
    the clock did; `time` is that of the block, in ledger milliseconds.
    """

    account: PeerId
    what: StatementEntryKind
    amount: int
    held: int = 0
    other: PeerId = NOBODY
    about: Hash = ZERO_HASH
    height: int = 0
    time: int = 0
    place: int = CLOCK
    tx: Hash = ZERO_HASH


_Key = tuple[str, bytes]
_Change = tuple[Row | None, Row]


def opening(genesis: Genesis) -> tuple[StatementEntry, ...]:
    """What the accounts of the genesis begin with."""
    return tuple(
        StatementEntry(owner, StatementEntryKind.OPENING, amount, time=genesis.time)
        for owner, amount in genesis.accounts
    )


def explained(
    state: LedgerState, time_ms: int, txs: Sequence[ops.SignedTx], proposer: PeerId, *, judged: Stamps = UNJUDGED
) -> tuple[LedgerState, tuple[StatementEntry, ...]]:
    """What `apply_block` makes of a block, and all entries of it in their order."""
    reader = _StatementReader(state, time_ms)
    after, _ = apply_block(state, time_ms, txs, proposer, judged=judged, see=reader.see)
    return after, tuple(reader.entries)


def entries_of(genesis: Genesis, blocks: Iterable[Block]) -> Iterator[StatementEntry]:
    """All entries of a chain; its blocks are known to be valid (Chain.adopt)."""
    state = genesis_state(genesis)
    yield from opening(genesis)
    for block in blocks:
        state, entries = explained(state, block.header.time, block.txs, block.header.proposer, judged=TRUSTED)
        yield from entries


def held_by(state: LedgerState, account: PeerId) -> int:
    """Pico-credits that the account has tied up: stakes, escrows, deposits, and what lies in disputes."""
    node = state.find(NodeRow, account)
    jobs = sum(row.held for row in state.rows(JobRow) if row.requester == account)
    channels = sum(row.held for row in state.rows(ChannelRow) if row.payer == account)
    disputes = 0
    for row in state.rows(DisputeRow):
        if row.is_pending:
            job = state.find(JobRow, row.job)
            disputes += row.taken + row.bond if row.node == account else 0
            disputes += row.pay if job and job.requester == account else 0
    disputes += sum(row.money for row in state.rows(PinpointRow) if row.challenger == account)
    excluded = state.find(ExclusionRow, account)
    disputes += excluded.money if excluded else 0
    seats = sum(row.stake for row in state.rows(ValidatorRow) if row.owner == account)
    return (node.stake if node else 0) + jobs + channels + disputes + seats


class _StatementReader:
    """Looks on while a block is applied."""

    def __init__(self, state: LedgerState, time_ms: int) -> None:
        self.entries: list[StatementEntry] = []
        self._state, self._time = state, time_ms
        self._rows: dict[_Key, Row] = {}  # those that changed, as they stand after the last step
        self._kept: tuple[int, dict[_Key, Row]] = (0, {})  # the same before a transaction's operations
        self._place, self._name = CLOCK, ZERO_HASH

    def see(self, step: BlockStep, draft: StateDraft) -> None:
        """Takes note of one step of the law."""
        if step.is_undone:
            count, self._rows = self._kept
            del self.entries[count:]
            return
        if step.tx is not None and step.op is None:
            self._place, self._name = self._place + 1, tx_id(step.tx)
        changes = self._changes(step, draft)
        moves = list(_moves(step, draft.payee, changes))
        height = self._state.height + 1
        self.entries += [
            replace(move, height=height, time=self._time, place=self._place, tx=self._name)
            for move in (*moves, *_rest(moves, changes))
        ]
        if step.op is None:
            self._kept = len(self.entries), dict(self._rows)

    def _changes(self, step: BlockStep, draft: StateDraft) -> list[_Change]:
        """Rows that the step changed. A fee touches two; an operation's sheet holds its own transaction's only."""
        keys: Iterable[_Key] = draft.written
        if step.tx is not None and step.op is None:
            keys = {(AccountRow.TABLE, step.tx.sender): 0, (AccountRow.TABLE, draft.payee): 0}
        changes: list[_Change] = []
        for key in keys:
            after = draft.written.get(key)
            before = self._rows.get(key) or self._state.tables[key[0]].row(key[1])
            if after is not None and after != before:
                changes.append((before, after))
                self._rows[key] = after
        return changes


def _moves(step: BlockStep, payee: PeerId, changes: Sequence[_Change]) -> Iterator[StatementEntry]:
    """The entries of one step."""
    match step:
        case BlockStep(None):
            pass
        case BlockStep(ops.Tx() as tx, None):
            if tx.fee:
                yield StatementEntry(tx.sender, StatementEntryKind.FEE, -tx.fee, other=payee)
                yield StatementEntry(payee, StatementEntryKind.FEE_EARNED, tx.fee, other=tx.sender)
        case BlockStep(ops.Tx(sender=sender), ops.Transfer(to, amount)):
            yield StatementEntry(sender, StatementEntryKind.TRANSFER_OUT, -amount, other=to)
            yield StatementEntry(to, StatementEntryKind.TRANSFER_IN, amount, other=sender)
    leases = [(before, row) for before, row in changes if isinstance(row, LeaseRow)]
    lost = _lost_by_accusers(changes)
    for before, row in changes:
        match row:
            case NodeRow():
                is_disputed = any(was is None and isinstance(new, DisputeRow) for was, new in changes)
                yield from _of_node(step, before, row, is_disputed, lost[row.node])
            case DisputeRow():
                yield from _of_dispute(before, row, changes)
            case PinpointRow():
                yield from _of_game(before, row, changes)
            case JobRow():
                yield from _of_job(before, row, leases)
            case ExclusionRow():
                yield from _of_appeal(before, row)
            case ChannelRow():
                yield from _of_channel(step, before, row)
            case ValidatorRow():
                yield from _of_validator(step, before, row)


def _fresh_losses(changes: Sequence[_Change]) -> Iterator[LeaseRow]:
    """Leases of accusers that lost their stake in this step: what the accused of a dispute loses is none of these."""
    disputes = [row for _, row in changes if isinstance(row, DisputeRow)]
    accused = {row.key for row in disputes}
    accusers = {lease_key(row.job, accuser) for row in disputes for accuser in row.accusers}
    for was, lease in changes:
        before = was.slashed if isinstance(was, LeaseRow) else 0
        if isinstance(lease, LeaseRow) and lease.key in accusers - accused and lease.slashed > before:
            yield lease


def _lost_by_accusers(changes: Sequence[_Change]) -> Counter[PeerId]:
    lost = Counter[PeerId]()
    for lease in _fresh_losses(changes):
        lost[lease.node] += lease.slashed
    return lost


def _of_node(
    step: BlockStep, before: Row | None, row: NodeRow, is_disputed: bool, lost: int
) -> Iterator[StatementEntry]:
    """Stake that was put up, freed or lost; what lies in a dispute is still the accused's until it is decided.

    `lost`: what a dispute that it had begun cost it, which is in the dispute's entries.
    """
    stake = row.stake - (before.stake if isinstance(before, NodeRow) else 0) + lost
    if is_disputed:
        return
    if isinstance(step.op, ops.JobSlash | ops.JobPerjury):
        finders = _finders_at_once(step.op)
        taken = (before.money if before else 0) - row.money
        yield StatementEntry(row.node, StatementEntryKind.SLASHED, 0, stake, about=step.op.job)
        for finder in finders:
            share = taken // len(finders)  # 0 of what is burnt whole
            yield StatementEntry(finder, StatementEntryKind.BOUNTY, share, other=row.node, about=step.op.job)
    elif stake:
        yield StatementEntry(
            row.node, StatementEntryKind.BONDED if stake > 0 else StatementEntryKind.FREED, -stake, stake
        )


def _finders_at_once(op: ops.JobSlash | ops.JobPerjury) -> Sequence[PeerId]:
    """Who gets the bounty of an accusation that nobody may answer: the verifiers, or the node that planted.

    Nobody, where the job has no graph.
    """
    if isinstance(op, ops.JobPerjury):
        return [op.canary.verdict.verdict.node]
    if op.program.graph == ZERO_HASH:
        return []
    return [signed.verdict.verifier for signed in op.verdicts]


def _of_dispute(before: Row | None, row: DisputeRow, changes: Sequence[_Change]) -> Iterator[StatementEntry]:
    """The bond of an answer, and to whom a decision gives stake and bond; pay is in the job's entries."""
    was = before if isinstance(before, DisputeRow) else None
    if was is None:
        return
    if row.bond != was.bond:
        yield StatementEntry(row.node, StatementEntryKind.BOND, was.bond - row.bond, row.bond - was.bond, about=row.job)
    if row.is_pending:
        return
    held = row.taken + row.bond
    if row.state in (DisputeState.UPHELD, DisputeState.FORFEIT):
        yield StatementEntry(row.node, StatementEntryKind.SLASHED, 0, -held, about=row.job)
        finders = _finders(row, changes) if row.state == DisputeState.UPHELD else ()
        for finder in finders:
            yield StatementEntry(
                finder, StatementEntryKind.BOUNTY, share_of(held, len(finders)), other=row.node, about=row.job
            )
    else:
        yield StatementEntry(row.node, StatementEntryKind.GIVEN_BACK, held, -held, about=row.job)
    for lease in _fresh_losses(changes):
        if lease.job == row.job and lease.node in row.accusers:
            yield StatementEntry(lease.node, StatementEntryKind.SLASHED, 0, -lease.slashed, about=row.job)
            if row.state == DisputeState.OVERTURNED:
                gain = lease.slashed // 2
                yield StatementEntry(row.node, StatementEntryKind.COMPENSATED, gain, other=lease.node, about=row.job)


def _finders(row: DisputeRow, changes: Sequence[_Change]) -> Sequence[PeerId]:
    """Who gets the bounty: the challenger that put up a bond, or the accusers that have lost no game."""
    games = [game for _, game in changes if isinstance(game, PinpointRow) and game.key == row.key]
    lease = next(new for _, new in changes if isinstance(new, LeaseRow) and new.key == row.key)
    beaten = [accuser for game in games for accuser in game.beaten]
    unbeaten = [accuser for accuser in row.accusers if accuser not in beaten]
    return finders_of(lease, row.taken, [game.challenger for game in games if game.bond] or unbeaten)


def _of_game(before: Row | None, row: PinpointRow, changes: Sequence[_Change]) -> Iterator[StatementEntry]:
    """A challenger's bond, and what became of it."""
    if row.money and before is None:
        yield StatementEntry(row.challenger, StatementEntryKind.BOND, -row.bond, row.bond, about=row.job)
    if not row.bond or row.money:
        return
    for _, dispute in changes:
        if isinstance(dispute, DisputeRow) and dispute.key == row.key:
            is_right = dispute.state == DisputeState.UPHELD
            what, back = (StatementEntryKind.GIVEN_BACK, row.bond) if is_right else (StatementEntryKind.SLASHED, 0)
            yield StatementEntry(row.challenger, what, back, -row.bond, about=row.job)
            if dispute.state == DisputeState.OVERTURNED:
                gain = row.bond // 2
                yield StatementEntry(
                    row.node, StatementEntryKind.COMPENSATED, gain, other=row.challenger, about=row.job
                )


def _of_appeal(before: Row | None, row: ExclusionRow) -> Iterator[StatementEntry]:
    """The bond of an appeal, and what became of it."""
    was = before if isinstance(before, ExclusionRow) else ExclusionRow(row.node)
    if row.bond:
        yield StatementEntry(row.node, StatementEntryKind.BOND, was.bond - row.bond, row.bond - was.bond, about=row.job)
    elif was.bond and row.is_final and row.answer != ZERO_HASH:
        yield StatementEntry(row.node, StatementEntryKind.SLASHED, 0, -was.bond, about=row.job)
        for juror in row.guilty:
            share = share_of(was.bond, len(row.guilty))
            yield StatementEntry(juror, StatementEntryKind.BOUNTY, share, other=row.node, about=row.job)
    elif was.bond:
        yield StatementEntry(row.node, StatementEntryKind.GIVEN_BACK, was.bond, -was.bond, about=was.job)


def _of_job(before: Row | None, row: JobRow, leases: Sequence[_Change]) -> Iterator[StatementEntry]:
    """Escrow put aside, or what became of it: each lease's pay, seen from both sides, and the rest."""
    if before is None:
        yield StatementEntry(row.requester, StatementEntryKind.ESCROW, -row.escrow, row.escrow, about=row.job)
    for was, lease in leases:
        if not isinstance(lease, LeaseRow) or lease.job != row.job:
            continue
        paid = lease.paid - (was.paid if isinstance(was, LeaseRow) else 0)
        trains = lease.role == LeaseRole.TRAIN
        if paid:
            sent, got = (
                (StatementEntryKind.PAID_TRAINER, StatementEntryKind.TRAINED)
                if trains
                else (StatementEntryKind.PAID_VERIFIER, StatementEntryKind.VERIFIED)
            )
            yield StatementEntry(row.requester, sent, 0, -paid, other=lease.node, about=row.job)
            yield StatementEntry(lease.node, got, paid, other=row.requester, about=row.job)
    refund = row.refunded - (before.refunded if isinstance(before, JobRow) else 0)
    if refund:
        yield StatementEntry(row.requester, StatementEntryKind.REFUND, refund, -refund, about=row.job)
    burnt = row.burnt - (before.burnt if isinstance(before, JobRow) else 0)
    if burnt:
        yield StatementEntry(row.requester, StatementEntryKind.PAY_BURNT, 0, -burnt, about=row.job)


def _of_channel(step: BlockStep, before: Row | None, row: ChannelRow) -> Iterator[StatementEntry]:
    change = row.held - (before.money if before else 0)
    if isinstance(step.op, ops.ChannelClaim):
        if change:
            yield StatementEntry(row.payer, StatementEntryKind.PAID_RELAY, 0, change, other=row.relay)
            yield StatementEntry(row.relay, StatementEntryKind.RELAYED, -change, other=row.payer)
    elif change:
        what = StatementEntryKind.DEPOSIT if change > 0 else StatementEntryKind.RETURNED
        yield StatementEntry(row.payer, what, -change, change, other=row.relay)


def _of_validator(step: BlockStep, before: Row | None, row: ValidatorRow) -> Iterator[StatementEntry]:
    change = row.stake - (before.stake if isinstance(before, ValidatorRow) else 0)
    if change and step.tx is not None and isinstance(step.op, ValidatorAccuse):
        yield StatementEntry(row.owner, StatementEntryKind.SLASHED, 0, change)
        yield StatementEntry(step.tx.sender, StatementEntryKind.BOUNTY, -change // 2, other=row.owner)
    elif change:
        yield StatementEntry(
            row.owner, StatementEntryKind.BONDED if change > 0 else StatementEntryKind.FREED, -change, change
        )


def _rest(moves: Sequence[StatementEntry], changes: Sequence[_Change]) -> Iterator[StatementEntry]:
    """What the entries leave open of how balances changed: nothing."""
    open_ = Counter[PeerId]()
    for before, row in changes:
        if isinstance(row, AccountRow):
            open_[row.owner] += row.balance - (before.money if before else 0)
    for move in moves:
        open_[move.account] -= move.amount
    for account, amount in open_.items():
        if amount:
            yield StatementEntry(account, StatementEntryKind.UNEXPLAINED, amount)

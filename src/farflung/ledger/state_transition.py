"""Implements the law in one function: `apply_block(state, time, transactions) -> (state', outcomes)`.

Pure: integers only, no clock, no randomness, no exception for anything that a stranger can send. Order inside a
block: what the clock ends (jobs, disputes, games, appeals, nodes, channels, validators, motions, each by index),
the transactions as listed, then, at a boundary, the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from farflung.core.codec import encode
from farflung.core.crypto import NS_TX_ID, digest
from farflung.core.errors import PolicyError, RunError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.money import format_credits
from farflung.ledger import transactions as ops
from farflung.ledger.block import BlockHeader, Genesis, check_genesis, txs_root
from farflung.ledger.disputes import DisputeAnswer, JuryVote
from farflung.ledger.earnings_tally import JobAttest, SettleMany
from farflung.ledger.exclusions import Appeal, AppealVote, HostTampered
from farflung.ledger.ledger_state import GenesisConstants, LedgerState, LedgerTable, StateDraft
from farflung.ledger.motions import Motion, MotionVote, ParamsRow
from farflung.ledger.pinpoint_game import Challenge, Descend, FirstMove, OpenVerdict, Pinpoint, ProveElement, ShowTile
from farflung.ledger.rules import (
    accounts,
    disputes,
    epochs,
    equivocation,
    exclusions,
    jobs,
    keys,
    motions,
    nodes,
    perjury,
    pinpoint,
    relays,
    settlement,
    slashes,
    tallies,
    validators,
)
from farflung.ledger.stateless_checks import UNJUDGED, Stamps
from farflung.ledger.table_rows import KINDS, NOBODY, AccountRow, Row
from farflung.ledger.tx_results import AppliedResult, FailedResult, Outcome, RejectedResult
from farflung.ledger.validators import (
    CommitteeRow,
    ValidatorAccuse,
    ValidatorJoin,
    ValidatorLeave,
    ValidatorRow,
    ValidatorState,
)

__all__ = [
    "BlockStep",
    "LedgerState",
    "See",
    "apply_block",
    "changed_rows",
    "genesis_header",
    "genesis_state",
    "total_money",
]


class BlockStep(NamedTuple):
    """One step of a block for who looks on: the clock (no transaction), a fee (no operation), an operation.

    `is_undone`: a later operation of the same transaction was refused, so that all of them never happened.
    """

    tx: ops.Tx | None = None
    op: ops.Op | None = None
    is_undone: bool = False


See = Callable[[BlockStep, StateDraft], None]


_RULES: dict[type[Any], Callable[[StateDraft, PeerId, Any], None]] = {
    ops.Transfer: accounts.transfer,
    ops.NodeRegister: nodes.register,
    ops.NodeLeave: nodes.leave,
    ops.JobCreate: jobs.create,
    ops.JobSchedule: jobs.schedule,
    ops.Progress: jobs.progress,
    ops.JobDraw: jobs.draw,
    ops.JobSlash: slashes.slash,
    ops.JobPerjury: perjury.perjury,
    ops.JobFinish: jobs.finish,
    ops.JobSettle: settlement.settle,
    ops.JobCancel: settlement.cancel,
    ops.JobCoordinate: jobs.coordinate,
    ops.JobLeave: settlement.leave,
    ops.KeyCertify: keys.certify,
    ops.KeyRevoke: keys.revoke,
    ops.ChannelOpen: relays.open_,
    ops.ChannelClaim: relays.claim,
    ops.ChannelClose: relays.close,
    SettleMany: tallies.settle_many,
    JobAttest: tallies.attest,
    DisputeAnswer: disputes.answer,
    JuryVote: disputes.vote,
    ValidatorJoin: validators.join,
    ValidatorLeave: validators.leave,
    ValidatorAccuse: equivocation.accuse,
    Motion: motions.move,
    MotionVote: motions.vote,
    Challenge: pinpoint.challenge,
    Pinpoint: pinpoint.pinpoint,
    FirstMove: pinpoint.first_move,
    Descend: pinpoint.descend,
    OpenVerdict: pinpoint.open_verdict,
    ShowTile: pinpoint.show,
    ProveElement: pinpoint.decide,
    HostTampered: exclusions.tampered,
    Appeal: exclusions.appeal,
    AppealVote: exclusions.vote,
}


def genesis_state(genesis: Genesis) -> LedgerState:
    """The state at height 0; raises VerificationError FF-LEDG-060."""
    check_genesis(genesis)
    law = law_of(genesis)
    first: dict[str, list[Row]] = {name: [] for name in KINDS}
    first[AccountRow.TABLE] += [AccountRow(owner, amount) for owner, amount in genesis.accounts]
    first[CommitteeRow.TABLE].append(CommitteeRow(0, 1, genesis.time, genesis.validators, 0))
    first[ParamsRow.TABLE].append(ParamsRow(0, 0, genesis.params))
    first[ValidatorRow.TABLE] += [ValidatorRow(key, key, 0, "", ValidatorState.ADMITTED) for key in genesis.validators]
    return LedgerState(law, 0, genesis.time, {name: LedgerTable().with_rows(rows) for name, rows in first.items()})


def law_of(genesis: Genesis) -> GenesisConstants:
    """What stays as genesis fixed it."""
    return GenesisConstants(genesis.chain, sum(amount for _, amount in genesis.accounts))


def genesis_header(genesis: Genesis) -> BlockHeader:
    """The header at height 0. It follows from genesis, so nobody signs it."""
    state = genesis_state(genesis)
    return BlockHeader(genesis.chain, 0, 0, genesis.time, NOBODY, ZERO_HASH, txs_root(()), state.root)


def apply_block(
    state: LedgerState,
    time_ms: int,
    txs: Sequence[ops.SignedTx],
    proposer: PeerId,
    *,
    judged: Stamps = UNJUDGED,
    see: See | None = None,
) -> tuple[LedgerState, tuple[Outcome, ...]]:
    """The state after a block of `time_ms` (later than state.time), and one outcome for each transaction.

    The owner of `proposer`'s seat earns the fees. `judged`: the stamps of transactions whose form and signature are
    known to hold; those of all others are looked at here. Of a block that is final they are TRUSTED: a quorum judged
    them, and two libraries that differ must not split the chain. `see` is told of each step with the sheet as it stands
    after it. A RejectedResult has no effect at all. Raises only RunError FF-LEDG-099: the ledger is not balanced, a
    bug.
    """
    draft = StateDraft(state, time_ms, validators.owner_of(state, proposer))
    settlement.expire(draft)
    disputes.expire(draft)
    pinpoint.expire(draft)
    exclusions.expire(draft)
    nodes.expire(draft)
    relays.expire(draft)
    validators.expire(draft)
    motions.expire(draft)
    if see:
        see(BlockStep(), draft)
    outcomes = tuple(_apply(draft, signed, see, judged) for signed in txs)
    epochs.turn(draft)
    return _sealed(state, draft), outcomes


def _apply(block: StateDraft, signed: ops.SignedTx, see: See | None, judged: Stamps) -> Outcome:
    name = _name(signed)
    is_judged = isinstance(signed.signature, bytes) and name != ZERO_HASH and (name, signed.signature) in judged
    refused = accounts.refusal(block, signed, is_judged=is_judged)
    if refused:
        return RejectedResult(name, *refused)
    tx = signed.tx
    accounts.charge(block, tx)
    if see:
        see(BlockStep(tx), block)
    sheet = StateDraft(block, block.now)
    for number, op in enumerate(tx.ops):
        try:
            _RULES[type(op)](sheet, tx.sender, op)
        except PolicyError as error:
            if see:
                see(BlockStep(tx, is_undone=True), block)
            return FailedResult(name, block.height, number, error.code, error.message)
        if see:
            see(BlockStep(tx, op), sheet)
    sheet.merge_into(block)
    return AppliedResult(name, block.height)


def _name(signed: ops.SignedTx) -> Hash:
    """The transaction's id, or zero where it cannot even be encoded."""
    try:
        return digest(NS_TX_ID, encode(signed.tx))
    except (OverflowError, TypeError, ValueError):
        return ZERO_HASH


def _sealed(state: LedgerState, draft: StateDraft) -> LedgerState:
    written: dict[str, list[Row]] = {name: [] for name in KINDS}
    balance = 0
    for (name, key), row in draft.written.items():
        before = state.tables[name].row(key)
        balance += row.money - (before.money if before else 0)
        written[name].append(row)
    if balance:
        raise RunError(
            "FF-LEDG-099",
            f"block {state.height + 1} makes {format_credits(balance)} credits out of nothing",
            cause="a rule of the ledger does not conserve money: this is a bug",
            hint="stop the validator, keep its store and report this",
        )
    tables = {name: state.tables[name].with_rows(written[name]) for name in KINDS}
    return LedgerState(state.law, state.height + 1, draft.now, tables)


def total_money(state: LedgerState) -> int:
    """Balances, stakes and escrows together: always `state.law.minted`."""
    return sum(row.money for table in state.tables.values() for row in table.rows)


def changed_rows(before: LedgerState, after: LedgerState) -> tuple[tuple[str, int, bytes], ...]:
    """(table, index, encoded row) of each row that differs: what a store writes with the block."""
    return tuple(
        (name, place, encode(row))
        for name in KINDS
        for place, row in after.tables[name].rows.changed(before.tables[name].rows)
    )

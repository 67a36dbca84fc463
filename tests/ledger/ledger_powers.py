"""Which tables each operation may write, and which operations may change what a lease has earned: for tests."""

from __future__ import annotations

from farflung.ledger.ledger_state import StateDraft
from farflung.ledger.state_transition import BlockStep
from farflung.ledger.table_rows import JobRow, LeaseRow
from farflung.ledger.transactions import Tx

PAYS = {"accounts", "jobs", "leases", "nodes"}
GAME = {"disputes", "pinpoints"}
OUT = {"exclusions"}
POWERS: dict[str, set[str]] = {
    "Transfer": {"accounts"},
    "NodeRegister": {"accounts", "nodes"},
    "NodeLeave": {"accounts", "nodes"},
    "JobCreate": {"accounts", "jobs"},
    "JobSchedule": {"jobs", "leases", "nodes"},
    "Progress": {"jobs", "leases", "epochs"},
    "JobDraw": {"jobs", "epochs"},
    "JobSlash": PAYS | {"disputes", "pinpoints"} | OUT,
    "JobPerjury": PAYS | {"disputes"} | OUT,
    "JobFinish": {"jobs"},
    "JobSettle": PAYS,
    "JobCancel": PAYS,
    "JobCoordinate": {"keys"},
    "JobLeave": PAYS | {"keys"},
    "KeyCertify": {"keys"},
    "KeyRevoke": {"keys"},
    "ChannelOpen": {"accounts", "channels"},
    "ChannelClaim": {"accounts", "channels"},
    "ChannelClose": {"accounts", "channels"},
    "SettleMany": {"leases"},
    "JobAttest": {"jobs"},
    "DisputeAnswer": {"accounts", "disputes"},
    "JuryVote": PAYS | {"disputes", "ballots", "pinpoints"} | OUT,
    "ValidatorJoin": {"accounts", "validators"},
    "ValidatorLeave": {"accounts", "validators"},
    "ValidatorAccuse": {"accounts", "validators"},
    "Motion": {"motions", "validators", "params"},
    "MotionVote": {"motions", "validators", "params"},
    "Challenge": PAYS | GAME,
    "Pinpoint": GAME,
    "FirstMove": GAME | {"accounts"},
    "Descend": GAME,
    "OpenVerdict": PAYS | GAME | OUT,
    "ShowTile": GAME,
    "ProveElement": PAYS | GAME | OUT,
    "HostTampered": OUT | {"accounts"},
    "Appeal": OUT | {"accounts"},
    "AppealVote": OUT | {"accounts", "nodes"},
}
# Units and pay of a lease change by these alone: the requester's record, vouchers under its tally (or the verifiers'),
# the requester's settlement, a jury's verdict or a game's end on what the accused denied, and the clock.
EARNS = {"Progress", "SettleMany", "JobSettle", "JobCancel", "JobLeave", "JuryVote", "OpenVerdict", "ProveElement"}


def check_powers(step: BlockStep, draft: StateDraft) -> None:
    """Nothing was written that the transaction's operations may not write."""
    if step.tx is None or step.op is None:
        return
    names = {type(op).__name__ for op in step.tx.ops}
    allowed = set().union(*(POWERS[name] for name in names))
    assert {table for table, _ in draft.written} <= allowed, names
    for row in draft.written.values():
        if isinstance(row, LeaseRow):
            _check_lease(step.tx, names, row, draft)


def _check_lease(tx: Tx, names: set[str], row: LeaseRow, draft: StateDraft) -> None:
    before = draft.below.find(LeaseRow, row.key)
    if before is None or (before.units, before.vouched, before.paid) == (row.units, row.vouched, row.paid):
        return
    assert names & EARNS, f"{names} changed what a lease has earned"
    if not names - {"Progress", "JobSettle", "JobCancel"}:
        job = draft.below.find(JobRow, row.job)
        assert job is not None
        assert tx.sender == job.requester

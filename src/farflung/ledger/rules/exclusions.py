"""Excludes nodes from leases for a while, and readmits them after an appeal (requirement S2).

Theory: a slash takes the stake of one lease; a node with much stake could pay that and go on. So whoever was found out
is out for `exclusion_ms`: at once for a lie, and for silence at the `exclusion_faults`-th time, as silence can be
an accident. The row names the evidence. What a jury or a game has decided stands; what only the accusers said, or the
node's own watch, is looked at again by those who had no part in the job, when the node appeals.

| edge         | signer               | from     | to                                    |
|--------------|----------------------|----------|---------------------------------------|
| (a slash)    | see `slash`, `disputes` | any   | Excluded, or one fault more           |
| HostTampered | the node itself      | any      | Excluded                              |
| Appeal       | the node             | Excluded, not final | Appealed                   |
| AppealVote   | a juror, > 2/3 agree | Appealed | Excluded and final, or Free           |
| (deadline)   | the clock            | Appealed | Excluded as before, the bond is back  |
| (`until`)    | the clock            | Excluded | Free                                  |

A new fault ends an appeal: the bond goes back, since what it was about has been replaced.
"""

from __future__ import annotations

from msgspec.structs import replace

from farflung.core.errors import PolicyError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger.exclusions import Appeal, AppealVote, ExclusionFault, ExclusionRow, HostTampered
from farflung.ledger.ledger_state import StateDraft, exclusion_of, params_of
from farflung.ledger.params import LedgerParams
from farflung.ledger.rules import bounties
from farflung.ledger.rules.accounts import deposit, withdraw
from farflung.ledger.rules.validators import owners
from farflung.ledger.table_rows import JobRow, LeaseRow, lease_key


def check(draft: StateDraft, node: PeerId) -> None:
    """Raises PolicyError FF-LEDG-365 for a node that is excluded."""
    row = exclusion_of(draft, node, draft.now)
    if row:
        raise PolicyError(
            "FF-LEDG-365",
            f"node {node[:4].hex()} is excluded until {row.until}: {row.fault.name.lower()},"
            f" evidence {row.evidence.hex()}",
        )


def record(
    draft: StateDraft, job: Hash, node: PeerId, fault: ExclusionFault, evidence: Hash, *, is_final: bool = False
) -> None:
    """What was found of a node in a job: it is out, or has one fault more. `is_final`: by a jury or a game."""
    terms = _terms(draft, job)
    if not terms.exclusion_ms:
        return
    row = draft.find(ExclusionRow, node) or ExclusionRow(node)
    if fault == ExclusionFault.WITHHELD and row.faults + 1 < terms.exclusion_faults:
        draft.put(replace(row, faults=row.faults + 1))
        return
    deposit(draft, node, row.bond)
    until = draft.now + terms.exclusion_ms
    draft.put(ExclusionRow(node, job, fault, evidence, until, is_final=is_final))


def tampered(draft: StateDraft, sender: PeerId, op: HostTampered) -> None:
    """A node reports its own machine. Code: FF-LEDG-366 it has no open lease in the job, or names no evidence.

    Its lease stays, with its stake behind it: what it did before can still be found false.
    """
    lease = draft.find(LeaseRow, lease_key(op.job, sender))
    if lease is None or not lease.is_open or op.evidence == ZERO_HASH:
        raise PolicyError("FF-LEDG-366", "the sender has no open lease in this job, or names no evidence")
    record(draft, op.job, sender, ExclusionFault.TAMPERED, op.evidence)


def appeal(draft: StateDraft, sender: PeerId, op: Appeal) -> None:
    """Asks for another look. Codes: FF-LEDG-010, -367 not excluded or asked before, -368 final, -369 bond, evidence."""
    row = exclusion_of(draft, sender, draft.now)
    if row is None or row.deadline:
        raise PolicyError("FF-LEDG-367", "the sender is not excluded, or its appeal is pending")
    if row.is_final:
        raise PolicyError("FF-LEDG-368", "a jury or a game has decided this")
    terms = _terms(draft, row.job)
    if op.bond < terms.bond_min or op.evidence == ZERO_HASH:
        raise PolicyError("FF-LEDG-369", f"an appeal names evidence and a bond of {terms.bond_min} at least")
    withdraw(draft, sender, op.bond)
    deadline = draft.now + terms.appeal_ms
    asked = replace(row, answer=op.evidence, bond=op.bond, deadline=deadline, guilty=(), innocent=())
    draft.put(asked)


def vote(draft: StateDraft, sender: PeerId, op: AppealVote) -> None:
    """A juror says what it found; decided when more than two thirds of the jury's seats found the same.

    Codes: FF-LEDG-370 no appeal is pending, -371 not a juror of it, -372 has voted.
    """
    row = draft.find(ExclusionRow, op.node)
    if row is None or not row.deadline:
        raise PolicyError("FF-LEDG-370", "no appeal of this node is pending")
    jury = _jury(draft, row)
    if sender not in jury:
        raise PolicyError("FF-LEDG-371", "the sender is no juror of this appeal")
    if sender in (*row.guilty, *row.innocent):
        raise PolicyError("FF-LEDG-372", "this juror has voted")
    said = (*(row.guilty if op.is_guilty else row.innocent), sender)
    row = replace(row, guilty=said) if op.is_guilty else replace(row, innocent=said)
    is_decided = 3 * sum(juror in said for juror in jury) > 2 * len(jury)
    draft.put(row if not is_decided else _decided(draft, row, is_guilty=op.is_guilty))


def expire(draft: StateDraft) -> None:
    """Time-out at the begin of a block: what no jury decided stays as it was, and costs nothing."""
    for row in draft.due(ExclusionRow, draft.now):
        deposit(draft, row.node, row.bond)
        draft.put(replace(row, bond=0, deadline=0))


def _decided(draft: StateDraft, row: ExclusionRow, *, is_guilty: bool) -> ExclusionRow:
    """Guilty: half of the bond is the jurors' that executed the evidence again, the rest is burnt."""
    closed = replace(row, bond=0, deadline=0)
    if is_guilty:
        bounties.spend(draft, row.node, row.bond, row.guilty)
        return replace(closed, is_final=True)
    deposit(draft, row.node, row.bond)
    return replace(closed, until=0)


def _jury(draft: StateDraft, row: ExclusionRow) -> list[PeerId]:
    """The owners of the committee's seats that had no part in the job: none paid for it, worked or accused there."""
    job = draft.find(JobRow, row.job)
    assert job is not None
    return [
        juror
        for juror in owners(draft)
        if juror not in (job.requester, row.node) and draft.find(LeaseRow, lease_key(row.job, juror)) is None
    ]


def _terms(draft: StateDraft, job: Hash) -> LedgerParams:
    row = draft.find(JobRow, job)
    assert row is not None
    return params_of(draft, row.terms)

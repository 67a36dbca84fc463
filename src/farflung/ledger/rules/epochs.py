"""Decides the next committee and the next parameters at the boundary between two epochs.

Every `epoch_blocks` blocks of an epoch there is a boundary. The epoch ends there if the next committee or the next
parameters differ; else it goes on. A committee is never empty: if nobody is left to follow, the old one stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from farflung.core.ids import PeerId
from farflung.ledger.ledger_state import LedgerState, StateDraft
from farflung.ledger.motions import ParamsRow
from farflung.ledger.validators import CommitteeRow, ValidatorRow, ValidatorState, count_key


def turn(draft: StateDraft) -> None:
    """The last step of a block: at a boundary, writes the next epoch's row if it is another, and ends seats."""
    current = draft.committee
    if (draft.height - current.first + 1) % draft.params.epoch_blocks:
        return
    members, version = _next(draft)
    if (members, version) != (current.members, current.params):
        draft.put(CommitteeRow(current.epoch + 1, draft.height + 1, draft.now, members, version))
    for row in draft.rows(ValidatorRow):
        if _ends(row):
            draft.put(replace(row, until=draft.now + draft.params.unbonding_ms))


def is_awaited(state: LedgerState) -> bool:
    """Whether the next boundary changes something: the committee, the parameters, or a seat that ends."""
    current = state.committee
    return _next(state) != (current.members, current.params) or any(_ends(row) for row in state.rows(ValidatorRow))


def _ends(row: ValidatorRow) -> bool:
    return row.state == ValidatorState.LEAVING and not row.until


def _next(view: LedgerState | StateDraft) -> tuple[tuple[PeerId, ...], int]:
    """The members and the version of the parameters that a boundary here would bring."""
    current = view.committee
    members = _next_members(view.rows(ValidatorRow), view.params.committee_max) or current.members
    return members, current.params + (view.find(ParamsRow, count_key(current.params + 1)) is not None)


def _next_members(rows: Sequence[ValidatorRow], most: int) -> tuple[PeerId, ...]:
    """The admitted, in the order of their admission; of one block's, by index."""
    admitted = [row for row in rows if row.state == ValidatorState.ADMITTED]
    return tuple(row.validator for row in sorted(admitted, key=lambda row: row.admitted)[:most])

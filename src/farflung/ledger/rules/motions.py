"""Applies motions: more than two thirds of the current seats decide on seats, parameters and law.

| edge       | signer            | from | to     | deadline |
|------------|-------------------|------|--------|----------|
| Motion     | owner of a seat   | -    | Open, or Passed | at most `motion_ms` ahead |
| MotionVote | owner of a seat   | Open | Passed, when more than 2/3 of the seats' owners voted for it | |
| (deadline) | the clock         | Open | Lapsed | |

A vote counts while its account owns a seat. What is passed holds from the next boundary on (`epochs`). The four
things that can be moved touch no account, job, lease or channel, and parameters are refused under which money
could freeze (`params.fault_of_params`).
"""

from __future__ import annotations

from msgspec.structs import replace

from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.ledger.law_version import FIRST_LAW, law_row, next_law
from farflung.ledger.ledger_state import StateDraft
from farflung.ledger.motions import (
    AdmitValidator,
    AdoptLaw,
    AmendParams,
    Motion,
    MotionRow,
    MotionState,
    MotionVote,
    ParamsRow,
    RemoveValidator,
    What,
    motion_id,
)
from farflung.ledger.params import LedgerParams, fault_of_params
from farflung.ledger.rules.validators import end_seat, owners
from farflung.ledger.validators import ValidatorRow, ValidatorState, count_key
from farflung.ledger.votes import is_quorum


def move(draft: StateDraft, sender: PeerId, op: Motion) -> None:
    """Makes a motion, and votes for it. Codes: FF-LEDG-264 to -267."""
    if not draft.now < op.deadline <= draft.now + draft.params.motion_ms:
        raise PolicyError("FF-LEDG-265", f"deadline {op.deadline} is past or too far ahead")
    name = motion_id(draft.law.chain, sender, op)
    if draft.find(MotionRow, name):
        raise PolicyError("FF-LEDG-266", "this motion was made before")
    _check_what(draft, op.what)
    _vote(draft, sender, MotionRow(name, sender, op.what, op.deadline, ()))


def vote(draft: StateDraft, sender: PeerId, op: MotionVote) -> None:
    """Votes for a motion. Codes: FF-LEDG-264, -267 as `move`, -268 no such motion, -269 voted."""
    row = draft.find(MotionRow, op.motion)
    if row is None or row.state != MotionState.OPEN:
        raise PolicyError("FF-LEDG-268", "no such motion is open")
    if sender in row.voters:
        raise PolicyError("FF-LEDG-269", "the sender has voted for it")
    _check_what(draft, row.what)
    _vote(draft, sender, row)


def expire(draft: StateDraft) -> None:
    """Time-out at the begin of a block: what is not passed lapses."""
    for row in draft.due(MotionRow, draft.now):
        draft.put(replace(row, state=MotionState.LAPSED))


def _check_what(draft: StateDraft, what: What) -> None:
    fault = _fault(draft, what)
    if fault:
        raise PolicyError("FF-LEDG-267", f"this cannot be moved: {fault}")


def _fault(draft: StateDraft, what: What) -> str:
    if isinstance(what, AmendParams):
        return fault_of_params(what.params)
    if isinstance(what, AdoptLaw):
        return "" if what.law == next_law(draft) + 1 else f"law {next_law(draft)} is followed by the next number alone"
    row = draft.find(ValidatorRow, what.validator)
    needed = ValidatorState.CANDIDATE if isinstance(what, AdmitValidator) else ValidatorState.ADMITTED
    return "" if row and row.state == needed else f"the validator is not {needed.name.lower()}"


def _vote(draft: StateDraft, sender: PeerId, row: MotionRow) -> None:
    seats = owners(draft)
    if sender not in seats:
        raise PolicyError("FF-LEDG-264", "only the owner of a seat of the present committee moves and votes")
    row = replace(row, voters=(*row.voters, sender))
    if is_quorum(sum(owner in row.voters for owner in seats), len(seats)):
        row = replace(row, state=MotionState.PASSED)
        _pass(draft, row.what)
    draft.put(row)


def _pass(draft: StateDraft, what: What) -> None:
    match what:
        case AdmitValidator(validator):
            row = _validator(draft, validator)
            draft.put(replace(row, state=ValidatorState.ADMITTED, admitted=draft.height, until=0))
        case RemoveValidator(validator):
            end_seat(draft, _validator(draft, validator))
        case AmendParams(params):
            _amend(draft, params, next_law(draft))
        case AdoptLaw(law):
            moved = draft.find(ParamsRow, count_key(draft.committee.params + 1))
            _amend(draft, moved.params if moved else draft.params, law)


def _amend(draft: StateDraft, params: LedgerParams, law: int) -> None:
    """Parameters and law from the next boundary on."""
    current = draft.committee
    draft.put(ParamsRow(current.params + 1, current.epoch + 1, params))
    if law > FIRST_LAW:
        draft.put(law_row(current.params + 1, law))


def _validator(draft: StateDraft, validator: PeerId) -> ValidatorRow:
    row = draft.find(ValidatorRow, validator)
    assert row is not None
    return row

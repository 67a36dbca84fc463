"""Applies the rules for validators: requests for a seat, its ownership, and the return of the stake behind it.

Theory: a seat is given and taken by motions (`motions`) or given back by its owner; the stake outlives the seat by
`unbonding_ms`, so that whoever signed a second history of an old epoch can still be accused (`equivocation`).

| edge            | signer       | from                | to        | deadline |
|-----------------|--------------|---------------------|-----------|----------|
| ValidatorJoin   | the owner    | -, Gone             | Candidate | time + `unbonding_ms` |
| ValidatorJoin   | the owner    | Candidate, Admitted | the same  | of a candidate: anew |
| Admit passes    | the committee | Candidate          | Admitted  | |
| ValidatorLeave  | the owner    | Candidate           | Gone      | |
| ValidatorLeave  | the owner    | Admitted            | Leaving   | the seat's end + `unbonding_ms` |
| Remove passes   | the committee | Admitted           | Leaving   | the seat's end + `unbonding_ms` |
| (deadline)      | the clock    | Candidate, Leaving  | Gone      | |
| ValidatorAccuse | anybody      | all but Jailed      | Jailed    | |

Gone and Jailed hold no stake. A validator of the genesis is Admitted, its own owner, and has no stake until it joins.
"""

from __future__ import annotations

from msgspec.structs import replace

from farflung.core.crypto import NS_SEAT, is_signed
from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.ledger.ledger_state import LedgerState, StateDraft
from farflung.ledger.rules.accounts import check_key, deposit, withdraw
from farflung.ledger.validators import ValidatorJoin, ValidatorLeave, ValidatorRow, ValidatorState, join_parts


def join(draft: StateDraft, sender: PeerId, op: ValidatorJoin) -> None:
    """Asks for a seat, or bonds more. Codes: FF-LEDG-010, -255 key, -256 another's, -257 state, -258 stake, -203."""
    check_key(op.validator)
    if not is_signed(op.validator, op.signature, NS_SEAT, *join_parts(draft.law.chain, sender)):
        raise PolicyError("FF-LEDG-255", "the consensus key did not sign who owns its seat")
    row = draft.find(ValidatorRow, op.validator)
    if row is None:
        row = ValidatorRow(op.validator, sender, 0, "", ValidatorState.GONE)
    if row.owner != sender:
        raise PolicyError("FF-LEDG-256", f"validator {op.validator[:4].hex()} is another account's")
    if row.state in (ValidatorState.LEAVING, ValidatorState.JAILED):
        raise PolicyError("FF-LEDG-257", f"the validator is {row.state.name.lower()}")
    missing = max(0, op.stake - row.stake)
    if row.stake + missing < draft.params.validator_stake_min:
        raise PolicyError("FF-LEDG-258", f"stake {op.stake} is below {draft.params.validator_stake_min}")
    withdraw(draft, sender, missing)
    row = replace(row, stake=row.stake + missing, address=op.address)
    if row.state != ValidatorState.ADMITTED:
        until = draft.now + draft.params.unbonding_ms
        row = replace(row, state=ValidatorState.CANDIDATE, until=until)
    draft.put(row)


def leave(draft: StateDraft, sender: PeerId, op: ValidatorLeave) -> None:
    """The owner gives the seat back, or asks for none any more. Code: FF-LEDG-259 not its own, or there is none."""
    row = draft.find(ValidatorRow, op.validator)
    if row is None or row.owner != sender:
        raise PolicyError("FF-LEDG-259", f"the sender has no validator {op.validator[:4].hex()}")
    if row.state == ValidatorState.CANDIDATE:
        _let_go(draft, row)
    else:
        end_seat(draft, row)


def end_seat(draft: StateDraft, row: ValidatorRow) -> None:
    """An admitted validator gets no seat any more. Code: FF-LEDG-260 it is not admitted."""
    if row.state != ValidatorState.ADMITTED:
        raise PolicyError("FF-LEDG-260", f"the validator is {row.state.name.lower()}, not admitted")
    is_seated = row.validator in draft.committee.members
    until = 0 if is_seated else draft.now + draft.params.unbonding_ms
    draft.put(replace(row, state=ValidatorState.LEAVING, until=until))


def expire(draft: StateDraft) -> None:
    """Time-out at the begin of a block: frees the stakes whose time has come."""
    for row in draft.due(ValidatorRow, draft.now):
        _let_go(draft, row)


def _let_go(draft: StateDraft, row: ValidatorRow) -> None:
    draft.put(replace(row, stake=0, until=0, state=ValidatorState.GONE))
    deposit(draft, row.owner, row.stake)


def owner_of(view: LedgerState | StateDraft, validator: PeerId) -> PeerId:
    """The account behind a consensus key; the key itself where it is none that ever joined."""
    row = view.find(ValidatorRow, validator)
    return row.owner if row else validator


def owners(draft: StateDraft) -> tuple[PeerId, ...]:
    """The accounts behind the seats of the present committee, in seat order."""
    return tuple(owner_of(draft, member) for member in draft.committee.members)

"""Says which version of the law holds, and stops who would go on under one that this farflung does not know.

A seat that executes a block by another law than its neighbours comes to other rows: it forks, or stops and does not
say why. So the law has a number. It grows by one, by a motion of the committee (`AdoptLaw`), and a new number holds
from the first block of the next epoch on, for all seats at one height. Law 1 is that of every genesis. Which number
holds with a version of the parameters is a row of table motions under a name of its own; no row: law 1. So no table and
no row has another form than before, and the roots of ledgers that never moved it are as they were (decision 100).
"""

from __future__ import annotations

from typing import Final

from farflung.core.crypto import NS_LAW, digest
from farflung.core.errors import RunError
from farflung.core.ids import Hash
from farflung.core.release import LAW, UPGRADE, VERSION
from farflung.ledger.ledger_state import LedgerState, StateDraft
from farflung.ledger.motions import AdoptLaw, MotionRow, MotionState, ParamsRow
from farflung.ledger.table_rows import NOBODY
from farflung.ledger.validators import count_key

FIRST_LAW: Final = 1


def law_name(version: int) -> Hash:
    """The name under which table motions has the law that holds with a version of the parameters."""
    return digest(NS_LAW, count_key(version))


def law_row(version: int, law: int) -> MotionRow:
    """The row that says which law holds with a version of the parameters: nobody moved it, nobody votes for it."""
    return MotionRow(law_name(version), NOBODY, AdoptLaw(law), 0, (), MotionState.PASSED)


def law_in(row: MotionRow | None) -> int:
    """The law that such a row names."""
    return row.what.law if row is not None and isinstance(row.what, AdoptLaw) else FIRST_LAW


def law_at(view: LedgerState | StateDraft, version: int) -> int:
    """The law that holds with a version of the parameters."""
    return law_in(view.find(MotionRow, law_name(version)))


def next_law(view: LedgerState | StateDraft) -> int:
    """The law from the next boundary on: one that was passed, else the present one."""
    current = view.committee.params
    return law_at(view, current + (view.find(ParamsRow, count_key(current + 1)) is not None))


def check_law(state: LedgerState, known: int = LAW) -> None:
    """Whether a program that knows the laws up to `known` may execute the next block. Raises RunError FF-LEDG-270."""
    held = law_at(state, state.committee.params)
    if held > known:
        raise unknown_law(held, state.committee.first, known)


def unknown_law(held: int, first: int, known: int = LAW) -> RunError:
    """FF-LEDG-270: the ledger goes on under a law that this farflung does not know."""
    return RunError(
        "FF-LEDG-270",
        f"this ledger needs a farflung that knows law {held}",
        cause=f"law {held} holds from block {first} on; farflung {VERSION} knows law {known} and those before",
        hint=f"{UPGRADE}; nothing is lost: it goes on from what it has",
    )

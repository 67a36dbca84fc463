"""What the entries of a history must sum to, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from farflung.ledger.account_statement import StatementEntry, StatementEntryKind, held_by
from farflung.ledger.state_transition import LedgerState
from farflung.ledger.table_rows import AccountRow


def check_sums(entries: Sequence[StatementEntry], state: LedgerState) -> None:
    """Nothing is unexplained, and both sums of every account are what the rows say."""
    assert [entry for entry in entries if entry.what == StatementEntryKind.UNEXPLAINED] == []
    amounts, held = Counter[bytes](), Counter[bytes]()
    for entry in entries:
        amounts[entry.account] += entry.amount
        held[entry.account] += entry.held
    for row in state.rows(AccountRow):
        assert amounts[row.owner] == row.balance, row.owner.hex()
        assert held[row.owner] == held_by(state, row.owner), row.owner.hex()
    assert set(amounts) <= {row.owner for row in state.rows(AccountRow)}

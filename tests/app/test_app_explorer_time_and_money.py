"""What a ledger is shown with: money to the last pico-credit, and times as what they are."""

from __future__ import annotations

import pytest

from farflung.app.explorer.operation_text import moment, told
from farflung.core.ids import PeerId
from farflung.core.money import Credits
from farflung.ledger import transactions as ops


@pytest.mark.parametrize(
    ("ledger_ms", "said"),
    [
        (0, "0.00 s after the ledger began (logical clock)"),
        (95_000, "95 s after the ledger began (logical clock)"),
        (60 * 86_400_000, "1440 h 00 min after the ledger began (logical clock)"),
        (1_790_000_000_000, "2026-09-21 14:13:20 UTC"),
        (1 << 62, f"{1 << 62} ms"),
    ],
)
def test_a_logical_clock_has_no_date(ledger_ms: int, said: str) -> None:
    assert moment(ledger_ms) == said


def test_a_payment_is_shown_to_the_last_pico_credit() -> None:
    assert "12.345678000009 credits" in told(ops.Transfer(PeerId(bytes(32)), Credits(12_345_678_000_009)))

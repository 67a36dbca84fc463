"""What `network nodes` counts of a node's work: rounds that were recorded with it, and without it."""

from __future__ import annotations

import pytest

from farflung.app.cli.network_status import _line, _record_lines, rounds_of
from farflung.core.crypto import SigningKey
from farflung.core.ids import ZERO_HASH, Hash
from farflung.ledger.table_rows import NOBODY, JobRow, JobState, LeaseRow
from farflung.ledger.transactions import LeaseRole

NODE, REQUESTER = (SigningKey(bytes([i]) * 32).public for i in (1, 2))
RUNNING = JobRow(ZERO_HASH, REQUESTER, 5, 1, 10, 99, JobState.RUNNING, round=6)
OVER = JobRow(ZERO_HASH, REQUESTER, 5, 1, 10, 99, JobState.SETTLED, round=10)
EVIDENCE = Hash(bytes([7]) * 32)


def lease(
    units: int, role: LeaseRole = LeaseRole.TRAIN, *, is_open: bool = True, evidence: Hash = ZERO_HASH
) -> LeaseRow:
    return LeaseRow(ZERO_HASH, NODE, 1, 100, 1000, NOBODY, role, units=units, evidence=evidence, is_open=is_open)


@pytest.mark.parametrize(
    ("row", "job", "accepted", "missed"),
    [
        (lease(600), RUNNING, 6, 0),
        (lease(400), RUNNING, 4, 2),
        (lease(0), RUNNING, 0, 6),
        (lease(900, is_open=False), OVER, 9, 1),
        (lease(300, is_open=False), RUNNING, 3, 0),  # it left: later rounds are not its own
        (lease(300, is_open=False, evidence=EVIDENCE), OVER, 3, 0),
        (lease(600, LeaseRole.AUDIT), RUNNING, 0, 0),  # paid for what is drawn
    ],
)
def test_rounds_with_and_without_a_node(row: LeaseRow, job: JobRow, accepted: int, missed: int) -> None:
    assert rounds_of(row, job) == (accepted, missed)


@pytest.mark.parametrize("role", ["trains", "audits"])
def test_a_usual_node_is_listed_in_80_columns(role: str) -> None:
    facts = {
        "node": NODE.hex(), "role": role, "online": True, "unit_price": 10**6, "stake": 9_899_990 * 10**6, "leases": 1,
        "memory_bytes": 10**12, "flops": 10**12, "version": "0.1.0", "seconds": 113, "system": "Linux x86_64",
        "torch": "2.13.0+cpu", "relayed": True, "places": ["203.0.113.222:45210"], "jobs": 1, "accepted": 300,
        "missed": 12, "convicted": 1, "owner": NODE.hex(),
    }  # fmt: skip
    lines = [_line(facts), *_record_lines(facts)]
    assert max(map(len, lines)) <= 80
    assert "1 lease;" in lines[0]
    assert [line.strip() for line in lines[3:]] == [f"owner {NODE.hex()[:8]}", "convicted 1 time"]

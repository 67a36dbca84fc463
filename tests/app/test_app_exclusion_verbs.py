"""A node that was found out looks why, appeals, and is heard, all by the verbs of `farflung ledger exclusion`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from test_app_dispute_verbs import BOND, JOB, Court, ask

from farflung.app.cli import ledger_exclusion
from farflung.core.crypto import NS_EVIDENCE, digest
from farflung.core.errors import RunError, UsageError
from farflung.core.ids import PeerId
from farflung.ledger.exclusions import ExclusionRow
from farflung.peers.ledger_client.client import LedgerClient


@pytest.fixture
def court(tmp_path: Path) -> Iterator[Court]:
    """A ledger that takes stakes at once: nobody was heard yet."""
    made = Court(tmp_path, dispute_ms=0)
    try:
        made.open()
        yield made
    finally:
        made.close()


def said(court: Court, verb: str, *words: str, owner: str = "") -> dict[str, Any]:
    signed = ("--owner", str(court.folder / owner)) if owner else ()
    answer = ask("exclusion", verb, "--on", str(court.config), *words, *signed, "--json")
    assert answer.exit_code == 0, answer.exception
    facts: dict[str, Any] = json.loads(answer.output)
    return facts


@pytest.mark.slow
def test_who_is_out_reads_why_appeals_and_is_let_in_by_those_without_a_part(court: Court) -> None:
    evidence, shown = str(court.work()), court.folder / "why.txt"
    shown.write_text("executed again: it is right")
    node = court.node.public.hex()
    nobody = ask("exclusion", "look", "--on", str(court.config), node).exception
    assert isinstance(nobody, UsageError)
    assert nobody.code == "FF-APP-371"
    assert court.ask("open", evidence, owner="verifier.key")["state"] == "taken"
    out = said(court, "look", node)
    assert (out["state"], out["fault"], out["job"], out["final"]) == ("excluded", "false", JOB.hex(), False)
    asked = said(court, "appeal", str(shown), owner="node.key")
    assert (asked["state"], asked["bond"]) == ("appealed", BOND)
    assert asked["answer"] == digest(NS_EVIDENCE, shown.read_bytes()).hex()
    refused = ask(
        "exclusion", "vote", "--on", str(court.config), node, "guilty", "--owner", str(court.folder / "verifier.key")
    ).exception
    assert isinstance(refused, RunError)
    assert "FF-LEDG-371" in refused.cause
    first, second = (f"validator-{number}/validator.key" for number in (1, 2))
    assert said(court, "vote", node, "innocent", owner=first)["innocent"] == 1
    free = said(court, "vote", node, "innocent", owner=second)
    assert (free["state"], free["until"], free["bond"]) == ("free", 0, 0)
    told = ask("exclusion", "look", "--on", str(court.config), node).output
    assert "State    free" in told
    assert all(len(line) <= 80 for line in told.splitlines())


def test_what_is_left_of_a_term_is_told_by_the_clock_where_the_head_is_old() -> None:
    """An idle ledger makes no block for half an hour: by its head a node would be out for too long."""
    row = ExclusionRow(PeerId(JOB), JOB, until=10_000)

    class Idle:
        async def row(self, *_: object) -> ExclusionRow:
            return row

        async def time(self) -> int:
            return 9_000

    facts, _ = asyncio.run(ledger_exclusion._seen(cast(LedgerClient, Idle()), row.node))
    assert facts["left_ms"] == 1_000

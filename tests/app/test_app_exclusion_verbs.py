"""A node that was found out looks why, appeals, and is heard, all by the verbs of `farflung ledger exclusion`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_app_dispute_verbs import BOND, JOB, Court, ask

from farflung.core.crypto import NS_EVIDENCE, digest
from farflung.core.errors import RunError, UsageError


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
    answer = ask("exclusion", verb, str(court.config), *words, *signed, "--json")
    assert answer.exit_code == 0, answer.exception
    facts: dict[str, Any] = json.loads(answer.output)
    return facts


@pytest.mark.slow
def test_who_is_out_reads_why_appeals_and_is_let_in_by_those_without_a_part(court: Court) -> None:
    evidence, shown = str(court.work()), court.folder / "why.txt"
    shown.write_text("executed again: it is right")
    node = court.node.public.hex()
    nobody = ask("exclusion", "look", str(court.config), node).exception
    assert isinstance(nobody, UsageError)
    assert nobody.code == "FF-APP-371"
    assert court.ask("open", evidence, owner="verifier.key")["state"] == "taken"
    out = said(court, "look", node)
    assert (out["state"], out["fault"], out["job"], out["final"]) == ("excluded", "false", JOB.hex(), False)
    asked = said(court, "appeal", str(shown), owner="node.key")
    assert (asked["state"], asked["bond"]) == ("appealed", BOND)
    assert asked["answer"] == digest(NS_EVIDENCE, shown.read_bytes()).hex()
    refused = ask(
        "exclusion", "vote", str(court.config), node, "guilty", "--owner", str(court.folder / "verifier.key")
    ).exception
    assert isinstance(refused, RunError)
    assert "FF-LEDG-371" in refused.cause
    first, second = (f"validator-{number}/validator.key" for number in (1, 2))
    assert said(court, "vote", node, "innocent", owner=first)["innocent"] == 1
    free = said(court, "vote", node, "innocent", owner=second)
    assert (free["state"], free["until"], free["bond"]) == ("free", 0, 0)
    told = ask("exclusion", "look", str(court.config), node).output
    assert "State    free" in told
    assert all(len(line) <= 80 for line in told.splitlines())

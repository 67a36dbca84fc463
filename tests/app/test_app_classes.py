"""Wherever a job is shown it says whether its work is proven: each place is looked at."""

from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path

import numpy as np
import pytest
from app_told import began
from ledger_parties import party_receipts
from msgspec.structs import replace

from farflung.app.cli import status, verify_run
from farflung.app.cli.main import main
from farflung.app.explorer.lookup import LookupTarget
from farflung.app.explorer.proofs import ProofChecker
from farflung.app.explorer.screens import screen as explored
from farflung.app.explorer.sources import FileLedgerSource
from farflung.app.views import report_page
from farflung.core import events
from farflung.core.canon.program import CanonicalProgram
from farflung.core.crypto import digest, local_key
from farflung.core.events import AnyEvent, from_json, to_json
from farflung.core.ids import ZERO_HASH
from farflung.core.tensor_layout import TensorLayout
from farflung.job import proof_class, terms_file
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.job_loader import load
from farflung.job.spec import JobTerms
from farflung.ledger.block import LOGICAL_MS, Genesis
from farflung.ledger.chain import Chain
from farflung.ledger.receipt_file import write_receipt_file
from farflung.ledger.transactions import JobCreate, make_tx, sign_tx
from farflung.local.model import model_card
from farflung.peers.program import trace
from farflung.peers.rundir.folder import RunFolder
from farflung.train import model_file
from farflung.train.public_state import PublicState
from farflung.verify.replay_report import ReplayReport
from farflung.watch import event_lines
from farflung.watch.fold import RunTimeline, fold
from farflung.watch.screen import ScreenView, screen

SPEC = load(None, preset="tiny").spec
LAYOUT = TensorLayout.of(gpt_shapes(SPEC.model))
WHY = "aten.sort.default cannot be checked: it has no canonical form (model.py, line 17)"
PARTIES = (ZERO_HASH, ZERO_HASH, LAYOUT, local_key(1, "r").public, ZERO_HASH)
UNPROVEN = JobTerms(SPEC, *PARTIES, unproven=WHY)
PROVEN = JobTerms(SPEC, *PARTIES, program=CanonicalProgram(graph=digest("test/graph")), unproven="")
RESULT = events.RunResultEvent(
    loss=3.0, loss_start=5.0, loss_unigram=3.3, bytes_sent=1, bytes_by=events.SentBytesByKind(), bytes_ring_bf16=1,
    segments_audited=1, caught=(), paid=1, slashed=0, refunded=0, sum=0, model_hash="ab", ledger_root="cd",
    seconds=1.0, run="r", rounds=1, tokens=1, reexecuted=0,
)  # fmt: skip


def told(terms: JobTerms) -> RunTimeline:
    """A run that was planned and classed."""
    story: list[AnyEvent] = [*began(), trace.told(terms)]
    return functools.reduce(fold, (from_json(to_json(event)) for event in story), RunTimeline())


def rows(t: RunTimeline, lines: int = 24) -> str:
    return "\n".join(row.text for row in screen(t, ScreenView(now=9.0, rows=lines)))


def test_the_plan_says_which_class_is_foreseen() -> None:
    *_, planned, _ = began()
    assert isinstance(planned, events.PlanEvent)
    for spec in (SPEC, load(None, flags={"audit.proof": "outcome"}).spec):
        foreseen = replace(planned, proof=proof_class.foreseen(spec))
        said = "\n".join(event_lines.lines(foreseen, RunTimeline()))
        assert "outcome only: not verifiable step by step" in said
        assert "outcome only: not verifiable step by step" in rows(fold(RunTimeline(), foreseen))


def test_the_lines_of_a_run_say_it() -> None:
    said = "\n".join(event_lines.lines(trace.told(UNPROVEN), RunTimeline()))
    assert "outcome only: not verifiable step by step" in said
    assert "aten.sort.default" in said
    assert "model.py, line 17" in said
    (line,) = event_lines.lines(trace.told(PROVEN), RunTimeline())
    assert "proven: each step can be checked down to one operation" in line


@pytest.mark.parametrize("lines", [24, 8])
def test_the_screen_of_run_and_watch_says_it_also_where_there_is_little_room(lines: int) -> None:
    assert "outcome only: not verifiable step by step" in rows(told(UNPROVEN), lines)
    assert "outcome only" not in rows(told(PROVEN), lines)


def test_status_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Known:
        spec = SPEC

    monkeypatch.setattr(status, "resolve_again", lambda _: Known)
    run = RunFolder(tmp_path)
    for terms, words in (
        (UNPROVEN, f"outcome only: not verifiable step by step ({WHY})"),
        (PROVEN, proof_class.PROVEN),
    ):
        facts = status._more(run, told(terms), status._row(run, told(terms)))
        assert facts["class"] == words
        assert f"Work     {words}" in status._details(facts)
    unknown = status._more(run, RunTimeline(), status._row(run, RunTimeline()))
    assert unknown["class"] is None
    assert not [line for line in status._details(unknown) if line.startswith("Work")]


def test_the_report_says_it_at_the_plan_and_above_the_audits() -> None:
    page = report_page.render(told(UNPROVEN), "run", 0.0, is_owned=False)
    plan, _, rest = page.partition('id="network"')
    _, _, verify = rest.partition('id="verify"')
    for part in (plan, verify):
        assert "outcome only: not verifiable step by step (aten.sort.default" in part
    page = report_page.render(told(PROVEN), "run", 0.0, is_owned=False)
    assert proof_class.PROVEN in page
    assert "outcome only" not in page


def ledger_of(terms: JobTerms) -> Chain:
    """A ledger that holds the job of these terms and nothing more."""
    requester, notary = local_key(1, "r"), local_key(1, "notary")
    chain = Chain(Genesis("classes", 0, ((requester.public, 9_000),), (notary.public,)), notary)
    create = make_tx(chain.id, requester.public, 0, JobCreate(terms.id, 50, 5, 2, 9_000_000))
    block, _ = chain.propose([sign_tx(requester, create)], chain.head.time + LOGICAL_MS)
    chain.adopt(block)
    return chain


def shown(terms: JobTerms, known: JobTerms | None) -> str:
    """The screen of a job by a source that has these terms beside the ledger."""
    checker = ProofChecker(FileLedgerSource("here", ledger_of(terms), terms=known), None)
    return "\n".join(row.text for row in explored(checker, LookupTarget("jobs", terms.id.hex()), 200))


def test_the_explorer_says_it_where_the_terms_are_at_hand_and_else_calls_nothing_proven() -> None:
    assert f"outcome only: not verifiable step by step ({WHY})" in shown(UNPROVEN, UNPROVEN)
    assert proof_class.PROVEN in shown(PROVEN, PROVEN)
    for other in (None, UNPROVEN):
        assert "outcome only: not verifiable step by step, by what is known here" in shown(PROVEN, other)


def test_a_receipt_says_it_where_the_terms_are_given_and_else_calls_nothing_proven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain, party = ledger_of(UNPROVEN), local_key(1, "r").public
    file, own, other = (tmp_path / name for name in ("a.receipt", "own.bin", "other.bin"))
    file.write_bytes(write_receipt_file(chain.genesis, party, party_receipts(chain, party)))
    own.write_bytes(terms_file.write(UNPROVEN))
    other.write_bytes(terms_file.write(PROVEN))

    def said(*options: str) -> tuple[str, str]:
        with contextlib.suppress(SystemExit):
            main(["receipt", "verify", str(file), *options])
        return capsys.readouterr()

    assert f"Work     outcome only: not verifiable step by step ({WHY})" in said("--terms", str(own))[0]
    assert "Work     outcome only: not verifiable step by step, by what is known here" in said()[0]
    facts = json.loads(said("--terms", str(own), "--json")[0])
    assert facts["jobs"][0]["work"] == f"outcome only: not verifiable step by step ({WHY})"
    assert "FF-APP-346" in said("--terms", str(other))[1]
    assert "FF-APP-345" in said("--terms", str(file))[1]


def test_a_second_reading_says_it() -> None:
    assert f"Result   the work is outcome only: not verifiable step by step ({WHY[:20]}" in "\n".join(
        verify_run.words(ReplayReport(work=proof_class.label(UNPROVEN)))
    )


@pytest.mark.parametrize("terms", [UNPROVEN, PROVEN], ids=["outcome only", "proven"])
def test_the_model_file_and_its_card_say_it(terms: JobTerms) -> None:
    state = PublicState(0, np.zeros(LAYOUT.size, np.float32))
    found, _ = model_file.read(model_file.write(terms, state))
    words = proof_class.PROVEN if terms.is_proven else proof_class.UNPROVEN
    assert found.proof == words
    assert f"- the work is {words}" in model_card.readme(
        found, SPEC, RESULT, "ab" * 32, "out", model_card.TensorNames()
    )


def test_a_model_file_that_says_nothing_of_its_class_is_not_called_proven() -> None:
    silent = replace(model_file.of(PROVEN, 1), proof="")
    said = model_card.readme(silent, SPEC, RESULT, "ab" * 32, "out", model_card.TensorNames())
    assert "- the work is outcome only: not verifiable step by step" in said

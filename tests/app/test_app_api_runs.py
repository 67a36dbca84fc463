"""The Python API: from a plain script, from inside a running event loop as in a notebook, and on a finished run."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from app_trees import Ended, Farflung, expect_gone, kill_tree, living

import farflung as ff
from farflung.app.api import notebook
from farflung.core.errors import RunError, SpecError, UsageError, VerificationError
from farflung.core.events import AnyEvent, PlanEvent, RoundEndEvent, RunStartEvent
from farflung.core.io.durable_files import write_atomic
from farflung.verify.replay_report import ReplayReport

tree = [pytest.mark.whole, pytest.mark.xdist_group("tree")]


def marked(test: object) -> object:
    """A test that starts a whole network."""
    for mark in tree:
        test = mark(test)
    return test


@pytest.fixture
def finished(tiny: tuple[Farflung, Ended]) -> ff.Run:
    """The shared tiny run, opened."""
    run = tiny[0].newest()
    assert run is not None
    return ff.load(run)


@pytest.mark.extra(name="pages")
@pytest.mark.slow
def test_a_run_inside_a_running_loop_calls_back_in_our_thread_and_hands_over(tmp_path: Path) -> None:
    seen: list[AnyEvent] = []
    threads = set[threading.Thread]()

    def note(event: AnyEvent) -> None:
        threads.add(threading.current_thread())
        seen.append(event)

    async def cell() -> ff.Run:
        alone = {"rounds": 1, "audit.rate": 0, "audit.probation": 0, "network.verifiers": 0}
        return ff.run(preset="tiny", set=alone, callbacks=[note], out=tmp_path / "run")

    run = asyncio.run(cell())
    assert run.result.rounds == 1
    assert run.result.sum == 0
    assert isinstance(seen[0], RunStartEvent)
    assert sum(isinstance(e, RoundEndEvent) for e in seen) == 1
    assert [type(e) for e in run.events()] == [type(e) for e in seen]
    assert (run.folder / "model.safetensors").exists()
    assert "rounds=1" in repr(run)
    assert threads == {threading.current_thread()}
    assert run.state == "finished"  # the run's lock is free again, in this very process


# Interrupts. The script says `closed N` after each round, and at last what became of it.

SCRIPT = """
import asyncio, sys
import farflung
from farflung.core.errors import FarflungError

FEW = {"rounds": 500, "audit.rate": 0, "audit.probation": 0, "network.verifiers": 0}

class Say(farflung.callbacks.Callback):
    def on_round_end(self, state):
        print("closed", state.closed, flush=True)
    def on_event(self, event, state):
        if isinstance(event, farflung.core.events.WarningEvent):
            print(event.code, flush=True)

def go():
    try:
        farflung.run(preset="tiny", set=FEW, callbacks=[Say()], out=sys.argv[1])
    except FarflungError as error:
        print(error.code, flush=True)

async def cell():
    go()

asyncio.run(cell()) if sys.argv[2] == "loop" else go()
run = farflung.load(sys.argv[1])
print(run.state, flush=True)
"""


def interrupted(folder: Path, where: str, times: int) -> list[str]:
    """What the script says after it was interrupted in the middle of training; nobody is left behind."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), where], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        for awaited in ("closed 1\n", "FF-APP-131\n")[:times]:
            for line in process.stdout:
                if line == awaited:
                    break
            process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=200)
    except subprocess.TimeoutExpired:
        kill_tree(process)
        raise
    expect_gone(process.pid)
    assert living(folder) == []
    assert process.returncode == 0
    return rest.splitlines()


@pytest.mark.extra(name="pages")
@pytest.mark.parametrize("where", ["script", pytest.param("loop", marks=pytest.mark.soak)])
@pytest.mark.slow
def test_one_interrupt_finishes_the_round_and_settles(where: str, tmp_path: Path) -> None:
    said = interrupted(tmp_path / "run", where, 1)
    assert said[-2:] == ["FF-APP-132", "finished"]
    run = ff.load(tmp_path / "run")
    assert 1 <= run.result.rounds < 500
    assert run.result.sum == 0
    assert sum(run.payments["paid"]) == run.result.paid > 0
    assert not run.model().training


@pytest.mark.slow
def test_a_second_interrupt_inside_a_loop_ends_the_run_at_once(tmp_path: Path) -> None:
    said = interrupted(tmp_path / "run", "loop", 2)
    assert said[-2:] in (["FF-APP-130", "interrupted"], ["FF-APP-132", "finished"])
    run = ff.load(tmp_path / "run")
    if run.state == "interrupted":
        with pytest.raises(RunError, match="FF-APP-188") as error:
            _ = run.result
        assert error.value.hint == f"farflung resume {tmp_path / 'run'}"
        with pytest.raises(RunError, match="FF-APP-160"):
            run.model()


@marked
def test_a_finished_run_is_tables_a_model_a_text_and_a_proof(finished: ff.Run) -> None:
    torch = pytest.importorskip("torch")
    metrics = finished.metrics
    assert metrics.height == finished.result.rounds
    assert metrics["tokens"][-1] == finished.result.tokens
    assert metrics["heldout_loss"][-1] == finished.result.loss
    assert sum(finished.payments["paid"]) == finished.result.paid
    assert finished.audits.height >= finished.result.segments_audited
    assert finished.verify().model_hash == finished.result.model_hash
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    model = finished.model()
    x = torch.zeros((2, 16), dtype=torch.int64)
    assert model(x, x).item() > 0
    text = finished.sample("def ", 12)
    assert text == finished.sample("def ", 12)
    assert text.startswith("def ")
    assert text != finished.sample("def ", 12, seed=2)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@marked
@pytest.mark.parametrize("asked", [{"audit": 0.0}, {"audit": 1.5}, {"audit": float("nan")}, {"seed": -1}])
def test_a_share_or_a_seed_that_is_none_is_refused_before_anything_is_read(
    finished: ff.Run, asked: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="FF-APP-391"):
        finished.verify(**asked)


@pytest.mark.whole
@marked
def test_a_run_is_trained_again_in_samples_where_a_loop_runs_and_where_none_does(finished: ff.Run) -> None:
    async def cell() -> ReplayReport:
        return finished.verify(audit=0.001, condemned=True)

    for report in (finished.verify(audit=0.001, condemned=True), asyncio.run(cell())):
        assert report.again is not None
        assert (report.again.drawn, report.again.untold) == (1, 0)
        assert report.retried == ()


@marked
def test_a_model_file_that_is_not_the_one_on_the_ledger_is_refused(finished: ff.Run) -> None:
    path = finished.folder / "model.safetensors"
    data = path.read_bytes()
    try:
        write_atomic(path, data[:-1] + bytes([data[-1] ^ 1]), "test")
        with pytest.raises(VerificationError, match="FF-APP-162"):
            finished.model()
        with pytest.raises(VerificationError, match="FF-APP-162"):
            finished.sample()
    finally:
        write_atomic(path, data, "test")


@marked
def test_a_run_shows_itself_without_links_scripts_or_colours_of_its_own(finished: ff.Run) -> None:
    page = finished._repr_html_()
    assert "<svg" in page
    assert finished.result.model_hash in page
    assert finished.name in page
    assert all(word not in page for word in ("http", "<script", "href", "src="))
    assert finished.state == "finished"
    report = finished.report
    assert report.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert finished.report == report


@marked
def test_runs_are_found_by_name_by_folder_and_as_the_newest(
    finished: ff.Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FARFLUNG_RUNS", str(finished.folder.parent))
    assert ff.load(finished.name).folder == finished.folder
    assert ff.load().name in {path.parent.name for path in finished.folder.parent.glob("*/run.json")}
    with pytest.raises(UsageError, match="FF-APP-014"):
        ff.load("no-such-run")
    with pytest.raises(RunError, match="FF-APP-011"):
        ff.Run(tmp_path)


def test_a_plan_starts_nothing_and_says_what_it_takes() -> None:
    planned = ff.plan(preset="tiny")
    assert planned.peers == 2
    assert isinstance(planned, PlanEvent)
    assert repr(planned).startswith("Plan ")
    assert "credits" in repr(planned)
    page = planned._repr_html_()
    assert page.startswith("<pre")
    assert "sync traffic" in page
    assert ff.plan(preset="tiny", baseline=True).baseline_seconds > 0


def test_a_wrong_key_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="FF-JOB-001"):
        ff.run(set={"sync.stepz": 3}, out=tmp_path / "never")
    with pytest.raises(UsageError, match="FF-APP-186"):
        ff.run(callbacks=[ff.callbacks.Callback], out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_importing_the_package_loads_next_to_nothing_and_unknown_names_are_errors() -> None:
    heavy = "{'torch', 'numpy', 'click', 'rich', 'matplotlib', 'jinja2', 'msgspec', 'farflung.app'}"
    code = f"import farflung, sys; sys.exit(str({heavy} & set(sys.modules)) if {heavy} & set(sys.modules) else 0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import farflung, sys; farflung.callbacks, farflung.run, farflung.load; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        ff.trian  # noqa: B018


def test_a_plain_script_is_no_notebook() -> None:
    assert notebook.kernel() is None


def test_an_error_is_lines_and_no_traceback_in_ipython() -> None:
    error = SpecError("FF-JOB-001", "unknown key", cause="a slip", hint="look again")
    assert error._render_traceback_() == error.lines()

"""The screen on a real pseudo-terminal: it stays in its place, it fits, it tells what the lines and the JSON tell."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app_story import PEERS, kept, story
from app_terminal import Terminal, run_on_terminal
from app_trees import Ended, Farflung, outcome, stored_events

from farflung.app.views import report_page
from farflung.core.events import AnyEvent, to_json

COMMAND = (sys.executable, "-m", "farflung.app.cli.main")
STAGES = ("farflung", "Plan", "Network", "Train", "Verify", "Settle", "Result", "Next")


def on_terminal(runs: Path, *words: str, columns: int = 80, height: int = 24, **env: str) -> tuple[Terminal, str]:
    code, written, errors = run_on_terminal(
        [*COMMAND, *words], columns=columns, height=height, env={"FARFLUNG_RUNS": str(runs), **env}
    )
    assert code == 0, errors
    assert errors == ""
    terminal = Terminal(columns, height)
    terminal.feed(written)
    return terminal, written


@pytest.mark.whole
@pytest.mark.parametrize(("columns", "height"), [(140, 40), (80, 24), (40, 12)])
def test_an_old_run_fits_the_terminal_and_stays_in_its_place(tmp_path: Path, columns: int, height: int) -> None:
    kept(tmp_path, story())
    terminal, _ = on_terminal(tmp_path, "watch", "--speed", "40", columns=columns, height=height)
    assert terminal.scrolled == 0
    assert terminal.most_rows <= min(24, height - 1)
    text = " ".join(terminal.text.split())
    assert "(04040404) caught cheating" in text
    assert "validation loss 3.125" in text
    at_once, _ = on_terminal(tmp_path, "watch", "old", "--speed", "max", columns=columns, height=height)
    told, again = terminal.text.splitlines(), at_once.text.splitlines()
    assert told == again  # the end is the same, however one came there


@pytest.mark.slow
def test_colours_are_left_out_when_nobody_wants_them(tmp_path: Path) -> None:
    kept(tmp_path, story())
    coloured, _ = on_terminal(tmp_path, "watch", "--speed", "max")
    bare, _ = on_terminal(tmp_path, "watch", "--speed", "max", NO_COLOR="1")
    assert coloured.colours > 0
    assert bare.colours == 0
    assert bare.text == coloured.text


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path) -> None:
    kept(tmp_path, story())
    _, written = on_terminal(tmp_path, "watch", "--speed", "max", columns=100, TERM="dumb")
    assert "\x1b" not in written
    assert all(line.startswith(STAGES) for line in written.splitlines())


@pytest.mark.whole
def test_a_terminal_without_utf8_gets_letters_that_it_has(tmp_path: Path) -> None:
    kept(tmp_path, story(model="gpt 1x32 größe"))
    terminal, written = on_terminal(tmp_path, "watch", "--speed", "max", PYTHONIOENCODING="ascii", height=30)
    assert written.isascii()
    assert "gr??e" in terminal.text
    assert "#" * 20 in terminal.text  # the bar
    _, lines = on_terminal(tmp_path, "watch", columns=100, PYTHONIOENCODING="ascii", TERM="dumb")
    assert lines.isascii()
    details, _ = on_terminal(tmp_path, "watch", "--round", "0", PYTHONIOENCODING="ascii")
    assert "# train" in details.text


def test_names_with_escapes_and_markup_are_only_text(tmp_path: Path) -> None:
    kept(tmp_path, story(model="[bold]x[/bold]\x1b[2J\x1b]0;title\x07"))
    terminal, written = on_terminal(tmp_path, "watch", "--speed", "max")
    assert "[bold]x[/bold]?[2J?]0;title?" in terminal.text
    assert "\x1b]" not in written


@pytest.mark.slow
def test_lines_and_json_on_a_pipe_tell_the_same_facts(farflung: Farflung) -> None:
    told = story()
    kept(farflung.runs, told)
    as_json = farflung("watch", "--json")
    assert as_json.lines == [to_json(event) for event in told]
    text = "\n".join(farflung("watch").lines)
    for fact in ("3.125", "02020202", "cd" * 32, "ef" * 32, "sum 0", "(04040404) caught cheating", "3/3 rounds"):
        assert fact in text


@pytest.mark.whole
def test_a_round_and_a_dispute_are_shown_in_detail(farflung: Farflung) -> None:
    kept(farflung.runs, story())
    lines = farflung("watch", "--round", "0").lines
    assert sum("█" in line for line in lines) == len(PEERS) + 1  # and the legend
    facts = json.loads("".join(farflung("watch", "old", "--round", "1", "--json").lines))
    assert [lane["peer"] for lane in facts["lanes"]] == list(PEERS[:3])
    assert len(facts["audits"]) == 2
    text = "\n".join(farflung("watch", "--dispute", "1").lines)
    assert "the claim is off by 900x the tolerance" in text
    assert "its file is not in the run's folder" in text
    assert json.loads("".join(farflung("watch", "--dispute", "1", "--json").lines))["audit"]["peer"] == PEERS[3]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--speed", "quick"), "FF-APP-150", "0` or `max`"),
        (("--speed", "nan"), "FF-APP-150", "0` or `max`"),
        (("--round", "3"), "FF-APP-151", "0 to 2 are closed"),
        (("--round", "-1"), "FF-APP-151", "0 to 2 are closed"),
        (("--dispute", "2"), "FF-APP-152", "there is 1"),
        (("--dispute", "0"), "FF-APP-152", "there is 1"),
        (("--round", "1", "--dispute", "1"), "FF-APP-153", "each fills the screen"),
        (("--round", "1", "--nodes"), "FF-APP-153", "each fills the screen"),
        (("--nodes",), "FF-APP-418", "no node was hired yet"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(
    farflung: Farflung, command: Callable[..., Ended], words: tuple[str, ...], code: str, said: str
) -> None:
    kept(farflung.runs, story())
    assert said in command("watch", *words).refusal(code, 2)


def test_a_run_without_events_is_refused(farflung: Farflung) -> None:
    (kept(farflung.runs, []) / "events.jsonl").unlink()
    farflung("watch").refusal("FF-APP-154", 2)


class Working:
    """This process holds the run, as its supervisor would, and adds to its log."""

    def __init__(self, root: Path) -> None:
        self._log = open(root / "events.jsonl", "a")  # noqa: SIM115 - kept open, as a journal is
        self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, str(os.getpid()).encode())

    def add(self, told: list[AnyEvent]) -> None:
        for event in told:
            self._log.write(to_json(event) + "\n")
        self._log.flush()

    def end(self) -> None:
        self._log.close()
        os.close(self._lock)


@pytest.mark.slow
@pytest.mark.parametrize("is_finished", [True, False])
def test_a_running_run_is_followed_until_it_ends_or_its_process_is_gone(farflung: Farflung, is_finished: bool) -> None:
    told = story()
    half = len(told) // 2
    root = kept(farflung.runs, [])
    working = Working(root)
    working.add(told[:half])
    watching = farflung.start("watch")
    assert watching.stdout is not None
    first = watching.stdout.readline()  # it has begun to follow
    working.add(told[half:] if is_finished else told[half : half + 3])
    if not is_finished:
        working.end()
    ended: Ended = farflung.finish(watching)
    if is_finished:
        working.end()
    assert ended.code == 0, ended.errors
    text = first + "\n".join(ended.lines)
    assert ("validation loss 3.125" in text) == is_finished
    assert text.startswith("farflung 0.1.0")


def test_an_error_before_the_start_leaves_no_screen_behind(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    code, written, errors = run_on_terminal(
        [*COMMAND, "run", "--preset", "tiny", "--out", str(tmp_path / "full")], env={"FARFLUNG_RUNS": str(tmp_path)}
    )
    terminal = Terminal(80, 24)
    terminal.feed(written)
    assert code != 0
    assert terminal.text == ""
    assert errors.startswith("error[FF-APP-")
    assert len(errors.splitlines()) <= 6


BROKEN = """
def build():
    raise ValueError("[red]no[/red] \\x1b[2J")
"""


@pytest.mark.whole
def test_a_failure_closes_the_screen_and_is_told_below_it(tmp_path: Path) -> None:
    """Of a module that fails: before money moves. Its other faults: tests/train/test_train_flat_model.py."""
    (tmp_path / "model.py").write_text(BROKEN)
    job = tmp_path / "job.toml"
    job.write_text('name = "broken"\n[model]\nkind = "module"\nmodule = "model.py:build"\ncontext = 16\n')
    code, written, errors = run_on_terminal(
        [*COMMAND, "run", str(job), "--preset", "tiny"], env={"FARFLUNG_RUNS": str(tmp_path / "runs")}
    )
    terminal = Terminal(80, 24)
    terminal.feed(written)
    assert code == 1
    assert terminal.scrolled == 0
    assert "Result   error[FF-TRAIN-052]: model.py:build failed" in terminal.text
    assert terminal.text.splitlines()[0].endswith(" s")  # failed after so long
    lines = errors.splitlines()
    assert lines[0].startswith("error[FF-TRAIN-052]")
    assert len(lines) <= 6
    # The model's own words, and nothing that they could do to a terminal.
    assert "[red]no[/red] ?[2J" in errors
    assert "Traceback" not in errors
    run = Farflung(tmp_path / "runs").newest()
    assert run is not None
    said = {event["event"] for event in stored_events(run)}
    assert "error" in said
    assert "funded" not in said


@pytest.mark.slow
def test_a_real_run_is_told_alike_on_the_screen_in_lines_and_in_json(farflung: Farflung, tiny: Any) -> None:
    """And two runs of one seed end with the same model and ledger."""
    terminal, _ = on_terminal(farflung.runs, "run", "--preset", "tiny", columns=100, height=30)
    assert terminal.scrolled == 0
    assert terminal.most_rows <= 24
    run = farflung.newest()
    assert run is not None
    assert (run / report_page.FILE).is_file()
    result = farflung("watch", "--json").result
    assert outcome(result) == outcome(tiny[1].result)
    assert f"validation loss {result['loss']:.3f} nats/token" in terminal.text
    assert f"model {result['model_hash'][:12]}" in terminal.text
    assert "ledger balanced (sum 0)" in terminal.text
    lines = farflung("watch").lines
    assert any(f"validation loss {result['loss']:.3f} nats/token" in line for line in lines)
    again, _ = on_terminal(farflung.runs, "watch", "--speed", "max", columns=100, height=30)
    assert again.text == terminal.text


@pytest.mark.slow
def test_the_screen_needs_no_more_than_its_own_process(tmp_path: Path) -> None:
    kept(tmp_path, story())
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "farflung.app.cli.main", "watch", "--speed", "max"],
        env={**os.environ, "FARFLUNG_RUNS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    for heavy in ("torch", "matplotlib", "jinja2"):
        assert f" {heavy}\n" not in ended.stderr, f"watching imports {heavy}"

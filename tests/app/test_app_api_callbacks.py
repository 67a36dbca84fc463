"""Callbacks without a network: which hook hears what, and that somebody's own mistake harms nobody else."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from farflung import callbacks
from farflung.app.api.callbacks import LOG, Callbacks, State
from farflung.core import events
from farflung.core.errors import UsageError
from farflung.core.events import AnyEvent
from farflung.watch.fold import RunTimeline, fold

PEER = "a1" * 32
PLANNED = events.PlanEvent(
    name="n", run="r", model="m", parameters=9, rounds=2, steps=4, peers=2, tokens=200, sync_bytes=1, ring_bytes=2,
    memory_bytes=3, seconds=4.0, price=5, escrow=6, data_bytes=7, sync="s",
)  # fmt: skip
CLOSED = events.RoundEndEvent(
    at=3.0, round=0, rounds=2, peers=2, loss=4.5, tokens=100, root="00", waited_for=PEER, seconds=1.0,
    train_seconds=0.5, sync_bytes=640,
)  # fmt: skip
AUDIT = events.AuditEndEvent(
    round=0, peer=PEER, segment=1, verifiers=(), finding="false", excess=9.0, tokens=1, seconds=0.1
)
CAUGHT = events.SlashEvent(peer=PEER, round=0, segment=1, why="false", slashed=2, bounty=1, burnt=1, evidence="")
RESULT = events.RunResultEvent(
    loss=4.0, loss_start=5.5, loss_unigram=3.0, bytes_sent=1, bytes_by=events.SentBytesByKind(), bytes_ring_bf16=2,
    segments_audited=1, caught=(PEER,), paid=1, slashed=2, refunded=3, sum=0, model_hash="", ledger_root="",
    seconds=9.0, run="r", rounds=1, tokens=100, reexecuted=0,
)  # fmt: skip
TOLD: tuple[AnyEvent, ...] = (
    PLANNED,
    events.EvaluationEvent(round=0, loss=5.5, tokens=64),
    CLOSED,
    events.EvaluationEvent(at=4.0, round=1, loss=4.25, tokens=64),
    AUDIT,
    CAUGHT,
    RESULT,
)


class Notes(callbacks.Callback):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def on_begin(self, plan: events.PlanEvent) -> None:
        self.heard.append(("begin", plan))

    def on_round_end(self, state: State) -> None:
        self.heard.append(("round", state))

    def on_evaluate(self, state: State) -> None:
        self.heard.append(
            ("evaluate", state.heldout_round, state.tokens_before(state.heldout_round), state.heldout_loss)
        )

    def on_audit(self, audit: events.AuditEndEvent, state: State) -> None:
        self.heard.append(("audit", audit))

    def on_caught(self, caught: events.SlashEvent, state: State) -> None:
        self.heard.append(("caught", caught))

    def on_checkpoint(self, path: Path, state: State) -> None:
        self.heard.append(("checkpoint", path.name))

    def on_end(self, result: events.RunResultEvent) -> None:
        self.heard.append(("end", result))

    def close(self) -> None:
        self.heard.append(("close",))


def tell(hooks: Callbacks) -> None:
    timeline = RunTimeline()
    for event in TOLD:
        timeline = fold(timeline, event)
        hooks(event, timeline)
    hooks.close()


def run_folder(tmp_path: Path) -> Path:
    """With what a run has stored by the time that it tells of it."""
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "000001.bin").touch()
    (tmp_path / "model.safetensors").touch()
    return tmp_path


def test_each_hook_hears_its_own_events_in_order_and_a_function_hears_all(tmp_path: Path) -> None:
    notes, seen = Notes(), list[AnyEvent]()
    tell(Callbacks(run_folder(tmp_path), [notes, seen.append]))
    assert [name for name, *_ in notes.heard] == [
        "begin", "evaluate", "round", "checkpoint", "evaluate", "audit", "caught", "checkpoint", "end", "close",
    ]  # fmt: skip
    assert [said[1] for said in notes.heard if said[0] == "checkpoint"] == ["000001.bin", "model.safetensors"]
    assert notes.heard[1] == ("evaluate", 0, 0, 5.5)
    assert notes.heard[4] == ("evaluate", 1, 100, 4.25)
    assert tuple(seen) == TOLD


def test_the_state_is_frozen_and_counts_what_was_done_so_far(tmp_path: Path) -> None:
    notes = Notes()
    tell(Callbacks(tmp_path, [notes]))
    state = notes.heard[2][1]
    assert (state.closed, state.rounds, state.tokens, state.sync_bytes, state.peers) == (1, 2, 100, 640, 2)
    assert (state.loss, state.heldout_loss, state.seconds) == (4.5, 5.5, 3.0)
    with pytest.raises(AttributeError):
        state.closed = 2
    with pytest.raises(AttributeError):
        state.timeline = RunTimeline()


def test_a_callback_that_raises_is_named_once_and_left_out_while_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(callbacks.Callback):
        def on_round_end(self, state: State) -> None:
            raise ZeroDivisionError("in here")

        def on_end(self, result: events.RunResultEvent) -> None:
            raise AssertionError("it was left out")

    def clumsy(event: AnyEvent) -> None:
        raise KeyError("out there")

    notes = Notes()
    tell(Callbacks(tmp_path, [Broken(), clumsy, notes]))
    assert notes.heard[-1] == ("close",)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all("warning[FF-APP-185]" in line for line in lines)
    assert "clumsy failed and is left out: KeyError: 'out there'" in lines[0]
    assert "Broken failed and is left out: ZeroDivisionError: in here" in lines[1]
    log = (tmp_path / LOG).read_text(encoding="utf-8")
    assert log.count("Traceback") == 2
    assert 'raise ZeroDivisionError("in here")' in log


def test_where_the_log_cannot_be_written_the_warning_is_still_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(Callbacks(tmp_path / "gone", [lambda event: 1 / 0]))
    assert "could not be written" in capsys.readouterr().err


def test_a_callback_of_the_base_class_alone_hears_everything_and_does_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(Callbacks(run_folder(tmp_path), [callbacks.Callback()]))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("wrong", "try_this"),
    [
        (Notes, "a list"),
        (print, "a list"),
        ("print", "a list"),
        (Notes(), "a list"),
        ([Notes], r"Notes\(\)"),
        ([3], r"\[print\]"),
        ([None], r"\[print\]"),
    ],
)
def test_what_is_no_callback_is_refused_with_the_way_to_write_it(wrong: Any, try_this: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="FF-APP-186") as refused:
        Callbacks(tmp_path, wrong)
    assert re.search(try_this, refused.value.hint)


@pytest.mark.parametrize(
    ("callback", "module", "extra"),
    [(callbacks.TensorBoard, "tensorboard.compat.proto.event_pb2", "tensorboard"), (callbacks.WandB, "wandb", "wandb")],
)
def test_a_part_that_is_not_installed_is_named_with_the_line_that_installs_it(
    callback: type[callbacks.Callback], module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=f"FF-APP-187: {extra} is not installed") as missing:
        callback()
    assert missing.value.hint == f"pip install {extra}"

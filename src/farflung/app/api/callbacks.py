"""Defines callbacks: hooks in user code that a run calls at its events, with the run's state at that moment.

    class Loss(farflung.callbacks.Callback):
        def on_round_end(self, state):
            print(state.closed, state.loss)

    farflung.run(callbacks=[Loss(), print])          # a plain function gets every event (core.events)

Hooks are called in the order in which things happen, in the thread that called `farflung.run`. They watch: nothing
that they do changes the run, and one that raises is left out while the run goes on.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from farflung.core import events
from farflung.core.errors import UsageError, type_and_text
from farflung.core.events import AnyEvent
from farflung.core.io.ordinary_files import open_own
from farflung.core.units import Bytes, Seconds, Tokens
from farflung.watch.fold import RunTimeline
from farflung.watch.phrases import total

LOG: Final = "callbacks.log"  # in the run's folder: tracebacks of callbacks that failed
LEFT_OUT: Final = "FF-APP-185"  # a callback failed and is left out


class State(msgspec.Struct, frozen=True):
    """A run at one moment. Counts are totals so far; `timeline` holds everything else that is known of it."""

    folder: Path
    timeline: RunTimeline

    @property
    def run(self) -> str:
        """The run's name."""
        return self.folder.name

    @property
    def closed(self) -> int:
        """How many rounds are closed."""
        last = self.timeline.last_round
        return last.round + 1 if last is not None else 0

    @property
    def rounds(self) -> int:
        """How many rounds there will be."""
        last, plan = self.timeline.last_round, self.timeline.plan
        return last.rounds if last is not None else plan.rounds if plan is not None else 0

    @property
    def seconds(self) -> Seconds:
        """Since the run was created."""
        return Seconds(self.timeline.at)

    @property
    def tokens(self) -> Tokens:
        """Trained and accepted."""
        return self.tokens_before(self.closed)

    def tokens_before(self, round: int) -> Tokens:
        """Trained and accepted before `round` (from 0)."""
        return Tokens(sum(r.tokens for number, r in self.timeline.rounds.items() if number < round))

    @property
    def loss(self) -> float | None:
        """Of the last round: mean over the members' training batches, nats per token. None before the first."""
        last = self.timeline.last_round
        return last.loss if last is not None else None

    @property
    def heldout_round(self) -> int:
        """After how many rounds the state was made whose validation loss was measured last."""
        return max(self.timeline.losses, default=0)

    @property
    def heldout_loss(self) -> float | None:
        """Measured last, of the state after `heldout_round` rounds; nats per token. None before the first."""
        return self.timeline.losses.get(self.heldout_round)

    @property
    def sync_bytes(self) -> Bytes:
        """Sync traffic of all together, when the last round closed."""
        last = self.timeline.last_round
        return Bytes(last.sync_bytes if last is not None else 0)

    @property
    def sent_bytes(self) -> Bytes:
        """Sent by all together for everything, when the last round closed."""
        last = self.timeline.last_round
        return Bytes(total(self.timeline.sent_at[last.round]) if last is not None else 0)

    @property
    def peers(self) -> int:
        """Accepted contributions in the last round."""
        last = self.timeline.last_round
        return last.peers if last is not None else 0


class Callback:
    """Base of your own callbacks: override what you want to hear. All hooks do nothing here."""

    def on_begin(self, plan: events.PlanEvent) -> None:
        """What the run will take is known; nothing is spent yet."""

    def on_round_end(self, state: State) -> None:
        """A round is merged, and all peers agree on its root."""

    def on_evaluate(self, state: State) -> None:
        """`state.heldout_loss` is new. It is measured beside the rounds: `state.heldout_round` says of which state."""

    def on_audit(self, audit: events.AuditEndEvent, state: State) -> None:
        """One audit is over."""

    def on_caught(self, caught: events.SlashEvent, state: State) -> None:
        """A peer's work was found false, and the ledger took its stake."""

    def on_checkpoint(self, path: Path, state: State) -> None:
        """`path` is complete: a public state of some rounds (`snapshots/`), and at last `model.safetensors`."""

    def on_end(self, result: events.RunResultEvent) -> None:
        """The run has its result. Not called when it fails or is stopped at once."""

    def on_event(self, event: AnyEvent, state: State) -> None:
        """Every event, those of the other hooks included; called before them."""

    def close(self) -> None:
        """Called last, whatever became of the run: files and connections are closed here."""


Watch = Callable[[AnyEvent], object]


class Callbacks:
    """Several callbacks as one watcher (peers.rundir.journal) of the run in `folder`."""

    def __init__(self, folder: Path, callbacks: Sequence[Callback | Watch]) -> None:
        """Raises UsageError FF-APP-186 where something is neither a Callback nor a function."""
        self._folder = folder
        self._kept: list[Callback | Watch] = [_checked(callback) for callback in _listed(callbacks)]

    def add(self, callback: Callback) -> None:
        """One more, told after those that are there."""
        self._kept.append(callback)

    def __call__(self, event: AnyEvent, timeline: RunTimeline) -> None:
        """Tells all of them. `timeline` holds the event already."""
        if not self._kept:
            return
        state = State(self._folder, timeline)
        stored = self._stored(event)
        for callback in tuple(self._kept):
            if isinstance(callback, Callback):
                self._guard(callback, _tell, callback, event, state, stored)
            else:
                self._guard(callback, callback, event)

    def close(self) -> None:
        """Tells all that are left that the run is over."""
        for callback in tuple(self._kept):
            if isinstance(callback, Callback):
                self._guard(callback, callback.close)

    def _stored(self, event: AnyEvent) -> Path | None:
        """What is complete on disk since this event: a round's public state is stored before it is told of."""
        if isinstance(event, events.RunResultEvent):
            path = self._folder / "model.safetensors"
        elif isinstance(event, events.RoundEndEvent):
            path = self._folder / "snapshots" / f"{event.round + 1:06d}.bin"
        else:
            return None
        return path if path.is_file() else None

    def _guard(self, callback: Callback | Watch, call: Callable[..., object], *arguments: Any) -> None:
        """The boundary of somebody's own code: what it raises ends the callback, and not the run."""
        try:
            call(*arguments)
        except Exception as error:
            self._kept.remove(callback)
            self._say(f"{_name(callback)} failed and is left out: {type_and_text(error)}", error)

    def _say(self, what: str, error: Exception) -> None:
        text = f"warning[{LEFT_OUT}]: callback {what[:300]}"
        try:
            handle = open_own(self._folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with os.fdopen(handle, "a", encoding="utf-8") as log:
                log.write(f"{text}\n{''.join(traceback.format_exception(error))}\n")
            text += f" (traceback in {self._folder / LOG})"
        except OSError:
            text += " (and its traceback could not be written)"
        sys.stderr.write(text + "\n")


def _tell(callback: Callback, event: AnyEvent, state: State, stored: Path | None) -> None:
    callback.on_event(event, state)
    match event:
        case events.PlanEvent():
            callback.on_begin(event)
        case events.RoundEndEvent():
            callback.on_round_end(state)
        case events.EvaluationEvent():
            callback.on_evaluate(state)
        case events.AuditEndEvent():
            callback.on_audit(event, state)
        case events.SlashEvent():
            callback.on_caught(event, state)
    if stored is not None:
        callback.on_checkpoint(stored, state)
    if isinstance(event, events.RunResultEvent):
        callback.on_end(event)


def _name(callback: object) -> str:
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


def _listed(callbacks: object) -> list[Any]:
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise _no_callback(f"callbacks is one {_name(callbacks)}", "callbacks=[...], a list")
    return list(callbacks)


def _checked(callback: Any) -> Callback | Watch:
    if isinstance(callback, type):
        raise _no_callback(f"{_name(callback)} is a class", f"callbacks=[{_name(callback)}()]")
    if not isinstance(callback, Callback) and not callable(callback):
        raise _no_callback(f"{_name(callback)} is no function", "callbacks=[print]")
    return callback  # type: ignore[no-any-return]


def _no_callback(cause: str, hint: str) -> UsageError:
    return UsageError("FF-APP-186", "not a callback", cause=cause, hint=hint)

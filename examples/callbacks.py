"""Callbacks: your own early look at a run, and TensorBoard where it is installed.

    python examples/callbacks.py [KEY=VALUE ...]

Hooks are called in the order in which things happen, with the run's state at that moment. One that raises is left
out, and the run goes on.
"""

import importlib.util
import sys
from pathlib import Path

import farflung
from farflung.callbacks import Callback, State, TensorBoard
from farflung.core.events import AuditEndEvent, RunResultEvent


class Best(Callback):
    """Remembers the state with the lowest validation loss, and says how each round went."""

    def __init__(self) -> None:
        self.loss = float("inf")
        self.tokens = 0

    def on_round_end(self, state: State) -> None:
        print(f"round {state.closed}/{state.rounds}: {state.tokens} tokens, {state.sync_bytes} bytes of sync traffic")

    def on_evaluate(self, state: State) -> None:
        if state.heldout_loss is not None and state.heldout_loss < self.loss:
            self.loss, self.tokens = state.heldout_loss, state.tokens_before(state.heldout_round)

    def on_audit(self, audit: AuditEndEvent, state: State) -> None:
        print(f"{audit.peer[:8]}'s segment {audit.segment} of round {audit.round}: {audit.finding}")

    def on_checkpoint(self, path: Path, state: State) -> None:
        print(f"stored {path.name} after {state.closed} rounds")

    def on_end(self, result: RunResultEvent) -> None:
        print(f"best validation loss {self.loss:.3f} nats/token, after {self.tokens} tokens")


def main() -> None:
    """Trains the tiny preset, with what the command line changes."""
    changes: dict[str, object] = dict(word.split("=", 1) for word in sys.argv[1:])
    callbacks: list[Callback] = [Best()]
    if importlib.util.find_spec("tensorboard"):
        callbacks.append(TensorBoard())  # event files in the run's own folder; nothing is sent anywhere
    run = farflung.run(preset="tiny", set=changes, callbacks=callbacks)
    if len(callbacks) > 1:
        print(f"tensorboard --logdir {run.folder / 'tensorboard'}")


if __name__ == "__main__":
    main()

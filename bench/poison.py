"""What poison does to a training: bad updates in every round, through the product's own encode, merge and outer step.

The built-in GPT at a small size, 8 peers, rounds of inner steps, without network and audits. Each peer trains from the
public weights and encodes its change with error feedback (train.round_work, train.sync_arithmetic); an attacker trains
as well, and encodes something else in its place, in every round. `Training.run` gives the validation loss at the end.

    flip    -1 x its own change                x10, x100    -10, -100 x its own change
    small   the mean of the honest changes less 1.5 deviations, element by element, the same at each attacker: as large
            as an honest one, and all push one way (ALIE: Baruch, Baruch & Goldberg 2019, arXiv 1902.06156)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, get_args

import numpy as np
import torch
from reporting import Row, at_most, told

from farflung.compress.merge import Rule, WeightedUpdate
from farflung.compress.tensor_range import ranged_mean
from farflung.core.tensor_layout import Float32
from farflung.job import dataset
from farflung.job.io.job_files import read_dataset
from farflung.job.job_loader import load as read_job
from farflung.job.spec import JobSpec
from farflung.train import data_order, flat_model, loss_probe, round_work, worker_messages
from farflung.train.inner_state import InnerState
from farflung.train.public_state import PublicState
from farflung.train.round_work import WorkerJob
from farflung.train.sync_arithmetic import Sync

PEERS: Final = 8
DEVIATIONS: Final = 1.5
LOST: Final = 1e6  # the loss where numbers are lost

Attack = Callable[[Sequence[Float32], Float32], Float32]  # honest changes, the attacker's own -> what it sends


def small(honest: Sequence[Float32], _: Float32) -> Float32:
    """The common vector of ALIE."""
    found: Float32 = (np.mean(honest, axis=0) - DEVIATIONS * np.std(honest, axis=0)).astype(np.float32)
    return found


ATTACKS: Final[Mapping[str, Attack]] = {
    "flip": lambda _, own: -own,
    "x10": lambda _, own: np.float32(-10) * own,
    "x100": lambda _, own: np.float32(-100) * own,
    "small": small,
}


@dataclass(frozen=True)
class Training:
    """One setting: its job, and how many tokens its loss is measured on."""

    spec: JobSpec
    heldout: int = 4096

    @classmethod
    def of(cls, rounds: int, method: str = "muloco", **flags: str) -> Training:
        """A small GPT on Python's own sources."""
        sizes = {"model.layers": "1", "model.width": "32", "model.heads": "2", "model.context": "32", "batch": "4"}
        named = {key.replace("__", "."): value for key, value in flags.items()}
        asked = {"rounds": str(rounds), "sync.method": method, "sync.steps": "4", "schedule.warmup": "10"}
        return cls(read_job(None, flags={**sizes, "data.limit": "400000", **asked, **named}).spec)

    @cached_property
    def job(self) -> WorkerJob:
        """As a worker holds it; built once. One thread, as a worker of the plan has."""
        torch.set_num_threads(1)
        data = read_dataset(self.spec.data, self.spec.model, Path())
        setup = worker_messages.SetupCommand(self.spec, b"", b"", 0, self.peer(0))
        model = flat_model.build(self.spec, b"")
        start = flat_model.initial(self.spec, model)
        return WorkerJob(setup, dataset.Dataset(data.train, data.heldout), model, Sync.of(self.spec), start)

    def peer(self, index: int) -> bytes:
        """A peer's name."""
        return bytes([index + 1]) * 32

    def loss(self, params: Float32) -> float:
        """Validation loss, nats/token."""
        rows = data_order.windows(self.job.data.heldout, self.spec.model.context, self.heldout)
        return loss_probe.loss(self.job, params, rows, lambda: None)

    def run(self, rule: Rule, attack: Attack | None = None, attackers: int = 0) -> float:
        """The validation loss after all rounds; infinite where it diverged. The last peers attack."""
        try:
            return self.loss(self.trained(rule, attack, attackers).params)
        except Exception as error:
            if getattr(error, "code", "").startswith(("FF-TRAIN", "FF-COMP")):
                return float("inf")
            raise

    def trained(self, rule: Rule, attack: Attack | None, attackers: int) -> PublicState:
        """Public state after the last round."""
        sync, layout = self.job.sync, self.job.model.layout
        state = sync.initial(self.job.start)
        held = [InnerState() for _ in range(PEERS)]
        for _ in range(self.spec.rounds):
            ends = [self._end(state, held, index) for index in range(PEERS)]
            changes = [end - state.params for end in ends]
            parts = []
            for index, end in enumerate(ends):
                own, residual = held[index], held[index].residual
                is_bad = attack is not None and index >= PEERS - attackers
                if attack is not None and is_bad:
                    end, residual = state.params + attack(changes[: PEERS - attackers], changes[index]), None
                sent = sync.encode(state, residual, own.offset, end, layout, self.peer(index))
                held[index] = InnerState(state.round + 1, own.step, own.vectors, sent.residual, sent.offset)
                about = sync.about(state, layout, self.peer(index))
                values = sync.decode(about, layout, sent.payload)
                parts.append(WeightedUpdate(self.peer(index), self.spec.round_tokens, values))
            merged = ranged_mean(sync.fragment(state.round, layout).layout, parts, rule)
            state = sync.moved(state, layout, merged.values)
        return state

    def _end(self, state: PublicState, held: list[InnerState], index: int) -> Float32:
        """Where a peer's own round leads it; what its optimizer keeps is kept."""
        batches = self.job.batches(state.round, index)
        made = round_work.trained(self.job, state, held[index], batches, lambda: None)
        last = made.states[-1]
        held[index] = InnerState(state.round, last.step, last.vectors, held[index].residual, held[index].offset)
        return made.end


ROUNDS: Final = 30
# Of what an honest run learns, by attackers of 8. Two that shout undo a training by sparse_loco: that goal is not met.
BOUNDS: Final = {"muloco": {1: 0.03, 2: 0.06}, "sparse_loco": {1: 0.12, 2: 0.12}}
SPARSE: Final = ("flip", "x10", "small")


def cases(quick: bool) -> Iterator[Row]:
    """Every rule, attack and number of attackers; fewer of `sparse_loco`."""
    if quick:
        yield from of_method("muloco", get_args(Rule), tuple(ATTACKS), 6, (2,))
        return
    yield from of_method("muloco", get_args(Rule), tuple(ATTACKS), ROUNDS, (1, 2))
    yield from of_method("sparse_loco", ("clip", "centered"), SPARSE, ROUNDS, (1, 2), sync__chunk="1024")


def of_method(
    method: str, rules: Sequence[Rule], attacks: Sequence[str], rounds: int, counts: Sequence[int], **flags: str
) -> Iterator[Row]:
    """The cases of one method."""
    training, bounds = Training.of(rounds, method, **flags), BOUNDS[method]
    begun, plain = training.loss(training.job.start), training.run("mean")
    yield told(f"training, {method}, start", begun, "nats", "validation loss")
    yield told(f"training, {method}, mean, honest", plain, "nats", "validation loss of 8 honest peers")
    for rule in rules:
        honest, case = plain, f"training, {method}, {rule}"
        if rule != "mean":
            honest = training.run(rule)
            most = plain + 0.03 * (begun - plain)
            yield at_most(f"{case}, honest", honest, "nats", most, "8 honest peers under a plain mean, and 3 %")
        for name in attacks:
            for count in counts:
                found = min(training.run(rule, ATTACKS[name], count), LOST)
                most = honest + bounds[count] * (begun - honest)
                row, against = f"{case}, {name}, {count} of {PEERS}", f"8 honest peers under this rule: {honest:.3f}"
                if rule == "mean" or rounds < ROUNDS:  # a bound is of a whole training
                    yield told(row, found, "nats", against)
                else:
                    yield at_most(row, found, "nats", most, against)

"""Says how a run ended: its losses, what the requester's process reported, and the errors of one that was cut short."""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.core.errors import FarflungError
from farflung.job.spec import JobSpec
from farflung.peers.process.channel import Report
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.runs import command_name
from farflung.watch.phrases import many

_TRIES: Final = 5  # to have all proofs of one block


class RunStoppedError(FarflungError):
    """The person stopped the run; it can be resumed."""

    exit_code = 130


class RunDivergedError(RunStoppedError):
    """The job's evaluate.stop_loss ended the run: it is settled, and its model is worse than it began."""

    exit_code = 1


class RunLosses(msgspec.Struct, frozen=True):
    """Validation losses of a run, nats per token."""

    end: float | None  # None: the model gives no number
    start: float
    unigram: float
    baseline: float | None


class JobEndReport(msgspec.Struct, frozen=True):
    """How the job ended, as the requester's process tells it. Money in pico-credits, hashes in hex."""

    rounds: int
    root: str
    reason: str
    escrow: int
    paid: int
    refunded: int
    output: str
    burnt: int = 0


def stopped(folder: RunFolder, spec: JobSpec, outcome: JobEndReport) -> RunStoppedError:
    """The error FF-APP-132."""
    name = command_name(folder)
    return RunStoppedError(
        "FF-APP-132",
        f"run {folder.name} was stopped after {outcome.rounds} of {many(spec.rounds, 'round')}",
        cause="all that was trained is paid; the model so far is in its folder",
        hint=f"train on: farflung resume {name}; use the model: farflung sample {name}",
    )


def diverged(folder: RunFolder, spec: JobSpec, outcome: JobEndReport, losses: RunLosses) -> RunDivergedError:
    """The error FF-APP-485."""
    name, most, lower = command_name(folder), spec.evaluate.stop_loss, spec.optimizer.lr / 10
    is_far = losses.end is not None and most and losses.end > most * losses.start
    why = (
        f"its validation loss is {losses.end:.4g}, more than evaluate.stop_loss = {most:g} times the"
        f" {losses.start:.4g} of its start"
        if is_far
        else f"the loss became NaN or infinite in round {outcome.rounds}, for each provider that trained it"
    )
    return RunDivergedError(
        "FF-APP-485",
        f"training diverged: run {folder.name} ended after {outcome.rounds} of {spec.rounds} rounds",
        cause=f"{why}; what was checked is paid, the rest of the escrow returned",
        hint=f"begin again with a lower rate: farflung resume {name} --set optimizer.lr={lower:g}",
    )


def read_outcome(said: Report) -> JobEndReport:
    """An outcome from the report that carries it."""
    return msgspec.convert(said, JobEndReport)

"""Computes the losses of a loss probe (train.scores) by forward passes alone, in the verifier's own worker.

The windows are few and the same before and after, so a difference says more than either loss. For N contributions and n
windows that is n (1 + 3 N) windows forward, each about a third of what it costs to train on one.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from farflung.core.errors import RunError
from farflung.core.tensor_layout import Float32
from farflung.train import data_order, forward_passes, worker_messages
from farflung.train.contribution_trace import units
from farflung.train.data_order import Int64, Windows
from farflung.train.inner_steps import Pulse
from farflung.train.public_state import PublicState
from farflung.train.round_work import WorkerJob
from farflung.train.scores import ContributionScore, windows_of

BROKEN: Final = ("FF-TRAIN-055", "FF-TRAIN-058")  # the forward pass fails, or the loss is no number


def loss(job: WorkerJob, params: Float32, rows: Windows, pulse: Pulse) -> float:
    """Mean loss of the model with these weights, nats per token, on inputs and targets of shape (n, context)."""
    job.model.put(params)
    return forward_passes.mean_loss(job.model, job.spec.model, job.spec.pass_rows, rows, pulse)


def measure(
    job: WorkerJob, state: PublicState, asked: worker_messages.LossProbeCommand, pulse: Pulse
) -> tuple[int, tuple[ContributionScore, ...]]:
    """The validation loss before the round, and each part's losses in the parts' order; units of 2^-20.

    Raises RunError FF-TRAIN-106 for a probe of nothing, SpecError FF-TRAIN-060, -061 where there is no window, and
    ProtocolError for a payload that nobody could have merged.
    """
    if asked.windows < 1 or len(asked.members) != len(asked.parts):
        cause = f"{asked.windows} windows, {len(asked.parts)} parts of {len(asked.members)} members"
        hint = "the coordinator asks for what the terms say"
        raise RunError("FF-TRAIN-106", "there is nothing to probe", cause=cause, hint=hint)
    held = held_rows(job, asked.seed, asked.windows)
    each: list[ContributionScore] = []
    for member, part in zip(asked.members, asked.parts, strict=True):
        own = own_rows(job, state.round, member, part.weight, asked)
        after = job.sync.alone(state, job.model.layout, part)
        before = loss(job, state.params, own, pulse)
        found = _after(job, after, held, pulse), before, _after(job, after, own, pulse)
        each.append(ContributionScore(part.peer, *map(units, found)))
    return units(loss(job, state.params, held, pulse)), tuple(each)


def _after(job: WorkerJob, params: Float32, rows: Windows, pulse: Pulse) -> float:
    """`loss` with a contribution: one that breaks the model is the worst, and keeps no other from being scored."""
    try:
        return loss(job, params, rows, pulse)
    except RunError as error:
        if error.code not in BROKEN:
            raise
        return math.inf


def held_rows(job: WorkerJob, seed: int, count: int) -> Windows:
    """Windows of validation text, shape (count, context): non-overlapping ones, evenly apart."""
    context, tokens = job.spec.model.context, job.data.heldout
    if len(tokens) <= context:
        return data_order.windows(tokens, context, len(tokens))  # which says so
    return data_order.cut(tokens, context, data_order.held_starts(len(tokens), context, seed, count))


def own_rows(
    job: WorkerJob, round: int, member: int, weight: int, asked: worker_messages.LossProbeCommand
) -> tuple[Int64, Int64]:
    """Windows that a member was to train on in its round of `weight` tokens, shape (windows, context)."""
    spec = job.spec
    batches, total = job.batches(round, member), spec.batch * max(1, spec.steps_of(weight))
    places = [divmod(place, spec.batch) for place in windows_of(asked.seed, total, asked.windows)]
    rows = [(inputs[row], targets[row]) for step, row in places for inputs, targets in [batches(step)]]
    inputs, targets = zip(*rows, strict=True)
    return np.stack(inputs), np.stack(targets)

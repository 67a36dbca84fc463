"""Selects the tokens that a peer trains on: the training windows that the data order (core.canon.order) gives it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from farflung.core.canon.token_leaves import TokenSource, leaf_numbers
from farflung.core.canon.window_order import starts
from farflung.core.errors import SpecError
from farflung.job.spec import JobSpec
from farflung.train.scores import windows_of

Int64 = NDArray[np.int64]
Windows = tuple[NDArray[np.integer], NDArray[np.integer]]  # inputs and targets, shape (n, context)


def batch(tokens: TokenSource, spec: JobSpec, round: int, member: int, step: int) -> tuple[Int64, Int64]:
    """Inputs and targets of shape (batch, context) from the training tokens, targets one place later.

    Raises SpecError FF-TRAIN-060 when the training part holds no whole window.
    """
    context = spec.model.context
    places = len(tokens) - context
    if places < 1:
        raise SpecError(
            "FF-TRAIN-060",
            "too little training data",
            cause=f"{len(tokens)} tokens hold no window of model.context + 1 = {context + 1}",
            hint="give more data, or set a smaller model.context",
        )
    return cut(tokens, context, starts(spec.seed, round, member, step, spec.batch, places))


def made_up(spec: JobSpec) -> tuple[Int64, Int64]:
    """A batch of the right shape that is of no data set: numbers in turn."""
    shape = spec.batch, spec.model.context + 1
    rows = (np.arange(shape[0] * shape[1], dtype=np.int64) % spec.model.vocabulary).reshape(shape)
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


def round_leaves(spec: JobSpec, tokens: int, round: int, member: int) -> tuple[int, ...]:
    """The leaves (core.canon.token_leaves) of `tokens` training tokens that a member's batches in a round lie in."""
    context = spec.model.context
    drawn = (starts(spec.seed, round, member, s, spec.batch, tokens - context) for s in range(spec.sync.steps))
    return _leaves((begin for step in drawn for begin in step), context)


def held_leaves(spec: JobSpec, tokens: int, seed: int, count: int) -> tuple[int, ...]:
    """The leaves of `tokens` validation tokens that the windows of a loss probe lie in."""
    return _leaves(held_starts(tokens, spec.model.context, seed, count), spec.model.context)


def _leaves(begin: Iterable[int], context: int) -> tuple[int, ...]:
    return tuple(sorted({number for s in begin for number in leaf_numbers(s, s + context + 1)}))


def held_starts(tokens: int, context: int, seed: int, count: int) -> list[int]:
    """Where `count` windows of `tokens` validation tokens begin: non-overlapping ones, evenly apart."""
    return [place * context for place in windows_of(seed, (tokens - 1) // context, count)]


def cut(tokens: TokenSource, context: int, begin: Sequence[int]) -> tuple[Int64, Int64]:
    """The windows that begin there: inputs and targets of shape (len(begin), context)."""
    rows = np.stack([tokens[s : s + context + 1] for s in begin]).astype(np.int64)
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


def windows(tokens: TokenSource, context: int, limit: int) -> Windows:
    """The first `limit` validation tokens as non-overlapping windows: inputs and targets of shape (n, context), as
    views.

    Raises SpecError FF-TRAIN-061 when there is no whole window.
    """
    count = min(limit, len(tokens) - 1) // context
    if count < 1:
        raise SpecError(
            "FF-TRAIN-061",
            "too little validation data",
            cause=f"{len(tokens)} tokens (limit {limit}) hold no window of model.context + 1 = {context + 1}",
            hint="raise data.heldout or evaluate.tokens, or give more data",
        )
    used = tokens[: count * context + 1]
    return used[:-1].reshape(count, context), used[1:].reshape(count, context)

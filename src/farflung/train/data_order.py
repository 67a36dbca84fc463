"""Selects the tokens that a peer trains on: the training windows that the data order (core.canon.order) gives it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from farflung.core.canon.token_leaves import TokenSource
from farflung.core.canon.window_order import starts
from farflung.core.errors import SpecError
from farflung.job.spec import JobSpec

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

"""Which tokens a peer trains on: a pure function of (seed, round, member, step, row) (V2: spec before work).

Keyed BLAKE3 as a PRF, integers only: equal on every machine, independent of all other draws, and known to an
auditor before the work. A window starts anywhere in the training part with equal probability (bias < 2^-30).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farflung.core.crypto import NS_DATA_ORDER, derive, digest
from farflung.core.errors import SpecError
from farflung.job.spec import JobSpec

Int64 = NDArray[np.int64]
Tokens = NDArray[np.unsignedinteger]


def starts(seed: int, round: int, member: int, step: int, rows: int, places: int) -> list[int]:
    """Where each of `rows` windows starts, in [0, places); row r does not depend on `rows`."""
    key = digest(NS_DATA_ORDER, seed.to_bytes(8, "little"))
    about = b"".join(n.to_bytes(8, "little") for n in (round, member, step))
    raw = derive(NS_DATA_ORDER, key, about, length=8 * rows)
    return [(int.from_bytes(raw[8 * r : 8 * r + 8], "little") * places) >> 64 for r in range(rows)]


def batch(tokens: Tokens, spec: JobSpec, round: int, member: int, step: int) -> tuple[Int64, Int64]:
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
    begin = starts(spec.seed, round, member, step, spec.batch, places)
    rows = np.stack([tokens[s : s + context + 1] for s in begin]).astype(np.int64)
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


def windows(tokens: Tokens, context: int, limit: int) -> tuple[Int64, Int64]:
    """The first `limit` held-out tokens as non-overlapping windows: inputs and targets of shape (n, context).

    Raises SpecError FF-TRAIN-061 when there is no whole window.
    """
    count = min(limit, len(tokens) - 1) // context
    if count < 1:
        raise SpecError(
            "FF-TRAIN-061",
            "too little held-out data",
            cause=f"{len(tokens)} tokens (limit {limit}) hold no window of model.context + 1 = {context + 1}",
            hint="raise data.heldout or evaluate.tokens, or give more data",
        )
    used = tokens[: count * context + 1].astype(np.int64)
    return used[:-1].reshape(count, context), used[1:].reshape(count, context)

"""Keeps a user's model away from the random generators of its process: all but torch's own, which every step seeds.

Python's and NumPy's generators go on from pass to pass. A worker that trains and a verifier that repeats one segment
would draw other numbers from them, so a model may draw while it is built, from the job's seed, and not while it runs.
"""

from __future__ import annotations

import random  # noqa: TID251 - to find out whether a model draws from it; nothing here does
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from farflung.core.errors import RunError


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Lets all generators of the process begin at `seed`, and sets them back."""
    kept = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    torch.default_generator.manual_seed(seed & ((1 << 63) - 1))
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    try:
        yield
    finally:
        torch.default_generator.set_state(kept[0])
        random.setstate(kept[1])
        np.random.set_state(kept[2])


@contextmanager
def untouched() -> Iterator[None]:
    """Runs a pass of the model. Raises RunError FF-TRAIN-066 when it drew from what no step seeds, or seeded anew."""
    before = _states()
    yield
    names = [name for name, state in _states().items() if state != before[name]]
    if names:
        raise RunError(
            "FF-TRAIN-066",
            f"the model draws from {names[0]}",
            cause="nobody who repeats a step would draw the same numbers",
            hint="draw with torch (torch.rand, dropout): each step of a job seeds its default generator",
        )


def _states() -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state()
    return {
        "Python's generator (random)": random.getstate(),
        "NumPy's generator (numpy.random)": (kind, np.asarray(keys).tobytes(), *rest),
        "a generator that it seeds itself (torch.seed)": torch.initial_seed(),
    }

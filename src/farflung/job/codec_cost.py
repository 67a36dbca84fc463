"""Estimates how long the codec of a job takes in one process where its loops are not compiled.

A process encodes one payload a round and decodes the payloads of all providers. Whether compiling pays follows from
it (compress.kernels.settle).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from farflung.job.spec import JobSpec

# Nanoseconds of NumPy for each element of the model, to encode and to decode one payload (0.86 million parameters).
TWINS: Final[Mapping[str, tuple[int, int]]] = {"dense": (75, 60), "topk": (150, 1000), "low_rank": (40, 1)}
PLAIN: Final = (18, 2)  # of dense values that are not quantised
PLAIN_BITS: Final = 16


def codec_cost(spec: JobSpec, elements: int) -> int:
    """Nanoseconds of a process in the whole job, for a model of so many elements."""
    is_plain = spec.sync.codec == "dense" and spec.sync.value_bits >= PLAIN_BITS
    encode, decode = PLAIN if is_plain else TWINS[spec.sync.codec]
    return spec.rounds * elements * (encode + spec.network.providers * decode) // spec.sync.fragments

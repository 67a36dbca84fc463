"""States how much of a data set a node is sent: a small one whole, of a large one what its rounds lie in.

Windows begin anywhere with equal probability, so that n pieces drawn of L are L (1 - exp(-n / L)) different ones.
"""

from __future__ import annotations

import math
from typing import Final

from farflung.core import limits
from farflung.core.ids import ID_BYTES
from farflung.core.tensor_layout import ROOT_CHUNK
from farflung.core.units import Bytes
from farflung.job.dataset import token_dtype
from farflung.job.spec import JobSpec
from farflung.job.token_tree import ROOT_BYTES

KEPT: Final = limits.GIB  # unless a node's owner says otherwise (peers.node.config, data_cache)


def is_whole(dataset_bytes: int) -> bool:
    """Whether every node gets all of it."""
    return dataset_bytes <= limits.WHOLE_DATA_BYTES


def first_bytes(dataset_bytes: int) -> Bytes:
    """What every node gets when it joins."""
    return Bytes(dataset_bytes if is_whole(dataset_bytes) else ROOT_BYTES)


def round_bytes(spec: JobSpec, dataset_bytes: int) -> Bytes:
    """What is fetched for one round of one member: nothing where all is there."""
    if is_whole(dataset_bytes):
        return Bytes(0)
    item = token_dtype(spec.model.vocabulary).itemsize
    count = dataset_bytes / (item * ROOT_CHUNK)
    drawn = spec.sync.steps * spec.batch * (1 + spec.model.context / ROOT_CHUNK)
    each = item * ROOT_CHUNK + 8 + ID_BYTES * math.ceil(math.log2(count))
    return Bytes(math.ceil(count * -math.expm1(-drawn / count) * each))


def kept_bytes(spec: JobSpec, dataset_bytes: int) -> Bytes:
    """What a node, or the requester, keeps of it on disk, besides what all get: the last rounds' up to a bound."""
    return Bytes(min(KEPT, spec.rounds * round_bytes(spec, dataset_bytes)))


def held_bytes(spec: JobSpec, dataset_bytes: int) -> Bytes:
    """What one process of a node has of it at a time, mapped from files."""
    rounds = 2 if spec.sync.delay else 1
    return first_bytes(dataset_bytes) if is_whole(dataset_bytes) else Bytes(rounds * round_bytes(spec, dataset_bytes))

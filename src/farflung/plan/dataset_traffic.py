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


def is_whole(spec: JobSpec, dataset_bytes: int) -> bool:
    """Whether every node gets all of it: of a small one, and of a larger one where all rounds together take no less."""
    if dataset_bytes <= limits.WHOLE_DATA_BYTES:
        return True
    return dataset_bytes <= limits.WHOLE_DATA_MOST and spec.rounds * _drawn_bytes(spec, dataset_bytes) >= dataset_bytes


def first_bytes(spec: JobSpec, dataset_bytes: int) -> Bytes:
    """What every node gets when it joins."""
    return Bytes(dataset_bytes if is_whole(spec, dataset_bytes) else ROOT_BYTES)


def round_bytes(spec: JobSpec, dataset_bytes: int) -> Bytes:
    """What is fetched for one round of one member: nothing where all is there."""
    return Bytes(0 if is_whole(spec, dataset_bytes) else _drawn_bytes(spec, dataset_bytes))


def _drawn_bytes(spec: JobSpec, dataset_bytes: int) -> int:
    """Of what the windows of one round lie in."""
    item = token_dtype(spec.model.vocabulary).itemsize
    count = dataset_bytes / (item * ROOT_CHUNK)
    drawn = spec.sync.steps * spec.batch * (1 + spec.model.context / ROOT_CHUNK)
    each = item * ROOT_CHUNK + 8 + ID_BYTES * math.ceil(math.log2(count))
    return math.ceil(count * -math.expm1(-drawn / count) * each)


def kept_bytes(spec: JobSpec, dataset_bytes: int) -> Bytes:
    """What a node, or the requester, keeps of it on disk, besides what all get: the last rounds' up to a bound."""
    return Bytes(min(KEPT, spec.rounds * round_bytes(spec, dataset_bytes)))


def held_bytes(spec: JobSpec, dataset_bytes: int) -> Bytes:
    """What one process of a node has of it at a time, mapped from files."""
    if is_whole(spec, dataset_bytes):
        return Bytes(dataset_bytes)
    return Bytes((2 if spec.sync.delay else 1) * round_bytes(spec, dataset_bytes))

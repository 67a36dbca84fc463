"""States the least that a run holds on disk at once; what grows with its rounds comes on top of it."""

from __future__ import annotations

from typing import Final

from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Bytes
from farflung.job.spec import JobSpec
from farflung.plan.dataset_traffic import first_bytes, kept_bytes
from farflung.plan.state_vectors import carried_vectors, inner_vectors, outer_vectors

FLOAT: Final = 4
SNAPSHOTS: Final = 3  # round 0 and the last two


def least_disk(spec: JobSpec, layout: TensorLayout, dataset_bytes: int) -> Bytes:
    """The data, twice where nodes get all of them, public states, those that each worker holds in its file before and
    after a merge, and of each provider its private state and, where work is audited, the states at the borders of a
    round.
    """
    state = FLOAT * layout.size
    private = 1 + inner_vectors(spec) + carried_vectors(spec.sync)
    borders = spec.segments * (1 + inner_vectors(spec)) if spec.is_audited else 0
    workers = spec.network.providers + spec.verifiers + 1
    public = (SNAPSHOTS + 2 * workers) * (1 + outer_vectors(spec.sync))
    states = public + spec.network.providers * (private + borders)
    kept = kept_bytes(spec, dataset_bytes) * (spec.network.providers + 1)
    data = dataset_bytes + first_bytes(spec, dataset_bytes) + kept
    return Bytes(data + state * states)

"""States what a run on one computer holds on disk at once; what grows with its rounds comes on top of it.

Fitted to runs of 124 M parameters (diloco in fp32, 2 providers, 1 verifier) that filled a disk of 78 GB in their
audits, of which workers' files of states had 38 GB and the verifier's agent 12 GB.
"""

from __future__ import annotations

from typing import Final

from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Bytes
from farflung.job.spec import JobSpec
from farflung.plan.dataset_traffic import first_bytes, kept_bytes
from farflung.plan.state_vectors import FLOAT, carried_vectors, inner_vectors, outer_vectors, payload_bytes
from farflung.plan.worker_memory import border_vectors, opened_vectors, profile_vectors

SNAPSHOTS: Final = 3  # round 0 and the last two
AUDITED: Final = 2  # rounds of which verifiers hold snapshot, start and end of each segment that they repeat
OPENED: Final = 2  # rounds of which a provider keeps what it opened
PAYLOADS: Final = 2  # rounds whose payloads are kept by everybody


def least_disk(spec: JobSpec, layout: TensorLayout, dataset_bytes: int) -> Bytes:
    """The data, twice where nodes get all of them; public states in the run's folder, and sealed; of each provider its
    private state before and after a round, the round's public state and, where work is audited, what it opened; of each
    process its file of states (train.vector_store); and the payloads of two rounds at everybody.
    """
    public, members, verifiers = 1 + outer_vectors(spec.sync), spec.network.providers, spec.verifiers
    requester = (SNAPSHOTS + 2) * public + _file(public) + _file(public) + profile_vectors(spec)
    nodes = members * _provider_vectors(spec) + verifiers * _verifier_vectors(spec)
    audits = AUDITED * members * _audit_vectors(spec) if verifiers else 0
    states = FLOAT * layout.size * (nodes + audits + requester)
    payloads = PAYLOADS * members * (members + 1) * int(payload_bytes(spec.sync, layout))
    kept = kept_bytes(spec, dataset_bytes) * (members + 1)
    data = dataset_bytes + first_bytes(spec, dataset_bytes) + kept
    return Bytes(data + states + payloads)


def node_disk(spec: JobSpec, layout: TensorLayout, *, audits: bool) -> Bytes:
    """The states of a job that one node holds on disk at once; `audits`: a verifier, which repeats a segment."""
    vectors = _verifier_vectors(spec) + _audit_vectors(spec) if audits else _provider_vectors(spec)
    return Bytes(FLOAT * layout.size * vectors)


def _provider_vectors(spec: JobSpec) -> int:
    """Private state before and after a round, its public state, what was opened, and the worker's file."""
    public, private = 1 + outer_vectors(spec.sync), 1 + inner_vectors(spec) + carried_vectors(spec.sync)
    opened, carried = opened_vectors(spec), carried_vectors(spec.sync)
    return 2 * private + public + OPENED * opened + _file(public) + 3 * carried + border_vectors(spec) - opened


def _verifier_vectors(spec: JobSpec) -> int:
    return opened_vectors(spec) + _file(1 + outer_vectors(spec.sync))


def _audit_vectors(spec: JobSpec) -> int:
    """Snapshot, start and end of one segment that is repeated."""
    return 1 + outer_vectors(spec.sync) + 2 * (1 + inner_vectors(spec)) + carried_vectors(spec.sync)


def _file(public: int) -> int:
    """Vectors in a process' file: public state before and after a merge, and the first weights."""
    return 2 * public + 1

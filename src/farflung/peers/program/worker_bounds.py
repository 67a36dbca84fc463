"""Bounds a worker by what is planned of its job, or by the machine where a plan needs the worker first.

The memory of a built-in model follows from its sizes. That of a user's module is known once it was built and traced,
which processes in the sandbox do: they, and whoever uses such a model without a plan, may take what the machine has.
Nodes take the plan's figure from the proposal instead (peers.node.policy).
"""

from __future__ import annotations

from farflung.host.io.machine_probe import memory_bytes, torch_build
from farflung.host.worker_limits import WorkerLimits, limits_for, unplanned_limits
from farflung.job.spec import JobSpec
from farflung.peers.rundir.inputs import known_layout
from farflung.plan.worker_memory import memory


def bounds_of(spec: JobSpec, dataset_bytes: int, cpu_seconds: int = 0) -> WorkerLimits:
    """Limits of a process on this machine that does a job's work. `cpu_seconds`: most processor time; 0: no bound."""
    layout = known_layout(spec)
    if layout is None:
        return unplanned_limits(memory_bytes(), cpu_seconds)
    return limits_for(memory(spec, layout, dataset_bytes, torch=torch_build()).worker, cpu_seconds)

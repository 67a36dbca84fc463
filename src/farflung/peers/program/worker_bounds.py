"""Bounds a worker by what is planned of its job, or by the machine where a plan needs the worker first.

The memory of a built-in model follows from its sizes. That of a user's module is known once it was built and traced,
which processes in the sandbox do: they, and whoever uses such a model without a plan, may take what the machine has.
Nodes take the plan's figure from the proposal instead (peers.node.policy).
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from farflung.host.io.machine_probe import memory_bytes, torch_build
from farflung.host.worker_limits import WorkerLimits, cpu_bound, limits_for, unplanned_limits
from farflung.job.spec import JobSpec
from farflung.peers.protocol.messages import LeaseOfferRequest
from farflung.peers.rundir.inputs import known_layout
from farflung.plan.device_choice import CPU, DeviceChoice
from farflung.plan.worker_memory import memory, state_file_bytes

CARD_SPACE: Final = 1 << 47  # a card's runtime reserves as much as there may be, and touches little of it


def bounds_of(spec: JobSpec, dataset_bytes: int, cpu_seconds: int = 0) -> WorkerLimits:
    """Limits of a process on this machine that does a job's work, and maps all of its data set.

    `cpu_seconds`: most processor time; 0: no bound.
    """
    layout = known_layout(spec)
    if layout is None:
        usable = memory_bytes()
        bounds = replace(unplanned_limits(usable, cpu_seconds), state_bytes=usable)
    else:
        worker = memory(spec, layout, dataset_bytes, torch=torch_build()).worker
        bounds = limits_for(worker, cpu_seconds, state_file_bytes(spec, layout))
    return replace(bounds, address_space=bounds.address_space + dataset_bytes)


def bounds_of_lease(proposal: LeaseOfferRequest, threads: int, flops: int, device: str = CPU) -> WorkerLimits:
    """Limits of a node's worker. `flops`: a core's measured rate; `device`: on which it computes."""
    terms = proposal.terms
    seconds = threads * cpu_bound(terms.layout.size, proposal.units_max, flops)
    states = state_file_bytes(terms.spec, terms.layout)
    bounds = replace(limits_for(proposal.worker_bytes, seconds, states), cores=threads)
    return replace(bounds, address_space=CARD_SPACE) if DeviceChoice.of(device).is_card else bounds

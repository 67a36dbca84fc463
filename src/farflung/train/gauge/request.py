"""Defines the requests to the memory-tracing process (train.io.memory_process); no torch is needed to send them."""

from __future__ import annotations

from farflung.core.codec import Wire
from farflung.job.spec import JobSpec


class StepMemoryRequest(Wire, frozen=True, tag="gauge"):
    """For the memory of one step of a job; `module` is the source of its model, empty for a built-in one."""

    spec: JobSpec
    module: bytes


class HeapMemoryRequest(Wire, frozen=True, tag="heap"):
    """For what the heap keeps beside the tensors of steps of so many rows."""

    spec: JobSpec
    module: bytes
    rows: int


Request = StepMemoryRequest | HeapMemoryRequest

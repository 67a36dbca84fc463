"""Says how a worker's model goes forward and backward: in which numbers, what it computes twice, in how many passes.

All of it is the job's (spec.numerics, model.recompute, accumulate), so that whoever repeats a step makes the same one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple

import torch

from farflung.job.spec import JobSpec
from farflung.plan.step_trace import Recomputation, way_of

COMPUTE: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class PassSetting(NamedTuple):
    """`compute`: of products; `passes`: those that a batch is cut into, one after another."""

    compute: torch.dtype = torch.float32
    recompute: Recomputation = Recomputation.NONE
    passes: int = 1

    @classmethod
    def of(cls, spec: JobSpec) -> PassSetting:
        """A job's."""
        return cls(COMPUTE[spec.numerics.compute], way_of(spec), spec.accumulate)

    def autocast(self, device: str) -> AbstractContextManager[object]:
        """The forward pass goes on inside; the backward pass takes each product's type from it.

        Each product casts its own weights: a cache of casts would hold all of them to the end of the forward pass, and
        would add up a tied weight's gradients in 16 bits, or not, as blocks are computed again or not.
        """
        if self.compute is torch.float32:
            return nullcontext()
        return torch.autocast(device, self.compute, cache_enabled=False)


PLAIN: Final = PassSetting()

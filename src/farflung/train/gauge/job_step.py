"""Builds a job's step as its worker does, with the flat vectors of train.flat_model and our own optimizers (P2)."""

from __future__ import annotations

import torch
from msgspec.structs import replace

from farflung.job.spec import JobSpec
from farflung.plan.heap import HeapGrowth
from farflung.plan.step_trace import StepTrace
from farflung.train import flat_model, optim
from farflung.train.gauge.process_heap import risen
from farflung.train.gauge.request import HeapMemoryRequest, Request
from farflung.train.gauge.step_memory import Make, StepSubject, measure


def answer(request: Request) -> StepTrace | HeapGrowth:
    """The trace of a job's step, or what its steps raise this process by. Raises what train.flat_model.build and
    check_source raise, SpecError FF-TRAIN-054 (a buffer changes), RunError FF-TRAIN-055 to -057, FF-PLAN-058.
    """
    if isinstance(request, HeapMemoryRequest):
        return risen(step_of(request.spec, request.module), request.rows)
    # Each way of recomputation is told, the job's own among them.
    plain = replace(request.spec, model=replace(request.spec.model, recompute="none"))
    found = measure(step_of(plain, request.module), request.spec.pass_rows)
    flat_model.check_source(request.spec, request.module)
    return found


def step_of(spec: JobSpec, source: bytes) -> Make:
    """One pass of a worker's step, for as many rows as are asked for, and its update."""

    def make(rows: int) -> StepSubject:
        built = flat_model.build(spec, source)
        state = optim.fresh(spec.optimizer, built.params)
        x_BT, y_BT = (torch.randint(0, spec.model.vocabulary, (rows, spec.model.context)) for _ in range(2))

        def update() -> None:
            nonlocal state
            with torch.no_grad():
                state = optim.step(
                    spec.optimizer, built.params, built.grads, state, spec.optimizer.lr, built.parameter_layout
                )
            forget()

        def forget() -> None:
            with torch.no_grad():
                built.grads.zero_()

        return StepSubject(built.module, (x_BT, y_BT), lambda: built.traced_scalar(x_BT, y_BT), update, forget)

    return make

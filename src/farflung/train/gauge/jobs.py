"""A job's step as its worker makes it: the flat parameters and gradients of train.model, our own optimizers (P2)."""

from __future__ import annotations

import torch

from farflung.job.spec import JobSpec
from farflung.plan.footprint.heap import Risen
from farflung.plan.footprint.traced import Traced
from farflung.train import model, optim
from farflung.train.gauge.heap import risen
from farflung.train.gauge.measure import Make, Subject, measure
from farflung.train.gauge.request import Heap, Request
from farflung.train.local import clip_limit


def answer(request: Request) -> Traced | Risen:
    """The trace of a job's step, or what its steps raise this process by. Raises what train.model.build raises,
    RunError FF-TRAIN-055 to -057, FF-PLAN-058.
    """
    make = step_of(request.spec, request.module)
    if isinstance(request, Heap):
        return risen(make, request.rows)
    return measure(make, request.spec.batch)


def step_of(spec: JobSpec, source: bytes) -> Make:
    """The step of a worker, for as many rows as are asked for."""

    def make(rows: int) -> Subject:
        built = model.build(spec, source)
        state = optim.fresh(spec.optimizer, built.params)
        clips = clip_limit(spec) > 0
        x_BT, y_BT = (torch.randint(0, spec.model.vocabulary, (rows, spec.model.context)) for _ in range(2))

        def update() -> None:
            nonlocal state
            with torch.no_grad():
                grad = built.grads * 1.0 if clips else built.grads  # a clip's result has a place of its own
                moved, state = optim.step(
                    spec.optimizer, built.params, grad, state, spec.optimizer.lr, built.terrain
                )
                built.params.copy_(moved)
                del moved, grad
                built.grads.zero_()

        return Subject(built.module, (x_BT, y_BT), lambda: built.scalar(x_BT, y_BT), update)

    return make

"""Implements Muon as a torch optimizer, by the job engine's formulas (train.optim).

It updates matrices by Muon, the rest by AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from farflung.train.flat_model import looked_up
from farflung.train.optim import MATCH, orthogonal


class Muon(torch.optim.Optimizer):
    """Jordan et al. 2024 for matrices (convolutions as out x rest), AdamW for embeddings, heads and vectors.

    One `lr` serves both: a Muon update is scaled to the size of an AdamW update (Liu et al. 2025, arXiv 2502.16982).
    Weight decay is decoupled and falls on tensors of two or more sides.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 3e-3,
        *,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        tables = looked_up(model)
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        matrices = [p for name, p in named if p.ndim >= 2 and name not in tables]
        known = set(map(id, matrices))
        kinds = ((True, matrices), (False, [p for _, p in named if id(p) not in known]))
        groups = [{"params": params, "is_matrix": kind} for kind, params in kinds if params]
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; parameters without a gradient, or without elements, are skipped."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rule = self._orthogonalised if group["is_matrix"] else self._adamw
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.numel():
                    decay = group["lr"] * group["weight_decay"] if parameter.ndim >= 2 else 0.0
                    update = rule(parameter, group)
                    parameter.mul_(1.0 - decay).sub_(update)
        return loss

    def _orthogonalised(self, parameter: Tensor, group: dict[str, Any]) -> Tensor:
        state = self.state[parameter]
        grad = _grad(parameter)
        if not state:
            state["mean"] = torch.zeros_like(parameter)
        mean = state["mean"].lerp_(grad, 1.0 - group["momentum"])
        ahead = torch.lerp(grad, mean, group["momentum"])
        flat = ahead.reshape(1, ahead.shape[0], -1)
        rate = group["lr"] * MATCH * math.sqrt(max(flat.shape[1:]))
        update: Tensor = orthogonal(flat).reshape(parameter.shape) * rate
        return update

    def _adamw(self, parameter: Tensor, group: dict[str, Any]) -> Tensor:
        state = self.state[parameter]
        grad = _grad(parameter)
        if not state:
            state["step"] = torch.tensor(0.0)
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        done, (beta1, beta2) = float(state["step"]), group["betas"]
        mean = state["mean"].lerp_(grad, 1.0 - beta1)
        square = state["square"].lerp_(grad * grad, 1.0 - beta2)
        scale = math.sqrt(1.0 - beta2**done)
        rate = group["lr"] / (1.0 - beta1**done)
        update: Tensor = mean / (square.sqrt() / scale + group["eps"]) * rate
        return update


def _grad(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad

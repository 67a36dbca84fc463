"""Gives a module whose forward(x) returns logits the loss that training needs: the mean cross-entropy, nats/token.

The module becomes one of a class made from its own, so that its parameters keep their names.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from farflung.core.errors import SpecError


def with_loss(module: nn.Module, contract: str) -> nn.Module:
    """The module itself where its forward takes x and y; else with a forward(x, y) that returns the loss.

    forward(x) still returns what it did; `logits` is made of it, unless the class has its own. Raises SpecError
    FF-TRAIN-107 where forward takes neither (x, y) nor (x); `contract` is what it says to do.
    """
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):  # nothing is known of it: it is called with both
        return module
    if _takes(signature, 2):
        return module
    if not _takes(signature, 1):
        raise SpecError(
            "FF-TRAIN-107",
            f"forward{str(signature)[:80]} cannot be called with x and y, or with x alone",
            cause="a module gets int64 tokens x of shape (B, T), and y, the same one place later",
            hint=contract,
        )
    plain = type(module)

    def forward(self: Any, x_BT: Tensor, y_BT: Tensor | None = None) -> Any:
        found = plain.forward(self, x_BT)
        return found if y_BT is None else _loss(_logits(found), y_BT, contract)

    def logits(self: Any, x_BT: Tensor) -> Any:
        return _logits(plain.forward(self, x_BT))

    made: dict[str, Any] = {"forward": forward, "__module__": plain.__module__, "__qualname__": plain.__qualname__}
    if not callable(getattr(module, "logits", None)):
        made["logits"] = logits
    module.__class__ = type(plain.__name__, (plain,), made)
    return module


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _logits(found: Any) -> Any:
    """Logits, or the field of that name of what a model of Hugging Face returns."""
    return found if isinstance(found, Tensor) else getattr(found, "logits", found)


def _loss(logits_BTV: Any, y_BT: Tensor, contract: str) -> Tensor:
    is_fit = isinstance(logits_BTV, Tensor) and logits_BTV.is_floating_point() and logits_BTV.dim() == 3
    if not is_fit or logits_BTV.shape[:2] != y_BT.shape:
        what = f"a tensor of shape {tuple(logits_BTV.shape)}" if isinstance(logits_BTV, Tensor) else type(logits_BTV)
        raise SpecError(
            "FF-TRAIN-108",
            "forward(x) does not return logits",
            cause=f"it returned {what}; logits have the shape (B, T, vocabulary)",
            hint=contract,
        )
    return functional.cross_entropy(logits_BTV.flatten(0, 1), y_BT.flatten())

"""Books what a step keeps to the repeated blocks of its module (train.recomputation finds them): which of them runs
(P2).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from farflung.train.gauge.live_tensors import AFTER, LiveTensorTracker
from farflung.train.recomputation import tensors_in


@contextlib.contextmanager
def marked(blocks: dict[str, nn.Module], living: LiveTensorTracker) -> Iterator[None]:
    """Books under place k + 1 what block k makes, under 0 what comes before the first, under AFTER what lies between
    and after them. The backward pass of what went forward inside goes through the same places the other way.
    `living.handed` grows to the most that a block returns.
    """
    living.at = 0
    hooks = []

    def enter(place: int, _: nn.Module, args: Any, kwargs: Any) -> None:
        for tensor in tensors_in((args, kwargs)):
            _come_back(living, tensor, living.place_of(tensor))
        living.at = place

    def leave(place: int, _: nn.Module, __: Any, returned: Any) -> None:
        living.at = AFTER
        found = tensors_in(returned)
        living.handed = max(living.handed, sum(t.numel() * t.element_size() for t in found))
        for tensor in found:
            _come_back(living, tensor, place)

    for place, block in enumerate(blocks.values(), 1):
        hooks.append(block.register_forward_pre_hook(partial(enter, place), with_kwargs=True))
        hooks.append(block.register_forward_hook(partial(leave, place)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _come_back(living: LiveTensorTracker, tensor: Tensor, place: int) -> None:
    """With its gradient the backward pass is back where the tensor was made."""
    if tensor.requires_grad:
        tensor.register_hook(lambda _: setattr(living, "at", place))  # type: ignore[no-untyped-call]

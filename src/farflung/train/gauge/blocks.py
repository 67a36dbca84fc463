"""Finds a module's repeated blocks: where they are, which of them runs, and how they are computed again (T6,
P2).

Blocks are what is in an nn.ModuleList or nn.Sequential with others of its class, outermost first. Recomputed in
full, a block keeps its inputs (Chen et al. 2016, section 4.2). Selectively, it keeps what matrix products with weights,
convolutions and fused attention gave, and computes the rest again: element-wise steps, norms, softmax, products of two
activations. The thought is Korthikanti et al.'s (2022, section 5: repeat what is large to keep and cheap), the rule is
not: theirs repeats the core of attention alone, and keeps norms, GELU and masks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from farflung.plan.step_trace import Recomputation
from farflung.train.gauge.live_tensors import AFTER, LiveTensorTracker

aten: Final = torch.ops.aten
BATCHED: Final = frozenset({aten.bmm.default, aten.baddbmm.default})  # of weights, or of two activations
DEAR: Final = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.convolution.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    }
)


def blocks_of(module: nn.Module) -> dict[str, nn.Module]:
    """The blocks by their names, in order; none: nothing is repeated."""
    found: dict[str, nn.Module] = {}
    _find("", module, found)
    return found


def _find(prefix: str, module: nn.Module, found: dict[str, nn.Module]) -> None:
    children = list(module.named_children())
    kinds = {type(child) for _, child in children}
    is_list = isinstance(module, nn.ModuleList | nn.Sequential)
    is_many = len(children) > 1 or isinstance(module, nn.ModuleList)
    is_repeated = is_list and is_many and len(kinds) == 1 and not kinds & {nn.Sequential, nn.ModuleList}
    for name, child in children:
        where = f"{prefix}.{name}" if prefix else name
        if is_repeated and any(True for _ in child.parameters()):
            found[where] = child
        else:
            _find(where, child, found)


@contextlib.contextmanager
def marked(blocks: dict[str, nn.Module], living: LiveTensorTracker) -> Iterator[None]:
    """Books under place k + 1 what block k makes, under 0 what comes before the first, under AFTER what lies between
    and after them. The backward pass of what went forward inside goes through the same places the other way.
    `living.handed` grows to the most that a block returns.
    """
    living.at = 0
    hooks = []

    def enter(place: int, _: nn.Module, args: Any, kwargs: Any) -> None:
        for tensor in _tensors((args, kwargs)):
            _come_back(living, tensor, living.place_of(tensor))
        living.at = place

    def leave(place: int, _: nn.Module, __: Any, returned: Any) -> None:
        living.at = AFTER
        found = _tensors(returned)
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


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _come_back(living: LiveTensorTracker, tensor: Tensor, place: int) -> None:
    """With its gradient the backward pass is back where the tensor was made."""
    if tensor.requires_grad:
        tensor.register_hook(lambda _: setattr(living, "at", place))  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def recomputed(blocks: dict[str, nn.Module], how: Recomputation) -> Iterator[None]:
    """Inside, each block's forward pass is checkpointed."""
    if how is Recomputation.NONE:
        yield
        return
    contexts: dict[str, Any] = {}
    if how is Recomputation.SELECTIVE:
        own = frozenset(_storage(p) for block in blocks.values() for p in block.parameters())
        contexts["context_fn"] = partial(create_selective_checkpoint_contexts, partial(_policy, own))
    for block in blocks.values():
        block.forward = _checkpointed(block.forward, contexts)
    try:
        yield
    finally:
        for block in blocks.values():
            del block.forward  # the class has its own


def _checkpointed(forward: Callable[..., Any], contexts: dict[str, Any]) -> Callable[..., Any]:
    def again(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(
            forward,
            *args,
            use_reentrant=False,
            preserve_rng_state=False,  # of sizes alone: no number is repeated
            determinism_check="none",
            **contexts,
            **kwargs,
        )

    return again


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _policy(own: frozenset[int], _: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """`own`: storages of weights; experts' are applied by products of batches, as two activations are."""
    is_dear = operation in DEAR or (
        operation in BATCHED and any(_storage(each) in own for each in _tensors((args, kwargs)))
    )
    return CheckpointPolicy.MUST_SAVE if is_dear else CheckpointPolicy.PREFER_RECOMPUTE

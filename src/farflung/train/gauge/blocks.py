"""A module's repeated blocks: where they are, who of them is at work, and how they are computed again (T6, P2).

Blocks are what stands in an nn.ModuleList or nn.Sequential with others of its class, outermost first. Recomputed in
full, a block keeps its inputs (Chen et al. 2016, section 4.2). Selectively, it keeps what matrix products with weights,
convolutions and fused attention gave, and computes the rest again: element-wise steps, norms, softmax, products of two
activations. That is the part which is large to keep and cheap to repeat (Korthikanti et al. 2022, section 5), told by
operations and not by the author's layers.
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

from farflung.plan.parallel.shapes import Recompute
from farflung.train.gauge.living import Living

aten: Final = torch.ops.aten
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
def marked(blocks: dict[str, nn.Module], living: Living) -> Iterator[None]:
    """Books under place k + 1 what block k makes, under 0 what comes before the first, under -1 what lies between and
    after them. `living.handed` grows to the most that a block returns.
    """
    living.at = 0
    hooks = []

    def enter(place: int, *_: Any) -> None:
        living.at = place

    def leave(_: nn.Module, __: Any, returned: Any) -> None:
        living.at = -1
        sizes = (t.numel() * t.element_size() for t in tree_leaves(returned) if isinstance(t, Tensor))
        living.handed = max(living.handed, sum(sizes))

    for place, block in enumerate(blocks.values(), 1):
        hooks.append(block.register_forward_pre_hook(partial(enter, place)))
        hooks.append(block.register_forward_hook(leave))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def recomputed(blocks: dict[str, nn.Module], how: Recompute) -> Iterator[None]:
    """Inside, each block's forward pass is checkpointed."""
    if how is Recompute.NONE:
        yield
        return
    contexts: dict[str, Any] = {}
    if how is Recompute.SELECTIVE:
        contexts["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
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


def _policy(_: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in DEAR else CheckpointPolicy.PREFER_RECOMPUTE

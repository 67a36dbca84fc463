"""Finds a module's repeated blocks, and lets the backward pass compute them again instead of keeping them (T6, P2).

Blocks are what is in an nn.ModuleList or nn.Sequential with others of its class, outermost first. Recomputed in
full, a block keeps its inputs (Chen et al. 2016, section 4.2): that is `model.recompute = "blocks"`. Selectively, it
keeps what matrix products with weights, convolutions and fused attention gave, and computes the rest again:
element-wise steps, norms, softmax, products of two activations. The thought is Korthikanti et al.'s (2022, section 5:
repeat what is large to keep and cheap), the rule is not: theirs repeats the core of attention alone, and keeps norms,
GELU and masks.

A block that is computed again draws what it drew before (dropout), under the same autocast: torch.utils.checkpoint sets
both back. So a gradient has the bits that it has without, as long as a block follows from its inputs.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from farflung.plan.step_trace import Recomputation
from farflung.train import meta_kernels

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


def load() -> None:
    """Loads what torch.utils.checkpoint loads at its first use, before a model's pass is watched: torch's compiler,
    which takes 2 s and plan.worker_memory.RECOMPUTING.
    """
    meta_kernels.restore()  # it imports in a circle without them
    importlib.import_module("torch._dynamo")


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


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors of nested arguments or results."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@contextlib.contextmanager
def recomputed(blocks: dict[str, nn.Module], how: Recomputation, *, has_numbers: bool = True) -> Iterator[None]:
    """Inside, each block's forward pass is checkpointed. `has_numbers` False: of sizes alone, so that nothing is drawn
    again and nothing compared.
    """
    if how is Recomputation.NONE:
        yield
        return
    contexts: dict[str, Any] = {"preserve_rng_state": has_numbers}
    if not has_numbers:
        contexts["determinism_check"] = "none"
    if how is Recomputation.SELECTIVE:
        own = frozenset(_storage(p) for block in blocks.values() for p in block.parameters())
        contexts["context_fn"] = partial(create_selective_checkpoint_contexts, partial(_policy, own))
    own_forwards = [vars(block).get("forward") for block in blocks.values()]  # None: the class has it
    for block in blocks.values():
        block.forward = _checkpointed(block.forward, contexts)
    try:
        yield
    finally:
        for block, forward in zip(blocks.values(), own_forwards, strict=True):
            del block.forward
            if forward is not None:
                block.forward = forward


def _checkpointed(forward: Callable[..., Any], contexts: dict[str, Any]) -> Callable[..., Any]:
    def again(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **contexts, **kwargs)

    return again


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _policy(own: frozenset[int], _: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """`own`: storages of weights; experts' are applied by products of batches, as two activations are."""
    is_dear = operation in DEAR or (
        operation in BATCHED and any(_storage(each) in own for each in tensors_in((args, kwargs)))
    )
    return CheckpointPolicy.MUST_SAVE if is_dear else CheckpointPolicy.PREFER_RECOMPUTE

"""Names parameters as the bare model does, whatever it is wrapped in.

`torch.compile`, activation checkpointing, data parallelism and FSDP put a step of their own into the names of what they
wrap. Checkpoints, payloads and the hooks' memory leave it out, so that a wrapped and a bare model are one model.
"""

from __future__ import annotations

from typing import Final

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

WRAPPERS: Final = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})


def bare_path(module: nn.Module, path: str) -> str:
    """The path of a submodule or parameter of `module` without what wrappers add."""
    kept: list[str] = []
    here: nn.Module | None = module
    for step in path.split("."):
        is_parallel = step == "module" and isinstance(here, DataParallel | DistributedDataParallel)
        if step not in WRAPPERS and not is_parallel:
            kept.append(step)
        here = here._modules.get(step) if here is not None else None
    return ".".join(kept)


def named_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """All parameters by bare name, a tied one by the first of its names; by their full names where bare ones meet."""
    full = dict(module.named_parameters())
    bare = {bare_path(module, name): parameter for name, parameter in full.items()}
    return bare if len(bare) == len(full) else full

"""Converts the user's `group` argument to a group."""

from __future__ import annotations

import torch.distributed as dist

from farflung.sync.group import SoloGroup, SyncGroup
from farflung.sync.torch_distributed_group import TorchGroup


def resolve(group: SyncGroup | dist.ProcessGroup | None) -> SyncGroup:
    """None is torch.distributed's default group where one is initialised, else this process alone."""
    if group is None:
        return TorchGroup() if dist.is_available() and dist.is_initialized() else SoloGroup()
    return TorchGroup(group) if isinstance(group, dist.ProcessGroup) else group

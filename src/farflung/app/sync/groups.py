"""From what a person passes as `group` to a group."""

from __future__ import annotations

import torch.distributed as dist

from farflung.app.sync.distributed import TorchGroup
from farflung.app.sync.group import Group, Solo


def resolve(group: Group | dist.ProcessGroup | None) -> Group:
    """None is torch.distributed's default group where one is initialised, else this process alone."""
    if group is None:
        return TorchGroup() if dist.is_available() and dist.is_initialized() else Solo()
    return TorchGroup(group) if isinstance(group, dist.ProcessGroup) else group

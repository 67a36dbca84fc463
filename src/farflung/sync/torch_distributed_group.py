"""Implements a group over a torch.distributed process group.

Payloads travel as uint8 tensors after their lengths, and nothing is pickled.

Every process receives the same bytes from the same collective, so that all see the same broken payload, if there
is one, and leave it out alike. A lost process ends the group: that is how torch.distributed works.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId
from farflung.sync.group import GroupExchange, rank_id, too_few

_WORD = 8  # bytes of a length


class TorchGroup:
    """All members of `group` (None: the default group). Collective calls: every member makes the same ones."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self._size = dist.get_world_size(group)
        # a group for both kinds of tensors ("cpu:gloo,cuda:nccl") takes the CPU's
        self._device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")

    @property
    def ids(self) -> tuple[PeerId, ...]:
        """Ranks as ids: torch.distributed has no keys."""
        return tuple(map(rank_id, range(self._size)))

    def meeting(self) -> int:
        """See `SyncGroup.meeting`: collectives are matched by their order alone."""
        return 0

    def exchange(self, name: int, payload: bytes, bound: int, quorum: int) -> GroupExchange:
        """See `SyncGroup.exchange`. A length over the bound is never allocated; its rank is missing, for all."""
        try:
            lengths = self._gather(torch.tensor([len(payload)], dtype=torch.int64))
            sizes = [int(length) for length in lengths]
            missing = {
                rank: f"a payload of {size} bytes; the bound is {bound}"
                for rank, size in enumerate(sizes)
                if not 0 < size <= bound
            }
            longest = max((size for rank, size in enumerate(sizes) if rank not in missing), default=1)
            own = torch.zeros(longest, dtype=torch.uint8)
            own[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)[:longest]
            parts = self._gather(own)
        except RuntimeError as error:
            raise _failed(error) from error
        if self._size - len(missing) < quorum:
            raise too_few(self._size - len(missing), quorum, missing)
        payloads = {
            rank: parts[rank][: sizes[rank]].numpy().tobytes() for rank in range(self._size) if rank not in missing
        }
        moved = (self._size - 1) * (longest + _WORD)
        return GroupExchange(payloads, missing, moved, moved)

    def forget(self, channel: int) -> None:
        """See `SyncGroup.forget`."""

    def dedicated(self) -> TorchGroup:
        """A new gloo group of the same processes: collectives of two threads must not meet in one group."""
        ranks = dist.get_process_group_ranks(self._group) if self._group else list(range(self._size))
        made = dist.new_group(ranks, backend="gloo")
        assert isinstance(made, dist.ProcessGroup)
        return TorchGroup(made)

    def close(self) -> None:
        """The caller owns the process group."""

    def _gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        own = own.to(self._device)
        found = [torch.empty_like(own) for _ in range(self._size)]
        dist.all_gather(found, own, group=self._group)
        return [part.cpu() for part in found]


def _failed(error: RuntimeError) -> NetworkError:
    return NetworkError(
        "FF-SYNC-011",
        "torch.distributed lost a process",
        cause=str(error).partition("\n")[0][:300],
        hint="start all processes again from the last checkpoint",
    )

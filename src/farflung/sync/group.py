"""Defines the group of peers that train together: it delivers the same payloads of a round to all members.

Three groups are enough: one peer alone (`Solo`), a torch.distributed process group (`sync.torch_distributed_group`) and
a mesh of farflung's own connections (`sync.mesh_group`). What a group delivers is bytes from elsewhere: it checks their
length, the codec checks the rest.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from farflung.core.errors import NetworkError
from farflung.core.ids import ID_BYTES, PeerId


class GroupExchange(NamedTuple):
    """One exchange: payloads by rank (one's own among them), why others are missing, bytes sent and received."""

    payloads: dict[int, bytes]
    missing: dict[int, str]
    bytes_up: int
    bytes_down: int


class SyncGroup(Protocol):
    """Members in a fixed order; ranks count from 0. `ids` are what payloads name as their makers."""

    @property
    def rank(self) -> int:
        """One's own place."""

    @property
    def ids(self) -> tuple[PeerId, ...]:
        """The members' ids by rank."""

    def meeting(self) -> int:
        """The name of the next meeting of objects: 0, 1, 2 ... (sync.exchange_channel)."""

    def exchange(self, name: int, payload: bytes, bound: int, quorum: int) -> GroupExchange:
        """Sends `payload` to all and returns what all sent under `name`; every member gets the same payloads.

        Blocks. A name is used once, and those of a channel one after the other (sync.exchange_channel). `bound`: bytes
        of the longest payload that anybody may send. Raises NetworkError: FF-SYNC-010 fewer than `quorum` payloads are
        there, FF-SYNC-011 the group is broken or closed.
        """

    def forget(self, channel: int) -> None:
        """The object of a channel is gone: nothing of it need be held for long."""

    def dedicated(self) -> SyncGroup:
        """A group of the same members whose exchanges may run in a thread beside the caller's own traffic."""

    def close(self) -> None:
        """Gives back what the group holds."""


def rank_id(rank: int) -> PeerId:
    """The id of a member that has no key: its rank, big-endian."""
    return PeerId(rank.to_bytes(ID_BYTES, "big"))


def too_few(there: int, quorum: int, missing: dict[int, str]) -> NetworkError:
    """FF-SYNC-010, the same at every member."""
    who = "; ".join(f"rank {rank}: {why}" for rank, why in sorted(missing.items()))
    return NetworkError(
        "FF-SYNC-010",
        f"{there} contributions came, {quorum} are needed",
        cause=who[:400] or "the others are gone",
        hint="start the missing peers again from the last checkpoint, or lower min_quorum",
    )


class SoloGroup:
    """One peer alone: its payload comes back, and nothing is sent."""

    rank = 0
    ids = (rank_id(0),)

    def meeting(self) -> int:
        """See `SyncGroup.meeting`."""
        return 0

    def exchange(self, name: int, payload: bytes, bound: int, quorum: int) -> GroupExchange:
        """See `SyncGroup.exchange`."""
        return GroupExchange({0: payload}, {}, 0, 0)

    def forget(self, channel: int) -> None:
        """See `SyncGroup.forget`."""

    def dedicated(self) -> SoloGroup:
        """See `SyncGroup.dedicated`."""
        return self

    def close(self) -> None:
        """See `SyncGroup.close`."""

"""Names the exchanges of one object of a group, and compares the objects' settings when they meet.

The n-th object that begins to exchange at one peer meets the n-th of every other peer: it tells its settings, and
where two differ all peers stop before the first round. Their channel's exchanges are then numbered as they are called.
So a group may carry several objects, one after the other or in turns, and a number is never used twice.

A meeting n has the name n; exchange k of its channel has the name (n + 1) 2^32 + k. Before a payload stands what it is
for (`round 3`, `check() of round 3`): one byte of length, then text. Peers that are at different calls are told so.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from farflung.core import limits
from farflung.core.errors import ProtocolError, UsageError
from farflung.core.ids import PeerId, short
from farflung.sync.group import GroupExchange, SyncGroup

CHANNEL_BITS: Final = 32
TERMS_BYTES: Final = 64 * limits.KIB  # of the settings of one object
_LABEL_BYTES: Final = 100  # of the words before a payload
_SHOWN: Final = 4  # differences that an error lists


class ExchangeChannel:
    """The exchanges of one object. `is_dedicated`: they run in a thread beside the caller's own traffic."""

    def __init__(self, group: SyncGroup, *, is_dedicated: bool = False) -> None:
        self._group, self._is_dedicated = group, is_dedicated
        self._next = 0
        self._met_bytes = 0, 0  # sent and received before the first exchange, which counts them
        self.is_met = False
        self.rank, self.ids = group.rank, group.ids

    def meet(self, terms: Mapping[str, Any], quorum: int) -> None:
        """Compares settings with all peers, once.

        Raises UsageError FF-SYNC-018 (settings differ), NetworkError FF-SYNC-010, FF-SYNC-011.
        """
        meeting = self._group.meeting()
        own = {name: str(value) for name, value in terms.items()}
        found = self._group.exchange(meeting, msgspec.json.encode(own), TERMS_BYTES, quorum)
        self._met_bytes = found.bytes_up, found.bytes_down
        compare(own, self.rank, self.ids, found.payloads)
        if self._is_dedicated:
            self._group = self._group.dedicated()
        self._next = (meeting + 1) << CHANNEL_BITS
        weakref.finalize(self, self._group.forget, meeting + 1).atexit = False
        self.is_met = True

    def exchange(self, label: str, payload: bytes, bound: int, quorum: int) -> GroupExchange:
        """Sends `payload` to all and returns what all sent at the same call; `label` says what it is for.

        `bound`: bytes of the longest payload that anybody may send. Raises NetworkError FF-SYNC-010, FF-SYNC-011;
        ProtocolError FF-SYNC-019 (a peer is at another call).
        """
        name, self._next = self._next, self._next + 1
        head = label.encode()[:_LABEL_BYTES]
        sent = bytes([len(head)]) + head + payload
        found = self._group.exchange(name, sent, 1 + _LABEL_BYTES + bound, quorum)
        others = {rank: _label(data) for rank, data in found.payloads.items()}
        own = _label(sent)
        apart = {rank: other for rank, other in others.items() if other != own}
        if apart:
            raise _apart(own, self.rank, apart)
        (up, down), self._met_bytes = self._met_bytes, (0, 0)
        return found._replace(
            payloads={rank: data[1 + len(head) :] for rank, data in found.payloads.items()},
            bytes_up=found.bytes_up + up,
            bytes_down=found.bytes_down + down,
        )


def compare(own: Mapping[str, str], rank: int, ids: tuple[PeerId, ...], payloads: Mapping[int, bytes]) -> None:
    """Raises UsageError FF-SYNC-018, with the setting, both values and the peer, where settings differ."""
    differences: list[str] = []
    apart: list[int] = []
    for other, data in sorted(payloads.items()):
        if other == rank:
            continue
        try:
            terms = msgspec.json.decode(data, type=dict[str, str])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            terms = {"settings": "unreadable"}
        names = [*own, *(name for name in terms if name not in own)]
        unlike = [name for name in names if terms.get(name) != own.get(name)]
        apart += [other] if unlike else []
        differences += [
            f"{name} is {terms.get(name, 'not told')[:80]} at rank {other} ({short(ids[other])}), "
            f"{own.get(name, 'not told')[:80]} here (rank {rank})"
            for name in unlike
        ]
    if apart:
        more = len(differences) - _SHOWN
        raise UsageError(
            "FF-SYNC-018",
            f"settings of rank {', '.join(map(str, apart))} differ from those of this peer",
            cause="; ".join(differences[:_SHOWN]) + (f"; and {more} more" if more > 0 else ""),
            hint="give all peers of the group the same settings, the same model and the same farflung, "
            "and make and use their objects in the same order",
        )


def _label(data: bytes) -> str:
    length = data[0] if data else 0
    return data[1 : 1 + min(length, _LABEL_BYTES)].decode("utf-8", "replace")


def _apart(label: str, rank: int, others: Mapping[int, str]) -> ProtocolError:
    who = "; ".join(f"rank {other} at {text!r}" for other, text in sorted(others.items()))
    return different_calls(f"{who}; this peer (rank {rank}) is at {label!r}")


def different_calls(cause: str) -> ProtocolError:
    """FF-SYNC-019."""
    return ProtocolError(
        "FF-SYNC-019",
        "the peers of the group are at different calls",
        cause=cause[:400],
        hint="call share(), step() and check() as often and in the same order at all peers, "
        "or load the same checkpoint everywhere",
    )

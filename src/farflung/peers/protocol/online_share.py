"""Defines how a seat counts which share of the last seven days a node's advertisement was fresh, in bounded memory.

Time is cut into slots of ten minutes, the longest life of an advertisement. A node is online in each slot in which it
published; a slot counts where the seat heard from any node, so that a seat that was down makes nobody absent. A node
takes one integer of 1008 bits, and `NODES` of them are kept: the one that was away longest makes room. The share is
the seat's own word and enters no root.
"""

from __future__ import annotations

from typing import Final

from farflung.core.codec import Wire
from farflung.core.errors import FarflungError
from farflung.core.file_header import FileFormat, file_of, value_of
from farflung.core.ids import ID_BYTES, PeerId

ONLINE: Final = "directory.online"
SLOT_SECONDS: Final = 600
SLOTS: Final = 7 * 24 * 6
NODES: Final = 4096
_BYTES: Final = (SLOTS + 7) // 8
_ALL: Final = (1 << SLOTS) - 1
_FORM: Final = FileFormat("online-share", remedy="delete it: a seat counts anew")
SAVED_BYTES: Final = NODES * (ID_BYTES + _BYTES + 24) + 1024


class OnlineShare(Wire, frozen=True):
    """One node's: in `online` of `counted` slots, the first of which began `seconds` ago."""

    node: PeerId
    online: int
    counted: int
    seconds: int


class OnlineListing(Wire, frozen=True):
    """Of all nodes that a seat remembers, ascending."""

    shares: tuple[OnlineShare, ...]


class _SavedNode(Wire, frozen=True):
    """A node: the slot in which it was seen first, the newest one that its bits speak of, and the bits."""

    node: PeerId
    first: int
    newest: int
    bits: bytes


class _SavedRecord(Wire, frozen=True):
    """All that a seat remembers; the seat itself has an empty key."""

    nodes: tuple[_SavedNode, ...]


class _Presence:
    """Slots of one node: bit i is the slot `newest` - i."""

    def __init__(self, first: int, newest: int, bits: int) -> None:
        self.first, self.newest, self.bits = first, newest, bits

    def mark(self, slot: int) -> bool:
        """Whether that is news; a slot of the past is none: a clock was set back."""
        if slot <= self.newest and self.bits:
            return False
        self.bits = (self.bits << min(slot - self.newest, SLOTS) | 1) & _ALL if self.bits else 1
        self.newest = slot
        return True

    def since(self, slot: int) -> int:
        """The bits as seen from a later slot."""
        return self.bits << min(max(slot - self.newest, 0), SLOTS) & _ALL


class OnlineRecord:
    """One seat's."""

    def __init__(self, saved: bytes = b"") -> None:
        """`saved`: what `save` gave. Raises ProtocolError, VersionError FF-CORE-095."""
        record = value_of(_FORM, saved, _SavedRecord, SAVED_BYTES) if saved else _SavedRecord(())
        self._of = {
            each.node: _Presence(each.first, each.newest, int.from_bytes(each.bits, "little") & _ALL)
            for each in record.nodes[: NODES + 1]
        }

    def mark(self, node: PeerId, now: float) -> bool:
        """A node published at `now`, seconds since 1970. Whether a slot began with it: it is time to save."""
        slot = int(now) // SLOT_SECONDS
        own, seat = self._of.get(node), self._of.setdefault(PeerId(b""), _Presence(slot, slot, 0))
        if own is None:
            if len(self._of) > NODES:
                del self._of[min((key for key in self._of if key), key=lambda key: self._of[key].newest)]
            own = self._of[node] = _Presence(slot, slot, 0)
        own.mark(slot)
        return seat.mark(slot)

    def listing(self, now: float) -> OnlineListing:
        """The share of each node in the last seven days, or since it was first seen."""
        slot, seat = int(now) // SLOT_SECONDS, self._of.get(PeerId(b""))
        if seat is None:
            return OnlineListing(())
        shares = []
        for node in sorted(key for key in self._of if key):
            own = self._of[node]
            known = min(slot - own.first + 1, SLOTS)
            counted = seat.since(slot) & ((1 << max(known, 0)) - 1)
            online = (own.since(slot) & counted).bit_count()
            if counted:
                begun = max(own.first, slot - SLOTS + 1) * SLOT_SECONDS
                shares.append(OnlineShare(node, online, counted.bit_count(), max(0, int(now) - begun)))
        return OnlineListing(tuple(shares))

    def save(self) -> bytes:
        """All of it, for the next start."""
        kept = (
            _SavedNode(node, each.first, each.newest, each.bits.to_bytes(_BYTES, "little"))
            for node, each in sorted(self._of.items())
        )
        return file_of(_FORM, _SavedRecord(tuple(kept)))


def read_saved(data: bytes) -> OnlineRecord:
    """What was saved; an empty record where that is damaged, or of another version."""
    try:
        return OnlineRecord(data)
    except FarflungError:
        return OnlineRecord()

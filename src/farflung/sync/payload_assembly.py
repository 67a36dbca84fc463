"""Assembles the payloads of each exchange from pieces, and checks every length before allocating memory for it.

A window of exchanges is open: a peer that is ahead may send the next ones while this one still computes; one that is
behind finds the last ones. Outside of the window a piece is refused, so memory is at most
WINDOW * members * bound.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.codec import Wire
from farflung.core.crypto import NS_PAYLOAD, digest
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash

PIECE: Final = limits.BULK_BYTES // 2
BEHIND: Final = 2  # exchanges that are kept for those who come late
AHEAD: Final = 4  # exchanges of which pieces are taken before this peer is there (two rounds of two phases)


class PayloadPiece(Wire, frozen=True):
    """Bytes `at` .. of a payload of `total` bytes; `at` is a multiple of PIECE, `data` is PIECE long or the rest."""

    tag: int
    total: int
    at: int
    data: bytes


class ExchangeDecision(Wire, frozen=True):
    """What the first member decided of an exchange: rank and hash of what counts, and why others do not."""

    tag: int
    accepted: tuple[tuple[int, Hash], ...]
    missing: tuple[tuple[int, str], ...]


class PieceRequest(Wire, frozen=True):
    """Asks for the piece at `at` of the payload of `rank`."""

    tag: int
    rank: int
    at: int


class _PartialPayload:
    def __init__(self, total: int) -> None:
        self.data = bytearray(total)
        self.open = set(range(0, total, PIECE))


class ReceivedPayload(NamedTuple):
    """A whole payload and its hash."""

    data: bytes
    hash: Hash


def hold(data: bytes) -> ReceivedPayload:
    """A payload with its hash."""
    return ReceivedPayload(data, digest(NS_PAYLOAD, data))


class PayloadAssembly:
    """Payloads by tag and rank."""

    def __init__(self) -> None:
        self.bound = 0  # of one payload; 0 until the first exchange
        self.tag = 0  # the exchange that this peer is in, or the next one
        self._open: dict[tuple[int, int], _PartialPayload] = {}
        self._whole: dict[tuple[int, int], ReceivedPayload] = {}

    def begin(self, tag: int, bound: int) -> None:
        """This peer is at `tag` now: what lies far behind is forgotten."""
        self.tag, self.bound = tag, bound
        tags = sorted({key[0] for key in self._whole if key[0] < tag})[-BEHIND:]
        oldest = tags[0] if tags else tag
        for table in (self._open, self._whole):
            for key in [key for key in table if key[0] < oldest]:
                del table[key]

    def put(self, rank: int, data: bytes, tag: int) -> ReceivedPayload:
        """A whole payload."""
        held = self._whole[tag, rank] = hold(data)
        self._open.pop((tag, rank), None)
        return held

    def get(self, tag: int, rank: int) -> ReceivedPayload | None:
        """A payload, when it is whole."""
        return self._whole.get((tag, rank))

    def left(self, tag: int, rank: int) -> int:
        """ChunkedBytes of a payload that have not come; -1 before the first one."""
        parcel = self._open.get((tag, rank))
        return len(parcel.open) if parcel else -1

    def add(self, rank: int, piece: PayloadPiece) -> bool:
        """Takes a piece; True when its payload is whole by it. A piece that is there already is ignored.

        Raises ProtocolError FF-SYNC-014: an exchange that is over or far ahead, a payload longer than the
        codec's bound, a piece that does not lie where pieces lie.
        """
        if not self.tag - AHEAD <= piece.tag <= self.tag + AHEAD:
            raise refuse_piece(f"exchange {piece.tag}, while this peer is at {self.tag}")
        if not 0 < piece.total <= self.bound:
            raise refuse_piece(f"a payload of {piece.total} bytes; the bound is {self.bound}")
        end = min(piece.at + PIECE, piece.total)
        if piece.at < 0 or piece.at % PIECE or piece.at >= piece.total or len(piece.data) != end - piece.at:
            raise refuse_piece(f"{len(piece.data)} bytes at {piece.at} of {piece.total}")
        key = (piece.tag, rank)
        if key in self._whole:
            return False
        parcel = self._open.get(key)
        if parcel is None or len(parcel.data) != piece.total:  # another length: its maker began anew
            parcel = self._open[key] = _PartialPayload(piece.total)
        parcel.data[piece.at : end] = piece.data
        parcel.open.discard(piece.at)
        if parcel.open:
            return False
        self.put(rank, bytes(parcel.data), piece.tag)
        return True


def refuse_piece(cause: str) -> ProtocolError:
    """FF-SYNC-014."""
    return ProtocolError(
        "FF-SYNC-014",
        "a piece of a payload is refused",
        cause=cause,
        hint="check that all peers run the same program with the same settings",
    )

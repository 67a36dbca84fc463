"""Computes the start of each token window of a step's batch.

It is a pure function of seed, round, member, step and row (V2: spec first).

Keyed BLAKE3 as a PRF, integers only: equal on every machine, independent of all other draws, and known to an auditor
before the work, and to the law. A window starts at any place with equal probability (bias < 2^-30).
"""

from __future__ import annotations

from farflung.core.crypto import NS_DATA_ORDER, derive, digest

_DRAW = 8  # bytes of one


def starts(seed: int, round: int, member: int, step: int, rows: int, places: int, first: int = 0) -> list[int]:
    """Where `rows` windows from row `first` on start, in [0, places); row r depends on no other."""
    key = digest(NS_DATA_ORDER, seed.to_bytes(8, "little"))
    about = b"".join(n.to_bytes(8, "little") for n in (round, member, step))
    raw = derive(NS_DATA_ORDER, key, about, length=_DRAW * rows, seek=_DRAW * first)
    return [(int.from_bytes(raw[at : at + _DRAW], "little") * places) >> 64 for at in range(0, len(raw), _DRAW)]

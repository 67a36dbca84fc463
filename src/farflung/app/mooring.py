"""Where a node that nobody can reach is known: its relays, as it was told of them."""

from __future__ import annotations

from collections.abc import Iterable

from farflung.app.leash import Report
from farflung.core.ids import PeerId
from farflung.net.endpoints import Place


def places_of(relays: Iterable[Report]) -> tuple[Place, ...]:
    """Relays as a supervisor tells of them."""
    return tuple(Place(str(r["host"]), int(r["port"]), PeerId(bytes.fromhex(r["peer"]))) for r in relays)

"""Where a node is reached: it listens, or stays at the best two of the relays that it was told of, and says so."""

from __future__ import annotations

from collections.abc import Iterable

from farflung.app.directory import Presence
from farflung.app.leash import Report
from farflung.app.neighbours import Neighbourhood
from farflung.core.crypto import SigningKey
from farflung.core.ids import PeerId
from farflung.core.io.tasks import Tasks
from farflung.net.endpoints import Place
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.mooring import Mooring
from farflung.net.io.whereabouts import Whereabouts


def places_of(relays: Iterable[Report]) -> tuple[Place, ...]:
    """Relays as a supervisor tells of them."""
    return tuple(Place(str(r["host"]), int(r["port"]), PeerId(bytes.fromhex(r["peer"]))) for r in relays)


class Quarters:
    """One node's. `account` signs what it says of itself."""

    def __init__(self, account: SigningKey, endpoint: Endpoint, roads: Neighbourhood) -> None:
        self._account, self._endpoint, self._roads = account, endpoint, roads
        self._whereabouts = Whereabouts(endpoint, roads)
        self._mooring: Mooring | None = None
        self._telling = Tasks()

    async def open(self, relays: Iterable[Report]) -> tuple[Place, ...]:
        """Listens, or where nobody can reach this machine stays at relays; where to find it, for the directory."""
        places = places_of(relays)
        if not places:
            return (Place(*await self._endpoint.start()),)
        self._mooring = Mooring(self._endpoint, places)
        await self._endpoint.attached()
        await self._roads.settle()
        return self._mooring.places

    def follow(self, presence: Presence) -> None:
        """From now on directory and peers are told of other relays."""

        def changed(places: tuple[Place, ...]) -> None:
            presence.move(places)
            self._telling.begin(self._whereabouts.tell(self._account, places))

        if self._mooring is not None:
            self._mooring.on_change = changed

    async def close(self) -> None:
        """Stays where it is until the endpoint is closed."""
        if self._mooring is not None:
            await self._mooring.close()
        await self._telling.close()

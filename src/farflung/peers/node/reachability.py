"""Makes a node reachable: it listens, or registers at the two best known relays, and publishes its address."""

from __future__ import annotations

from collections.abc import Iterable

from farflung.core.crypto import SigningKey
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.address_updates import AddressUpdates
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay_selection import RelaySelector
from farflung.peers.ledger_client.connect import places_of
from farflung.peers.node.lan_discovery import LanPaths
from farflung.peers.process.config import ListenerConfig
from farflung.peers.protocol.directory import DirectoryPublisher


class Reachability:
    """One node's. `account` signs what it says of itself."""

    def __init__(self, account: SigningKey, endpoint: Endpoint, path_manager: LanPaths) -> None:
        self._account, self._endpoint, self._path_manager = account, endpoint, path_manager
        self._whereabouts = AddressUpdates(endpoint, path_manager)
        self._mooring: RelaySelector | None = None
        self._telling = OwnedTasks()

    async def open(self, relays: Iterable[ListenerConfig], host: str = "") -> tuple[EndpointAddress, ...]:
        """Listens, or where nobody can reach this machine stays at relays; where to find it, for the directory.

        `host`: where its owner says that it can be reached. Asked again after a NetworkError it goes on.
        """
        places = places_of(relays)
        if host or not places:
            own, port = await self._endpoint.start()
            return (EndpointAddress(host or own, port),)
        if self._mooring is None:
            self._mooring = RelaySelector(self._endpoint, places)
        await self._endpoint.attached()
        await self._path_manager.settle()
        return self._mooring.places

    def follow(self, presence: DirectoryPublisher) -> None:
        """From now on directory and peers are told of other relays."""

        def changed(places: tuple[EndpointAddress, ...]) -> None:
            presence.move(places)
            self._telling.begin(self._whereabouts.tell(self._account, places))

        if self._mooring is not None:
            self._mooring.on_change = changed

    async def close(self) -> None:
        """Stays where it is until the endpoint is closed."""
        if self._mooring is not None:
            await self._mooring.close()
        await self._telling.close()

"""A host of the LAN that answers for our name, as any can, costs a node its multicast DNS and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from farflung.core.crypto import local_key
from farflung.core.errors import NetworkError
from farflung.net.certificates import Credential
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.mdns import MdnsDiscovery
from farflung.peers.node.lan_discovery import LanPaths

zeroconf = pytest.importorskip("zeroconf", reason="pip install 'farflung[lan]'")
import zeroconf.asyncio as spoken  # noqa: E402 - only where it is installed

HOME = "192.168.1.4"
PEER = local_key(3, "peer").public
FAULTS = [zeroconf.NonUniqueNameException, zeroconf.NotRunningException, zeroconf.EventLoopBlocked, OSError]


class Contested:
    """zeroconf on a LAN where registering a service fails."""

    fault: Any = zeroconf.Error
    open: int = 0

    def __init__(self, **_: Any) -> None:
        self.zeroconf = self
        Contested.open += 1

    async def async_register_service(self, _: Any) -> None:
        raise Contested.fault

    async def async_close(self) -> None:
        Contested.open -= 1
        raise zeroconf.NotRunningException  # as when it never ran: no reason to die either


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.__name__)
def contested(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Contested, "fault", request.param)
    monkeypatch.setattr(Contested, "open", 0)
    monkeypatch.setattr(spoken, "AsyncZeroconf", Contested)
    monkeypatch.setattr(spoken, "AsyncServiceBrowser", lambda *_, **__: None)


async def _serve(_: Connection, __: str, body: bytes) -> bytes:
    return body


@pytest.mark.usefixtures("contested")
def test_a_lan_on_which_our_name_is_contested_is_an_impossible_one() -> None:
    async def story() -> None:
        lan = MdnsDiscovery(local_key(3, "own").public, [HOME], 4000, [HOME])
        with pytest.raises(NetworkError, match="FF-NET-153"):
            await lan.start()
        assert Contested.open == 0
        await lan.close()  # once more does no harm
        assert Contested.open == 0

    asyncio.run(story())


@pytest.mark.usefixtures("contested")
def test_a_node_whose_name_is_contested_goes_on_without_multicast_dns() -> None:
    async def story() -> None:
        endpoint = Endpoint(Credential(local_key(3, "own")), _serve, ByteCounter())
        path_manager = LanPaths(endpoint, HOME)
        await path_manager.settle()
        assert Contested.open == 0
        path_manager.learn(PEER, [EndpointAddress("relay.example", 4510)])
        assert next(path.place.host for path in path_manager._peers[PEER].state.paths) == "relay.example"
        await path_manager.close()
        await endpoint.close()

    asyncio.run(story())

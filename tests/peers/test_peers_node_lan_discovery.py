"""When a node looks at its LAN, and that what the LAN says comes before what a record names, and goes with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from role_configs import QuietChannel, node_config

from farflung.core.crypto import local_key
from farflung.core.ids import PeerId
from farflung.net.certificates import Credential
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.net.io.listen_errors import LOOPBACK
from farflung.net.io.mdns import MdnsDiscovery
from farflung.peers.node import lan_discovery
from farflung.peers.node.lan_discovery import LanPaths, lan_address, open_endpoint, own_address
from farflung.peers.process.config import HexId, ListenerConfig

FAR = ListenerConfig(HexId(bytes(32)), "relay.example", 4510)
HERE = ListenerConfig(HexId(bytes(32)), LOOPBACK, 4510)
RELAYED, NEAR = (EndpointAddress("relay.example", 4510, PeerId(b"r" * 32)), EndpointAddress("192.168.1.7", 4000))
PEER = local_key(3, "peer").public


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer with the extra, in a home."""
    monkeypatch.setattr(lan_discovery, "why_not", lambda: "")
    monkeypatch.setattr(lan_discovery, "own_address", lambda host, port: "192.168.1.4")
    monkeypatch.delenv("FARFLUNG_LAN", raising=False)


async def _serve(_: Connection, method: str, body: bytes) -> bytes:
    return body


def test_a_node_in_a_home_is_on_its_lan_and_one_on_loopback_is_not() -> None:
    assert lan_address([FAR]) == lan_address([HERE, FAR]) == "192.168.1.4"
    assert lan_address([HERE]) == lan_address([ListenerConfig(HERE.peer, "localhost", 4510)]) == lan_address([]) == ""


def test_without_the_extra_or_by_the_owners_word_nothing_listens_on_the_lan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARFLUNG_LAN", "0")
    assert lan_address([FAR]) == ""
    monkeypatch.delenv("FARFLUNG_LAN")
    monkeypatch.setattr(lan_discovery, "why_not", lambda: "the library zeroconf is not installed")
    assert lan_address([FAR]) == ""


@pytest.mark.parametrize("address", ["", "8.8.8.8", "127.0.0.1"])
def test_only_an_address_of_a_homes_own_is_announced(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(lan_discovery, "own_address", lambda host, port: address)
    assert lan_address([FAR]) == ""


def test_the_own_address_is_that_of_the_way_there() -> None:
    assert own_address(LOOPBACK, 9) == LOOPBACK
    assert own_address("no such name.invalid", 9) == ""


def test_what_the_lan_says_is_tried_first_and_forgotten_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[EndpointAddress] = []
    monkeypatch.setattr(MdnsDiscovery, "places", lambda _self, peer: tuple(said) if peer == PEER else ())

    async def story() -> None:
        own = Credential(local_key(3, "own"))
        config = node_config(own.node, tmp_path, relays=(HERE,))
        endpoint, path_manager = open_endpoint(config, _serve, ByteCounter(), QuietChannel())
        assert isinstance(path_manager, LanPaths)
        await path_manager.settle()  # on loopback: nothing listens, nothing is announced
        path_manager.learn(PEER, [RELAYED])
        known = path_manager._peers[PEER]
        assert known.state.paths[0].place == RELAYED
        path_manager._lan = MdnsDiscovery(own.account, [])
        said.append(NEAR)
        path_manager._heard(PEER)
        assert [path.place for path in known.state.paths][:2] == [NEAR, RELAYED]
        path_manager.learn(PEER, [RELAYED])  # told once more where it is: the LAN still counts
        assert [path.place for path in known.state.paths][:2] == [NEAR, RELAYED]
        said.clear()
        path_manager._heard(PEER)
        assert NEAR not in [path.place for path in known.state.paths]
        path_manager._heard(local_key(3, "stranger").public)
        assert list(path_manager._peers) == [PEER]  # who is of no interest is not kept
        await path_manager.close()
        await endpoint.close()

    asyncio.run(story())

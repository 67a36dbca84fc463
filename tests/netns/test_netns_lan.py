"""Two hosts of one home find each other by real multicast; what a stranger shouts there is a hint and bounded."""

from __future__ import annotations

import subprocess
import sys

import pytest
from netns_programs import said

from farflung.local.netlab import EmulatedHome, NatType, NetworkLab
from farflung.local.netlab import why_not as no_laboratory
from farflung.net.io.mdns import is_candidate, why_not

PEER = """
import asyncio, json, sys
from farflung.core.crypto import local_key
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.io.mdns import MdnsDiscovery

role, host = sys.argv[1:3]
A, B = local_key(9, "a"), local_key(9, "b")

async def handle(connection, method, body):
    return body

async def found(lan, key, wanted=True):
    async with asyncio.timeout(40):
        while bool(places := lan.places(key)) != wanted:
            await asyncio.sleep(0.05)
    return places

async def main():
    if role == "listen":
        b = Endpoint(B, handle, ByteCounter(), listen=ListenConfig(host, allow_remote=True))
        _, port = await b.start()
        lan = MdnsDiscovery(B.public, [host], port, [host])
        await lan.start()
        print(json.dumps({"port": port}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await lan.close()
        await b.close()
        return
    lan = MdnsDiscovery(A.public, [host, "127.0.0.1"])
    await lan.start()
    (place,) = await found(lan, B.public)
    a = Endpoint(A, handle, ByteCounter())
    connection = await a.dial(B.public, place.host, place.port)
    print(json.dumps({"place": [place.host, place.port], "peer": connection.peer == B.public,
        "us": [list(each) for each in lan.places(A.public)]}), flush=True)
    await found(lan, B.public, wanted=False)  # it has said good-bye
    print(json.dumps({"gone": True}), flush=True)
    await a.close()
    await lan.close()

asyncio.run(main())
"""


@pytest.mark.netns
@pytest.mark.extra(name="lan")
def test_two_hosts_of_one_home_find_each_other_without_anybody_else() -> None:
    if why := no_laboratory() or why_not():
        pytest.skip(why)
    with NetworkLab([EmulatedHome(hosts=2)]) as laboratory:
        started = []
        try:
            for who, role in (("h1.2", "listen"), ("h1", "find")):
                command = [*laboratory.way(who), sys.executable, "-c", PEER, role, laboratory.address(who)]
                started.append(
                    subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                    )
                )
            there, here = started
            port = said(there)["port"]
            assert said(here) == {"place": [laboratory.address("h1.2"), port], "peer": True, "us": []}
            before = laboratory.counters(1)
            assert there.stdin is not None
            there.stdin.write("\n")
            there.stdin.flush()
            assert said(here) == {"gone": True}
            assert laboratory.counters(1)[0].bytes == before[0].bytes  # nothing of it leaves the home
        finally:
            for process in started:
                process.kill()
                process.communicate()


@pytest.mark.parametrize(
    ("host", "may"),
    [
        ("192.168.1.7", True),
        ("10.0.0.1", True),
        ("169.254.3.4", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.251", False),
        ("8.8.8.8", False),
        ("240.0.0.1", False),
        ("fe80::1", False),
        ("router.local", False),
    ],
)
def test_a_hint_leads_nowhere_but_into_the_home(host: str, may: bool) -> None:
    assert is_candidate(host) is may


NODE = """
import asyncio, json, sys, tempfile
from pathlib import Path
from types import SimpleNamespace
from farflung.peers.node.lan_discovery import open_endpoint
from farflung.core.crypto import local_key
from farflung.net.certificates import Credential
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.relay import RelayServer
from farflung.net.io.tcp_listener import ListenConfig

role, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
A, B, R = (local_key(9, name) for name in ("a", "b", "relay"))

async def echo(connection, method, body):
    return body

def say(**facts):
    print(json.dumps(facts), flush=True)

async def relay():
    server = RelayServer(R, listen=ListenConfig(host, allow_remote=True))
    say(port=(await server.start())[1])
    await asyncio.to_thread(sys.stdin.readline)
    await server.close()

async def node():
    own, relays = Credential(A if role == "find" else B), [SimpleNamespace(host=host, port=port, peer=R.public)]
    config = SimpleNamespace(credential=own, relays=relays, port=0, host="", folder=Path(tempfile.mkdtemp()))
    channel = SimpleNamespace(report=lambda kind, **facts: None)
    endpoint, path_manager = open_endpoint(config, echo, ByteCounter(), channel)
    endpoint.attach(R.public, host, port)
    await endpoint.attached()
    await path_manager.settle()
    say(up=True)
    if role == "stay":
        await asyncio.to_thread(sys.stdin.readline)
    else:
        place = EndpointAddress(host, port, R.public)  # all that its record names
        path_manager.learn(B.public, [place])
        first = await path_manager.connection(B.public)
        async with asyncio.timeout(60):
            is_near = lambda way: way.place.host.startswith("192.168.")
            while not (near := list(filter(is_near, path_manager.ways(B.public)))):
                await asyncio.sleep(0.1)
                path_manager.learn(B.public, [place])  # as for each request
        said = (await near[0].call("x", b"hello")).decode()
        say(way=near[0].way, host=near[0].place.host, said=said, first=first.way)
    await path_manager.close()
    await endpoint.close()

asyncio.run(relay() if role == "relay" else node())
"""


@pytest.mark.netns
@pytest.mark.extra(name="lan")
def test_two_nodes_of_one_home_meet_on_its_lan_though_their_records_name_a_relay_alone() -> None:
    if why := no_laboratory() or why_not():
        pytest.skip(why)
    with NetworkLab([EmulatedHome(hosts=2, nat=NatType.SYMMETRIC)]) as laboratory:
        started: list[subprocess.Popen[str]] = []

        def start(who: str, role: str, port: int) -> subprocess.Popen[str]:
            command = [*laboratory.way(who), sys.executable, "-c", NODE, role, laboratory.address("s1"), str(port)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            started.append(subprocess.Popen(command, text=True, **pipes))
            return started[-1]

        try:
            port = said(start("s1", "relay", 0))["port"]
            assert said(start("h1.2", "stay", port)) == {"up": True}
            finder = start("h1", "find", port)
            assert said(finder) == {"up": True}
            while "host" not in (found := said(finder)):
                pass  # a node's word to its supervisor about a way
            assert (found["way"], found["host"]) == ("lan", laboratory.address("h1.2"))
            assert (found["said"], found["first"]) == ("hello", "relay")
        finally:
            for process in started:
                process.kill()
                process.communicate()

"""`farflung check --net` in simulated homes names what is wrong there, and whose side it is on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from farflung.core.crypto import local_key
from farflung.local.netlab import EmulatedHome, NatType, NetworkLab, namespaces, why_not

pytestmark = [pytest.mark.netns, pytest.mark.quiet, pytest.mark.timeout(200)]

PORT, LATE, OTHER, WEB = 4510, 4511, 4512, 4513
GONE = 4599  # where nobody listens
KEYS = {name: local_key(9, name).public.hex() for name in ("one", "two", "late", "peer", "ledger")}
HERE = "127.0.0.1"
RELAYS = f"""
import asyncio, sys, time
from farflung.core.crypto import local_key
from farflung.net.io.admission import Admission
from farflung.net.io.relay import RelayServer
from farflung.net.io.tcp_listener import ListenConfig

async def says(words, reader, writer):
    await reader.read(64)
    writer.write(words)
    await writer.drain()
    writer.close()

async def main():
    host, name, late = sys.argv[1:]
    kept = [RelayServer(local_key(9, name), listen=ListenConfig(host, {PORT}, allow_remote=True))]
    if late:
        clock = lambda: time.time() - 3600
        listen = ListenConfig(host, {LATE}, allow_remote=True)
        kept.append(RelayServer(local_key(9, late), listen=listen, admission=Admission(clock=clock)))
        for port, words in (({OTHER}, b"FFN9" + bytes(32)), ({WEB}, b"HTTP/1.1 302 Found\\r\\n\\r\\n")):
            kept.append(await asyncio.start_server(lambda r, w, words=words: says(words, r, w), host, port))
    for each in kept:
        if isinstance(each, RelayServer):
            await each.start()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
FILL = """
import socket, sys
there = socket.create_connection((sys.argv[1], 4520))
there.setsockopt(6, 13, b"cubic")
print("ready", flush=True)
while True:
    there.sendall(bytes(65536))
"""
TAKE = """
import socket
there = socket.create_server(("", 4520))
print("ready", flush=True)
taken, _ = there.accept()
while taken.recv(1 << 16):
    pass
"""
LEDGER = f"""
import asyncio, sys, time
from farflung.peers.protocol.directory import LIST, DirectoryListing, advertise
from farflung.core.codec import encode
from farflung.core.crypto import local_key
from farflung.ledger import queries
from farflung.plan.machine import Capabilities
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress, issue
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.tcp_listener import ListenConfig

key, relay = local_key(9, "peer"), local_key(9, "one").public
facts = Capabilities(2, 1, 1, 1, 1, "Linux", "x86_64", "2.13.0")
record = issue(key.public, (EndpointAddress(sys.argv[2], {PORT}, relay),), time.time() - 3600)
listing = encode(DirectoryListing.of([advertise(key, record, facts)]))

async def answer(connection, method, body):
    return listing if method == LIST else encode(queries.ReceiptReply(None))

async def main():
    listen = ListenConfig(sys.argv[1], 4600, allow_remote=True)
    endpoint = Endpoint(local_key(9, "ledger"), answer, ByteCounter(), listen=listen)
    await endpoint.start()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
PLAIN, SYMMETRIC, HOLE, BUSY, OPEN, SHUT, UDPLESS, OTHER_SYMMETRIC, LOST = range(1, 10)
QUICK = {"up": 20, "down": 50, "rtt": 20}
HOMES = [
    EmulatedHome(**QUICK),
    EmulatedHome(**QUICK, nat=NatType.SYMMETRIC),
    EmulatedHome(**QUICK),
    EmulatedHome(up=2, down=50, rtt=20, queue=500, hosts=2),
    EmulatedHome(**QUICK, nat=NatType.NONE),
    EmulatedHome(**QUICK),
    EmulatedHome(**QUICK, nat=NatType.UDP_BLOCKED),
    EmulatedHome(**QUICK, nat=NatType.SYMMETRIC),
    EmulatedHome(**QUICK),
]
DROP = "table inet shut {{ chain c {{ type filter hook {hook} priority -10; tcp dport {port} {extra} drop; }}; }}"


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if why := why_not():
        pytest.skip(why)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[NetworkLab]:
    """Nine homes, two servers with a relay each, on the first also what is no relay as it should be, and a ledger."""
    with NetworkLab(HOMES, servers=3) as built:
        started = [
            built.start(who, [sys.executable, "-c", RELAYS, built.address(who), *words], out=subprocess.PIPE)
            for who, *words in (("s1", "one", "late"), ("s2", "two", ""))
        ]
        at, relay = built.address("s3"), built.address("s1")
        started += [
            built.start("s2", [sys.executable, "-c", TAKE], out=subprocess.PIPE),
            built.start("s3", [sys.executable, "-c", LEDGER, at, relay], out=subprocess.PIPE),
        ]
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        try:
            yield built
        finally:
            for process in started:
                process.kill()
                process.communicate()


Facts = dict[str, Any]


def checked(laboratory: NetworkLab, who: str, *words: str) -> Facts:
    command = [sys.executable, "-m", "farflung.app.cli.main", "check", "--net", "--json", *words]
    done = laboratory.run(who, command, 90)
    assert done.returncode in (0, 1), done.stderr
    facts: Facts = json.loads(done.stdout)
    return facts


def line(facts: Facts, name: str) -> tuple[str, str, str]:
    (told,) = [one for one in facts["findings"] if one["name"] == name]
    return told["state"], told["fault"], told["side"]


def drop(laboratory: NetworkLab, who: str, hook: str, port: int, extra: str = "") -> None:
    namespaces.nft(laboratory._space(who), DROP.format(hook=hook, port=port, extra=extra))


NETWORK, RELAY, MINE = "this network", "the relay", "this computer"
GOOD = ("ok", "", "")
# (what is asked, line): state, fault, side
FOUND = {
    **{("plain", each): GOOD for each in ("ipv4", "relay 1", "relay 2", "clock", "nat", "mtu", "udp")},
    ("plain", "ipv6"): ("note", "no_ipv6", NETWORK),
    ("strangers", "relay 1"): ("fails", "version_mismatch", MINE),
    ("strangers", "relay 2"): ("fails", "captive_proxy", RELAY),
    ("strangers", "relay 4"): ("fails", "relay_down", RELAY),
    ("strangers", "relay 5"): ("fails", "wrong_key", MINE),
    ("strangers", "relay 6"): GOOD,
    ("strangers", "clock"): ("fails", "wrong_clock", RELAY),
    ("symmetric", "nat"): ("slow", "symmetric_nat", NETWORK),
    ("symmetric", "reach"): ("slow", "not_forwarded", NETWORK),
    ("hole", "mtu"): ("fails", "mtu_black_hole", "in between"),
    ("busy", "up"): ("slow", "saturated_uplink", NETWORK),
    ("open", "nat"): GOOD,
    ("open", "reach"): ("fails", "firewall_on_accept", MINE),
    ("reached", "reach"): GOOD,
    ("shut", "relay 1"): ("fails", "port_blocked", NETWORK),
    ("shut", "relay 2"): GOOD,
    ("expired", "record"): ("fails", "expired_record", "the peer"),
    ("expired", "peer"): ("fails", "peer_absent", "the peer"),
    ("pair", "pair"): ("slow", "symmetric_nat", "both sides"),
    ("lost", "ipv4"): ("fails", "no_ipv4", NETWORK),
    ("lost", "relay"): ("fails", "no_ipv4", NETWORK),
    ("udpless", "udp"): ("note", "udp_blocked", NETWORK),
    ("shut", "ipv6"): ("fails", "no_ipv6", NETWORK),
    ("shut", "relay 3"): ("fails", "relay_down", RELAY),
    ("shut", "relay 4"): ("fails", "no_ipv6", NETWORK),
}


def test_check_names_each_fault_and_whose_it_is(laboratory: NetworkLab, tmp_path: Path) -> None:
    one, two = (f"{laboratory.address(who)}:{PORT}" for who in ("s1", "s2"))
    both = ("--relay", f"{one},{KEYS['one']}", "--relay", f"{two},{KEYS['two']}")
    s1, s3 = laboratory.address("s1"), laboratory.address("s3")
    nobody, six = f"{s3.removesuffix('2')}77:{GONE}", f"[2001:db8::9]:{PORT}"
    laboratory.set_mtu(HOLE, 1280, silent=True)
    drop(laboratory, f"r{SHUT}", "forward", PORT)
    drop(laboratory, f"h{OPEN}", "input", 4600)
    strangers = [f"--relay={s1}:{port}" for port in (OTHER, WEB, LATE, GONE)]
    laboratory.run(f"h{LOST}", ["ip", "route", "del", "default"])
    filler = laboratory.start(f"h{BUSY}.2", [sys.executable, "-c", FILL, laboratory.address("s2")], out=subprocess.PIPE)
    try:
        assert filler.stdout is not None
        filler.stdout.readline()
        asked = {
            "plain": (f"h{PLAIN}", *both),
            "strangers": (f"h{PLAIN}", *strangers, "--relay", f"{two},{KEYS['one']}", f"--relay={one}"),
            "symmetric": (f"h{SYMMETRIC}", *both, "--listen", "4600"),
            "hole": (f"h{HOLE}", "--relay", one),
            "busy": (f"h{BUSY}", "--relay", one),
            "open": (f"h{OPEN}", "--relay", one, "--listen", "4600"),
            "reached": (f"h{OPEN}", "--relay", two, "--listen", "4601"),
            "shut": (f"h{SHUT}", *(f"--relay={each}" for each in (one, f"{s1}:{LATE}", nobody, six))),
            "udpless": (f"h{UDPLESS}", "--relay", one),
            "lost": (f"h{LOST}", "--relay", one),
            "expired": (f"h{PLAIN}", "--peer", KEYS["peer"], "--ledger", f"{s3}:4600,{KEYS['ledger']}"),
        }
        with ThreadPoolExecutor(5) as pool:
            done = {name: pool.submit(checked, laboratory, *words) for name, words in asked.items()}
            told = {name: each.result() for name, each in done.items()}
    finally:
        filler.kill()
        filler.communicate()
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps(told["symmetric"]))
    asked["pair"] = (f"h{OTHER_SYMMETRIC}", *both, "--theirs", str(file))
    told["pair"] = checked(laboratory, *asked["pair"])
    assert {name: facts["is_whole"] for name, facts in told.items()} == dict.fromkeys(asked, True)
    found = {(name, what): line(told[name], what) for name, what in FOUND}
    assert found == FOUND

"""What connections between two machines get from the kernel: bbr and a pace where they are to be had, else no harm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from netns_programs import said

CONTROLS = Path("/proc/sys/net/ipv4")
UPLINK = 2_375_000  # bytes a second
FAR = "10.77.0.2"  # the relay's and the listener's namespace
HEAD = """
import asyncio, dataclasses, json, os, sys
from farflung.core.crypto import local_key
from farflung.net.counters import ByteCounter
from farflung.net.io import socket_options
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_circuits import RelayLimits
from farflung.net.messages import MessageKind

A, B, R = (local_key(9, name) for name in "abr")

async def echo(connection, method, body):
    return body

def say(**facts):
    print(json.dumps(facts), flush=True)

async def line():
    return await asyncio.to_thread(sys.stdin.readline)

def all_of(endpoint):
    return [dataclasses.astuple(each.tuned) for each in endpoint._connections]
"""
RELAY = """
async def main():
    server = RelayServer(R, listen=ListenConfig("10.77.0.2", allow_remote=True), limits=RelayLimits(uplink=2375000))
    say(port=(await server.start())[1])
    await line()
    (circuit,) = server._circuits.circuits
    say(
        legs=[dataclasses.astuple(each) for each in circuit.tuned],
        paces=[leg.getsockopt(1, 47) for leg in circuit.sockets],
        attached=all_of(server._endpoint),
    )
    await line()
    await server.close()

asyncio.run(main())
"""
PEERS = """
async def main():
    place = ("10.77.0.2", int(sys.argv[1]))
    a, b = Endpoint(A, echo, ByteCounter()), Endpoint(B, echo, ByteCounter())
    b.attach(R.public, *place)
    await b.attached()
    connection = await a.dial(B.public, *place, relay=R.public)
    for _ in range(4):
        assert len(await connection.call("a", bytes(1 << 20), kind=MessageKind.SYNC)) == 1 << 20
    say(peers=all_of(a) + all_of(b))
    await line()
    await a.close()
    await b.close()

asyncio.run(main())
"""
LISTENER = """
async def main():
    b = Endpoint(B, echo, ByteCounter(), listen=ListenConfig("10.77.0.2", allow_remote=True))
    say(port=(await b.start())[1])
    await line()
    await b.close()

asyncio.run(main())
"""
NOBODY = """
from click.testing import CliRunner
from farflung.app.cli import check
from farflung.host.io import doctor_probes

socket_options.WANTED = sys.argv[2]  # one that this system has and does not give to everybody
doctor_probes.probes = lambda runs, port: []
CliRunner().invoke(check.check, ["--net"])  # loads all that nobody may not be able to read
os.setgroups([])
os.setgid(65534)
os.setuid(65534)

async def main():
    a = Endpoint(A, echo, ByteCounter())
    connection = await a.dial(B.public, "10.77.0.2", int(sys.argv[1]))
    data = bytes(range(256)) * 4096
    assert await connection.call("a", data, kind=MessageKind.SYNC) == data
    tuned = dataclasses.astuple(connection.tuned)
    await a.close()
    return tuned

tuned = asyncio.run(main())
done = CliRunner().invoke(check.check, ["--net"])
say(tuned=tuned, status=done.exit_code, check=done.stdout)
"""


def why_not() -> str:
    """Why this machine cannot make two namespaces and a wire between them; empty if it can."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("ip") is None or shutil.which("sysctl") is None:
        return "needs the `ip` and `sysctl` commands"
    name = f"ff-tune-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"`ip netns add` does not work here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


def names(word: str) -> list[str]:
    return (CONTROLS / f"tcp_{word}_congestion_control").read_text().split()


@contextmanager
def two_machines() -> Iterator[tuple[list[str], list[str]]]:
    """How a command starts in either of two namespaces, joined by a wire, whose own choice is reno."""
    if reason := why_not():
        pytest.skip(reason)
    here, there = (f"ff-tune-{os.getpid()}-{end}" for end in "ab")
    try:
        for name in (here, there):
            subprocess.run(["ip", "netns", "add", name], check=True)
        wire = f"ip -n {here} link add w type veth peer name w netns {there}"
        subprocess.run(wire.split(), check=True)
        for name, address in ((here, "10.77.0.1/24"), (there, f"{FAR}/24")):
            subprocess.run(["ip", "-n", name, "address", "add", address, "dev", "w"], check=True)
            for link in ("lo", "w"):
                subprocess.run(["ip", "-n", name, "link", "set", link, "up"], check=True)
            inside = ["ip", "netns", "exec", name]
            subprocess.run([*inside, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno"], check=True)
        yield ["ip", "netns", "exec", here], ["ip", "netns", "exec", there]
    finally:
        for name in (here, there):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextmanager
def started(inside: list[str], code: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*inside, sys.executable, "-c", HEAD + code, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        _, errors = process.communicate("\n", timeout=60)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.netns
@pytest.mark.whole
def test_peers_and_both_legs_of_a_relay_get_bbr_and_the_relay_keeps_to_its_line() -> None:
    with two_machines() as (here, there):
        if "bbr" not in names("available"):
            pytest.skip("this kernel has not loaded bbr")
        with started(there, RELAY) as relay:
            port = str(said(relay)["port"])
            with started(here, PEERS, port) as peers:
                got = said(peers)["peers"]
                assert relay.stdin is not None
                relay.stdin.write("\n")
                relay.stdin.flush()
                facts = said(relay)
    bbr = ["bbr", False, 0]
    assert got == [bbr] * 3  # two ends of the circuit, one attached peer
    assert facts["legs"] == [bbr] * 2
    assert facts["attached"] == [bbr]
    paces = facts["paces"]
    assert isinstance(paces, list)
    assert all(0 < pace <= UPLINK for pace in paces)
    assert UPLINK - 2 < sum(paces) <= UPLINK


@pytest.mark.netns
@pytest.mark.whole
def test_who_may_not_choose_keeps_the_connection_and_is_told_what_root_can_do() -> None:
    with two_machines() as (here, there):
        allowed = names("allowed")
        refused = sorted(set(names("available")) - set(allowed), key=lambda name: (name != "bbr", name))
        if not refused:
            pytest.skip("this system lets anybody choose any congestion control that it has")
        with started(there, LISTENER) as listener:
            with started(here, NOBODY, str(said(listener)["port"]), refused[0]) as nobody:
                facts = said(nobody)
    assert facts["tuned"] == ["reno", False, 1]  # EPERM, and the namespace's own choice
    assert facts["status"] == 1  # a namespace with one wire has no way out
    text = " ".join(str(facts["check"]).split())  # as wide as it may be
    assert "slow congestion reno for connections to other computers" in text
    every = " ".join([*allowed, refused[0]])
    assert f'try as root, sysctl -w net.ipv4.tcp_allowed_congestion_control="{every}" ' in text
    assert f"line net.ipv4.tcp_allowed_congestion_control = {every} " in text

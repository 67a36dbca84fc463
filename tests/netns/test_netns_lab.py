"""The laboratory measures what was asked for, and its NATs let through what the theory of hole punching says."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations_with_replacement, product

import pytest

from farflung.local.netlab import EmulatedHome, NatType, NetworkLab, namespaces, why_not
from farflung.local.netlab.link_emulator import PacketCounters
from farflung.local.netlab.self_check import nat_kind, prove, prove_home

pytestmark = [pytest.mark.netns, pytest.mark.whole, pytest.mark.xdist_group("lab"), pytest.mark.timeout(300)]

KINDS = list(NatType)
QUICK = {"up": 0, "down": 0, "rtt": 10}
CARRIED, SHARED = 13, 15  # homes 13 and 14 behind a carrier's symmetric NAT; home 15 has two hosts
PORT, MEETING = 4500, 3478


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if why := why_not():
        pytest.skip(why)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[NetworkLab]:
    """Two homes of each NAT kind, 1 to 6 and 7 to 12, two behind one carrier, and one with two hosts."""
    homes = [EmulatedHome(**QUICK, nat=nat) for nat in KINDS * 2]
    homes += [EmulatedHome(**QUICK, carrier=1)] * 2 + [EmulatedHome(**QUICK, hosts=2)]
    with NetworkLab(homes, carriers=[NatType.SYMMETRIC]) as built:
        yield built


def pair(one: NatType, two: NatType) -> tuple[str, str]:
    """A host of a home of the first kind, and of another home of the second kind."""
    return f"h{KINDS.index(one) + 1}", f"h{KINDS.index(two) + 7}"


def spaces_of(pid: int) -> set[str]:
    return {path.name for path in namespaces.NAMESPACES.glob(f"{namespaces.PREFIX}-{pid}.*")}


def eventually(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether it becomes true in time; asked every 10 ms."""
    deadline = time.monotonic() + seconds
    while not (there := holds()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return there


def arrived(receiver: socket.socket) -> bytes:
    return receiver.recv(99) if select.select([receiver], [], [], 0)[0] else b""


def bound(laboratory: NetworkLab, stack: ExitStack, who: str, kind: socket.SocketKind, port: int = 0) -> socket.socket:
    made = stack.enter_context(laboratory.socket(who, kind))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((laboratory.address(who), port))
    made.setblocking(False)
    return made


def punched(laboratory: NetworkLab, one: str, two: str) -> bool:
    """Whether both hear each other by UDP, once a server has told each where the other was seen."""
    with ExitStack() as stack:
        meeting = bound(laboratory, stack, "s1", socket.SOCK_DGRAM, MEETING)
        ends = [bound(laboratory, stack, who, socket.SOCK_DGRAM) for who in (one, two)]
        seen = []
        for end in ends:
            for _ in range(5):
                end.sendto(b"where am I", meeting.getsockname())
                if select.select([meeting], [], [], 0.1)[0]:
                    seen.append(meeting.recvfrom(99)[1])
                    break
        if len(seen) < 2:
            return False
        other = [seen[1], seen[0]]
        heard = [False, False]

        def talk() -> bool:  # each answers to where it last heard the other from
            for n, end in enumerate(ends):
                end.sendto(b"hello", other[n])
                while select.select([end], [], [], 0)[0]:
                    _, other[n] = end.recvfrom(99)
                    heard[n] = True
            return all(heard)

        return eventually(talk, 0.4)


def udp_opens(one: NatType, two: NatType) -> bool:
    """Theory: not without UDP, and a symmetric NAT is only met by who filters by address at most."""
    kinds = {one, two}
    if NatType.UDP_BLOCKED in kinds:
        return False
    return NatType.SYMMETRIC not in kinds or not (kinds - {NatType.SYMMETRIC} <= {NatType.PORT_RESTRICTED})


def opened(laboratory: NetworkLab, one: str, homes: tuple[int, int], two: str, seconds: float) -> bool:
    """Whether two hosts that connect to each other from a known port at once get a TCP connection."""
    targets = [(laboratory.public_address(home), PORT) for home in reversed(homes)]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:  # who is refused was too early: the other had not begun
        with ExitStack() as stack:
            ends = [bound(laboratory, stack, who, socket.SOCK_STREAM, PORT) for who in (one, two)]
            for end, target in zip(ends, targets, strict=True):
                end.connect_ex(target)
            _, there, _ = select.select([], ends, [], max(0.0, deadline - time.monotonic()))
            eventually(lambda ends=ends: len(select.select([], ends, [], 0)[1]) == 2, 0.2)
            if there and not any(end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for end in ends):
                ends[0].send(b"both")
                return eventually(lambda end=ends[1]: arrived(end) == b"both", 1.0)
    return False


@pytest.mark.quiet
def test_three_different_homes_measure_as_they_were_asked_for() -> None:
    homes = [
        EmulatedHome(up=20, down=100, rtt=40, loss=0.005, nat=NatType.SYMMETRIC),
        EmulatedHome(up=10, down=50, rtt=100, loss=0.02, burst=8, nat=NatType.UDP_BLOCKED),
        EmulatedHome(up=0, down=20, rtt=20, jitter=3, mtu=1280, nat=NatType.FULL_CONE),
    ]
    with NetworkLab(homes) as laboratory:
        findings = prove(laboratory)
        # A home that it is not.
        laboratory.homes[2] = replace(homes[2], rtt=60, loss=0.2, down=40, nat=NatType.SYMMETRIC)
        amiss = {finding.what for finding in prove_home(laboratory, 3) if not finding.agrees}
    print(*findings, sep="\n")
    assert amiss == {"round trip", "loss up", "loss down", "rate down", "NAT"}
    assert {finding.what for finding in findings} >= {"round trip", "loss up", "loss down", "rate up", "NAT"}
    wrong = [str(finding) for finding in findings if finding.verdict == "wrong"]
    assert wrong == []
    if spoiled := [str(finding) for finding in findings if not finding.agrees]:
        pytest.skip("; ".join(spoiled))


@pytest.mark.parametrize("nat", KINDS)
def test_a_router_is_recognised_from_outside(laboratory: NetworkLab, nat: NatType) -> None:
    assert nat_kind(laboratory, KINDS.index(nat) + 1) is nat


@pytest.mark.parametrize(("one", "two"), list(product(KINDS, KINDS)))
def test_udp_holes_open_as_the_theory_says(laboratory: NetworkLab, one: NatType, two: NatType) -> None:
    assert punched(laboratory, *pair(one, two)) == udp_opens(one, two)


@pytest.mark.parametrize(("one", "two"), list(combinations_with_replacement(KINDS, 2)))
def test_tcp_opens_from_both_sides_unless_a_port_cannot_be_known(
    laboratory: NetworkLab, one: NatType, two: NatType
) -> None:
    homes = KINDS.index(one) + 1, KINDS.index(two) + 7
    opens = NatType.SYMMETRIC not in (one, two)
    first, second = pair(one, two)
    assert opened(laboratory, first, homes, second, 5.0 if opens else 1.2) == opens


def test_a_stray_that_comes_first_does_not_take_the_port_of_the_one_who_is_called(laboratory: NetworkLab) -> None:
    numbers = KINDS.index(NatType.PORT_RESTRICTED) + 1, KINDS.index(NatType.PORT_RESTRICTED) + 7
    with ExitStack() as stack:
        early, late = (bound(laboratory, stack, f"h{n}", socket.SOCK_DGRAM, PORT + 1) for n in numbers)
        addresses = [(laboratory.public_address(n), PORT + 1) for n in numbers]
        before = laboratory.counters(numbers[1])[1].delivered
        early.sendto(b"stray", addresses[1])
        assert eventually(lambda: laboratory.counters(numbers[1])[1].delivered > before, 2)
        time.sleep(0.05)  # for the router, which has it now
        late.sendto(b"call", addresses[0])
        assert select.select([early], [], [], 2)[0]
        assert early.recvfrom(99) == (b"call", addresses[1])


@pytest.mark.parametrize("nat", KINDS)
def test_a_nat_lets_nobody_in_who_knows_the_address_behind_it(laboratory: NetworkLab, nat: NatType) -> None:
    number = KINDS.index(nat) + 1
    inner, outer = laboratory.address(f"h{number}"), laboratory.address(f"r{number}")
    laboratory.run("bb", ["ip", "route", "replace", f"{inner}/32", "via", outer])
    with ExitStack() as stack:
        server = bound(laboratory, stack, "s1", socket.SOCK_DGRAM, MEETING)
        home = bound(laboratory, stack, f"h{number}", socket.SOCK_DGRAM)
        server.sendto(b"knock", home.getsockname())
        assert eventually(lambda: arrived(home) == b"knock", 0.3) == (nat is NatType.NONE)


def test_two_homes_behind_one_carrier_look_like_one_and_do_not_meet(laboratory: NetworkLab) -> None:
    assert laboratory.public_address(CARRIED) == laboratory.public_address(CARRIED + 1)
    assert nat_kind(laboratory, CARRIED) is NatType.SYMMETRIC
    assert not punched(laboratory, f"h{CARRIED}", f"h{CARRIED + 1}")
    assert punched(laboratory, f"h{CARRIED}", pair(NatType.NONE, NatType.ADDRESS_RESTRICTED)[1])
    assert not punched(laboratory, f"h{CARRIED}", pair(NatType.NONE, NatType.PORT_RESTRICTED)[1])


def test_two_hosts_of_one_home_meet_on_the_lan_and_not_at_their_public_address(laboratory: NetworkLab) -> None:
    hosts = f"h{SHARED}", f"h{SHARED}.2"
    with ExitStack() as stack:
        one, two = (bound(laboratory, stack, who, socket.SOCK_DGRAM, PORT) for who in hosts)
        one.sendto(b"over the LAN", two.getsockname())
        assert eventually(lambda: arrived(two) == b"over the LAN", 2)
    assert not punched(laboratory, *hosts)
    up, _ = laboratory.counters(SHARED)
    assert up.arrived  # what went to the meeting point


def test_a_cut_line_carries_nothing_until_it_is_restored(laboratory: NetworkLab) -> None:
    with ExitStack() as stack:
        server = bound(laboratory, stack, "s1", socket.SOCK_DGRAM, MEETING)
        home = bound(laboratory, stack, "h1", socket.SOCK_DGRAM)
        laboratory.cut(1)
        before = laboratory.counters(1)[0].cut
        home.sendto(b"lost", server.getsockname())
        assert eventually(lambda: laboratory.counters(1)[0].cut == before + 1, 2)
        laboratory.restore(1)
        home.sendto(b"carried", server.getsockname())
        assert eventually(lambda: arrived(server) == b"carried", 2)


def test_a_home_that_changes_its_address_comes_from_the_new_one_alone(laboratory: NetworkLab) -> None:
    number = KINDS.index(NatType.FULL_CONE) + 7
    with ExitStack() as stack:
        server = bound(laboratory, stack, "s1", socket.SOCK_DGRAM, MEETING)
        home = bound(laboratory, stack, f"h{number}", socket.SOCK_DGRAM, PORT)
        seen = []
        for _ in range(2):
            home.sendto(b"here", server.getsockname())
            assert select.select([server], [], [], 2)[0]
            seen.append(server.recvfrom(99)[1])
            if len(seen) == 1:
                assert seen[0][0] == laboratory.public_address(number)
                laboratory.change_address(number)
        assert seen[1][0] == laboratory.public_address(number) != seen[0][0]
        for address in seen:
            server.sendto(address[0].encode(), address)
        assert eventually(lambda: arrived(home) == seen[1][0].encode(), 2)
        assert not arrived(home)


def test_a_line_of_a_smaller_mtu_says_so_unless_it_is_a_black_hole(laboratory: NetworkLab) -> None:
    large, refusal = b"x" * 1400, "Message too long"
    with ExitStack() as stack:
        for number, silent in ((1, False), (7, True)):
            laboratory.set_mtu(number, 1280, silent=silent)
            home = bound(laboratory, stack, f"h{number}", socket.SOCK_DGRAM)
            home.connect((laboratory.address("s1"), MEETING + 7))
            home.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
            told = ""
            for _ in range(50):
                try:
                    home.send(large)
                    time.sleep(0.01)
                except OSError as error:
                    told = told or (error.strerror or "")
            laboratory.set_mtu(number, 1500)
            assert (refusal in told) == (not silent), told


def carried(home: EmulatedHome, engine: str, data: bytes) -> tuple[bytes, PacketCounters]:
    """What comes of these bytes by TCP from a server to a home, and what its line down counted meanwhile."""
    with NetworkLab([home], engine=engine) as laboratory, ExitStack() as stack:
        server = stack.enter_context(laboratory.socket("s1", socket.SOCK_STREAM))
        server.bind((laboratory.address("s1"), PORT))
        server.listen()
        client = stack.enter_context(laboratory.socket("h1", socket.SOCK_STREAM))
        client.settimeout(30)
        client.connect((laboratory.address("s1"), PORT))
        accepted = stack.enter_context(server.accept()[0])
        sender = threading.Thread(target=lambda: (accepted.sendall(data), accepted.shutdown(socket.SHUT_WR)))
        sender.start()
        came = b"".join(iter(lambda: client.recv(1 << 16), b""))
        sender.join()
        return came, laboratory.counters(1)[1]


@pytest.mark.parametrize("engine", ["c", "python"])
def test_trains_carry_the_same_bytes_in_as_many_packets_and_lose_none(engine: str) -> None:
    if engine == "c" and shutil.which("cc") is None:
        pytest.skip("needs a C compiler (cc)")
    data = random.Random(6).randbytes(2_000_000)
    came, single = carried(EmulatedHome(up=0, down=0, rtt=4), engine, data)
    assert came == data
    came, train = carried(EmulatedHome(up=0, down=0, rtt=4, train=8), engine, data)
    assert came == data
    for counted in (single, train):  # what was sent again and control packets are a few of a hundred
        assert counted.lost == counted.full == counted.refused == 0
        assert 1.0 <= counted.bytes / (len(data) * 1500 / 1448) <= 1.05
        assert 1.0 <= counted.delivered / (len(data) / 1448) <= 1.1


def test_programs_run_inside_and_end_with_the_laboratory() -> None:
    before = spaces_of(os.getpid())
    with NetworkLab([EmulatedHome(**QUICK)], engine="python") as laboratory:
        told = laboratory.run("h1", ["ip", "-br", "addr", "show", "eth0"])
        assert laboratory.address("h1") in told.stdout
        left = laboratory.start("h1", ["sleep", "600"])
        names = spaces_of(os.getpid()) - before
        assert len(names) == len(laboratory.everybody)
    assert left.wait(100) == -signal.SIGKILL
    assert spaces_of(os.getpid()) == before


KILLED = """
import time
from farflung.local.netlab import EmulatedHome, NetworkLab
with NetworkLab([EmulatedHome()]) as laboratory:
    laboratory.start("h1", ["sleep", "600"])
    print(*laboratory.everybody, flush=True)
    time.sleep(600)
"""


def test_what_a_killed_laboratory_left_behind_is_removed_by_the_next_and_that_of_the_living_stays() -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        everybody = killed.stdout.readline().split()
        left = spaces_of(killed.pid)  # once it is dead, any laboratory of this machine removes them
        killed.kill()
    assert len(left) == len(everybody)
    living = namespaces.space("living")
    foreign = f"other-{os.getpid()}"
    namespaces.ip([f"netns add {living}", f"netns add {foreign}"])
    try:
        with NetworkLab([], servers=0):
            pass
        assert spaces_of(killed.pid) == set()
        assert (namespaces.NAMESPACES / living).exists()
        assert (namespaces.NAMESPACES / foreign).exists()
    finally:
        namespaces.remove([living, foreign])

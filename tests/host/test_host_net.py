"""What `farflung check --net` says of readings: each fault by its name, whose side it is on, why, and what next."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.app.netcheck.check import rate_of
from farflung.host import doctor_net_report
from farflung.host.findings import FaultSide, FindingState, NetworkFault, ProbeFinding
from farflung.host.net_readings import (
    LocalNetReading,
    NetReadings,
    ObservedAddress,
    PeerReading,
    PortReachReading,
    RelayReading,
    ResponderKind,
    RouteTrace,
    TcpConnectOutcome,
    ThroughputReading,
    voice,
)

KEY, OTHER_KEY = "ab" * 32, "cd" * 32
HOME = ("192.168.1.2", 40000)
OUTSIDE = ("203.0.113.9", 40000)
HERE = LocalNetReading("linux", "192.168.1.2", "2001:db8::2", is_kept=False)
MET = RelayReading(
    "relay.example:4510",
    "relay.example",
    4510,
    named=KEY,
    address="198.51.100.1",
    families=(4,),
    way=TcpConnectOutcome.STANDS,
    connect=0.02,
    voice=ResponderKind.OURS,
    heard="FFN1",
    key=KEY,
    trips=(0.020, 0.021, 0.022, 0.021, 0.020),
    skew=0.01,
    seen=ObservedAddress(HOME, OUTSIDE),
    mtu=1500,
    is_rated=True,
    up=ThroughputReading(2.4e6, 4 << 20, 1.5),
    down=ThroughputReading(11e6, 16 << 20, 1.5),
    loaded=(0.03, 0.04),
    udp=RouteTrace(("192.168.1.1", "198.51.100.254"), (0.001, 0.012), is_end=True),
)
SECOND = msgspec.structs.replace(
    MET, place="second.example:4510", host="second.example", address="198.51.100.2", key=OTHER_KEY, named=OTHER_KEY
)
LOST: dict[str, Any] = {
    "trips": (), "skew": None, "seen": None, "up": None, "down": None, "loaded": (), "mtu": 0, "udp": None,
}  # fmt: skip
AWAY: dict[str, Any] = {**LOST, "voice": ResponderKind.UNASKED, "heard": "", "key": ""}
NEAR = RouteTrace(("192.168.1.1",), (0.001,))
FAR = RouteTrace(("192.168.1.1", "198.51.100.254", "203.0.113.77"), (0.001, 0.01, 0.02))


def but(one: RelayReading, **facts: Any) -> RelayReading:
    return msgspec.structs.replace(one, **facts)


def told(*relays: RelayReading, **facts: Any) -> dict[str, ProbeFinding]:
    found = doctor_net_report.examine(msgspec.structs.replace(NetReadings(HERE, relays=relays), **facts))
    return {one.name: one for one in found}


def local(**facts: Any) -> LocalNetReading:
    return msgspec.structs.replace(HERE, **facts)


def test_a_good_line_is_ok_everywhere() -> None:
    found = told(MET, SECOND, reach=PortReachReading(4511, came=True, answer="yes"))
    assert {name for name, one in found.items() if one.state is not FindingState.OK} == set()
    assert "18.8 Mbit/s" not in found["up"].measured
    assert found["relay 1"].measured == "relay.example:4510 answers in 21 ms; 19.2 Mbit/s up, 88 Mbit/s down"
    assert "both sides can open" in found["nat"].measured


def test_why_peers_on_the_lan_are_not_looked_for_is_a_note_and_no_fault() -> None:
    found = told(MET, local=local(lan="the library zeroconf is not installed"))["lan"]
    assert (found.state, found.cause, found.fault) == (FindingState.NOTE, "", NetworkFault.NONE)
    assert found.measured.endswith("not looked for: the library zeroconf is not installed")


SILENT = {**AWAY, "way": TcpConnectOutcome.SILENT, "words": "no answer within 3 s"}
# (name of the line, relays, other facts, fault, side, a word of the step)
CASES: dict[str, tuple[str, list[RelayReading], dict[str, Any], NetworkFault, FaultSide, str]] = {
    "relay down, its computer says so": (
        "relay", [but(MET, **AWAY, way=TcpConnectOutcome.REFUSED, words="Connection refused")], {},
        NetworkFault.RELAY_DOWN, FaultSide.RELAY, "systemctl status farflung-relay"),
    "relay down, another answers on the same port": (
        "relay 1", [but(MET, **SILENT, trail=FAR, other=FAR), SECOND], {},
        NetworkFault.RELAY_DOWN, FaultSide.RELAY, "systemctl status"),
    "relay down, packets leave this network": (
        "relay", [but(MET, **SILENT, trail=FAR, other=FAR)], {}, NetworkFault.RELAY_DOWN, FaultSide.RELAY, "systemctl"),
    "relay down or no network, nothing tells": (
        "relay", [but(MET, **SILENT)], {}, NetworkFault.RELAY_DOWN, FaultSide.UNKNOWN, "another relay"),
    "port blocked by the home's router": (
        "relay", [but(MET, **SILENT, trail=NEAR, other=FAR)], {},
        NetworkFault.PORT_BLOCKED, FaultSide.NETWORK, "allow outgoing TCP port 4510 in the router 192.168.1.1"),
    "port blocked by this computer": (
        "relay", [but(MET, **SILENT, trail=RouteTrace(), other=FAR)], {},
        NetworkFault.PORT_BLOCKED, FaultSide.NETWORK, "nft list ruleset"),
    "port blocked on the way": (
        "relay", [but(MET, **SILENT, trail=RouteTrace(FAR.hops[:2], FAR.seconds[:2]), other=FAR)], {},
        NetworkFault.PORT_BLOCKED, FaultSide.BETWEEN, "who runs 198.51.100.254"),
    "port blocked at the relay": (
        "relay", [but(MET, **SILENT, trail=FAR, other=msgspec.structs.replace(FAR, is_end=True))], {},
        NetworkFault.PORT_BLOCKED, FaultSide.RELAY, "ufw allow 4510/tcp"),
    "UDP blocked": (
        "udp", [but(MET, udp=NEAR)], {}, NetworkFault.UDP_BLOCKED, FaultSide.NETWORK, "nothing has to be done"),
    "wrong clock here": (
        "clock", [but(MET, skew=3600.2), but(SECOND, skew=3599.8)], {},
        NetworkFault.WRONG_CLOCK, FaultSide.HERE, "date -s '+3600 seconds'"),
    "wrong clock of one relay": (
        "clock", [but(MET, skew=-3600.0), SECOND], {},
        NetworkFault.WRONG_CLOCK, FaultSide.RELAY, "there, timedatectl"),
    "wrong clock, one relay, this one kept": (
        "clock", [but(MET, skew=-90.0)], {"local": local(is_kept=True)},
        NetworkFault.WRONG_CLOCK, FaultSide.RELAY, "date -s '+90 seconds'"),
    "wrong clock, one relay, this one not kept": (
        "clock", [but(MET, skew=-90.0)], {}, NetworkFault.WRONG_CLOCK, FaultSide.HERE, "date -s '90 seconds ago'"),
    "wrong clocks everywhere": (
        "clock", [but(MET, skew=-90.0), but(SECOND, skew=500.0)], {},
        NetworkFault.WRONG_CLOCK, FaultSide.UNKNOWN, "here and there"),
    "wrong key": (
        "relay", [but(MET, **LOST, code="FF-NET-004", key=OTHER_KEY)], {},
        NetworkFault.WRONG_KEY, FaultSide.HERE, "ask who runs the relay for its key"),
    "older version here": (
        "relay", [but(MET, **{**AWAY, "voice": ResponderKind.OTHER_VERSION, "heard": "FFN9"})], {},
        NetworkFault.VERSION_MISMATCH, FaultSide.HERE, "pip install -c constraints.txt ."),
    "older version there": (
        "relay", [but(MET, **{**AWAY, "voice": ResponderKind.OTHER_VERSION, "heard": "FFN0"})], {},
        NetworkFault.VERSION_MISMATCH, FaultSide.RELAY, "there, git pull in farflung's source folder"),
    "a version too old to say which": (
        "relay", [but(MET, **{**LOST, "voice": ResponderKind.CLOSED, "heard": "", "code": "FF-NET-046"})], {},
        NetworkFault.VERSION_MISMATCH, FaultSide.RELAY, "farflung version"),
    "no IPv6 and a relay that has nothing else": (
        "ipv6", [but(MET, **AWAY, way=TcpConnectOutcome.NO_ROUTE, address="2001:db8::9", families=(6,))],
        {"local": local(ipv6="")}, NetworkFault.NO_IPV6, FaultSide.NETWORK, "ip -6 route show default"),
    "no IPv6, seen from the relay's line": (
        "relay", [but(MET, **AWAY, way=TcpConnectOutcome.NO_ROUTE, address="2001:db8::9", families=(6,))],
        {"local": local(ipv6="")}, NetworkFault.NO_IPV6, FaultSide.NETWORK, "a relay that has IPv4"),
    "no IPv4 and a relay that has nothing else": (
        "ipv4", [but(MET, **AWAY, way=TcpConnectOutcome.NO_ROUTE)], {"local": local(ipv4="")},
        NetworkFault.NO_IPV4, FaultSide.NETWORK, "ip route show default"),
    "no network at all": (
        "ipv4", [], {"local": local(ipv4="", ipv6="")}, NetworkFault.NO_NETWORK, FaultSide.NETWORK, "ip address"),
    "captive proxy, one relay": (
        "relay", [but(MET, **{**AWAY, "voice": ResponderKind.HTTP, "heard": "HTTP/1.1 302 Found"})], {},
        NetworkFault.CAPTIVE_PROXY, FaultSide.NETWORK, "in a browser"),
    "captive proxy, all relays": (
        "relay 2", [but(one, **{**AWAY, "voice": ResponderKind.TLS}) for one in (MET, SECOND)], {},
        NetworkFault.CAPTIVE_PROXY, FaultSide.NETWORK, "log in"),
    "a web server has the port": (
        "relay 1", [but(MET, **{**AWAY, "voice": ResponderKind.HTTP}), SECOND], {},
        NetworkFault.CAPTIVE_PROXY, FaultSide.RELAY, "ask for the relay's port"),
    "another program has the port": (
        "relay", [but(MET, **{**AWAY, "voice": ResponderKind.OTHER, "heard": "SSH-2.0-x"})], {},
        NetworkFault.NO_RELAY, FaultSide.RELAY, "ss -ltnp"),
    "not admitted": (
        "relay", [but(MET, **LOST, code="FF-NET-046")], {},
        NetworkFault.NOT_ADMITTED, FaultSide.RELAY, "admit your key"),
    "symmetric NAT": (
        "nat", [MET, but(SECOND, seen=ObservedAddress(HOME, (OUTSIDE[0], 51234)))], {},
        NetworkFault.SYMMETRIC_NAT, FaultSide.NETWORK, "nothing has to be done"),
    "MTU black hole": (
        "mtu", [but(MET, up=None, down=None, is_stalled=True, passing=1280)], {},
        NetworkFault.MTU_BLACK_HOLE, FaultSide.BETWEEN, "sysctl -w net.ipv4.tcp_mtu_probing=1"),
    "MTU black hole on one way only": (
        "mtu", [but(MET, is_stalled=True, passing=1280), SECOND], {},
        NetworkFault.MTU_BLACK_HOLE, FaultSide.RELAY, "tcp_mtu_probing"),
    "MTU black hole that stops the handshake": (
        "relay", [but(MET, **LOST, code="FF-NET-044", is_stalled=True, passing=1200)], {},
        NetworkFault.MTU_BLACK_HOLE, FaultSide.BETWEEN, "the line mtu"),
    "uplink filled by somebody else": (
        "up", [but(MET, trips=(0.02, 0.3, 0.4, 0.35, 0.02))], {},
        NetworkFault.SATURATED_UPLINK, FaultSide.NETWORK, "stop what else sends"),
    "uplink filled, and steadily so": (
        "up", [but(MET, udp=RouteTrace(("192.168.1.1", "198.51.100.254"), (0.001, 0.45)))], {},
        NetworkFault.SATURATED_UPLINK, FaultSide.NETWORK, "stop what else sends"),
    "uplink filled by this computer": (
        "up", [MET], {"local": local(sending=2e6)}, NetworkFault.SATURATED_UPLINK, FaultSide.HERE, "nethogs"),
    "uplink whose queue is long": (
        "up", [but(MET, loaded=(0.3, 0.4, 0.5))], {}, NetworkFault.SATURATED_UPLINK, FaultSide.NETWORK, "fq_codel"),
    "uplink through which nothing comes": (
        "up", [but(MET, up=None)], {}, NetworkFault.SATURATED_UPLINK, FaultSide.NETWORK, "stop what else"),
    "firewall on accept": (
        "reach", [but(MET, seen=ObservedAddress(OUTSIDE, OUTSIDE))], {"reach": PortReachReading(4511, answer="silent")},
        NetworkFault.FIREWALL_ON_ACCEPT, FaultSide.HERE, "ufw allow 4511/tcp"),
    "port not forwarded": (
        "reach", [MET], {"reach": PortReachReading(4511, answer="silent")},
        NetworkFault.NOT_FORWARDED, FaultSide.NETWORK, "forward TCP port 4511 of the router to 192.168.1.2"),
    "somebody else takes the port": (
        "reach", [MET], {"reach": PortReachReading(4511, answer="yes")},
        NetworkFault.NOT_FORWARDED, FaultSide.NETWORK, "--listen 4512"),
    "name unknown, others known": (
        "relay 1", [but(MET, **AWAY, way=TcpConnectOutcome.NO_NAME, families=()), SECOND], {},
        NetworkFault.NO_NAME, FaultSide.RELAY, "getent hosts relay.example"),
}  # fmt: skip


PEER = PeerReading(
    KEY, "ledger.example:4600", is_registered=True, is_listed=True, left=500.0, ahead=-100.0,
    places=("198.51.100.1:4510, relay abababab",), over="198.51.100.1:4510, relay abababab", is_relayed=True,
    is_met=True, seconds=0.1,
)  # fmt: skip
UNMET = msgspec.structs.replace(PEER, is_met=False)


def peer(**facts: Any) -> dict[str, Any]:
    return {"peer": msgspec.structs.replace(UNMET, **facts)}


CASES |= {
    "expired record, by its clock or its absence": (
        "record", [MET], peer(left=-3600.0), NetworkFault.EXPIRED_RECORD, FaultSide.PEER, "on the peer's computer"),
    "expired record, by a wrong clock here": (
        "record", [but(MET, skew=-3600.0)], peer(left=-3600.0), NetworkFault.EXPIRED_RECORD, FaultSide.HERE, "set-ntp"),
    "expired record that the directory has dropped": (
        "record", [MET], peer(is_listed=False), NetworkFault.EXPIRED_RECORD, FaultSide.PEER, "on the peer's computer"),
    "a key that the ledger does not know": (
        "record", [], peer(is_listed=False, is_registered=False),
        NetworkFault.NO_RECORD, FaultSide.PEER, "ask the peer"),
    "a record of the future": (
        "record", [MET], peer(ahead=900.0), NetworkFault.WRONG_CLOCK, FaultSide.PEER, "set-ntp"),
    "a record that somebody else wrote": (
        "record", [], peer(is_signed=False), NetworkFault.NO_RECORD, FaultSide.PEER, "who runs the ledger"),
    "a peer whose relay does not know it": (
        "peer", [], peer(code="FF-NET-071"), NetworkFault.PEER_ABSENT, FaultSide.PEER, "on the peer's computer"),
    "a peer whose relay is down": (
        "peer", [], peer(code="FF-NET-070"), NetworkFault.RELAY_DOWN, FaultSide.RELAY, "--relay 198.51.100.1:4510"),
    "a peer that does not come": (
        "peer", [], peer(code="FF-NET-073", cause="it did not come in time"),
        NetworkFault.PEER_ABSENT, FaultSide.PEER, "on the peer's computer"),
    "a peer whose relay calls our clock wrong": (
        "peer", [], peer(code="FF-NET-072", cause="our ticket is not of this minute"),
        NetworkFault.WRONG_CLOCK, FaultSide.UNKNOWN, "--relay 198.51.100.1:4510"),
    "a peer behind a firewall": (
        "peer", [], peer(code="FF-NET-043", is_relayed=False, over="203.0.113.5:4511"),
        NetworkFault.FIREWALL_ON_ACCEPT, FaultSide.PEER, "--listen PORT"),
    "somebody else at the peer's place": (
        "peer", [], peer(code="FF-NET-004"), NetworkFault.WRONG_KEY, FaultSide.PEER, "on the peer's computer"),
}  # fmt: skip
SYMMETRIC = (MET, but(SECOND, seen=ObservedAddress(HOME, (OUTSIDE[0], 51234))))


def test_symmetric_nats_on_both_sides_stay_on_the_relay_and_are_no_failure() -> None:
    one = told(*SYMMETRIC, theirs=NetReadings(HERE, relays=SYMMETRIC))["pair"]
    assert (one.state, one.fault, one.side) == (FindingState.SLOW, NetworkFault.SYMMETRIC_NAT, FaultSide.BOTH)
    assert "expected and no fault" in one.measured
    for mine, theirs in (((MET, SECOND), SYMMETRIC), (SYMMETRIC, (MET, SECOND)), ((MET, SECOND), (MET, SECOND))):
        assert told(*mine, theirs=NetReadings(HERE, relays=theirs))["pair"].state is FindingState.OK
    assert told(MET, theirs=NetReadings(HERE, relays=SYMMETRIC))["pair"].state is FindingState.UNKNOWN


def test_a_peer_that_answers_or_declines_is_there() -> None:
    assert told(peer=PEER)["peer"].state is FindingState.OK
    assert told(peer=PEER)["record"].state is FindingState.OK
    for code, cause in (("FF-NET-045", ""), ("FF-NET-073", "it declined")):
        assert told(**peer(code=code, cause=cause))["peer"].state is FindingState.OK
    assert told(**peer(failed="FF-NET-043", why="refused"))["record"].state is FindingState.UNKNOWN


def test_a_fault_is_named_with_its_side_and_the_next_step(subtests: pytest.Subtests) -> None:
    for case in CASES:
        with subtests.test(case=case):
            name, relays, facts, fault, side, step = CASES[case]
            one = told(*relays, **facts)[name]
            assert (one.fault, one.side) == (fault, side), one
            assert step in one.step
            assert one.cause
            assert (one.state is FindingState.FAILS) == bool(one.code)
            assert [piece for piece in one.step.split("; ") if len(piece) > 60] == []  # of 80 columns


def test_a_missing_family_that_nobody_needs_is_no_failure() -> None:
    one = told(MET, local=local(ipv6=""))["ipv6"]
    assert (one.state, one.fault) == (FindingState.NOTE, NetworkFault.NO_IPV6)


def test_a_carriers_nat_is_a_guess_and_says_so() -> None:
    trail = RouteTrace(("192.168.1.1", "100.64.3.1", "198.51.100.254"), (0.001, 0.01, 0.02), is_end=True)
    found = told(but(MET, udp=trail), SECOND)["nat"]
    assert [detail.word for detail in found.details] == ["guess"]
    assert "100.64.3.1" in found.details[0].text


def test_a_black_hole_is_told_with_the_command_for_this_computers_device() -> None:
    one = told(but(MET, is_stalled=True, passing=1280), local=local(device="wlan0"))["mtu"]
    assert [detail.text for detail in one.details] == ["as root, ip link set wlan0 mtu 1280"]


def test_one_vantage_point_does_not_tell_the_kind_of_a_nat() -> None:
    one = told(MET)["nat"]
    assert (one.state, one.fault) == (FindingState.UNKNOWN, NetworkFault.NONE)
    assert "--relay SECOND" in one.step
    assert told(but(MET, seen=ObservedAddress(OUTSIDE, OUTSIDE)))["nat"].state is FindingState.OK


def test_a_small_skew_is_told_and_fails_nothing() -> None:
    assert told(but(MET, skew=30.0))["clock"].state is FindingState.SLOW
    assert told(but(MET, skew=60.0))["clock"].state is FindingState.SLOW


@pytest.mark.parametrize("seconds", [0.1, 1.0])
def test_a_rate_leaves_out_the_time_in_which_it_got_going(seconds: float) -> None:
    slow = [(seconds * at / 100, 100) for at in range(10, 31, 10)]
    fast = [(seconds * at / 100, 1000) for at in range(31, 101)]
    rate = rate_of(slow + fast)
    assert rate is not None
    assert rate.rate == pytest.approx(1000 * 100 / seconds, rel=0.05)
    assert rate.moved == 70_300
    assert rate_of(fast[:1]) is None


def test_without_a_relay_every_line_says_what_to_name() -> None:
    found = told()
    for name in ("relay", "clock", "nat", "mtu", "up", "down", "reach"):
        assert found[name].state is FindingState.UNKNOWN
        assert "farflung check --net --relay HOST:PORT" in found[name].step


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"FFN1" + bytes(32), ResponderKind.OURS),
        (b"FFN9", ResponderKind.OTHER_VERSION),
        (b"FFR1\x01", ResponderKind.OTHER_VERSION),
        (b"HTTP/1.1 400 Bad Request\r\n", ResponderKind.HTTP),
        (b"<html>", ResponderKind.HTTP),
        (b"\x15\x03\x01\x00\x02\x02\x46", ResponderKind.TLS),
        (b"SSH-2.0-x\r\n", ResponderKind.OTHER),
        (b"", ResponderKind.CLOSED),
    ],
)
def test_who_answers_is_told_by_the_first_words(data: bytes, kind: ResponderKind) -> None:
    assert voice(data)[0] is kind


@given(st.binary(max_size=200))
def test_what_a_stranger_says_moves_no_cursor(data: bytes) -> None:
    _, words, key = voice(data)
    assert words.isprintable()
    assert len(words) <= 60
    assert key == "" or len(key) == 64


trails = st.one_of(st.none(), st.sampled_from([NEAR, FAR, RouteTrace(), msgspec.structs.replace(FAR, is_end=True)]))
relays_ = st.builds(
    RelayReading,
    st.just("r.example:4510"),
    st.just("r.example"),
    st.just(4510),
    named=st.sampled_from(["", KEY]),
    address=st.sampled_from(["198.51.100.1", "2001:db8::1"]),
    families=st.sampled_from([(), (4,), (6,), (4, 6)]),
    way=st.sampled_from(TcpConnectOutcome),
    voice=st.sampled_from(ResponderKind),
    code=st.sampled_from(["", "FF-NET-004", "FF-NET-044", "FF-NET-046", "FF-NET-047"]),
    trips=st.sampled_from([(), (0.02,), (0.02, 0.5, 0.6)]),
    skew=st.sampled_from([None, 0.0, 10.0, -4000.0]),
    seen=st.sampled_from(
        [
            None,
            ObservedAddress(HOME, OUTSIDE),
            ObservedAddress(HOME, ("203.0.113.9", 7)),
            ObservedAddress(OUTSIDE, OUTSIDE),
        ]
    ),
    mtu=st.sampled_from([0, 1500]),
    is_stalled=st.booleans(),
    passing=st.sampled_from([0, 1280]),
    is_rated=st.booleans(),
    up=st.sampled_from([None, ThroughputReading(1.0, 1, 1.0), MET.up]),
    down=st.sampled_from([None, ThroughputReading(1.0, 1, 1.0), MET.down]),
    loaded=st.sampled_from([(), (0.02,), (0.7, 0.8)]),
    trail=trails,
    other=trails,
    udp=trails,
)
reaches = st.builds(
    PortReachReading, st.just(4511), is_ours=st.booleans(), came=st.booleans(),
    answer=st.sampled_from(["", "yes", "refused", "silent", "unreachable"]), why=st.just("it says so"),
)  # fmt: skip
locals_ = st.builds(
    LocalNetReading, st.sampled_from(["linux", "darwin"]), ipv4=st.sampled_from(["", "192.168.1.2", "100.64.0.9"]),
    ipv6=st.sampled_from(["", "fe80::1"]), is_kept=st.sampled_from([None, True, False]),
    sending=st.sampled_from([0.0, 1e9]),
)  # fmt: skip


@given(locals_, st.lists(relays_, max_size=3), st.one_of(st.none(), reaches))
def test_whatever_is_read_each_line_that_is_not_good_has_a_cause_and_a_step(
    here: LocalNetReading, relays: list[RelayReading], reach: PortReachReading | None
) -> None:
    for one in doctor_net_report.examine(NetReadings(here, relays=tuple(relays), reach=reach)):
        assert one.measured
        if one.state in (FindingState.SLOW, FindingState.UNKNOWN, FindingState.FAILS):
            assert one.cause, one
            assert one.step, one
        if one.state is FindingState.FAILS:
            assert one.code.startswith("FF-HOST-09"), one
            assert one.fault, one
            assert one.side, one

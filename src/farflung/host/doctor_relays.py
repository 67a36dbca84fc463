"""Decides whether a relay can be used, whose fault it is if it cannot, and the exact next step.

Sides are told apart by comparing: with other relays, with another port of the same address, and by how far packets get.
What cannot be told apart from here is said to be so.
"""

from __future__ import annotations

import ipaddress
import shlex
import statistics
from collections.abc import Sequence
from typing import Final

from farflung.core.release import UPGRADE
from farflung.core.units import format_rate
from farflung.host.findings import FaultSide, FindingDetail, FindingState, NetworkFault, ProbeFinding, brief
from farflung.host.net_readings import OURS, LocalNetReading, RelayReading, ResponderKind, RouteTrace, TcpConnectOutcome

CODE_AWAY: Final = "FF-HOST-090"  # a relay cannot be reached
CODE_STRANGER: Final = "FF-HOST-091"  # what answers is no relay of this version
CODE_KEY: Final = "FF-HOST-092"  # the relay has another key than was named
CODE_REFUSED: Final = "FF-HOST-093"  # the relay does not take this key in
CODE_OUT: Final = "FF-HOST-094"  # there is no way out of this computer
CARRIER: Final = ipaddress.ip_network("100.64.0.0/10")  # RFC 6598: between a carrier's NAT and its customers
_INNER: Final = (
    *(ipaddress.ip_network(net) for net in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16")),
    CARRIER,
    *(ipaddress.ip_network(net) for net in ("fc00::/7", "fe80::/10")),
)
FAR: Final = 0.3  # seconds to and fro: an exchange through the relay takes two of them at least
_AGAIN: Final = "farflung check --net --relay "
_START: Final = "there, systemctl status farflung-relay"


def relay(name: str, one: RelayReading, others: Sequence[RelayReading], local: LocalNetReading) -> ProbeFinding:
    """One relay, beside the other ones."""
    if one.way is not TcpConnectOutcome.STANDS:
        return _away(name, one, others, local)
    if one.voice in (ResponderKind.OTHER_VERSION, ResponderKind.HTTP, ResponderKind.TLS, ResponderKind.OTHER):
        return _stranger(name, one, others)
    if one.is_met:
        return _met(name, one)
    return _refused(name, one)


def _met(name: str, one: RelayReading) -> ProbeFinding:
    trip = statistics.median(one.trips)
    measured = f"{one.place} answers in {brief(trip)}"
    told = [f"{format_rate(8 * rate.rate)} {way}" for rate, way in ((one.up, "up"), (one.down, "down")) if rate]
    measured += f"; {', '.join(told)}" if told else ""
    details = () if one.named else (FindingDetail("key", one.key), FindingDetail("", "not compared: none was named"))
    if trip > FAR:
        cause = f"it is far away, or the line is busy, as the line `up` says: good is {brief(FAR)} or less"
        step = f"{_AGAIN}HOST:PORT; with a relay that is nearer"
        return ProbeFinding(name, FindingState.SLOW, measured, cause, step, details=details, side=FaultSide.BETWEEN)
    return ProbeFinding(name, FindingState.OK, measured, details=details)


def _fails(
    name: str,
    measured: str,
    cause: str,
    step: str,
    code: str,
    fault: NetworkFault,
    side: FaultSide,
    *details: FindingDetail,
) -> ProbeFinding:
    return ProbeFinding(name, FindingState.FAILS, measured, cause, step, code, details, fault, side)


def _away(name: str, one: RelayReading, others: Sequence[RelayReading], local: LocalNetReading) -> ProbeFinding:
    match one.way:
        case TcpConnectOutcome.NO_NAME:
            return _nameless(name, one, others)
        case TcpConnectOutcome.NO_ROUTE:
            return _no_route(name, one, local)
        case TcpConnectOutcome.REFUSED:
            return _fails(
                name,
                f"{one.place} refuses connections",
                f"{one.address} is there and says that nobody listens on port {one.port}: the relay does not run, or "
                "has another port; a firewall there may say so as well",
                _START,
                CODE_AWAY,
                NetworkFault.RELAY_DOWN,
                FaultSide.RELAY,
            )
        case TcpConnectOutcome.FAILED:
            return _fails(
                name,
                f"{one.place} was not asked",
                f"this system says: {one.words}",
                f"{_AGAIN}{one.place}; without what keeps programs from the network",
                CODE_OUT,
                NetworkFault.NO_NETWORK,
                FaultSide.HERE,
            )
    return _silent(name, one, others)


def _nameless(name: str, one: RelayReading, others: Sequence[RelayReading]) -> ProbeFinding:
    known = [other.host for other in others if other.families and not _is_address(other.host)]
    if known:
        cause = f"other names are found ({known[0]}), this one is not: {one.words}"
        side, step = FaultSide.RELAY, f"ask for the relay's name again; getent hosts {shlex.quote(one.host)}"
    else:
        cause = f"no name server tells its address: {one.words}"
        side, step = (
            FaultSide.UNKNOWN,
            f"getent hosts {shlex.quote(one.host)}; then the same with a name that you know",
        )
    return _fails(name, f"{one.host} has no address", cause, step, CODE_AWAY, NetworkFault.NO_NAME, side)


def _no_route(name: str, one: RelayReading, local: LocalNetReading) -> ProbeFinding:
    is_six = ":" in one.address
    family, other = ("IPv6", "IPv4") if is_six else ("IPv4", "IPv6")
    here = local.ipv6 if is_six else local.ipv4
    fault = NetworkFault.NO_IPV6 if is_six else NetworkFault.NO_IPV4
    has = f"this computer has no {family}" if not here else f"this computer has no way to {one.address}"
    cause = f"{has} ({one.words}), and the relay has no other address"
    step = f"name a relay that has {other}; or ip {'-6 ' if is_six else ''}route show default"
    return _fails(name, f"{one.place} cannot be reached", cause, step, CODE_OUT, fault, FaultSide.NETWORK)


def _silent(name: str, one: RelayReading, others: Sequence[RelayReading]) -> ProbeFinding:
    """Nothing comes back: the relay's computer is gone, or somebody drops what is for this port."""
    measured = f"{one.place} does not answer ({one.words})"
    same_port = [other for other in others if other.way is TcpConnectOutcome.STANDS and other.port == one.port]
    way_out = [other for other in others if other.way is TcpConnectOutcome.STANDS]
    trail, control = one.trail, one.other
    if control is not None and trail is not None and control.length > trail.length:
        return _blocked(name, measured, one, trail, control)
    if same_port:
        cause = f"{same_port[0].place} answers on the same port, so nothing here is in the way of it; "
        cause += f"packets to {one.address} get {_how_far(trail)}"
        return _fails(name, measured, cause, _START, CODE_AWAY, NetworkFault.RELAY_DOWN, FaultSide.RELAY)
    if trail is not None and any(not is_inner(hop) for hop in trail.hops if hop):
        cause = f"packets get {_how_far(trail)}, and no port of {one.address} answers: it is off, or drops all"
        return _fails(name, measured, cause, _START, CODE_AWAY, NetworkFault.RELAY_DOWN, FaultSide.RELAY)
    if way_out:
        cause = f"other relays answer, on other ports: {one.address} is off, or somebody drops port {one.port}"
        step = f"let the relay listen on port {way_out[0].port} as well; or {_START}"
        return _fails(name, measured, cause, step, CODE_AWAY, NetworkFault.RELAY_DOWN, FaultSide.UNKNOWN)
    cause = f"packets get {_how_far(trail)}: either nothing leaves this network, or {one.address} is off"
    step = f"{_AGAIN}HOST:PORT, another relay; if none answers, it is this network"
    return _fails(name, measured, cause, step, CODE_AWAY, NetworkFault.RELAY_DOWN, FaultSide.UNKNOWN)


def _blocked(name: str, measured: str, one: RelayReading, trail: RouteTrace, control: RouteTrace) -> ProbeFinding:
    """Packets to another port of the same address get further."""
    port = f"TCP port {one.port}"
    if control.is_end and trail.length >= control.length - 1:
        cause = f"{one.address} answers on other ports and drops {port}: a firewall on it, or right before it"
        step = f"there, as root, ufw allow {one.port}/tcp; or see nft list ruleset"
        return _fails(name, measured, cause, step, CODE_AWAY, NetworkFault.PORT_BLOCKED, FaultSide.RELAY)
    last = next((hop for hop in reversed(trail.hops) if hop), "")
    beyond = [hop for hop in control.hops[trail.length :] if hop]
    further = f"packets to other ports get to {beyond[-1]}" if beyond else "other ports answer"
    if not last:
        cause = f"{port} is dropped on this computer, or by the first router; {further}"
        step = f"as root, nft list ruleset; allow outgoing {port}"
        return _fails(name, measured, cause, step, CODE_AWAY, NetworkFault.PORT_BLOCKED, FaultSide.NETWORK)
    cause = f"{port} gets as far as {last} and is dropped behind it; {further}"
    is_near = is_inner(last)
    step = (
        f"allow outgoing {port} in the router {last}"
        if is_near
        else f"ask who runs {last} to let {port} pass; or use a relay on port 443"
    )
    side = FaultSide.NETWORK if is_near else FaultSide.BETWEEN
    return _fails(name, measured, cause, step, CODE_AWAY, NetworkFault.PORT_BLOCKED, side)


def _how_far(trail: RouteTrace | None) -> str:
    last = next((hop for hop in reversed(trail.hops) if hop), "") if trail is not None else ""
    return f"as far as {last}" if last else "nowhere that says so"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_inner(hop: str) -> bool:
    """Whether an address is one that many networks use inside (RFC 1918, 6598, 4193), not a public one."""
    address = ipaddress.ip_address(hop.split("%")[0])
    return any(address in network for network in _INNER)


def _stranger(name: str, one: RelayReading, others: Sequence[RelayReading]) -> ProbeFinding:
    """Somebody answers, and it is no relay of this version."""
    if one.voice is ResponderKind.OTHER_VERSION:
        return _version(name, one)
    measured = f"what answers at {one.place} is no relay"
    met = [other for other in others if other.is_met]
    alike = [other for other in others if other.voice is one.voice]
    if one.voice is ResponderKind.OTHER:
        cause = f"another program listens there; it says {one.heard!r}"
        step = f"ask for the relay's port; there, ss -ltnp 'sport = :{one.port}' shows whose it is"
        return _fails(name, measured, cause, step, CODE_STRANGER, NetworkFault.NO_RELAY, FaultSide.RELAY)
    said = f"it speaks {'HTTP' if one.voice is ResponderKind.HTTP else 'TLS'} ({one.heard})"
    page = f"open http://{one.place}/ in a browser"
    if alike:
        cause = f"{said}, and so does {alike[0].place}: this network answers in place of them"
        step, side = f"{page}; log in there, or use another network", FaultSide.NETWORK
    elif met:
        cause = f"{said}, while {met[0].place} answers as it should: a web server has that port, or a proxy takes it"
        step, side = f"ask for the relay's port; {page}; whose page is it?", FaultSide.RELAY
    else:
        cause = f"{said}: a captive portal or proxy of this network answers in its place, or a web server has the port"
        step, side = f"{page}; a page to log in to is this network's", FaultSide.NETWORK
    return _fails(name, measured, cause, step, CODE_STRANGER, NetworkFault.CAPTIVE_PROXY, side)


def _version(name: str, one: RelayReading) -> ProbeFinding:
    ours, theirs = OURS.decode()[-1], one.heard[-1:]
    measured = f"{one.place} speaks version {theirs} of the protocol, this program {ours}"
    if theirs.isdigit() and theirs > ours:
        cause, step, side = "this farflung is the older one", UPGRADE, FaultSide.HERE
    else:
        cause, side = "the relay's farflung is the older one", FaultSide.RELAY
        step = f"there, {UPGRADE}; and start the relay again"
    return _fails(name, measured, cause, step, CODE_STRANGER, NetworkFault.VERSION_MISMATCH, side)


def _refused(name: str, one: RelayReading) -> ProbeFinding:
    """It takes connections, and not us."""
    if one.code == "FF-NET-004":
        measured = f"{one.place} has another key than you named"
        cause = "the named key is old or mistyped, the relay has got a new one, or someone else answers there"
        step = "ask who runs the relay for its key"
        named, has = FindingDetail("named", one.named), FindingDetail("has", one.key or one.cause)
        return _fails(name, measured, cause, step, CODE_KEY, NetworkFault.WRONG_KEY, FaultSide.HERE, named, has)
    if one.is_stalled and one.passing:
        measured = f"{one.place} takes connections, and large packets do not arrive"
        step = "the line mtu below says what to do"
        cause = "small packets pass, so the handshake begins and does not end"
        return _fails(name, measured, cause, step, CODE_AWAY, NetworkFault.MTU_BLACK_HOLE, FaultSide.BETWEEN)
    if one.code in ("FF-NET-045", "FF-NET-046") and one.voice is ResponderKind.OURS:
        measured = f"{one.place} takes us not in"
        cause = "it does not admit this key, or it is full"
        step = "ask who runs the relay to admit your key; or try again in a minute"
        return _fails(name, measured, cause, step, CODE_REFUSED, NetworkFault.NOT_ADMITTED, FaultSide.RELAY)
    if one.voice is ResponderKind.CLOSED:
        measured = f"{one.place} takes the connection and hangs up"
        cause = f"it is no relay, or one of an older version ({one.code or 'it does not say which it is'})"
        step = f"there, farflung version; then {UPGRADE}"
        return _fails(name, measured, cause, step, CODE_STRANGER, NetworkFault.VERSION_MISMATCH, FaultSide.RELAY)
    measured = f"{one.place} takes the connection and says nothing"
    cause = f"it is no relay, or it hangs, or a proxy in between took the connection ({one.cause or one.code})"
    step = f"{_START}; or open http://{one.place}/ in a browser; is it a page to log in to?"
    return _fails(name, measured, cause, step, CODE_STRANGER, NetworkFault.NO_RELAY, FaultSide.UNKNOWN)

"""Judges the measurements of the network line itself: addresses, clock, NAT, port, MTU, rates, UDP.

A threshold stands with its reason.
"""

from __future__ import annotations

import ipaddress
import statistics
from collections.abc import Sequence
from typing import Final

from farflung.core.units import format_bytes, format_rate
from farflung.host.doctor_relays import CARRIER, CODE_OUT, is_inner
from farflung.host.findings import MISSED, FaultSide, FindingDetail, FindingState, NetworkFault, ProbeFinding, brief
from farflung.host.net_readings import LocalNetReading, PortReachReading, RelayReading, ThroughputReading

CODE_CLOCK: Final = "FF-HOST-095"  # a clock is wrong
CODE_MTU: Final = "FF-HOST-096"  # large packets vanish on the way
CODE_REACH: Final = "FF-HOST-097"  # the port is not reached from outside
SKEW: Final = 60.0  # seconds: a ticket of this minute is refused beyond it
DRIFT: Final = 5.0  # seconds: nobody keeps that clock
BLOAT: Final = 0.1  # seconds that an upload may add to a round trip, and others still work beside it
LINE: Final = 0.2  # seconds between a home's router and its provider's: access lines take 5 to 60 ms
SLOW_UP, SLOW_DOWN = 1e6 / 8, 8e6 / 8  # bytes a second: below, a round of the default run waits for the line
BUSY: Final = 0.5  # of the line's upload, that programs here send by themselves
LEAST_MTU: Final = 1280  # IPv6's own minimum: nothing has to carry less
ASK: Final = "farflung check --net --relay HOST:PORT,KEY"


def _missed(name: str, why: str, step: str) -> ProbeFinding:
    return ProbeFinding(name, FindingState.UNKNOWN, MISSED, why, step)


def no_relay(name: str, relays: Sequence[RelayReading]) -> ProbeFinding:
    """No relay was there to measure with."""
    if not relays:
        return _missed(name, "no relay was named, and no other computer is contacted", ASK)
    return _missed(name, "no relay took us in", "mend what the lines of the relays say, and check again")


# Addresses


def addresses(local: LocalNetReading, relays: Sequence[RelayReading]) -> list[ProbeFinding]:
    """IPv4 and IPv6: whether this computer has them, and whether anybody wants them."""
    return [_family(4, local.ipv4, local, relays), _family(6, local.ipv6, local, relays)]


def lan(local: LocalNetReading) -> ProbeFinding:
    """Whether a node here looks for peers on its LAN; it does well without."""
    if local.lan:
        return ProbeFinding("lan", FindingState.NOTE, f"peers on this LAN are not looked for: {local.lan}")
    said = "a node here finds peers on its LAN, and tells the LAN its key and port (lan = false ends that)"
    return ProbeFinding("lan", FindingState.OK, said)


def _family(version: int, source: str, local: LocalNetReading, relays: Sequence[RelayReading]) -> ProbeFinding:
    name, fault = f"ipv{version}", NetworkFault.NO_IPV4 if version == 4 else NetworkFault.NO_IPV6
    needed = [one.place for one in relays if one.families == (version,) and one.address]
    flag = "-6 " if version == 6 else ""
    step = f"ip {flag}address, then ip {flag}route show default"
    if not source:
        cause = f"this computer has no address or no way for IPv{version}"
        if needed:
            cause += f", and {needed[0]} has no other"
            return ProbeFinding(
                name, FindingState.FAILS, "there is none", cause, step, CODE_OUT, (), fault, FaultSide.NETWORK
            )
        if not (local.ipv4 or local.ipv6):
            fault = NetworkFault.NO_NETWORK
            return ProbeFinding(
                name, FindingState.FAILS, "there is none", cause, step, CODE_OUT, (), fault, FaultSide.NETWORK
            )
        measured = f"there is none; peers and relays that have only IPv{version} cannot be reached"
        return ProbeFinding(name, FindingState.NOTE, measured, fault=fault, side=FaultSide.NETWORK)
    works = [one for one in relays if one.is_met and _version(one.address) == version]
    measured = f"{source}{_of_what(source)}"
    return ProbeFinding(name, FindingState.OK, measured + ("; a relay answers over it" if works else ""))


def _version(address: str) -> int:
    return ipaddress.ip_address(address.split("%")[0]).version


def _of_what(source: str) -> str:
    address = ipaddress.ip_address(source.split("%")[0])
    if address in CARRIER:
        return ", a carrier's: it shares a public one with others"
    return ", a private one" if is_inner(source) else ""


# Clock


def clock(local: LocalNetReading, relays: Sequence[RelayReading]) -> ProbeFinding:
    """This computer's clock against the relays'."""
    told = {one.place: one.skew for one in relays if one.skew is not None}
    if not told:
        return no_relay("clock", relays)
    off = {place: skew for place, skew in told.items() if abs(skew) > SKEW}
    near = [place for place in told if place not in off]
    worst = max(told.values(), key=abs)
    if not off:
        measured = f"within {brief(max(abs(worst), 0.001))} of {_and(list(told))}"
        if abs(worst) > DRIFT:
            cause = f"a clock is not synchronised: tickets are refused from {SKEW:.0f} s on"
            return ProbeFinding(
                "clock", FindingState.SLOW, measured, cause, "timedatectl set-ntp true", side=FaultSide.UNKNOWN
            )
        return ProbeFinding("clock", FindingState.OK, measured)
    measured = ", ".join(f"{place} is {_ahead(skew)}" for place, skew in off.items())
    if near:
        cause = f"{_and(near)} agrees with this computer"
        step = f"there, {_set(-off[next(iter(off))])}"
        return _clock_fails(measured, cause, step, FaultSide.RELAY)
    if len(off) > 1 and max(off.values()) - min(off.values()) <= SKEW:
        cause = "the relays agree with each other, so it is this computer's clock"
        return _clock_fails(measured, cause, _set(worst), FaultSide.HERE)
    if len(off) > 1:
        cause = "they agree neither with this computer nor with each other"
        return _clock_fails(measured, cause, "timedatectl set-ntp true, here and there", FaultSide.UNKNOWN)
    if local.is_kept:
        cause = "a time service keeps this computer's clock, so it is the relay's"
        return _clock_fails(measured, cause, f"there, {_set(-worst)}", FaultSide.RELAY)
    cause = "no time service keeps this computer's clock; a second relay would tell for certain"
    return _clock_fails(measured, cause, _set(worst), FaultSide.HERE)


def _clock_fails(measured: str, cause: str, step: str, side: FaultSide) -> ProbeFinding:
    cause += f"; circuits are refused beyond {SKEW:.0f} s"
    return ProbeFinding(
        "clock", FindingState.FAILS, measured, cause, step, CODE_CLOCK, (), NetworkFault.WRONG_CLOCK, side
    )


def _set(skew: float) -> str:
    """What sets a clock that differs by `skew` from the true one."""
    shift = f"+{skew:.0f} seconds" if skew > 0 else f"{-skew:.0f} seconds ago"
    return f"timedatectl set-ntp true; or as root, date -s '{shift}'"


def _ahead(skew: float) -> str:
    size = f"{abs(skew) / 3600:.1f} hours" if abs(skew) >= 3600 else f"{abs(skew):.0f} s"
    return f"{size} {'ahead' if skew > 0 else 'behind'}"


def _and(names: Sequence[str]) -> str:
    return " and ".join(names)


# NAT


def nat(relays: Sequence[RelayReading]) -> ProbeFinding:
    """What a NAT makes of one local port, as different relays see it."""
    points = {one.address: one.seen for one in relays if one.seen is not None}
    if not points:
        return no_relay("nat", relays)
    seen = list(points.values())
    if all(each.here == each.there for each in seen):
        return ProbeFinding("nat", FindingState.OK, "none: others see this computer's own address")
    details = _carrier(relays, {each.there[0] for each in seen})
    of_one_port = [each for each in seen if each.here[1] == seen[0].here[1]]
    if len(of_one_port) < 2:
        why = f"there is a NAT ({seen[0].there[0]} is seen), and one relay does not tell its kind"
        step = f"{ASK}; with --relay SECOND:PORT,KEY at another address as well"
        return ProbeFinding("nat", FindingState.UNKNOWN, MISSED, why, step, details=details)
    outside = {each.there for each in of_one_port}
    if len(outside) == 1:
        host, port = of_one_port[0].there
        kept = "the number of" if port == of_one_port[0].here[1] else "one port for"
        measured = f"{host}; keeps {kept} a port, whatever the destination: both sides can open a way through it"
        return ProbeFinding("nat", FindingState.OK, measured, details=details)
    measured = f"{of_one_port[0].there[0]}; symmetric: another port for every destination"
    cause = "connections stay on a relay with peers whose NAT is so too; with all others a direct way may be found"
    step = "nothing has to be done; or forward a port of the router to here, for a direct way"
    return ProbeFinding(
        "nat", FindingState.SLOW, measured, cause, step, "", details, NetworkFault.SYMMETRIC_NAT, FaultSide.NETWORK
    )


def _carrier(relays: Sequence[RelayReading], outside: set[str]) -> tuple[FindingDetail, ...]:
    """Whether there seems to be a second NAT, at the provider: only routers on the way tell, so it is a guess."""
    hops = next((one.udp.hops for one in relays if one.udp is not None and any(one.udp.hops)), ())
    shared = [hop for hop in hops if hop and ipaddress.ip_address(hop) in CARRIER]
    inner = [hop for hop in hops if hop and is_inner(hop) and hop not in outside]
    if shared:
        return (FindingDetail("guess", f"a carrier's NAT behind your own: {shared[0]} is on the way"),)
    if len(inner) > 1:
        return (FindingDetail("guess", f"two NATs in a row, or two routers of one: {inner[0]} and {inner[1]}"),)
    return ()


# A port of this computer


def reach(found: PortReachReading | None, relays: Sequence[RelayReading]) -> ProbeFinding:
    """Whether others can connect to a port here."""
    if found is None:
        step = f"{ASK} --listen PORT"
        return _missed("reach", "no port was named; peers that nobody reaches use a relay", step)
    port = found.port
    if not found.answer:
        return _missed("reach", found.why, f"in a minute, {ASK} --listen {port}")
    seen = next((one.seen for one in relays if one.seen is not None), None)
    is_behind = seen is not None and seen.here[0] != seen.there[0]
    who = "this check" if found.is_ours else "a program here"
    if found.answer == "yes" and (found.came or not found.is_ours):
        return ProbeFinding("reach", FindingState.OK, f"port {port} is reached from outside")
    if found.answer == "yes":
        outside = seen.there[0] if seen is not None else "the outer address"
        cause = f"somebody else takes connections to port {port} of {outside}: the router, or another computer"
        step = f"forward another port of the router to here; --listen {port + 1}"
        return _unreached(port, cause, step, NetworkFault.NOT_FORWARDED, FaultSide.NETWORK)
    what = {"refused": "it was refused", "silent": "nothing came back"}.get(found.answer, "a router said no")
    if is_behind and seen is not None:
        cause = f"{who} listens, and the NAT at {seen.there[0]} does not pass it on ({what})"
        step = f"forward TCP port {port} of the router to {seen.here[0]}; or stay on the relay, which works"
        return ProbeFinding(
            "reach",
            FindingState.SLOW,
            f"port {port} is not reached from outside",
            cause,
            step,
            fault=NetworkFault.NOT_FORWARDED,
            side=FaultSide.NETWORK,
        )
    cause = f"{who} listens and no NAT is before it, yet {what}: a firewall here, or of this network, drops who comes"
    step = f"as root, ufw allow {port}/tcp; or firewall-cmd --add-port={port}/tcp; or see nft list ruleset"
    return _unreached(port, cause, step, NetworkFault.FIREWALL_ON_ACCEPT, FaultSide.HERE)


def _unreached(port: int, cause: str, step: str, fault: NetworkFault, side: FaultSide) -> ProbeFinding:
    measured = f"port {port} is not reached from outside"
    return ProbeFinding("reach", FindingState.FAILS, measured, cause, step, CODE_REACH, (), fault, side)


# MTU


def mtu(local: LocalNetReading, relays: Sequence[RelayReading]) -> ProbeFinding:
    """Whether the largest packets arrive."""
    stalled = [one for one in relays if one.is_stalled]
    met = [one for one in relays if one.is_met and not one.is_stalled]
    if stalled:
        return _black_hole(local, stalled[0], met)
    if not met:
        return no_relay("mtu", relays)
    sizes = [one.mtu for one in met if one.mtu]
    if not sizes:
        return ProbeFinding("mtu", FindingState.OK, "full packets arrive; this system does not tell their size")
    return ProbeFinding("mtu", FindingState.OK, f"packets of {min(sizes)} bytes arrive, both ways")


def _black_hole(local: LocalNetReading, one: RelayReading, met: Sequence[RelayReading]) -> ProbeFinding:
    if not one.passing:
        cause = f"small messages to {one.place} pass and 16 KB do not, in packets of any size: the line is very slow"
        return ProbeFinding("mtu", FindingState.UNKNOWN, MISSED, cause, f"{ASK}; with less else on the line")
    measured = f"packets over {one.passing} bytes vanish on the way to or from {one.place}"
    cause = "a router drops what is too large for its next line, and its word about that does not arrive"
    side = FaultSide.BETWEEN
    if met:
        cause += f"; full packets reach {met[0].place}, so it is not this computer's line"
        side = FaultSide.RELAY
    else:
        cause += "; a line by PPPoE, mobile or a tunnel is often the place"
    steps = []
    if local.system == "linux":
        steps = [
            "as root, sysctl -w net.ipv4.tcp_mtu_probing=1",
            f"as root, ip link set {local.device or 'DEVICE'} mtu {one.passing}",
        ]
    step = steps[0] if steps else f"set the network device's MTU to {max(one.passing, 576)}"
    details = tuple(FindingDetail("or", each) for each in steps[1:])
    return ProbeFinding(
        "mtu", FindingState.FAILS, measured, cause, step, CODE_MTU, details, NetworkFault.MTU_BLACK_HOLE, side
    )


# Rates


def rates(local: LocalNetReading, relays: Sequence[RelayReading]) -> list[ProbeFinding]:
    """Up, with what it does to everybody else's round trips, and down."""
    rated = [one for one in relays if one.is_met and one.is_rated]
    if not rated:
        if any(one.is_stalled for one in relays):
            why, step = "large packets do not arrive, as the line `mtu` says", "mend that, and check again"
            return [_missed(name, why, step) for name in ("up", "down")]
        if any(one.is_met for one in relays):
            why = "the time was over, or the relay did not take us in once more"
            return [_missed(name, why, f"in a minute, {ASK}") for name in ("up", "down")]
        return [no_relay(name, relays) for name in ("up", "down")]
    best_up = max(rated, key=lambda one: one.up.rate if one.up else 0.0)
    best_down = max(rated, key=lambda one: one.down.rate if one.down else 0.0)
    return [_up(local, best_up), _down(best_down)]


def _per_second(rate: ThroughputReading, place: str) -> str:
    return f"{format_rate(8 * rate.rate)} with {place} ({format_bytes(rate.moved)} in {rate.seconds:.1f} s)"


def _saturated(
    measured: str, cause: str, step: str, details: tuple[FindingDetail, ...], side: FaultSide
) -> ProbeFinding:
    fault = NetworkFault.SATURATED_UPLINK
    return ProbeFinding("up", FindingState.SLOW, measured, cause, step, "", details, fault, side)


def _up(local: LocalNetReading, one: RelayReading) -> ProbeFinding:
    trips, loaded = sorted(one.trips), sorted(one.loaded)
    line = _line_seconds(one)
    spread = trips[-2] - trips[0] if len(trips) > 2 else 0.0
    added = statistics.median(loaded) - trips[0] if loaded else 0.0
    if one.up is None:
        measured = f"nothing arrived at {one.place} in time"
        cause = "the line up is full, or very slow; or the relay's allowance for this key is used up"
        step = f"stop what else sends on this line; in a minute, {ASK}"
        return _saturated(measured, cause, step, (), FaultSide.NETWORK)
    measured = _per_second(one.up, one.place)
    most = f"{max(0.1, 0.95 * 8 * one.up.rate / 1e6):.1f}"
    cap = f"FARFLUNG_UP_MBIT={most} keeps farflung below it, farflung relay --uplink {most} a relay"
    keep = (FindingDetail("cap", cap),)
    if local.sending > BUSY * one.up.rate:
        cause = f"programs on this computer send {format_rate(8 * local.sending)} by themselves, and round trips wait"
        step = "nethogs, or ss -tnp, shows which; stop it, or give it a rate"
        return _saturated(measured, cause, step, keep, FaultSide.HERE)
    if spread > BLOAT or line > LINE:
        where = f"the line to your provider alone takes {brief(line)}" if line > LINE else "no load of ours was on it"
        cause = f"the line is busy: round trips of {brief(trips[0])} to {brief(trips[-1])}; {where}"
        step = "stop what else sends on this line; a backup, a video call, another computer of this network"
        return _saturated(measured, cause, step, keep, FaultSide.NETWORK)
    if added > BLOAT:
        cause = f"an upload of ours raises round trips from {brief(trips[0])} to {brief(trips[0] + added)}: "
        cause += "the router's queue is long, and everything else on the line waits in it"
        step = f"in the router, SQM or fq_codel at {format_rate(0.95 * 8 * one.up.rate)} up"
        return _saturated(measured, cause, step, keep, FaultSide.NETWORK)
    longer = f"{brief(added)} longer" if added >= 0.001 else "no longer"
    beside = f"; round trips meanwhile are {longer}" if loaded else ""
    if one.up.rate < SLOW_UP:
        cause = f"below {format_rate(8 * SLOW_UP)} a round of the default run waits for this line"
        return ProbeFinding(
            "up", FindingState.SLOW, measured + beside, cause, "a method that sends less: farflung plan --link"
        )
    return ProbeFinding("up", FindingState.OK, measured + beside)


def _line_seconds(one: RelayReading) -> float:
    """What lies between the first two routers that say so: a home's own, and its provider's."""
    if one.udp is None:
        return 0.0
    times = [seconds for hop, seconds in zip(one.udp.hops, one.udp.seconds, strict=False) if hop]
    return max(0.0, times[1] - times[0]) if len(times) > 1 else 0.0


def _down(one: RelayReading) -> ProbeFinding:
    if one.down is None:
        return _missed("down", "nothing arrived in time, or the relay's allowance is used up", f"in a minute, {ASK}")
    measured = _per_second(one.down, one.place)
    if one.down.rate < SLOW_DOWN:
        cause = f"below {format_rate(8 * SLOW_DOWN)}: joining a run takes long"
        return ProbeFinding(
            "down", FindingState.SLOW, measured, cause, "a relay that is nearer, or less else on the line"
        )
    return ProbeFinding("down", FindingState.OK, measured)


# UDP


def udp(relays: Sequence[RelayReading]) -> ProbeFinding:
    """Only to say what it would matter for."""
    note = "farflung's connections are TCP; UDP finds peers on the same LAN (mDNS) and nothing else"
    trails = [(one, one.udp) for one in relays if one.udp is not None]
    if not trails:
        return ProbeFinding("udp", FindingState.NOTE, note)
    if any(trail.is_end for _, trail in trails):
        return ProbeFinding("udp", FindingState.OK, f"passes; {note}")
    one, trail = max(trails, key=lambda pair: pair[1].length)
    last = next((hop for hop in reversed(trail.hops) if hop), "")
    if not one.is_met:
        return no_relay("udp", relays)
    where = f"behind {last}" if last else "on this computer, or at the first router"
    measured = f"does not reach {one.place}, which TCP does: dropped {where}"
    return ProbeFinding(
        "udp",
        FindingState.NOTE,
        measured,
        note,
        "nothing has to be done",
        "",
        (),
        NetworkFault.UDP_BLOCKED,
        _side(last),
    )


def _side(last: str) -> FaultSide:
    return FaultSide.NETWORK if not last or is_inner(last) else FaultSide.BETWEEN

"""Decides what `farflung check --net` reports, line by line, from everything that was measured."""

from __future__ import annotations

from farflung.host import doctor_congestion, doctor_peers, doctor_relays
from farflung.host import doctor_line as lines
from farflung.host.findings import ProbeFinding
from farflung.host.net_readings import NetReadings


def examine(seen: NetReadings) -> list[ProbeFinding]:
    """All lines, the nearest things first."""
    found = lines.addresses(seen.local, seen.relays)
    if seen.congestion is not None:
        found.append(doctor_congestion.congestion(seen.congestion))
    for number, one in enumerate(seen.relays, 1):
        name = "relay" if len(seen.relays) == 1 else f"relay {number}"
        others = [other for other in seen.relays if other is not one]
        found.append(doctor_relays.relay(name, one, others, seen.local))
    if not seen.relays:
        found.append(lines.no_relay("relay", ()))
    found += [
        lines.clock(seen.local, seen.relays),
        lines.nat(seen.relays),
        lines.mtu(seen.local, seen.relays),
        *lines.rates(seen.local, seen.relays),
        lines.reach(seen.reach, seen.relays),
        lines.udp(seen.relays),
        lines.lan(seen.local),
    ]
    return found + doctor_peers.examine(seen)

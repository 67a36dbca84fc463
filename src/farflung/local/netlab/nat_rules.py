"""Generates nftables rules for the emulated routers: six NAT types, by mapping and filtering behaviour.

Linux masquerades keep a packet's source port while nobody else holds it: then a mapping does not depend on where it
goes. `fully-random` draws a port for each connection, which is a symmetric mapping. What tells the cone kinds apart is
who may come in: `owner` remembers which host sent from a port, `seen` to which address it sent.

Outward is the device WAN; everything else is inside. Strays are dropped at the router's own input. Were they let in,
an early packet from outside would leave a connection that holds the port, and the host's own would get another one.
"""

from __future__ import annotations

from farflung.local.netlab.homes import NatType

WAN = "wan"
MEMORY = "120s"  # how long a router keeps a mapping that is not used

_PORTS = "meta l4proto { tcp, udp }"
_OUT = f'oifname "{WAN}" {_PORTS}'
_TO_OWNER = "dnat to meta l4proto . th dport map @owner"
_REMEMBER_OWNER = f"{_OUT} update @owner {{ meta l4proto . th sport : ip saddr }}"
_REMEMBER_SEEN = f"{_OUT} update @seen {{ ip daddr . meta l4proto . th sport }}"

_INWARD = {
    NatType.FULL_CONE: [f'iifname "{WAN}" {_PORTS} {_TO_OWNER}'],
    NatType.ADDRESS_RESTRICTED: [f'iifname "{WAN}" ip saddr . meta l4proto . th dport @seen {_TO_OWNER}'],
}
_PASSING = {
    NatType.FULL_CONE: [_REMEMBER_OWNER],
    NatType.ADDRESS_RESTRICTED: [_REMEMBER_OWNER, _REMEMBER_SEEN],
    NatType.UDP_BLOCKED: ["meta l4proto udp drop"],
}


def rules(nat: NatType) -> str:
    """What `nft -f` takes for a router of this kind; empty for a router that does no NAT."""
    if nat is NatType.NONE:
        return ""
    masquerade = "masquerade fully-random" if nat is NatType.SYMMETRIC else "masquerade"
    chains = [
        _chain("inward", "type nat hook prerouting priority dstnat;", _INWARD.get(nat, [])),
        _chain("outward", "type nat hook postrouting priority srcnat;", [f'oifname "{WAN}" {masquerade}']),
        _chain(
            "passing",
            "type filter hook forward priority 0;",
            [
                *_PASSING.get(nat, []),
                "ct state established,related accept",
                "ct status dnat accept",
                f'iifname "{WAN}" drop',
            ],
        ),
        _chain(
            "own",
            "type filter hook input priority 0; policy drop;",
            [f'iifname != "{WAN}" accept', "ct state established,related accept", "meta l4proto icmp accept"],
        ),
    ]
    memory = [
        f"  map owner {{ type inet_proto . inet_service : ipv4_addr; flags dynamic,timeout; timeout {MEMORY}; "
        "size 65535; }",
        f"  set seen {{ type ipv4_addr . inet_proto . inet_service; flags dynamic,timeout; timeout {MEMORY}; "
        "size 65535; }",
    ]
    return "\n".join(["table ip router {", *memory, *chains, "}", ""])


def too_big(*, silent: bool) -> str:
    """Rules of a router that says, or never says, that a packet is too big for its next line (RFC 2923, 2.1)."""
    drop = "icmp type destination-unreachable icmp code frag-needed drop"
    hole = ["table ip hole {", _chain("says", "type filter hook output priority 0;", [drop]), "}"]
    return "\n".join(["table ip hole {", "}", "delete table ip hole", *(hole if silent else []), ""])


def _chain(name: str, hook: str, lines: list[str]) -> str:
    return "\n".join([f"  chain {name} {{", f"    {hook}", *(f"    {line}" for line in lines), "  }"])

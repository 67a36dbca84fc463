"""Defines the result of a probe of `farflung check`: its state, the measurement and, if not good, cause and next
step.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from farflung.core.units import format_seconds

MISSED: Final = "could not measure"


class FindingState(StrEnum):
    """How a probe went; `note` is a fact without a judgement."""

    OK = "ok"
    SLOW = "slow"  # works, and a run takes longer for it
    WARN = "warn"  # works, with less safety or room than it should have
    FAILS = "fails"
    UNKNOWN = "unknown"
    NOTE = "note"


class NetworkFault(StrEnum):
    """What may be wrong between computers, by names that programs can look for."""

    NONE = ""
    RELAY_DOWN = "relay_down"
    PORT_BLOCKED = "port_blocked"
    UDP_BLOCKED = "udp_blocked"
    WRONG_CLOCK = "wrong_clock"
    WRONG_KEY = "wrong_key"
    NOT_ADMITTED = "not_admitted"
    VERSION_MISMATCH = "version_mismatch"
    NO_NAME = "no_name"
    NO_IPV4 = "no_ipv4"
    NO_IPV6 = "no_ipv6"
    NO_NETWORK = "no_network"
    CAPTIVE_PROXY = "captive_proxy"
    NO_RELAY = "no_relay"  # another program listens there
    SYMMETRIC_NAT = "symmetric_nat"
    MTU_BLACK_HOLE = "mtu_black_hole"
    SATURATED_UPLINK = "saturated_uplink"
    FIREWALL_ON_ACCEPT = "firewall_on_accept"
    NOT_FORWARDED = "not_forwarded"  # a NAT stands before the port
    EXPIRED_RECORD = "expired_record"
    NO_RECORD = "no_record"
    PEER_ABSENT = "peer_absent"


class FaultSide(StrEnum):
    """Where a fault is to be fixed."""

    NONE = ""
    HERE = "this computer"
    NETWORK = "this network"  # its router, its firewall, its provider
    RELAY = "the relay"
    PEER = "the peer"
    BOTH = "both sides"
    BETWEEN = "in between"
    UNKNOWN = "cannot be told"


class FindingDetail(msgspec.Struct, frozen=True):
    """A line below a finding: a word that says what it is, and the line."""

    word: str
    text: str


class ProbeFinding(msgspec.Struct, frozen=True):
    """One probe, judged. What is slow, warned of, failing or unknown has a cause and a step; what fails has a code."""

    name: str
    state: FindingState
    measured: str
    cause: str = ""
    step: str = ""
    code: str = ""
    details: tuple[FindingDetail, ...] = ()
    fault: NetworkFault = NetworkFault.NONE
    side: FaultSide = FaultSide.NONE


def brief(value: float) -> str:
    """A short time: `0.21 ms`, `0.31 s`."""
    return f"{value * 1000:.2g} ms" if value < 0.1 else format_seconds(value)

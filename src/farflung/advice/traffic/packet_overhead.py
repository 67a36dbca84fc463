"""Computes bytes at an interface for bytes of payload: what Ethernet, IPv4 and TCP put around it (P1).

A packet of `mtu` bytes carries mtu - 52 of payload: 20 of IPv4 (RFC 791), 20 of TCP (RFC 9293) and 12 of time stamps
(RFC 7323); Ethernet adds 14 where an interface counts (RFC 894; preamble, checksum and gap are not counted). A receiver
acknowledges every second full packet with an empty one (RFC 5681, section 4.2); a kernel that is handed packets in
batches, as on fast links, acknowledges batches: one packet in some ten, as bench/plan.py saw.
"""

from __future__ import annotations

from typing import Final

from farflung.advice.traffic import input_checks

ETHERNET: Final = 14
IP_TCP: Final = 52
MTU: Final = 1500
ACKNOWLEDGED: Final = 2.0  # full packets by one empty one
IN_BATCHES: Final = 10.0  # the same on links that are not shaped
GLOO_HEAD: Final = 48  # bytes before each of gloo's messages: six words
GLOO_NOTICES: Final = 2  # of each message: who sends says that it is ready, who receives asks (gloo's TCP pairs)


def segment(mtu: int = MTU) -> int:
    """Bytes of payload in a full packet."""
    return input_checks.count("mtu", mtu, least=68, most=65536) - IP_TCP


def counted(
    sent: float,
    received: float,
    mtu: int = MTU,
    *,
    messages: float = 0.0,
    head: float = 0.0,
    notices: float = 0.0,
    acknowledged: float = ACKNOWLEDGED,
) -> float:
    """Bytes that an interface sends: `sent` of payload with its headers, and acknowledgements of what it received.

    `messages`: into which it is cut each way; each has a head of its own, and ends a packet half-way on the average.
    `notices`: packets each way that are nothing but a head.
    """
    amounts = {"sent": sent, "received": received, "messages": messages, "head": head, "notices": notices}
    for name, value in amounts.items():
        input_checks.amount(name, value)
    input_checks.amount("acknowledged", acknowledged, 1.0, 1e6)
    header, full = ETHERNET + IP_TCP, segment(mtu)
    told = sent + messages * head
    packets = told / full + messages / 2
    told += notices * head
    packets += notices
    return told + packets * header + (received + messages * head) / full / acknowledged * header


def payload_rate(rate: float, mtu: int = MTU) -> float:
    """Bit/s of payload on a line of `rate` bit/s whose shaper counts what the interface counts, one way busy."""
    full = segment(mtu)
    return input_checks.amount("rate", rate) * full / (full + ETHERNET + IP_TCP)

"""Decides whether the TCP congestion control of this system suits connections to other computers.

What decides is how TCP takes loss. Over a line of 100 Mbit/s and 100 ms, one connection reached, as shares of the line
(docs/decisions/024-congestion-control.md has the conditions):

    packets lost    cubic    bbr
    none            0.93     0.93
    0.5 %           0.044    0.88
    2 %             0.014    0.87
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Final

from farflung.host import machine_readings as r
from farflung.host.findings import FindingDetail, FindingState, ProbeFinding

ALLOWED: Final = "net.ipv4.tcp_allowed_congestion_control"
KEPT: Final = "/etc/sysctl.d/60-farflung.conf"
LOADED: Final = "/etc/modules-load.d/60-farflung.conf"
_LOSS: Final = "where 0.5 to 2 % of packets are lost over 100 ms, cubic used 1 to 4 % of a line, bbr 87 %"
_RELAY: Final = "a relay near by, on Linux with bbr, carries the bytes over the long way"


def congestion(reading: r.CongestionReading) -> ProbeFinding:
    """TCP's congestion control on connections to other machines: the wanted one, or why not and who can change it."""
    measured, wanted = _measured(reading), reading.wanted
    if reading.got == wanted:
        return ProbeFinding("congestion", FindingState.OK, measured)
    if reading.system != "linux":
        return _elsewhere(reading, measured)
    # Whoever sets this takes from all users what is not named: what is allowed now has to stay.
    names = _names((*(reading.allowed or ("reno", reading.own)), wanted))
    allow = f'as root, sysctl -w {ALLOWED}="{names}"'
    keep = (FindingDetail("keep", f"{KEPT} keeps it, with this line:"), FindingDetail("line", f"{ALLOWED} = {names}"))
    if reading.refusal == errno.EPERM or wanted in reading.available:
        cause = f"the kernel has {wanted} and does not let this user choose it; {_LOSS}"
        return ProbeFinding("congestion", FindingState.SLOW, measured, cause, allow, details=keep)
    if reading.is_in_kernel is False:
        cause = f"this kernel was built without {wanted}; {_LOSS}"
        step = f"start a kernel that has CONFIG_TCP_CONG_{wanted.upper()}"
        return ProbeFinding(
            "congestion", FindingState.SLOW, measured, cause, step, details=(FindingDetail("or", _RELAY),)
        )
    cause = f"the kernel has not loaded {wanted}, or was built without it; {_LOSS}"
    load = (
        FindingDetail("try", allow),
        FindingDetail("keep", f"{LOADED} loads it at each start, with this line:"),
        FindingDetail("line", f"tcp_{wanted}"),
    )
    step = f"as root, modprobe tcp_{wanted}"
    return ProbeFinding("congestion", FindingState.SLOW, measured, cause, step, details=load + keep)


def _elsewhere(reading: r.CongestionReading, measured: str) -> ProbeFinding:
    """Systems whose settings are none of Linux's."""
    why, step = f"this system does not give {reading.wanted} to a program that asks", _RELAY
    details: tuple[FindingDetail, ...] = ()
    if reading.system == "darwin":
        why = f"macOS has no {reading.wanted}, and lets no program choose"
    elif reading.system == "win32":
        why = "Windows chooses for all programs together"
        step, details = "netsh int tcp show supplemental", (FindingDetail("or", _RELAY),)
    return ProbeFinding("congestion", FindingState.SLOW, measured, f"{why}; {_LOSS}", step, details=details)


def _measured(reading: r.CongestionReading) -> str:
    told = [f"{reading.got} for connections to other computers" if reading.got else "the system's own choice"]
    if reading.own and reading.own != reading.got:
        told.append(f"{reading.own} for others")
    if reading.available:
        told.append(f"the system has {_names(reading.available)}")
    if reading.allowed:
        told.append(f"lets any user choose {_names(reading.allowed)}")
    return "; ".join(told)


def _names(given: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(filter(None, given)))

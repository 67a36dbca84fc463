"""Checks where an endpoint may listen, and builds the errors for failing to listen, connect or be admitted."""

from __future__ import annotations

import errno
import ipaddress
from typing import Final

from farflung.core.errors import NetworkError, PolicyError
from farflung.core.ids import PeerId, short

LOOPBACK: Final = "127.0.0.1"


def check_host(host: str, *, allow_remote: bool) -> None:
    """Raises PolicyError FF-NET-042 for anything but loopback, unless remote peers are allowed."""
    if not allow_remote and not _is_loopback(host):
        raise PolicyError(
            "FF-NET-042",
            f"refusing to listen on {host}",
            cause="it can be reached from other machines",
            hint="listen on 127.0.0.1, or allow remote peers explicitly",
        )


def cannot_listen(host: str, port: int, error: OSError) -> NetworkError:
    """FF-NET-040 or 041: why the system does not let us."""
    if error.errno == errno.EADDRINUSE:
        return NetworkError(
            "FF-NET-040",
            f"port {port} on {host} is taken",
            cause="another process listens there",
            hint="stop it, choose another port, or use port 0 for any free one",
        )
    return NetworkError(
        "FF-NET-041",
        f"cannot listen on {host}:{port}",
        cause=error.strerror or str(error),
        hint="check that this machine has the address and may use the port",
    )


def turned_away(peer: PeerId, lost: NetworkError) -> NetworkError:
    """FF-NET-045: the other end let nobody in."""
    return NetworkError(
        "FF-NET-045",
        f"{short(peer)} closed the connection before it was open",
        cause=f"{lost.cause}: it does not admit this key, is full, or refused the handshake",
        hint="check that this key takes part in the run, and try again",
    )


def declined(cause: str) -> NetworkError:
    """FF-NET-076: a callback that is not followed."""
    return NetworkError("FF-NET-076", "the circuit is declined", cause=cause, hint="nothing: the dialling side is told")


def stuck(cause: str) -> NetworkError:
    """FF-NET-048: the other end is there and does not take part."""
    return NetworkError("FF-NET-048", "the peer is stuck", cause=cause, hint="dial again, or another peer")


def left(refuser: PeerId | None, cause: str) -> NetworkError:
    """FF-NET-046: the connection is gone, and we did not close it; FF-NET-045 if `refuser` had not taken us in."""
    lost = NetworkError("FF-NET-046", "the connection was lost", cause=cause, hint="dial again")
    return lost if refuser is None else turned_away(refuser, lost)


def unreachable(peer: PeerId, host: str, port: int, error: Exception) -> NetworkError:
    """FF-NET-043: nobody is there."""
    return NetworkError(
        "FF-NET-043",
        f"cannot reach {short(peer)} at {host}:{port}",
        cause=getattr(error, "strerror", None) or str(error)[:200],
        hint="check that the peer is running and that the address is current",
    )


def too_slow(host: str, port: int, seconds: float) -> NetworkError:
    """FF-NET-044: somebody is there and does not answer."""
    return NetworkError(
        "FF-NET-044",
        f"{host}:{port} does not finish the handshake",
        cause=f"not within {seconds} s",
        hint="check the address, or try another peer",
    )


def unanswered(peer: PeerId, method: str, seconds: float | None) -> NetworkError:
    """FF-NET-047: a call has waited long enough."""
    return NetworkError(
        "FF-NET-047",
        f"no answer from {short(peer)} to {method!r}",
        cause=f"nothing within {seconds} s",
        hint="the peer is busy or stuck; try again or choose another one",
    )


def again(error: NetworkError) -> NetworkError:
    """A fresh copy: each waiter gets its own traceback."""
    return type(error)(error.code, error.message, cause=error.cause, hint=error.hint)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

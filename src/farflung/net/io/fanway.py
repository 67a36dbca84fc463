"""A member's way to its group's relay: dialled, refused with a cause, or lost."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from farflung.core import limits
from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId, short
from farflung.net.groups import Welcome

REFUSALS: Final = {
    Welcome.MALFORMED: "it cannot read our join",
    Welcome.ELSEWHERE: "another relay listens there",
    Welcome.STALE: "our join is not of this minute",
    Welcome.FORGED: "it does not take a signature",
    Welcome.BARRED: "it does not serve this key, or not the group's owner",
    Welcome.REPLAYED: "the join was shown before",
    Welcome.FULL: "it has no room for another group or join",
    Welcome.OUTSIDE: "we are not in the group's roster",
    Welcome.OUTDATED: "it has heard of a newer roster",
    Welcome.VOID: "a node key does not count any more",
    Welcome.UNPAID: "it copies for a pass of the group's owner only",
    Welcome.NO_HOLDER: "the pass is not for our key",
    Welcome.LAPSED: "our pass is not of this quarter of an hour",
    Welcome.USED_UP: "our pass or its payer's channel is used up",
    Welcome.UNFUNDED: "the payer has no channel with it that pays its price",
    Welcome.OWING: "our receipts for what it carried are missing",
    Welcome.MISMATCHED: "the pass is not the one that the group runs under",
}


async def dial(relay: PeerId, host: str, port: int) -> socket.socket:
    """A TCP connection to the relay. Raises NetworkError FF-NET-131."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limits.HANDSHAKE_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, kind, protocol, _, address = found[0]
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, address)
            except BaseException:
                sock.close()
                raise
            return sock
    except (OSError, ValueError, OverflowError) as error:  # the latter: no host name, no port
        raise NetworkError(
            "FF-NET-131",
            f"cannot reach relay {short(relay)} for its group",
            cause=getattr(error, "strerror", None) or str(error)[:200],
            hint="nothing: what a group saves is lost, and everything goes the ordinary way",
        ) from error


def refused(relay: PeerId, cause: str) -> NetworkError:
    """FF-NET-130."""
    return NetworkError(
        "FF-NET-130",
        f"relay {short(relay)} does not take us into the group",
        cause=cause,
        hint="nothing: what a group saves is lost, and everything goes the ordinary way",
    )


def lost() -> NetworkError:
    """FF-NET-135."""
    return NetworkError("FF-NET-135", "the connection to the group was lost")

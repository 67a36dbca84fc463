"""Dials a group's relay for a member, says why it refused or was lost, and backs off from a relay that hung."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from farflung.core import limits
from farflung.core.backoff import Backoff
from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId, short
from farflung.net import multicast_groups
from farflung.net.io.relay_listener import exactly
from farflung.net.multicast_groups import GroupJoinStatus

SHUNNED: Final = Backoff(60.0, 900.0)  # a relay that hung is left alone
_SHUNNED: Final = 16  # relays remembered

REFUSALS: Final = {
    GroupJoinStatus.MALFORMED: "it cannot read our join",
    GroupJoinStatus.ELSEWHERE: "another relay listens there",
    GroupJoinStatus.STALE: "our join is not of this minute",
    GroupJoinStatus.FORGED: "it does not take a signature",
    GroupJoinStatus.BARRED: "it does not serve this key, or not the group's owner",
    GroupJoinStatus.REPLAYED: "the join was shown before",
    GroupJoinStatus.FULL: "it has no room for another group or join",
    GroupJoinStatus.OUTSIDE: "we are not in the group's roster",
    GroupJoinStatus.OUTDATED: "it has heard of a newer roster",
    GroupJoinStatus.VOID: "a node key does not count any more",
    GroupJoinStatus.UNPAID: "it copies for a pass of the group's owner only",
    GroupJoinStatus.NO_HOLDER: "the pass is not for our key",
    GroupJoinStatus.LAPSED: "our pass is not of this quarter of an hour",
    GroupJoinStatus.USED_UP: "our pass or its payer's channel is used up",
    GroupJoinStatus.UNFUNDED: "the payer has no channel with it that pays its price",
    GroupJoinStatus.OWING: "our receipts for what it carried are missing",
    GroupJoinStatus.MISMATCHED: "the pass is not the one that the group runs under",
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


async def show(relay: PeerId, sock: socket.socket, shown: bytes) -> bytes:
    """The relay's answer to a join. Raises NetworkError FF-NET-130."""
    try:
        async with asyncio.timeout(limits.HANDSHAKE_SECONDS):
            await asyncio.get_running_loop().sock_sendall(sock, shown)
            return await exactly(sock, multicast_groups.ANSWER_BYTES)
    except (OSError, EOFError) as error:  # TimeoutError is an OSError
        raise refused(relay, "it does not answer") from error


class RelayBackoff:
    """Relays that let us in and then took or said nothing: who joins them at once again hangs at once again."""

    def __init__(self) -> None:
        self._until: dict[PeerId, tuple[float, int]] = {}  # when it is over, and how often it hung

    def hung(self, relay: PeerId, now: float) -> None:
        """It did so at `now` (monotonic seconds)."""
        if self.left(relay, now):  # of the same time: more than one waited for it
            return
        _, times = self._until.pop(relay, (0.0, 0))
        self._until[relay] = now + SHUNNED.pause(times), times + 1
        if len(self._until) > _SHUNNED:
            del self._until[next(iter(self._until))]

    def left(self, relay: PeerId, now: float) -> float:
        """Seconds for which it is still left alone."""
        return max(0.0, self._until.get(relay, (now, 0))[0] - now)


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

"""One process of the fan-out benchmark: `net_fanout_worker.py ROLE JSON`; it says facts as lines of JSON.

member    one of `count` homes: in each of `rounds` it sends `bytes` to all others and waits for theirs
crowd     `count` - 1 members over plain sockets that read and throw away; says how many bytes of frames came
flood     the one that sends to the crowd, as fast as it goes
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Final

from net_worker import GRACE, Options, begin, key, say

from farflung.core.crypto import SigningKey
from farflung.core.ids import Hash, PeerId
from farflung.net import multicast_groups
from farflung.net.certificates import credential_of
from farflung.net.counters import ByteCounter
from farflung.net.io.multicast_member import GroupListener, GroupMember, GroupRendezvous, NoEndpoint
from farflung.net.io.rate_limiter import LinePacer

NAME: Final = Hash(b"a group of the benchmark".ljust(32, b"."))
SECRET: Final = bytes(range(32))
QUIET: Final = 1.0  # seconds without a byte: it is over


def _keys(count: int) -> list[SigningKey]:
    return [key("fan", index) for index in range(count)]


def _meeting(options: Options) -> GroupRendezvous:
    members = tuple(one.public for one in _keys(options["count"]))
    roster = multicast_groups.sign_roster(key("owner"), NAME, options.get("epoch", 1), members)
    return GroupRendezvous(key("relay").public, options["host"], options["port"], roster, SECRET)


class _Round(GroupListener):
    """Counts the payloads of others."""

    def __init__(self, others: int) -> None:
        self._others = others
        self.last = 0.0
        self.begin()

    def begin(self) -> None:
        self.missing, self.done = self._others, asyncio.Event()

    def message(self, sender: PeerId, data: bytes) -> None:
        self.missing -= 1
        self.last = time.monotonic()
        if not self.missing:
            self.done.set()


async def member(options: Options) -> None:
    heard = _Round(options["count"] - 1)
    fan = GroupMember(NoEndpoint(credential_of(key("fan", options["index"])), ByteCounter(), LinePacer()), heard)
    await fan.enter(_meeting(options))
    say(joined=True)
    start = await asyncio.to_thread(begin, Path(options["go"]), time.monotonic() + 2 * GRACE)
    payload, missing = os.urandom(options["bytes"]), 0
    seconds = []
    for number in range(options["rounds"]):
        at = start + number * options["period"]
        heard.begin()
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        await fan.send(payload)
        try:
            async with asyncio.timeout_at(at + options["period"] - 0.2):
                await heard.done.wait()
        except TimeoutError:
            missing += heard.missing
        seconds.append(heard.last - at)
    say(seconds=seconds, missing=missing)


async def flood(options: Options) -> None:
    fan = GroupMember(NoEndpoint(credential_of(_keys(options["count"])[0]), ByteCounter()), GroupListener())
    await fan.enter(_meeting(options))
    piece, left = os.urandom(1 << 20), options["bytes"]
    while left > 0:
        await fan.send(piece[:left] if left < len(piece) else piece)
        left -= len(piece)
    say(sent=options["bytes"])
    await asyncio.sleep(GRACE)  # who leaves early would end the group


async def crowd(options: Options) -> None:
    meeting, buffer = _meeting(options), bytearray(1 << 20)
    chosen, sockets = selectors.DefaultSelector(), []
    for one in _keys(options["count"])[1:]:
        nonce, ends = os.urandom(multicast_groups.NONCE_BYTES), int(time.time()) + 60
        join = multicast_groups.GroupJoin(meeting.relay, meeting.roster.roster.group, one.public, nonce, ends)
        sock = socket.create_connection((meeting.host, meeting.port))
        sock.sendall(multicast_groups.sign_join(one, join, meeting.roster))
        if (
            multicast_groups.read_answer(sock.recv(multicast_groups.ANSWER_BYTES))
            is not multicast_groups.GroupJoinStatus.JOINED
        ):
            raise ConnectionError("the relay does not let us in")
        chosen.register(sock, selectors.EVENT_READ)
        sockets.append(sock)
    say(joined=len(sockets))
    got, patience = 0, GRACE
    while ready := chosen.select(patience):
        patience = QUIET
        for one_ready, _ in ready:
            sock = one_ready.fileobj  # type: ignore[assignment]
            got += sock.recv_into(buffer)
    say(bytes=got)


ROLES: Final = {"member": member, "flood": flood, "crowd": crowd}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](json.loads(sys.argv[2])))
    sys.stdout.flush()
    os._exit(0)

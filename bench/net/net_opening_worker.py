"""One end of the network benchmark's opening: `net_opening_worker.py ROLE JSON`; it says facts as lines of JSON.

stay      attached to `relay`; knows the other end, so that it may offer to meet
meet      the same; dials, asks, asks some times more, and waits until it talks without the relay
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Final

from net_worker import GRACE, QUIET, Options, key, say

from farflung.core.errors import NetworkError
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.path_manager import PathManager
from farflung.net.paths import PathType

OTHER: Final = {"stay": "meet", "meet": "stay"}
LOOK: Final = 0.005  # seconds


async def echo(_connection: Connection, _method: str, body: bytes) -> bytes:
    """What is asked is answered."""
    return body


async def main(role: str, options: Options) -> None:
    endpoint = Endpoint(key(role), echo, ByteCounter())
    path_manager, relay = PathManager(endpoint), key("relay").public
    endpoint.attach(relay, *options["relay"])
    await endpoint.attached()
    other, place = key(OTHER[role]).public, EndpointAddress(*options["relay"], relay)
    path_manager.learn(other, [place])
    if role == "stay":
        say(there=True)
        await asyncio.Event().wait()
    began = time.monotonic()
    connection = await path_manager.connection(other)
    await connection.call("ask", b"x")
    setup, trips = time.monotonic() - began, []
    opened: float | None = None
    while opened is None and time.monotonic() - began < GRACE:
        if path_manager.way(other) is PathType.OPENED:
            opened = time.monotonic() - began
        elif len(trips) < QUIET:
            asked = time.monotonic()
            await connection.call("ask", b"x")
            trips.append(time.monotonic() - asked)
        else:
            await asyncio.sleep(LOOK)
    say(setup=setup, trip=min(trips, default=setup), opened=opened)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
    except (NetworkError, OSError) as error:
        sys.exit(str(error))

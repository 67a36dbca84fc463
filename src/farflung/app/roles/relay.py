"""The relay: forwards the bytes of peers that cannot reach each other, and keeps nothing.

It has no disk and no state worth one: a new process with the same key on the same port is the same relay, and its
peers find it again by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Callable
from typing import Final

from farflung.app.leash import Orders, Report, by_name, report, report_usage, run_role
from farflung.app.registry import Follower
from farflung.core.crypto import SigningKey
from farflung.core.ids import PeerId
from farflung.net.counters import Counter
from farflung.net.io.connection import Connection
from farflung.net.io.listening import LOOPBACK
from farflung.net.io.relay import RelayServer

TELL_SECONDS: Final = 0.5
_FILES: Final = 8192  # two sockets and two pipes a circuit are six descriptors


def allow_many_files() -> None:
    """Raises this process's own bound on open files as far as it may. Where it may not, circuits go without pipes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def admission(allow: list[str] | None) -> Callable[[PeerId], bool] | None:
    """Whom the relay serves: these keys (hex), or anybody."""
    if allow is None:
        return None
    keys = frozenset(bytes.fromhex(key) for key in allow)
    return lambda peer: peer in keys


async def main(orders: Orders) -> None:
    """Forwards until the supervisor closes the leash."""
    config = await orders.next()
    if config is None:
        return
    allow_many_files()
    key = SigningKey(bytes.fromhex(config["key"]))
    server = RelayServer(
        key,
        host=config.get("host", LOOPBACK),
        port=config["port"],
        allow_remote=bool(config.get("remote")),
        admit=admission(config["allow"]),
        counter=Counter(),
    )
    host, port = await server.start()
    report("ready", peer=key.public.hex(), host=host, port=port)
    tasks = [asyncio.create_task(_tell(server))]
    if config.get("ledger"):
        tasks.append(asyncio.create_task(_follow(server, config["ledger"])))
    while await orders.next() is not None:
        pass
    for task in tasks:
        task.cancel()
    await server.close()
    report("bytes", **_told(server))
    used = report_usage(config["name"])
    report("usage", process=used.process, peak_bytes=used.peak_bytes, cpu_seconds=used.cpu_seconds)


def _told(server: RelayServer) -> dict[str, int]:
    """What it forwarded for others, and what it said itself, by kind."""
    return {"relay": server.forwarded, **by_name(server.counter)}


async def _follow(server: RelayServer, ledger: Report) -> None:
    """Node keys that the ledger withdraws lose their circuits here."""
    validator = PeerId(bytes.fromhex(ledger["peer"]))

    async def reach() -> Connection:
        return await server.endpoint.dial(validator, ledger["host"], ledger["port"])

    await Follower(reach, server.keyring, server.recheck).stay()


async def _tell(server: RelayServer) -> None:
    """Says what was forwarded and sent, when it has changed: a killed process has told of nearly all."""
    last: dict[str, int] = {}
    while True:
        await asyncio.sleep(TELL_SECONDS)
        now = _told(server)
        if now != last:
            report("bytes", **now)
            last = now


if __name__ == "__main__":
    run_role(main)

"""Runs the relay, which forwards the bytes of peers that cannot reach each other.

A new process with the same key on the same port is the same relay, and its peers find it again by themselves. It has no
state but what it is owed: that lies in its till (net/io/relay_receipt_store), until it is claimed.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from pathlib import Path
from typing import Final

from farflung.core.backoff import Backoff
from farflung.core.crypto import SigningKey
from farflung.core.errors import NetworkError
from farflung.core.io.retry import retry
from farflung.net.io.admission import Admission
from farflung.net.io.listen_errors import LOOPBACK
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_metering_gate import RelayMeteringGate
from farflung.net.io.relay_receipt_store import ReceiptStore
from farflung.net.io.tcp_listener import ListenConfig
from farflung.peers.ledger_client.connect import validators_in
from farflung.peers.ledger_client.quorum_read import PATIENCE_SECONDS
from farflung.peers.process.channel import (
    ControlChannel,
    Report,
    by_name,
    report,
    report_usage,
    run_role,
)
from farflung.peers.relay.ledger_link import RelayLedgerLink

TELL_SECONDS: Final = 0.5
AGAIN: Final = Backoff.every(0.2)
_FILES: Final = 8192  # two sockets and two pipes a circuit are six descriptors


def allow_many_files() -> None:
    """Raises this process's own bound on open files as far as it may. Where it may not, circuits go without pipes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def admission(allow: list[str] | None) -> Admission:
    """Whom the relay serves: these keys (hex), or anybody."""
    if allow is None:
        return Admission()
    keys = frozenset(bytes.fromhex(key) for key in allow)
    return Admission(lambda peer: peer in keys)


async def main(orders: ControlChannel) -> None:
    """Forwards until the supervisor closes the leash."""
    config = await orders.next()
    if config is None:
        return
    allow_many_files()
    key = SigningKey(bytes.fromhex(config["key"]))
    desk, price = desk_of(config, key), int(config.get("price", 0))
    server = RelayServer(
        key,
        listen=ListenConfig(config.get("host", LOOPBACK), config["port"], bool(config.get("remote"))),
        admission=admission(config["allow"]),
        gate=await _gate(desk, price, ReceiptStore(Path(config["folder"])))
        if desk is not None and price
        else None,
    )
    host, port = await server.start()
    report("ready", peer=key.public.hex(), host=host, port=port)
    telling = asyncio.create_task(_tell(server))
    if desk is not None:
        desk.attend(server)
    while await orders.next() is not None:
        pass
    telling.cancel()
    await server.close()
    if desk is not None:
        await desk.close()
    report("bytes", **_told(server))
    used = report_usage(config["name"])
    report("usage", process=used.process, peak_bytes=used.peak_bytes, cpu_seconds=used.cpu_seconds)


def _told(server: RelayServer) -> dict[str, int]:
    """What it forwarded for others, and what it said itself, by kind."""
    return {"relay": server.forwarded, **by_name(server.counter)}


def desk_of(config: Report, key: SigningKey) -> RelayLedgerLink | None:
    """The relay's way to its ledger: whose node keys are withdrawn, and who pays."""
    ledger = config.get("ledger")
    if ledger is None:
        return None
    return RelayLedgerLink(key, validators_in(ledger))


async def _gate(desk: RelayLedgerLink, price: int, store: ReceiptStore) -> RelayMeteringGate:
    """A ledger that died with this relay is on its way back, too. Raises NetworkError when it does not come."""
    is_away = lambda error: isinstance(error, NetworkError)  # noqa: E731
    return await retry(lambda: desk.gate(price, store), AGAIN, is_away, patience=lambda: PATIENCE_SECONDS)


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

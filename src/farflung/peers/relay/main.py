"""Runs the relay, which forwards the bytes of peers that cannot reach each other.

A new process with the same key on the same port is the same relay, and its peers find it again by themselves. It has no
state but what it is owed: that lies in its store (net/io/relay_receipt_store), until it is claimed.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Final

from farflung.core.backoff import Backoff
from farflung.core.errors import FarflungError, NetworkError
from farflung.core.ids import PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.core.io.retry import retry
from farflung.ledger.table_rows import ChannelRow
from farflung.net.certificates import Credential
from farflung.net.io.admission import Admission
from farflung.net.io.monthly_quota import MonthlyQuota
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_metering_gate import RelayMeteringGate
from farflung.net.io.relay_receipt_store import ReceiptStore
from farflung.net.io.tcp_listener import ListenConfig
from farflung.peers.ledger_client.connect import validators_in
from farflung.peers.ledger_client.node_key import NodeKeyRotator, ledger_of
from farflung.peers.process import bandwidth_limits
from farflung.peers.process.channel import Channel, by_name, report_end, report_note, run_role
from farflung.peers.process.open_files import allow_many_files
from farflung.peers.relay.config import RelayConfig
from farflung.peers.relay.ledger_link import RelayLedgerLink

LOOK_SECONDS: Final = 1.0  # between two looks at the month's volume
TELL_SECONDS: Final = 0.5
AGAIN: Final = Backoff.every(0.2)


async def main(config: RelayConfig, channel: Channel) -> None:
    """Forwards until the channel ends."""
    allow_many_files()
    own, signer, limits = config.key.credential, config.signer, config.limits
    said = bandwidth_limits.read_bandwidth_limits().month_gb if config.month_gb is None else config.month_gb
    month = bandwidth_limits.allowance(said)

    def paid(row: ChannelRow) -> None:
        channel.report("paid", payer=row.payer.hex(), carried=row.carried, paid=row.paid)

    link = None
    if config.ledger is not None:
        link = RelayLedgerLink(signer or own.node, validators_in(config.ledger), paid, own)
    try:
        server = RelayServer(
            own,
            listen=ListenConfig(config.host, config.port, allow_remote=True),  # `host` says so
            admission=admission(config, month),
            limits=limits,
            gate=await _gate(link, config) if link is not None and config.price else None,
            on_traffic=None if month is None else lambda size: month.add(size, size),
        )
        host, port = await server.start()
        used = {} if month is None else {"month_used": month.used, "month_limit": month.limit}
        channel.report("ready", peer=own.account.hex(), host=host, port=port, **used)
        if link is not None:
            link.attend(server)
        await _serve(config, channel, server, link, month)
    finally:
        if link is not None:
            await link.close()
    channel.report("end", forwarded=server.forwarded)
    report_end(channel, config.name, _told(server))


async def _serve(
    config: RelayConfig, channel: Channel, server: RelayServer, link: RelayLedgerLink | None, month: MonthlyQuota | None
) -> None:
    """Until the channel ends; then claims what it is owed, and closes."""
    tasks = OwnedTasks()
    tasks.begin(_tell(server, channel))
    if month is not None:
        tasks.begin(_keep(month, server, channel))
    if config.key.credential.certificate is not None:
        tasks.begin(_rotator(config, channel, server, link).stay())
    try:
        while await channel.next() is not None:
            pass
    finally:
        await tasks.close()
        for error in await link.settle() if link is not None and config.settles else ():
            report_note(channel, error)
        await server.close()
        if month is not None:
            await month.close()


def admission(config: RelayConfig, month: MonthlyQuota | None) -> Admission:
    """Whom the relay serves: those that it is told, or anybody, while the month's volume lasts."""
    allowed = None if config.allow is None else frozenset(PeerId(bytes(key)) for key in config.allow)
    if allowed is None and month is None:
        return Admission()

    def admits(peer: PeerId) -> bool:
        return (allowed is None or peer in allowed) and (month is None or month.spent() is None)

    return Admission(admits)


def _rotator(
    config: RelayConfig, channel: Channel, server: RelayServer, link: RelayLedgerLink | None
) -> NodeKeyRotator:
    """Keeps the relay on its newest node key."""

    def renew(found: Credential) -> None:
        server.endpoint.renew(found)
        if link is not None:
            link.renew(found)
        text = f"the relay proves its node key of epoch {found.identity.epoch} from now on"
        channel.report("note", text=text)

    def warn(error: FarflungError) -> None:
        report_note(channel, error)

    path, ledger, account = config.key.path, config.ledger, config.signer
    assert path is not None  # a supervisor's relay proves its account's key
    if account is None or ledger is None:
        return NodeKeyRotator(path, config.key.credential, renew, None, account, warn)
    rotate = functools.partial(ledger_of, PeerId(bytes(ledger.peer)), ledger.host, ledger.port, account)
    return NodeKeyRotator(path, config.key.credential, renew, rotate, account, warn)


async def _keep(month: MonthlyQuota, server: RelayServer, channel: Channel) -> None:
    """Ends what goes through when the month's volume is used up, and says so once; the next month begins by itself."""
    was_spent = False
    while True:
        error = month.spent()
        if error is not None:
            server.end_all()
            if not was_spent:
                report_note(channel, error)
        was_spent = error is not None
        await asyncio.sleep(LOOK_SECONDS)


def _told(server: RelayServer) -> dict[str, int]:
    """What it forwarded for others, and what it said itself, by kind."""
    return {"relay": server.forwarded, **by_name(server.counter)}


async def _gate(link: RelayLedgerLink, config: RelayConfig) -> RelayMeteringGate:
    """A ledger that died with this relay is on its way back, too. Raises NetworkError when it does not come."""
    is_away = lambda error: isinstance(error, NetworkError)  # noqa: E731
    return await retry(
        lambda: link.gate(config.price, ReceiptStore(config.folder)), AGAIN, is_away, patience=lambda: config.patience
    )


async def _tell(server: RelayServer, channel: Channel) -> None:
    """Says what was forwarded and sent, when it has changed: a killed process has told of nearly all."""
    last: dict[str, int] = {}
    while True:
        await asyncio.sleep(TELL_SECONDS)
        now = _told(server)
        if now != last:
            channel.report("bytes", **now)
            last = now


if __name__ == "__main__":
    run_role(main, RelayConfig)

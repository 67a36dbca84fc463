"""A relay that is paid, in a process of its own: FOLDER PORT. Says its port, and then what it claims in the end."""

import asyncio
import sys
from pathlib import Path

from net_relays import R
from net_tolls import CHAIN, NOW, PAYER, PRICE, ChannelBalance

from farflung.core import relay_passes
from farflung.core.ids import PeerId
from farflung.net.io.admission import Admission
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_metering_gate import ChannelLedger, PassClaim, RelayMeteringGate
from farflung.net.io.relay_receipt_store import ReceiptStore
from farflung.net.io.tcp_listener import ListenConfig


async def funds(payer: PeerId) -> ChannelBalance | None:
    return ChannelBalance(1, PRICE, 1 << 40) if payer == PAYER.public else None


async def settle(payer: PeerId, claims: tuple[PassClaim, ...]) -> None:
    for claim in claims:
        said = {r.receipt.party: (r.receipt.sent, r.receipt.received) for r in claim.receipts}
        print(relay_passes.billed(claim.signed.toll.quota, said), flush=True)


async def main(folder: str, port: str) -> None:
    gate = RelayMeteringGate(ChannelLedger(CHAIN, funds, settle), PRICE, store=ReceiptStore(Path(folder)))
    server = RelayServer(R, listen=ListenConfig(port=int(port)), admission=Admission(clock=lambda: NOW), gate=gate)
    _, bound = await server.start()
    print(bound, flush=True)
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))

"""Runs a validator's process: one seat of a ledger's committee, alone or among several."""

from __future__ import annotations

import math

from farflung.core.ids import PeerId
from farflung.net.counters import ByteCounter
from farflung.net.io.listen_errors import LOOPBACK
from farflung.peers.process.channel import Channel, by_name, report_end, run_role, until_let_go
from farflung.peers.process.open_files import allow_many_files
from farflung.peers.validator.bootstrap import LOOK_SECONDS, CatchUpService, JoinStatus
from farflung.peers.validator.config import ValidatorConfigFile


async def main(config: ValidatorConfigFile, channel: Channel) -> None:
    """Serves until the channel ends; `meet` says where the other validators are."""
    allow_many_files()
    counter, setting = ByteCounter(), config.setting()

    def count() -> None:
        channel.report("bytes", **by_name(counter))  # a killed process has told of nearly all that it sent

    def tell(status: JoinStatus) -> None:
        for line in status.lines():
            channel.report("note", text=line)

    look = math.inf if config.local else LOOK_SECONDS
    catch_up = CatchUpService(setting, config.places(), tell, look, counter, count)
    host, port = await catch_up.open()
    service = catch_up.service
    readers = f"http://{LOOPBACK}:{service.readers_port}" if service.readers_port else ""
    facts = {"height": service.chain.head.height, "readers": readers}
    channel.report("ready", peer=setting.key.public.hex(), host=host, port=port, **facts)
    try:
        await until_let_go(catch_up.run(), _follow(channel, catch_up))
    finally:
        await catch_up.close()
    report_end(channel, config.name, by_name(counter))


async def _follow(channel: Channel, catch_up: CatchUpService) -> None:
    """Until the channel ends."""
    while (said := await channel.next()) is not None:
        if said.get("do") == "meet":
            for other in said["validators"]:
                catch_up.meet(PeerId(bytes.fromhex(other["peer"])), (str(other["host"]), int(other["port"])))


if __name__ == "__main__":
    run_role(main, ValidatorConfigFile)

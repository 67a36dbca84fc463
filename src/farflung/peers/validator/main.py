"""Runs the validator of a local network: one seat of its committee, alone or among several."""

from __future__ import annotations

import asyncio
from pathlib import Path

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.crypto import SigningKey
from farflung.core.ids import PeerId
from farflung.ledger.block import Genesis
from farflung.net.counters import ByteCounter
from farflung.peers.process.channel import ControlChannel, Report, by_name, report, report_end, run_role
from farflung.peers.validator.service import ValidatorConfig, ValidatorService


def setting_of(config: Report) -> ValidatorConfig:
    """What the supervisor says."""
    return ValidatorConfig(
        SigningKey(bytes.fromhex(config["key"])),
        decode(bytes.fromhex(config["genesis"]), Genesis, limits.TX_BYTES),
        Path(config["folder"]),
        config["host"],
        int(config["port"]),
        bool(config["remote"]),
        bool(config["local"]),
    )


async def main(orders: ControlChannel) -> None:
    """Serves until the supervisor closes the leash; `meet` says where the other validators are."""
    config = await orders.next()
    if config is None:
        return
    counter = ByteCounter()

    def count() -> None:
        report("bytes", **by_name(counter))  # a killed process has told of nearly all that it sent

    setting = setting_of(config)
    service = ValidatorService(setting, counter, count)
    host, port = await service.open({})
    report("ready", peer=setting.key.public.hex(), host=host, port=port)
    following = asyncio.create_task(follow(orders, service))
    try:
        await asyncio.wait({following, service.failed}, return_when=asyncio.FIRST_COMPLETED)
        if service.failed.done():
            service.failed.result()
    finally:
        following.cancel()
        await service.close()
    report_end(str(config["name"]), counter)


async def follow(orders: ControlChannel, service: ValidatorService) -> None:
    """Until the leash is closed."""
    while (said := await orders.next()) is not None:
        if said.get("do") == "meet":
            for other in said["validators"]:
                place = (str(other["host"]), int(other["port"]))
                service.places[PeerId(bytes.fromhex(other["peer"]))] = place


if __name__ == "__main__":
    run_role(main)

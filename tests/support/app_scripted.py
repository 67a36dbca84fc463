"""A process for tests of the keeper: it does what the first word of each order says.

Its configuration may name a `script`: what it does instead of becoming ready ("fail", "die", "port").
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from farflung.core.errors import NetworkError, VerificationError
from farflung.peers.process.channel import Channel, run_role
from farflung.peers.process.config import RoleConfig


def count(lives: Path) -> int:
    """Which life of the process this is, from 1."""
    number = int(lives.read_text()) + 1 if lives.exists() else 1
    lives.write_text(str(number))
    return number


class ScriptConfig(RoleConfig, frozen=True):
    lives: str
    script: str
    port: int
    name: str = ""


async def main(config: ScriptConfig, channel: Channel) -> None:
    number = count(Path(config.lives))
    script = (config.script.split() + ["ready"] * 99)[number - 1]
    if script == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if script == "port":
        raise NetworkError("FF-NET-040", "the port is taken")
    channel.report("bytes", sync=10, relay=number)
    channel.report("ready", peer="", host="127.0.0.1", port=config.port or 4000 + number, pid=os.getpid())
    while (order := await channel.next()) is not None:
        match order["do"]:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "fail":
                raise VerificationError("FF-CORE-052", "the log is damaged", hint="restore it")
            case "die once" if number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        channel.report("done", number=number, port=config.port)


if __name__ == "__main__":
    run_role(main, ScriptConfig)

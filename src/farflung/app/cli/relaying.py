"""The verb `relay`: lends this computer's connection to peers that cannot reach each other."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import signal
import stat
import sys
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from farflung.app import thrift
from farflung.app.roles.relay import allow_many_files
from farflung.core.crypto import SigningKey
from farflung.core.errors import UsageError
from farflung.core.ids import ID_BYTES
from farflung.core.io.durable import write_atomic
from farflung.core.units import format_bytes, format_rate
from farflung.net.io.allowance import Allowance
from farflung.net.io.relay import RelayServer
from farflung.net.io.tuning import CAN_PACE
from farflung.net.shares import kept_rate

PORT: Final = 4510
_LEAST, _MOST = 0.1, 10_000.0  # Mbit/s of --uplink
_LOOK_SECONDS: Final = 1.0  # between two looks at the month's volume
_TEXT_BYTES: Final = 2 * ID_BYTES + 1  # hex digits and a line's end


def read_or_make_key(path: Path) -> SigningKey:
    """The key in `path`, one line of 64 hex digits that only its owner may read; a new one where there is none.

    Raises UsageError FF-APP-140 (not such a file), 141 (others may read it), RunError FF-CORE-050 (cannot write).
    """
    if not path.parent.is_dir():
        raise _no_key(path, "its folder does not exist")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        seed = secrets.token_bytes(ID_BYTES)
        write_atomic(path, seed.hex().encode() + b"\n", "relay.key", private=True)
        return SigningKey(seed)
    except OSError as error:
        raise _no_key(path, error.strerror or str(error)) from error
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        os.close(handle)
        raise _no_key(path, "it is no file")
    with open(handle, "rb") as file:
        if facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(
                "FF-APP-141",
                f"others may read {path}",
                cause=f"its mode is {stat.S_IMODE(facts.st_mode):o}",
                hint=f"chmod 600 {path}; if others did read it, delete it and let a new key be made",
            )
        text = file.read(_TEXT_BYTES + 1).decode("ascii", "replace").removesuffix("\n")
    try:
        seed = bytes.fromhex(text)
    except ValueError:
        seed = b""
    if len(seed) != ID_BYTES or seed.hex() != text:
        raise _no_key(path, f"a key is one line of {2 * ID_BYTES} hex digits")
    return SigningKey(seed)


def _no_key(path: Path, cause: str) -> UsageError:
    return UsageError(
        "FF-APP-140",
        f"{path} cannot be the relay's key",
        cause=cause,
        hint="name another file with --key; where there is none, a new key is made",
    )


def _say(as_json: bool, facts: dict[str, Any], text: list[str]) -> None:
    lines = [msgspec.json.encode(facts).decode()] if as_json else text
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _sent_at_most(uplink: float | None) -> int | None:
    """Bytes a second for a line of `uplink` Mbit/s. Raises UsageError FF-APP-142 where no socket can be held to it."""
    if uplink is None:
        return None
    if math.isnan(uplink):  # which no range refuses
        raise click.BadParameter("nan is no rate", param_hint="'--uplink'")
    if not CAN_PACE:
        raise UsageError(
            "FF-APP-142",
            "--uplink cannot be kept on this system",
            cause="only Linux lets a program say how fast its connections may send",
            hint="run the relay on Linux, or leave --uplink out and let your router share the line",
        )
    return kept_rate(uplink)


async def _serve(
    key: SigningKey, host: str, port: int, rate: int | None, month: Allowance | None, as_json: bool
) -> None:
    server = RelayServer(
        key,
        host=host,
        port=port,
        uplink=rate,
        allow_remote=True,  # --host said so
        admit=None if month is None else lambda _: month.spent() is None,
        on_traffic=None if month is None else lambda size: month.add(size, size),
    )
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, is_over.set)
    host, port = await server.start()
    kept = [] if rate is None else [f"sends at most {format_rate(8 * rate)} to other machines"]
    if month is not None:
        kept.append(f"{format_bytes(month.used)} of {format_bytes(month.limit)} used this month (UTC)")
    _say(
        as_json,
        {"peer": key.public.hex(), "host": host, "port": port, "bytes_per_second": rate},
        [f"relay {key.public.hex()}", f"at    {host}:{port}", *kept, "Ctrl-C ends it."],
    )
    keeping = None if month is None else asyncio.create_task(_keep(month, server))
    try:
        await is_over.wait()
    finally:
        if keeping is not None:
            keeping.cancel()
        await server.close()
        if month is not None:
            await month.close()
    _say(as_json, {"forwarded": server.forwarded}, [f"forwarded {format_bytes(server.forwarded)}"])


async def _keep(month: Allowance, server: RelayServer) -> None:
    """Ends what goes through when the month's volume is used up, and says so once; the next month begins by itself."""
    was_spent = False
    while True:
        error = month.spent()
        if error is not None:
            server.end_circuits()
            if not was_spent:
                sys.stderr.write("".join(f"{line}\n" for line in error.lines()))
        was_spent = error is not None
        await asyncio.sleep(_LOOK_SECONDS)


@click.command(epilog="Example: farflung relay --host 0.0.0.0 --key relay.key")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0: any free one."
)
@click.option(
    "--key",
    "path",
    default="relay.key",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The relay's key; made if missing.",
)
@click.option(
    "--uplink",
    type=click.FloatRange(_LEAST, _MOST),
    metavar="MBIT",
    help="Your line's upload in Mbit/s: 95 % of it is used. Without it, all that the line takes. Linux only.",
)
@click.option(
    "--month",
    type=click.FloatRange(0.001, 1_000_000.0),
    metavar="GB",
    help="At most so much in a calendar month (UTC), both ways; then no circuits until the next one.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="JSON objects on stdout: the address, then what was forwarded."
)
def relay(host: str, port: int, path: Path, uplink: float | None, month: float | None, as_json: bool) -> None:
    """Forward bytes between peers that cannot reach each other, until Ctrl-C.

    Any key is served, within limits for each. The relay sees who talks with whom and how much; what they say is
    encrypted between them. Other machines reach it only when --host names an address that they can reach.
    """
    rate = _sent_at_most(uplink)
    allow_many_files()
    volume = thrift.allowance(thrift.read_thrift().month_gb if month is None else month)
    asyncio.run(_serve(read_or_make_key(path), host, port, rate, volume, as_json))

"""The verb `relay`: lends this computer's connection to peers that cannot reach each other."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import stat
import sys
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from farflung.app.roles.relay import allow_many_files
from farflung.core.crypto import SigningKey
from farflung.core.errors import UsageError
from farflung.core.ids import ID_BYTES
from farflung.core.io.durable import write_atomic
from farflung.core.units import format_bytes
from farflung.net.io.relay import RelayServer

PORT: Final = 4510
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


async def _serve(key: SigningKey, host: str, port: int, as_json: bool) -> None:
    server = RelayServer(key, host=host, port=port, allow_remote=True)  # --host said so
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, is_over.set)
    host, port = await server.start()
    _say(
        as_json,
        {"peer": key.public.hex(), "host": host, "port": port},
        [f"relay {key.public.hex()}", f"at    {host}:{port}", "Ctrl-C ends it."],
    )
    try:
        await is_over.wait()
    finally:
        await server.close()
    _say(as_json, {"forwarded": server.forwarded}, [f"forwarded {format_bytes(server.forwarded)}"])


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
    "--json", "as_json", is_flag=True, help="JSON objects on stdout: the address, then what was forwarded."
)
def relay(host: str, port: int, path: Path, as_json: bool) -> None:
    """Forward bytes between peers that cannot reach each other, until Ctrl-C.

    Any key is served, within limits for each. The relay sees who talks with whom and how much; what they say is
    encrypted between them. Other machines reach it only when --host names an address that they can reach.
    """
    allow_many_files()
    asyncio.run(_serve(read_or_make_key(path), host, port, as_json))

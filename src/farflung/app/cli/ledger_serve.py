"""Implements `ledger serve`, which serves a ledger stored on this computer to readers over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import sys

import click
import msgspec

from farflung.app.explorer.sources import open_file
from farflung.ledger.chain import Chain
from farflung.net.io.listen_errors import LOOPBACK
from farflung.peers.ledger_http.server import LOCAL_NAMES
from farflung.peers.validator.http_readers import HttpReaders, HttpReadersConfig

PORT = 7780


def _address(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """An address of this computer, in numbers."""
    try:
        return str(ipaddress.ip_address(value.strip("[]")))
    except ValueError:
        raise click.BadParameter(f"{value[:60]!r} is no address like 127.0.0.1 or ::1", ctx, param) from None


@click.command(epilog="Example: farflung ledger serve --port 7780", short_help="Serve a ledger's readers over HTTP.")
@click.option("--from", "source", metavar="PLACE", help="A run, a ledger's file or an export. Default: the newest run.")
@click.option("--host", default=LOOPBACK, show_default=True, callback=_address, help="An address to listen on.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0: any free one.")
@click.option("--name", "names", multiple=True, metavar="NAME", help="A DNS name that readers ask for.")
@click.option("--remote", is_flag=True, help="Serve others than this computer.")
@click.option("--json", "as_json", is_flag=True, help="Where it listens, as a JSON object.")
def serve(source: str | None, host: str, port: int, names: tuple[str, ...], remote: bool, as_json: bool) -> None:
    """Serve what `farflung ledger show` and other readers ask, until Ctrl-C.

    A copy: it does not grow. A validator serves its readers itself.
    """
    held = open_file(source)
    readers = HttpReadersConfig(host, port, LOCAL_NAMES | {name.lower() for name in names}, remote)
    asyncio.run(_serve(held.chain, readers, as_json))


async def _serve(chain: Chain, readers: HttpReadersConfig, as_json: bool) -> None:
    server = HttpReaders(chain)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(each, ended.set)
    port = await server.open(readers)
    shown = f"[{readers.host}]" if ":" in readers.host else readers.host
    facts = {"url": f"http://{shown}:{port}", "genesis": chain.id.hex(), "height": chain.head.height}
    text = f"{facts['url']} serves ledger {facts['genesis']} at block {facts['height']}"
    sys.stdout.write((msgspec.json.encode(facts).decode() if as_json else text) + "\n")
    sys.stdout.flush()
    await ended.wait()
    await server.close()

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
from typing import Any, Final, NamedTuple

import click
import msgspec

from farflung.app import thrift
from farflung.app.cli import placing
from farflung.app.probing_relay import Named
from farflung.app.relay_desk import Desk
from farflung.app.roles.relay import allow_many_files
from farflung.core.crypto import SigningKey
from farflung.core.errors import UsageError
from farflung.core.ids import ID_BYTES
from farflung.core.io.durable import write_atomic
from farflung.core.money import format_credits
from farflung.core.units import format_bytes, format_rate
from farflung.ledger.rows import ChannelRow
from farflung.net.io.allowance import Allowance
from farflung.net.io.relay import RelayServer
from farflung.net.io.till import Till
from farflung.net.io.tuning import CAN_PACE
from farflung.net.shares import kept_rate

PORT: Final = 4510
_RATE: Final = click.FloatRange(0.1, 10_000.0)  # Mbit/s
_PRICE: Final = 10**12  # micro-credits a GiB, at most
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


def _mbit(rate: float | None, option: str) -> int:
    """Bytes a second; 0 where nothing was said. Raises click.BadParameter."""
    if rate is not None and math.isnan(rate):  # which no range refuses
        raise click.BadParameter("nan is no rate", param_hint=option)
    return 0 if rate is None else int(rate * 1_000_000 / 8)


def _sent_at_most(uplink: float | None) -> int | None:
    """Bytes a second for a line of `uplink` Mbit/s. Raises UsageError FF-APP-142 where no socket can be held to it."""
    if uplink is None:
        return None
    _mbit(uplink, "'--uplink'")
    if not CAN_PACE:
        raise UsageError(
            "FF-APP-142",
            "--uplink cannot be kept on this system",
            cause="only Linux lets a program say how fast its connections may send",
            hint="run the relay on Linux, or leave --uplink out and let your router share the line",
        )
    return kept_rate(uplink)


class Words(NamedTuple):
    """What a relay is told. `rate`, `circuit_rate`: bytes a second; `price`: micro-credits a GiB, None: for nothing.

    `till`: the folder of its receipts, if it is paid.
    """

    host: str
    port: int
    rate: int | None
    circuit_rate: int
    month: Allowance | None
    ledger: Named | None
    price: int | None
    till: Path


class _Till:
    """Says what was earned, when a channel is settled and at the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self.carried = self.earned = 0

    def paid(self, row: ChannelRow) -> None:
        """A channel was settled."""
        self.carried, self.earned = self.carried + row.carried, self.earned + row.paid
        text = f"{format_credits(row.paid)} credits for {format_bytes(row.carried)}, from {row.payer.hex()}"
        _say(
            self._as_json,
            {"payer": row.payer.hex(), "carried": row.carried, "paid": row.paid},
            [f"earned {text}"],
        )


async def _serve(key: SigningKey, words: Words, as_json: bool) -> None:
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, is_over.set)
    till, ledger, month = _Till(as_json), words.ledger, words.month
    desk = None
    if ledger is not None and ledger.key is not None:
        desk = Desk(key, ledger.key, (ledger.host, ledger.port), till.paid)
    try:
        toll = None
        if desk is not None and words.price is not None:
            toll = await desk.gate(words.price, Till(words.till))
        server = RelayServer(
            key,
            host=words.host,
            port=words.port,
            uplink=words.rate,
            circuit_rate=words.circuit_rate,
            allow_remote=True,  # --host said so
            admit=None if month is None else lambda _: month.spent() is None,
            on_traffic=None if month is None else lambda size: month.add(size, size),
            toll=toll,
        )
        _introduce(key, words, await server.start(), as_json)
        if desk is not None:
            desk.attend(server)
        keeping = None if month is None else asyncio.create_task(_keep(month, server))
        try:
            await is_over.wait()
        finally:
            if keeping is not None:
                keeping.cancel()
            for error in await desk.settle() if desk is not None else ():
                sys.stderr.write("".join(f"{line}\n" for line in error.lines()))
            await server.close()
            if month is not None:
                await month.close()
    finally:
        if desk is not None:
            await desk.close()
    facts = {} if toll is None else {"carried": till.carried, "earned": till.earned}
    text = [f"forwarded {format_bytes(server.forwarded)}"]
    if toll is not None:
        text.append(f"earned {format_credits(till.earned)} credits for {format_bytes(till.carried)}, in all")
    _say(as_json, {"forwarded": server.forwarded, **facts}, text)


def _introduce(key: SigningKey, words: Words, place: tuple[str, int], as_json: bool) -> None:
    """Where it is, and within which bounds it serves."""
    host, port = place
    kept = [] if words.rate is None else [f"sends at most {format_rate(8 * words.rate)} to other machines"]
    if words.circuit_rate:
        kept.append(f"each circuit at most {format_rate(8 * words.circuit_rate)} each way")
    if words.month is not None:
        kept.append(
            f"{format_bytes(words.month.used)} of {format_bytes(words.month.limit)} used this month (UTC)"
        )
    if words.price is not None:
        kept.append(f"for a pass only, at {format_credits(words.price)} credits a GiB or more")
    facts: dict[str, Any] = {
        "peer": key.public.hex(),
        "host": host,
        "port": port,
        "bytes_per_second": words.rate,
    }
    if words.price is not None:
        facts["price"] = words.price
    _say(
        as_json,
        facts,
        [f"relay {key.public.hex()}", f"at    {host}:{port}", *kept, "Ctrl-C ends it."],
    )


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
    help="Made if missing.",
)
@click.option(
    "--uplink", type=_RATE, metavar="MBIT", help="Your line's upload: 95 % of it is used. Linux only."
)
@click.option("--circuit-rate", type=_RATE, metavar="MBIT", help="At most so much for a circuit.")
@click.option(
    "--month", type=click.FloatRange(0.001, 1_000_000.0), metavar="GB", help="At most so much a month."
)
@click.option(
    "--ledger", callback=placing.ledger, metavar="HOST:PORT,KEY", help="Whose withdrawn keys end here; pays."
)
@click.option("--price", type=click.IntRange(1, _PRICE), metavar="MICRO", help="Micro-credits a GiB.")
@click.option("--json", "as_json", is_flag=True, help="JSON objects on stdout.")
def relay(
    host: str,
    port: int,
    path: Path,
    uplink: float | None,
    circuit_rate: float | None,
    month: float | None,
    ledger: Named | None,
    price: int | None,
    as_json: bool,
) -> None:
    """Forward bytes between peers that cannot reach each other, until Ctrl-C.

    Other machines reach it only when --host names an address that they can
    reach. It sees who talks with whom and how much, but not what they say.
    """
    if price is not None and ledger is None:
        raise click.UsageError("--price needs --ledger")
    rate = _sent_at_most(uplink)
    each = _mbit(circuit_rate, "'--circuit-rate'")
    allow_many_files()
    volume = thrift.allowance(thrift.read_thrift().month_gb if month is None else month)
    words = Words(host, port, rate, each, volume, ledger, price, path.with_name(path.name + ".till"))
    asyncio.run(_serve(read_or_make_key(path), words, as_json))

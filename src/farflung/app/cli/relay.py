"""Implements the command `relay`: lends this computer's connection to peers that cannot reach each other."""

from __future__ import annotations

import asyncio
import functools
import math
import signal
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from farflung.app.cli.job_options import ledger_address
from farflung.app.netcheck.relay import RelayAddress
from farflung.core import limits
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, UsageError
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.core.money import format_credits
from farflung.core.units import format_bytes, format_rate
from farflung.ledger.table_rows import ChannelRow
from farflung.net.certificates import Credential
from farflung.net.io.admission import Admission
from farflung.net.io.listen_errors import LOOPBACK
from farflung.net.io.monthly_quota import MonthlyQuota
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_circuits import RelayLimits
from farflung.net.io.relay_receipt_store import ReceiptStore
from farflung.net.io.socket_options import CAN_PACE
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.max_min_fair import kept_rate
from farflung.peers.keys.files import another_account, is_there, new_account, read_account, read_own
from farflung.peers.keys.node_key import NodeKeyRotator, ledger_of
from farflung.peers.process import bandwidth_limits
from farflung.peers.relay.ledger_link import RelayLedgerLink
from farflung.peers.relay.main import allow_many_files

PORT: Final = 4510
_RATE: Final = click.FloatRange(0.1, 10_000.0)  # Mbit/s
NO_KEY: Final = "FF-APP-260"
_LOOK_SECONDS: Final = 1.0  # between two looks at the month's volume


def read_or_make_key(path: Path) -> SigningKey:
    """The account's key in `path`; a new one where there is none.

    Raises UsageError FF-APP-140 (not such a file), 141 (others may read it), RunError FF-CORE-050 (cannot write).
    """
    own = read_or_make(path)
    if own.certificate is not None:
        raise _no_key(path, "it is a node key, with its certificate")
    return own.node


def read_or_make(path: Path) -> Credential:
    """What is in `path`: an account's key, one line of 64 hex digits, or a node key; a new account where there is none.

    Raises UsageError FF-APP-140 (not such a file), 141 (others may read it), RunError FF-CORE-050 (cannot write).
    """
    if not path.parent.is_dir():
        raise _no_key(path, "its folder does not exist")
    if not is_there(path):
        return Credential(new_account(path))
    try:
        return read_own(path)
    except UsageError as error:
        if error.code != NO_KEY:
            raise
        raise _no_key(path, error.cause) from error


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


def _account(own: Credential, path: Path | None, words: RelayOptions) -> SigningKey | None:
    """The account's key, where the relay has it. Raises UsageError FF-APP-262 (another's), FF-APP-264 (missed)."""
    account = own.node if own.certificate is None else None
    if path is not None:
        account = read_account(path)
        if account.public != own.account:
            raise another_account(path, f"the node key speaks for {own.account.hex()}")
    if account is None and words.price is not None:
        raise UsageError(
            "FF-APP-264",
            "a relay that is paid needs its account's key",
            cause="a node key signs no transaction",
            hint="name the account's file with --account",
        )
    return account


class RelayOptions(NamedTuple):
    """What a relay is told. `rate`, `circuit_rate`: bytes a second; `price`: micro-credits a GiB, None: for nothing.

    `store`: the folder of its receipts, if it is paid.
    """

    host: str
    port: int
    rate: int | None
    circuit_rate: int
    month: MonthlyQuota | None
    ledger: RelayAddress | None
    price: int | None
    store: Path


class _RelayEarnings:
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


async def _serve(
    own: Credential, path: Path, account: SigningKey | None, words: RelayOptions, as_json: bool
) -> None:
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, is_over.set)
    earnings, ledger, month = _RelayEarnings(as_json), words.ledger, words.month
    desk = None
    if ledger is not None and ledger.key is not None:
        desk = RelayLedgerLink(
            account or own.node, [(ledger.key, ledger.host, ledger.port)], earnings.paid, own
        )
    try:
        gate = None
        if desk is not None and words.price is not None:
            gate = await desk.gate(words.price, ReceiptStore(words.store))
        server = RelayServer(
            own,
            listen=ListenConfig(words.host, words.port, allow_remote=True),  # --host said so
            admission=Admission(None if month is None else lambda _: month.spent() is None),
            limits=RelayLimits(words.rate, words.circuit_rate),
            gate=gate,
            on_traffic=None if month is None else lambda size: month.add(size, size),
        )
        _introduce(own, words, await server.start(), as_json)
        if desk is not None:
            desk.attend(server)
        keeping = OwnedTasks()
        if month is not None:
            keeping.begin(_keep(month, server))
        if own.certificate is not None:
            keeping.begin(_minder(own, path, account, words, server, desk).stay())
        try:
            await is_over.wait()
        finally:
            await keeping.close()
            for error in await desk.settle() if desk is not None else ():
                sys.stderr.write("".join(f"{line}\n" for line in error.lines()))
            await server.close()
            if month is not None:
                await month.close()
    finally:
        if desk is not None:
            await desk.close()
    facts = {} if gate is None else {"carried": earnings.carried, "earned": earnings.earned}
    text = [f"forwarded {format_bytes(server.forwarded)}"]
    if gate is not None:
        text.append(
            f"earned {format_credits(earnings.earned)} credits for {format_bytes(earnings.carried)}, in all"
        )
    _say(as_json, {"forwarded": server.forwarded, **facts}, text)


def _minder(
    own: Credential,
    path: Path,
    account: SigningKey | None,
    words: RelayOptions,
    server: RelayServer,
    desk: RelayLedgerLink | None,
) -> NodeKeyRotator:
    """Keeps the relay on its newest node key."""

    def renew(found: Credential) -> None:
        server.endpoint.renew(found)
        if desk is not None:
            desk.renew(found)
        sys.stderr.write(f"the relay proves its node key of epoch {found.identity.epoch} from now on\n")

    def warn(error: FarflungError) -> None:
        sys.stderr.write("".join(f"{line}\n" for line in error.lines()))

    named = words.ledger
    if account is None or named is None or named.key is None:
        return NodeKeyRotator(path, own, renew, None, account, warn)
    rotate = functools.partial(ledger_of, named.key, named.host, named.port, account)
    return NodeKeyRotator(path, own, renew, rotate, account, warn)


def _introduce(own: Credential, words: RelayOptions, place: tuple[str, int], as_json: bool) -> None:
    """Where it is, and within which bounds it serves."""
    (host, port), account = place, own.account.hex()
    kept = [] if words.rate is None else [f"sends at most {format_rate(8 * words.rate)} to other machines"]
    if words.circuit_rate:
        kept.append(f"each circuit at most {format_rate(8 * words.circuit_rate)} each way")
    if words.month is not None:
        kept.append(
            f"{format_bytes(words.month.used)} of {format_bytes(words.month.limit)} used this month (UTC)"
        )
    if own.certificate is not None:
        kept.append(f"by its node key of epoch {own.identity.epoch}")
    if words.price is not None:
        kept.append(f"for a pass only, at {format_credits(words.price)} credits a GiB or more")
    facts: dict[str, Any] = {
        "peer": account,
        "host": host,
        "port": port,
        "bytes_per_second": words.rate,
    }
    if words.price is not None:
        facts["price"] = words.price
    _say(
        as_json,
        facts,
        [f"relay {account}", f"at    {host}:{port}", *kept, "Ctrl-C ends it."],
    )


async def _keep(month: MonthlyQuota, server: RelayServer) -> None:
    """Ends what goes through when the month's volume is used up, and says so once; the next month begins by itself."""
    was_spent = False
    while True:
        error = month.spent()
        if error is not None:
            server.end_all()
            if not was_spent:
                sys.stderr.write("".join(f"{line}\n" for line in error.lines()))
        was_spent = error is not None
        await asyncio.sleep(_LOOK_SECONDS)


@click.command(epilog="Example: farflung relay --host 0.0.0.0 --key relay.key")
@click.option("--host", default=LOOPBACK, show_default=True, help="The address to listen on.")
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
    "--account",
    "account_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Of a node key: to rotate it in time.",
)
@click.option(
    "--uplink", type=_RATE, metavar="MBIT", help="Your line's upload: 95 % of it is used. Linux only."
)
@click.option("--circuit-rate", type=_RATE, metavar="MBIT", help="At most so much for a circuit.")
@click.option(
    "--month", type=click.FloatRange(0.001, 1_000_000.0), metavar="GB", help="At most so much a month."
)
@click.option(
    "--ledger", callback=ledger_address, metavar="HOST:PORT,KEY", help="Whose withdrawn keys end here; pays."
)
@click.option(
    "--price", type=click.IntRange(1, limits.RELAY_PRICE), metavar="MICRO", help="Micro-credits a GiB."
)
@click.option("--json", "as_json", is_flag=True, help="JSON objects on stdout.")
def relay(
    host: str,
    port: int,
    path: Path,
    account_path: Path | None,
    uplink: float | None,
    circuit_rate: float | None,
    month: float | None,
    ledger: RelayAddress | None,
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
    volume = bandwidth_limits.allowance(
        bandwidth_limits.read_bandwidth_limits().month_gb if month is None else month
    )
    words = RelayOptions(host, port, rate, each, volume, ledger, price, path.with_name(path.name + ".till"))
    own = read_or_make(path)
    asyncio.run(_serve(own, path, _account(own, account_path, words), words, as_json))

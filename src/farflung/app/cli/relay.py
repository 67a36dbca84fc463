"""Implements the command `relay`: lends this computer's connection to peers that cannot reach each other."""

from __future__ import annotations

import asyncio
import math
import sys
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from farflung.app.cli.job_options import ledger_address
from farflung.app.cli.money_options import CreditsParam
from farflung.app.netcheck.relay import RelayAddress
from farflung.core import limits
from farflung.core.crypto import SigningKey
from farflung.core.errors import UsageError
from farflung.core.money import format_credits
from farflung.core.units import format_bytes, format_rate
from farflung.net.certificates import Credential
from farflung.net.io.listen_errors import LOOPBACK
from farflung.peers.keys.files import is_there, new_account, read_account, read_own
from farflung.peers.process.channel import LogChannel
from farflung.peers.process.config import HexId, KeyFile, LedgerConfig
from farflung.peers.relay.config import PORT, RelayConfig, sent_at_most
from farflung.peers.relay.main import main

_RATE: Final = click.FloatRange(0.1, 10_000.0)  # Mbit/s
NO_KEY: Final = "FF-APP-260"


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


def _no_nan(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """No range refuses it."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is no rate", ctx, param)
    return value


class _RelayChannel(LogChannel):
    """Says where the relay is, what it earns, and at the end how much it forwarded, in the command's way."""

    def __init__(self, config: RelayConfig, as_json: bool) -> None:
        super().__init__()
        self._config, self._as_json = config, as_json
        self._carried = self._earned = 0

    def report(self, kind: str, **facts: Any) -> None:
        """Notes go to standard error."""
        match kind:
            case "ready":
                self._introduce(facts)
            case "paid":
                self._carried, self._earned = self._carried + facts["carried"], self._earned + facts["paid"]
                carried, paid = format_bytes(facts["carried"]), format_credits(facts["paid"])
                _say(self._as_json, facts, [f"earned {paid} credits for {carried}, from {facts['payer']}"])
            case "note":
                super().report(kind, **facts)
            case "end":
                self._sum_up(facts["forwarded"])

    def _introduce(self, said: dict[str, Any]) -> None:
        """Where it is, and within which bounds it serves."""
        config, bounds, own = self._config, self._config.limits, self._config.key.credential
        kept = [] if bounds.uplink is None else [f"sends at most {format_rate(8 * bounds.uplink)} to other machines"]
        if bounds.circuit_rate:
            kept.append(f"each circuit at most {format_rate(8 * bounds.circuit_rate)} each way")
        if "month_used" in said:
            used, most = format_bytes(said["month_used"]), format_bytes(said["month_limit"])
            kept.append(f"{used} of {most} used this month (UTC)")
        if own.certificate is not None:
            kept.append(f"by its node key of epoch {own.identity.epoch}")
        if config.price:
            kept.append(f"for a pass only, at {format_credits(config.price)} credits a GiB or more")
        facts = {name: said[name] for name in ("peer", "host", "port")} | {"bytes_per_second": bounds.uplink}
        facts |= {"price": config.price} if config.price else {}
        place = f"at    {said['host']}:{said['port']}"
        _say(self._as_json, facts, [f"relay {said['peer']}", place, *kept, "Ctrl-C ends it."])

    def _sum_up(self, forwarded: int) -> None:
        facts, text = {"forwarded": forwarded}, [f"forwarded {format_bytes(forwarded)}"]
        if self._config.price:
            facts |= {"carried": self._carried, "earned": self._earned}
            earned, carried = format_credits(self._earned), format_bytes(self._carried)
            text.append(f"earned {earned} credits for {carried}, in all")
        _say(self._as_json, facts, text)


@click.command(epilog="Example: farflung relay --host 0.0.0.0 --key relay.key")
@click.option("--host", default=LOOPBACK, show_default=True, help="The address to listen on.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0: any free one.")
@click.option(
    "--key", "path", default="relay.key", show_default=True, type=click.Path(path_type=Path), help="Made if missing."
)
@click.option(
    "--account",
    "account_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Of a node key: to rotate it in time.",
)
@click.option(
    "--uplink", type=_RATE, callback=_no_nan, metavar="MBIT", help="Your line's upload; 95 % is used. Linux only."
)
@click.option("--circuit-rate", type=_RATE, callback=_no_nan, metavar="MBIT", help="At most so much for a circuit.")
@click.option("--month", type=click.FloatRange(0.001, 1_000_000.0), metavar="GB", help="At most so much a month.")
@click.option("--ledger", callback=ledger_address, metavar="HOST:PORT,KEY", help="Whose withdrawn keys end here; pays.")
@click.option("--price", type=CreditsParam(1, limits.RELAY_PRICE), metavar="CREDITS", help="For a GiB.")
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
    sent_at_most(uplink)  # before a key is made
    own = read_or_make(path)
    config = RelayConfig(
        key=KeyFile(own, path),
        account=None if account_path is None else read_account(account_path),
        folder=path.with_name(path.name + ".till"),
        host=host,
        port=port,
        uplink_mbit=uplink,
        circuit_mbit=circuit_rate or 0.0,
        month_gb=month,
        price=price or 0,
        ledger=_config_of(ledger),
    )
    channel = _RelayChannel(config, as_json)
    asyncio.run(channel.run(main(config, channel)))


def _config_of(ledger: RelayAddress | None) -> LedgerConfig | None:
    if ledger is None or ledger.key is None:
        return None
    return LedgerConfig(HexId(ledger.key), ledger.host, ledger.port)

"""Implements the command group `key`: creates, replaces, revokes and shows a machine's key.

Such a key is certified by its owner's account.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from farflung.app.cli.job_options import ledger_address
from farflung.app.netcheck.relay import RelayAddress
from farflung.core.crypto import SigningKey
from farflung.core.errors import UsageError
from farflung.net.certificates import FOREVER, Credential
from farflung.net.node_keyring import Keyring
from farflung.peers.keys.files import check_apart, check_place, is_there, new_account, read_account, read_own
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.key_registry import registered
from farflung.peers.ledger_client.node_key import DAY, DAYS, OVERLAP, ledger_of, renewed, revoked

_MOST_DAYS: Final = 3_660
_FILE = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
_ACCOUNT = click.option(
    "--account",
    required=True,
    type=click.Path(path_type=Path),
    metavar="ACCOUNT",
    help="The file of the account's own key.",
)
_LEDGER = click.option(
    "--ledger",
    callback=ledger_address,
    envvar="FARFLUNG_LEDGER",
    metavar="HOST:PORT,KEY",
    help="Where it is registered. Default: $FARFLUNG_LEDGER.",
)
_LIFE = click.option(
    "--days", default=DAYS, show_default=True, type=click.IntRange(1, _MOST_DAYS), help="How long it counts."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


@click.group(epilog="Example: farflung key new relay.key --account account.key")
def key() -> None:
    """Make the key of a machine, replace it, revoke it, look at it.

    Your account's key is what peers know you by, and it moves your money: keep it away
    from machines that listen. A machine proves a node key that your account certifies.
    """


@key.command(epilog="Example: farflung key new relay.key --account account.key --days 30")
@_FILE
@_ACCOUNT
@_LEDGER
@_LIFE
@_JSON
def new(file: Path, account: Path, ledger: RelayAddress | None, days: int, as_json: bool) -> None:
    """Make a node key in FILE, and the account's key if it is missing.

    With --ledger it is registered, which the account pays a fee for.
    """
    if is_there(file):
        raise UsageError(
            "FF-APP-261",
            f"{file} is there already",
            cause="a key that is overwritten is lost",
            hint=f"farflung key rotate {file} --account {account}, or name another file",
        )
    check_apart(file, account)
    for path in (file, account):
        check_place(path)
    owner = read_account(account) if is_there(account) else new_account(account)
    _tell(asyncio.run(_renew(file, owner, ledger, days, 0)), file, ledger, as_json)


@key.command(epilog="Example: farflung key rotate relay.key --account account.key")
@_FILE
@_ACCOUNT
@_LEDGER
@_LIFE
@click.option(
    "--overlap",
    default=OVERLAP,
    show_default=True,
    type=click.IntRange(0, 30 * DAY),
    metavar="SECONDS",
    help="How long the old one still counts.",
)
@_JSON
def rotate(file: Path, account: Path, ledger: RelayAddress | None, days: int, overlap: int, as_json: bool) -> None:
    """Replace the node key in FILE by a new one.

    A relay that runs takes the new file within seconds. With --ledger the old key counts for
    the overlap and no longer; without it, until its certificate ends.
    """
    read_own(file)
    owner = read_account(account)
    check_apart(file, account)
    _tell(asyncio.run(_renew(file, owner, ledger, days, overlap)), file, ledger, as_json)


@key.command(epilog="Example: farflung key revoke relay.key --account account.key")
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@_ACCOUNT
@_LEDGER
@click.option("--epoch", type=click.IntRange(0), metavar="N", help="All up to this one, instead of FILE.")
@_JSON
def revoke(file: Path | None, account: Path, ledger: RelayAddress | None, epoch: int | None, as_json: bool) -> None:
    """Withdraw stolen node keys for ever: within seconds nobody takes them.

    All up to the registered epoch go, and up to that of the key in FILE. Later ones that were
    never registered stay good: --epoch N reaches them, with N from `farflung key show` of any
    copy, or any number over that of all keys ever made. Then `farflung key rotate`.
    """
    if ledger is None:
        raise click.UsageError("a revocation is said to a ledger: --ledger HOST:PORT,KEY")
    if file is not None and epoch is not None:
        raise click.UsageError("FILE or --epoch, not both")
    owner = read_account(account)
    last = asyncio.run(_ask(ledger, owner, lambda client: revoked(owner, client, epoch, file)))
    lines = [f"account  {owner.public.hex()}", f"revoked  epochs 0 to {last}; a new key has {last + 1} or more"]
    if file is None and epoch is None:
        lines.append("not in   keys that were never registered, if their epoch is higher: they stay good.")
        lines.append("         Name the machine's key FILE, or --epoch N, with N from `farflung key show FILE`")
    up_to = "registered" if epoch is None and file is None else "file" if epoch is None else "epoch"
    _say(as_json, {"account": owner.public.hex(), "revoked": last, "up_to": up_to}, lines)


@key.command(epilog="Example: farflung key show relay.key")
@_FILE
@_LEDGER
@_JSON
def show(file: Path, ledger: RelayAddress | None, as_json: bool) -> None:
    """Say whose key is in FILE, until when it counts and, with --ledger, whether it does."""
    own = read_own(file)
    facts, lines = _facts(own)
    if ledger is not None:
        row = asyncio.run(_ask(ledger, own.node, lambda client: client.keys(own.account)))
        ring = Keyring()
        ring.learn([registered(row)])
        fault = ring.fault(own.identity, time.time())
        facts |= {"registered": row.epoch, "void": row.void, "fault": fault}
        lines.append(f"ledger   {fault or f'it counts; epoch {row.epoch} is registered'}")
    _say(as_json, facts, lines)


async def _ask(
    ledger: RelayAddress, account: SigningKey, work: Callable[[LedgerClient], Coroutine[Any, Any, Any]]
) -> Any:
    assert ledger.key is not None
    async with ledger_of(ledger.key, ledger.host, ledger.port, account) as client:
        return await work(client)


async def _renew(file: Path, owner: SigningKey, ledger: RelayAddress | None, days: int, overlap: int) -> Credential:
    if ledger is None:
        return await renewed(file, owner, None, days=days)
    made: Credential = await _ask(
        ledger, owner, lambda client: renewed(file, owner, client, days=days, overlap=overlap)
    )
    return made


def _tell(own: Credential, file: Path, ledger: RelayAddress | None, as_json: bool) -> None:
    facts, lines = _facts(own)
    facts["is_registered"] = ledger is not None
    said = "registered" if ledger is not None else "not told: name it with --ledger, so that the old one ends"
    _say(as_json, facts, [*lines, f"ledger   {said}", f"in       {file}"])


def _facts(own: Credential) -> tuple[dict[str, Any], list[str]]:
    """Public facts alone."""
    who = own.identity
    facts: dict[str, Any] = {
        "account": who.account.hex(),
        "node": who.node.hex(),
        "epoch": who.epoch,
        "begins": who.begins,
        "expires": None if who.expires == FOREVER else who.expires,
    }
    left = (who.expires - time.time()) / DAY
    until = "without an end" if who.expires == FOREVER else f"until {_day(who.expires)}, {left:.1f} days"
    kind = f"epoch {who.epoch}, {until}" if own.certificate is not None else "the account's own, epoch 0"
    return facts, [f"account  {who.account.hex()}", f"node     {who.node.hex()}", f"key      {kind}"]


def _day(at: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


def _say(as_json: bool, facts: dict[str, Any], lines: list[str]) -> None:
    told = [msgspec.json.encode(facts).decode()] if as_json else lines
    sys.stdout.write("\n".join(told) + "\n")

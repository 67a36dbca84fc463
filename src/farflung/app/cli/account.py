"""Implements the command group `account`: shows the person's account on a network, pays from it and copies its key."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from farflung.app.cli.ledger_motion import name_in
from farflung.app.cli.ledger_statement import statement
from farflung.app.cli.money_options import amount_in
from farflung.app.cli.network_client import ON, client_on, network_on
from farflung.app.cli.network_open import JSON, WORTH, say
from farflung.core.crypto import SigningKey
from farflung.core.errors import UsageError
from farflung.core.ids import PeerId
from farflung.core.money import format_credits
from farflung.ledger.transactions import Transfer
from farflung.peers.keys.files import is_there, read_account
from farflung.peers.network.account import account_file, chosen_account
from farflung.peers.node.home import ACCOUNT, known_homes

KEY = click.option("--key", "file", type=click.Path(path_type=Path), metavar="FILE", help="Another account's key.")


@click.group(epilog="Example: farflung account show --on commons")
def account() -> None:
    """Show your account on a network, pay from it, and keep a copy of its key.

    One key is your account on every network: it is made when it is first needed, and
    whoever has its file has its credits.
    """


@account.command(epilog="Example: farflung account show --on commons")
@ON
@KEY
@JSON
def show(on: str | None, file: Path | None, as_json: bool) -> None:
    """Show your account's key and what it has on a network, and what the nodes
    that you lend from this computer have, each with an account of its own.
    """
    key, network = chosen_account(file), network_on(on)
    lent = [] if file is not None else [home for home in known_homes(network.name) if is_there(home / ACCOUNT)]

    async def work() -> list[tuple[int, int]]:
        async with client_on(network) as (client, _):
            held = []
            for owner in (key, *(read_account(home / ACCOUNT) for home in lent)):
                node = await client.node(owner.public)
                stake = 0 if node is None else node.free + node.locked
                held.append(((await client.account(owner.public)).balance, stake))
            return held

    (balance, stake), *nodes = asyncio.run(work())
    facts: dict[str, Any] = {"account": key.public.hex(), "network": network.name, "balance": balance, "stake": stake}
    if nodes:
        facts["lent"] = [
            {"key": str(home / ACCOUNT), "balance": held, "stake": bonded}
            for home, (held, bonded) in zip(lent, nodes, strict=True)
        ]
    lines = [f"Account  {key.public.hex()}", f"Network  {network.name}", f"Balance  {format_credits(balance)} credits"]
    lines += [f"Stake    {format_credits(stake)} credits"] if stake else []
    for home, (held, bonded) in zip(lent, nodes, strict=True):
        lines.append(f"Lent     {format_credits(held)} credits, {format_credits(bonded)} at stake: {home / ACCOUNT}")
    say(as_json, facts, [*lines, f"Key      {file or account_file()}: keep a copy", f"Note     {WORTH}"])


@account.command(epilog="Example: farflung account pay 3f9a... 12.5 --on commons")
@click.argument("to", metavar="ACCOUNT")
@click.argument("amount")
@ON
@KEY
@JSON
def pay(to: str, amount: str, on: str | None, file: Path | None, as_json: bool) -> None:
    """Send credits to another account. It is opened if it is new."""
    payee, money = PeerId(name_in(to, "account")), amount_in(amount)
    say(as_json, *paid(chosen_account(file), payee, money, on))


def paid(payer: SigningKey, to: PeerId, money: int, on: str | None) -> tuple[dict[str, Any], list[str]]:
    """Pays on a network; what is then to be said of it."""
    network = network_on(on)

    async def work() -> int:
        async with client_on(network, payer) as (client, _):
            await client.submit(Transfer(to, money))
            return (await client.account(payer.public)).balance

    left = asyncio.run(work())
    facts = {"from": payer.public.hex(), "to": to.hex(), "amount": money, "balance": left}
    return facts, [f"Paid     {format_credits(money)} credits to {to.hex()}", f"Left     {format_credits(left)}"]


@account.command("statement", epilog="Example: farflung account statement --on commons --csv")
@ON
@KEY
@click.option("--csv", "as_csv", is_flag=True, help="Rows for a spreadsheet (RFC 4180).")
@JSON
@click.pass_context
def write_statement(ctx: click.Context, on: str | None, file: Path | None, as_csv: bool, as_json: bool) -> None:
    """Write why your account has what it has: `farflung ledger statement` of your key."""
    name, own = network_on(on).name, chosen_account(file).public.hex()
    ctx.invoke(statement, key=own, on=name, as_csv_file=as_csv, as_json=as_json)


@account.command(epilog="Example: farflung account backup ~/account-copy.key")
@click.argument("copy", metavar="FILE", type=click.Path(path_type=Path))
@KEY
@JSON
def backup(copy: Path, file: Path | None, as_json: bool) -> None:
    """Copy your account's key to FILE, which only you may read. It is not encrypted.

    To bring it back, copy FILE to the place that `farflung account show` names.
    """
    source = file or account_file()
    key = read_account(source)
    if is_there(copy):
        raise UsageError(
            "FF-APP-548", f"{copy} is there already", cause="a key is never written over", hint="name another file"
        )
    handle = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as out:
        out.write(source.read_bytes())
        out.flush()
        os.fsync(out.fileno())
    say(as_json, {"account": key.public.hex(), "file": str(copy)}, [f"Copied   {key.public.hex()} to {copy}"])

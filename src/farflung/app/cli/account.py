"""Implements the command group `account`: shows the account on a network with its nodes, pays, copies its key."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import click

from farflung.app.cli.ledger_motion import name_in
from farflung.app.cli.ledger_statement import statement
from farflung.app.cli.money_options import amount_in
from farflung.app.cli.network_client import ON, NamedNetwork, client_on, network_on
from farflung.app.cli.network_open import JSON, WORTH, say
from farflung.core.crypto import SigningKey
from farflung.core.errors import UsageError
from farflung.core.ids import PeerId
from farflung.core.money import format_credits
from farflung.ledger.transactions import Transfer
from farflung.peers.keys.files import is_there, read_account
from farflung.peers.network.account import account_file, chosen_account, slot_key
from farflung.peers.node.home import ACCOUNT, ROLES, SLOTS, home_of, key_file, known_homes

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
    """Show your account's key, what it has on a network, and what its nodes have
    there: on this computer or elsewhere.
    """
    key, network = chosen_account(file), network_on(on)
    facts, nodes = asyncio.run(_holdings(key, network, with_homes=file is None))
    balance, stake = facts["balance"], facts["stake"]
    lines = [f"Account  {key.public.hex()}", f"Network  {network.name}", f"Balance  {format_credits(balance)} credits"]
    lines += [f"Stake    {format_credits(stake)} credits"] if stake else []
    lines += map(_node_line, nodes)
    lines.append(f"Key      {file or account_file()}: keep a copy{'; of its nodes, too' if nodes else ''}")
    lines += [f"Key      {each['key']}: keep a copy, it is of this node alone" for each in nodes if each["key"]]
    say(as_json, facts | ({"nodes": nodes} if nodes else {}), [*lines, f"Note     {WORTH}"])


def _node_line(node: dict[str, Any]) -> str:
    held, bonded = format_credits(node["balance"]), format_credits(node["stake"])
    where = node["name"] + ("" if node["is_here"] else ", not on this computer")
    return f"Node     {where} ({node['node'][:8]}): {held} credits, {bonded} at stake"


class AccountNode(NamedTuple):
    """One of an account's nodes: its name, which its folder has, and whether that is on this computer.

    `file`: of a key that does not follow from the account's; None: it does.
    """

    key: PeerId
    name: str
    is_here: bool
    file: Path | None = None


def nodes_of(
    account: SigningKey, network: NamedNetwork, listed: Collection[PeerId], *, with_homes: bool
) -> list[AccountNode]:
    """The account's nodes that have a home on this computer, or are among those that are `listed` on the ledger."""
    found = []
    if with_homes:
        for home in known_homes(network.name):
            if is_there(file := key_file(home)):
                drawn = file if file.name == ACCOUNT else None
                found.append(AccountNode(read_account(file).public, home.name, True, drawn))
    known = {each.key for each in found}
    for role in ROLES:
        for slot in range(1, SLOTS + 1):
            public = slot_key(account, network.genesis.chain, role, slot).public
            if public in listed and public not in known:
                found.append(AccountNode(public, home_of(network.name, role, slot).name, False))
    return found


async def _holdings(
    key: SigningKey, network: NamedNetwork, *, with_homes: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What an account has, and each of its nodes."""
    async with client_on(network) as (client, _):

        async def held(owner: PeerId) -> dict[str, int]:
            node, balance = await client.node(owner), (await client.account(owner)).balance
            return {"balance": balance, "stake": 0 if node is None else node.free + node.locked}

        listed = {row.node for row in await client.nodes()}
        nodes = [
            {
                "node": each.key.hex(),
                "name": each.name,
                "is_here": each.is_here,
                "key": str(each.file or ""),
                **await held(each.key),
            }
            for each in nodes_of(key, network, listed, with_homes=with_homes)
        ]
        return {"account": key.public.hex(), "network": network.name, **await held(key.public)}, nodes


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
    """Write why your account has what it has: `farflung ledger statement` of your key.

    Below it, what your nodes have, and the command that writes each one's statement.
    """
    network, own = network_on(on), chosen_account(file)
    ctx.invoke(statement, key=own.public.hex(), on=network.name, as_csv_file=as_csv, as_json=as_json)
    if not as_csv and not as_json:
        _, nodes = asyncio.run(_holdings(own, network, with_homes=file is None))
        command = f"farflung ledger statement {{}} --on {network.name}"
        lines = [line for each in nodes for line in (_node_line(each), f"         {command.format(each['node'][:16])}")]
        sys.stdout.write("".join(f"{line}\n" for line in lines))


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

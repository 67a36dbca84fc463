"""Implements `ledger motion`: votes of validator seats' owners."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import click
from msgspec.structs import replace

from farflung.app.cli.ledger_init import say
from farflung.app.cli.ledger_seats import JSON, OWNER
from farflung.app.cli.network_client import ON, client_on, network_on
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, UsageError
from farflung.core.ids import ID_BYTES, Hash, PeerId
from farflung.core.money import parse_credits
from farflung.core.release import LAW, UPGRADE, VERSION
from farflung.ledger.motions import (
    AdmitValidator,
    AdoptLaw,
    AmendParams,
    Motion,
    MotionRow,
    MotionVote,
    RemoveValidator,
    What,
    motion_id,
)
from farflung.ledger.params import MONEY_PARAMS, LedgerParams, fault_of_params
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.network.account import chosen_account

_DAY_MS: Final = 86_400_000
_DAYS = click.option(
    "--days", type=click.IntRange(1, 366), help="Then it lapses. Default: as long as the ledger lets it."
)


@click.group(epilog="Example: farflung ledger motion admit 3f9a... --owner my.key")
def motion() -> None:
    """Decide, with the owners of the other seats, who has a seat and by which numbers.

    A motion passes when owners of more than two thirds of the seats voted for it; what it says holds from
    the next boundary of an epoch on.
    """


def name_in(text: str, what: str) -> bytes:
    """32 bytes from hex. Raises UsageError FF-APP-315."""
    try:
        name = bytes.fromhex(text)
    except ValueError:
        name = b""
    if len(name) != ID_BYTES:
        raise UsageError(
            "FF-APP-315",
            f"{text[:70]!r} is no {what}",
            cause=f"it is written in {2 * ID_BYTES} hexadecimal digits",
            hint="copy it whole: `farflung ledger join`, `motion` and `show` print such names",
        )
    return name


def _told(row: MotionRow) -> str:
    """What a motion says."""
    match row.what:
        case AdmitValidator(validator):
            return f"admit {validator.hex()}"
        case RemoveValidator(validator):
            return f"remove {validator.hex()}"
        case AmendParams(params):
            fields = LedgerParams.__struct_fields__
            return "amend " + ", ".join(f"{name}={getattr(params, name)}" for name in fields)
        case AdoptLaw(number):
            return f"law {number}"


async def _row(client: LedgerClient, name: Hash) -> MotionRow:
    """Raises UsageError FF-APP-316 where there is no such motion."""
    row = await client.row(MotionRow, name)
    if row is None:
        raise UsageError(
            "FF-APP-316", f"no motion {name.hex()[:16]} is on this ledger", hint="ask who moved it for its whole name"
        )
    return row


def _carried(row: MotionRow, seats: int) -> tuple[dict[str, Any], list[str]]:
    facts = {
        "motion": row.motion.hex(),
        "says": _told(row),
        "state": row.state.name.lower(),
        "voters": [voter.hex() for voter in row.voters],
        "seats": seats,
    }
    text = [f"Motion   {row.motion.hex()}", f"Says     {_told(row)}"]
    text.append(f"State    {row.state.name.lower()}: {len(row.voters)} voted for it, {seats} seats")
    if facts["state"] == "open":
        text.append(f"Next     others: farflung ledger motion vote {row.motion.hex()} --owner FILE")
    return facts, text


def _run(
    signer: SigningKey, on: str | None, as_json: bool, step: Callable[[LedgerClient], Awaitable[MotionRow]]
) -> None:
    network = network_on(on)

    async def work() -> tuple[MotionRow, int]:
        async with client_on(network, signer) as (client, _):
            row = await step(client)
            return row, len((await client.committee()).committee.members)

    say(as_json, *_carried(*asyncio.run(work())))


def _move(
    owner: Path | None, days: int | None, on: str | None, as_json: bool, said: Callable[[LedgerClient], Awaitable[What]]
) -> None:
    async def step(client: LedgerClient) -> MotionRow:
        what, most = await said(client), (await client.committee()).params.motion_ms
        span = most if days is None else min(days * _DAY_MS, most)
        # The block that holds it is later than the head, so that a deadline counted from here is never too far ahead.
        moved = Motion(what, (await client.head()).header.time + span)
        await client.submit(moved)
        return await _row(client, motion_id(client.chain, client.own, moved))

    _run(chosen_account(owner), on, as_json, step)


@motion.command(epilog="Example: farflung ledger motion admit 3f9a... --owner my.key")
@click.argument("validator")
@OWNER
@_DAYS
@ON
@JSON
def admit(validator: str, owner: Path | None, days: int | None, on: str | None, as_json: bool) -> None:
    """Move that a validator which asked for a seat gets one."""
    key = PeerId(name_in(validator, "validator"))

    async def said(_: LedgerClient) -> What:
        return AdmitValidator(key)

    _move(owner, days, on, as_json, said)


@motion.command(epilog="Example: farflung ledger motion remove 3f9a... --owner my.key")
@click.argument("validator")
@OWNER
@_DAYS
@ON
@JSON
def remove(validator: str, owner: Path | None, days: int | None, on: str | None, as_json: bool) -> None:
    """Move that a validator loses its seat, and gets its stake back as if it had left."""
    key = PeerId(name_in(validator, "validator"))

    async def said(_: LedgerClient) -> What:
        return RemoveValidator(key)

    _move(owner, days, on, as_json, said)


@motion.command(epilog="Example: farflung ledger motion amend fee_min=0.00002 --owner my.key")
@click.argument("numbers", nargs=-1, required=True, metavar="NAME=VALUE...")
@OWNER
@_DAYS
@ON
@JSON
def amend(numbers: tuple[str, ...], owner: Path | None, days: int | None, on: str | None, as_json: bool) -> None:
    """Move that parameters change: money in credits, times in milliseconds.

    Jobs keep the parameters under which they were made.
    """

    async def said(client: LedgerClient) -> What:
        return AmendParams(_amended((await client.committee()).params, numbers))

    _move(owner, days, on, as_json, said)


def _amended(params: LedgerParams, numbers: tuple[str, ...]) -> LedgerParams:
    """Raises UsageError FF-APP-317."""
    changes: dict[str, int] = {}
    fault = ""
    for each in numbers:
        name, _, number = each.partition("=")
        if name in MONEY_PARAMS:
            try:
                changes[name] = parse_credits(number)
            except FarflungError as error:
                fault = f"{each[:60]!r}: {error.message}; {error.cause}"
        elif name not in LedgerParams.__struct_fields__ or not number.isdecimal():
            fault = f"{each[:60]!r} is not NAME=VALUE with a name of: {', '.join(LedgerParams.__struct_fields__)}"
        else:
            changes[name] = int(number)
    made = params if fault else replace(params, **changes)
    fault = fault or fault_of_params(made)
    if fault:
        raise UsageError(
            "FF-APP-317",
            "these parameters cannot be moved",
            cause=fault,
            hint="docs/protocol/ledger.md lists what each number may be",
        )
    return made


@motion.command("law", epilog="Example: farflung ledger motion law 2 --owner my.key")
@click.argument("number", type=click.IntRange(1))
@OWNER
@_DAYS
@ON
@JSON
def law(number: int, owner: Path | None, days: int | None, on: str | None, as_json: bool) -> None:
    """Move that the next version of the law holds, once all seats run a farflung
    that knows it: a seat that does not stops at that block.
    """
    _check_known(number)

    async def said(_: LedgerClient) -> What:
        return AdoptLaw(number)

    _move(owner, days, on, as_json, said)


def _check_known(number: int) -> None:
    """Raises UsageError FF-APP-720: whoever votes for a law runs a program that knows it."""
    if number > LAW:
        raise UsageError(
            "FF-APP-720",
            f"the farflung that is installed does not know law {number}",
            cause=f"farflung {VERSION} knows law {LAW} and those before: a seat of it stops where law {number} begins",
            hint=f"{UPGRADE}; then farflung network upgrade",
        )


@motion.command(epilog="Example: farflung ledger motion vote 77ab... --owner my.key")
@click.argument("name", metavar="MOTION")
@OWNER
@ON
@JSON
def vote(name: str, owner: Path | None, on: str | None, as_json: bool) -> None:
    """Vote for a motion. There are no votes against: what is not passed lapses."""
    wanted = Hash(name_in(name, "motion"))

    async def step(client: LedgerClient) -> MotionRow:
        what = (await _row(client, wanted)).what
        if isinstance(what, AdoptLaw):
            _check_known(what.law)
        await client.submit(MotionVote(wanted))
        return await _row(client, wanted)

    _run(chosen_account(owner), on, as_json, step)


@motion.command(epilog="Example: farflung ledger motion look 77ab...")
@click.argument("name", metavar="MOTION")
@ON
@JSON
def look(name: str, on: str | None, as_json: bool) -> None:
    """Show what a motion says and how far it is."""
    wanted = Hash(name_in(name, "motion"))
    # Nothing is signed: who only looks needs no account.
    _run(SigningKey(secrets.token_bytes(ID_BYTES)), on, as_json, lambda client: _row(client, wanted))

"""Implements `ledger exclusion`: shows exclusions, files appeals, casts jury votes (docs/protocol/ledger).

What an appeal is argued with lies outside the ledger, as in a dispute: a file, of which the ledger holds the digest.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click

from farflung.app.cli.ledger_dispute import read_shown
from farflung.app.cli.ledger_init import say
from farflung.app.cli.ledger_motion import name_in
from farflung.app.cli.ledger_seats import JSON, OWNER
from farflung.app.cli.money_options import amount_in
from farflung.app.cli.network_client import ON, client_on, network_on
from farflung.core.crypto import NS_EVIDENCE, SigningKey, digest
from farflung.core.errors import UsageError
from farflung.core.ids import ID_BYTES, PeerId
from farflung.core.money import format_credits
from farflung.ledger.exclusions import Appeal, AppealVote, ExclusionRow
from farflung.ledger.motions import ParamsRow
from farflung.ledger.validators import count_key
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.network.account import chosen_account

_Told = tuple[dict[str, Any], list[str]]


@click.group(epilog="Example: farflung ledger exclusion look 9ac0...")
def exclusion() -> None:
    """Look why a node holds no further lease, appeal for your own, judge an appeal.

    Jurors are the owners of seats that had no part in the node's job: they execute the evidence again, and more than
    two thirds decide. If they do not in time, the bond comes back, and the exclusion stays.
    """


async def _row(client: LedgerClient, node: PeerId) -> ExclusionRow:
    """Raises UsageError FF-APP-371 where nothing was ever found."""
    row = await client.row(ExclusionRow, node)
    if row is None:
        raise UsageError(
            "FF-APP-371",
            f"no fault of {node.hex()[:16]} is on record",
            cause="it was never found out, nor has it reported itself; or its ledger excludes nobody",
            hint="farflung ledger show NODE",
        )
    return row


async def _seen(client: LedgerClient, node: PeerId) -> _Told:
    row, now = await _row(client, node), await client.time()
    left, state = max(0, row.until - now), "free"
    if left:
        state = "appealed" if row.deadline else "excluded"
    fault = row.fault.name.lower() if row.until or row.answer else "none yet"
    facts = {
        "node": node.hex(),
        "state": state,
        "fault": fault,
        "job": row.job.hex(),
        "evidence": row.evidence.hex(),
        "until": row.until,
        "left_ms": left,
        "faults": row.faults,
        "final": row.is_final,
        "answer": row.answer.hex(),
        "bond": row.bond,
        "deadline": row.deadline,
        "guilty": len(row.guilty),
        "innocent": len(row.innocent),
    }
    text = [
        f"Node     {node.hex()}",
        f"State    {state}" + (f", {left / 86_400_000:.1f} days of the ledger's time left" if left else ""),
        f"Fault    {fault}; {row.faults} more of silence on record",
        f"Job      {row.job.hex()}",
        f"Evidence {row.evidence.hex()}",
        f"Appeal   bond {format_credits(row.bond)}: {len(row.guilty)} guilty, {len(row.innocent)} innocent",
    ]
    if state == "excluded":
        nothing = "nothing: a jury or a game has decided"
        appeals = "the node: farflung ledger exclusion appeal FILE --owner NODE"
        text.append("Next     " + (nothing if row.is_final else appeals))
    return facts, text


async def _least_bond(client: LedgerClient, row: ExclusionRow) -> int:
    """The law of the job's terms says so, not today's."""
    job = await client.job(row.job)
    law = await client.row(ParamsRow, count_key(job.terms)) if job else None
    return (law.params if law else (await client.committee()).params).bond_min


def _run(signer: SigningKey, on: str | None, as_json: bool, step: Callable[[LedgerClient], Awaitable[_Told]]) -> None:
    network = network_on(on)

    async def work() -> _Told:
        async with client_on(network, signer) as (client, _):
            return await step(client)

    say(as_json, *asyncio.run(work()))


@exclusion.command(epilog="Example: farflung ledger exclusion look 9ac0...")
@click.argument("node")
@ON
@JSON
def look(node: str, on: str | None, as_json: bool) -> None:
    """Show why a node is out, until when, and how far its appeal is."""
    about = PeerId(name_in(node, "node"))
    nobody = SigningKey(secrets.token_bytes(ID_BYTES))  # who only looks needs no account
    _run(nobody, on, as_json, lambda client: _seen(client, about))


@exclusion.command(epilog="Example: farflung ledger exclusion appeal log.txt --owner node.key")
@click.argument("evidence", type=click.Path(dir_okay=False, path_type=Path))
@OWNER
@click.option("--bond", metavar="CREDITS", help="Lost when the jury finds the same. Default: the least.")
@ON
@JSON
def appeal(evidence: Path, owner: Path | None, bond: str | None, on: str | None, as_json: bool) -> None:
    """Ask for another look at what your node was excluded for.

    EVIDENCE: any file that speaks for it; the ledger keeps its digest, the jury asks you for the file.
    """
    node = chosen_account(owner)
    shown, put = digest(NS_EVIDENCE, read_shown(evidence)), None if bond is None else amount_in(bond)

    async def step(client: LedgerClient) -> _Told:
        row = await _row(client, node.public)
        await client.submit(Appeal(await _least_bond(client, row) if put is None else put, shown))
        return await _seen(client, node.public)

    _run(node, on, as_json, step)


@exclusion.command(epilog="Example: farflung ledger exclusion vote 9ac0 guilty --owner my.key")
@click.argument("node")
@click.argument("verdict", type=click.Choice(("guilty", "innocent")))
@OWNER
@ON
@JSON
def vote(node: str, verdict: str, owner: Path | None, on: str | None, as_json: bool) -> None:
    """Judge an appeal, as the owner of a seat. A vote is final."""
    about = PeerId(name_in(node, "node"))

    async def step(client: LedgerClient) -> _Told:
        await client.submit(AppealVote(about, verdict == "guilty"))
        return await _seen(client, about)

    _run(chosen_account(owner), on, as_json, step)

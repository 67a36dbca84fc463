"""Implements `ledger dispute`: one command for each transition of a dispute.

Each transition has its own signer (docs/protocol/ledger).

An accuser opens, the accused answers, jurors vote, and anybody looks. What is argued with lies outside the ledger: a
file, of which the ledger holds the digest alone.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from farflung.app.cli.ledger_init import say
from farflung.app.cli.ledger_motion import name_in
from farflung.app.cli.ledger_seats import JSON, OWNER
from farflung.app.cli.money_options import amount_in
from farflung.app.cli.network_client import ON, client_on, network_on
from farflung.core.crypto import NS_EVIDENCE, SigningKey, digest
from farflung.core.errors import ProtocolError, UsageError
from farflung.core.ids import ID_BYTES, Hash, PeerId
from farflung.core.money import format_credits
from farflung.job import terms_file
from farflung.job.spec import JobTerms
from farflung.ledger.disputes import TIMED, BallotRow, DisputeAnswer, DisputeRow, DisputeState, JuryVote, ballot_key
from farflung.ledger.motions import ParamsRow
from farflung.ledger.validators import ValidatorRow, count_key
from farflung.peers.ledger_client.client import LedgerClient, dispute_of
from farflung.peers.network.account import chosen_account
from farflung.peers.rundir.inputs import damaged
from farflung.verify import evidence as evidence_files
from farflung.verify.evidence import AuditEvidence, accusation

_VERDICTS: Final = {"guilty": True, "innocent": False}
_NEXT: Final = {
    DisputeState.OPEN: "the accused: farflung ledger dispute answer {job} FILE --owner FILE",
    DisputeState.PLAYED: "nothing: no jury is asked, both sides play it down to one tile",
    DisputeState.ANSWERED: "jurors: farflung ledger dispute vote {job} {node} guilty --owner FILE",
}
_JOB = click.argument("job")
_NODE = click.argument("node")


@dataclass(frozen=True)
class _DisputeView:
    """A dispute, who judges it, and what its jurors said so far; `now`: the ledger's time, ms."""

    row: DisputeRow
    jury: tuple[PeerId, ...]
    ballots: tuple[bool, ...]
    now: int


@click.group(epilog="Example: farflung ledger dispute look 4be1... 9ac0...")
def dispute() -> None:
    """Accuse a node of a job, answer an accusation, and judge as one of the jury.

    Open: the accused answers before the deadline, or has lost. Answered: the jury are the owners of the seats, without
    the parties; more than two thirds decide. If they do not in time, the accused gets all back.
    """


def read_shown(path: Path) -> bytes:
    """A file that is argued with. Raises UsageError FF-APP-331."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            "FF-APP-331",
            f"{str(path)[:120]!r} cannot be read",
            cause=str(error)[:200],
            hint="name a file that is there; keep evidence: the ledger has its digest only",
        ) from error


def _evidence(path: Path) -> AuditEvidence:
    """Raises UsageError FF-APP-332, VersionError FF-CORE-095."""
    try:
        return evidence_files.read(read_shown(path))
    except ProtocolError as error:
        raise UsageError(
            "FF-APP-332",
            f"{path.name[:80]!r} is no evidence of an audit",
            cause=error.message,
            hint="a run keeps such files in its folder: RUN/evidence/*.bin",
        ) from error


def _terms(path: Path) -> JobTerms:
    """Raises VerificationError FF-APP-023, UsageError FF-APP-331, VersionError FF-CORE-095."""
    try:
        return terms_file.read(read_shown(path))
    except ProtocolError as error:
        raise damaged(path, error.message) from error


async def _seen(client: LedgerClient, job: Hash, node: PeerId) -> _DisputeView:
    """Raises UsageError FF-APP-333 where there is no such dispute."""
    row = await dispute_of(client, job, node)
    if row is None:
        raise UsageError(
            "FF-APP-333",
            f"no dispute is about {node.hex()[:16]} in job {job.hex()[:16]}",
            cause="nobody accused it there, or a ledger without `dispute_ms` took its stake at once",
            hint=f"farflung ledger show {job.hex()[:16]}",
        )
    about = await client.job(job)
    parties = {node, *row.accusers, *([about.requester] if about else [])}
    owners = [await _owner(client, member) for member in (await client.committee()).committee.members]
    jury = tuple(owner for owner in owners if owner not in parties)
    said = [await _ballot(client, row, juror) for juror in jury]
    ballots = tuple(each for each in said if each is not None)
    return _DisputeView(row, jury, ballots, await client.time())


async def _owner(client: LedgerClient, member: PeerId) -> PeerId:
    row = await client.row(ValidatorRow, member)
    return row.owner if row else member


async def _least_bond(client: LedgerClient, job: Hash) -> int:
    """What an answer in this job puts down at least: the law of its terms says so, not today's."""
    row = await client.job(job)
    law = await client.row(ParamsRow, count_key(row.terms)) if row else None
    return (law.params if law else (await client.committee()).params).bond_min


async def _ballot(client: LedgerClient, row: DisputeRow, juror: PeerId) -> bool | None:
    said = await client.row(BallotRow, ballot_key(row.job, row.node, juror))
    return said.is_guilty if said else None


def _told(seen: _DisputeView) -> tuple[dict[str, Any], list[str]]:
    row, guilty = seen.row, sum(seen.ballots)
    left = max(0, row.deadline - seen.now) if row.state in TIMED else 0
    facts = {
        "job": row.job.hex(),
        "node": row.node.hex(),
        "state": row.state.name.lower(),
        "accusers": [each.hex() for each in row.accusers],
        "taken": row.taken,
        "pay": row.pay,
        "bond": row.bond,
        "deadline": row.deadline,
        "left_ms": left,
        "evidence": row.evidence.hex(),
        "answer": row.answer.hex() if row.bond or row.state != DisputeState.OPEN else "",
        "jury": [each.hex() for each in seen.jury],
        "guilty": guilty,
        "innocent": len(seen.ballots) - guilty,
    }
    text = [
        f"Dispute  {row.node.hex()}",
        f"Job      {row.job.hex()}",
        f"State    {facts['state']}" + (f", {left / 1000:.0f} s of the ledger's time left" if left else ""),
        f"About    {format_credits(row.taken)} of stake and {format_credits(row.pay)} of pay;"
        f" bond {format_credits(row.bond)}",
        f"By       {' '.join(each.hex()[:8] for each in row.accusers)}; evidence {row.evidence.hex()[:16]}",
        f"Jury     {len(seen.jury)} seats: {guilty} guilty, {len(seen.ballots) - guilty} innocent",
    ]
    if row.state in _NEXT:
        text.append("Next     " + _NEXT[row.state].format(job=row.job.hex(), node=row.node.hex()))
    return facts, text


def _run(
    signer: SigningKey, on: str | None, as_json: bool, step: Callable[[LedgerClient], Awaitable[_DisputeView]]
) -> None:
    network = network_on(on)

    async def work() -> _DisputeView:
        async with client_on(network, signer) as (client, _):
            return await step(client)

    say(as_json, *_told(asyncio.run(work())))


@dispute.command("open", epilog="Example: farflung ledger dispute open 3-9ac0.bin --owner my.key")
@click.argument("evidence", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--terms",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The job's terms.bin: shows the ledger that the job has a graph. Without it two verifiers must agree.",
)
@OWNER
@ON
@JSON
def open_(evidence: Path, terms: Path | None, owner: Path | None, on: str | None, as_json: bool) -> None:
    """Accuse the node that EVIDENCE is about, as its job's requester or one of its verifiers.

    EVIDENCE: of an audit, with the verdicts of its verifiers. Its node's stake is held until the dispute is decided.
    """
    said = _evidence(evidence)
    node, job = PeerId(said.contribution.peer), Hash(said.job)
    verdicts = tuple(each.verdict for each in said.testimonies)
    accused = accusation(_terms(terms) if terms else None, said, verdicts)

    account, network = chosen_account(owner), network_on(on)

    async def work() -> tuple[dict[str, Any], list[str]]:
        async with client_on(network, account) as (client, _):
            await client.submit(accused)
            if await dispute_of(client, job, node) is not None:
                return _told(await _seen(client, job, node))
        facts = {"job": job.hex(), "node": node.hex(), "state": "taken"}
        return facts, [f"Taken    the stake of {node.hex()}:", "         on this ledger nobody disputes"]

    say(as_json, *asyncio.run(work()))


@dispute.command(epilog="Example: farflung ledger dispute answer 4be1... a.pdf --owner my.key")
@_JOB
@click.argument("evidence", type=click.Path(dir_okay=False, path_type=Path))
@OWNER
@click.option("--bond", metavar="CREDITS", help="Lost with the dispute. Default: the least that is asked.")
@ON
@JSON
def answer(job: str, evidence: Path, owner: Path | None, bond: str | None, on: str | None, as_json: bool) -> None:
    """Deny what your node is accused of in JOB. Who does not answer has lost.

    EVIDENCE: any file that shows it; the ledger keeps its digest, the jury asks you for the file.
    """
    about, node = Hash(name_in(job, "job")), chosen_account(owner)
    shown, put = digest(NS_EVIDENCE, read_shown(evidence)), None if bond is None else amount_in(bond)

    async def step(client: LedgerClient) -> _DisputeView:
        await _seen(client, about, node.public)
        offered = await _least_bond(client, about) if put is None else put
        await client.submit(DisputeAnswer(about, offered, shown))
        return await _seen(client, about, node.public)

    _run(node, on, as_json, step)


@dispute.command(epilog="Example: farflung ledger dispute vote 4be 9ac guilty --owner my.key")
@_JOB
@_NODE
@click.argument("verdict", type=click.Choice(tuple(_VERDICTS)))
@OWNER
@ON
@JSON
def vote(job: str, node: str, verdict: str, owner: Path | None, on: str | None, as_json: bool) -> None:
    """Judge a dispute that was answered, as the owner of a seat. A vote is final."""
    about, accused = Hash(name_in(job, "job")), PeerId(name_in(node, "node"))

    async def step(client: LedgerClient) -> _DisputeView:
        await _seen(client, about, accused)
        await client.submit(JuryVote(about, accused, _VERDICTS[verdict]))
        return await _seen(client, about, accused)

    _run(chosen_account(owner), on, as_json, step)


@dispute.command(epilog="Example: farflung ledger dispute look 4be1... 9ac0...")
@_JOB
@_NODE
@ON
@JSON
def look(job: str, node: str, on: str | None, as_json: bool) -> None:
    """Show a dispute: what it is about, how far it is, and what its jury said."""
    about, accused = Hash(name_in(job, "job")), PeerId(name_in(node, "node"))
    # Nothing is signed: who only looks needs no account.
    nobody = SigningKey(secrets.token_bytes(ID_BYTES))
    _run(nobody, on, as_json, lambda client: _seen(client, about, accused))

"""Implements the command group `receipt`, which verifies a receipt file offline and explains what it proves."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from farflung.app.explorer.job_class import check_named, read_terms, work
from farflung.core.attestations import NOT_A_PROOF
from farflung.core.errors import PolicyError, VerificationError
from farflung.core.ids import ID_BYTES, ZERO_HASH, Hash
from farflung.core.money import format_credits
from farflung.core.units import format_bytes
from farflung.job.spec import JobTerms
from farflung.ledger.light_client import check_age
from farflung.ledger.receipt_file import (
    BYTES,
    ReceiptFile,
    check_receipt_file,
    committee_of,
    read_receipt_file,
    scale_of,
)
from farflung.ledger.table_rows import AccountRow, ChannelRow, JobRow, JobState, LeaseRow, NodeRow, Row
from farflung.ledger.transactions import LeaseRole
from farflung.peers.ledger_http.json_schema import MONEY
from farflung.watch.phrases import many

R = TypeVar("R", AccountRow, NodeRow, JobRow, LeaseRow, ChannelRow)

DOES = {LeaseRole.TRAIN: "trained", LeaseRole.AUDIT: "audited"}
ENDED = (JobState.SETTLED, JobState.CANCELLED, JobState.EXPIRED)


def hash_of(ctx: click.Context, param: click.Parameter, value: str | None) -> Hash | None:
    """The 32 bytes that 64 hexadecimal digits stand for."""
    if value is None:
        return None
    try:
        found = bytes.fromhex(value)
    except ValueError:
        found = b""
    if len(found) != ID_BYTES:
        raise click.BadParameter(f"{value[:80]!r} is not {2 * ID_BYTES} hexadecimal digits", ctx, param)
    return Hash(found)


@click.group(epilog="Example: farflung receipt verify requester.receipt")
def receipt() -> None:
    """Check what a ledger paid, from a receipt file alone."""


@receipt.command(
    epilog="Example: farflung receipt verify provider-1.receipt",
    short_help="Verify a receipt file offline, and say what it proves.",
)
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--genesis", metavar="HASH", callback=hash_of, help="The ledger's genesis, known from elsewhere.")
@click.option("--block", metavar="HASH", callback=hash_of, help="Its block, known from elsewhere.")
@click.option(
    "--terms",
    "terms_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The job's terms.bin, which says whether its work is proven.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a file on stdout.")
def verify(
    files: tuple[Path, ...], genesis: Hash | None, block: Hash | None, terms_file: Path | None, as_json: bool
) -> None:
    """Verify receipt files offline and say what each proves: who did what, for how much, and what was lost.

    The first that does not hold ends it.
    """
    terms = read_terms(terms_file) if terms_file is not None else None
    for file in files:
        if len(files) > 1 and not as_json:
            sys.stdout.write(f"File     {file}\n")
        _verify(file, genesis, block, terms, as_json=as_json)


def _verify(file: Path, genesis: Hash | None, block: Hash | None, terms: JobTerms | None, *, as_json: bool) -> None:
    data = _bytes_of(file)
    held = read_receipt_file(data)
    rows = tuple(_in_pico(row, scale_of(data)) for row in check_receipt_file(held, genesis))
    if terms is not None:
        check_named(terms, (row.job for row in rows if isinstance(row, JobRow)))
    old = _old(held, block, time.time_ns() // 1_000_000)
    if as_json:
        said = facts(held, rows, genesis, terms) | {
            "block_given": block is not None,
            "genesis_too_old": old is not None,
        }
        sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
        return
    told = words(held, rows, is_known=genesis is not None or block is not None, terms=terms)
    if old is not None:
        told[-1:] = [f"Age      the genesis is too old to rest on alone: {old.cause}", *_RESTS]
    sys.stdout.write("\n".join(told) + "\n")


_RESTS = (
    "         ask a source that you trust for the hash of the block, and give it by --block",
    "Result   all of this holds if no committee since that genesis has signed a second history",
)


def _old(held: ReceiptFile, block: Hash | None, now_ms: int) -> PolicyError | None:
    """What makes the genesis a thing of the past, from which nothing follows any more (weak subjectivity).

    A ledger that began at time 0 has a time of its own, and a block that is known leaves nothing to follow.
    Raises VerificationError FF-APP-336 where the file's block is another one than `block`.
    """
    header = held.receipts[0].header
    if block is not None and block != header.id:
        raise VerificationError(
            "FF-APP-336",
            "the receipt file is of another block",
            cause=f"its block {header.height} is {header.id.hex()}",
            hint="do not trust it, if the hash that you gave is that of this height: somebody signed twice",
        )
    if block is None and held.genesis.time:
        try:
            check_age(held.genesis.time, now_ms, held.genesis.params.unbonding_ms)
        except PolicyError as error:
            return error
    return None


def _in_pico(row: Row, scale: int) -> Row:
    """A row with its money in pico-credits."""
    return msgspec.structs.replace(row, **{n: scale * getattr(row, n) for n in row.__struct_fields__ if n in MONEY})


def _bytes_of(file: Path) -> bytes:
    """The file, or so much of it that it is seen to be too long."""
    try:
        with file.open("rb") as opened:
            return opened.read(BYTES + 1)
    except OSError as error:
        raise click.BadParameter(f"{file.name} cannot be read: {error.strerror}", param_hint="'FILE'") from error


def _only(rows: tuple[Row, ...], kind: type[R]) -> dict[bytes, R]:
    """The rows of one table: jobs and leases by job, the others by their key."""
    return {bytes(row.job) if isinstance(row, LeaseRow) else row.key: row for row in rows if isinstance(row, kind)}


def facts(held: ReceiptFile, rows: tuple[Row, ...], genesis: Hash | None, terms: JobTerms | None) -> dict[str, Any]:
    """What is proved, for programs. Money in pico-credits, time in ledger milliseconds."""
    header = held.receipts[0].header
    node = _only(rows, NodeRow).get(held.party)
    leases = _only(rows, LeaseRow)
    return {
        "party": held.party.hex(),
        "ledger": held.genesis.name,
        "genesis": held.genesis.chain.hex(),
        "genesis_given": genesis is not None,
        "committee": [key.hex() for key in committee_of(held)],
        "epoch": header.epoch,
        "block": header.id.hex(),
        "height": header.height,
        "time": header.time,
        "balance": _only(rows, AccountRow)[held.party].balance,
        "node": {"free": node.free, "locked": node.locked, "burnt": node.burnt} if node else None,
        "jobs": [_job_facts(job, leases.get(key), terms) for key, job in _only(rows, JobRow).items()],
        "channels": [_channel_facts(row) for row in _only(rows, ChannelRow).values()],
    }


def _channel_facts(row: ChannelRow) -> dict[str, Any]:
    return {
        "payer": row.payer.hex(),
        "relay": row.relay.hex(),
        "opening": row.opening,
        "price": row.price,
        "carried": row.carried,
        "paid": row.paid,
        "held": row.held,
        "open": row.is_open,
    }


def _attested(lease: LeaseRow) -> dict[str, str] | None:
    """The hash of what the node said it runs, and what that is worth."""
    return {"hash": lease.attests.hex(), "label": NOT_A_PROOF} if lease.attests != ZERO_HASH else None


def _job_facts(job: JobRow, lease: LeaseRow | None, terms: JobTerms | None) -> dict[str, Any]:
    return {
        "job": job.job.hex(),
        "work": work(job.job, terms),
        "requester": job.requester.hex(),
        "state": job.state.name.lower(),
        "rounds": job.round,
        "escrow": job.held,
        "paid": job.paid,
        "refunded": job.refunded,
        "burnt": job.burnt,
        "slashed": job.slashed,
        "lease": {
            "role": lease.role.name.lower(),
            "units": lease.units,
            "unit_price": lease.unit_price,
            "paid": lease.paid,
            "stake": lease.stake,
            "slashed": lease.slashed,
            "evidence": lease.evidence.hex() if lease.evidence != ZERO_HASH else None,
            "open": lease.is_open,
            "attests": _attested(lease),
        }
        if lease
        else None,
    }


def words(held: ReceiptFile, rows: tuple[Row, ...], *, is_known: bool, terms: JobTerms | None = None) -> list[str]:
    """What is proved, for people."""
    header = held.receipts[0].header
    leases = _only(rows, LeaseRow)
    lines = [f"Party    {held.party.hex()}"]
    for key, job in _only(rows, JobRow).items():
        lines += _job_words(held, job, leases.get(key), terms)
    lines += [_channel_words(held, row) for row in _only(rows, ChannelRow).values()]
    node = _only(rows, NodeRow).get(held.party)
    if node:
        lines.append(
            f"Stake    {format_credits(node.free)} credits free, {format_credits(node.locked)} locked,"
            f" {format_credits(node.burnt)} burnt for ever"
        )
    lines.append(f"Balance  {format_credits(_only(rows, AccountRow)[held.party].balance)} credits")
    lines.append(f"Proof    {len(rows)} rows of block {header.height}, at ledger time {header.time} ms")
    lines.append(f"Genesis  {held.genesis.chain.hex()} ({held.genesis.name[:80]!r})")
    if header.epoch:
        lines.append(f"Epoch    {header.epoch}: each committee since the genesis certified the next")
    lines += [f"Signed   by the committee's key {key.hex()}" for key in committee_of(held)]
    if is_known:
        return [*lines, "Result   all of this is what the ledger recorded of which you gave the hash"]
    return [
        *lines,
        "Result   all of this holds if you know the genesis hash above from elsewhere: the file names it itself",
    ]


def _channel_words(held: ReceiptFile, row: ChannelRow) -> str:
    """What a relay carried and earned the last time that the channel was opened."""
    is_relay = row.relay == held.party
    other, verb = (row.payer, "earned") if is_relay else (row.relay, "paid")
    side = "carried for" if is_relay else "sent through relay"
    return (
        f"Channel  {side} {other.hex()}: {format_bytes(row.carried)}, {verb} {format_credits(row.paid)} credits,"
        f" {format_credits(row.held)} left"
    )


def _job_words(held: ReceiptFile, job: JobRow, lease: LeaseRow | None, terms: JobTerms | None) -> list[str]:
    ended = f"{job.state.name.lower()} after {job.round} of {many(job.rounds, 'round')}"
    lines = [f"Job      {job.job.hex()}: {ended}", f"Work     {work(job.job, terms)}"]
    if job.requester == held.party:
        lines.append(
            f"Asked    for the work: paid {format_credits(job.paid)} credits, refunded"
            f" {format_credits(job.refunded)}, {format_credits(job.held)} still in escrow"
        )
    if job.burnt:
        lines.append(
            f"Burnt    {format_credits(job.burnt)} credits that convicted providers had earned: nobody gets them"
        )
    if lease is None:
        return lines
    lines.append(f"Role     {DOES[lease.role]}: {lease.units} units at {format_credits(lease.unit_price)} credits each")
    if not lease.stake:
        lines.append(
            "At stake nothing, as where a requester names its verifiers: a weaker proof, nobody could be convicted"
        )
    if lease.attests != ZERO_HASH:
        lines.append(f"Attests  {lease.attests.hex()}: {NOT_A_PROOF}")
    if lease.evidence != ZERO_HASH:
        return [
            *lines,
            f"Slashed  {format_credits(lease.slashed)} of {format_credits(lease.stake)} credits at stake;"
            " its units are forfeited: paid nothing",
            f"Evidence {lease.evidence.hex()}",
        ]
    paid = f"{format_credits(lease.paid)} credits" if job.state in ENDED else "nothing yet: the job goes on"
    return [*lines, f"Paid     {paid}; slashed {format_credits(lease.slashed)}"]

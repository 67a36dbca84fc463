"""Describes proven operations and blocks in words."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Final

import msgspec

from farflung.core.money import format_credits
from farflung.core.units import format_seconds
from farflung.ledger import transactions as ops
from farflung.ledger.disputes import DisputeAnswer, JuryVote
from farflung.ledger.earnings_tally import JobAttest, SettleMany
from farflung.ledger.motions import AdmitValidator, AdoptLaw, AmendParams, Motion, MotionVote, RemoveValidator
from farflung.ledger.pinpoint_game import Challenge, Descend, FirstMove, OpenVerdict, Pinpoint, ProveElement, ShowTile
from farflung.ledger.validators import ValidatorAccuse, ValidatorJoin, ValidatorLeave
from farflung.peers.ledger_http.json_schema import MONEY
from farflung.watch.phrases import credits_of, many

LOGICAL_MS: Final = 10**11  # ms; clocks of real ledgers are above it since 1973


def short(name: bytes) -> str:
    """A name's first digits, as people compare them on a screen."""
    return name.hex()[:12]


def moment(ledger_ms: int) -> str:
    """Ledger time as UTC; the ledger of a local run counts from its first block, and has no date."""
    if ledger_ms < LOGICAL_MS:
        return f"{format_seconds(ledger_ms / 1000)} after the ledger began (logical clock)"
    try:
        at = datetime.datetime.fromtimestamp(ledger_ms // 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ledger_ms} ms"
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def told(op: ops.Op) -> str:
    """One operation."""
    match op:
        case ops.Transfer(to, amount):
            return f"pay {credits_of(amount)} to {short(to)}"
        case ops.NodeRegister(_, unit_price, stake, _):
            return f"lend at {credits_of(unit_price)} a unit, with {format_credits(stake)} at stake"
        case ops.NodeLeave():
            return "stop lending, and take the stake back"
        case ops.JobCreate(job, escrow, _, rounds, _):
            return f"create job {short(job)}: {credits_of(escrow)} in escrow for {many(rounds, 'round')}"
        case ops.JobSchedule(job, offers, clearings):
            setters = " and ".join(short(clearing.setter) for clearing in clearings)
            taken = f"take {many(len(offers), 'offer')} for job {short(job)}: {_roles(offers)}"
            return f"{taken}; the price is the ask of {setters}"
        case ops.Progress(job, number, _, _, units):
            earned = sum(count for _, count in units)
            return f"record round {number} of job {short(job)}: {earned} units by {many(len(units), 'node')}"
        case ops.JobDraw(job, number, _):
            return f"fix what was committed to in round {number} of job {short(job)}, before audits are drawn"
        case ops.JobSlash(job, node, _, verdicts, _):
            return f"accuse {short(node)} in job {short(job)}, by {many(len(verdicts), 'verdict')}"
        case ops.JobPerjury(job, canary):
            who = short(canary.verdict.verdict.verifier)
            return f"show that verifier {who} called planted work true in job {short(job)}"
        case ops.JobFinish(job, _, output):
            return f"hand over {short(output)}, the output of job {short(job)}"
        case ops.JobSettle(job):
            return f"settle job {short(job)}: pay all leases, refund the rest"
        case ops.JobCancel(job):
            return f"cancel job {short(job)}: pay what is recorded, refund the rest"
        case ops.JobCoordinate(job, term, _):
            return f"coordinate job {short(job)}, in term {term}"
        case ops.JobLeave(job):
            return f"leave job {short(job)}: a notice where it goes on, else the pay for what is recorded and the stake"
        case ops.KeyCertify(node, epoch, _, _):
            return f"let {short(node)} speak for the account, as its key of epoch {epoch}"
        case ops.KeyRevoke(epoch):
            return f"revoke the account's keys up to epoch {epoch}"
        case ops.ChannelOpen(relay, amount, price, _):
            return f"deposit {credits_of(amount)} for relay {short(relay)}, at {format_credits(price)} a GiB"
        case ops.ChannelClaim(payer, passages):
            return f"claim what was carried for {short(payer)}, by {len(passages)} of its passes"
        case ops.ChannelClose(payer):
            return f"carry no more for {short(payer)}, who gets the rest back"
    return _told_of_trust(op)


def _told_of_trust(op: ops.Op) -> str:
    """What is said of pay, disputes and seats; anything else by its fields."""
    match op:
        case SettleMany(signed, vouchers):
            return f"count {many(len(vouchers), 'voucher')} of job {short(signed.tally.job)}"
        case JobAttest(job, marks):
            return f"end the window of job {short(job)} early, by {many(len(marks), 'verifier')}"
        case DisputeAnswer(job, bond, _):
            return f"deny what is said in job {short(job)}, with a bond of {credits_of(bond)}"
        case Challenge(job, node):
            return f"challenge {short(node)} in job {short(job)}, with a bond of {credits_of(op.bond)}"
        case Pinpoint(job, node):
            return f"open the program of job {short(job)} in the dispute of {short(node)}"
        case FirstMove(job, node) | Descend(job, node):
            return f"go on in the dispute of {short(node)} in job {short(job)}"
        case ShowTile(job, node, leaf):
            return f"show tile {leaf} in the dispute of {short(node)} in job {short(job)}"
        case OpenVerdict(job, node, is_guilty):
            return f"open that {short(node)} is {'guilty' if is_guilty else 'innocent'} in job {short(job)}"
        case ProveElement(job, node):
            return f"have the law compute one element in the dispute of {short(node)} in job {short(job)}"
        case JuryVote(job, node, is_guilty):
            return f"find {short(node)} {'guilty' if is_guilty else 'innocent'} in job {short(job)}"
        case ValidatorJoin():
            return f"ask for a seat for {short(op.validator)}, with {format_credits(op.stake)} at stake"
        case ValidatorAccuse():
            return "show two votes of one seat that exclude each other"
        case ValidatorLeave():
            return f"give back the seat of {short(op.validator)}"
        case Motion(AdmitValidator(validator)):
            return f"move that {short(validator)} be given a seat"
        case Motion(RemoveValidator(validator)):
            return f"move that {short(validator)} lose its seat"
        case Motion(AmendParams()):
            return "move that the parameters change"
        case Motion(AdoptLaw(law)):
            return f"move that law {law} hold"
        case MotionVote(motion):
            return f"vote for motion {short(motion)}"
    return _by_fields(op)


def _roles(offers: Sequence[ops.SignedLeaseOffer]) -> str:
    trains = sum(signed.offer.role == ops.LeaseRole.TRAIN for signed in offers)
    parts = [many(trains, "trainer"), many(len(offers) - trains, "verifier")]
    return " and ".join(part for part in parts if not part.startswith("0 "))


def _by_fields(op: msgspec.Struct) -> str:
    """An operation that nobody found words for: its name, and what is short of it."""
    said = []
    for name in op.__struct_fields__:
        value = getattr(op, name)
        if isinstance(value, bytes):
            said.append(f"{name} {short(value)}")
        elif isinstance(value, int):
            said.append(f"{name} {credits_of(value) if name in MONEY else value}")
    return " ".join((str(op.__struct_config__.tag).replace("_", " "), ", ".join(said))).strip()

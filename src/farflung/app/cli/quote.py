"""Implements the command `quote`, which prices a job on the offered hosts before it is submitted (P1, J3)."""

from __future__ import annotations

import datetime
import re
import sys
import time
from pathlib import Path
from typing import Final

import click

from farflung.advice import offer_file_market
from farflung.advice.hardware.admission import MachineGrade
from farflung.advice.io import card_files
from farflung.advice.offer_file_market import JobOrder
from farflung.app.cli import plan_offers, quote_text
from farflung.app.cli.completion import job_files
from farflung.app.cli.job_options import JOB, PRESET, SET, flags_of
from farflung.app.cli.plan_offers import job_model
from farflung.core import limits
from farflung.core.errors import PolicyError, UsageError
from farflung.core.money import parse_credits
from farflung.core.units import Millis
from farflung.local.jobs import recent_prices, resolve
from farflung.market import price_history
from farflung.market.asks import market
from farflung.market.bids import LONGEST_MS
from farflung.market.quote import quote as quote_of
from farflung.peers.rundir.runs import runs_folder

_SPAN: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) ?(m|min|h|d)")
_MS: Final = {"m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@click.command("quote", epilog="Example: farflung quote job.toml --offers hosts.toml --deadline 36h")
@JOB
@PRESET
@SET
@click.option(
    "--offers", required=True, type=click.Path(path_type=Path), metavar="FILE", shell_complete=job_files,
    help="The hosts that are offered.",
)  # fmt: skip
@click.option("--members", type=click.IntRange(1, limits.PEERS), metavar="N", help="Default: the job's providers.")
@click.option("--spares", type=click.IntRange(0, limits.PEERS), metavar="N", default=0, help="Stand by.")
@click.option("--deadline", metavar="WHEN", help="36h, 3d, or 2026-12-01T18:00 (UTC).")
@click.option("--budget", metavar="CREDITS", help="For all units. Default: the job's.")
@click.option("--price", metavar="CREDITS", help="Most for a token. Default: the job's.")
@click.option("--card", multiple=True, metavar="NAME", help="Only this one; may be said again.")
@click.option(
    "--class", "grade", type=click.Choice([grade.value for grade in MachineGrade]),
    help="Lowest of a machine. Default: the job's, or any.",
)  # fmt: skip
@click.option("--stake", metavar="CREDITS", default="0", help="That each puts down.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def quote(
    job: Path | None,
    preset: str,
    settings: tuple[str, ...],
    offers: Path,
    members: int | None,
    spares: int,
    deadline: str | None,
    budget: str | None,
    price: str | None,
    card: tuple[str, ...],
    grade: str | None,
    stake: str,
    as_json: bool,
) -> None:
    """Say what a job would cost on hosts that are offered, and who is left out.

    Nothing is reserved. Exit status 4: nobody can be hired so.
    """
    money = {"budget": budget, "unit_price": price}
    flags = flags_of(settings) | {key: value for key, value in money.items() if value is not None}
    resolved, identity = resolve.resolve(job, preset, flags)
    spec = resolved.spec
    work, hosts = plan_offers.read(offers, spec, job_model(spec, Path(identity.base), traces=False))
    now = Millis(round(1000 * time.time()))
    order = JobOrder(
        members=spec.network.providers if members is None else members,
        spares=spares,
        start=now,
        unit_price=parse_credits(spec.unit_price),
        budget=parse_credits(spec.budget),
        deadline=None if deadline is None else deadline_of(deadline, now),
        cards=tuple(card_files.read().find(name).name for name in card),
        grade=work.least if grade is None else MachineGrade(grade),
        stake=parse_credits(stake),
    )
    found = offer_file_market.offered(spec, work, hosts, order)
    bid, standing = offer_file_market.bid(found), market(offer_file_market.standing(found))
    tape = price_history.tape(recent_prices.last_day(runs_folder(), now))
    answer = quote_of(standing, bid, tape, now, offer_file_market.also(found, standing))
    told = quote_text.JobQuote(found, bid, answer)
    sys.stdout.write("\n".join([quote_text.json(told)] if as_json else quote_text.lines(told)) + "\n")
    if answer.ask is None:
        raise PolicyError("FF-APP-437", "nobody can be hired for this", cause=answer.hint, hint=quote_text.step(told))


def deadline_of(text: str, now: Millis) -> Millis:
    """`90m`, `36h`, `3d`, or a time in UTC, as ms since 1970.

    Raises UsageError FF-APP-435 (cannot be read), FF-APP-436 (it is not later than now, or too far away).
    """
    span = _SPAN.fullmatch(text.strip())
    at = _moment(text) if span is None else now + round(float(span[1]) * _MS[span[2]])
    if not now < at <= now + LONGEST_MS:
        when = datetime.datetime.fromtimestamp(now / 1000, datetime.UTC).strftime("%Y-%m-%dT%H:%M")
        raise UsageError(
            "FF-APP-436",
            f"the deadline {text[:40]} {'must be later than now' if at <= now else 'is too far away'}",
            cause=f"it is {when} UTC now, and a job may take {LONGEST_MS // 86_400_000:,} days at most",
            hint="--deadline 36h",
        )
    return Millis(at)


def seconds_until(text: str | None) -> float | None:
    """From now to a deadline; None: nobody said one. Raises what `deadline_of` raises."""
    now = Millis(round(1000 * time.time()))
    return None if text is None else (deadline_of(text, now) - now) / 1000


def _moment(text: str) -> int:
    try:
        read = datetime.datetime.fromisoformat(text.strip())
        aware = read.replace(tzinfo=datetime.UTC) if read.tzinfo is None else read
        return round(1000 * aware.timestamp())
    except (ValueError, OverflowError):
        raise UsageError(
            "FF-APP-435",
            f"{text[:40]!r} is no deadline",
            cause="it is a span such as 90m, 36h or 3d, or a time such as 2026-12-01T18:00, in UTC",
            hint="--deadline 36h",
        ) from None

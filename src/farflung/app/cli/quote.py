"""Implements the command `quote`, which prices a job on the offered hosts before it is submitted (P1, J3)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

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
from farflung.core.errors import PolicyError
from farflung.core.money import parse_credits
from farflung.core.units import Millis
from farflung.local.jobs import recent_prices, resolve
from farflung.local.jobs.deadline import deadline_of
from farflung.market import price_history
from farflung.market.asks import market
from farflung.market.quote import quote as quote_of
from farflung.peers.rundir.runs import runs_folder


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
@click.option("--deadline", metavar="WHEN", help="36h, 3d, or 2026-12-01T18:00 (UTC). Default: the job's.")
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
    flags = flags_of(settings, deadline=deadline) | {key: value for key, value in money.items() if value is not None}
    resolved, identity = resolve.resolve(job, preset, flags)
    spec = resolved.spec
    work, hosts = plan_offers.read(offers, spec, job_model(spec, Path(identity.base), traces=False, is_laid_out=True))
    now = Millis(round(1000 * time.time()))
    order = JobOrder(
        members=spec.network.providers if members is None else members,
        spares=spares,
        start=now,
        unit_price=parse_credits(spec.unit_price),
        budget=parse_credits(spec.budget),
        deadline=deadline_of(resolved.deadline, now) if resolved.deadline else None,
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

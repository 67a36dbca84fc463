"""Starts a run on a network: who is online, what it costs, and whether the person agrees."""

from __future__ import annotations

import asyncio
import sys
import time

import click

from farflung.core.errors import UsageError
from farflung.core.events import WarningEvent
from farflung.core.io.extras import require
from farflung.core.money import Credits, format_credits
from farflung.core.units import Millis, Seconds, format_bytes, format_seconds
from farflung.job.job_loader import ResolvedJob
from farflung.job.spec import JobSpec
from farflung.local.jobs.deadline import deadline_of
from farflung.local.network.remote_start import RemoteStart, online_text, prepare_start
from farflung.peers.network.model_transfer import FoundModel
from farflung.peers.rundir.inputs import known_layout
from farflung.plan.worker_memory import memory
from farflung.watch.phrases import many

DEADLINE = "24h"
WAIT = "10m"


def start_on(on: str, job: ResolvedJob, wait: str | None, *, agreed: bool) -> RemoteStart:
    """What a run that may begin finds there.

    Raises UsageError FF-CORE-120 (no PyTorch), FF-APP-565 (nobody agreed), what prepare_start raises.
    """
    require("torch")  # nobody agrees to a price for a run that cannot start
    now = Millis(round(1000 * time.time()))
    ends, patience = deadline_of(job.deadline or DEADLINE, now), deadline_of(wait or WAIT, now) - now
    spec = job.spec
    layout = known_layout(spec)
    bytes_wanted = memory(spec, layout, 0).worker if layout is not None else 0
    started = asyncio.run(prepare_start(on, job, bytes_wanted, ends, Seconds(patience / 1000), say))
    for line in offer_lines(started, spec, Seconds((ends - now) / 1000)):
        say(line)
    if not agreed:
        confirm()
    return started


def say(line: str) -> None:
    """A line beside the run's own output."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def audit_line(verifiers: int, *, is_named: bool = False) -> str:
    """How many check the work, and that the proof is weaker where the requester named them."""
    if is_named:
        return (
            f"Checked  by {many(verifiers, 'verifier')} that you named and the market did not choose:"
            "\n         a weaker proof (outcome only), which others take on your word"
        )
    if verifiers != 1:
        return f"Checked  by {verifiers} verifiers" if verifiers else "Checked  by nobody: the job asks for no audits"
    lone = WarningEvent(
        code="FF-APP-603",
        message="one verifier alone checks the work: its word decides",
        hint="--set network.verifiers=2 waits for a second",
    )
    return f"Warning  {lone.code} {lone.message};\n         {lone.hint}"


def round_line(quorum: float) -> str:
    """When a round ends."""
    if quorum == 1:
        return "Rounds   wait for every provider (churn.quorum = 1)"
    share = f"{100 * quorum:.0f} % of the tokens are in"
    return f"Rounds   end without providers that are away, once {share} (churn.quorum = {quorum})"


def stake_line(stake: Credits) -> str:
    """What a node may lose."""
    if not stake:
        return "Stake    none: verifiers that you named take nothing of a node"
    return f"Stake    {format_credits(stake)} credits of each node, lost by who is caught"


def settle_line(verifiers: int, window_ms: int) -> str:
    """When the job is paid, on a ledger that leaves time for claims."""
    window = format_seconds(Seconds(window_ms / 1000))
    if not verifiers:
        return f"Settled  {window} after its end: nodes claim until then"
    return f"Settled  when its verifiers agree, {window} after its end at the latest"


def start_lines(model: FoundModel | None) -> list[str]:
    """Which published model the run starts from, if it starts from one."""
    if model is None:
        return []
    record = model.record
    size, root = format_bytes(record.manifest.size), record.root.hex()[:16]
    return [
        f"Start    {record.name} by account {record.account.hex()[:16]}: {size}, licence {record.licence}",
        f"         root {root}, settled on this ledger; {many(len(model.lineage), 'job')} in its lineage",
    ]


def offer_lines(started: RemoteStart, spec: JobSpec, span: Seconds) -> list[str]:
    """What a person agrees to."""
    price, known = started.price, started.network
    law, is_named = known.genesis.params, bool(spec.audit.verifiers)
    return [
        *start_lines(started.model),
        f"Network  {known.name}, chain {known.chain.hex()[:16]}: {online_text(started.found)}",
        f"Price    about {format_credits(started.cost)} credits, fees of {format_credits(started.fees)} at most;"
        f" locks {format_credits(price.escrow)} of {format_credits(started.balance)}, the rest comes back",
        stake_line(started.found.stake),
        audit_line(started.verifiers, is_named=is_named),
        round_line(spec.churn.quorum),
        *([settle_line(0 if is_named else started.verifiers, law.window_ms)] if law.window_ms else []),
        f"Ends     in {format_seconds(span)} at the latest (`deadline`): then what was not paid returns",
        "Seen by  the nodes that train: they read the model and the data (docs/threats.md)",
    ]


def confirm() -> None:
    """Asks the person. Raises UsageError FF-APP-565 where there is none, or the answer is no."""
    if not sys.stdin.isatty():
        raise UsageError(
            "FF-APP-565",
            "nobody agreed to the price",
            cause="there is no terminal to ask at",
            hint="the same command with --yes",
        )
    if not click.confirm("Start?", err=True):
        raise UsageError("FF-APP-565", "nothing was started", cause="you did not agree", hint="nothing was locked")

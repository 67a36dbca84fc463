"""Implements the command `verify-run`, which checks a finished run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import msgspec

from farflung.app.cli.completion import run_names
from farflung.core.attestations import NOT_A_PROOF
from farflung.core.money import format_credits
from farflung.peers.rundir import folder
from farflung.peers.rundir.genesis import chain_of
from farflung.peers.rundir.journal import read_timeline
from farflung.peers.rundir.runs import resolve_again, runs_folder
from farflung.verify.replay_report import ReexecutionReport, ReplayReport, RetrialReport
from farflung.watch.event_lines import say
from farflung.watch.phrases import many, with_names


@click.command("verify-run", epilog="Example: farflung verify-run runs/2026-01-31-local")
@click.argument("name", metavar="[RUN]", required=False, shell_complete=run_names)
@click.option(
    "--parent",
    "parents",
    multiple=True,
    metavar="RUN",
    help="The run that it stands on; again for the one behind that.",
)
@click.option(
    "--audit",
    "rate",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="RATE",
    help="Also train this share of the segments again.",
)
@click.option(
    "--seed", type=click.IntRange(0, (1 << 63) - 1), metavar="N", help="Which segments --audit draws; 1 without it."
)
@click.option("--condemned", "retries", is_flag=True, help="Also train again what audits found false.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def verify_run(
    name: str | None, parents: tuple[str, ...], rate: float | None, seed: int | None, retries: bool, as_json: bool
) -> None:
    """Recompute a finished run from its exported log alone: merges, roots, signatures, receipts.

    RUN: its name or folder; the newest by default. --audit and --condemned train from a peer's first round on, with
    the data in the run's folder.
    """
    from farflung.local.verify_run.verify_run import prove

    if seed is not None and rate is None:
        raise click.UsageError("--seed goes with --audit")
    run = folder.find(runs_folder(), name)
    spec = resolve_again(run).spec if run.identity_file.exists() else None
    chain = chain_of(run, spec) if spec is not None else None
    known = read_timeline(run)  # names of keys alone; what is proved rests on the export

    def note(text: str) -> None:
        sys.stderr.write(f"note: {with_names(text, known)}\n")

    report = prove(run, chain, parents, rate, 1 if seed is None else seed, retries, note)
    lines = [msgspec.json.encode(report).decode()] if as_json else [with_names(line, known) for line in words(report)]
    sys.stdout.write("\n".join(lines) + "\n")


def _tested(report: ReplayReport) -> list[str]:
    """What is known of the run's verifiers."""
    if not report.canaries:
        return []
    lost = f"verifiers that lost their stakes by them: {report.guessed}" if report.guessed else "nobody guessed"
    return [f"Verify   {report.canaries} canaries hold; {lost}"]


def words(report: ReplayReport) -> list[str]:
    """What was found true, for people."""
    payloads, roots = many(report.commitments, "payload"), many(report.roots, "root")
    return [
        f"Verify   {many(report.rounds, 'round')}: {many(report.merges, 'merge')} and {roots} recomputed",
        f"Verify   {payloads} equal to the commitment, {many(report.signatures, 'signature')} valid",
        f"Verify   {report.attested} of {payloads} with an attestation of the node: {NOT_A_PROOF}",
        f"Verify   {many(report.blocks, 'block')} with {many(report.transactions, 'transaction')} executed again",
        f"Verify   {many(report.receipts, 'receipt')} valid: paid {format_credits(report.paid)},"
        f" refunded {format_credits(report.refunded)}" + _burnt(report),
        *_tested(report),
        *_scored(report),
        *_lineage_lines(report),
        *_again(report.again),
        *_retried(report.retried),
        f"Result   model  {report.model_hash}",
        f"Result   ledger {report.ledger_root}, from genesis {report.genesis[:16]}",
        *say("Result", f"the work is {report.work}"),
        "Result   verified: the log is consistent (it does not say who made it)" + _but(report),
    ]


def _burnt(report: ReplayReport) -> str:
    """What providers had earned who were convicted in a job without a graph."""
    return f", pay burnt {format_credits(report.burnt)}" if report.burnt else ""


def _but(report: ReplayReport) -> str:
    """What the last line must not be taken for."""
    return ", but for what it stands on" if report.parents < len(report.lineage) else ""


def _scored(report: ReplayReport) -> list[str]:
    """What verifiers stated of losses: that it stands under their signatures, and what follows from it."""
    if not report.scores:
        return []
    return [
        f"Verify   {many(report.scores, 'score')} signed; {many(report.unpaid, 'contribution')} unpaid because of them"
    ]


def _again(found: ReexecutionReport | None) -> list[str]:
    """What was trained again, and what cannot be told by it."""
    if found is None:
        return []
    told = [
        f"Again    {found.drawn} of {many(found.segments, 'segment')} drawn (rate {found.rate:g}, seed {found.seed}):"
        f" {found.equal} came to the same bits, payload included",
        f"Again    trained for it: {found.trained} of {many(found.contributions, 'contribution')}",
    ]
    if found.untold:
        told.append(
            f"Again    of {found.untold} nothing can be told: another kind of machine, or other work, gives other bits"
        )
        told += [f"Again    other bits from {place} on" for place in found.breaks]
    return told


def _retried(found: Sequence[RetrialReport] | None) -> list[str]:
    """Of each condemned contribution what came out here, for whoever has to judge it again."""
    if found is None:
        return []
    came = {
        "same": "comes out here as its node had committed to it: it was condemned wrongly",
        "other": "comes out otherwise here too; on another kind of machine that alone proves nothing",
        "untold": "cannot be told: what the node did before it comes out otherwise here",
    }
    told = [f"Again    round {each.round} of {each.peer[:8]} {came[each.came]}" for each in found]
    return told or ["Again    nothing that this run went on with is condemned"]


def _lineage_lines(report: ReplayReport) -> list[str]:
    """On which runs it stands, and which of them were here to be checked."""
    told = [
        f"Stands   on job {job[:16]}: "
        + ("proved, and it begins where that ended" if place < report.parents else "not checked here")
        for place, job in enumerate(report.lineage)
    ]
    if report.parents < len(report.lineage):
        told.append("Stands   `--parent RUN`, nearest first, checks what it stands on")
    return told

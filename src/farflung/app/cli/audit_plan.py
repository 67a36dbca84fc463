"""Implements the command `audit-plan`: tells whether cheating pays under a job's audits and stakes.

If it does, the command prints the settings that would stop it.
"""

from __future__ import annotations

import re
import sys
from fractions import Fraction
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import click
import msgspec

from farflung.app.cli.job_options import JOB, PRESET, SET, flags_of
from farflung.app.simulate import audit_market as simulated
from farflung.app.simulate.audit_economics import AuditAssumptions, AuditPlanResult, VerifierIncentives, weigh
from farflung.core.errors import UsageError
from farflung.core.money import format_credits
from farflung.core.units import format_share
from farflung.job.proof_class import foreseen, known, may_be_outcome
from farflung.job.spec import JobSpec
from farflung.local.jobs import resolve
from farflung.peers.rundir.genesis import STAKE_ROUNDS
from farflung.verify.economics import CheatMargin, griefing
from farflung.watch.phrases import many

COLUMNS: Final = 80
STAGE: Final = 10
MOST_ROUNDS: Final = 10**6  # whose pay is at stake
_NUMBER: Final = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(%?)")


def _read(text: str, most: int) -> Fraction:
    """`0.05` or `5%`, exactly. Raises click.BadParameter."""
    match = _NUMBER.fullmatch(text.strip())
    number = Fraction(match[1]) / (100 if match[2] else 1) if match else Fraction(-1)
    if not 0 <= number <= most:
        raise click.BadParameter(f"{text[:40]!r} is not a number from 0 to {most}, such as 0.05 or 5%")
    return number


def share(context: click.Context, option: click.Parameter, text: str | None) -> Fraction | None:
    """A share of 1, if it is named. Raises click.BadParameter."""
    return None if text is None else _read(text, 1)


def rounds(context: click.Context, option: click.Parameter, text: str) -> Fraction:
    """A number of rounds. Raises click.BadParameter."""
    return _read(text, MOST_ROUNDS)


@click.command("audit-plan", epilog="Example: farflung audit-plan job.toml --absent 20%")
@JOB
@PRESET
@SET
@click.option(
    "--stake", callback=rounds, metavar="ROUNDS", default=str(STAKE_ROUNDS), show_default=True,
    help="Stake, in rounds' pay.",
)  # fmt: skip
@click.option("--cost", callback=share, metavar="SHARE", default="100%", show_default=True, help="Work's, of its pay.")
@click.option(
    "--absent", callback=share, metavar="SHARE", default="0%", show_default=True,
    help="Verifiers lazy or colluding.",
)  # fmt: skip
@click.option(
    "--silence", callback=share, metavar="SHARE", help="Of the stake, for showing nothing. Default: the law's."
)
@click.option(
    "--bound", callback=share, metavar="SHARE", default="2%", show_default=True,
    help="Verifiers' work, of training.",
)  # fmt: skip
@click.option("--simulate", is_flag=True, help="Also let agents play it, round after round.")
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), metavar="N", help="Of --simulate. Default: 1.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def audit_plan(
    job: Path | None,
    preset: str,
    settings: tuple[str, ...],
    stake: Fraction,
    cost: Fraction,
    absent: Fraction,
    silence: Fraction | None,
    bound: Fraction,
    simulate: bool,
    seed: int | None,
    as_json: bool,
) -> None:
    """Say whether cheating pays under a job's audits and stakes.

    And the smallest audit rate and stake with which it does not.
    """
    if seed is not None and not simulate:
        raise UsageError(
            "FF-APP-340",
            "--seed is of --simulate",
            cause="without it nothing is drawn",
            hint=f"farflung audit-plan --simulate --seed {seed}",
        )
    spec = resolve.resolve(job, preset, flags_of(settings))[0].spec
    asked = AuditAssumptions(stake, cost, absent, bound=bound)
    found = weigh(spec, asked if silence is None else msgspec.structs.replace(asked, silence=silence))
    played = simulated.play(found.draw, found.money, spec.verifiers, 1 if seed is None else seed) if simulate else None
    if as_json:
        told = _facts(spec, found) | ({"simulated": played} if played is not None else {})
        text = [msgspec.json.encode(told).decode()]
    else:
        text = [row for line in _lines(spec, found) for row in _say(*line)]
        text += [] if played is None else ["", *simulated.lines(played, COLUMNS)]
    sys.stdout.write("\n".join(text) + "\n")


def _say(stage: str, text: str) -> list[str]:
    rows = wrap(text, COLUMNS - STAGE)
    return [f"{'' if number else stage:<{STAGE}}{row}" for number, row in enumerate(rows)]


def _lines(spec: JobSpec, found: AuditPlanResult) -> list[tuple[str, str]]:
    draw, money, asked = found.draw, found.money, found.asked
    who = _judges(spec, draw.voices) + ("; where two contradict each other a third decides" if draw.spare else "")
    return [
        ("Job", f"{spec.name}: {many(spec.rounds, 'round')}; a provider's round is paid {_credits(money.pay)}"),
        ("Work", foreseen(spec)),
        (
            "Audits",
            f"1 of {draw.segments} segments of {format_share(draw.rate)} of contributions; the first"
            f" {spec.audit.probation} of each provider always. To take a stake, {who}",
        ),
        (
            "Stake",
            f"{_credits(money.stake)}, the pay of {float(asked.stake):g} rounds. Found false: all of it is"
            f" lost. Nothing shown: {format_share(asked.silence)} of it",
        ),
        ("A lie", _margin(found.lie, draw.segments)),
        ("Silence", _margin(found.silence, draw.segments)),
        ("So", _verdict(found)),
        ("Enough", _enough(found)),
        ("Bounded", _bounded(found)),
        (
            "Overhead",
            f"verifiers repeat {format_share(found.overhead)} of the training, {format_share(found.overhead_of_run)}"
            " of this run with its first rounds",
        ),
        ("Here", _in_job(spec, found)),
        ("To catch", _catch(found)),
        ("Canaries", _canaries(found.checking)),
        (
            "Lazy",
            "a verifier that signs without looking loses its pay where another verifier has the provider's result to"
            " the bit, or two find false what it found good; and its stake where it signs a canary",
        ),
        ("Griefing", _griefing(found)),
        (
            "Assumed",
            f"honest work costs {format_share(asked.cost)} of its pay; {format_share(asked.absent)} of verifiers are"
            " lazy or the cheater's friends; a round's pay and the stake are all that is at risk",
        ),
    ]


def _judges(spec: JobSpec, voices: int) -> str:
    """Whose word takes a stake (ledger.rules.slashes)."""
    if voices > 1:
        return f"{voices} verifiers must agree"
    if known(spec):
        return "two verifiers must agree where a job has no graph, and it has one: none is taken"
    return "one verifier's word counts" + (" if the model can be traced, else none is taken" * may_be_outcome(spec))


def _canaries(checking: VerifierIncentives) -> str:
    """Whether checking is stable; if not, from which share on it is."""
    said = (
        f"{format_share(checking.canaries)} of audits begin with a false end that is known to be one"
        if checking.canaries
        else "none, so a verifier that guesses risks its pay, and not its stake"
    )
    worth = checking.canaries * (checking.jackpot + checking.stake) / checking.cost
    if checking.canaries:
        said += f"; to look is worth {float(worth):.3g} times what it costs"
    if checking.is_stable:
        return f"{said}: looking pays more than guessing"
    if checking.least is None:
        return f"{said}: guessing may pay more than looking, at any share of canaries"
    return f"{said}: guessing may pay more than looking; with audit.canaries = {checking.least:g} it does not"


def _verdict(found: AuditPlanResult) -> str:
    if found.is_unprofitable:
        return "cheating does not pay here"
    if found.held is None:
        return "cheating pays here"
    return (
        f"cheating pays here, until the pay of {found.held} earlier rounds is at risk, too: it is kept until the job"
        " ends, and lost with the stake"
    )


def _credits(amount: Fraction | int) -> str:
    return f"{format_credits(round(amount))} credits"


def _margin(margin: CheatMargin, segments: int) -> str:
    said = f"who cheats in {margin.cheated} of {segments} segments loses {float(margin.ratio):.3g} times what it saves"
    return said + (": it does not pay" if margin.ratio >= 1 else ": it pays")


def _enough(found: AuditPlanResult) -> str:
    """Each number that would do it alone."""
    alone = [
        f"a stake of {_credits(found.stake)} ({_rounds(found, found.stake)})" if found.stake is not None else "",
        f"audit.rate = {found.rate:g}" if found.rate is not None else "",
        f"{found.permille / 10:g} % of the stake for silence" if found.permille is not None else "",
    ]
    said = ", or ".join(one for one in alone if one)
    return f"alone, at the least: {said}" if said else "no rate and no stake alone ends it"


def _griefing(found: AuditPlanResult) -> str:
    """Half of the stake that a false accusation costs before a jury is its victim's (ledger.rules.disputes)."""
    stake = found.asked.stake
    costs, _ = griefing(stake, Fraction(0), Fraction(1, 2))
    unpaid = griefing(stake, stake, Fraction(1, 2))[1]
    return (
        f"who accuses honest work before a jury loses {float(costs):g} rounds' pay, and what it made others spend is"
        f" made good up to {float(stake - unpaid):g}"
    )


def _rounds(found: AuditPlanResult, stake: int) -> str:
    return f"{float(stake / found.money.pay):.4g} rounds' pay"


def _bounded(found: AuditPlanResult) -> str:
    if found.bound_stake is None:
        return f"within {format_share(found.asked.bound)} of verifiers' work no stake is enough"
    return (
        f"within {format_share(found.asked.bound)} of verifiers' work: audit.rate = {found.bound_rate:g} and a stake of"
        f" {_credits(found.bound_stake)} ({_rounds(found, found.bound_stake)})"
    )


def _catch(found: AuditPlanResult) -> str:
    if all(rounds is None for _, rounds in found.catch):
        return "never: no audit convicts here"
    rounds = [
        f"{'never' if rounds is None else f'{rounds} rounds'} with {cheated} of {found.draw.segments} false"
        for cheated, rounds in found.catch
    ]
    return f"in longer jobs, from later rounds alone: 99 % sure after {', '.join(rounds)}"


def _in_job(spec: JobSpec, found: AuditPlanResult) -> str:
    chances = [f"{format_share(chance)} with {k} of {found.draw.segments} false" for k, chance in found.in_job]
    return f"who cheats in each of this job's {many(spec.rounds, 'round')} is caught: {', '.join(chances)}"


def _facts(spec: JobSpec, found: AuditPlanResult) -> dict[str, Any]:
    """Shares of 1, money in pico-credits."""
    draw, money, asked = found.draw, found.money, found.asked
    return {
        "job": spec.name,
        "work": foreseen(spec),
        "segments": draw.segments,
        "rate": float(draw.rate),
        "probation": spec.audit.probation,
        "voices": draw.voices,
        "spare": draw.spare,
        "pay": int(money.pay),
        "cost": float(asked.cost),
        "absent": float(asked.absent),
        "stake": float(money.stake),
        "silence": float(asked.silence),
        "unprofitable": found.is_unprofitable,
        "lie": {"cheated": found.lie.cheated, "ratio": float(found.lie.ratio)},
        "silent": {"cheated": found.silence.cheated, "ratio": float(found.silence.ratio)},
        "least": {
            "stake": found.stake,
            "rate": found.rate,
            "withheld_permille": found.permille,
            "held_rounds": found.held,
        },
        "bounded": {"overhead": float(asked.bound), "rate": found.bound_rate, "stake": found.bound_stake},
        "overhead": float(found.overhead),
        "overhead_of_run": float(found.overhead_of_run),
        "checking": {
            "canaries": float(found.checking.canaries),
            "jackpot": float(found.checking.jackpot),
            "cost": float(found.checking.cost),
            "stable": found.checking.is_stable,
            "least": found.checking.least,
        },
        "caught_in_job": [{"cheated": cheated, "chance": chance} for cheated, chance in found.in_job],
        "rounds_to_catch": [{"cheated": cheated, "rounds": rounds} for cheated, rounds in found.catch],
    }

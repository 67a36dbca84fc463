"""Implements the command `simulate`: simulates up to a million nodes from a seed, in figures and as a page."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import click
import msgspec

from farflung.advice.simulation import simulation_rules as kinds
from farflung.advice.simulation.random_draws import WORD
from farflung.advice.simulation.simulate import CONDITIONS
from farflung.advice.simulation.simulation_result import SimulatedPeriod, SimulationResult
from farflung.app.cli.completion import job_files
from farflung.app.cli.job_options import flags_of
from farflung.app.simulate import scenario as scenarios
from farflung.app.simulate import scenario_run
from farflung.app.simulate.scenario import Scenario
from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.money import MICRO, format_credits
from farflung.core.units import format_bytes, format_rate, format_seconds, format_share
from farflung.peers.rundir.bounded_read import read_file

RELIEF: Final = {  # of a condition that leaves nobody: what that means, and what would help
    "up": ("nobody is up", "more network.nodes, a longer churn.up_hours or a shorter churn.down_hours"),
    "line": (
        "no line carries a round's payloads in the exchange",
        "a longer round.exchange_seconds, a smaller round.payload_mb, fewer market.members, or more line.up_mbit and"
        " line.down_mbit",
    ),
    "stake": ("nobody who is up has a stake", "a larger audit.funded"),
    "price": ("all ask more than the ceiling", "a higher market.ceiling, or a lower market.ask"),
}
COLUMNS: Final = 80
STAGE: Final = 10


@click.command("simulate", epilog="Example: farflung simulate --set churn.up_hours=4 --html sim.html")
@click.argument(
    "file", metavar="[SCENARIO]", required=False, type=click.Path(dir_okay=False, path_type=Path),
    shell_complete=job_files,
)  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set one value of the scenario.")
@click.option(
    "--seed", type=click.IntRange(0, WORD), metavar="N", default=1, show_default=True, help="Draws another network."
)  # fmt: skip
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Also write charts as a page."
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def simulate(file: Path | None, settings: tuple[str, ...], seed: int, html: Path | None, as_json: bool) -> None:
    """Simulate a network of many nodes: churn, market, audits, pay, relays.

    SCENARIO: a TOML file; what it does not name is as for home computers. Seconds for 100,000 nodes and 30 days; the
    same seed gives the same hash on every machine.
    """
    text, name = (None, "") if file is None else (_text(file), file.name)
    scenario = scenarios.read(text, name, flags_of(settings))
    if html is not None:
        from farflung.app.views import simulation_page

        simulation_page.check(html)
    outcome = scenario_run.simulate(scenario, seed, _progress(scenario))
    if html is not None:
        simulation_page.write(scenario_run.tell(scenario, seed, outcome, _beside()), html)
    told = [msgspec.json.encode(facts(scenario, seed, outcome)).decode()] if as_json else lines(scenario, seed, outcome)
    sys.stdout.write("\n".join(told) + "\n")


def _text(file: Path) -> str:
    """A scenario file. Raises RunError FF-APP-161 (not readable, or too large), UsageError FF-APP-433 (no text)."""
    try:
        return read_file(file, limits.SPEC_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(
            "FF-APP-433",
            f"the scenario {file.name} is no text",
            cause="scenarios are TOML, in UTF-8",
            hint="docs/plan/simulate.md shows the keys of a scenario",
        ) from None


def _progress(scenario: Scenario) -> Callable[[int], None]:
    """A line for each day, where somebody looks and it takes long."""
    days, nodes = scenario["network.days"], scenario["network.nodes"]

    def tell(day: int) -> None:
        end = "\n" if day + 1 == days else "\r"
        sys.stderr.write(f"day {day + 1} of {days}, {nodes:,} nodes{end}")
        sys.stderr.flush()

    return tell if sys.stderr.isatty() else lambda day: None


def _beside() -> Callable[[float], None]:
    """A line for each network that is played beside the scenario for its page, where somebody looks."""

    def tell(hours: float) -> None:
        sys.stderr.write(f"for the page: nodes that stay {hours:g} hours\n")
        sys.stderr.flush()

    return tell if sys.stderr.isatty() else lambda hours: None


def credits(micro: int) -> str:
    """Amounts of a whole network are shown to whole credits; a small one to all six places."""
    return f"{micro / 1e6:,.0f} credits" if abs(micro) >= 1e8 else f"{format_credits(micro * MICRO)} credits"


def lines(scenario: Scenario, seed: int, outcome: SimulationResult) -> list[str]:
    """For people."""
    told = [*_network(scenario, seed, outcome), *_work(scenario, outcome), *_money(outcome)]
    return [row for stage, text in told for row in _say(stage, text)]


def _say(stage: str, text: str) -> list[str]:
    rows = wrap(text, COLUMNS - STAGE)
    return [f"{'' if number else stage:<{STAGE}}{row}" for number, row in enumerate(rows)]


def _network(scenario: Scenario, seed: int, outcome: SimulationResult) -> list[tuple[str, str]]:
    nodes, rounds = outcome.rules.nodes, len(outcome.tally)
    mean = outcome.mean_time
    first = outcome.periods[0]
    left = " -> ".join(f"{count:,} {name}" for name, count in zip(CONDITIONS, first.funnel, strict=True))
    return [
        ("Network", f"{nodes:,} nodes, {len(outcome.periods)} days, {rounds:,} rounds of"
         f" {format_seconds(outcome.rules.length / 1000)}; seed {seed}"),
        ("Churn", f"{format_share(outcome.availability)} of all node time is up"
         + (f"; somewhere a node goes away every {format_seconds(mean)}" if mean else "; nobody goes away")),
        ("Market", f"{first.hired:,} of {nodes:,} hired on the first day: {nodes:,} -> {left}; {_cleared(outcome)}"),
    ]  # fmt: skip


def _cleared(outcome: SimulationResult) -> str:
    """The price of the first day; or which condition left nobody, and what would help."""
    first = outcome.periods[0]
    if first.hired:
        return f"the middle class clears at {format_credits(1000 * MICRO * first.middle)} credits a nominal round"
    cause, relief = _unhired(outcome)
    return f"{cause}: try {relief}"


def _unhired(outcome: SimulationResult) -> tuple[str, str]:
    """Why nobody is hired on the first day: the condition after which nobody is left."""
    rules, first = outcome.rules, outcome.periods[0]
    for name, left in zip(CONDITIONS, first.funnel, strict=True):
        if not left and name in RELIEF:
            return RELIEF[name]
    if not rules.wanted:
        return "no job asks for anybody", "a larger market.wanted"
    if not first.wanted:
        return (
            f"of no class of speed do jobs ask for {rules.members} nodes, which is one job",
            "a larger market.wanted, fewer market.members, or more network.nodes",
        )
    if not first.funnel[-1]:
        return (
            f"no class of speed that jobs ask for has {rules.members} such nodes, and one more whose ask is the price",
            f"fewer market.members, or {_most_removed(first, rules.nodes)}",
        )
    return "of no class of speed does the budget cover one job", "a larger market.budget"


def _most_removed(period: SimulatedPeriod, nodes: int) -> str:
    """What helps against the condition that removes most nodes, where it is the most of all."""
    before = (nodes, *period.funnel)
    removed = {name: before[at] - left for at, (name, left) in enumerate(zip(CONDITIONS, period.funnel, strict=True))}
    worst = max(RELIEF, key=lambda name: removed[name])
    return RELIEF[worst][1] if 2 * removed[worst] > nodes else "more network.nodes"


def _work(scenario: Scenario, outcome: SimulationResult) -> list[tuple[str, str]]:
    losses, accepted = outcome.losses, outcome.of(kinds.ACCEPTED)
    carried = int(outcome.relayed.sum())
    busiest = int(outcome.relayed.max()) * 8 / max(1e-3, outcome.rules.exchange / 1000)
    return [
        ("Work", f"{format_share(outcome.goodput)} of the rounds of hired nodes are accepted; away"
         f" {format_share(losses['away'])}, left in the round {format_share(losses['left'])}, late"
         f" {format_share(losses['late'])}, joined without the state in time {format_share(losses['joining'])}, caught"
         f" until the next auction {format_share(losses['caught'])}"),
        ("Used", f"hired nodes train what counts in {format_share(outcome.utilisation)} of their time"),
        ("Audits", f"{outcome.of(kinds.AUDITED):,} of {accepted + outcome.of(kinds.CAUGHT):,} contributions;"
         f" {outcome.of(kinds.CAUGHT):,} cheaters are caught, and {outcome.of(kinds.CHEATED):,} false contributions of"
         " theirs and others pass"),
        ("Relays", f"{scenario['network.relays']} relays give on {format_bytes(carried)}; the busiest needs"
         f" {format_rate(busiest)} in an exchange"),
    ]  # fmt: skip


def _money(outcome: SimulationResult) -> list[tuple[str, str]]:
    flows, made = outcome.flows, outcome.ended.total - outcome.began.total
    conserved = "none was made or lost" if made == 0 else f"{made} MICRO-CREDITS TOO MANY"
    return [
        ("Money", f"of {credits(flows.escrow)} in escrow {credits(flows.paid)} to nodes, {credits(flows.fees)} to"
         f" verifiers, {credits(flows.fares)} to relays, {credits(flows.refunded)} back; {credits(flows.taken)} of"
         f" stakes taken, {credits(flows.burnt)} burnt; {conserved}"),
        ("Hash", outcome.hash),
    ]  # fmt: skip


def facts(scenario: Scenario, seed: int, outcome: SimulationResult) -> dict[str, Any]:
    """Shares of 1, money in micro-credits, bytes and seconds."""
    rules = outcome.rules
    return {
        "seed": seed,
        "scenario": scenario.values,
        "rounds": len(outcome.tally),
        "round_seconds": rules.length / 1000,
        "availability": outcome.availability,
        "interruption_seconds": outcome.mean_time,
        "hired_rounds": outcome.hired,
        "goodput": outcome.goodput,
        "utilisation": outcome.utilisation,
        "losses": outcome.losses,
        "audited": outcome.of(kinds.AUDITED),
        "accepted": outcome.of(kinds.ACCEPTED),
        "caught": outcome.of(kinds.CAUGHT),
        "false_accepted": outcome.of(kinds.CHEATED),
        "relayed_bytes": [int(each) for each in outcome.relayed.sum(axis=0)],
        "relay_peak_bytes": int(outcome.relayed.max()),
        "flows": outcome.flows,
        "began": outcome.began,
        "ended": outcome.ended,
        "days": outcome.periods,
        "hash": outcome.hash,
    }

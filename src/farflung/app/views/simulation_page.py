"""Renders the page of a simulated network: self-contained like a run's report, and drawn with the same tools.

The same scenario and seed give the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from farflung.advice.simulation import simulation_rules as kinds
from farflung.advice.simulation.simulate import CONDITIONS
from farflung.advice.simulation.simulation_result import WAYS, MoneyFlows
from farflung.app.simulate.scenario import KEYS
from farflung.app.simulate.scenario_run import FEW, WRITE, SimulationReport, restart_of
from farflung.app.views import money_charts, report_page, simulation_charts
from farflung.app.views.money_charts import MoneyFlowItem
from farflung.app.views.report_page import KeyFigure
from farflung.app.views.svg import MUTED, S1, S2, S3, S4, Chart
from farflung.core.errors import RunError
from farflung.core.money import MICRO, format_credits
from farflung.core.units import format_bytes, format_rate, format_seconds, format_share

SECTIONS: Final = ("Churn", "Market", "Relays", "Money", "Checkpoints", "Scenario")
_HERE: Final = Path(__file__).parent


def check(path: Path) -> None:
    """Tries whether the page can be written, before a network is played for it. Raises RunError FF-APP-434."""
    try:
        report_page.try_beside(path)
    except OSError as error:
        raise _unwritable(error) from error


def write(told: SimulationReport, path: Path) -> None:
    """Writes the page. Raises RunError FF-APP-434 where it cannot be written."""
    try:
        report_page.replace(path, render(told).encode())
    except OSError as error:
        raise _unwritable(error) from error


def _unwritable(error: OSError) -> RunError:
    return RunError(
        "FF-APP-434",
        "the page of the simulation cannot be written",
        cause=error.strerror or str(error),
        hint="name a file in a folder of yours: --html sim.html",
    )


def render(told: SimulationReport) -> str:
    """The page."""
    page = report_page.environment().get_template("simulated.html.j2")
    return page.render(facts(told))


def facts(told: SimulationReport) -> dict[str, Any]:
    """All that the page shows."""
    return {
        "told": told,
        "o": told.outcome,
        "tiles": tiles(told),
        "short": short(told),
        "charts": charts(told),
        "accepted": simulation_charts.accepted(told.outcome),
        "carried": simulation_charts.carried(told.outcome),
        "sections": SECTIONS,
        "keys": KEYS,
        "conditions": CONDITIONS,
        "ways": WAYS,
        "kinds": kinds,
        "few": FEW,
        "write": WRITE,
        "restart": restart_of(told.scenario),
        "percent": format_share,
        "amount": amount,
        "exact": lambda micro: format_credits(micro * MICRO),
        "css": (_HERE / "report.css").read_text(),
    }


def amount(micro: int) -> str:
    """Credits of a whole network, to three digits or to whole ones."""
    return f"{micro / 1e6:,.0f}" if abs(micro) >= 1e8 else f"{micro / 1e6:.3g}"


def short(told: SimulationReport) -> tuple[str, ...]:
    """The page in sentences."""
    o, scenario = told.outcome, told.scenario
    hours, losses = scenario["churn.up_hours"], o.losses
    days = len(o.periods)
    nodes = f"{o.rules.nodes:,} nodes for {days} days: each stays {hours:,.10g} hours on the average, and is"
    made = o.ended.total - o.began.total
    return (
        f"{nodes} up {format_share(o.availability)} of the time.",
        f"Of the rounds of hired nodes {format_share(o.goodput)} are accepted; in {format_share(losses['away'])} the"
        f" node is away, {format_share(losses['left'])} are lost because it leaves before the end,"
        f" {format_share(losses['late'])} come too late, in {format_share(losses['joining'])} it has joined and has not"
        f" the public state in time, and {format_share(losses['caught'])} are of who was caught, to the next auction.",
        "The ledger is balanced to the last micro-credit." if made == 0 else f"{made} micro-credits were made or lost.",
    )


def tiles(told: SimulationReport) -> tuple[KeyFigure, ...]:
    """The key figures."""
    o, flows = told.outcome, told.outcome.flows
    window = max(1, o.rules.exchange) / 1000
    return (
        KeyFigure("Accepted", format_share(o.goodput), "of the rounds of hired nodes"),
        KeyFigure("Used", format_share(o.utilisation), "of hired nodes' time trains what is accepted"),
        KeyFigure(
            "Cheaters caught",
            f"{o.of(kinds.CAUGHT):,}",
            f"by {o.of(kinds.AUDITED):,} audits; {o.of(kinds.CHEATED):,} false contributions passed",
        ),
        KeyFigure("Paid to nodes", amount(flows.paid), f"credits, of {amount(flows.escrow)} in escrow"),
        KeyFigure(
            "Relays gave on",
            format_bytes(int(o.relayed.sum())),
            f"the busiest needs {format_rate(8 * int(o.relayed.max()) / window)}",
        ),
        KeyFigure("Money made or lost", f"{o.ended.total - o.began.total}", "micro-credits, over all accounts"),
    )


def charts(told: SimulationReport) -> dict[str, Chart]:
    """All of them, each with its words for those who do not see it."""
    o, flows = told.outcome, told.outcome.flows
    hours = told.scenario["churn.up_hours"]
    carried = int(o.relayed.sum())
    made = {
        "churn": simulation_charts.churn(told.churned, hours, _churn_said(told)),
        "days": simulation_charts.days(o, f"Accepted rounds, day by day; {format_share(o.goodput)} over all days."),
        "relays": simulation_charts.relays(o, f"{o.rules.relays} relays gave on {format_bytes(carried)} together."),
        "checkpoints": simulation_charts.checkpoints(told.checkpoints, _checkpoints_said(told)),
    }
    found = pots(flows)
    if found:
        said = f"{amount(flows.paid)} credits to nodes, {amount(flows.fees)} to verifiers, {amount(flows.fares)} to"
        made["money"] = money_charts.ribbons(found, found, f"{said} relays, {amount(flows.refunded)} back.")
    return made


def pots(flows: MoneyFlows) -> list[MoneyFlowItem]:
    """Escrow and stakes, and where they went; flows of nothing are left out."""
    found = [
        MoneyFlowItem("escrow", "to nodes", MICRO * flows.paid, S1),
        MoneyFlowItem("escrow", "to verifiers", MICRO * flows.fees, S4),
        MoneyFlowItem("escrow", "to relays", MICRO * flows.fares, S3),
        MoneyFlowItem("escrow", "refunded", MICRO * flows.refunded, MUTED),
        MoneyFlowItem("stakes", "to the finders", MICRO * flows.bounties, S4),
        MoneyFlowItem("stakes", "burnt", MICRO * flows.burnt, S2),
    ]
    return [flow for flow in found if flow.amount > 0]


def _churn_said(told: SimulationReport) -> str:
    first, last = told.churned[0], told.churned[-1]
    return (
        f"With a mean stay of {first.up_hours:,.10g} hours {format_share(first.lost)} of hired nodes' rounds are lost"
        f" where each node loses its own, and {format_share(first.restarting)} where the job restarts as a whole; with"
        f" {last.up_hours:,.10g} hours {format_share(last.lost)} and {format_share(last.restarting)}."
    )


def _checkpoints_said(told: SimulationReport) -> str:
    few, many = told.checkpoints[0], told.checkpoints[-1]
    return (
        f"One node: every {format_seconds(few.work)}, {format_share(few.waste)} lost; {many.nodes} nodes:"
        f" every {format_seconds(many.work)}, {format_share(many.waste)} lost."
    )

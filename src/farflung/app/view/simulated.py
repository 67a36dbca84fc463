"""The page of a simulated network: complete in itself, like the report of a run, and drawn with the same tools.

The same scenario and seed give the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from farflung.app.simulate.internet import FEW, WRITE, Told
from farflung.app.simulate.scenario import KEYS
from farflung.app.view import balances, forecasts, report
from farflung.app.view.balances import Flow
from farflung.app.view.drawing import MUTED, S1, S2, S3, S4, Chart
from farflung.app.view.report import Tile
from farflung.core.errors import RunError
from farflung.core.units import format_bytes, format_rate, format_seconds, format_share
from farflung.plan.sim import rules as kinds
from farflung.plan.sim.outcome import Flows
from farflung.plan.sim.play import CONDITIONS

SECTIONS: Final = ("Churn", "Market", "Relays", "Money", "Checkpoints", "Scenario")
_HERE: Final = Path(__file__).parent


def check(path: Path) -> None:
    """Tries whether the page can be written, before a network is played for it. Raises RunError FF-APP-434."""
    try:
        report.try_beside(path)
    except OSError as error:
        raise _unwritable(error) from error


def write(told: Told, path: Path) -> None:
    """Writes the page. Raises RunError FF-APP-434 where it cannot be written."""
    try:
        report.replace(path, render(told).encode())
    except OSError as error:
        raise _unwritable(error) from error


def _unwritable(error: OSError) -> RunError:
    return RunError(
        "FF-APP-434",
        "the page of the simulation cannot be written",
        cause=error.strerror or str(error),
        hint="name a file in a folder of yours: --html sim.html",
    )


def render(told: Told) -> str:
    """The page."""
    page = report.environment().get_template("simulated.html.j2")
    return page.render(facts(told))


def facts(told: Told) -> dict[str, Any]:
    """All that the page shows."""
    return {
        "told": told,
        "o": told.outcome,
        "tiles": tiles(told),
        "short": short(told),
        "charts": charts(told),
        "accepted": forecasts.accepted(told.outcome),
        "carried": forecasts.carried(told.outcome),
        "sections": SECTIONS,
        "keys": KEYS,
        "conditions": CONDITIONS,
        "kinds": kinds,
        "few": FEW,
        "write": WRITE,
        "percent": format_share,
        "amount": amount,
        "css": (_HERE / "report.css").read_text(),
    }


def amount(micro: int) -> str:
    """Credits of a whole network, to three digits or to whole ones."""
    return f"{micro / 1e6:,.0f}" if abs(micro) >= 1e8 else f"{micro / 1e6:.3g}"


def short(told: Told) -> tuple[str, ...]:
    """The page in sentences."""
    o, scenario = told.outcome, told.scenario
    hours, losses = scenario["churn.up_hours"], o.losses
    nodes = f"{o.rules.nodes:,} nodes for {len(o.periods)} days: each stays {hours:g} hours on the average, and is"
    made = o.ended.total - o.began.total
    return (
        f"{nodes} up {format_share(o.availability)} of the time.",
        f"Of the rounds of hired nodes {format_share(o.goodput)} are accepted; in {format_share(losses['away'])} the"
        f" node is away, and {format_share(losses['left'])} are lost because it leaves before the end.",
        "Money is conserved to the last micro-credit."
        if made == 0
        else f"{made} micro-credits were made or lost.",
    )


def tiles(told: Told) -> tuple[Tile, ...]:
    """The key figures."""
    o, flows = told.outcome, told.outcome.flows
    window = max(1, o.rules.exchange) / 1000
    return (
        Tile("Accepted", format_share(o.goodput), "of the rounds of hired nodes"),
        Tile("Used", format_share(o.utilisation), "of hired nodes' time trains what is accepted"),
        Tile(
            "Cheaters caught",
            f"{o.of(kinds.CAUGHT):,}",
            f"by {o.of(kinds.AUDITED):,} audits; {o.of(kinds.CHEATED):,} false contributions passed",
        ),
        Tile("Paid to nodes", amount(flows.paid), f"credits, of {amount(flows.escrow)} in escrow"),
        Tile(
            "Relays gave on",
            format_bytes(int(o.relayed.sum())),
            f"the busiest needs {format_rate(8 * int(o.relayed.max()) / window)}",
        ),
        Tile("Money made or lost", f"{o.ended.total - o.began.total}", "micro-credits, over all accounts"),
    )


def charts(told: Told) -> dict[str, Chart]:
    """All of them, each with its words for those who do not see it."""
    o, flows = told.outcome, told.outcome.flows
    hours = told.scenario["churn.up_hours"]
    carried = int(o.relayed.sum())
    made = {
        "churn": forecasts.churn(told.churned, hours, _churn_said(told)),
        "days": forecasts.days(o, f"Accepted rounds, day by day; {format_share(o.goodput)} over all days."),
        "relays": forecasts.relays(o, f"{o.rules.relays} relays gave on {format_bytes(carried)} together."),
        "checkpoints": forecasts.checkpoints(told.checkpoints, _checkpoints_said(told)),
    }
    found = pots(flows)
    if found:
        said = f"{amount(flows.paid)} credits to nodes, {amount(flows.fees)} to verifiers, {amount(flows.fares)} to"
        made["money"] = balances.ribbons(found, found, f"{said} relays, {amount(flows.refunded)} back.")
    return made


def pots(flows: Flows) -> list[Flow]:
    """Escrow and stakes, and where they went; flows of nothing are left out."""
    found = [
        Flow("escrow", "to nodes", flows.paid, S1),
        Flow("escrow", "to verifiers", flows.fees, S4),
        Flow("escrow", "to relays", flows.fares, S3),
        Flow("escrow", "refunded", flows.refunded, MUTED),
        Flow("stakes", "to the finders", flows.bounties, S4),
        Flow("stakes", "burnt", flows.burnt, S2),
    ]
    return [flow for flow in found if flow.amount > 0]


def _churn_said(told: Told) -> str:
    first, last = told.churned[0], told.churned[-1]
    return (
        f"With a mean stay of {first.up_hours:g} hours {format_share(first.lost)} of hired nodes' rounds are lost where"
        f" each node loses its own round, and {format_share(first.restarting)} where the job restarts as a whole; with"
        f" {last.up_hours:g} hours {format_share(last.lost)} and {format_share(last.restarting)}. Time that hired nodes"
        " are away is in both."
    )


def _checkpoints_said(told: Told) -> str:
    few, many = told.checkpoints[0], told.checkpoints[-1]
    return (
        f"One node: every {format_seconds(few.work)}, {format_share(few.waste)} lost; {many.nodes} nodes:"
        f" every {format_seconds(many.work)}, {format_share(many.waste)} lost."
    )

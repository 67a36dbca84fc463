"""Small networks for tests of advice.simulation: rules with one thing changed, and what came of one as the oracle
counts it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from farflung.advice.simulation import node_steps
from farflung.advice.simulation import simulation_rules as kinds
from farflung.advice.simulation.simulation_result import SimulationResult
from farflung.advice.simulation.simulation_rules import SimulationRules, odds, shape, sigmas

HOUR = 3_600_000
DAY = 24 * HOUR

PLAIN = SimulationRules(
    key=1,
    nodes=1000,
    periods=30,
    rounds=36,
    train=38 * 60_000,
    exchange=120_000,
    up=10 * HOUR,
    down=2 * HOUR,
    death=0,
    speed_sigma=sigmas(0.4),
    ask=20,
    ask_sigma=sigmas(0.3),
    uplink=20_000,
    uplink_sigma=sigmas(0.8),
    downlink=100_000,
    downlink_sigma=sigmas(0.8),
    hidden=odds(0.7),
    relays=4,
    late=odds(0.01),
    payload=25_000_000,
    snapshot=400_000_000,
    members=4,
    wanted=odds(0.5),
    ceiling=100,
    budget=0,
    stake=400,
    opening=800,
    funded=odds(1),
    cheaters=odds(0.05),
    probation=2,
    audited=odds(0.1),
    caught=odds(0.05),
    caught_known=odds(0.5),
    segments=5,
    voices=2,
    taken=500,
    bounty=500,
    fare=10_000,
)


def network(**changes: Any) -> SimulationRules:
    values = {name: getattr(PLAIN, name) for name in SimulationRules.__struct_fields__}
    return SimulationRules(**(values | changes))


def lines(rules: SimulationRules) -> list[tuple[int, int]]:
    """Of every node: upload and download, kbit/s."""
    return [node_steps.line(shape(rules), node) for node in range(rules.nodes)]


def busy(**changes: Any) -> SimulationRules:
    """A network in which next to nothing is rare: long states, slow lines, many that are late, audited or cheat."""
    values = {
        "up": 5 * HOUR, "down": HOUR, "late": odds(0.1), "cheaters": odds(0.1), "audited": odds(0.3),
        "caught": odds(0.15), "payload": 100_000_000, "snapshot": 20_000_000_000, "relays": 2,
    }  # fmt: skip
    return network(**(values | changes))


TALLIES = {
    "members": kinds.MEMBERS, "accepted": kinds.ACCEPTED, "dropped": kinds.DROPPED, "joined": kinds.JOINED,
    "away": kinds.AWAY, "fetching": kinds.FETCHING, "excluded": kinds.EXCLUDED, "late": kinds.LATE,
    "lost": kinds.LOST, "audited": kinds.AUDITED, "caught": kinds.CAUGHT, "cheated": kinds.CHEATED,
}  # fmt: skip


def counted(outcome: SimulationResult) -> Counter[str]:
    """By the names that the oracle counts under."""
    count = Counter({name: outcome.of(kind) for name, kind in TALLIES.items()})
    for period in outcome.periods:
        count += Counter(up=period.up_time, downs=period.downs, deaths=period.deaths, hired=period.hired)
        count += Counter(paid=period.flows.paid, fees=period.flows.fees, taken=period.flows.taken)
    relayed = [int(each) for each in outcome.relayed.sum(axis=0)]
    return count + Counter({"relayed": sum(relayed)} | {f"relay {at}": each for at, each in enumerate(relayed)})

"""Runs `farflung simulate`: turns a scenario into the rules of plan.simulation and simulates it.

The chances of audits come from verify.economics; the result stands beside networks that differ in one thing.

A cheater takes whichever way costs it less when it is drawn: it stays with its lie, or shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final

import msgspec
from msgspec.structs import replace

from farflung.advice.simulation.random_draws import ODDS
from farflung.advice.simulation.simulate import play, prepare
from farflung.advice.simulation.simulation_result import SimulationResult
from farflung.advice.simulation.simulation_rules import MICROS, SimulationRules, odds, sigmas
from farflung.advice.traffic import failures
from farflung.app.simulate import scenario as scenarios
from farflung.app.simulate.scenario import DAY_MS, Scenario
from farflung.ledger.rules.slashes import PERMILLE
from farflung.ledger.rules.verifiers import quorum_of
from farflung.verify.audit_verdict import panel_of
from farflung.verify.economics import AuditDrawTerms, CheaterResponse, RoundStakes, caught, margin

HOUR_MS: Final = 3_600_000
UNITS: Final = 1000  # of a round at nominal speed
CHURNS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # mean hours up that are played beside a scenario
FEW: Final = 2000  # nodes of each of them
DAYS: Final = 10
GROUPS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # nodes that stop together
WRITE: Final = 60.0  # seconds that a checkpoint takes, as in the research's table


class ChurnLosses(msgspec.Struct, frozen=True):
    """What a mean time up costs, as shares of hired nodes' rounds: all that is not accepted.

    A job of `market.members` that restarts as a whole hires the same nodes, has the same ones missing, and as many
    late. It is given somebody who is up for whoever leaves, at once; he fetches the state, and all go back to the
    last checkpoint.
    """

    up_hours: float
    losses: dict[str, float]  # as of an outcome
    restarting: float

    @property
    def lost(self) -> float:
        """Where every node loses its own rounds alone."""
        return sum(self.losses.values())


class CheckpointOverhead(msgspec.Struct, frozen=True):
    """Of a group that stops together: the best interval, and what is lost with it."""

    nodes: int
    mean: float  # seconds between failures
    work: float  # seconds between checkpoints
    waste: float


class SimulationReport(msgspec.Struct, frozen=True):
    """A scenario's outcome, and what is shown beside it."""

    scenario: Scenario
    seed: int
    outcome: SimulationResult
    churned: tuple[ChurnLosses, ...]
    checkpoints: tuple[CheckpointOverhead, ...]


def draw_of(scenario: Scenario) -> AuditDrawTerms:
    """The audits of a scenario."""
    verifiers, voices = scenario["audit.verifiers"], quorum_of(scenario["audit.verifiers"])
    rate, absent, seen = (Fraction(scenario[f"audit.{name}"]) for name in ("rate", "absent", "seen"))
    return AuditDrawTerms(scenario["audit.segments"], 1, rate, absent, seen, voices, panel_of(verifiers) - voices)


def way_of(scenario: Scenario) -> CheaterResponse:
    """What a cheater does that is drawn: the cheaper of the two."""
    draw, money = draw_of(scenario), _money(scenario)
    return min(CheaterResponse, key=lambda way: margin(draw, money, _cheated(scenario), way).loss)


def _cheated(scenario: Scenario) -> int:
    segments: int = scenario["audit.segments"]
    share: float = scenario["audit.false"]
    return max(1, round(share * segments))


def _money(scenario: Scenario) -> RoundStakes:
    """In rounds' pay."""
    one = Fraction(1)
    return RoundStakes(one, one, Fraction(scenario["audit.stake"]), Fraction(scenario["audit.silence"]))


def rules_of(scenario: Scenario, seed: int) -> SimulationRules:
    """The same in whole numbers of ms, micro-credits, bytes and chances."""
    train, exchange = scenarios.milliseconds(scenario)
    draw, way, cheated = draw_of(scenario), way_of(scenario), _cheated(scenario)
    is_lie = way is CheaterResponse.LIE
    ceiling = _micro(scenario["market.ceiling"])
    stake = round(ceiling * scenario["audit.stake"])
    return SimulationRules(
        key=seed,
        nodes=scenario["network.nodes"],
        periods=scenario["network.days"],
        rounds=scenarios.rounds_a_day(scenario),
        train=train,
        exchange=exchange,
        up=round(HOUR_MS * scenario["churn.up_hours"]),
        down=round(HOUR_MS * scenario["churn.down_hours"]),
        death=_death(scenario["churn.death"]),
        speed_sigma=sigmas(scenario["round.speed_spread"]),
        ask=_micro(scenario["market.ask"]),
        ask_sigma=sigmas(scenario["market.ask_spread"]),
        uplink=round(1000 * scenario["line.up_mbit"]),
        uplink_sigma=sigmas(scenario["line.spread"]),
        downlink=round(1000 * scenario["line.down_mbit"]),
        downlink_sigma=sigmas(scenario["line.spread"]),
        hidden=odds(scenario["network.hidden"]),
        relays=scenario["network.relays"],
        late=odds(scenario["round.late"]),
        payload=round(1e6 * scenario["round.payload_mb"]),
        snapshot=round(1e6 * scenario["round.state_mb"]),
        members=scenario["market.members"],
        wanted=odds(scenario["market.wanted"]),
        ceiling=ceiling,
        budget=round(MICROS * scenario["market.budget"]),
        stake=stake,
        opening=2 * stake,
        funded=odds(scenario["audit.funded"]),
        cheaters=odds(scenario["audit.cheaters"]),
        probation=scenario["audit.probation"],
        audited=odds(scenario["audit.rate"]),
        caught=_exactly(caught(draw, cheated, way)),
        caught_known=_exactly(caught(replace(draw, rate=Fraction(1)), cheated, way)),
        segments=draw.segments,
        voices=draw.voices,
        taken=PERMILLE if is_lie else round(PERMILLE * scenario["audit.silence"]),
        bounty=PERMILLE // 2 if is_lie else 0,
        fare=round(MICROS * scenario["market.relay_price"]),
    )


def _micro(credits: float) -> int:
    """Micro-credits a unit of what is said in credits a round of nominal speed."""
    return max(1, round(credits * MICROS / UNITS))


def _exactly(chance: Fraction) -> int:
    return int(chance * ODDS)


def _death(share: float) -> int:
    """Mean ms of being up until a node dies of which `share` die in a day; 0: never."""
    return round(DAY_MS / share) if share > 0 else 0


def simulate(scenario: Scenario, seed: int, on_day: Callable[[int], None] = lambda day: None) -> SimulationResult:
    """Plays a scenario; `on_day` is called with the number of each day that is over."""
    return play(rules_of(scenario, seed), on_day)


def tell(
    scenario: Scenario, seed: int, outcome: SimulationResult, on_network: Callable[[float], None] = lambda hours: None
) -> SimulationReport:
    """The outcome with what is played and computed beside it for the report; `on_network`: as of `churned`."""
    return SimulationReport(
        scenario, seed, outcome, churned(scenario, seed, outcome, on_network), checkpoints(scenario)
    )


def churned(
    scenario: Scenario, seed: int, outcome: SimulationResult, on_network: Callable[[float], None] = lambda hours: None
) -> tuple[ChurnLosses, ...]:
    """The scenario itself among smaller networks, alike but for how long nodes stay; their share of time up stays what
    it is. `on_network` is called with the hours of each that begins.
    """
    own = scenario["churn.up_hours"]
    fewer = {hours: rules_of(_staying(scenario, hours), seed) for hours in CHURNS if hours != own}
    prepare(fewer.values())
    found = [_of_stay(scenario, own, outcome)]
    for hours, rules in fewer.items():
        on_network(hours)
        found.append(_of_stay(scenario, hours, play(rules)))
    return tuple(sorted(found, key=lambda row: row.up_hours))


def _staying(scenario: Scenario, hours: float) -> Scenario:
    ratio = scenario["churn.down_hours"] / scenario["churn.up_hours"]
    return scenarios.with_values(
        scenario,
        network__nodes=min(FEW, scenario["network.nodes"]),
        network__days=min(DAYS, scenario["network.days"]),
        churn__up_hours=hours,
        churn__down_hours=min(max(hours * ratio, 0.01), 1e6),
    )


def _of_stay(scenario: Scenario, hours: float, outcome: SimulationResult) -> ChurnLosses:
    losses = outcome.losses
    there = (1 - losses["away"] - losses["caught"]) * (1 - scenario["round.late"])
    best = failures.best(WRITE, 3600 * hours / scenario["market.members"], restart_of(scenario))
    return ChurnLosses(hours, losses, 1 - there * best.efficiency)


def restart_of(scenario: Scenario) -> float:
    """Seconds in which the middle line fetches the public state."""
    megabytes: float = scenario["round.state_mb"]
    megabits: float = scenario["line.down_mbit"]
    return 8 * megabytes / megabits


def checkpoints(scenario: Scenario) -> tuple[CheckpointOverhead, ...]:
    """For groups that stop together when any of their nodes goes away."""
    return tuple(_of_group(scenario["churn.up_hours"], nodes) for nodes in GROUPS)


def _of_group(hours: float, nodes: int) -> CheckpointOverhead:
    mean = 3600 * hours / nodes
    best = failures.best(WRITE, mean)
    return CheckpointOverhead(nodes, mean, best.work, best.waste)

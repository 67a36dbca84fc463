"""Parses a scenario of `farflung simulate`: keys named with their units, each value within a bound.

What is not named has the defaults, which are a network of home computers; docs/plan/simulate.md shows the table `KEYS`.
Nothing is allocated before `check` has said that it fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from farflung.advice.simulation.simulation_rules import FASTEST, KINDS
from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.similar_name import similar_name
from farflung.job import toml_parser
from farflung.job.keys import expected

DAY_MS: Final = 86_400_000
MOST: Final = 1 << 62  # of any number that a period adds up


class ScenarioKey(NamedTuple):
    """One value: its type is its default's; `low` and `high` are allowed."""

    default: float | int
    low: float
    high: float
    about: str


KEYS: Final[Mapping[str, ScenarioKey]] = {
    "network.nodes": ScenarioKey(10_000, 1, limits.SIMULATED_NODES, "nodes that there are"),
    "network.days": ScenarioKey(30, 1, 3650, "days, each with one auction"),
    "network.hidden": ScenarioKey(0.7, 0, 1, "share behind routers that let nobody in"),
    "network.relays": ScenarioKey(16, 1, 1024, "relays; each hidden node uses one"),
    "churn.up_hours": ScenarioKey(10.0, 0.01, 1e7, "mean time until a node goes away"),
    "churn.down_hours": ScenarioKey(2.0, 0.01, 1e6, "mean time until it is back"),
    "churn.death": ScenarioKey(1e-4, 0, 1, "share of nodes that are up whose hardware dies in a day"),
    "round.train_seconds": ScenarioKey(2280.0, 0.001, 80_000, "training of a round"),
    "round.exchange_seconds": ScenarioKey(120.0, 0, 80_000, "for payloads to go round; who takes longer is not hired"),
    "round.payload_mb": ScenarioKey(25.0, 0, 10_000, "of one contribution, 10^6 bytes"),
    "round.state_mb": ScenarioKey(400.0, 0, 1e6, "that who joins fetches, 10^6 bytes"),
    "round.late": ScenarioKey(0.01, 0, 1, "chance that a contribution misses its round though its line is fast enough"),
    "round.speed_spread": ScenarioKey(0.4, 0, 2, "sigma of the logarithm of speeds"),
    "line.up_mbit": ScenarioKey(20.0, 0.001, 1e6, "upload of the middle node"),
    "line.down_mbit": ScenarioKey(100.0, 0.001, 1e6, "download of the middle node"),
    "line.spread": ScenarioKey(0.8, 0, 2, "sigma of the logarithm of both"),
    "market.members": ScenarioKey(16, 1, limits.PEERS, "nodes of one job"),
    "market.wanted": ScenarioKey(0.5, 0, 1, "share of all nodes that jobs ask for"),
    "market.ask": ScenarioKey(0.02, 0.001, 1000, "credits that the middle node asks for a round of nominal speed"),
    "market.ask_spread": ScenarioKey(0.3, 0, 2, "sigma of the logarithm of asks"),
    "market.ceiling": ScenarioKey(0.1, 0.001, 1000, "credits for the same that no job goes beyond"),
    "market.budget": ScenarioKey(0.0, 0, 1e9, "credits that jobs set aside for a day; 0: what all wanted may cost"),
    "market.relay_price": ScenarioKey(0.01, 0, 1000, "credits a GiB that a relay gives on"),
    "audit.rate": ScenarioKey(0.1, 0, 1, "share of contributions that is drawn"),
    "audit.probation": ScenarioKey(2, 0, 1000, "first contributions of a node, which are all drawn"),
    "audit.segments": ScenarioKey(5, 1, limits.PLANNED_SEGMENTS, "of a round; one of them is repeated"),
    "audit.verifiers": ScenarioKey(3, 1, 16, "of a job: two must agree, a third decides"),
    "audit.seen": ScenarioKey(1.0, 0, 1, "chance that a false segment lies beyond the tolerances"),
    "audit.absent": ScenarioKey(0.0, 0, 1, "share of verifiers that do not look"),
    "audit.cheaters": ScenarioKey(0.02, 0, 1, "share of nodes that cheat whenever they work"),
    "audit.false": ScenarioKey(1.0, 0.001, 1, "share of a round's segments that they leave out"),
    "audit.stake": ScenarioKey(20.0, 0, 10_000, "stake, in rounds' pay at the ceiling"),
    "audit.funded": ScenarioKey(1.0, 0, 1, "share of nodes that own a stake, and one more, at the beginning"),
    "audit.silence": ScenarioKey(0.5, 0, 1, "share of the stake that showing nothing costs"),
}  # fmt: skip


SECTIONS: Final = frozenset(key.partition(".")[0] for key in KEYS)


class Scenario(msgspec.Struct, frozen=True):
    """All values by their keys, defaults included."""

    values: dict[str, float | int]

    def __getitem__(self, key: str) -> Any:
        """The value of a key: a whole number where its default is one."""
        return self.values[key]


class _ScenarioEntry(NamedTuple):
    key: str
    value: Any
    origin: str
    is_text: bool


def read(text: str | None, name: str, flags: Mapping[str, str]) -> Scenario:
    """A scenario file's text, if there is one, and then what `--set` says.

    Raises SpecError FF-JOB-003 (no TOML), UsageError FF-APP-430 (no such key), -431 (no such value), -432 (too large).
    """
    entries = toml_parser.read(text, name) if text is not None else []
    said = [
        _ScenarioEntry(e.key, e.value, f"{name} line {e.line}" if e.line else name, False)
        for e in entries
        if e.value != {} or e.key not in SECTIONS  # a table that is empty
    ]
    said += [_ScenarioEntry(key, value, "--set", True) for key, value in flags.items()]
    return made(said)


def made(said: Iterable[_ScenarioEntry] = ()) -> Scenario:
    """The defaults, and what is said instead; checked."""
    values: dict[str, float | int] = {key: of.default for key, of in KEYS.items()}
    for one in said:
        key = _known(one)
        values[key] = _typed(one)
    scenario = Scenario(values)
    check(scenario)
    return scenario


def with_values(scenario: Scenario, **values: float | int) -> Scenario:
    """The same with other values, of keys that are written with `__` for the dot; checked."""
    said = [_ScenarioEntry(key.replace("__", "."), value, "a variant", False) for key, value in values.items()]
    return made([*(_ScenarioEntry(key, value, "", False) for key, value in scenario.values.items()), *said])


def _known(said: _ScenarioEntry) -> str:
    if said.key in KEYS:
        return said.key
    if said.key in SECTIONS:
        raise _table(said)
    guess = similar_name(said.key, KEYS) or similar_name(
        said.key.partition(".")[2], [k.partition(".")[2] for k in KEYS]
    )
    raise UsageError(
        "FF-APP-430",
        f"a scenario has no key {said.key[:60]!r}",
        cause=said.origin,
        hint=f"did you mean {guess}?"
        if guess
        else "all keys are under `scenario` in what `farflung simulate --json` prints",
    )


def _table(said: _ScenarioEntry) -> UsageError:
    first = next(key for key in KEYS if key.startswith(f"{said.key}."))
    name, default = first.partition(".")[2], KEYS[first].default
    line = f"`{name} = {default}`"
    return UsageError(
        "FF-APP-430",
        f"a scenario has no key {said.key!r}: it is a table",
        cause=said.origin,
        hint=f"--set {first}={default}" if said.is_text else f"[{said.key}] once, and lines like {line} under it",
    )


def _typed(said: _ScenarioEntry) -> float | int:
    key = KEYS[said.key]
    kind = type(key.default)
    try:
        value: float | int = msgspec.convert(said.value, kind, strict=not said.is_text)
    except (msgspec.ValidationError, OverflowError):
        raise _wrong(said, f"it must be {expected(kind)}") from None
    if not key.low <= value <= key.high:
        raise _wrong(said, f"it must lie from {key.low:,.10g} to {key.high:,.10g}")
    return value


def _wrong(said: _ScenarioEntry, cause: str) -> UsageError:
    return UsageError(
        "FF-APP-431",
        f"{said.key} cannot be {str(said.value)[:40]!r}: {KEYS[said.key].about}",
        cause=f"{cause} ({said.origin})",
        hint=f"the default is {KEYS[said.key].default:g}",
    )


def milliseconds(scenario: Scenario) -> tuple[int, int]:
    """Of a round: training and exchange."""
    return round(1000 * scenario["round.train_seconds"]), round(1000 * scenario["round.exchange_seconds"])


def rounds_a_day(scenario: Scenario) -> int:
    """Whole rounds from one auction to the next."""
    return DAY_MS // sum(milliseconds(scenario))


def check(scenario: Scenario) -> None:
    """Raises UsageError FF-APP-432 where single values are in range and together too large."""
    rounds, nodes = rounds_a_day(scenario), scenario["network.nodes"]
    per_round = scenario["round.payload_mb"] * scenario["market.members"] + scenario["round.state_mb"]
    price = 1000 * max(scenario["market.ceiling"], 1.0) * max(1.0, scenario["audit.stake"])
    escrow = price * FASTEST * nodes * rounds * (scenario["audit.segments"] + 4)
    rows = scenario["network.days"] * rounds
    table = 8 * rows * (KINDS + 2 * scenario["network.relays"])
    if rounds < 1:
        raise _together("a round takes more than a day", "shorten round.train_seconds")
    if rows > limits.SIMULATED_ROUNDS:
        raise _together(
            f"{rows} rounds, {limits.SIMULATED_ROUNDS} at most", "lengthen round.train_seconds, or fewer network.days"
        )
    daily = nodes * (rounds + 48 / (scenario["churn.up_hours"] + scenario["churn.down_hours"]))
    if daily > limits.SIMULATED_DAY:
        raise _together(
            f"{daily:.3g} rounds, comings and goings of nodes in a day, {limits.SIMULATED_DAY:.3g} at most",
            "fewer network.nodes, a longer round.train_seconds or churn.up_hours",
        )
    if table > limits.SIMULATED_TABLE_BYTES:
        raise _together(f"a table of {table} bytes of rounds and relays", "fewer network.relays or network.days")
    if escrow >= MOST or 1e6 * scenario["market.budget"] >= MOST:
        raise _together("more micro-credits than can be counted", "lower market.ceiling, or fewer network.nodes")
    if 1e6 * per_round * nodes * rows >= MOST:
        raise _together("more bytes than can be counted", "lower round.payload_mb, round.state_mb or network.nodes")


def _together(cause: str, hint: str) -> UsageError:
    return UsageError("FF-APP-432", "this network is too large to be simulated", cause=cause, hint=hint)

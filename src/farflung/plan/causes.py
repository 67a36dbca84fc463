"""Why a run came out otherwise than planned: the likeliest cause that its own events show, in a few words (P1).

For each quantity there is a list of causes, the strongest first; the first whose sign is seen is named. Where no sign
is seen nothing is named: a guess would look like a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from farflung.plan.advise import Plan
from farflung.plan.audits import expected

MUCH: Final = 1.2  # times what was planned, from which a part of a quantity explains the whole


class Seen(msgspec.Struct, frozen=True):
    """What a run shows that no plan could know. Seconds are those of all rounds together."""

    rounds: int = 0
    members: float = 0.0  # of a closed round, on the average
    left: int = 0
    restarted: int = 0
    caught: int = 0
    audits: int = 0  # that were drawn
    repeated: int = 0  # verdicts above one an audit
    ways: Mapping[str, int] = {}  # rounds by the way that their payloads took
    training: float = 0.0
    exchange: float = 0.0
    exchange_foretold: float = 0.0  # by what was known of the lines in each round
    payload_bytes: float = 0.0  # of one contribution, on the average
    starting: float = 0.0  # from the command to the first round
    lasted: float = 0.0  # from the command to the end


Cause = Callable[[Plan, Seen], str]


def likely(quantity: str, ratio: float, plan: Plan, seen: Seen) -> str:
    """The likeliest cause of measured / planned = `ratio`; empty: the run shows none."""
    causes = MORE if ratio > 1.0 else LESS
    return next((said for cause in causes.get(quantity, ()) if (said := cause(plan, seen))), "")


def _other_way(plan: Plan, seen: Seen) -> str:
    planned = plan.traffic.forecast.way.value
    other = {way: count for way, count in seen.ways.items() if way != planned}
    if not other:
        return ""
    way = max(other, key=lambda name: (other[name], name))
    return f"{other[way]} of {seen.rounds} rounds went by {way}, not by {planned}"


def _larger_payloads(plan: Plan, seen: Seen) -> str:
    times = seen.payload_bytes / plan.traffic.payload if plan.traffic.payload else 0.0
    return f"a payload is {times:.2f} times as long as modelled" if times > MUCH else ""


def _smaller_payloads(plan: Plan, seen: Seen) -> str:
    times = seen.payload_bytes / plan.traffic.payload if plan.traffic.payload else 0.0
    return f"a payload is {times:.2f} times as long as modelled" if 0 < times * MUCH < 1 else ""


def _fewer_members(plan: Plan, seen: Seen) -> str:
    asked = plan.spec.network.providers
    return f"{seen.members:.3g} of {asked} providers in a round" if 0 < seen.members < 0.95 * asked else ""


def _joined_again(_: Plan, seen: Seen) -> str:
    return (
        f"{_times(seen.restarted, 'process was', 'processes were')} started again" if seen.restarted else ""
    )


def _more_audits(plan: Plan, seen: Seen) -> str:
    foreseen = expected(plan.spec).count
    return f"{_drawn(seen)}, {foreseen:.3g} are to be expected" if seen.audits > foreseen else ""


def _fewer_audits(plan: Plan, seen: Seen) -> str:
    foreseen = expected(plan.spec).count
    return f"{_drawn(seen)}, {foreseen:.3g} are to be expected" if seen.audits < foreseen else ""


def _drawn(seen: Seen) -> str:
    return _times(seen.audits, "audit was drawn", "audits were drawn")


def _second_opinions(plan: Plan, seen: Seen) -> str:
    """One of many explains nothing."""
    is_much = seen.repeated > (MUCH - 1.0) * expected(plan.spec).count
    said = f"{_times(seen.repeated, 'audit was', 'audits were')} repeated by another verifier"
    return said if seen.repeated and is_much else ""


def _longer(plan: Plan, seen: Seen) -> str:
    times = seen.lasted / plan.duration.total if plan.duration.total else 0.0
    said = f"the run took {times:.2f} times as long as planned"
    return f"{said}, and what stands talks" if times > MUCH else ""


def _caught(_: Plan, seen: Seen) -> str:
    return (
        f"{_times(seen.caught, 'provider was', 'providers were')} caught and not paid" if seen.caught else ""
    )


def _slow_training(plan: Plan, seen: Seen) -> str:
    times = seen.training / plan.duration.compute if plan.duration.compute else 0.0
    said = f"training took {times:.2f} times what this machine's measured rate gives"
    return said if times > MUCH else ""


def _fast_training(plan: Plan, seen: Seen) -> str:
    times = seen.training / plan.duration.compute if plan.duration.compute else 0.0
    return (
        f"training took {times:.2f} times what this machine's measured rate gives"
        if 0 < times * MUCH < 1
        else ""
    )


def _slow_lines(plan: Plan, seen: Seen) -> str:
    if seen.exchange <= MUCH * seen.exchange_foretold or not seen.exchange_foretold:
        return ""
    return f"exchanges took {seen.exchange / seen.exchange_foretold:.2f} times what the lines were taken for"


def _slow_start(plan: Plan, seen: Seen) -> str:
    times = seen.starting / plan.duration.start if plan.duration.start else 0.0
    return (
        f"the first round began after {seen.starting:.0f} s, not {plan.duration.start:.0f}"
        if times > MUCH
        else ""
    )


def _times(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


MORE: Final[Mapping[str, tuple[Cause, ...]]] = {
    "sync": (_other_way, _larger_payloads, _joined_again),
    "audit": (_second_opinions, _more_audits),
    "join": (_joined_again,),
    "control": (_joined_again, _second_opinions, _longer),
    "relay": (_other_way, _joined_again),
    "time": (_slow_training, _slow_lines, _slow_start, _joined_again),
    "price": (_more_audits,),
}
LESS: Final[Mapping[str, tuple[Cause, ...]]] = {
    "sync": (_other_way, _smaller_payloads, _fewer_members),
    "audit": (_fewer_audits, _fewer_members),
    "control": (_fewer_members,),
    "relay": (_other_way, _fewer_members),
    "time": (_fast_training, _fewer_members),
    "price": (_caught, _fewer_members, _fewer_audits),
}

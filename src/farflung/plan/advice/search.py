"""The best ways to train a job on what is offered, or the constraint that binds where there is none (P1).

Every layout is tried with every crew: a few hundred closed forms, so nothing is sampled and nothing left to luck. Of
each kind the best is kept, so that three answers are three ways and not one with three crews.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from farflung.plan.advice import pipelines, replicas, speed
from farflung.plan.advice.crews import crews
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import Blocked, Found, Kind, Option
from farflung.plan.advice.replicas import Assumed
from farflung.plan.advice.work import Work

SHOWN: Final = 3
USUAL: Final = Assumed()


class Goal(StrEnum):
    """What is best."""

    TIME = "time"
    PRICE = "price"


Layout = Callable[[Work, Sequence[Host], Assumed], Found]
LAYOUTS: Final[tuple[tuple[Layout, int], ...]] = (  # and the fewest hosts that it makes sense with
    (replicas.rounds, 1),
    (replicas.data, 2),
    (replicas.sharded, 2),
    (pipelines.pipeline, 2),
)


class Advice(msgspec.Struct, frozen=True):
    """`best`: of each kind that is possible the best, the best first, SHOWN at most; `binding`: of each kind that is
    not, what comes nearest to it.
    """

    hosts: tuple[Host, ...]
    goal: Goal
    tried: int
    best: tuple[Option, ...]
    binding: tuple[Blocked, ...]


def search(work: Work, hosts: Sequence[Host], goal: Goal = Goal.TIME, assumed: Assumed = USUAL) -> Advice:
    """Pure: the same job and offers give the same advice, whatever the order of the offers."""
    ordered = sorted(hosts, key=lambda host: host.name)
    best: dict[Kind, Option] = {}
    binding: dict[Kind, Blocked] = {}
    tried = 0
    for layout, least in LAYOUTS:
        for crew in crews(ordered, lambda host: speed.rate(host, assumed.utilisation), least):
            tried += 1
            found = layout(work, crew, assumed)
            if isinstance(found, Option):
                best[found.kind] = min(
                    best.get(found.kind, found), found, key=lambda each: _order(each, goal)
                )
            elif found.kind not in binding or found.nearness > binding[found.kind].nearness:
                binding[found.kind] = found
    options = sorted(best.values(), key=lambda each: _order(each, goal))[:SHOWN]
    nearest = sorted(
        (b for b in binding.values() if b.kind not in best), key=lambda b: b.nearness, reverse=True
    )
    return Advice(tuple(hosts), goal, tried, tuple(options), tuple(nearest))


def _order(option: Option, goal: Goal) -> tuple[float, float, tuple[str, ...]]:
    first, second = float(option.seconds), float(option.price)
    ordered = (first, second) if goal is Goal.TIME else (second, first)
    return (*ordered, tuple(host.name for host in option.hosts))

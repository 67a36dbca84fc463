"""The best ways to train a job on what is offered, or the constraint that binds where there is none (P1).

Every layout is tried with every crew: a few hundred closed forms and timelines, so nothing is sampled and nothing left
to luck; the places in the winning pipelines are then improved by plan/place. Of each kind the best is kept, so that
three answers are three ways and not one with three crews. What `farflung run` can do today is always among them.

Where a network saves less than it takes to stand, one host alone is the advice, and beside it only what runs today.
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
from farflung.plan.place.compiled import as_it_stands

SHOWN: Final = 3
USUAL: Final = Assumed()


class Goal(StrEnum):
    """What is best."""

    TIME = "time"
    PRICE = "price"


Layout = Callable[[Work, Sequence[Host], Assumed], Found]
LAYOUTS: Final[tuple[tuple[Layout, int], ...]] = (  # and the fewest hosts that it makes sense with
    (replicas.rounds, 1),  # of one host: one host alone
    (replicas.data, 2),
    (replicas.sharded, 2),
    (pipelines.pipeline, 2),
    (pipelines.pipelines, 4),
)


class Advice(msgspec.Struct, frozen=True):
    """`best`: of each kind that is possible the best, the best first, SHOWN at most; `binding`: of each kind that is
    not, what comes nearest to it. `saved`: seconds that the fastest way saves of the fastest single host's; None where
    no host can do it alone.
    """

    hosts: tuple[Host, ...]
    goal: Goal
    tried: int
    best: tuple[Option, ...]
    binding: tuple[Blocked, ...]
    saved: float | None = None

    @property
    def is_for_one(self) -> bool:
        """Whether a network saves less than the minute that it takes to stand."""
        return self.saved is not None and self.saved < replicas.RESTART

    @property
    def today(self) -> Option | None:
        """The best that `farflung run` does today."""
        return next((option for option in self.best if option.is_run_today), None)


def search(work: Work, hosts: Sequence[Host], goal: Goal = Goal.TIME, assumed: Assumed = USUAL) -> Advice:
    """Pure: the same job and offers give the same advice, whatever the order of the offers."""
    with as_it_stands():  # what is placed here is little beside what compiling costs
        tried, options, binding = _all(work, sorted(hosts, key=lambda host: host.name), assumed)
    best = {kind: min(found, key=lambda each: _order(each, goal)) for kind, found in options.items()}
    with as_it_stands():
        for kind in {Kind.PIPELINE, Kind.PIPELINES} & best.keys():
            best[kind] = pipelines.improved(work, best[kind], assumed, hosts, by_money=goal is Goal.PRICE)
    nearest = sorted(
        (each for each in binding.values() if each.kind not in best),
        key=lambda each: each.nearness,
        reverse=True,
    )
    saved = None
    if Kind.ALONE in options:
        alone = min(each.seconds for each in options[Kind.ALONE])
        saved = alone - min(each.seconds for found in options.values() for each in found)
    found = Advice(tuple(hosts), goal, tried, (), tuple(nearest), saved)
    return msgspec.structs.replace(found, best=_shown(best, goal, is_for_one=found.is_for_one))


def _all(
    work: Work, hosts: Sequence[Host], assumed: Assumed
) -> tuple[int, dict[Kind, list[Option]], dict[Kind, Blocked]]:
    """How many ways were tried; those that are possible, by kind; of each kind the nearest that is not."""
    options: dict[Kind, list[Option]] = {}
    binding: dict[Kind, Blocked] = {}
    tried = 0
    for layout, least in LAYOUTS:
        for crew in crews(hosts, lambda host: speed.rate(host, assumed.utilisation), least):
            tried += 1
            found = layout(work, crew, assumed)
            if isinstance(found, Option):
                options.setdefault(found.kind, []).append(found)
            elif found.kind not in binding or found.nearness > binding[found.kind].nearness:
                binding[found.kind] = found
    return tried, options, binding


def _shown(best: dict[Kind, Option], goal: Goal, *, is_for_one: bool) -> tuple[Option, ...]:
    """The best few, one host alone first where it is enough, and always what can be run today."""
    if is_for_one:
        return tuple(best[kind] for kind in (Kind.ALONE, Kind.ROUNDS) if kind in best)
    ordered = sorted(best.values(), key=lambda each: _order(each, goal))
    shown = ordered[:SHOWN]
    today = [option for option in ordered if option.is_run_today]
    if today and today[0] not in shown:
        shown[-1] = today[0]
    return tuple(shown)


def _order(option: Option, goal: Goal) -> tuple[float, float, tuple[str, ...]]:
    first, second = float(option.seconds), float(option.price)
    ordered = (first, second) if goal is Goal.TIME else (second, first)
    return (*ordered, tuple(host.name for host in option.hosts))

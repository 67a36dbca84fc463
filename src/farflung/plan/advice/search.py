"""The best ways to train a job on what is offered, or the constraint that binds where there is none (P1).

Every layout is tried with each crew of `crews`, some hundreds of closed forms and timelines, and no other: not all
crews that there are, but nothing is drawn. Where whole replicas are trained, hosts that hold none are left out before.
The places in the winning pipelines are then improved by plan/place. Of each kind the best is kept, so that three
answers are three ways and not one with three crews; a way that is much worse than another in time and in price is
dropped. What `farflung run` trains by today is always among them.

Where a network saves less than it takes to stand, one host alone is the advice, and beside it only what runs today.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

import msgspec

from farflung.plan.advice import keeping, machines, pipelines, replicas, speed
from farflung.plan.advice.crews import crews
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import Blocked, Found, Kind, Option
from farflung.plan.advice.replicas import Assumed
from farflung.plan.advice.within import Most, within
from farflung.plan.advice.work import Work
from farflung.plan.cards.card import Support
from farflung.plan.place.compiled import as_it_stands

SHOWN: Final = 3
USUAL: Final = Assumed()
ANY: Final = Most()


class Goal(StrEnum):
    """What is best."""

    TIME = "time"
    PRICE = "price"


Layout = Callable[[Work, Sequence[Host], Assumed], Found]


class Tried(NamedTuple):
    """A layout; the fewest hosts that it makes sense with; whether each holds the whole model, and whether all wait for
    each other at every step.
    """

    layout: Layout
    kind: Kind
    least: int
    is_whole: bool
    is_in_step: bool


LAYOUTS: Final = (
    Tried(replicas.rounds, Kind.ROUNDS, 1, is_whole=True, is_in_step=False),  # of one host: one host alone
    Tried(replicas.data, Kind.DATA, 2, is_whole=True, is_in_step=True),
    Tried(replicas.sharded, Kind.SHARDED, 2, is_whole=False, is_in_step=True),
    Tried(pipelines.pipeline, Kind.PIPELINE, 2, is_whole=False, is_in_step=False),
    Tried(pipelines.pipelines, Kind.PIPELINES, 4, is_whole=False, is_in_step=False),
)
DOMINATED: Final = 3.0  # times as long and as dear as another way: no reason to choose it


class Advice(msgspec.Struct, frozen=True):
    """`best`: of each kind that is possible the best, the best first, SHOWN at most; `binding`: of each kind that is
    not, what comes nearest to it. `saved`: seconds that the fastest way saves of the fastest single host's; None where
    no host can do it alone. `dropped`: ways that are DOMINATED times as long and as dear as one that is shown.
    """

    hosts: tuple[Host, ...]
    goal: Goal
    tried: int
    best: tuple[Option, ...]
    binding: tuple[Blocked, ...]
    saved: float | None = None
    dropped: tuple[Option, ...] = ()
    useless: tuple[Host, ...] = ()  # whose cards no library of their makers runs on: nobody trains on them

    @property
    def is_for_one(self) -> bool:
        """Whether a network saves less than the minute that it takes to stand."""
        return self.saved is not None and self.saved < keeping.RESTART

    @property
    def today(self) -> Option | None:
        """The best that `farflung run` does today."""
        return next((option for option in self.best if option.is_run_today), None)


def search(
    work: Work,
    hosts: Sequence[Host],
    goal: Goal = Goal.TIME,
    assumed: Assumed = USUAL,
    *,
    is_own: bool = False,
    most: Most = ANY,
) -> Advice:
    """Pure: the same job and offers give the same advice, whatever the order of the offers.

    `is_own`: they are all the planner's own, so that no owner is held to a third of a crew. `most`: what a way may cost
    and take.
    """
    useless = tuple(host for host in hosts if host.card.support is Support.NO)
    hosts = tuple(host for host in hosts if host.card.support is not Support.NO)
    if not hosts:
        return Advice((), goal, 0, (), (_without(useless),), useless=useless)
    ordered = sorted(hosts, key=lambda host: host.name)
    with as_it_stands():  # what is placed here is little beside what compiling costs
        tried, options, binding = _all(work, ordered, assumed, is_own)
        if not is_own:
            binding |= _held_by_owners(work, ordered, assumed, binding.keys() - options.keys())
    options, beyond = within(options, most)
    binding |= beyond
    best = {kind: min(found, key=lambda each: _order(each, goal)) for kind, found in options.items()}
    with as_it_stands():
        for kind in {Kind.PIPELINE, Kind.PIPELINES} & best.keys():
            best[kind] = pipelines.improved(
                work, best[kind], assumed, ordered, by_money=goal is Goal.PRICE, is_own=is_own,
                is_allowed=lambda option: _is_allowed(work, option, most),
            )  # fmt: skip
    nearest = sorted(
        (each for each in binding.values() if each.kind not in best),
        key=lambda each: each.nearness,
        reverse=True,
    )
    saved = None
    if Kind.ALONE in options:
        alone = min(each.seconds for each in options[Kind.ALONE])
        saved = alone - min(each.seconds for found in options.values() for each in found)
    found = Advice(tuple(hosts), goal, tried, (), tuple(nearest), saved, useless=useless)
    shown = _shown(best, goal, is_for_one=found.is_for_one)
    dropped = tuple(each for each in shown if _is_dominated(each, shown) and not each.is_run_today)
    kept = tuple(each for each in shown if each not in dropped)
    return msgspec.structs.replace(found, best=kept, dropped=dropped)


def _is_allowed(work: Work, option: Option, most: Most) -> bool:
    """Other hosts may be of a lower class, dearer or slower than those that were looked at before."""
    return max(most.needs(option)) <= 1.0 and (work.least is None or not machines.below(work.least, option))


def _without(useless: Sequence[Host]) -> Blocked:
    names = ", ".join(sorted({host.card.name for host in useless}))
    return Blocked(
        Kind.ALONE, "software", 0, 0.0, f"no CUDA, ROCm, MPS or XPU runs on {names}", "other cards"
    )


def _all(
    work: Work, hosts: Sequence[Host], assumed: Assumed, is_own: bool, kinds: Collection[Kind] = tuple(Kind)
) -> tuple[int, dict[Kind, list[Option]], dict[Kind, Blocked]]:
    """How many ways were tried; those that are possible, by kind; of each kind the nearest that is not."""
    options: dict[Kind, list[Option]] = {}
    binding: dict[Kind, Blocked] = {}
    tried = 0

    def rate(host: Host) -> float:
        return speed.rate(host, assumed.utilisation)

    for layout in LAYOUTS:
        if layout.kind not in kinds:
            continue
        able = [host for host in hosts if replicas.is_held(work, host)] if layout.is_whole else []
        alike = replicas.SIMILAR if layout.is_in_step else 0.0
        for crew in crews(able or hosts, rate, layout.least, alike=alike, is_own=is_own):
            tried += 1
            lay = partial(_lay, layout.layout, work, assumed)
            found = machines.fitting(work, crew, layout.least, lay, is_own=is_own)
            if isinstance(found, Option):
                options.setdefault(found.kind, []).append(found)
            elif found.kind not in binding or found.nearness > binding[found.kind].nearness:
                binding[found.kind] = found
    for layout in LAYOUTS:  # no crew of so many that are alike, or none at all
        if layout.kind in kinds and not {layout.kind} & (options.keys() | binding.keys()):
            binding[layout.kind] = _nobody(layout, hosts)
    return tried, options, binding


def _lay(layout: Layout, work: Work, assumed: Assumed, crew: Sequence[Host]) -> Found:
    return layout(work, crew, assumed)


def _are(count: int) -> str:
    return "is 1 host" if count == 1 else f"are {count} hosts"


def _nobody(layout: Tried, hosts: Sequence[Host]) -> Blocked:
    few = f"there {_are(len(hosts))}, and it takes {max(2, layout.least)}"
    alike = f"no {layout.least} hosts of enough owners are within a factor {replicas.SIMILAR:g} of speed"
    if len(hosts) < layout.least:
        return Blocked(layout.kind, "hosts", 0, len(hosts) / layout.least, few, f"{layout.least} hosts")
    return Blocked(layout.kind, "similarity", 0, 0.0, alike if layout.is_in_step else few, "more hosts alike")


def _held_by_owners(
    work: Work, hosts: Sequence[Host], assumed: Assumed, kinds: Collection[Kind]
) -> dict[Kind, Blocked]:
    """Of kinds that are not possible: those that would be if no owner were held to a third of a crew."""
    owners = Counter(host.owner for host in hosts)
    if not kinds or len(owners) == len(hosts):
        return {}
    _, options, _ = _all(work, hosts, assumed, True, kinds)
    (most, held), *_ = owners.most_common(1)
    return {
        kind: Blocked(
            kind,
            "owners",
            4,
            1.0 / held,
            f"{most} lends {held} of {len(hosts)} hosts, and of a crew of three and more nobody lends more than a"
            f" third; {len(min(found, key=lambda each: len(each.hosts)).hosts)} hosts here could do it",
            "hosts of more owners; or, where all of them are yours, --own",
        )
        for kind, found in options.items()
        if kind in kinds
    }


def _is_dominated(one: Option, others: Collection[Option]) -> bool:
    return any(
        one.seconds > DOMINATED * other.seconds and one.price > DOMINATED * other.price for other in others
    )


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

"""Searches the best ways to train a job on the offers, or names the binding constraint where there is none (P1).

Every layout is tried with the subsets that host_subsets names, not with every subset of the hosts; each is a
closed form or a timeline, and nothing is drawn. They are timed in the order of what they cannot go below
(lower_bounds), until none that is left could be the best. The places in the winning pipelines are then improved by
advice/placement. Of each kind the best is kept, so that three answers are three ways and not one with three
subsets; a way that is much worse than another in time and in price is dropped. What `farflung run` trains by today
is always among them.

Where a network saves less than it takes to stand, one host alone is the advice, and beside it only what runs today.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from farflung.advice.hardware.card import MakerSupport
from farflung.advice.job_work import JobWork
from farflung.advice.layouts import (
    checkpoint_policy,
    host_speed,
    host_subsets,
    lower_bounds,
    machine_admission,
    pipeline_layouts,
)
from farflung.advice.layouts.host_subsets import SIMILAR, HostSubset
from farflung.advice.layouts.layout_candidates import LAYOUTS, LayoutCandidate
from farflung.advice.layouts.replica_layouts import OfferAssumptions
from farflung.advice.layouts.training_options import Found, InfeasibleOption, LayoutKind, TrainingOption
from farflung.advice.layouts.user_limits import UserLimits, within
from farflung.advice.offers.offer_file import OfferedHost
from farflung.advice.placement.loop_loader import as_it_stands
from farflung.core.units import Seconds

SHOWN: Final = 3
TIMED: Final = (
    4096  # hosts of all subsets of a layout that are timed: offers may be such that no bound tells them apart
)
USUAL: Final = OfferAssumptions()
ANY: Final = UserLimits()


class AdviceGoal(StrEnum):
    """What is best."""

    TIME = "time"
    PRICE = "price"


DOMINATED: Final = 3.0  # times as long and as dear as another way: no reason to choose it


class Advice(msgspec.Struct, frozen=True):
    """`best`: of each kind that is possible the best, the best first, SHOWN at most; `binding`: of each kind that is
    not, what comes nearest to it. `saved`: seconds that the fastest way saves of the fastest single host's; None where
    no host can do it alone. `dropped`: ways that are DOMINATED times as long and as dear as one that is shown.
    """

    hosts: tuple[OfferedHost, ...]
    goal: AdviceGoal
    tried: int
    best: tuple[TrainingOption, ...]
    binding: tuple[InfeasibleOption, ...]
    saved: float | None = None
    dropped: tuple[TrainingOption, ...] = ()
    useless: tuple[OfferedHost, ...] = ()  # whose cards no library of their makers runs on: nobody trains on them

    @property
    def is_for_one(self) -> bool:
        """Whether a network saves less than the minute that it takes to stand."""
        return self.saved is not None and self.saved < checkpoint_policy.RESTART

    @property
    def today(self) -> TrainingOption | None:
        """The best that `farflung run` does today."""
        return next((option for option in self.best if option.is_run_today), None)


def search(
    work: JobWork,
    hosts: Sequence[OfferedHost],
    goal: AdviceGoal = AdviceGoal.TIME,
    assumed: OfferAssumptions = USUAL,
    *,
    is_own: bool = False,
    user_limits: UserLimits = ANY,
) -> Advice:
    """Pure: the same job and offers give the same advice, whatever the order of the offers.

    `is_own`: they are all the planner's own, so that no owner is held to a third of a subset. `user_limits`: what
    a way may cost and take.
    """
    useless = tuple(host for host in hosts if host.card.support is MakerSupport.NO)
    hosts = tuple(host for host in hosts if host.card.support is not MakerSupport.NO)
    if not hosts:
        return Advice((), goal, 0, (), (_without(useless),), useless=useless)
    ordered = sorted(hosts, key=lambda host: host.name)
    with as_it_stands():  # what is placed here is little beside what compiling costs
        found = _all(_SearchTask(work, ordered, assumed, goal, user_limits, is_own))
        options = {kind: each.options for kind, each in found.items() if each.options}
        binding = {kind: each.nearest for kind, each in found.items() if each.nearest is not None}
        if not is_own:
            binding |= _held_by_owners(_SearchTask(work, ordered, assumed, goal, user_limits, True), binding.keys())
    options, beyond = within(options, user_limits)
    binding |= beyond
    best = {kind: min(found, key=lambda each: _order(each, goal)) for kind, found in options.items()}
    with as_it_stands():
        for kind in {LayoutKind.PIPELINE, LayoutKind.PIPELINES} & best.keys():
            best[kind] = pipeline_layouts.improved(
                work, best[kind], assumed, ordered, by_money=goal is AdviceGoal.PRICE, is_own=is_own,
                is_allowed=lambda option: _is_allowed(work, option, user_limits),
            )  # fmt: skip
    nearest = sorted(
        (each for each in binding.values() if each.kind not in best), key=lambda each: each.nearness, reverse=True
    )
    saved = None
    if LayoutKind.ALONE in options:
        alone = min(each.seconds for each in options[LayoutKind.ALONE])
        saved = alone - min(each.seconds for found in options.values() for each in found)
    tried = sum(each.count for each in found.values())
    made = Advice(tuple(hosts), goal, tried, (), tuple(nearest), saved, useless=useless)
    shown = _shown(best, goal, is_for_one=made.is_for_one)
    dropped = tuple(each for each in shown if _is_dominated(each, shown) and not each.is_run_today)
    kept = tuple(each for each in shown if each not in dropped)
    return msgspec.structs.replace(made, best=kept, dropped=dropped)


def _is_allowed(work: JobWork, option: TrainingOption, user_limits: UserLimits) -> bool:
    """Other hosts may be of a lower class, more expensive or slower than those that were looked at before."""
    return max(user_limits.needs(option)) <= 1.0 and (
        work.least is None or not machine_admission.below(work.least, option)
    )


def _without(useless: Sequence[OfferedHost]) -> InfeasibleOption:
    names = ", ".join(sorted({host.card.name for host in useless}))
    return InfeasibleOption(
        LayoutKind.ALONE, "software", 0, 0.0, f"no CUDA, ROCm, MPS or XPU runs on {names}", "other cards"
    )


class _SearchTask(msgspec.Struct, frozen=True):
    """What is searched."""

    work: JobWork
    hosts: Sequence[OfferedHost]
    assumed: OfferAssumptions
    goal: AdviceGoal
    most: UserLimits
    is_own: bool

    def rank(self, option: TrainingOption) -> tuple[float, float]:
        """How much of what is allowed it takes, 1 where it keeps to that; then what counts. The less, the better."""
        return max(1.0, *self.most.needs(option)), float(_value(option, self.goal))


class _LayoutBound(msgspec.Struct, frozen=True):
    """A subset that holds a layout, cut into so many pipelines, and the seconds and pico-credits that it does not go
    below.
    """

    seconds: Seconds
    price: float
    subset: HostSubset
    ways: int

    def rank(self, task: _SearchTask) -> tuple[float, float]:
        """No way of this subset has a smaller one."""
        value = self.seconds if task.goal is AdviceGoal.TIME else self.price
        return max(1.0, *task.most.least(self.price, self.seconds)), float(value)


class _LayoutTrial(msgspec.Struct):
    """Of one layout: how many ways were calculated; those that are possible, or the nearest that is not."""

    count: int = 0
    options: list[TrainingOption] = []
    best: TrainingOption | None = None
    fastest: float = math.inf
    nearest: InfeasibleOption | None = None


def _all(task: _SearchTask, kinds: Collection[LayoutKind] = tuple(LayoutKind)) -> dict[LayoutKind, _LayoutTrial]:
    """Of each layout what was found. Where one host does it alone, it is asked what a network saves of its time."""
    found: dict[LayoutKind, _LayoutTrial] = {}
    for layout in LAYOUTS:
        if layout.kind in kinds:
            alone = found.get(LayoutKind.ALONE)
            found[layout.kind] = _tried(task, layout, is_timed=alone is None or bool(alone.options))
    return found


def _tried(task: _SearchTask, layout: LayoutCandidate, *, is_timed: bool) -> _LayoutTrial:
    """A layout with its subsets, those first that promise most; where none will do, with those that have most memory.

    `is_timed`: the fastest is asked for, whatever the goal.
    """
    rates = {host.name: host_speed.rate(host, task.assumed.utilisation) for host in task.hosts}
    asked = layout.asked(task.work, is_own=task.is_own)
    found = _LayoutTrial()

    def rate(host: OfferedHost) -> float:
        return rates[host.name]

    def time(tried: Iterable[HostSubset]) -> None:
        ways = ((subset, count) for subset in tried for count in layout.ways(task.work, subset))
        able = [_able(task.work, layout, subset, rate, count) for subset, count in ways]
        timed = 0
        for each in sorted(able, key=lambda each: each.rank(task)):
            if timed < TIMED and each.seconds < lower_bounds.NEVER and _could(task, found, each, is_timed=is_timed):
                timed += len(each.subset)
                _reckon(task, layout, found, each.subset, each.ways)

    time(host_subsets.subsets(task.hosts, rate, asked))
    before = None
    while found.best is not before and found.best is not None:
        before = found.best
        time(host_subsets.beside(task.hosts, before.hosts, rate, asked))
    if found.best is None:
        for subset in host_subsets.roomiest(task.hosts, rate, asked):
            _reckon(task, layout, found, subset, 0)
    if found.best is None and found.nearest is None:  # no subset of so many that are alike, or none at all
        found.nearest = _nobody(layout, task.hosts)
    return found


def _able(
    work: JobWork, layout: LayoutCandidate, hosts: HostSubset, rate: lower_bounds.Speed, ways: int
) -> _LayoutBound:
    seconds = layout.bound(work, hosts, rate, ways)
    return _LayoutBound(seconds, lower_bounds.price(seconds, hosts), hosts, ways)


def _could(task: _SearchTask, found: _LayoutTrial, able: _LayoutBound, *, is_timed: bool) -> bool:
    """Whether it could be the best, or, where that is asked for, the fastest."""
    if found.best is None or (is_timed and able.seconds < found.fastest):
        return True
    return able.rank(task) < task.rank(found.best)


def _reckon(task: _SearchTask, layout: LayoutCandidate, found: _LayoutTrial, subset: HostSubset, ways: int) -> None:
    """A way of a subset, without machines below the class that the job asks for."""
    found.count += 1

    def lay(hosts: Sequence[OfferedHost]) -> Found:
        return layout.lay(task.work, hosts, task.assumed, ways if len(hosts) == len(subset) else 0)

    one = machine_admission.fitting(task.work, subset, layout.least, lay, is_own=task.is_own)
    if isinstance(one, InfeasibleOption):
        if found.best is None and (found.nearest is None or one.nearness > found.nearest.nearness):
            found.nearest = one
        return
    found.options.append(one)
    found.nearest, found.fastest = None, min(found.fastest, one.seconds)
    if found.best is None or task.rank(one) < task.rank(found.best):
        found.best = one


def _are(count: int) -> str:
    return "is 1 host" if count == 1 else f"are {count} hosts"


def _nobody(layout: LayoutCandidate, hosts: Sequence[OfferedHost]) -> InfeasibleOption:
    few = f"there {_are(len(hosts))}, and it takes {max(2, layout.least)}"
    alike = f"no {layout.least} hosts of enough owners are within a factor {SIMILAR:g} of speed"
    if len(hosts) < layout.least:
        return InfeasibleOption(layout.kind, "hosts", 0, len(hosts) / layout.least, few, f"{layout.least} hosts")
    return InfeasibleOption(layout.kind, "similarity", 0, 0.0, alike if layout.is_alike else few, "more hosts alike")


def _held_by_owners(task: _SearchTask, kinds: Collection[LayoutKind]) -> dict[LayoutKind, InfeasibleOption]:
    """Of kinds that are not possible: those that would be if no owner were held to a third of a subset."""
    hosts, owners = task.hosts, Counter(host.owner for host in task.hosts)
    if not kinds or len(owners) == len(hosts):
        return {}
    options = {kind: each.options for kind, each in _all(task, kinds).items() if each.options}
    (most, held), *_ = owners.most_common(1)
    return {
        kind: InfeasibleOption(
            kind,
            "owners",
            4,
            1.0 / held,
            f"{most} lends {held} of {len(hosts)} hosts, and of a crew of three and more nobody lends more than a"
            f" third; {len(min(found, key=lambda each: len(each.hosts)).hosts)} hosts here could do it",
            "hosts of more owners; or, where all of them are yours, --own",
        )
        for kind, found in options.items()
    }


def _is_dominated(one: TrainingOption, others: Collection[TrainingOption]) -> bool:
    return any(one.seconds > DOMINATED * other.seconds and one.price > DOMINATED * other.price for other in others)


def _shown(best: dict[LayoutKind, TrainingOption], goal: AdviceGoal, *, is_for_one: bool) -> tuple[TrainingOption, ...]:
    """The best few, one host alone first where it is enough, and always what can be run today."""
    if is_for_one:
        return tuple(best[kind] for kind in (LayoutKind.ALONE, LayoutKind.ROUNDS) if kind in best)
    ordered = sorted(best.values(), key=lambda each: _order(each, goal))
    shown = ordered[:SHOWN]
    today = [option for option in ordered if option.is_run_today]
    if today and today[0] not in shown:
        shown[-1] = today[0]
    return tuple(shown)


def _order(option: TrainingOption, goal: AdviceGoal) -> tuple[float, float, tuple[str, ...]]:
    other = AdviceGoal.PRICE if goal is AdviceGoal.TIME else AdviceGoal.TIME
    return (_value(option, goal), _value(option, other), tuple(host.name for host in option.hosts))


def _value(option: TrainingOption, goal: AdviceGoal) -> float:
    """What counts."""
    return float(option.seconds if goal is AdviceGoal.TIME else option.price)

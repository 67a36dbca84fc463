"""The layouts that are looked at: which crews each is tried with, and what none of them goes below (P1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from farflung.plan.advice import bounds, pipelines, replicas
from farflung.plan.advice.crews import Asked
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import Found, Kind, memory_of
from farflung.plan.advice.replicas import Assumed
from farflung.plan.advice.room import replica, room
from farflung.plan.advice.work import Work
from farflung.plan.footprint.states import Recipe, Split

Holds = Callable[[Host, int], bool]
Lay = Callable[[Work, Sequence[Host], Assumed, int], Found]


class Layout(msgspec.Struct, frozen=True):
    """`lay` with so many pipelines, 0: the best number; `bound`: seconds of the whole job that this does not go below;
    `most`: hosts of a crew, 0: any number.
    """

    kind: Kind
    lay: Lay
    bound: bounds.Bound
    least: int = 2
    most: int = 0
    is_alike: bool = False

    def asked(self, work: Work, *, is_own: bool) -> Asked:
        """What a crew must be, for this job."""
        return Asked(self.least, self.most, self.is_alike, is_own, _holds(self.kind, work))

    def ways(self, work: Work, crew: Sequence[Host]) -> tuple[int, ...]:
        """Numbers of pipelines that are tried with a crew; what is none counts as one."""
        return pipelines.ways_of(work, crew) if self.kind is Kind.PIPELINES else (1,)


def _whole(lay: Callable[[Work, Sequence[Host], Assumed], Found]) -> Lay:
    """A layout that is not cut into several."""
    return lambda work, crew, assumed, _ways: lay(work, crew, assumed)


LAYOUTS: Final = (
    Layout(Kind.ALONE, _whole(replicas.rounds), bounds.rounds, 1, 1),
    Layout(Kind.ROUNDS, _whole(replicas.rounds), bounds.rounds),
    Layout(Kind.DATA, _whole(replicas.data), bounds.data, is_alike=True),
    Layout(Kind.SHARDED, _whole(replicas.sharded), bounds.sharded, is_alike=True),
    Layout(Kind.PIPELINE, _whole(pipelines.pipeline), bounds.pipeline),
    Layout(Kind.PIPELINES, pipelines.pipelines, bounds.pipeline, 4),
)


def _holds(kind: Kind, work: Work) -> Holds:
    """Whether a host has room in a crew of so many; a sharded one's hosts are taken to have as many cards as it has.

    Of one sequence a micro-batch: what does not hold that holds no more. Hosts of one make are asked for once.
    """
    known: dict[tuple[object, ...], bool] = {}

    def holds(host: Host, size: int) -> bool:
        recipe, split, size = _split(kind, work, host, size)
        key = (memory_of(host), host.cards, host.card.name, host.memory_bytes, host.disk_bytes, size)
        if key not in known:
            known[key] = room(work, recipe, host, split, 1).fits
        return known[key]

    return (lambda host, size: True) if kind in (Kind.PIPELINE, Kind.PIPELINES) else holds


def _split(kind: Kind, work: Work, host: Host, size: int) -> tuple[Recipe, Split, int]:
    """How a host holds its part; of whole replicas in a crew of any size alike."""
    if kind is Kind.SHARDED:
        return work.recipe, Split(3, size * host.cards), size
    recipe = work.with_outer(replicas.LIGHTEST) if kind is Kind.ROUNDS else work.recipe
    return recipe, replica(host), 0

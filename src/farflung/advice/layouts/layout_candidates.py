"""Lists the candidate layouts, the subsets of hosts each is tried with, and a lower bound on its time (P1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from farflung.advice.job_work import JobWork
from farflung.advice.layouts import lower_bounds, pipeline_layouts, replica_layouts
from farflung.advice.layouts.host_subsets import HostSubsetLimits
from farflung.advice.layouts.memory_fit import replica, room
from farflung.advice.layouts.replica_layouts import OfferAssumptions
from farflung.advice.layouts.training_options import Found, LayoutKind, memory_of
from farflung.advice.memory.model_states import StateRecipe, ZeroSplit
from farflung.advice.offers.offer_file import OfferedHost

Holds = Callable[[OfferedHost, int], bool]
Lay = Callable[[JobWork, Sequence[OfferedHost], OfferAssumptions, int], Found]


class LayoutCandidate(msgspec.Struct, frozen=True):
    """`lay` with so many pipelines, 0: the best number; `bound`: seconds of the whole job that this does not go below;
    `most`: hosts of a subset, 0: any number.
    """

    kind: LayoutKind
    lay: Lay
    bound: lower_bounds.Bound
    least: int = 2
    most: int = 0
    is_alike: bool = False

    def asked(self, work: JobWork, *, is_own: bool) -> HostSubsetLimits:
        """What a subset must be, for this job."""
        return HostSubsetLimits(self.least, self.most, self.is_alike, is_own, _holds(self.kind, work))

    def ways(self, work: JobWork, hosts: Sequence[OfferedHost]) -> tuple[int, ...]:
        """Numbers of pipelines that are tried with a subset; what is none counts as one."""
        return pipeline_layouts.ways_of(work, hosts) if self.kind is LayoutKind.PIPELINES else (1,)


def _whole(lay: Callable[[JobWork, Sequence[OfferedHost], OfferAssumptions], Found]) -> Lay:
    """A layout that is not cut into several."""
    return lambda work, subset, assumed, _ways: lay(work, subset, assumed)


LAYOUTS: Final = (
    LayoutCandidate(LayoutKind.ALONE, _whole(replica_layouts.rounds), lower_bounds.rounds, 1, 1),
    LayoutCandidate(LayoutKind.ROUNDS, _whole(replica_layouts.rounds), lower_bounds.rounds),
    LayoutCandidate(LayoutKind.DATA, _whole(replica_layouts.data), lower_bounds.data, is_alike=True),
    LayoutCandidate(LayoutKind.SHARDED, _whole(replica_layouts.sharded), lower_bounds.sharded, is_alike=True),
    LayoutCandidate(LayoutKind.PIPELINE, _whole(pipeline_layouts.pipeline), lower_bounds.pipeline),
    LayoutCandidate(LayoutKind.PIPELINES, pipeline_layouts.pipelines, lower_bounds.pipeline, 4),
)


def _holds(kind: LayoutKind, work: JobWork) -> Holds:
    """Whether a host has room in a subset of so many; a sharded one's hosts are taken to have as many cards as it has.

    Of one sequence a micro-batch: what does not hold that holds no more. Hosts of one make are asked for once.
    """
    known: dict[tuple[object, ...], bool] = {}

    def holds(host: OfferedHost, size: int) -> bool:
        recipe, split, size = _split(kind, work, host, size)
        key = (memory_of(host), host.cards, host.card.name, host.memory_bytes, host.disk_bytes, size)
        if key not in known:
            known[key] = room(work, recipe, host, split, 1).fits
        return known[key]

    return (lambda host, size: True) if kind in (LayoutKind.PIPELINE, LayoutKind.PIPELINES) else holds


def _split(kind: LayoutKind, work: JobWork, host: OfferedHost, size: int) -> tuple[StateRecipe, ZeroSplit, int]:
    """How a host holds its part; of whole replicas in a subset of any size alike."""
    if kind is LayoutKind.SHARDED:
        return work.recipe, ZeroSplit(3, size * host.cards), size
    recipe = work.with_outer(replica_layouts.LIGHTEST) if kind is LayoutKind.ROUNDS else work.recipe
    return recipe, replica(host), 0

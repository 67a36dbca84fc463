"""Builds the Merkle tree over how a contribution was made. A peer commits to it before the audit draw is known.

A round's steps are cut into segments (JobSpec.borders). At each border the peer's whole private state has a root:
local weights, optimizer, residual. The leaves are, in this order,

    border 0 | border 1 | ... | border K | statistics | payload hash

What is at border k of round r:

    params      local weights after the segments before k; at border 0 those of P_r
    optimizer   the optimizer's vectors at that place, and `steps`, which it has counted over all rounds
    residual    what the codec had not sent: before the round at borders 0 to K - 1, after its encoding at border K

So border 0 of round r + 1 has the optimizer, steps and residual of border K of round r, and the weights of P_{r+1},
which everybody knows: committed states chain through the whole run. A peer that just came starts at ZERO_HASH, 0
steps, ZERO_HASH. A round in which a peer made nothing leaves its chain where it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from farflung.core import limits, merkle
from farflung.core.codec import Wire, encode
from farflung.core.commitments import BorderRoots, leaf_count
from farflung.core.ids import Hash
from farflung.ledger.canaries import source_of

PARAMS: Final = "params"
STATED_BITS: Final = 20  # of the fraction


class TrainingStatistics(Wire, frozen=True):
    """What a peer states of its round: loss of each step, largest gradient norm, tokens. Nothing that is measured."""

    losses: tuple[float, ...]
    grad_norm: float
    tokens: int

    @property
    def stated(self) -> LoggedStatistics:
        """What of it is in the log, whatever the numbers are."""
        each = [units(loss) for loss in self.losses]
        return LoggedStatistics(sum(each) // max(1, len(each)), units(self.grad_norm))


class LoggedStatistics(Wire, frozen=True):
    """A peer's statistics in the log: mean loss of its steps and largest gradient norm, in units of 2^-20."""

    loss: int = 0
    norm: int = 0


def units(value: float) -> int:
    """In units of 2^-20, half to even; what is no number, or beyond the limit, is the limit."""
    scaled = value * (1 << STATED_BITS)
    return round(scaled) if math.isfinite(scaled) and abs(scaled) < limits.STATED else limits.STATED


class ContributionTrace(Wire, frozen=True):
    """All that stands under a contribution's trace root."""

    borders: tuple[BorderRoots, ...]
    statistics: TrainingStatistics
    payload: Hash

    @property
    def leaves(self) -> tuple[bytes, ...]:
        """The tree's leaves, encoded."""
        return (*(encode(b) for b in self.borders), encode(self.statistics), bytes(self.payload))

    @property
    def root(self) -> Hash:
        """What is committed."""
        return merkle.root(self.leaves)

    @property
    def statistics_path(self) -> tuple[Hash, ...]:
        """From the statistics to the root: what a peer says of its round is held against what it committed to."""
        return merkle.prove(self.leaves, statistics_index(len(self.borders) - 1))

    def planted(self, segment: int) -> ContributionTrace:
        """With one false leaf: `segment` ends with the weights of another border of the round (ledger.canaries)."""
        end, source = segment + 1, source_of(segment, len(self.borders) - 1)
        false = replace(self.borders[end], params=self.borders[source].params)
        return replace(self, borders=(*self.borders[:end], false, *self.borders[end + 1 :]))

    def opened(self, *indices: int) -> tuple[TraceLeaf, ...]:
        """These leaves with their paths."""
        return tuple(TraceLeaf(i, self.leaves[i], merkle.prove(self.leaves, i)) for i in indices)


class TraceLeaf(Wire, frozen=True):
    """One leaf of a trace, and the way from it to the root."""

    index: int
    data: bytes
    path: tuple[Hash, ...]


def statistics_index(segments: int) -> int:
    """Where the statistics stand among the leaves."""
    return segments + 1


def are_opened(root: Hash, segments: int, leaves: Sequence[TraceLeaf]) -> bool:
    """Whether all these leaves stand under `root` of a trace of so many segments."""
    count = leaf_count(segments)
    return all(merkle.holds(root, count, leaf.index, leaf.data, leaf.path) for leaf in leaves)

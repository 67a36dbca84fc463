"""Checks that what a peer opens is what it had committed to: pure checks of leaves under a trace root.

Every function returns what is wrong as words, or the empty text. A fault in an opening is the peer's own doing: it
signed the root, and nobody else can make leaves or paths under it.

A peer opens a drawn segment in two steps: border j first, so that it can be trained again; borders j + 1 and K,
statistics and payload only after a verifier has committed to its own result (verify.blind_commitment).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.commitments import BorderRoots, leaf_count
from farflung.core.errors import ProtocolError
from farflung.core.ids import ID_BYTES, ZERO_HASH, Hash
from farflung.job.spec import JobSpec
from farflung.train.contribution_trace import TraceLeaf, TrainingStatistics, are_opened, statistics_index
from farflung.train.run_log import Contribution

LOSSES: Final = 1e-3  # how far, relative to a verifier's loss, a stated loss may lie


class OpenedSegment(msgspec.Struct, frozen=True):
    """Which segment of which contribution is opened. `params`: root of the weights of the round's public state."""

    spec: JobSpec
    round: int
    segment: int
    contribution: Contribution
    params: Hash

    @property
    def segments(self) -> int:
        """Segments of a round."""
        return self.spec.segments

    @property
    def steps(self) -> int:
        """Steps of the peer's round: its committed weight tells them."""
        return self.spec.steps_of(self.contribution.weight)

    @property
    def borders(self) -> tuple[int, ...]:
        """Steps after which the segments of the peer's round end, 0 first."""
        return self.spec.borders_of(self.steps)


class ClaimedEnds(NamedTuple):
    """What a peer claims: the border after the segment, the one after the round, and its statistics."""

    end: BorderRoots
    last: BorderRoots
    statistics: TrainingStatistics


def read_border(leaf: TraceLeaf) -> BorderRoots:
    """The border that a leaf holds. Raises ProtocolError FF-CORE-020 to -023."""
    return decode(leaf.data, BorderRoots, limits.LOG_RECORD_BYTES)


def start_fault(place: OpenedSegment, leaf: TraceLeaf) -> str:
    """Whether border `segment` is under the root, and is a state that a round may start or go on from."""
    if not place.spec.is_weight(place.contribution.weight):
        return "its weight is no whole number of steps that a round may have"
    if leaf.index != place.segment or not are_opened(place.contribution.trace, place.segments, [leaf]):
        return "the state before the segment is not the committed one"
    try:
        border = read_border(leaf)
    except ProtocolError as error:
        return f"the border before the segment cannot be read: {error.message}"
    return _border_fault(place, border, place.segment)


def _border_fault(place: OpenedSegment, border: BorderRoots, index: int) -> str:
    done = place.borders[index]
    if (border.round, border.index) != (place.round, index):
        return f"a border says that it is border {border.index} of round {border.round}"
    ids = (border.params, border.optimizer, border.residual)
    if any(len(value) != ID_BYTES for value in ids):
        return "a border holds roots that are none"
    if not done <= border.steps <= done + place.round * place.spec.sync.steps:
        return f"{border.steps} steps cannot have been done by step {done} of round {place.round}"
    if index == 0 and border.params != place.params:
        return "the round does not start from its public state"
    if (border.optimizer == ZERO_HASH) != (border.steps == 0):
        return "an optimizer counts steps and has no state, or has state and counts none"
    if index == 0 and border.steps == 0 and border.residual != ZERO_HASH:
        return "a fresh peer holds a residual"
    return "a border holds no weights" if border.params == ZERO_HASH else ""


def needed(segment: int, segments: int) -> tuple[int, ...]:
    """Which leaves are shown of a segment after a verifier has committed, in this order; a round has `segments`."""
    return tuple(sorted({segment + 1, segments, statistics_index(segments), leaf_count(segments) - 1}))


def read_ends(place: OpenedSegment, start: BorderRoots, leaves: Sequence[TraceLeaf]) -> ClaimedEnds | str:
    """What the peer claims, when it stands under the root and fits to `start`; else what is wrong."""
    if tuple(leaf.index for leaf in leaves) != needed(place.segment, place.segments):
        return "other leaves are shown than were asked for"
    if not are_opened(place.contribution.trace, place.segments, leaves):
        return "what is shown is not what was committed"
    by_index = {leaf.index: leaf for leaf in leaves}
    try:
        end = read_border(by_index[place.segment + 1])
        last = read_border(by_index[place.segments])
        raw = by_index[statistics_index(place.segments)].data
        statistics = decode(raw, TrainingStatistics, limits.LOG_RECORD_BYTES)
    except ProtocolError as error:
        return f"what is shown cannot be read: {error.message}"
    fault = (
        _border_fault(place, end, place.segment + 1)
        or _border_fault(place, last, place.segments)
        or _progress_fault(place, start, end, place.segment + 1)
        or _progress_fault(place, start, last, place.segments)
        or _statement_fault(place, statistics)
    )
    if not fault and by_index[leaf_count(place.segments) - 1].data != place.contribution.payload:
        fault = "the payload under the root is not the accepted one"
    return fault or ClaimedEnds(end, last, statistics)


def _progress_fault(place: OpenedSegment, start: BorderRoots, later: BorderRoots, index: int) -> str:
    """Inside a round the optimizer counts every step, and the residual rests until the encoding at border K."""
    borders = place.borders
    if later.steps - start.steps != borders[index] - borders[place.segment]:
        return f"{later.steps - start.steps} steps are counted from border {place.segment} to {index}"
    is_resting = index == place.segments or later.residual == start.residual
    return "" if is_resting else "the residual changes inside the round"


def _statement_fault(place: OpenedSegment, statistics: TrainingStatistics) -> str:
    if len(statistics.losses) != place.steps:
        return f"{len(statistics.losses)} losses are stated for {place.steps} steps"
    if statistics.tokens != place.contribution.weight:
        return f"{statistics.tokens} tokens are stated, {place.contribution.weight} were accepted"
    return ""


def are_losses(place: OpenedSegment, statistics: TrainingStatistics, mine: Sequence[float]) -> bool:
    """Whether the stated losses of the segment are those that its re-run gives (relative distance 10^-3)."""
    begin, end = place.borders[place.segment : place.segment + 2]
    stated = statistics.losses[begin:end]
    return len(stated) == len(mine) and all(
        math.isclose(theirs, own, rel_tol=0.0, abs_tol=LOSSES * max(abs(own), 1e-6))
        for theirs, own in zip(stated, mine, strict=True)
    )


def chain_fault(before: BorderRoots | None, start: BorderRoots) -> str:
    """Border 0 of a round after `before`, border K of the peer's round before it, or fresh.

    None, or a round that is not the one before, proves nothing: the peer was away, and came back with what it had kept.
    """
    is_linked = before is not None and before.round + 1 == start.round
    if before is None or not is_linked or start.index or start.optimizer == ZERO_HASH:
        return ""
    carried = (start.optimizer, start.steps, start.residual)
    goes_on = carried == (before.optimizer, before.steps, before.residual)
    return "" if goes_on else "the round does not go on from the state that the round before ended in"

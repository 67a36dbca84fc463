"""Checks submissions: what a payload must be to be merged at all, and what makes one suspicious.

In the order of their cost, all before anything is merged, in a process of their own (verify.io.checker):

    envelope     round, peer, weight, sizes, what is stated of the training            fault
    header       the frame and its tags, before the body is looked at (compress)       fault
    body         canonical, in order, finite, bounded: the codec's own rules           fault
    zero         an update that changes nothing                                        flag
    norm         of the update, or of one large tensor, beyond [1/5, 5] of the median  flag
    duplicate    cosine > 0.99 with another's update, or the same elements chosen      flag
    statistics   a stated loss or gradient norm far from the others' (verify.statistics_check)  flag

A fault is exact: the payload is refused. A flag is a suspicion: the contribution is merged and surely audited.
Flags are integers' work on accepted payloads and logged figures alone, so a second reader finds the same ones on any
machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from farflung.compress.merge import WeightedUpdate
from farflung.compress.norm_clip import BLOCK, sum_of_squares
from farflung.compress.payload import ContributionKey
from farflung.compress.tensor_range import bringing, is_held, lower_median, peak, times
from farflung.core import limits
from farflung.core.canon.float_operations import to_fixed
from farflung.core.codec import Wire
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.spec import JobSpec
from farflung.train.blobs import Blob
from farflung.train.contribution_trace import LoggedStatistics
from farflung.train.run_log import Contribution, payload_hash
from farflung.train.sync_arithmetic import Sync
from farflung.verify.duplicate_updates import duplicates
from farflung.verify.statistics_check import odd_peers

ZERO: Final = "zero"
NORM: Final = "norm"
DUPLICATE: Final = "duplicate"
STATISTICS: Final = "statistics"

NORM_RATIO: Final = 5
NORM_PEERS: Final = 3  # fewer have no median worth the name
ROOM: Final = 8  # bits above the median's largest value, for those that are louder
NORM_ELEMENTS: Final = 1024  # of a smaller tensor, top-k may by chance send nothing at all


class CheckerSetup(Wire, frozen=True, tag="setup"):
    """What of a job's terms a payload is held against. `weight`: the most that a contribution may weigh.

    What it was assigned in its round is the coordinator's to know (RoundStartRecord), and checked where the log is
    written.
    """

    spec: JobSpec
    layout: TensorLayout
    weight: int


class TrainingStatement(Wire, frozen=True):
    """What a peer said of its training when it committed; it stands under its trace (`TrainingStatistics`)."""

    losses: tuple[float, ...]
    tokens: int


class PayloadCheckRequest(Wire, frozen=True, tag="check"):
    """One revealed payload. `root`: of the public state before `round`. `statement`: None when nobody has heard it."""

    round: int
    root: Hash
    contribution: Contribution
    statement: TrainingStatement | None
    payload: Blob


class RoundFlagsRequest(Wire, frozen=True, tag="conclude"):
    """All payloads of `round` were checked: which of these contributions are suspicious? Forgets the round."""

    round: int
    peers: tuple[PeerId, ...]


Request = CheckerSetup | PayloadCheckRequest | RoundFlagsRequest


class PayloadCheckReply(Wire, frozen=True, tag="checked"):
    """A payload's fault (code and words), or none and the L2 norm of each tensor in units of 2^-24."""

    code: str
    words: str
    norms: tuple[int, ...]


class RoundFlagsReply(Wire, frozen=True, tag="flags"):
    """Suspicions, ascending by peer; also the reply to CheckerSetup (none)."""

    flags: tuple[tuple[PeerId, str], ...]


Reply = PayloadCheckReply | RoundFlagsReply


def decoded(sync: Sync, layout: TensorLayout, check: PayloadCheckRequest, weight: int) -> Float32:
    """The update of a payload that may be merged, shape (layout.size,).

    Raises ProtocolError: FF-VERI-060 to -063 (envelope and statement), FF-COMP-001 to -019 (the payload itself).
    """
    _envelope(sync, check, weight)
    about = ContributionKey(check.round, check.round % sync.phases, check.root, check.contribution.peer)
    return sync.spread(check.round, layout, sync.decode(about, layout, check.payload))


def _envelope(sync: Sync, check: PayloadCheckRequest, weight: int) -> None:
    c, said = check.contribution, check.statement
    if not 0 <= check.round < limits.ROUNDS:
        raise _fault("FF-VERI-060", "it is of no round", f"round {check.round}")
    spec = sync.spec
    tokens = c.weight if said is None else said.tokens
    if not (spec.is_weight(c.weight) and c.weight <= weight) or tokens != c.weight:
        raise _fault(
            "FF-VERI-061", "it weighs what it cannot", f"weight {c.weight}, {tokens} tokens stated; at most {weight}"
        )
    if payload_hash(check.payload) != c.payload:
        raise _fault("FF-VERI-062", "it is not the committed payload", f"{len(check.payload)} bytes")
    steps = spec.steps_of(c.weight)
    if said is not None and not (len(said.losses) == steps and all(map(math.isfinite, said.losses))):
        raise _fault(
            "FF-VERI-063",
            "its statistics are impossible",
            f"{len(said.losses)} losses for {steps} steps, or one that is no number",
        )


def _fault(code: str, what: str, cause: str) -> ProtocolError:
    return ProtocolError(code, f"a submission is refused: {what}", cause=cause, hint="a peer's fault; others go on")


def flags(
    layout: TensorLayout,
    parts: Sequence[WeightedUpdate],
    *,
    is_chosen: bool = True,
    stated: Mapping[PeerId, LoggedStatistics] = MappingProxyType({}),
) -> dict[PeerId, str]:
    """Suspicious contributions among the accepted ones of a round, in any order; one reason each.

    `is_chosen`: what is not zero was chosen by its maker (top-k), and does not follow from the layout alone (low rank).
    `stated`: what their makers state of them.
    """
    ordered = sorted(parts, key=lambda part: bytes(part.peer))
    values = [part.values for part in ordered]
    exponent = _exponent([peak(each) for each in values])
    squares = [tensor_squares(layout, each, exponent) for each in values]
    found: dict[PeerId, str] = {}
    for reason, places in (
        (ZERO, [i for i, square in enumerate(squares) if not sum(square)]),
        (DUPLICATE, duplicates(values, [sum(s) for s in squares], is_chosen=is_chosen, exponent=exponent)),
        (NORM, _odd_norms(layout, squares)),
    ):
        for place in places:
            found.setdefault(ordered[place].peer, reason)
    for peer in odd_peers(stated):
        found.setdefault(peer, STATISTICS)
    return dict(sorted(found.items()))


def _exponent(peaks: Sequence[float]) -> int:
    """e so that 2^e brings updates, whose largest values these are, to where fixed point tells their norms apart."""
    if is_held(peaks):
        return 0
    return bringing(lower_median(sorted(each for each in peaks if each))) - ROOM


def tensor_squares(layout: TensorLayout, values: Float32, exponent: int = 0) -> tuple[int, ...]:
    """Exact sums of squares in fixed point, tensor by tensor, of the values times 2^exponent."""
    return tuple(_square(values[place], exponent) for _, place in layout.slices())


def _square(values: Float32, exponent: int) -> int:
    blocks = (values[start : start + BLOCK] for start in range(0, values.size, BLOCK))
    return sum(sum_of_squares(to_fixed(times(block, exponent))) for block in blocks)


def norms(squares: Sequence[int]) -> tuple[int, ...]:
    """L2 norms, rounded down."""
    return tuple(math.isqrt(square) for square in squares)


def _odd_norms(layout: TensorLayout, squares: Sequence[tuple[int, ...]]) -> list[int]:
    if len(squares) < NORM_PEERS:
        return []
    columns = [[sum(square) for square in squares]]
    for place, tensor in enumerate(layout.tensors):
        if tensor.size >= NORM_ELEMENTS:
            columns.append([square[place] for square in squares])
    odd_peers: set[int] = set()
    for column in columns:
        median = sorted(column)[(len(column) - 1) // 2]
        far = NORM_RATIO**2
        odd_peers |= {i for i, square in enumerate(column) if square > far * median or square * far < median}
    return sorted(odd_peers)

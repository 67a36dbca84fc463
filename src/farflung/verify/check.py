"""Submission checks: what a payload must be to be merged at all, and what makes one worth a second look.

In the order of their cost, all before anything is merged, in a process of their own (verify.io.checker):

    envelope     round, peer, weight, sizes, what is stated of the training            fault
    header       the frame and its tags, before the body is looked at (compress)       fault
    body         canonical, in order, finite, bounded: the codec's own rules           fault
    zero         an update that changes nothing                                        flag
    norm         of the update, or of one large tensor, beyond [1/5, 5] of the median  flag
    duplicate    cosine > 0.99 with another's update, or the same elements chosen      flag

A fault is exact: the payload is refused. A flag is a suspicion: the contribution is merged and surely audited.
Flags are integers' work on accepted payloads alone, so a second reader finds the same ones on any machine. Losses
are not logged, and so flag nobody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from farflung.compress.clipping import sum_of_squares
from farflung.compress.merge import Part
from farflung.compress.payload import About
from farflung.core import limits
from farflung.core.canon.steps import Int64, to_fixed
from farflung.core.codec import Wire
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash, PeerId
from farflung.core.layout import Float32, Layout
from farflung.job.spec import JobSpec
from farflung.train.roundlog import Contribution, payload_hash
from farflung.train.sync import Sync

ZERO: Final = "zero"
NORM: Final = "norm"
DUPLICATE: Final = "duplicate"

NORM_RATIO: Final = 5
NORM_PEERS: Final = 3  # fewer have no median worth the name
NORM_ELEMENTS: Final = 1024  # of a smaller tensor, top-k may by chance send nothing at all
COSINE: Final = (99, 100)
SOUGHT: Final = 0.98  # a cosine above which a pair is judged exactly
_LIMB: Final = 32
_BLOCK: Final = 1 << 20


class CheckerSetup(Wire, frozen=True, tag="setup"):
    """What of a job's terms a payload is held against. `weight`: the most that a contribution may weigh.

    What it was assigned in its round is the coordinator's to know (RoundOpened), and checked where the log is written.
    """

    spec: JobSpec
    layout: Layout
    weight: int


class Statement(Wire, frozen=True):
    """What a peer said of its training when it committed."""

    losses: tuple[float, ...]
    tokens: int


class Check(Wire, frozen=True, tag="check"):
    """One revealed payload. `root`: of the public state before `round`."""

    round: int
    root: Hash
    contribution: Contribution
    statement: Statement
    payload: bytes


class Conclude(Wire, frozen=True, tag="conclude"):
    """All payloads of `round` were checked: which of these contributions are suspicious? Forgets the round."""

    round: int
    peers: tuple[PeerId, ...]


Request = CheckerSetup | Check | Conclude


class Checked(Wire, frozen=True, tag="checked"):
    """A payload's fault (code and words), or none and the L2 norm of each tensor in units of 2^-24."""

    code: str
    words: str
    norms: tuple[int, ...]


class Flags(Wire, frozen=True, tag="flags"):
    """Suspicions, ascending by peer; also the reply to CheckerSetup (none)."""

    flags: tuple[tuple[PeerId, str], ...]


Reply = Checked | Flags


def decoded(sync: Sync, layout: Layout, check: Check, weight: int) -> Float32:
    """The update of a payload that may be merged, shape (layout.size,).

    Raises ProtocolError: FF-VERI-060 to -063 (envelope and statement), FF-COMP-001 to -019 (the payload itself).
    """
    _envelope(sync, check, weight)
    about = About(check.round, check.round % sync.phases, check.root, check.contribution.peer)
    return sync.spread(check.round, layout, sync.decode(about, layout, check.payload))


def _envelope(sync: Sync, check: Check, weight: int) -> None:
    c, said = check.contribution, check.statement
    if not 0 <= check.round < limits.ROUNDS:
        raise _fault("FF-VERI-060", "it is of no round", f"round {check.round}")
    spec = sync.spec
    if not (spec.is_weight(c.weight) and c.weight <= weight) or said.tokens != c.weight:
        raise _fault(
            "FF-VERI-061",
            "it weighs what it cannot",
            f"weight {c.weight}, {said.tokens} tokens stated; at most {weight}",
        )
    if payload_hash(check.payload) != c.payload:
        raise _fault("FF-VERI-062", "it is not the committed payload", f"{len(check.payload)} bytes")
    steps = spec.steps_of(c.weight)
    is_whole = len(said.losses) == steps and all(map(math.isfinite, said.losses))
    if not is_whole:
        raise _fault(
            "FF-VERI-063",
            "its statistics are impossible",
            f"{len(said.losses)} losses for {steps} steps, or one that is no number",
        )


def _fault(code: str, what: str, cause: str) -> ProtocolError:
    return ProtocolError(
        code, f"a submission is refused: {what}", cause=cause, hint="a peer's fault; others go on"
    )


def flags(layout: Layout, parts: Sequence[Part], *, is_chosen: bool = True) -> dict[PeerId, str]:
    """Suspicious contributions among the accepted ones of a round, in any order; one reason each.

    `is_chosen`: what is not zero was chosen by its maker (top-k), and does not follow from the layout alone (low rank).
    """
    ordered = sorted(parts, key=lambda part: bytes(part.peer))
    fixed = [to_fixed(part.values) for part in ordered]
    squares = [tensor_squares(layout, values) for values in fixed]
    found: dict[PeerId, str] = {}
    for reason, places in (
        (ZERO, [i for i, square in enumerate(squares) if not sum(square)]),
        (DUPLICATE, _duplicates(fixed, [sum(square) for square in squares], is_chosen)),
        (NORM, _odd_norms(layout, squares)),
    ):
        for place in places:
            found.setdefault(ordered[place].peer, reason)
    return dict(sorted(found.items()))


def tensor_squares(layout: Layout, fixed: Int64) -> tuple[int, ...]:
    """Exact sums of squares, tensor by tensor."""
    return tuple(sum_of_squares(fixed[place]) for _, place in layout.slices())


def norms(squares: Sequence[int]) -> tuple[int, ...]:
    """L2 norms, rounded down."""
    return tuple(math.isqrt(square) for square in squares)


def _odd_norms(layout: Layout, squares: Sequence[tuple[int, ...]]) -> list[int]:
    if len(squares) < NORM_PEERS:
        return []
    columns = [[sum(square) for square in squares]]
    for place, tensor in enumerate(layout.tensors):
        if tensor.size >= NORM_ELEMENTS:
            columns.append([square[place] for square in squares])
    odd: set[int] = set()
    for column in columns:
        median = sorted(column)[(len(column) - 1) // 2]
        far = NORM_RATIO**2
        odd |= {i for i, square in enumerate(column) if square > far * median or square * far < median}
    return sorted(odd)


def _duplicates(fixed: Sequence[Int64], squares: Sequence[int], is_chosen: bool) -> list[int]:
    """Both of each pair: sought in floating point, with a margin that no rounding fills, and judged exactly."""
    found: set[int] = set()
    chosen = [np.flatnonzero(values) for values in fixed]
    wide = [values.astype(np.float64) for values in fixed]
    for i in range(len(fixed)):
        for j in range(i):
            is_sparse = is_chosen and 0 < 2 * chosen[i].size <= fixed[i].size
            is_same = is_sparse and np.array_equal(chosen[i], chosen[j])
            is_near = float(wide[i] @ wide[j]) > SOUGHT * math.sqrt(squares[i]) * math.sqrt(squares[j])
            if is_same or (is_near and _is_parallel(fixed[i], fixed[j], squares[i], squares[j])):
                found |= {i, j}
    return sorted(found)


def _is_parallel(left: Int64, right: Int64, left_square: int, right_square: int) -> bool:
    """Of two updates whose product is above zero."""
    product = _dot(left, right)
    part, whole = COSINE
    return product**2 * whole**2 > part**2 * left_square * right_square


def _dot(left: Int64, right: Int64) -> int:
    """Exact: each product is at most 2^60 and is summed in two limbs of 32 bits, block by block."""
    total = 0
    for start in range(0, left.size, _BLOCK):
        product = left[start : start + _BLOCK] * right[start : start + _BLOCK]
        total += (int((product >> _LIMB).sum()) << _LIMB) + int((product & ((1 << _LIMB) - 1)).sum())
    return total

"""Holds what tracing a module's step found, as data: the exact way to its memory, read without torch (P2).

Bytes are of tensors' storages, each counted once however many views it has. *Kept* is what is alive when the forward
pass ends and was not before it; *peak* is the most that is alive at any operation of forward and backward pass beyond
what is there between two steps (`resident`: parameters, buffers, the optimizer's vectors, the batch, and gradients
where they have a place of their own). Memory that a kernel takes and gives back within one operation is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from farflung.core import limits
from farflung.core.codec import Wire
from farflung.core.errors import ProtocolError, RunError, UsageError
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import JobSpec


class Recomputation(StrEnum):
    """What the backward pass computes again instead of keeping it."""

    NONE = "none"
    SELECTIVE = "selective"  # attention
    FULL = "full"


def way_of(spec: JobSpec) -> Recomputation:
    """What a job's own steps compute again."""
    return Recomputation.FULL if spec.model.recompute == "blocks" else Recomputation.NONE


class TracedBlock(Wire, frozen=True):
    """One of a module's repeated parts. Bytes of parameters."""

    name: str
    parameters: int


class RecomputeTrace(Wire, frozen=True):
    """A step with one way of recomputation. `before` and `after`: kept outside the blocks, up to the first one and from
    then on; `saved`: what autograd itself holds (hooks; 0: not asked for). FLOP count a multiply and an add as two.
    `working`: of what comes before the blocks, of each block and of what comes after them, bytes that are alive at most
    while it is gone through, forward or backward, beyond what it and all before it have kept; `fixed`: of them, those
    that are there however few the rows (a weight's gradient before it is added to the others).
    """

    recompute: str
    before: int
    kept: tuple[int, ...]  # of each block
    after: int
    saved: int
    peak: int
    flop: int
    working: tuple[int, ...]
    fixed: tuple[int, ...]

    @property
    def live(self) -> int:
        """Kept in all."""
        return self.before + sum(self.kept) + self.after


class StepTrace(Wire, frozen=True, tag="traced"):
    """A module's step. `ran_rows` 0: traced without data; else it was run, on at most so many rows, since its shapes
    depend on values, and what is told is extrapolated to `rows`.
    """

    rows: int
    ran_rows: int
    width: int  # bytes of one parameter
    parameters: int
    batch: int
    resident: int
    update: int  # most that the optimizer's step adds to `resident`, gradients that come and go included
    largest: int  # parameters that one submodule owns itself, at most
    ends: tuple[int, int]  # bytes of parameters used up to the first block, and from then on, outside the blocks
    copied: int  # of them, bytes that both ends use
    layout: TensorLayout  # all parameters, a tied one once
    blocks: tuple[TracedBlock, ...]
    modes: tuple[RecomputeTrace, ...]
    handed: int  # bytes of what a block returns, at most: what goes over a cut between two of them
    tail: tuple[str, ...]  # names of parameters that are read after the first block alone, outside the blocks

    def mode(self, recompute: Recomputation = Recomputation.NONE) -> RecomputeTrace:
        """The step with this way of recomputation; raises UsageError FF-PLAN-052."""
        for mode in self.modes:
            if mode.recompute == recompute:
                return mode
        raise UsageError(
            "FF-PLAN-052",
            f"this module was not traced with {recompute} recomputation",
            cause="it has no repeated blocks to recompute" if not self.blocks else "it was not asked for",
            hint="build its layers as an nn.ModuleList of one class",
        )

    def peak(self, recompute: Recomputation = Recomputation.NONE) -> int:
        """The most that is alive at any time of a step."""
        return self.resident + max(self.mode(recompute).peak, self.update)


def affine(first: StepTrace, second: StepTrace, at: tuple[int, int], rows: int) -> StepTrace:
    """What `rows` rows take, from traces of `at[0]` and `at[1]` rows: every figure is taken to be a + b rows.

    Raises UsageError FF-PLAN-055 where both are no traces of one module.
    """
    if [b.name for b in first.blocks] != [b.name for b in second.blocks] or at[0] >= at[1]:
        raise UsageError(
            "FF-PLAN-055",
            f"traces of {at[0]} and {at[1]} rows cannot be put together",
            cause="they are not of one module, in growing order",
            hint="trace one module twice",
        )

    def put(low: int, high: int) -> int:
        return max(0, round(low + (high - low) * (rows - at[0]) / (at[1] - at[0])))

    def each(low: Sequence[int], high: Sequence[int]) -> tuple[int, ...]:
        return tuple(put(a, b) for a, b in zip(low, high, strict=True))

    def modes(low: RecomputeTrace, high: RecomputeTrace) -> RecomputeTrace:
        return RecomputeTrace(
            recompute=low.recompute,
            kept=each(low.kept, high.kept),
            working=each(low.working, high.working),
            fixed=each(low.fixed, high.fixed),
            **{name: put(getattr(low, name), getattr(high, name)) for name in _SCALED},
        )

    return StepTrace(
        rows=rows,
        ran_rows=at[1],
        width=first.width,
        parameters=first.parameters,
        batch=put(first.batch, second.batch),
        resident=put(first.resident, second.resident),
        update=put(first.update, second.update),
        largest=first.largest,
        ends=first.ends,
        copied=first.copied,
        layout=first.layout,
        blocks=first.blocks,
        modes=tuple(modes(a, b) for a, b in zip(first.modes, second.modes, strict=True)),
        handed=put(first.handed, second.handed),
        tail=first.tail,
    )


_SCALED = ("before", "after", "saved", "peak", "flop")


def check(trace: StepTrace) -> None:
    """A trace comes from a process that ran a stranger's module: raises UsageError FF-PLAN-056 if it makes no sense."""
    sizes: Sequence[int] = (
        trace.parameters,
        trace.batch,
        trace.resident,
        trace.update,
        trace.largest,
        trace.copied,
        trace.handed,
        *trace.ends,
        *(block.parameters for block in trace.blocks),
        *(n for mode in trace.modes for n in _bytes(mode)),
    )
    is_whole = all(mode.flop >= 0 and _is_of(mode, len(trace.blocks)) for mode in trace.modes)
    is_bounded = all(0 <= size <= limits.TRACED_BYTES for size in sizes) and 1 <= trace.width <= 16
    if not (is_whole and is_bounded and trace.modes and trace.rows >= 1 and _is_all(trace)):
        raise UsageError(
            "FF-PLAN-056",
            "the trace of this module makes no sense",
            cause="a size is negative or beyond all memory, or blocks and sizes do not go together",
            hint="do not trust this module",
        )


def _bytes(mode: RecomputeTrace) -> tuple[int, ...]:
    return (mode.before, mode.after, mode.saved, mode.peak, *mode.kept, *mode.working, *mode.fixed)


def _is_of(mode: RecomputeTrace, blocks: int) -> bool:
    """Whether it tells of so many blocks, and of no part that is larger than the whole."""
    is_part = all(part <= whole for part, whole in zip(mode.fixed, mode.working, strict=False))
    return len(mode.kept) == blocks == len(mode.working) - 2 == len(mode.fixed) - 2 and is_part


def _is_all(trace: StepTrace) -> bool:
    """Whether the tensors are a model's, and all parameters, outside the blocks and inside."""
    try:
        trace.layout.check()
    except ProtocolError:
        return False
    inside = sum(block.parameters for block in trace.blocks)  # one that two of them share counts in both
    names = {tensor.name for tensor in trace.layout.tensors}
    is_whole = trace.parameters == trace.width * trace.layout.size <= sum(trace.ends) - trace.copied + inside
    return is_whole and names >= set(trace.tail)


def unanswered(cause: str) -> RunError:
    """The error for a process that ended, or sleeps, without its trace."""
    return RunError(
        "FF-PLAN-057",
        "the model was not traced",
        cause=cause,
        hint="see that its source runs: farflung run traces it before anything is spent",
    )

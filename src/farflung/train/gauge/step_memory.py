"""Measures the memory of a module's step: built, run forward and backward and updated, on fake tensors (P2).

Fake tensors have shapes, types and storages without memory, so that a model of any size is gone through on any machine.
A module whose shapes or branches depend on values (a router that picks tokens, `.item()`) has no such trace: it is run
with numbers on a quarter and on half of its rows, and what was seen is extrapolated, since every tensor has a + b rows
elements. Where routing spreads unevenly that is true of the sum over experts, not of each. A peak is the largest of
what each operation's extrapolation gives, for the largest at few rows may be another one. What is there however few the
rows is told in the same way, of a step without numbers by a second one of half of its rows.

A step is made first, so that what an optimizer keeps is there; then, for each way of recomputation, one whose peaks
are told.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from farflung.core.tensor_layout import TensorLayout
from farflung.plan.step_trace import Recomputation, RecomputeTrace, StepTrace, TracedBlock, affine
from farflung.train.gauge.blocks import marked
from farflung.train.gauge.live_tensors import AFTER, Course, LiveTensorTracker, SavedTensorTracker, spot_of
from farflung.train.recomputation import blocks_of, recomputed

SMALL: Final = 4  # rows: fewer are run as they are
WAYS: Final = tuple(Recomputation)


class StepSubject(NamedTuple):
    """A step to be gone through. `loss` makes the loss of `batch`; `forget` clears gradients and lets those go that
    have no place of their own; `update` moves the parameters, then does the same.
    """

    module: nn.Module
    batch: tuple[Tensor, ...]
    loss: Callable[[], Tensor]
    update: Callable[[], None]
    forget: Callable[[], None]


Make = Callable[[int], StepSubject]  # builds all of it for so many rows


class StepMemoryTrace(NamedTuple):
    """A trace, and bytes beyond `resident` after each operation: of each mode, then of the update."""

    traced: StepTrace
    courses: tuple[Course, ...]


def measure(make: Make, rows: int, ways: Sequence[Recomputation] = WAYS) -> StepTrace:
    """The step of `make(rows)`. Raises what the module raises when it is run with numbers, and what `make` does."""
    try:
        return traced(make, rows, ways)
    except Exception:  # whatever it needs numbers for says so in its own way
        return _with_numbers(make, rows, ways)


def traced(make: Make, rows: int, ways: Sequence[Recomputation] = WAYS) -> StepTrace:
    """The same without numbers, or not at all: raises what PyTorch says of a module that needs them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        whole = observed(make, rows, ways)
        if rows == 1:
            return replace(whole.traced, ran_rows=0)
        return replace(_put(observed(make, rows // 2, ways), whole, rows), ran_rows=0)


def _with_numbers(make: Make, rows: int, ways: Sequence[Recomputation]) -> StepTrace:
    if rows < SMALL:
        return observed(make, rows, ways).traced
    low, high = (observed(make, math.ceil(rows / parts), ways) for parts in (4, 2))
    return _put(low, high, rows)


def _put(low: StepMemoryTrace, high: StepMemoryTrace, rows: int) -> StepTrace:
    """What `rows` rows take, from two numbers of rows; `fixed` is what is left of `working` for none."""
    at = low.traced.rows, high.traced.rows
    found, none = (affine(low.traced, high.traced, at, count) for count in (rows, 0))
    modes = []
    for mode, empty, a, b in zip(found.modes, none.modes, low.courses, high.courses, strict=False):
        course = _extrapolated(a, b, at, rows)
        working = tuple(map(max, mode.working, beside(mode, course)))
        fixed = tuple(map(min, working, beside(empty, _extrapolated(a, b, at, 0))))
        modes.append(replace(mode, peak=max(mode.peak, _top(course)), working=working, fixed=fixed))
    update = _top(_extrapolated(low.courses[-1], high.courses[-1], at, rows))
    return replace(found, modes=tuple(modes), update=max(found.update, update))


def _extrapolated(low: Course, high: Course, at: tuple[int, int], rows: int) -> Course:
    """A course that goes on as from `low` to `high`; none where these are not the same operations."""
    if [place for place, _ in low] != [place for place, _ in high]:
        return ()
    factor = (rows - at[0]) / (at[1] - at[0])
    return tuple((place, round(a + (b - a) * factor)) for (place, a), (_, b) in zip(low, high, strict=True))


def _top(course: Course) -> int:
    return max((now for _, now in course), default=0)


def beside(mode: RecomputeTrace, course: Course) -> tuple[int, ...]:
    """Bytes of each slice, from the first to the last, beyond what it and those before it keep, at their most."""
    most: dict[int, int] = {}
    for place, now in course:
        most[place] = max(now, most.get(place, 0))
    held, found = 0, []
    places = (0, *range(1, len(mode.kept) + 1), AFTER)
    for place, kept in zip(places, (mode.before, *mode.kept, mode.after), strict=True):
        held += kept
        found.append(max(0, most.get(place, 0) - held))
    return tuple(found)


def observed(make: Make, rows: int, ways: Sequence[Recomputation] = WAYS) -> StepMemoryTrace:
    """A step each way, of whatever tensors are made here: real ones, or those of the mode around."""
    with LiveTensorTracker() as living:
        subject = make(rows)
        blocks = blocks_of(subject.module)
        _backward(subject.loss())
        subject.update()
        resident = _settled(living)
        seen = [_traced_mode(subject, blocks, living, way) for way in ways if blocks or way is Recomputation.NONE]
        update, course = _update(subject, living)
        ends = _ends(subject, blocks, living)
    module = subject.module
    found = StepTrace(
        rows=rows,
        ran_rows=rows,
        width=max(p.element_size() for p in module.parameters()),
        parameters=_size(module.parameters()),
        batch=_size(subject.batch),
        resident=resident,
        update=update,
        largest=max(sum(p.numel() for p in m.parameters(recurse=False)) for m in module.modules()),
        ends=(ends.before, ends.after),
        copied=ends.copied,
        layout=TensorLayout.of({name: tuple(p.shape) for name, p in module.named_parameters()}),
        blocks=tuple(TracedBlock(name, _size(block.parameters())) for name, block in blocks.items()),
        modes=tuple(mode for mode, _ in seen),
        handed=living.handed,
        tail=ends.tail,
    )
    return StepMemoryTrace(found, (*(course for _, course in seen), course))


def _backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def _settled(living: LiveTensorTracker) -> int:
    """Bytes that are alive between two steps."""
    gc.collect()
    return living.now


def _traced_mode(
    subject: StepSubject, blocks: dict[str, nn.Module], living: LiveTensorTracker, how: Recomputation
) -> tuple[RecomputeTrace, Course]:
    """`_mode`; where PyTorch cannot recompute these blocks selectively (it refuses views of what was saved), as much
    is counted as without recomputation, which is never less.
    """
    if how is not Recomputation.SELECTIVE:
        return _mode(subject, blocks, living, how)
    with contextlib.suppress(RuntimeError):
        return _mode(subject, blocks, living, how)
    found, course = _mode(subject, blocks, living, Recomputation.NONE)
    return replace(found, recompute=how), course


def _mode(
    subject: StepSubject, blocks: dict[str, nn.Module], living: LiveTensorTracker, how: Recomputation
) -> tuple[RecomputeTrace, Course]:
    resident, before = _settled(living), living.count
    living.begin()
    with recomputed(blocks, how, has_numbers=False):
        with marked(blocks, living):
            loss = subject.loss()
        kept = living.since(before)
        _backward(loss)
    del loss
    mode = RecomputeTrace(
        recompute=str(how),
        before=kept[0],
        kept=tuple(kept[place] for place in range(1, len(blocks) + 1)),
        after=kept[AFTER],
        saved=0,
        peak=living.peak - resident,
        flop=living.flop,
        working=(),
        fixed=(0,) * (len(blocks) + 2),
    )
    course = tuple((place, now - resident) for place, now in living.history)
    mode = replace(mode, working=beside(mode, course))
    subject.forget()
    if how is Recomputation.NONE:
        mode = replace(mode, saved=saved_bytes(subject, living))
    return mode, course


def saved_bytes(subject: StepSubject, living: LiveTensorTracker) -> int:
    """What autograd holds of one forward pass."""
    with SavedTensorTracker(living) as held:
        loss = subject.loss()
    _backward(loss)
    subject.forget()
    return held.bytes


def _update(subject: StepSubject, living: LiveTensorTracker) -> tuple[int, Course]:
    resident = _settled(living)
    _backward(subject.loss())
    living.begin()
    subject.update()
    return living.peak - resident, tuple((place, now - resident) for place, now in living.history)


class _OuterParameters(NamedTuple):
    """Bytes of parameters outside the blocks, by where the forward pass reads them, and of those read on both sides;
    names of those that are read after them alone.
    """

    before: int
    after: int
    copied: int
    tail: tuple[str, ...]


def _ends(subject: StepSubject, blocks: dict[str, nn.Module], living: LiveTensorTracker) -> _OuterParameters:
    inside = {spot_of(p) for block in blocks.values() for p in block.parameters()}
    living.used = {}
    with marked(blocks, living), torch.no_grad():
        subject.loss()
    used, living.used = living.used, None
    before = after = copied = 0
    tail = []
    for name, parameter in subject.module.named_parameters():
        if (spot := spot_of(parameter)) in inside:
            continue
        places, size = used.get(spot, set()), _size([parameter])
        before += size if 0 in places else 0
        after += size if 0 not in places or AFTER in places else 0
        copied += size if places >= {0, AFTER} else 0
        if 0 not in places:
            tail.append(name)
    return _OuterParameters(before, after, copied, tuple(tail))


def _size(tensors: Iterable[Tensor]) -> int:
    """Bytes of these tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)

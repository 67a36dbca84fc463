"""A trace as data: what it says of a plan, two put together, and what nobody should believe."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from farflung.advice.memory.layer_slices import of_traced
from farflung.advice.memory.worst_stage import PipelineStages, StageTraining, footprints
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import UsageError
from farflung.core.tensor_layout import TensorLayout
from farflung.plan.step_trace import Recomputation, RecomputeTrace, StepTrace, TracedBlock, affine, check

LAYOUT = TensorLayout.of({"embed": (300,), "blocks.0.w": (250,), "blocks.1.w": (250,), "norm": (200,)})


def mode(recompute: str, rows: int, share: int) -> RecomputeTrace:
    kept = (10 * rows // share, 12 * rows // share)
    working = (rows, 6 * rows + 30, 6 * rows + 30, 4 * rows)
    peak = 40 * rows // share + 100
    return RecomputeTrace(recompute, 3 * rows, kept, 5 * rows + 7, 0, peak, 1000 * rows, working, (0, 30, 30, 0))


def trace(rows: int = 8) -> StepTrace:
    return StepTrace(
        rows=rows,
        ran_rows=0,
        width=4,
        parameters=4000,
        batch=16 * rows,
        resident=16_000 + 16 * rows,
        update=4400,
        largest=500,
        ends=(1200, 1600),
        copied=800,
        layout=LAYOUT,
        blocks=(TracedBlock("blocks.0", 1000), TracedBlock("blocks.1", 1000)),
        modes=(mode("none", rows, 1), mode("full", rows, 10)),
        handed=64 * rows,
        tail=("norm",),
    )


def test_a_peak_is_the_larger_of_the_pass_and_the_update() -> None:
    for how in (Recomputation.NONE, Recomputation.FULL):
        found = trace()
        assert found.peak(how) == found.resident + max(found.mode(how).peak, found.update)


def test_a_traced_module_is_cut_into_stages_like_any_other() -> None:
    cut = of_traced(trace(), Recomputation.FULL, 8, 4.0)
    assert cut.parameters == 1000
    assert [each.parameters for each in (cut.first, *cut.layers, cut.last)] == [300, 250, 250, 400]
    assert [each.kept for each in (cut.first, *cut.layers, cut.last)] == [24, 8, 9, 47]
    assert [each.working for each in (cut.first, *cut.layers, cut.last)] == [8, 78, 78, 32]
    needs = footprints(cut, StageTraining(PipelineStages((1, 1), micros=2)))
    assert needs[0].of("activations") == (24 + 8) * 2
    assert needs[1].of("activations") == 9 + 47
    assert [need.of("backward pass") for need in needs] == [78, 32]  # at a layer what the head kept is gone
    assert "slice 2 of 2" in next(part.formula for part in needs[0].parts if part.name == "backward pass")


def test_what_is_fixed_does_not_grow_with_rows_and_the_last_slice_stays_as_it_was_traced() -> None:
    cut = of_traced(trace(), Recomputation.NONE, 2, 2.0)
    assert [each.kept for each in (cut.first, *cut.layers, cut.last)] == [3, 10, 12, 47 / 4]
    assert [each.working for each in cut.layers] == [(30 + 12) / 2] * 2
    assert (cut.first.working, cut.last.working) == (1, 8)
    for rows, element, name in ((0, 2.0, "rows"), (1, 0.0, "element")):
        with pytest.raises(UsageError, match=name):
            of_traced(trace(), Recomputation.NONE, rows, element)


def test_a_way_that_was_not_traced_is_refused_with_its_reason() -> None:
    with pytest.raises(UsageError, match="FF-PLAN-052") as refused:
        trace().mode(Recomputation.SELECTIVE)
    assert refused.value.cause == "it was not asked for"
    plain = replace(trace(), blocks=(), modes=(RecomputeTrace("none", 1, (), 1, 0, 2, 3, (0, 0), (0, 0)),))
    with pytest.raises(UsageError, match="no repeated blocks"):
        plain.mode(Recomputation.FULL)


def test_two_traces_say_what_more_rows_take() -> None:
    found = affine(trace(2), trace(4), (2, 4), 8)
    assert found == replace(trace(8), ran_rows=4, modes=found.modes)
    assert found.mode() == trace(8).mode()


def test_traces_of_other_modules_or_of_falling_rows_are_not_put_together() -> None:
    other = replace(trace(4), blocks=(TracedBlock("layers.0", 1), TracedBlock("layers.1", 1)))
    for second, at in ((other, (2, 4)), (trace(4), (4, 4))):
        with pytest.raises(UsageError, match="FF-PLAN-055"):
            affine(trace(2), second, at, 8)


def test_a_trace_keeps_its_bytes_on_the_way() -> None:
    assert decode(encode(trace()), StepTrace, limits.CONTROL_BYTES) == trace()


def test_a_trace_that_makes_no_sense_is_refused(subtests: pytest.Subtests) -> None:
    for change in [
        {"parameters": -1},
        {"resident": limits.TRACED_BYTES + 1},
        {"ends": (-1, 0)},
        {"copied": -5},
        {"modes": ()},
        {"blocks": ()},
        {"width": 0},
        {"rows": 0},
        {"modes": (mode("none", -8, 1),)},
        {"blocks": (TracedBlock("a", -1), TracedBlock("b", 1))},
        {"modes": (replace(mode("none", 8, 1), flop=-1),)},
        {"modes": (replace(mode("none", 8, 1), working=(0, -1, 0, 0)),)},
        {"modes": (replace(mode("none", 8, 1), working=(1, 2)),)},
        {"modes": (replace(mode("none", 8, 1), fixed=()),)},
        {"modes": (replace(mode("none", 8, 1), fixed=(0, 79, 0, 0)),)},
        {"handed": -1},
        {"tail": ("nobody",)},
        {"layout": TensorLayout(())},
        {"layout": TensorLayout.of({"embed": (300,)})},
        {"ends": (0, 0), "copied": 0},
    ]:
        with subtests.test(change=change):
            check(trace())
            with pytest.raises(UsageError, match="FF-PLAN-056"):
                check(replace(trace(), **change))

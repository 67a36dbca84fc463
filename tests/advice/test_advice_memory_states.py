"""States, adapters, DeepSpeed's estimators, and all printed figures of footprint_cases."""

from __future__ import annotations

import math

import pytest
from footprint_cases import CASES, Case
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.advice.memory import adapters, model_states
from farflung.advice.memory.breakdown import Footprint, MemoryPart, MemoryPlace, explained
from farflung.advice.memory.model_states import RECIPES, OffloadConfig, ZeroSplit
from farflung.advice.memory.worst_stage import PipelineStages, StageTraining
from farflung.core.errors import UsageError

RAM, CARD, DISK = MemoryPlace.RAM, MemoryPlace.CARD, MemoryPlace.DISK


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.source}: {case.what}")
def test_a_printed_figure_is_met(case: Case) -> None:
    assert case.ours == pytest.approx(float(case.printed), abs=case.allowed, rel=0)


def test_there_are_enough_printed_figures_of_enough_sources() -> None:
    assert len(CASES) >= 25
    assert len({case.source.partition(",")[0] for case in CASES}) >= 8


@given(st.floats(1, 1e12), st.integers(2, 1 << 20), st.sampled_from(sorted(RECIPES)))
def test_each_stage_of_zero_needs_no_more_than_the_one_before(size: float, ways: int, recipe: str) -> None:
    needs = [
        sum(part.bytes for part in model_states.states(size, model_states.named(recipe), ZeroSplit(stage, ways)))
        for stage in range(4)
    ]
    assert needs[0] > needs[1] > needs[2] > needs[3]
    assert needs[0] == pytest.approx(size * model_states.named(recipe).whole)


@given(st.floats(1, 1e12), st.integers(1, 1 << 20), st.integers(0, 3))
def test_splitting_keeps_each_byte_once(size: float, ways: int, stage: int) -> None:
    mine = Footprint("", model_states.states(size, split=ZeroSplit(stage, ways)))
    whole = {"weights": 3, "gradients": 2, "optimizer": 1}
    for name, first in whole.items():
        copies = 1 if stage >= first else ways
        alone = Footprint("", model_states.states(size)).of(name)
        assert ways * mine.of(name) == pytest.approx(copies * alone)


def test_the_outer_state_of_a_method_with_rounds_is_split_by_nobody() -> None:
    for stage in range(4):
        parts = model_states.states(1e9, RECIPES["diloco"], ZeroSplit(stage, 8))
        assert Footprint("", parts).of("outer state") == 8e9


def test_what_is_moved_to_ram_leaves_the_card_and_is_staged() -> None:
    alone = Footprint("", model_states.states(1e9, split=ZeroSplit(2, 4)))
    moved = Footprint("", model_states.states(1e9, split=ZeroSplit(2, 4, OffloadConfig(optimizer=RAM))))
    assert moved.card == alone.of("weights") == 2e9
    assert moved.ram == pytest.approx(1.5 * 16e9 / 4)  # gradients and optimizer, in float32


def test_gradients_that_are_moved_are_summed_where_they_are() -> None:
    need = Footprint("", model_states.states(1e9, RECIPES["adam-mixed-summed"], ZeroSplit(2, 1, OffloadConfig(RAM))))
    assert need.of("summed gradients") == 0.0
    assert need.of("gradients") == 4e9


def test_what_is_moved_to_disk_needs_windows_of_the_largest_tensor_in_ram() -> None:
    split = ZeroSplit(3, 4, OffloadConfig(DISK, DISK))
    need = Footprint("", model_states.states(1e9, split=split, largest=1e6))
    assert need.disk == pytest.approx((2 + 4 + 12) * 1e9 / 4)
    assert need.ram == model_states.WINDOWS * (2 + 4 + 12) * 1e6
    assert need.card == 0.0
    unknown = Footprint("", model_states.states(1e9, split=split))  # a window of unknown size may be all of it
    assert unknown.ram == unknown.disk


def test_parameters_move_with_stage_3_alone() -> None:
    for stage in range(3):
        with pytest.raises(UsageError, match="FF-PLAN-050"):
            ZeroSplit(stage, 8, OffloadConfig(parameters=RAM))
    ZeroSplit(3, 8, OffloadConfig(parameters=RAM))


def test_an_unknown_recipe_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="FF-PLAN-051") as refused:
        model_states.named("adamw")
    assert "adam-mixed" in refused.value.hint


@pytest.mark.parametrize("size", [-1.0, math.nan, math.inf, 1e40])
def test_sizes_that_nothing_has_are_refused_by_name(size: float) -> None:
    with pytest.raises(UsageError, match="parameters"):
        model_states.states(size)
    with pytest.raises(UsageError, match="weights"):
        model_states.StateRecipe(weights=size)


def test_a_part_is_never_negative() -> None:
    with pytest.raises(UsageError, match="FF-PLAN-021"):
        MemoryPart("activations", -1.0, "", "")


def test_adapters_leave_the_frozen_weights_without_gradient_and_optimizer() -> None:
    trained = adapters.adapter_size([(4096, 4096)] * 64, 16)
    parts = adapters.adapted(8e9, trained, adapters.NF4)
    need = Footprint("", parts)
    assert need.of("frozen weights") == pytest.approx(8e9 * 0.5159, rel=1e-3)
    assert need.card - need.of("frozen weights") == pytest.approx(16 * trained)
    assert Footprint("", adapters.adapted(8e9, trained, split=ZeroSplit(3, 8))).of("frozen weights") == 2e9


def test_an_explanation_has_the_formula_with_numbers_and_a_source_largest_first() -> None:
    lines = explained(model_states.states(7.5e9, split=ZeroSplit(1, 64)))
    assert "2 B x 7.5 B" in lines[0]
    assert "12 B x 7.5 B / 64" in lines[-1]
    assert all("Rajbhandari" in line for line in lines)
    assert ["section 5" in line for line in lines] == [False, False, True]


def test_each_part_has_its_own_source() -> None:
    recipe = replace(RECIPES["muon-mixed"], summed=4.0, outer=8.0)
    sources = {part.name: part.source for part in model_states.states(1e9, recipe)}
    for name, who in (
        ("weights", "ZeRO"),
        ("gradients", "ZeRO"),
        ("summed gradients", "Tazi"),
        ("optimizer", "Jordan"),
        ("outer state", "Douillard"),
    ):
        assert who in sources[name], name
    moved = {part.name: part for part in model_states.states(1e9, recipe, ZeroSplit(2, 1, OffloadConfig(RAM)))}
    assert "Ren et al." in moved["gradients"].source
    assert moved["optimizer"].formula.endswith("in RAM")


def test_places_are_those_that_there_are() -> None:
    for field in ("optimizer", "parameters"):
        with pytest.raises(UsageError, match=f"FF-PLAN-059: {field}"):
            OffloadConfig(**{field: "ram"})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="FF-PLAN-059: activations"):
        StageTraining(PipelineStages((1,)), activations="x")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="FF-PLAN-059: schedule"):
        PipelineStages((1,), schedule="x")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="FF-PLAN-059: place"):
        MemoryPart("weights", 1.0, "", "", "disk")  # type: ignore[arg-type]

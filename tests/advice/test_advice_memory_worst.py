"""The worst card: which stage decides, and what a card has room for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.advice.memory import buffers, worst_stage
from farflung.advice.memory.activations import MicroBatch
from farflung.advice.memory.breakdown import MemoryPart, MemoryPlace
from farflung.advice.memory.buffers import MemoryMargins
from farflung.advice.memory.layer_slices import ModelSlice, ModelStack, sliced
from farflung.advice.memory.model_states import RECIPES, ZeroSplit
from farflung.advice.memory.transformer import MODELS
from farflung.advice.memory.worst_stage import PipelineStages, StageTraining, fitting_layers, footprints
from farflung.advice.traffic import pipeline_schedules
from farflung.advice.traffic.pipeline_schedules import PipelineSchedule
from farflung.core.errors import UsageError
from farflung.plan.step_trace import Recomputation

BARE = MemoryMargins(runtime=0.0, fragmentation=0.0)
LLAMA = sliced(MODELS["llama3-8b"], MicroBatch(1, 4096))


def stack(layers: int = 4, before: float = 0.0, after: float = 0.0, kept: float = 1.0) -> ModelStack:
    return ModelStack(ModelSlice(before, 0.0), (ModelSlice(100.0, kept),) * layers, ModelSlice(after, 0.0))


@given(st.integers(1, 9), st.integers(1, 12), st.sampled_from([PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B]))
def test_as_many_micro_batches_are_alive_as_in_the_timeline(
    stages: int, micros: int, schedule: PipelineSchedule
) -> None:
    pipeline = PipelineStages((1,) * stages, micros, schedule)
    seen = pipeline_schedules.timeline([pipeline_schedules.StageTimes(1.0, 2.0)] * stages, micros, schedule).alive
    assert [pipeline.alive(at) for at in range(stages)] == list(seen)


@pytest.mark.slow
@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 4))
def test_as_many_parts_are_alive_as_in_the_interleaved_timeline(stages: int, groups: int, virtual: int) -> None:
    micros = stages * groups
    pipeline = PipelineStages((virtual,) * stages, micros, PipelineSchedule.INTERLEAVED, virtual)
    line = pipeline_schedules.timeline(
        [pipeline_schedules.StageTimes(1.0, 2.0)] * stages, micros, PipelineSchedule.INTERLEAVED, virtual=virtual
    )
    assert [virtual * pipeline.alive(at) for at in range(stages)] == list(line.alive)


def test_the_first_stage_is_worst_where_activations_are_large_and_the_last_where_the_vocabulary_is() -> None:
    pipeline = PipelineStages((8, 8, 8, 8), micros=8)
    same = [80e9] * 4
    assert worst_stage.worst(footprints(LLAMA, StageTraining(pipeline)), same).stage == 0
    few = replace(pipeline, schedule=PipelineSchedule.ONE_F_ONE_B, micros=1)
    decided = worst_stage.worst(footprints(LLAMA, StageTraining(few)), same)
    assert decided.stage == 3  # logits of 128,256 words, once alive in each stage
    assert "the head" in decided.footprint.label


def test_the_card_with_least_to_spare_decides_and_not_the_largest_need() -> None:
    needs = footprints(stack(), StageTraining(PipelineStages((3, 1)), margins=BARE))
    assert needs[0].card > needs[1].card
    found = worst_stage.worst(needs, [10_000.0, 1000.0])
    assert (found.stage, found.fits) == (1, False)
    assert found.spare == 1000.0 - needs[1].card
    assert "too little" in worst_stage.told(found)
    assert "to spare" in worst_stage.told(worst_stage.worst(needs, [1e5, 1e5]))


def test_embedding_and_head_count_where_they_are() -> None:
    needs = footprints(stack(4, before=7.0, after=11.0), StageTraining(PipelineStages((2, 1, 1)), margins=BARE))
    assert [need.of("weights") for need in needs] == [2 * 207.0, 2 * 100.0, 2 * 111.0]


def test_a_tied_head_is_a_second_copy_only_where_stages_part_them() -> None:
    model = MODELS["gpt2"]
    tied = sliced(model, MicroBatch(1, 1024))
    assert tied.parameters == pytest.approx(model.size)
    alone = footprints(tied, StageTraining(PipelineStages((12,)), margins=BARE))
    assert alone[0].of("weights") == pytest.approx(2 * model.size)
    two = footprints(tied, StageTraining(PipelineStages((6, 6)), margins=BARE))
    copied = 2 * model.vocabulary * model.width
    assert sum(need.of("weights") for need in two) == pytest.approx(2 * model.size + copied)


def test_layers_of_the_stages_must_be_those_of_the_model() -> None:
    with pytest.raises(UsageError, match="FF-PLAN-053"):
        footprints(stack(4), StageTraining(PipelineStages((2, 1))))


def test_each_stage_needs_a_card() -> None:
    needs = footprints(stack(4), StageTraining(PipelineStages((2, 2))))
    with pytest.raises(UsageError, match="FF-PLAN-054"):
        worst_stage.worst(needs, [1e9])
    with pytest.raises(UsageError, match="memory"):
        worst_stage.worst(needs, [1e9, -1.0])


@given(st.floats(0.0, 2e4), st.integers(0, 2))
def test_the_layers_that_fit_do_and_one_more_does_not(memory: float, at: int) -> None:
    model = stack(16, before=50.0, after=70.0, kept=9.0)
    training = StageTraining(PipelineStages((6, 5, 5), micros=4), margins=BARE)
    count = fitting_layers(model, training, at, memory)
    assert -1 <= count <= 16

    def need(layers: int) -> float:
        counts = [0, 0, 0]
        counts[at] = layers
        other = replace(training, pipeline=replace(training.pipeline, layers=tuple(counts)))
        return footprints(replace(model, layers=model.layers[:layers]), other)[at].card

    assert count == -1 or need(count) <= memory
    assert count == 16 or need(count + 1) > memory


def test_eight_home_cards_have_no_room_for_llama_8b_with_full_adam() -> None:
    """Research's mix: 4090, 3090, 4070 Ti S, 3060, 4060 Ti, A4000, 3080, 4080, at 16 bytes a parameter."""
    memory = [24e9, 24e9, 16e9, 12e9, 16e9, 16e9, 10e9, 16e9]
    pipeline = PipelineStages((4,) * 8, micros=8)
    load = MicroBatch(1, 1024, recompute=Recomputation.FULL)

    def room(recipe: str) -> int:
        training = StageTraining(pipeline, RECIPES[recipe])
        model = sliced(MODELS["llama3-8b"], load)
        return sum(max(0, fitting_layers(model, training, at, have)) for at, have in enumerate(memory))

    assert room("adam-mixed") < 32
    assert room("adam-8bit") > room("adam-mixed")


def test_activations_that_wait_in_ram_leave_two_slices_of_them_on_the_card() -> None:
    model = stack(6, kept=10.0)
    training = StageTraining(PipelineStages((6,), micros=4, schedule=PipelineSchedule.GPIPE), margins=BARE)
    here = footprints(model, training)[0]
    moved = footprints(model, replace(training, activations=MemoryPlace.RAM))[0]
    assert moved.ram == here.of("activations") == 4 * 60.0
    assert moved.card == here.card - 240.0 + 20.0


def test_the_backward_pass_takes_room_beside_what_is_left_of_the_activations() -> None:
    """At the head all is there still; at a layer what comes after it is gone, unless it was never on the card."""
    layers = (ModelSlice(1.0, 10.0, 4.0),) * 3
    for after, here, there in ((6.0, 6.0, 6.0), (3.0, 3.0, 4.0), (0.0, 2.0, 4.0)):
        model = ModelStack(ModelSlice(0.0, 0.0, 30.0), layers, ModelSlice(1.0, 2.0, after))
        training = StageTraining(PipelineStages((3,)), margins=BARE)
        found = [
            footprints(model, replace(training, activations=place))[0].of("backward pass")
            for place in (MemoryPlace.CARD, MemoryPlace.RAM)
        ]
        assert found == [here, max(there, 30.0)]


@pytest.mark.parametrize("layers", [(), (0,) * 5000, (-1, 5)])
def test_pipelines_that_cannot_be_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="FF-PLAN-020"):
        PipelineStages(layers)


def test_recomputation_keeps_less_and_works_on_one_layer_at_a_time() -> None:
    full = sliced(MODELS["llama3-8b"], MicroBatch(1, 4096, recompute=Recomputation.FULL))
    pipeline = PipelineStages((32,), micros=1)
    whole = footprints(LLAMA, StageTraining(pipeline))[0]
    less = footprints(full, StageTraining(pipeline))[0]
    assert less.card < whole.card
    layer = LLAMA.layers[0].kept
    again = full.layers[0].kept + full.layers[0].working
    assert layer < again == pytest.approx(layer + LLAMA.layers[0].working)


def test_gathered_units_and_fused_buffers_follow_the_stage_of_zero() -> None:
    recipe = RECIPES["adam-mixed"]
    assert buffers.sending(1e9, 1e8, recipe, ZeroSplit(), BARE) == ()
    assert buffers.sending(1e9, 1e8, recipe, ZeroSplit(0, 8), BARE) == ()
    copied = buffers.sending(1e9, 1e8, recipe, ZeroSplit(0, 8), replace(BARE, is_view=False))
    assert [part.bytes for part in copied] == [2e9]
    fused = buffers.sending(1e9, 1e8, recipe, ZeroSplit(2, 8), BARE)
    assert [part.bytes for part in fused] == [2 * 5e8 * 2]
    assert buffers.sending(1e6, 1e5, recipe, ZeroSplit(1, 8), BARE)[0].bytes == 2 * 1e6 * 2
    gathered = buffers.sending(1e9, 1e8, recipe, ZeroSplit(3, 8), replace(BARE, ahead=2))
    assert [part.bytes for part in gathered] == [3 * 2 * 1e8, 2 * 1e8]


def test_a_resident_region_leaves_gaps_only_in_what_comes_and_goes() -> None:
    lasting, passing = (
        (MemoryPart("a", 900.0, "", ""),),
        (MemoryPart("b", 100.0, "", ""), MemoryPart("c", 50.0, "", "", MemoryPlace.RAM)),
    )
    margins = MemoryMargins(runtime=5.0, fragmentation=0.1)
    runtime, idle = buffers.beside(lasting, passing, margins)
    assert (runtime.bytes, idle.bytes) == (5.0, 100.0)
    assert buffers.beside(lasting, passing, replace(margins, is_resident=True))[1].bytes == 10.0

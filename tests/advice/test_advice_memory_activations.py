"""Closed forms of activations: one formula at its ends is another, and nothing grows where it must shrink."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.advice.memory import activations
from farflung.advice.memory.activations import AttentionMemory, MicroBatch, edges, kept, logits, passing, passing_head
from farflung.advice.memory.transformer import MODELS, Transformer
from farflung.advice.traffic.transformer_shapes import gpt_parameters
from farflung.core.errors import UsageError
from farflung.plan.step_trace import Recomputation

sizes = st.integers(1, 1 << 12)
loads = st.builds(MicroBatch, batch=st.integers(1, 64), sequence=st.integers(1, 8192), tensor=st.integers(1, 64))


def test_the_papers_count_is_this_count_with_scores_and_masks_in_memory() -> None:
    model = Transformer(1, 1024, 16, 1000)
    for tensor in (1, 4):
        load = MicroBatch(2, 512, tensor, element=2.0, attention=AttentionMemory.EAGER, has_dropout=True)
        # s b h (10 + 24/t + 5 a s/(h t)): Korthikanti et al. 2022, equations 1 and 2
        paper = 1024 * 1024 * (10 + 24 / tensor + 5 * 16 * 512 / (1024 * tensor))
        assert kept(load, model).bytes == pytest.approx(paper)
        split = replace(load, is_sequence_parallel=True)
        assert kept(split, model).bytes == pytest.approx(1024 * 1024 * (34 + 5 * 16 * 512 / 1024) / tensor)


@given(loads)
def test_recomputation_keeps_a_layers_input(load: MicroBatch) -> None:
    model = MODELS["llama3-8b"]
    full = kept(replace(load, recompute=Recomputation.FULL), model).bytes
    assert full == load.tokens * model.width * load.element
    assert full < kept(replace(load, recompute=Recomputation.SELECTIVE), model).bytes < kept(load, model).bytes


def test_gated_networks_keep_four_inner_vectors_and_experts_as_many_as_are_chosen() -> None:
    plain = Transformer(1, 512, 8, 1000, inner=2048)
    load = MicroBatch(1, 128, element=2.0)
    token = 2 * 128
    gated = replace(plain, is_gated=True)
    assert kept(load, gated).bytes - kept(load, plain).bytes == token * 2 * 2048
    routed = replace(gated, experts=8, chosen=2)
    assert kept(load, routed).bytes - kept(load, gated).bytes == token * 4 * 2048


def test_grouped_queries_keep_narrower_keys_and_values() -> None:
    model = Transformer(1, 512, 8, 1000)
    load = MicroBatch(1, 128, element=2.0)
    less = kept(load, model).bytes - kept(load, replace(model, key_heads=2)).bytes
    assert less == 2 * 128 * 2 * 512 * 3 / 4


def test_the_ends_are_dropouts_mask_before_and_norm_head_and_logits_after() -> None:
    load = MicroBatch(1, 2048, 8)
    first, last = edges(load, 12_288, 51_200)
    sbh = 2048 * 12_288
    assert first.bytes == sbh
    assert last.bytes == pytest.approx(sbh * 4 + 4 * 2048 * 51_200 / 8)
    shared = edges(replace(load, is_sequence_parallel=True), 12_288, 51_200)
    assert [part.bytes for part in shared] == pytest.approx([sbh / 8, sbh * 4 / 8 + 4 * 2048 * 51_200 / 8])


def test_logits_are_kept_once_in_float32_and_are_there_three_times_when_the_backward_pass_begins() -> None:
    model = MODELS["llama3-8b"]
    assert logits(MicroBatch(1, 1024), model).bytes == 1024 * (2 * 2 * 4096 + 4 * 128_256)
    assert passing_head(MicroBatch(4, 1024), model) == 4 * 1024 * 2 * 4 * 128_256
    assert passing_head(MicroBatch(1, 16), model) == 2 * 4096 * (128_256 + 16)  # few tokens: a gradient of the weight


def test_selectively_products_with_weights_are_kept_and_scores_are_not() -> None:
    model, h, f = Transformer(1, 512, 8, 1000, inner=1500), 512, 1500
    load = MicroBatch(1, 128, recompute=Recomputation.SELECTIVE)
    assert kept(load, model).bytes == 128 * (2 * (7 * h + f) + 4 * 8)
    eager = replace(load, attention=AttentionMemory.EAGER, has_dropout=True)
    assert kept(eager, model).bytes == 128 * 2 * (6 * h + f)


@given(loads)
def test_what_is_computed_again_is_there_beside_the_gradients(load: MicroBatch) -> None:
    model = MODELS["llama3-8b"]
    none, *others = (replace(load, recompute=how) for how in Recomputation)
    for how in others:
        whole = kept(how, model).bytes + passing(how, model)
        assert whole >= kept(none, model).bytes + passing(none, model) - 1e-6 * whole


@given(st.integers(1, 128), st.integers(1, 1 << 14), st.integers(1, 1 << 17), st.integers(1, 1 << 14))
def test_a_gpt_has_as_many_parameters_as_the_closed_form_says(
    layers: int, width: int, vocabulary: int, context: int
) -> None:
    model = Transformer(layers, width, 1, vocabulary, positions=context)
    closed = gpt_parameters(layers, width, vocabulary, context)
    assert model.size - 2 * width == pytest.approx(closed)  # the last norm


@pytest.mark.parametrize(
    ("field", "value"), [("batch", 0), ("sequence", -1), ("tensor", 0), ("element", math.nan), ("element", 0.0)]
)
def test_loads_that_nobody_has_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=field):
        replace(MicroBatch(1, 1), **{field: value})


@pytest.mark.parametrize("field", ["recompute", "attention"])
def test_a_way_is_one_of_those_that_there_are_and_not_a_word(field: str) -> None:
    with pytest.raises(UsageError, match=f"FF-PLAN-059: {field}"):
        replace(MicroBatch(1, 1), **{field: "full"})


@pytest.mark.parametrize(("width", "vocabulary", "field"), [(0, 5, "width"), (-4, 5, "width"), (8, -1, "vocabulary")])
def test_ends_that_no_model_has_are_refused_by_name(width: int, vocabulary: int, field: str) -> None:
    with pytest.raises(UsageError, match=f"FF-PLAN-020: {field}"):
        edges(MicroBatch(1, 1), width, vocabulary)


@pytest.mark.parametrize("field", ["layers", "width", "heads", "vocabulary", "inner", "experts", "chosen"])
def test_transformers_that_nobody_builds_are_refused_by_name(field: str) -> None:
    with pytest.raises(UsageError, match=field):
        replace(MODELS["gpt2"], **{field: -1})


def test_every_closed_form_names_its_source() -> None:
    load = MicroBatch(1, 1)
    parts = (*edges(load, 64, 100), kept(load, MODELS["gpt2"]), logits(load, MODELS["gpt2"]))
    assert all(activations.KORTHIKANTI in part.source and part.formula for part in parts)

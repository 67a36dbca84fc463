"""A module that is planned by its trace: its layers, cuts and memory in every layout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from plan_offers import LAN, host, hosts

from farflung.advice.job_work import JobWork
from farflung.advice.layouts import activation_bits, host_speed, pipeline_layouts, pipeline_sync, replica_layouts
from farflung.advice.layouts.layout_search import search
from farflung.advice.layouts.memory_fit import room
from farflung.advice.layouts.replica_layouts import OfferAssumptions
from farflung.advice.layouts.training_options import InfeasibleOption, LayoutKind, TrainingOption
from farflung.advice.memory.model_states import RECIPES, ZeroSplit
from farflung.advice.model_costs import LAST, WIRE, TracedModel
from farflung.core.tensor_layout import TensorLayout
from farflung.plan.step_trace import Recomputation, RecomputeTrace, StepTrace, TracedBlock, check

ROWS, CONTEXT, BLOCKS = 8, 128, 6
BLOCK, TABLE = 40_000_000, 8_000_000  # parameters
KEPT = 300_000_000  # bytes of a block and ROWS sequences, float32
USUAL = OfferAssumptions()


def mode(how: Recomputation, share: int, flop: int, blocks: int) -> RecomputeTrace:
    nothing = (0,) * (blocks + 2)
    return RecomputeTrace(
        str(how), 5_000_000, (KEPT // share,) * blocks, 9_000_000, 0, 3 * KEPT, flop, nothing, nothing
    )


def traced(blocks: int = BLOCKS) -> StepTrace:
    """An embedding, blocks of one kind, a norm and a head of its own."""
    shapes = {f"layers.{at}.weight": (BLOCK,) for at in range(blocks)}
    layout = TensorLayout.of({"embed.weight": (TABLE,), "out.weight": (TABLE,), "scale": (100,), **shapes})
    found = StepTrace(
        rows=ROWS,
        ran_rows=0,
        width=4,
        parameters=4 * layout.size,
        batch=16 * ROWS * CONTEXT,
        resident=16 * layout.size,
        update=4 * layout.size,
        largest=BLOCK,
        ends=(4 * TABLE, 4 * (TABLE + 100)),
        copied=0,
        layout=layout,
        blocks=tuple(TracedBlock(f"layers.{at}", 4 * BLOCK) for at in range(blocks)),
        modes=(
            mode(Recomputation.NONE, 1, 6 * ROWS * CONTEXT * layout.size, blocks),
            mode(Recomputation.SELECTIVE, 3, 7 * ROWS * CONTEXT * layout.size, blocks),
            mode(Recomputation.FULL, 30, 8 * ROWS * CONTEXT * layout.size, blocks),
        ),
        handed=4 * ROWS * CONTEXT * 1024,
        tail=("out.weight", "scale"),
    )
    check(found)
    return found


def plain() -> StepTrace:
    """Nothing in it is repeated."""
    whole = traced(0)
    kept = RecomputeTrace("none", 0, (), 2 * KEPT, 0, 3 * KEPT, whole.modes[0].flop, (0, 0), (0, 0))
    found = replace(whole, modes=(kept,), handed=0, tail=(), ends=(0, whole.parameters))
    check(found)
    return found


def work(found: StepTrace) -> JobWork:
    return JobWork(
        TracedModel(found, CONTEXT),
        found.layout,
        CONTEXT,
        batch=8,
        sequences=32,
        tokens=10_000_000,
        recipe=RECIPES["adam-mixed"],
    )


MODULE, PLAIN = work(traced()), work(plain())


@given(st.integers(1, 64), st.sampled_from(list(Recomputation)))
def test_what_is_kept_grows_with_the_sequences_and_is_halved_for_bfloat16_before_the_loss(
    sequences: int, how: Recomputation
) -> None:
    stack, mode = MODULE.stack(sequences, how), traced().mode(how)
    share = sequences / ROWS * WIRE / 4
    assert [each.kept for each in stack.layers] == [kept * share for kept in mode.kept]
    assert (stack.first.kept, stack.last.kept) == (mode.before * share, mode.after * 2 * share)
    assert stack.parameters == MODULE.parameters
    assert MODULE.model.handed(sequences) == 2 * sequences * CONTEXT * 1024


@given(st.floats(1, 1e9))
def test_flop_are_those_of_the_trace_for_so_many_tokens(tokens: float) -> None:
    for how, each in ((Recomputation.NONE, 6), (Recomputation.SELECTIVE, 7), (Recomputation.FULL, 8)):
        assert MODULE.flop(tokens, how) == pytest.approx(each * MODULE.parameters * tokens)
    assert MODULE.model.head(tokens) == pytest.approx(6 * (TABLE + 100) * tokens)


def test_a_model_without_products_still_has_a_step() -> None:
    """Of embeddings and norms alone; and a head that is read once a sequence has no more FLOP than all."""
    modes = tuple(replace(mode, flop=0) for mode in traced().modes)
    for found in (
        work(replace(traced(), modes=modes)),
        work(replace(traced(), modes=tuple(replace(mode, flop=1000) for mode in modes))),
    ):
        assert found.flop(1.0) > 0
        assert 0 < found.model.head(9.0) < found.flop(9.0)
        assert isinstance(pipeline_layouts.pipeline(found, hosts(3, "RTX 3090", link=LAN), USUAL), TrainingOption)
        assert search(found, hosts(4, "RTX 3090")).best


def test_each_tensor_has_its_place() -> None:
    places = {tensor.name: MODULE.model.place(tensor.name) for tensor in MODULE.layout.tensors}
    assert places["embed.weight"] == 0
    assert places["out.weight"] == places["scale"] == LAST
    assert [places[f"layers.{at}.weight"] for at in range(BLOCKS)] == list(range(1, BLOCKS + 1))


def test_stages_hold_the_tensors_of_their_layers_and_all_of_them_once() -> None:
    found = pipeline_sync.parts(MODULE, (1, 4, 1))
    names = [[tensor.name for tensor in part.tensors] if part else [] for part in found]
    assert names[0] == ["embed.weight", "layers.0.weight"]
    assert names[2] == ["layers.5.weight", "out.weight", "scale"]
    assert sorted(name for each in names for name in each) == [tensor.name for tensor in MODULE.layout.tensors]


def test_a_stage_whose_weights_are_another_ones_exchanges_nothing_of_its_own() -> None:
    shared = replace(traced(), layout=TensorLayout.of({"embed.weight": (TABLE,), "layers.0.weight": (BLOCK,)}))
    found = pipeline_sync.parts(work(shared), (3, 3))
    assert found[0] is not None
    assert found[1] is None


def test_a_module_of_ones_own_is_advised_like_any_other() -> None:
    advice = search(MODULE, (*hosts(4, "RTX 3090", link=LAN), host("small", "GTX 1060 3GB")))
    assert advice.best
    kinds = {option.kind for option in advice.best} | {blocked.kind for blocked in advice.binding}
    assert {LayoutKind.ROUNDS, LayoutKind.PIPELINE} & kinds


def test_its_pipelines_are_cut_between_blocks_with_what_a_block_hands_on() -> None:
    found = pipeline_layouts.pipeline(MODULE, hosts(3, "RTX 3090", link=LAN), USUAL)
    assert isinstance(found, TrainingOption)
    counts = [int(count) for count in found.how.split()[1].split("/")]
    assert sum(counts) == BLOCKS
    moved = next(fact for fact in found.facts if fact.name == "activations")
    assert "a cut and micro-batch" in moved.formula
    share = activation_bits.codes(MODULE)[1].forward if "8-bit" in found.how else 1.0
    plain = MODULE.model.handed(found.micro) * (32 / found.micro) * (2 if len(counts) > 2 else 1)
    assert found.up == pytest.approx(share * plain)


def test_without_repeated_blocks_only_whole_replicas_are_possible() -> None:
    assert (PLAIN.model.layers, PLAIN.model.kind) == (0, "traced: no repeated blocks")
    blocked = pipeline_layouts.pipeline(PLAIN, hosts(3, "RTX 3090", link=LAN), USUAL)
    assert isinstance(blocked, InfeasibleOption)
    assert (blocked.constraint, blocked.cause) == ("layers", "0 layers for 3 hosts")
    assert "nn.ModuleList" in blocked.help
    assert isinstance(replica_layouts.rounds(PLAIN, hosts(3, "RTX 3090"), USUAL), TrainingOption)
    for how in Recomputation:  # nothing is there to be computed again
        assert PLAIN.stack(4, how) == PLAIN.stack(4, Recomputation.NONE)
        assert PLAIN.flop(9.0, how) == PLAIN.flop(9.0)


def test_its_own_trace_decides_what_a_card_must_hold() -> None:
    """Twice as many bytes kept: smaller micro-batches, or recomputation, or no room."""
    card = host("a", "RTX 3090")
    fat = work(fatter())
    few, many = (room(each, each.recipe, card, ZeroSplit(), 8) for each in (MODULE, fat))
    assert few.fits
    order = list(Recomputation)
    assert (many.micro, order.index(many.recompute)) != (few.micro, order.index(few.recompute))
    tokens = 8 * CONTEXT
    assert host_speed.computing(MODULE, card, few, tokens, 0.4) <= host_speed.computing(fat, card, many, tokens, 0.4)


def fatter() -> StepTrace:
    modes = tuple(replace(mode, kept=tuple(40 * kept for kept in mode.kept)) for mode in traced().modes)
    return replace(traced(), modes=modes)

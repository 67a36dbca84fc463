"""A module's step without numbers against the same step with them: each byte, each block, each way of recomputation."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung.advice.job_work import work
from farflung.advice.memory.activations import MicroBatch
from farflung.advice.memory.buffers import MemoryMargins
from farflung.advice.memory.layer_slices import ModelStack, of_traced, sliced
from farflung.advice.memory.model_states import StateRecipe
from farflung.advice.memory.worst_stage import PipelineStages, StageTraining, footprints
from farflung.advice.model_costs import SizedModel
from farflung.core.tensor_layout import TensorLayout
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.job_loader import load
from farflung.job.spec import JobSpec
from farflung.plan.step_trace import Recomputation, StepTrace
from farflung.train import recomputation
from farflung.train.gauge import blocks, job_step, step_memory
from farflung.train.gauge.live_tensors import LiveTensorTracker, SavedTensorTracker
from farflung.train.gauge.request import StepMemoryRequest
from farflung.train.gauge.step_memory import StepSubject

# What most of them look at is traced once.
pytestmark = pytest.mark.xdist_group("gauge")

WIDTH, TIME = 24, 12
TINY = load(None, preset="tiny").spec


class Layer(nn.Module):
    """Attention with scores in memory, and a wide network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out((q @ k.transpose(1, 2)).softmax(-1) @ v)
        return x + self.down(functional.gelu(self.up(x)))


class Stacked(nn.Module):
    def __init__(self, *, is_tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, 50, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return functional.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


class Picking(nn.Module):
    """Half of the tokens go through each of two networks: its shapes depend on numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x).flatten(0, 1)
        result = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            picked = torch.where(torch.arange(len(h)) % 2 == number)[0]
            result = result.index_add(0, picked, expert(h[picked]).relu())
        return functional.cross_entropy(result @ self.embed.weight.T, y.flatten())


def subject(build: Callable[[], nn.Module], rows: int) -> StepSubject:
    torch.manual_seed(1)
    module = build()
    batch = torch.randint(0, 50, (rows, TIME)), torch.randint(0, 50, (rows, TIME))
    optimizer = torch.optim.AdamW(module.parameters(), foreach=False)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return StepSubject(module, batch, lambda: module(*batch), update, optimizer.zero_grad)


@pytest.fixture(scope="module")
def faked() -> StepTrace:
    return step_memory.traced(lambda rows: subject(Stacked, rows), 4)


@pytest.fixture(scope="module")
def apart() -> StepTrace:
    """The table and the head are two."""
    make = functools.partial(Stacked, is_tied=False)
    return step_memory.observed(lambda rows: subject(make, rows), 2, [Recomputation.NONE]).traced


@pytest.fixture(scope="module")
def real() -> StepTrace:
    return step_memory.observed(lambda rows: subject(Stacked, rows), 4).traced


@pytest.mark.whole
def test_a_step_without_numbers_takes_what_the_step_with_numbers_takes(faked: StepTrace, real: StepTrace) -> None:
    assert faked.ran_rows == 0
    assert real.ran_rows == 4
    for name in ("parameters", "batch", "resident", "update", "largest", "ends", "copied", "blocks"):
        assert getattr(faked, name) == getattr(real, name), name
    assert [msgspec.structs.replace(mode, fixed=()) for mode in faked.modes] == [
        msgspec.structs.replace(mode, fixed=()) for mode in real.modes
    ]
    assert all(mode.fixed[0] > 0 for mode in faked.modes)  # a table's gradient, from a second trace of fewer rows


@pytest.mark.slow
def test_kept_is_what_autograd_holds_and_the_loss(faked: StepTrace) -> None:
    assert faked.mode().live == faked.mode().saved + 4


@pytest.mark.slow
def test_autograd_holds_what_its_own_hooks_count_on_a_real_run(faked: StepTrace) -> None:
    found = subject(Stacked, 4)
    own = {p.untyped_storage().data_ptr() for p in found.module.parameters()}
    own |= {t.untyped_storage().data_ptr() for t in found.batch}
    seen: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        key = tensor.untyped_storage().data_ptr()
        if key not in own:
            seen.setdefault(key, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = found.loss()
    assert sum(t.untyped_storage().nbytes() for t in seen.values()) == faked.mode().saved
    del loss


@pytest.mark.whole
def test_a_tied_head_is_used_at_both_ends_and_counted_once(faked: StepTrace, apart: StepTrace) -> None:
    table = 4 * 50 * WIDTH
    assert (faked.ends, faked.copied) == ((table, table), table)
    assert faked.parameters == table + sum(block.parameters for block in faked.blocks)
    assert (apart.ends, apart.copied) == ((table, table), 0)


def test_the_optimizers_own_tensors_are_resident_and_gradients_are_not(faked: StepTrace) -> None:
    counters = 4 * sum(1 for _ in Stacked().parameters())  # AdamW's steps
    assert faked.resident == 3 * faked.parameters + faked.batch + counters
    assert faked.update >= faked.parameters  # gradients are alive while it moves


def test_full_recomputation_keeps_each_blocks_input(faked: StepTrace) -> None:
    full = faked.mode(Recomputation.FULL)
    assert full.kept == (4 * TIME * WIDTH * 4,) * 3
    whole = faked.mode()
    assert full.flop > whole.flop
    assert full.peak < whole.peak


def test_selective_recomputation_keeps_products_with_weights_and_no_scores(faked: StepTrace) -> None:
    selective = faked.mode(Recomputation.SELECTIVE)
    rows = 4 * TIME
    products = (3 + 1 + 4 + 1) * WIDTH  # qkv, out, up, down
    assert selective.kept == (4 * rows * (products + WIDTH),) * 3  # and the block's input
    assert faked.mode(Recomputation.FULL).live < selective.live < faked.mode().live


def test_flop_are_two_for_a_multiply_and_an_add_and_backward_is_twice_forward(faked: StepTrace) -> None:
    rows = 4 * TIME
    weights = 3 * 12 * WIDTH * WIDTH + 50 * WIDTH
    scores = 3 * 2 * TIME * WIDTH
    assert faked.mode().flop == 3 * 2 * rows * (weights + scores)


def test_attention_on_a_cpu_is_counted_too() -> None:
    q, k, v = (torch.randn(2, 3, 8, 4, requires_grad=True) for _ in range(3))
    with LiveTensorTracker() as living:
        living.begin()
        functional.scaled_dot_product_attention(q, k, v).sum().backward()
    one = 2 * 2 * 3 * 8 * 8 * 4
    assert living.flop == 7 * one


def test_a_storage_counts_once_until_nobody_holds_it() -> None:
    with LiveTensorTracker() as living:
        x = torch.zeros(100)
        y = x.view(10, 10)[:5]
        assert living.now == 400
        del x
        gc.collect()
        assert living.now == 400
        del y
        gc.collect()
        assert (living.now, living.peak) == (0, 400)


def test_an_address_that_comes_again_is_another_storage() -> None:
    with LiveTensorTracker() as living:
        for _ in range(20):
            gone = torch.zeros(64, requires_grad=True)
            del gone
        x = torch.zeros(64, requires_grad=True)
        with SavedTensorTracker(living) as held:
            y = x.exp().exp()
        assert held.bytes == 2 * 4 * 64
        del y


def test_a_module_whose_shapes_depend_on_numbers_is_run_and_extrapolated() -> None:
    def make(rows: int) -> StepSubject:
        return subject(Picking, rows)

    with pytest.raises(Exception, match="nonzero"):
        step_memory.traced(make, 8)
    found, real = step_memory.measure(make, 8), step_memory.observed(make, 8).traced
    assert found.ran_rows == 4
    for one, other in zip(found.modes, real.modes, strict=True):
        assert one.live == pytest.approx(other.live, rel=0.01)
        assert one.peak == pytest.approx(other.peak, rel=0.01)
    assert found.resident == real.resident
    few = step_memory.measure(make, 2, [Recomputation.NONE])
    assert (few.rows, few.ran_rows) == (2, 2)


def test_a_module_that_cannot_run_says_why() -> None:
    class Bad(Stacked):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        step_memory.measure(lambda rows: subject(Bad, rows), 8)


def test_blocks_are_the_outermost_repeated_parts() -> None:
    inner = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
    parts = [nn.ModuleDict({"experts": inner}) for _ in range(3)]
    module = nn.ModuleDict({"stem": nn.Linear(2, 2), "layers": nn.ModuleList(parts)})
    assert list(recomputation.blocks_of(module)) == ["layers.0", "layers.1", "layers.2"]
    stages = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2)))
    assert list(recomputation.blocks_of(stages)) == ["0.0", "0.1", "1.0", "1.1"]
    assert not recomputation.blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def test_a_module_is_left_as_it_was() -> None:
    module = Stacked()
    found = recomputation.blocks_of(module)
    with recomputation.recomputed(found, Recomputation.FULL), blocks.marked(found, LiveTensorTracker()):
        assert all("forward" in vars(block) for block in found.values())
        assert all(block._forward_hooks and block._forward_pre_hooks for block in found.values())
    assert not any("forward" in vars(block) for block in found.values())
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in found.values())


DENSE = {"sync.method": "diloco"}  # where only passes are looked at: the products of Muon take a third of a trace


def traced_job(spec: JobSpec, source: bytes = b"") -> StepTrace:
    found = job_step.answer(StepMemoryRequest(spec, source))
    assert isinstance(found, StepTrace)
    return found


@pytest.mark.whole
def test_the_built_in_model_is_by_its_trace_what_its_sizes_say() -> None:
    """Layers, tensors, cuts and FLOP of both ways to plan; bytes kept but for what norms tell of each token."""
    spec = load(None, flags={"model.layers": "3", "model.width": "64", "model.context": "32", **DENSE}).spec
    found = traced_job(spec)
    by_trace, by_sizes = work(spec, found.layout, found), work(spec, found.layout)
    assert found.layout == TensorLayout.of(gpt_shapes(spec.model))
    assert by_trace.model.layers == by_sizes.model.layers == 3
    assert by_trace.model.layer == by_sizes.model.layer
    assert by_trace.model.handed(5) == by_sizes.model.handed(5)
    for tensor in found.layout.tensors:
        assert by_trace.model.place(tensor.name) == by_sizes.model.place(tensor.name), tensor.name
    for how in Recomputation:  # in full, the paper computes a block's last product again, which nobody reads
        rel = 0.1 if how is Recomputation.FULL else 0.02
        assert by_trace.flop(1.0, how) == pytest.approx(by_sizes.flop(1.0, how), rel=rel)
        traced, sized = by_trace.stack(2, how), by_sizes.stack(2, how)
        assert traced.parameters == sized.parameters == found.layout.size
        kept = [sum(each.kept for each in one.layers) for one in (traced, sized)]
        assert kept[0] == pytest.approx(kept[1], rel=0.015), how
    assert by_trace.model.head(7.0) == pytest.approx(by_sizes.model.head(7.0), rel=0.01)


BARE = MemoryMargins(runtime=0.0, fragmentation=0.0)
NOTHING = StateRecipe(0.0, 0.0, 0.0)  # what a trace counts as resident


def passing(stack: ModelStack) -> float:
    """All that comes and goes on the one card that holds this."""
    alone = StageTraining(PipelineStages((len(stack.layers),)), NOTHING, margins=BARE)
    return footprints(stack, alone)[0].card


@pytest.mark.whole
def test_a_footprint_has_room_for_the_peak_that_was_traced_and_for_that_of_fewer_rows() -> None:
    """By a trace to the byte in its own float32; by sizes within what norms tell of each token.

    Most is kept by the logits, by the layers, by the gradient of the table.
    """
    cases = [(2, 128, 50_257, 64, 8), (2, 256, 256, 128, 4), (2, 128, 50_257, 32, 2)]
    (spec, many), *_ = [_footprint(*case) for case in cases]
    few = traced_job(msgspec.structs.replace(spec, batch=2))
    for how in Recomputation:
        assert 1.0 <= passing(of_traced(many, how, 2, 4.0)) / few.mode(how).peak <= 1.35, how


def _footprint(layers: int, width: int, vocabulary: int, context: int, batch: int) -> tuple[JobSpec, StepTrace]:
    sizes = {"layers": layers, "width": width, "vocabulary": vocabulary, "context": context, "heads": 8}
    flags = {f"model.{name}": str(size) for name, size in sizes.items()} | {"batch": str(batch), **DENSE}
    spec = load(None, flags=flags).spec
    found = traced_job(spec)
    by_trace, by_sizes = work(spec, found.layout, found), work(spec, found.layout)
    assert isinstance(by_sizes.model, SizedModel)
    for how in Recomputation:
        peak = found.mode(how).peak
        assert passing(of_traced(found, how, batch, 4.0)) == peak, how
        closed = sliced(by_sizes.model.transformer, MicroBatch(batch, context, recompute=how, element=4.0))
        assert 0.995 * peak <= passing(closed) <= 1.03 * peak, how
        half, other = (passing(one.stack(batch, how)) for one in (by_trace, by_sizes))
        assert half >= peak / 2, how
        assert other == pytest.approx(half, rel=0.05), how
    return spec, found


@pytest.mark.slow
def test_experts_weights_that_a_product_of_batches_applies_are_weights() -> None:
    """Selectively their results are kept, and those of two activations are not."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.randn(2, WIDTH, 3 * WIDTH))
            self.down = nn.Parameter(torch.randn(2, 3 * WIDTH, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            both = x.view(2, -1, WIDTH)
            mixed = (both @ both.transpose(1, 2)) @ both
            return x + (torch.bmm(mixed, self.up).relu() @ self.down).view_as(x)

    class Whole(Stacked):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Experts() for _ in range(2))

    found = step_memory.observed(
        lambda rows: subject(Whole, rows), 4, [Recomputation.NONE, Recomputation.SELECTIVE]
    ).traced
    given = 4 * 4 * TIME * WIDTH
    assert found.mode(Recomputation.SELECTIVE).kept == (given * (3 + 1 + 1),) * 2  # up, down, the block's input
    assert found.mode().kept[0] > given * 5


def test_a_loss_over_words_stays_in_float32_wherever_it_stands() -> None:
    """Without repeated blocks, too: what it takes is told of the end, which is not halved for bfloat16."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, WIDTH)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy((self.embed(x) @ self.embed.weight.T).flatten(0, 1), y.flatten())

    found = step_memory.traced(lambda rows: subject(Plain, rows), 4)
    words = 4 * 50 * 4 * TIME
    assert words <= found.mode().after <= words + 8
    assert found.mode().working[-1] >= words
    stack = of_traced(found, Recomputation.NONE, 4, 2.0)
    assert (stack.first.kept, stack.last.kept) == (found.mode().before / 2, found.mode().after)


@pytest.mark.slow
def test_what_goes_over_a_cut_is_the_largest_that_a_block_returns(faked: StepTrace, apart: StepTrace) -> None:
    assert faked.handed == 4 * 4 * TIME * WIDTH
    assert faked.tail == ()  # a tied table is read before the blocks, too
    assert [name for name in apart.tail if "." in name] == list(apart.tail) != []


@pytest.mark.whole
def test_a_jobs_step_has_the_flat_vectors_of_its_worker() -> None:
    found = traced_job(TINY)
    bytes_each = 4 + 4 + 1 + 2 * 4  # weights, gradients, where decay applies, and Muon's two
    assert found.resident == bytes_each * found.parameters // 4 + found.batch
    assert found.rows == TINY.batch
    assert found.mode().live == found.mode().saved + 4


def test_what_a_model_may_not_be_is_said_by_the_tracer_as_by_the_worker() -> None:
    job = '[model]\nkind = "module"\nmodule = "model.py:build"\ncontext = 8\n'
    spec = load(job, preset="tiny").spec
    with pytest.raises(Exception, match="FF-TRAIN-052"):
        job_step.answer(StepMemoryRequest(spec, b"def build():\n    raise ValueError(3)\n"))
    with pytest.raises(Exception, match="FF-TRAIN-053"):
        job_step.answer(StepMemoryRequest(spec, b"def build():\n    return 3\n"))
    layer = b"from torch import nn\ndef build():\n    return Own(8, 8)\nclass Own(nn.Linear):\n"
    for body, code in ((b"raise ValueError(3)", "055"), (b"return 3", "056"), (b"return self.weight", "057")):
        source = layer + b"    def forward(self, x, y):\n        " + body + b"\n"
        with pytest.raises(Exception, match=f"FF-TRAIN-{code}"):
            job_step.answer(StepMemoryRequest(spec, source))

"""How a pass computes: narrower products, blocks that are computed again, a batch in several passes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from farflung.core.errors import SpecError
from farflung.core.tensor_layout import TensorLayout
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.job_loader import load
from farflung.job.spec import JobSpec, ModelSpec, NumericsSpec
from farflung.plan.step_trace import Recomputation
from farflung.plan.worker_memory import gpt_activations, memory
from farflung.train import flat_model, forward_passes
from farflung.train.flat_model import FlatModel
from farflung.train.gauge import job_step, step_memory
from farflung.train.gauge.request import StepMemoryRequest
from farflung.train.worker_messages import ProfileCommand
from farflung.verify.tolerance import tolerance_of
from farflung.verify.tolerance_margin import margin

ROWS = 4
SOURCE = b"""
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.drop = nn.Linear(16, 16), nn.Dropout(0.5)

    def forward(self, h):
        return h + self.drop(torch.relu(self.up(h)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x, y):
        h = self.table(x)
        for block in self.blocks:
            h = block(h)
        return nn.functional.cross_entropy((h @ self.table.weight.T).flatten(0, 1), y.flatten())

def build():
    return Net()
"""


def spec_of(tiny: JobSpec, *, own: bool = False, **keys: Any) -> JobSpec:
    model = ModelSpec(kind="module", context=8, module="mine.py:build") if own else tiny.model
    model = msgspec.structs.replace(model, recompute=keys.pop("recompute", "none"))
    numerics = NumericsSpec(keys.pop("compute", "float32"))
    return msgspec.structs.replace(tiny, batch=ROWS, model=model, numerics=numerics, **keys)


def built(spec: JobSpec) -> FlatModel:
    model = flat_model.build(spec, SOURCE)
    model.put(flat_model.initial(spec, model))
    return model


def batch(rows: int = ROWS, context: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x, y = (torch.randint(0, 256, (rows, context), generator=generator) for _ in range(2))
    return x, y


def gradient(model: FlatModel, *rows: Tensor) -> tuple[float, Tensor]:
    torch.default_generator.manual_seed(3)
    return model.gradient(*rows), model.grads.clone()


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("own", [False, True], ids=["gpt", "dropout"])
def test_blocks_that_are_computed_again_change_no_bit(tiny: JobSpec, compute: str, *, own: bool) -> None:
    kept, again = (
        gradient(built(spec_of(tiny, own=own, compute=compute, recompute=how)), *batch()) for how in ("none", "blocks")
    )
    assert kept[0] == again[0]
    assert torch.equal(kept[1], again[1])


def test_a_module_without_repeated_blocks_is_refused_by_name(tiny: JobSpec, user_job: Callable[..., Any]) -> None:
    spec, source = user_job("        return loss\n")
    model = msgspec.structs.replace(spec.model, recompute="blocks")
    with pytest.raises(SpecError, match="FF-TRAIN-069"):
        flat_model.build(msgspec.structs.replace(spec, model=model), source)


def test_a_batch_in_passes_has_the_batchs_gradient_and_holds_a_pass_at_once(
    tiny: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = built(spec_of(tiny)), built(spec_of(tiny, accumulate=2))
    seen, original = list[int](), FlatModel.loss
    monkeypatch.setattr(FlatModel, "loss", lambda self, x, y: (seen.append(len(x)), original(self, x, y))[1])
    one, two = gradient(whole, *batch()), gradient(cut, *batch())
    assert seen == [ROWS, ROWS // 2, ROWS // 2]
    assert two[0] == pytest.approx(one[0], rel=1e-6)
    torch.testing.assert_close(two[1], one[1], rtol=1e-4, atol=1e-7)


@settings(max_examples=10, deadline=None)
@given(rows=st.integers(1, 7), passes=st.integers(1, 7))
def test_rows_count_alike_whatever_the_passes_are(rows: int, passes: int) -> None:
    """Also of a batch that leaves a remainder, as a cheater's may."""
    model = built(spec_of(TINY))
    one = gradient(model, *batch(rows))
    model.setting = model.setting._replace(passes=passes)
    cut = gradient(model, *batch(rows))
    assert cut[0] == pytest.approx(one[0], rel=1e-5)
    torch.testing.assert_close(cut[1], one[1], rtol=1e-3, atol=1e-6)


TINY = JobSpec(batch=ROWS, model=ModelSpec(layers=1, width=16, heads=2, context=8))


def test_products_are_narrow_and_all_that_is_kept_is_not(tiny: JobSpec) -> None:
    wide, narrow = built(spec_of(tiny)), built(spec_of(tiny, compute="bfloat16"))
    seen = set[torch.dtype]()
    narrow.module.blocks[0].up.register_forward_hook(lambda _, __, out: seen.add(out.dtype))
    losses = [model.gradient(*batch()) for model in (wide, narrow)]
    assert seen == {torch.bfloat16}
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert narrow.params.dtype == narrow.grads.dtype == torch.float32
    apart = (narrow.grads - wide.grads).norm() / wide.grads.norm()
    assert 1e-4 < apart < 0.05
    # What a model is worth is measured alike in every job.
    rows = batch()[0].numpy(), batch()[1].numpy()
    measured = [forward_passes.mean_loss(m, tiny.model, ROWS, rows, lambda: None) for m in (wide, narrow)]
    assert measured[0] == measured[1]
    assert not torch.is_autocast_enabled("cpu")


def test_a_type_that_needs_a_loss_scale_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match=r'numerics\.compute must be one of "float32", "bfloat16", not float16'):
        load(None, flags={"numerics.compute": "float16"})


def test_passes_have_as_many_rows_each() -> None:
    with pytest.raises(SpecError, match="accumulate = 3 is not possible"):
        load(None, flags={"accumulate": "3", "batch": "4"})


def test_audits_of_a_bfloat16_job_know_what_saves_something_in_it(engine: Callable[..., Any], tiny: JobSpec) -> None:
    one = engine(spec_of(tiny, compute="bfloat16"))
    found = one.handle(ProfileCommand(one.initialize().snapshot))
    assert [(each.name, each.saved) for each in found.shortcuts][1:] == [("drop-row", 0.25), ("fp8", 0.5)]
    tolerance = tolerance_of(found.noise, one._job.spec.numerics.bits)
    for each in found.shortcuts:
        assert margin(tolerance, one._job.model.layout, each).value > 2


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_the_plan_knows_the_step_that_runs(compute: str) -> None:
    """Each setting makes the trace smaller, the closed form is near it, and what the trace recomputes is
    what the job does.
    """
    flags = {"numerics.compute": compute, "model.width": "64", "model.layers": "3", "model.context": "64", "batch": "4"}
    sgd = {"sync.method": "diloco", "optimizer.name": "sgd"}
    specs = [
        load(None, flags={**flags, **sgd, **more}).spec
        for more in ({}, {"accumulate": "2"}, {"model.recompute": "blocks"})
    ]
    peaks = list[int]()
    for spec in specs:
        found = job_step.answer(StepMemoryRequest(spec, b""))
        how = Recomputation.FULL if spec.model.recompute == "blocks" else Recomputation.NONE
        peaks.append(found.mode(how).peak)
        assert found.rows == spec.batch // spec.accumulate
        assert 0.95 * peaks[-1] <= gpt_activations(spec) <= 1.15 * peaks[-1]
    assert 1.5 * peaks[1] < peaks[0] > 1.5 * peaks[2]
    own = step_memory.traced(job_step.step_of(specs[-1], b""), specs[-1].batch, [Recomputation.NONE])
    assert own.mode().peak == peaks[-1]


def test_a_graph_recomputes_nothing_and_is_tried_with_as_much_memory() -> None:
    layout = TensorLayout.of(gpt_shapes(TINY.model))
    plain, again = (
        memory(msgspec.structs.replace(TINY, model=msgspec.structs.replace(TINY.model, recompute=how)), layout, 0)
        for how in ("none", "blocks")
    )
    assert again.trial == plain.trial > 0


def test_a_worker_computes_blocks_again_with_a_torch_that_left_something_out() -> None:
    """As a process that leaves out what its torch loads slowly (train.meta_kernels)."""
    code = """
import sys
from farflung.train import meta_kernels
meta_kernels.leave_out()
import torch
from farflung.job.job_loader import load
from farflung.train import flat_model
spec = load(None, preset="tiny", flags={"model.recompute": "blocks", "numerics.compute": "bfloat16"}).spec
x = torch.zeros((2, spec.model.context), dtype=torch.int64)
model = flat_model.build(spec, b"")
model.put(flat_model.initial(spec, model))
model.gradient(x, x)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

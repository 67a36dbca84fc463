"""The canonical graph of a step against the step that training makes."""

import functools

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional

from farflung.core.canon.graph import graph_id
from farflung.core.codec import encode
from farflung.job.spec import JobSpec, ModelSpec, OptimizerSpec, ScheduleSpec
from farflung.train import flat_model as models
from farflung.train import inner_steps, optim
from farflung.train.inner_state import VECTORS
from farflung.verify.canon import scalars, step_graph
from farflung.verify.canon.execute import execute

VOCABULARY, CONTEXT, WIDTH = 24, 8, 16
STEPS = (0, 1, 7)  # of the run: three rates


def spec_of(optimizer, clip=1.0, layers=1):
    sizes = ModelSpec(layers=layers, width=WIDTH, heads=2, context=CONTEXT, vocabulary=VOCABULARY)
    return JobSpec(
        rounds=1,
        batch=2,
        model=sizes,
        optimizer=OptimizerSpec(name=optimizer, lr=1e-2, clip=clip),
        schedule=ScheduleSpec(warmup=3),
    )


def named(model, vector, flat):
    return {f"{vector}/{t.name}": flat[place].reshape(t.shape) for t, place in model.layout.slices()}


def state_of(model, spec, optimizer):
    vectors = zip(VECTORS[spec.optimizer.name], optimizer.vectors, strict=True)
    both = [("params", model.take()), *((name, v.numpy().copy()) for name, v in vectors)]
    return {key: value for name, flat in both for key, value in named(model, name, flat).items()}


def agrees(model, spec, graph, noisy=()):
    """Three steps of training, each also from the graph; at most 1e-5 apart, tensor by tensor."""
    optimizer = optim.fresh(spec.optimizer, model.params)
    generator = np.random.default_rng(3)
    for number, done in enumerate(STEPS, 1):
        x, y = generator.integers(0, VOCABULARY, (2, spec.batch, CONTEXT))
        inputs = state_of(model, spec, optimizer) | step_graph.buffers(model) | {"x": x, "y": y}
        inputs |= scalars.scalars(spec, done, number)
        found = dict(execute(graph, {each.name: inputs[each.name] for each in graph.inputs}))
        loss, norm, optimizer = inner_steps._step(model, spec, inner_steps.tensors((x, y)), optimizer, done)
        assert float(found.pop("loss")) == pytest.approx(loss, rel=1e-5)
        assert float(found.pop("grad_norm")) == pytest.approx(norm, rel=1e-5)
        after = state_of(model, spec, optimizer)
        assert sorted(found) == sorted(after)
        for name, value in after.items():
            if not name.endswith(noisy):
                assert np.linalg.norm(found[name] - value) <= 1e-5 * np.linalg.norm(value) + 1e-12, name


@functools.cache
def graph_of(optimizer):
    spec = spec_of(optimizer)
    return step_graph.traced(models.build(spec, b""), spec)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("adamw", "gradient")]


@pytest.mark.whole
@pytest.mark.parametrize("optimizer", ["sgd", "muon", *SLOW])
def test_one_graph_of_a_gpt_makes_the_steps_that_training_makes(optimizer):
    spec = spec_of(optimizer)
    model = models.build(spec, b"")
    model.put(models.initial(spec, model))
    # The key bias has a gradient of rounding noise, which AdamW scales to full steps (docs/concepts/audits.md).
    noisy = ("qkv.bias",) if optimizer in ("adamw", "muon") else ("mean/none",)
    agrees(model, spec, graph_of(optimizer), noisy)


@pytest.mark.slow
def test_a_clip_that_never_binds_and_none_at_all_give_the_same_step():
    for clip in (0.0, 1e6):
        spec = spec_of("sgd", clip)
        model = models.build(spec, b"")
        model.put(models.initial(spec, model))
        agrees(model, spec, step_graph.traced(model, spec), ("mean/none",))


class Perceptron(nn.Module):
    """Weights of their own, a mask in a buffer, erf gelu, a constant of one number."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, VOCABULARY)
        self.register_buffer("mask", torch.tril(torch.ones(CONTEXT, CONTEXT)))

    def forward(self, x, y):
        mixed = (self.mask / self.mask.sum(-1, keepdim=True)) @ self.embed(x)
        logits = self.down(functional.gelu(self.up(mixed))) * torch.tensor(0.5)
        return functional.cross_entropy(logits.flatten(0, 1), y.flatten())


class Gated(nn.Module):
    """RMS norm, SwiGLU, a causal mask of -inf, softmax by hand, a tied head, the loss by an index."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 32, bias=False), nn.Linear(WIDTH, 32, bias=False)
        self.down = nn.Linear(32, WIDTH, bias=False)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def normal(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale

    def forward(self, x, y):
        h = self.embed(x)
        scores = h @ h.transpose(1, 2) / WIDTH**0.5
        later = torch.triu(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool), 1)
        h = h + torch.softmax(scores.masked_fill(later, float("-inf")), -1) @ h
        h = h + self.down(functional.silu(self.gate(self.normal(h))) * self.up(self.normal(h)))
        logs = torch.log_softmax(self.head(self.normal(h)), -1).flatten(0, 1)
        return -logs[torch.arange(logs.shape[0]), y.flatten()].mean()


class Patches(nn.Module):
    """Joins, cuts, repeats, group norm, variance, maximum, absolute value: a block that looks both ways."""

    def __init__(self):
        super().__init__()
        self.embed, self.first = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.ones(1, 1, WIDTH))
        self.norm, self.groups = nn.LayerNorm(WIDTH), nn.GroupNorm(2, WIDTH)
        self.mix = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x, y):
        h = torch.cat([self.first.expand(x.shape[0], 1, WIDTH), self.embed(x)], 1)
        n = self.norm(h)
        h = h + self.mix(n, n, n, need_weights=False)[0]
        h = self.groups(h.transpose(1, 2)).transpose(1, 2)
        h = functional.pad(h[:, 1:, : WIDTH // 2], (0, WIDTH // 2)) + h[:, :-1].flip(1).clamp(-2.0, 2.0)
        h = h / (h.var(-1, keepdim=True) + h.abs().amax(-1, keepdim=True)).sqrt()
        left, right = torch.maximum(h, torch.sigmoid(h)).chunk(2, -1)
        logits = self.head(torch.cat([left * torch.tanh(right), right.relu()], -1))
        picked = torch.gather(functional.log_softmax(logits, -1), 2, y.unsqueeze(-1))
        return torch.where(y.unsqueeze(-1) != 3, -picked, 0.0).sum() / y.numel()


@pytest.mark.parametrize(
    ("module", "optimizer"),
    [(Perceptron, "adamw"), (Gated, "sgd"), pytest.param(Patches, "sgd", marks=pytest.mark.slow)],
    ids=lambda v: str(v),
)
def test_a_users_module_becomes_a_graph_that_makes_the_same_steps(module, optimizer):
    torch.manual_seed(5)
    spec, model = spec_of(optimizer), models.FlatModel(module())
    agrees(model, spec, step_graph.traced(model, spec), ("in_proj_bias",))


def test_a_batch_in_passes_becomes_a_graph_of_passes():
    spec = replace(spec_of("sgd"), batch=4, accumulate=2)
    model = models.build(spec, b"")
    model.put(models.initial(spec, model))
    agrees(model, spec, step_graph.traced(model, spec), ("qkv.bias",))
    assert step_graph.traced(model, replace(spec, accumulate=1)) != step_graph.traced(model, spec)


@pytest.mark.slow
def test_a_model_traced_twice_gives_one_graph():
    spec = spec_of("sgd")
    again = step_graph.traced(models.build(spec, b""), spec)
    assert graph_id(again) == graph_id(graph_of("sgd"))


def test_rates_are_inputs_and_only_those_that_the_optimizer_reads():
    spec = spec_of("adamw")
    first, later = scalars.scalars(spec, 0, 1), scalars.scalars(spec, 7, 8)
    assert list(first) == list(later) == ["lr", "decay", "bias", "scale"]
    assert all(first[name] != later[name] for name in first)
    assert first["lr"] * first["bias"] == pytest.approx(1e-2 / 3 / (1 - 0.9))
    assert scalars.scalars(spec_of("sgd"), 0, 1).keys() == {"lr", "decay"}
    assert scalars.scalars(spec_of("gradient"), 0, 1) == {}


def test_rates_of_the_run_and_of_the_optimizer_are_told_apart():
    spec = spec_of("adamw")
    assert scalars.scalars(spec, 7, 2) == scalars.by_step(spec, 7) | scalars.by_count(spec, 2)
    assert scalars.by_step(spec, 7) != scalars.by_step(spec, 8)
    assert scalars.by_count(spec, 7) != scalars.by_count(spec, 8)


@pytest.mark.slow
def test_the_default_jobs_graph_has_a_size_that_one_can_ship():
    spec = JobSpec()
    model = models.build(spec, b"")
    graph = step_graph.traced(model, spec)
    print(f"default job: {len(graph.nodes)} nodes, {len(encode(graph))} bytes, {len(graph.inputs)} inputs")
    assert len(graph.nodes) < 5000
    assert len(encode(graph)) < 1 << 20

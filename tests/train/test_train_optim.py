"""Our optimizers against torch's, and the schedule."""

import itertools
import math

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farflung.job.job_loader import load
from farflung.job.spec import OptimizerSpec, ScheduleSpec
from farflung.train import optim
from farflung.train.schedule import learning_rate


def run(spec, theirs, start, decay, grads):
    ours, state = start.clone(), optim.fresh(spec, start)
    parameter = torch.nn.Parameter(start.clone())
    reference = theirs([parameter])
    for grad in grads:
        state = optim.step(spec, ours, grad, state, spec.lr, optim.ParameterLayout(decay))
        parameter.grad = grad.clone()
        reference.step()
    return ours, parameter.detach(), state


@pytest.fixture
def walk():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(64, generator=generator), [torch.randn(64, generator=generator) for _ in range(20)]


def test_adamw_agrees_with_torch(walk):
    start, grads = walk
    spec = OptimizerSpec(lr=1e-2, weight_decay=0.1)
    betas = (spec.beta1, spec.beta2)
    ours, theirs, state = run(
        spec,
        lambda p: torch.optim.AdamW(p, lr=1e-2, betas=betas, eps=spec.eps, weight_decay=0.1),
        start,
        torch.ones(64),
        grads,
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert state.step == 20


def test_sgd_agrees_with_torch(walk):
    start, grads = walk
    spec = OptimizerSpec(name="sgd", lr=1e-2, momentum=0.9, weight_decay=0.0)
    ours, theirs, _ = run(spec, lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9), start, torch.ones(64), grads)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_muon_steps_each_place_once_and_what_is_no_matrix_as_adamw_does():
    """Vector, matrix, vector, two matrices, vector: bit for bit AdamW's step between matrices, and Muon's within."""
    matrices = ((slice(3, 15), (4, 3)), (slice(20, 32), (4, 3)), (slice(32, 44), (4, 3)))
    generator = torch.Generator().manual_seed(2)
    params, grad, mean, square = torch.randn(4, 47, generator=generator).unbind()
    spec, decay = OptimizerSpec(name="muon", lr=1e-2, weight_decay=0.1), torch.ones(47)
    state = optim.OptimState(5, (mean, square.abs()))
    layout = optim.ParameterLayout(decay, matrices)
    at = optim.rates(spec, spec.lr, 6)
    wanted, vectors = optim.adamw(spec, params, grad, state.vectors, at, decay)
    for place, shape in matrices:
        held, update = optim.momentum(spec, mean[place].view(1, *shape), grad[place].view(1, *shape))
        wanted[place] = optim.against(params[place], update.reshape(-1), at, decay[place], shape)
        vectors[0][place], vectors[1][place] = held.reshape(-1), 0.0
    assert optim.between([place for place, _ in matrices], 47) == [slice(0, 3), slice(15, 20), slice(44, 47)]
    after = optim.step(spec, params, grad, state, spec.lr, layout)
    assert [torch.equal(*pair) for pair in zip((params, *after.vectors), (wanted, *vectors), strict=True)] == [True] * 3


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon", "gradient"])
def test_a_step_by_blocks_is_the_step_at_once_and_leaves_what_has_no_gradient(name, monkeypatch):
    generator = torch.Generator().manual_seed(3)
    params, grad, mean, square = torch.randn(4, 192, generator=generator).unbind()
    spec = OptimizerSpec(name=name, lr=1e-2, weight_decay=0.1)
    held = (mean, square.abs())[: len(optim.fresh(spec, params).vectors)]
    layout = optim.ParameterLayout(torch.arange(192) >= 64, ((slice(64, 128), (8, 8)), (slice(128, 192), (8, 8))))

    def stepped():
        own, state = params.clone(), optim.OptimState(3, tuple(vector.clone() for vector in held))
        after = optim.step(spec, own, grad, state, spec.lr, layout, 0.5, [slice(0, 64), slice(128, 192)])
        return own, *after.vectors

    whole = stepped()
    monkeypatch.setattr("farflung.train.vector_store.BLOCK", 16)
    monkeypatch.setattr(optim, "GROUP", 1)
    assert all(map(torch.equal, whole, stepped()))
    for before, after in zip((params, *held), whole, strict=True):
        assert torch.equal(after[:64], before[:64])
        assert torch.equal(after[128:], before[128:])
        assert not torch.equal(after[64:128], before[64:128])


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_decay_touches_only_what_the_mask_names(name):
    start, mask = torch.ones(4), torch.tensor([1.0, 0.0, 1.0, 0.0])
    spec = OptimizerSpec(name=name, weight_decay=0.5)
    optim.step(spec, start, torch.zeros(4), optim.fresh(spec, start), 0.1, optim.ParameterLayout(mask))
    torch.testing.assert_close(start, torch.tensor([0.95, 1.0, 0.95, 1.0]))


def test_clip_bounds_the_global_norm():
    grad = torch.full((4,), 3.0)
    norm = optim.norm(grad)
    assert norm == pytest.approx(6.0)
    assert float(optim.bounded(grad, norm, 1.0).norm()) == pytest.approx(1.0)
    assert optim.clip_factor(norm, 0.0) == optim.clip_factor(norm, 7.0) == 1.0


def test_the_norm_of_a_large_gradient_is_that_of_an_exact_step() -> None:
    grad = torch.randn(5 << 20, generator=torch.Generator().manual_seed(1))
    exact = float(torch.linalg.vector_norm(grad.double()))
    assert optim.norm(grad) == pytest.approx(exact, rel=3e-5)


def test_schedule_warms_up_and_falls_to_its_end():
    schedule = ScheduleSpec(warmup=10, final=0.1)
    rates = [learning_rate(step, 100, 1.0, schedule) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.55)
    assert rates[100] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))


@pytest.mark.parametrize("kind", ["cosine", "constant"])
def test_a_run_that_goes_on_has_the_rates_of_one_that_never_stopped(kind):
    whole = ScheduleSpec(kind, warmup=10, final=0.1)
    rest = msgspec.structs.replace(whole, begin=40)
    rates = [learning_rate(step, 100, 1.0, whole) for step in range(40, 100)]
    assert [learning_rate(step, 60, 1.0, rest) for step in range(60)] == rates


@pytest.mark.parametrize("schedule", [ScheduleSpec(warmup=0), ScheduleSpec(warmup=500), ScheduleSpec("constant", 5)])
def test_every_schedule_is_finite_and_within_its_peak(schedule):
    rates = [learning_rate(step, 100, 2.0, schedule) for step in range(130)]
    assert all(math.isfinite(rate) and 0 < rate <= 2.0 for rate in rates)


def test_where_all_was_sent_no_velocity_is_left():
    state, unsent = optim.OptimState(3, (torch.tensor([1.0, 2.0, 3.0]),)), torch.tensor([0.0, 0.5, -0.0])
    after = optim.begun(load(None, flags={"sync.method": "dgc"}).spec, state, unsent)
    assert optim.begun(load(None).spec, state, unsent).vectors[0].equal(state.vectors[0])
    assert after.vectors[0].tolist() == [0.0, 2.0, 0.0]
    assert after.step == 3


@given(size=st.integers(0, 200), exponent=st.integers(-30, 30), seed=st.integers(0, 9))
def test_an_ordered_norm_is_the_norm(size: int, exponent: int, seed: int) -> None:
    vector = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent
    assert optim.ordered_norm(vector) == pytest.approx(float(torch.linalg.vector_norm(vector.double())), rel=1e-6)

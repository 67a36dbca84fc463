"""Which models can be exchanged, and what is refused."""

from typing import Any

import pytest
import torch
from app_sync import Table, adamw, together
from torch import nn

from farflung.core.errors import FarflungError
from farflung.sync import DiLoCo, MuLoCo, Muon, SparseLoCo
from farflung.sync.model_weights import ModelWeights
from farflung.train import optim
from farflung.train.flat_model import FlatModel

H = 2


class Odd(nn.Module):
    """All at once: tied, frozen and unused parameters, a scalar, an empty tensor, primes, a convolution, buffers."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch_seed = torch.Generator().manual_seed(3)

        def made(*shape: int) -> nn.Parameter:
            return nn.Parameter((torch.randn(shape, generator=torch_seed) * 0.3).to(dtype))

        self.table = made(13, 7)
        self.head = self.table
        self.prime = made(7, 11)
        self.kernel = made(5, 1, 3)
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=dtype))
        self.empty = made(0, 4)
        self.unused = made(17)
        self.frozen = nn.Parameter(torch.ones(11, 7, dtype=dtype), requires_grad=False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        h = torch.conv1d(self.table[x][:, None], self.kernel, padding=1).mean(1) * self.scale
        return (h @ self.prime @ self.frozen) @ self.head.T


def step(model: nn.Module, rank: int, number: int) -> None:
    x = torch.randint(0, 13, (6,), generator=torch.Generator().manual_seed(100 * rank + number))
    nn.functional.cross_entropy(model(x).float(), (x + 1) % 13).backward()


def own(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("delay", [0, 1])
def test_every_kind_of_parameter_is_exchanged_once_or_left_alone(dtype: torch.dtype, delay: int) -> None:
    table = Table(2)

    def work(rank: int) -> tuple[dict[str, torch.Tensor], float]:
        model = Odd(dtype)
        first = own(model)
        group = table.groups()[rank]
        sync = SparseLoCo(
            model, adamw(model), sync_every=H, topk=4, chunk=16, transform="raw", fragment_sync_delay=delay, group=group
        )
        assert [tensor.name for tensor in sync.weights.layout.tensors] == [
            "kernel",
            "prime",
            "scale",
            "table",
            "unused",
        ]
        for number in range(3 * H):
            step(model, rank, number)
            sync.step()
            sync.zero_grad()
        sync.check()
        sync.finish()
        sync.close()
        end = own(model)
        assert torch.equal(end["frozen"], first["frozen"])
        assert torch.equal(end["unused"], first["unused"])
        assert not torch.equal(end["table"], first["table"])
        assert model.head is model.table
        assert all(p.dtype == dtype for p in model.parameters())
        return end, float(model.seen)

    (a, seen), (b, _) = together(2, work)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert seen == 3 * H  # buffers are each peer's own


def test_rounding_to_half_precision_is_no_change_that_is_sent() -> None:
    model = nn.Linear(8, 8).to(torch.bfloat16)
    sync = DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.0), sync_every=1, outer_lr=1.0, outer_momentum=0.0)
    sync.state = sync.sync.initial(sync.state.params + 1e-4)  # public weights that bfloat16 does not hold
    sync.memory.begin(sync.state.params)
    before = sync.state.params.copy()
    for _ in range(3):
        model(torch.ones(1, 8, dtype=torch.bfloat16)).sum().backward()
        sync.step()
    assert (sync.state.params == before).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: setattr(m, "more", nn.Parameter(torch.ones(3))), "more is new"),
        (lambda m: delattr(m, "prime"), "prime is gone"),
        (lambda m: m.prime.requires_grad_(False), "prime is gone or frozen"),
        (lambda m: setattr(m, "prime", nn.Parameter(torch.ones(7, 12))), r"prime was .*7, 11.* is .*7, 12"),
        (lambda m: setattr(m, "prime", nn.Parameter(torch.ones(7, 11))), "prime is another tensor"),
        (lambda m: setattr(m.prime, "data", m.prime.data.double()), "prime was torch.float32 .* is torch.float64"),
    ],
)
def test_a_model_that_changed_between_rounds_is_refused(change: Any, said: str) -> None:
    model = Odd()
    sync = DiLoCo(model, adamw(model), sync_every=1)
    step(model, 0, 0)
    sync.step()
    change(model)
    with pytest.raises(FarflungError, match=f"FF-SYNC-003.*{said}"):
        sync.step()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_change_that_is_not_finite_is_refused_and_its_tensor_named(value: float) -> None:
    model = Odd()
    sync = DiLoCo(model, adamw(model), sync_every=1)
    with torch.no_grad():
        model.kernel[0, 0, 0] = value
    with pytest.raises(FarflungError, match="FF-SYNC-005: weights of kernel"):
        sync.step()


@pytest.mark.parametrize(
    "model",
    [
        nn.Identity(),
        nn.Linear(2, 2).requires_grad_(False),
        nn.Linear(2, 2, dtype=torch.complex64),
        nn.Linear(2, 2, device="meta"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(model: nn.Module) -> None:
    with pytest.raises(FarflungError, match="FF-SYNC-002"):
        ModelWeights(model)


def test_muon_is_the_job_engine_s() -> None:
    """The torch optimizer and the functional form take the same steps."""
    from farflung.job.spec import OptimizerSpec

    torch.manual_seed(0)
    made = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 6), nn.Linear(6, 8))
    flat_one = FlatModel(made)
    torch.manual_seed(0)
    other = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 6), nn.Linear(6, 8))
    spec = OptimizerSpec(name="muon", lr=1e-2, momentum=0.95, weight_decay=0.1)
    optimizer = Muon(other, lr=1e-2, momentum=0.95, betas=(spec.beta1, spec.beta2), weight_decay=0.1)
    state = optim.fresh(spec, flat_one.params)
    for number in range(4):
        generator = torch.Generator().manual_seed(number)
        for (_, p), (tensor, place) in zip(sorted(other.named_parameters()), flat_one.layout.slices(), strict=True):
            p.grad = torch.randn(tensor.shape, generator=generator)
            flat_one.grads[place] = p.grad.reshape(-1)
        optimizer.step()
        state = optim.step(spec, flat_one.params, flat_one.grads, state, 1e-2, flat_one.parameter_layout)
    mine = torch.cat([p.detach().reshape(-1) for _, p in sorted(other.named_parameters())])
    assert torch.allclose(mine, flat_one.params, atol=1e-6)


def test_muloco_without_an_optimizer_takes_muon() -> None:
    model = Odd()
    sync = MuLoCo(model, sync_every=1)
    assert isinstance(sync.inner_optimizer, Muon)
    step(model, 0, 0)
    assert sync.step() is not None

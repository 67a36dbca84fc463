"""Parts of a model that not every peer trains: they move as their peers train them, and are left alone otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from app_sync import DEVICE, Table, together
from torch import nn

from farflung.core.errors import FarflungError
from farflung.sync import DGC, DeMo, LocalSGD, MuLoCo, PowerSGD, SparseLoCo

WIDTH, H = 24, 4


def model() -> nn.ModuleDict:
    made = nn.ModuleDict({"shared": nn.Linear(WIDTH, WIDTH), "expert": nn.Linear(WIDTH, WIDTH)})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return made.to(DEVICE)


def loss(made: nn.ModuleDict, seed: int, *, has_expert: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x, noise, more = (torch.randn(32, WIDTH, generator=generator).to(DEVICE) for _ in range(3))
    found: torch.Tensor = (made["shared"](x) - x.flip(1) - 0.5 * noise).square().mean()
    if has_expert:
        found = found + (made["expert"](x) + x.roll(1, 1) - 0.5 * more).square().mean()
    return found


def adamw(made: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(made.parameters(), lr=1e-2)


METHODS: dict[str, tuple[int, Callable[..., Any]]] = {
    "sparse_loco": (160, lambda m, **more: SparseLoCo(m, adamw(m), sync_every=H, topk=64, chunk=256, **more)),
    "sparse_loco, joined": (160, lambda m, **more: SparseLoCo(m, adamw(m), sync_every=H, **more)),
    "sparse_loco, delayed": (
        160,
        lambda m, **more: SparseLoCo(m, adamw(m), sync_every=H, topk=64, chunk=256, fragment_sync_delay=1, **more),
    ),
    "muloco": (160, lambda m, **more: MuLoCo(m, lr=1e-2, sync_every=H, **more)),
    "local_sgd": (160, lambda m, **more: LocalSGD(m, adamw(m), sync_every=H, **more)),
    "dgc": (120, lambda m, **more: DGC(m, lr=0.1, topk=16, chunk=256, **more)),
    "powersgd": (120, lambda m, **more: PowerSGD(m, lr=1e-2, weight_decay=0.0, **more)),
}


def trained(name: str, count: int, trainers: int, *, clips: bool, steps: int = 0) -> nn.ModuleDict:
    """The model after a training in which the first `trainers` of `count` peers have data for the expert."""
    most, build = METHODS[name]
    table = Table(count)

    def work(rank: int) -> nn.ModuleDict:
        made = model()
        sync = build(made, group=table.groups()[rank], clip_to_median=clips)
        for step in range(steps or most):
            loss(made, 1000 * rank + step, has_expert=rank < trainers).backward()
            sync.step()
            sync.zero_grad()
        sync.check()
        sync.finish()
        sync.close()
        return made

    ends = together(count, work)
    return ends[0]


# Each method once, all counts, with a clip and without; in `make soak` each method with each count and both.
COUNTS = (2, 3, 4, 5)
PAIRS = {(name, COUNTS[(n if n % 2 else n + 2) % 4], n % 2 == 0) for n, name in enumerate(METHODS)}
CASES = [
    pytest.param(*case, marks=() if case in PAIRS else pytest.mark.soak)
    for case in itertools.product(METHODS, COUNTS, (False, True))
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count", "clips"), CASES)
def test_an_expert_that_one_of_n_trains_ends_within_five_percent(name: str, count: int, clips: bool) -> None:
    ends = [trained(name, count, trainers, clips=clips) for trainers in (1, count)]
    with torch.no_grad():
        alone, all_of_them = (sum(loss(m, 90_000 + n, has_expert=True).item() for n in range(20)) for m in ends)
    assert alone < 1.05 * all_of_them


@pytest.mark.parametrize("name", METHODS)
def test_what_nobody_trains_stays_as_it_is_bit_for_bit(name: str) -> None:
    end = trained(name, 2, 0, clips=True, steps=3 * H)
    for (key, after), before in zip(end.named_parameters(), model().parameters(), strict=True):
        assert torch.equal(after, before) is key.startswith("expert")


def test_a_pause_of_an_expert_is_no_small_vote_that_freezes_the_others() -> None:
    """Two of three trained it once and hold a rest that was not sent; the third goes on, and is not held to that."""
    table = Table(3)

    def work(rank: int) -> float:
        made = model()
        sync = SparseLoCo(made, adamw(made), sync_every=H, topk=8, chunk=256, group=table.groups()[rank])
        moved = 0.0
        for step in range(8 * H):
            before = made["expert"].weight.detach().clone()
            loss(made, 1000 * rank + step, has_expert=rank == 0 or step < H).backward()
            report = sync.step()
            sync.zero_grad()
            if report is not None and step > 6 * H:
                moved = (made["expert"].weight.detach() - before).norm().item()
        return moved

    assert together(3, work)[1] > 0.02


def test_demo_names_the_parameters_that_a_rank_has_no_gradient_for() -> None:
    table, causes = Table(2), dict[int, str]()

    def work(rank: int) -> None:
        made = model()
        optimizer = DeMo(made.named_parameters(), process_group=table.groups()[rank])
        for step in range(3):
            optimizer.zero_grad()
            loss(made, step, has_expert=rank == 0 or step < 2).backward()
            try:
                optimizer.step()
            except FarflungError as error:
                causes[rank] = f"{error.code} {error.cause}"

    together(2, work)
    assert causes[1].startswith("FF-SYNC-021")
    assert causes[1].endswith("without a gradient here: expert.weight, expert.bias")
    assert causes[0].endswith("here: none")


def test_a_round_s_report_tells_whose_contribution_was_clipped() -> None:
    table = Table(3)

    def work(rank: int) -> Any:
        net = nn.Linear(4, 4, bias=False)
        with torch.no_grad():
            net.weight.zero_()
        inner = torch.optim.SGD(net.parameters(), lr=1.0)
        sync = LocalSGD(net, inner, sync_every=1, clip_to_median=True, group=table.groups()[rank])
        net.weight.grad = torch.full((4, 4), 4.0 if rank == 2 else 1.0)
        return sync.step()

    for report in together(3, work):
        assert report.clipped == {2: pytest.approx(0.75, rel=1e-3)}

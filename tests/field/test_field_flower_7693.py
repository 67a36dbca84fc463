"""flower #7693, #7708: a client without examples in a round; and rounds of 12 million tokens, as Covenant has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from app_sync import Table, adamw, alone, flat, loss, net, together
from torch import nn

from farflung.core.errors import FarflungError
from farflung.sync import DGC, LocalSGD, PowerSGD, RoundReport, SparseLoCo

Made = Callable[[nn.Module, Any], Any]


def trained(told: list[list[int]], made: Made) -> list[tuple[torch.Tensor, RoundReport]]:
    """Rounds of one step a number; a peer that has no tokens does not call backward."""
    groups = Table(len(told)).groups()

    def work(rank: int) -> tuple[torch.Tensor, RoundReport]:
        model = net()
        sync = made(model, groups[rank])
        report = None
        for number, tokens in enumerate(told[rank]):
            if tokens:
                loss(model, rank, number).backward()
            report = sync.step(tokens=tokens)
            sync.zero_grad()
        sync.check()
        assert report is not None
        return flat(model), report

    return together(len(told), work)


def local(model: nn.Module, group: Any) -> LocalSGD:
    return LocalSGD(model, adamw(model), sync_every=1, group=group)


MADE: list[Made] = [
    local,
    lambda model, group: LocalSGD(model, adamw(model), sync_every=1, clip_to_median=True, group=group),
    lambda model, group: SparseLoCo(model, adamw(model), sync_every=1, topk=16, chunk=256, group=group),
    lambda model, group: DGC(model, lr=0.1, group=group),
    lambda model, group: PowerSGD(model, lr=0.1, rank=2, group=group),
]


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("told", [[[0], [10]], [[10, 0, 5], [0, 0, 3], [7, 0, 0]]])
def test_a_round_without_tokens_is_told_and_goes_on(made: Made, told: list[list[int]]) -> None:
    (first, report), *others = trained(told, made)
    empty = {rank for rank, numbers in enumerate(told) if not numbers[-1]}
    for end, other in [(first, report), *others]:
        assert torch.equal(end, first)
        assert set(other.left_out) == empty
        assert set(other.accepted) == set(range(len(told))) - empty
        assert all("no tokens" in why for why in other.left_out.values())


def test_a_peer_without_tokens_takes_what_the_others_found() -> None:
    for end, _ in trained([[0], [10]], local):
        assert torch.allclose(end, alone(1, 1), atol=1e-6)


@pytest.mark.parametrize("unit", [1, 1 << 20, 12_000_000, 1 << 44])
def test_any_number_of_tokens_weighs_as_its_share(unit: int) -> None:
    expected = (3 * alone(0, 1) + alone(1, 1)) / 4
    for end, report in trained([[3 * unit], [unit]], local):
        assert torch.allclose(end, expected, atol=1e-6)
        assert not report.left_out


@pytest.mark.parametrize("tokens", [-1, 2.5, "3", 1 << 49])
def test_tokens_that_cannot_be_told_are_refused_before_the_step(tokens: Any) -> None:
    model = net()
    sync = local(model, None)
    before = flat(model)
    loss(model, 0, 0).backward()
    with pytest.raises(FarflungError, match="FF-SYNC-016") as caught:
        sync.step(tokens=tokens)
    assert "tokens = " in caught.value.cause
    assert torch.equal(flat(model), before)
    assert sync.done == 0

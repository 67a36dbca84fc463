"""Contributions weigh what their peers trained on, where the loops tell it."""

import copy
import struct
from typing import Any

import pytest
import torch
from app_sync import Table, adamw, alone, flat, loss, net, together

from farflung.core.errors import FarflungError
from farflung.sync import DGC, LocalSGD, PowerSGD, RoundReport
from farflung.sync import DiLoCo as Dense
from farflung.sync.exchange_round import TOKENS

H = 2


def steps(sync: Any, model: torch.nn.Module, rank: int, told: list[int | None], first: int = 0) -> Any:
    """A step for each number of tokens; the last report."""
    report = None
    for number, tokens in enumerate(told):
        loss(model, rank, first + number).backward()
        report = sync.step() if tokens is None else sync.step(tokens=tokens)
        sync.zero_grad()
    return report


def trained(told: list[list[int | None]]) -> list[torch.Tensor]:
    table = Table(len(told))

    def work(rank: int) -> torch.Tensor:
        model = net()
        steps(LocalSGD(model, adamw(model), sync_every=H, group=table.groups()[rank]), model, rank, told[rank])
        return flat(model)

    return together(len(told), work)


def test_the_mean_of_a_round_is_weighted_by_its_tokens() -> None:
    expected = (3 * alone(0, H) + alone(1, H)) / 4
    for end in trained([[1000, 2000], [400, 600]]):
        assert torch.allclose(end, expected, atol=1e-6)


def test_without_tokens_all_weigh_the_same() -> None:
    expected = (alone(0, H) + alone(1, H)) / 2
    for told in ([[None, None]] * 2, [[7, 7]] * 2):
        for end in trained(told):
            assert torch.allclose(end, expected, atol=1e-6)


def test_tokens_count_for_one_round_alone() -> None:
    table = Table(2)

    def work(rank: int) -> torch.Tensor:
        model = net()
        sync = LocalSGD(model, adamw(model), sync_every=1, group=table.groups()[rank])
        steps(sync, model, rank, [1000 if rank else 1, 5])
        return torch.tensor([struct.unpack_from("<Q", table.sent[tag, rank])[0] for tag in (0, 4)])

    first, second = together(2, work)
    assert first.tolist() == [1, 5]
    assert second.tolist() == [1000, 5]


@pytest.mark.parametrize("method", ["dgc", "powersgd"])
def test_gradients_are_weighted_in_every_phase(method: str) -> None:
    def end(told: list[int]) -> torch.Tensor:
        table = Table(2)

        def work(rank: int) -> torch.Tensor:
            model, group = net(), table.groups()[rank]
            sync = DGC(model, lr=0.1, group=group) if method == "dgc" else PowerSGD(model, lr=0.1, rank=2, group=group)
            steps(sync, model, rank, [told[rank]] * 2)
            return flat(model)

        first, second = together(2, work)
        assert torch.equal(first, second)
        weights = {struct.unpack_from("<Q", data)[0] for (_, rank), data in table.sent.items() if rank == 0}
        assert weights == {told[0]}
        return first

    assert not torch.equal(end([1, 1]), end([9, 1]))
    assert torch.equal(end([2, 2]), end([1, 1]))


@pytest.mark.parametrize(
    ("told", "left", "why"),
    [
        ([[10, 10], [None, None], [10, 10]], {1}, "none told"),
        ([[None, None], [10, 10], [None, None]], {1}, "most tell none"),
        ([[10, 10], [None, None]], {1}, "none told"),
    ],
)
def test_who_tells_tokens_unlike_the_others_is_left_out_by_all(
    told: list[list[int | None]], left: set[int], why: str
) -> None:
    table = Table(len(told))

    def work(rank: int) -> tuple[torch.Tensor, RoundReport]:
        model = net()
        sync = LocalSGD(model, adamw(model), sync_every=H, min_quorum=1, group=table.groups()[rank])
        return flat(model), steps(sync, model, rank, told[rank])

    ends = together(len(told), work)
    for end, report in ends:
        assert set(report.left_out) == left
        assert all("FF-SYNC-017" in reason and why in reason for reason in report.left_out.values())
        assert torch.equal(end, ends[0][0])


def test_a_quorum_that_is_missed_for_tokens_says_so() -> None:
    with pytest.raises(FarflungError, match=r"FF-SYNC-01[01]") as caught:
        trained([[10, 10], [None, None], [10, 10]])
    assert "FF-SYNC-017" in str(caught.value) + (caught.value.cause or "")


@pytest.mark.parametrize("told", [[TOKENS, 1], [5, -9], [5, 0.5], [-1, 2]])
def test_tokens_that_cannot_be_a_weight_are_refused_where_they_are_told(told: list[int]) -> None:
    model = net()
    with pytest.raises(FarflungError, match="FF-SYNC-016"):
        steps(LocalSGD(model, adamw(model), sync_every=H), model, 0, told)


@pytest.mark.parametrize("head", [struct.pack("<Q", TOKENS + 1), b"\xff" * 7 + b"\xfe", b""])
def test_a_weight_beyond_the_bound_is_left_out_by_all(head: bytes) -> None:
    table = Table(3, lambda tag, rank, data: head + (data[8:] if head else b"x") if rank == 1 else data)

    def work(rank: int) -> tuple[torch.Tensor, RoundReport]:
        model = net()
        sync = LocalSGD(model, adamw(model), sync_every=H, min_quorum=2, group=table.groups()[rank])
        report = steps(sync, model, rank, [10, 10])
        return flat(model), report

    ends = together(3, work)
    for end, report in ends:
        assert report.accepted == (0, 2)
        assert "FF-SYNC-017" in report.left_out[1]
        assert torch.equal(end, ends[0][0])


def test_the_tokens_of_an_open_round_are_in_its_checkpoint() -> None:
    def run(halves: bool) -> list[Any]:
        table = Table(2)

        def work(rank: int) -> torch.Tensor:
            model = net()
            made = lambda m: Dense(m, adamw(m), sync_every=H, group=table.groups()[rank])  # noqa: E731
            sync = made(model)
            steps(sync, model, rank, [1000 if rank else 10])
            if halves:
                saved = copy.deepcopy({"model": model.state_dict(), "sync": sync.state_dict()})
                model = net(seed=7)
                sync = made(model)
                model.load_state_dict(saved["model"])
                sync.load_state_dict(saved["sync"])
            steps(sync, model, rank, [5], first=1)
            return flat(model)

        return together(2, work)

    assert all(torch.equal(a, b) for a, b in zip(run(False), run(True), strict=True))

"""The sync methods as library calls: what a round does, and what it refuses."""

import copy
import logging
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from app_sync import Table, ThreadGroup, adamw, alone, flat, loss, net, together, train
from torch import nn

from farflung.core.errors import FarflungError
from farflung.sync import DGC, DiLoCo, LocalSGD, MuLoCo, PowerSGD, SparseLoCo
from farflung.sync.synchronizer import Synchroniser

H = 3
LOCAL = {
    "sparse_loco": (SparseLoCo, {"topk": 32, "chunk": 256, "transform": "raw"}),
    "sparse_loco dct": (SparseLoCo, {"topk": 32, "chunk": 256, "transform": "dct"}),
    "diloco": (DiLoCo, {}),
    "diloco 2 bit": (DiLoCo, {"value_bits": 2}),
    "streaming": (DiLoCo, {"fragments": 3}),
    "delayed": (DiLoCo, {"fragment_sync_delay": 1}),
    "streaming and delayed": (SparseLoCo, {"fragments": 2, "fragment_sync_delay": 1, "topk": 32, "chunk": 256}),
    "muloco": (MuLoCo, {}),
    "local_sgd": (LocalSGD, {}),
}
STEPWISE = {"dgc": (DGC, {"lr": 0.05}), "powersgd": (PowerSGD, {"lr": 0.01, "rank": 2})}


def build(name: str, model: nn.Module, group: ThreadGroup | None, **more: Any) -> Synchroniser:
    if name in STEPWISE:
        kind, settings = STEPWISE[name]
        return kind(model, **{**settings, **more}, group=group)
    kind, settings = LOCAL[name]
    inner = () if kind is MuLoCo else (adamw(model),)
    return kind(model, *inner, **{"sync_every": H, **settings, **more}, group=group)


def fails(code: str) -> Any:
    return pytest.raises(FarflungError, match=code)


@pytest.mark.whole
@pytest.mark.parametrize("name", [*LOCAL, *STEPWISE])
def test_peers_end_with_the_same_bits_and_a_lower_loss(name: str) -> None:
    table = Table(3)

    def work(rank: int) -> tuple[torch.Tensor, float, float]:
        model = net()
        sync = build(name, model, table.groups()[rank])
        before = loss(model, 9, 9).item()
        reports = train(sync, model, rank, range(8 * H))
        sync.check()
        sync.finish()
        sync.close()
        assert all(report.accepted == (0, 1, 2) for report in reports)
        assert all(0 < report.payload_bytes < report.bytes_up for report in reports)
        assert all(0 <= report.hidden_seconds <= report.exchange_seconds for report in reports)
        assert sync.spec.sync.delay or not any(report.hidden_seconds for report in reports)
        return flat(model), before, loss(model, 9, 9).item()

    ends = together(3, work)
    assert all(torch.equal(end[0], ends[0][0]) for end in ends)
    assert ends[0][2] < ends[0][1]


def test_local_sgd_is_the_mean_of_what_the_peers_trained() -> None:
    def work(rank: int) -> torch.Tensor:
        model = net()
        train(build("local_sgd", model, table.groups()[rank]), model, rank, range(H))
        return flat(model)

    table = Table(2)
    expected = (alone(0, H) + alone(1, H)) / 2
    for end in together(2, work):
        assert torch.allclose(end, expected, atol=1e-6)


def test_one_peer_alone_without_a_group_is_its_inner_optimizer() -> None:
    model, other = net(), net()
    sync = build("local_sgd", model, None)
    train(sync, model, 0, range(2 * H))
    optimizer = adamw(other)
    for step in range(2 * H):
        loss(other, 0, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.allclose(flat(model), flat(other), atol=1e-6)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["sparse_loco", "streaming and delayed", "delayed", "muloco", "dgc"])
@pytest.mark.parametrize("stop", [1, H, 2 * H, 3 * H + 2])
def test_a_run_goes_on_bit_for_bit_from_its_state_dict(name: str, stop: int) -> None:
    def work(table: Table, halves: bool) -> Any:
        def one(rank: int) -> torch.Tensor:
            model = net()
            sync = build(name, model, table.groups()[rank])
            train(sync, model, rank, range(stop))
            if halves:
                saved = copy.deepcopy({"model": model.state_dict(), "sync": sync.state_dict()})
                sync.close()
                model = net(seed=rank + 5)
                sync = build(name, model, table.groups()[rank])
                model.load_state_dict(saved["model"])
                sync.load_state_dict(saved["sync"])
            train(sync, model, rank, range(stop, 5 * H))
            sync.close()
            return flat(model)

        return one

    whole = together(2, work(Table(2), halves=False))
    parts = together(2, work(Table(2), halves=True))
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


def test_a_state_dict_of_another_method_or_model_is_refused() -> None:
    saved = build("diloco", net(), None).state_dict()
    with fails("FF-SYNC-004"):
        build("sparse_loco", net(), None).load_state_dict(saved)
    with fails("FF-SYNC-004"):
        build("diloco", net(hidden=41), None).load_state_dict(saved)
    with fails("FF-SYNC-004"):
        build("diloco", net(), None).load_state_dict({})


def test_what_a_delayed_exchange_brings_is_applied_one_round_later() -> None:
    table = Table(2)

    def work(rank: int) -> list[torch.Tensor]:
        model = net()
        sync = build("delayed", model, table.groups()[rank], outer_momentum=0.0, outer_lr=1.0)
        seen = [torch.from_numpy(sync.state.params.copy())]
        for round in range(3):
            train(sync, model, rank, range(round * H, (round + 1) * H))
            seen.append(torch.from_numpy(sync._shown().params.copy()))
        sync.close()
        return seen

    first, second = together(2, work)
    for round in range(4):
        assert torch.equal(first[round], second[round])
    assert torch.equal(first[0], first[1])  # the first exchange is still under way
    assert not torch.equal(first[1], first[2])


def test_finish_applies_the_exchange_that_is_under_way() -> None:
    table = Table(2)

    def work(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        model = net()
        sync = build("delayed", model, table.groups()[rank])
        train(sync, model, rank, range(H))
        report = sync.finish()
        assert report is not None
        assert report.round == 0
        sync.close()
        return flat(model), torch.from_numpy(sync.state.params.copy())

    (a, _), (b, _) = together(2, work)
    assert torch.equal(a, b)
    assert not torch.equal(a, flat(net()))


def test_only_the_round_s_fragment_travels() -> None:
    model = net()
    sync = build("streaming", model, None)
    sizes = [report.payload_bytes for report in train(sync, model, 0, range(3 * H))]
    whole = build("diloco", net(), None)
    (report,) = train(whole, net(), 0, range(H)) or [None]
    assert report is not None
    assert sum(sizes) < report.payload_bytes + 3 * 200
    assert max(sizes) < report.payload_bytes


def test_a_broken_payload_is_left_out_by_all_and_its_rank_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def tamper(tag: int, rank: int, payload: bytes) -> bytes:
        return payload[:-1] + bytes([payload[-1] ^ 0x7F]) + b"!" if rank == 1 and tag == 4 else payload

    def work(rank: int) -> tuple[torch.Tensor, Any]:
        model = net()
        sync = build("sparse_loco", model, table.groups()[rank], min_quorum=2)
        reports = train(sync, model, rank, range(3 * H))
        sync.check()
        return flat(model), reports

    table = Table(3, tamper)
    with caplog.at_level(logging.WARNING, "farflung.sync"):
        ends = together(3, work)
    assert all(torch.equal(end[0], ends[0][0]) for end in ends)
    for _, reports in ends:
        assert [report.accepted for report in reports] == [(0, 1, 2), (0, 2), (0, 1, 2)]
        assert "FF-COMP" in reports[1].left_out[1]
    assert "without rank 1" in caplog.text


def test_a_round_fails_when_fewer_than_the_quorum_can_be_read() -> None:
    table = Table(2, lambda tag, rank, payload: payload[:120] if rank == 1 else payload)
    with fails("FF-SYNC-010"):
        together(2, lambda rank: train(build("diloco", m := net(), table.groups()[rank]), m, rank, range(H)))


def test_what_did_not_count_is_sent_later() -> None:
    """The peer that was left out keeps its change in the residual; a peer that was not does not."""

    def residual(tamper: Any) -> list[np.ndarray]:
        table = Table(3, tamper)

        def work(rank: int) -> np.ndarray:
            model = net()
            sync = build("sparse_loco", model, table.groups()[rank], min_quorum=2)
            train(sync, model, rank, range(H))
            return sync.memory.vectors()["residual"].cpu().numpy()

        return together(3, work)

    kept = residual(lambda tag, rank, payload: None if rank == 1 else payload)
    usual = residual(None)
    assert np.array_equal(kept[0], usual[0])
    assert np.linalg.norm(kept[1]) > 1.05 * np.linalg.norm(usual[1])


def test_peers_that_start_from_different_weights_are_named() -> None:
    table = Table(3)

    def work(rank: int) -> None:
        model = net(seed=int(rank == 2))
        train(build("diloco", model, table.groups()[rank]), model, rank, range(H))

    with fails("FF-SYNC-006: parameters of rank 2 differ"):
        together(3, work)


def test_share_gives_all_the_weights_of_the_first() -> None:
    table = Table(2)

    def work(rank: int) -> torch.Tensor:
        model = net(seed=rank)
        sync = build("diloco", model, table.groups()[rank])
        sync.share()
        assert torch.equal(flat(model), flat(net(seed=0)))
        train(sync, model, rank, range(H))
        with fails("FF-SYNC-001"):
            sync.share()
        return flat(model)

    a, b = together(2, work)
    assert torch.equal(a, b)


@pytest.mark.parametrize(
    "settings", [{"sync_every": 0}, {"fragments": 0}, {"fragment_sync_delay": 2}, {"outer_lr": 0.0}]
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with fails("FF-SYNC-001"):
        build("diloco", net(), None, **settings)
    with fails("FF-SYNC-001"):
        build("diloco", net(), None, min_quorum=2)


def test_the_rate_of_a_method_that_is_its_own_optimizer_can_be_changed() -> None:
    ends = []
    for rate in (0.05, 0.01):
        model = net()
        sync = build("dgc", model, None)
        train(sync, model, 0, range(1))
        middle = flat(model)
        sync.set_lr(rate)
        train(sync, model, 0, range(1, 2))
        ends.append(flat(model) - middle)
    assert ends[0].norm() > 4 * ends[1].norm()
    with fails("FF-SYNC-001"):
        sync.set_lr(-1.0)


@pytest.mark.whole
def test_the_facade_is_an_attribute_that_is_loaded_when_it_is_used() -> None:
    code = "import sys, farflung; assert 'torch' not in sys.modules; farflung.sync.SparseLoCo"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


SMALL = """
import sys, torch, farflung
model = torch.nn.Linear(64, 64)
sync = farflung.sync.SparseLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), sync_every=1)
for _ in range(3):
    model(torch.ones(1, 64)).sum().backward()
    sync.step()
print("numba" in sys.modules)
"""


@pytest.mark.whole
def test_a_small_model_s_rounds_do_not_wait_for_a_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True, check=True, timeout=110)
    assert done.stdout.strip() == "False"

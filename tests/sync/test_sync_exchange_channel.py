"""Exchanges belong to the group, and settings are compared before the first round."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext as nothing
from typing import Any

import pytest
import torch
from app_sync import Table, adamw, loss, net, together
from app_sync_mesh import meshed
from torch import nn

from farflung.core.errors import FarflungError, VerificationError
from farflung.core.ids import Hash
from farflung.sync import DGC, DeMo, DiLoCo, GradientSync, LocalSGD, Mesh, MuLoCo, PowerSGD, SparseLoCo
from farflung.sync.exchange_channel import CHANNEL_BITS, ExchangeChannel
from farflung.sync.exchange_round import check_roots

Made = Callable[[nn.Module, Any], Any]


def step(sync: Any, model: nn.Module, rank: int, number: int = 0) -> Any:
    loss(model, rank, number).backward()
    report = sync.step()
    sync.zero_grad()
    return report


def refused(size: int, work: Callable[[int, Any], Any]) -> list[FarflungError]:
    """What each rank of a group of threads is told."""
    groups = Table(size).groups()

    def one(rank: int) -> FarflungError:
        with pytest.raises(FarflungError) as caught:
            work(rank, groups[rank])
        return caught.value

    found: list[FarflungError] = together(size, one)
    return found


CASES: list[tuple[str, str, str, Callable[..., Any], dict[str, Any]]] = [
    ("sync_every", "1", "2", LocalSGD, {}),
    ("value_bits", "2", "4", SparseLoCo, {"sync_every": 1}),
    ("chunk", "4096", "256", SparseLoCo, {"sync_every": 1}),
    ("topk", "64", "32", SparseLoCo, {"sync_every": 1}),
    ("transform", "raw", "dct", SparseLoCo, {"sync_every": 1}),
    ("error_decay", "0.95", "0.5", MuLoCo, {"sync_every": 1}),
    ("outer_lr", "0.7", "0.5", DiLoCo, {"sync_every": 1}),
    ("outer_momentum", "0.9", "0.5", DiLoCo, {"sync_every": 1}),
    ("fragments", "1", "2", DiLoCo, {"sync_every": 1}),
    ("fragment_sync_delay", "0", "1", DiLoCo, {"sync_every": 1}),
    ("clip_to_median", "False", "True", LocalSGD, {"sync_every": 1}),
    ("min_quorum", "3", "2", LocalSGD, {"sync_every": 1}),
    ("lr", "0.1", "0.2", DGC, {}),
    ("momentum", "0.9", "0.8", DGC, {"lr": 0.1}),
    ("rank", "2", "3", PowerSGD, {"lr": 0.1}),
    ("weight_decay", "0.1", "0.0", PowerSGD, {"lr": 0.1}),
]


@pytest.mark.parametrize(("name", "usual", "other", "kind", "settings"), CASES)
def test_a_setting_that_one_peer_has_otherwise_is_named_at_every_peer(
    name: str, usual: str, other: str, kind: Callable[..., Any], settings: dict[str, Any]
) -> None:
    as_value = {"True": True, "False": False, "raw": "raw", "dct": "dct"}

    def work(rank: int, group: Any) -> None:
        text = other if rank == 1 else usual
        value = as_value.get(text, float(text) if "." in text else int(text) if text.isdigit() else text)
        model = net()
        inner = [] if kind in (DGC, PowerSGD) else [adamw(model)]
        step(kind(model, *inner, group=group, **(settings | {name: value})), model, rank)

    errors = refused(3, work)
    for rank, error in enumerate(errors):
        assert error.code == "FF-SYNC-018"
        there, here = (usual, other) if rank == 1 else (other, usual)
        peer = 0 if rank == 1 else 1
        assert re.search(rf"{name} is {there} at rank {peer} \(\w+\), {here} here \(rank {rank}\)", error.cause)


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (lambda rank, group: LocalSGD(net(hidden=40 + rank), adamw(net()), sync_every=1, group=group), "model is"),
        (lambda rank, group: (LocalSGD, DiLoCo)[rank](m := net(), adamw(m), sync_every=1, group=group), "method is"),
        (lambda rank, group: DeMo(net().parameters(), lr=1e-3 * (1 + rank), process_group=group), "lr is 0.002"),
        (lambda rank, group: DeMo(net().parameters(), compression_topk=8 << rank, process_group=group), "topk is"),
        (lambda rank, group: GradientSync("topk", value_bits=4 << rank, group=group), "value_bits is"),
        (lambda rank, group: GradientSync("topk", momentum=0.1 * rank, group=group), "momentum is"),
    ],
)
def test_other_objects_compare_too(made: Callable[[int, Any], Any], word: str) -> None:
    def work(rank: int, group: Any) -> None:
        sync = made(rank, group)
        if isinstance(sync, GradientSync):
            sync.mean("w", torch.ones(8))
            return
        if isinstance(sync, DeMo):
            for parameter in sync.param_groups[0]["params"]:
                parameter.grad = torch.ones_like(parameter)
        sync.step()

    first, second = refused(2, work)
    assert first.code == second.code == "FF-SYNC-018"
    assert word in first.cause + second.cause


def test_another_place_in_a_run_is_named() -> None:
    def work(rank: int, group: Any) -> None:
        model = net()
        sync = LocalSGD(model, adamw(model), sync_every=2, group=group)
        sync.done = rank  # as from a checkpoint
        step(sync, model, rank)

    assert all("steps of the open round is" in error.cause for error in refused(2, work))


def test_calls_that_differ_are_named_instead_of_merged() -> None:
    def work(rank: int, group: Any) -> None:
        model = net()
        sync = LocalSGD(model, adamw(model), sync_every=1, group=group)
        step(sync, model, rank)
        if rank:
            sync.check()
        step(sync, model, rank, 1)

    for rank, error in enumerate(refused(2, work)):
        assert error.code == "FF-SYNC-019"
        assert "'check() before round 1'" in error.cause
        assert f"this peer (rank {rank}) is at" in error.cause


def test_a_long_name_of_a_call_is_the_same_call() -> None:
    groups = Table(2).groups()

    def one(rank: int) -> dict[int, bytes]:
        channel = ExchangeChannel(groups[rank])
        channel.meet({}, 2)
        return channel.exchange("7 " * 100, bytes([rank]), 1, 2).payloads

    assert together(2, one) == [{0: b"\0", 1: b"\1"}] * 2


def test_parameters_that_no_payload_has_are_called_one_s_own() -> None:
    with pytest.raises(VerificationError, match="FF-SYNC-006: parameters of this peer differ") as caught:
        check_roots({0: b"abcd", 2: b"abcd"}, Hash(b"x" * 32))
    assert "older exchange" in caught.value.cause


def layers(mesh: Mesh) -> None:
    """A new object after a change of layers."""
    model = net()
    for first in (0, 3):
        sync = LocalSGD(model, adamw(model), sync_every=1, group=mesh)
        for number in range(first, first + 3):
            step(sync, model, mesh.rank, number)
        model[0].bias.requires_grad_(False)  # type: ignore[index, union-attr]


def ages(mesh: Mesh) -> None:
    """An old object and a young one with an exchange in the background, in turns; and one that is not used."""
    one, two = net(), net(1)
    old = SparseLoCo(one, adamw(one), sync_every=1, group=mesh)
    for number in range(4):
        step(old, one, mesh.rank, number)
    if mesh.rank:
        LocalSGD(two, adamw(two), group=mesh)
    young = DiLoCo(two, adamw(two), sync_every=2, fragment_sync_delay=1, group=mesh)
    for number in range(4):
        step(old, one, mesh.rank, number)
        step(young, two, mesh.rank, number)
        old.check()
    young.finish()
    young.check()
    young.close()


def slow(call: str, who: int) -> Callable[[Mesh], None]:
    """share() or check() where one member is slow once."""

    def work(mesh: Mesh) -> None:
        model = net()
        sync = LocalSGD(model, adamw(model), sync_every=1, group=mesh)
        if call == "share":
            sync.share()
        for number in range(3):
            if mesh.rank == who and number == 0:
                time.sleep(0.3)
            step(sync, model, mesh.rank, number)
            if call == "check":
                sync.check()

    return work


def sizes(mesh: Mesh) -> None:
    """Exchanges of one object may be of any length, whoever is ahead."""
    sync = GradientSync("dense", value_bits=32, group=mesh)
    for number in range(4):
        if mesh.rank == number % 2:
            time.sleep(0.1)
        for name, size in (("small", 2), ("large", 50_000)):
            assert float(sync.mean(name, torch.full((size,), float(mesh.rank)))[0]) == 0.5


@pytest.mark.parametrize(
    "work", [layers, ages, sizes, *(slow(call, who) for call in ("share", "check") for who in (0, 1))]
)
def test_objects_of_any_age_share_a_group(work: Callable[[Mesh], None]) -> None:
    assert meshed(2, work, deadline=20) == [None, None]


def test_a_closed_group_says_so() -> None:
    held: list[Mesh] = []
    meshed(2, held.append)
    for mesh in held:
        for call in (lambda mesh=mesh: mesh.exchange(0, b"x", 1, 2), lambda mesh=mesh: mesh.join(0.1)):
            with pytest.raises(FarflungError, match="FF-SYNC-011: this group is closed"):
                call()
        mesh.forget(1)
        mesh.close()


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_who_said_good_bye_is_not_waited_for(leaver: int) -> None:
    """The deadline is longer than the test may take."""

    def work(mesh: Mesh) -> Any:
        model = net()
        sync = LocalSGD(model, adamw(model), sync_every=1, min_quorum=2, group=mesh)
        step(sync, model, mesh.rank)
        if mesh.rank == leaver:
            return {}
        if leaver == 0:
            with pytest.raises(FarflungError, match=r"FF-SYNC-011: rank 0.*good-bye"):
                step(sync, model, mesh.rank, 1)
            return {}
        return [dict(step(sync, model, mesh.rank, number).left_out) for number in (1, 2)]

    for rank, found in enumerate(meshed(3, work, deadline=300)):
        if leaver and rank != leaver:
            assert found == [{leaver: "it said good-bye"}] * 2


@pytest.mark.slow
@pytest.mark.parametrize("longer", [0, 1])
def test_objects_that_cross_are_told_within_seconds(longer: int) -> None:
    def work(mesh: Mesh) -> str:
        model = net()
        for rounds in (2 + (mesh.rank == longer), 1):
            sync = LocalSGD(model, adamw(model), sync_every=1, group=mesh)
            with pytest.raises(FarflungError) if rounds != 2 or mesh.rank == longer else nothing() as caught:
                for number in range(rounds):
                    step(sync, model, mesh.rank, number)
            if caught is not None:
                return str(caught.value)
        return ""

    first, second = meshed(2, work, deadline=300)
    assert "FF-SYNC-010" in first
    assert "FF-SYNC-019" in second
    assert "object where rank 0" in first


def test_who_missed_an_exchange_and_is_gone_is_not_waited_for_again() -> None:
    """A program that was killed: no good-bye, and its connections are closed."""
    both, dead = threading.Barrier(2), threading.Event()

    def work(mesh: Mesh) -> list[str]:
        both.wait(100)  # each has joined: one that closes earlier is lost to the other's join
        if mesh.rank == 1:
            mesh._do(mesh._endpoint.close())
            dead.set()
            return []
        assert dead.wait(100)
        first = 1 << CHANNEL_BITS
        return [mesh.exchange(first + number, b"x", 1, 1).missing[1] for number in range(3)]

    gone = "it missed an exchange, and its connection is gone"
    assert meshed(2, work, deadline=0.3)[0] == ["nothing within 0.3 s", gone, gone]

"""A state_dict holds all that decides the next step: loaded into fresh objects, every method goes on bit for bit."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from app_sync import DEVICE, SIDE, Table, adamw, flat, loss, net, together
from torch import nn

from farflung.core.errors import FarflungError
from farflung.sync import DGC, DeMo, DiLoCo, LocalSGD, MuLoCo, PowerSGD, SparseLoCo

H = 3
STOPS = (0, 1, H, 2 * H + 1, 3 * H)
Make = Callable[[nn.Module, Any], Any]


def local(kind: Any, **settings: Any) -> Make:
    return lambda model, group: kind(model, adamw(model), sync_every=H, group=group, **settings)


def stepwise(kind: Any, **settings: Any) -> Make:
    return lambda model, group: kind(model, group=group, **settings)


SPARSE = {"topk": 32, "chunk": 256}
METHODS: dict[str, Make] = {
    "sparse_loco": local(SparseLoCo, **SPARSE),
    "sparse_loco, on the device": local(SparseLoCo, **SPARSE, on_device=True),
    "sparse_loco, dct, momentum": local(SparseLoCo, **SPARSE, transform="dct", outer_momentum=0.5),
    "sparse_loco, streaming, delayed": local(SparseLoCo, **SPARSE, fragments=2, fragment_sync_delay=1),
    "diloco": local(DiLoCo),
    "diloco, 2 bits, streaming": local(DiLoCo, value_bits=2, fragments=3),
    "diloco, delayed": local(DiLoCo, fragment_sync_delay=1),
    "local_sgd": local(LocalSGD),
    "muloco": lambda model, group: MuLoCo(model, sync_every=H, group=group),
    "dgc": stepwise(DGC, lr=0.05, topk=8, chunk=256),
    "dgc, warmup, clip": stepwise(DGC, lr=0.05, topk=8, chunk=256, warmup_rounds=4, clip=0.5),
    "powersgd": stepwise(PowerSGD, lr=0.01, rank=2),
    "powersgd, clip to median": stepwise(PowerSGD, lr=0.01, rank=2, clip_to_median=True),
    "demo": lambda model, group: DeMo(
        model.parameters(), lr=1e-2, compression_topk=8, compression_chunk=16, process_group=group
    ),
}


def rate(sync: Any, step: int) -> None:
    """A schedule of the user's: the rate of whatever makes the step."""
    lr = 0.01 / (1 + step % 5)
    inner = sync if isinstance(sync, torch.optim.Optimizer) else sync.inner_optimizer
    if inner is None:
        sync.set_lr(lr)
    else:
        for group in inner.param_groups:
            group["lr"] = lr


def walk(sync: Any, model: nn.Module, rank: int, steps: range, told: bool) -> None:
    """The rate changes at every third step alone: between, it is what the state says."""
    for step in steps:
        if step % 3 == 0:
            rate(sync, step)
        loss(model, rank, step).backward()
        sync.step(tokens=10 + 5 * rank) if told else sync.step()
        sync.zero_grad()


def kept(model: nn.Module, sync: Any) -> dict[str, Any]:
    """Through a file, as between processes."""
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "sync": sync.state_dict()}, file)
    file.seek(0)
    found: dict[str, Any] = torch.load(file)
    return found


def ended(sync: Any) -> None:
    """Waits for an exchange under way: the threads' table takes those of one object at a time."""
    if not isinstance(sync, DeMo):
        sync.close()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_goes_on_alike_from_every_step(name: str) -> None:
    make, told, steps = METHODS[name], not name.startswith("demo"), 3 * H + 1
    end = steps + H + 1

    def work(rank: int) -> list[bool]:
        group = table.groups()[rank]
        model = net()
        sync = make(model, group)
        saved = {}
        for step in range(steps):
            if step in STOPS:
                saved[step] = kept(model, sync)
            walk(sync, model, rank, range(step, step + 1), told)
        walk(sync, model, rank, range(steps, end), told)
        ended(sync)
        same = []
        for step, state in saved.items():
            model2 = net(seed=rank + 5)
            again = make(model2, group)
            model2.load_state_dict(state["model"])
            again.load_state_dict(state["sync"])
            walk(again, model2, rank, range(step, end), told)
            ended(again)
            same.append(torch.equal(flat(model), flat(model2)))
        return same

    table = Table(2)
    assert together(2, work) == [[True] * len(STOPS)] * 2


class Halts(Exception):
    """A group that is gone."""


def test_a_state_between_the_phases_of_powersgd_goes_on_there() -> None:
    """The second phase of step 2 fails at both peers; what they save then and what they hold go on alike."""

    def work(rank: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        group = table.groups()[rank]
        model = net()
        sync = METHODS["powersgd"](model, group)
        walk(sync, model, rank, range(2), told=False)
        whole, exchange = group.exchange, group.exchange
        calls: list[int] = []

        def broken(*asked: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise Halts
            return exchange(*asked)

        group.exchange = broken  # type: ignore[method-assign]
        with pytest.raises(Halts):
            walk(sync, model, rank, range(2, 3), told=False)
        group.exchange = whole  # type: ignore[method-assign]
        state = kept(model, sync)
        again = net(seed=7)
        other = METHODS["powersgd"](again, group)
        again.load_state_dict(state["model"])
        other.load_state_dict(state["sync"])
        for each, own in ((sync, model), (other, again)):
            own.zero_grad()
            walk(each, own, rank, range(3, 6), told=False)
        return flat(model), flat(again), state["sync"]["about"]["round"] % 2

    table = Table(2)
    for whole, parts, phase in together(2, work):
        assert phase == 1
        assert torch.equal(whole, parts)


OTHER: dict[str, tuple[Make, Make, str]] = {
    "weight decay": (stepwise(DGC, lr=0.1), stepwise(DGC, lr=0.1, weight_decay=0.01), "weight_decay is 0.0001"),
    "momentum": (stepwise(DGC, lr=0.1), stepwise(DGC, lr=0.1, momentum=0.5), "momentum is 0.9"),
    "clip": (stepwise(PowerSGD, lr=0.1), stepwise(PowerSGD, lr=0.1, clip=0.0), "clip is 1.0, this one's is 0.0"),
    "betas": (stepwise(PowerSGD, lr=0.1), stepwise(PowerSGD, lr=0.1, betas=(0.5, 0.9)), "beta1 is 0.9"),
    "steps": (local(DiLoCo), lambda m, g: DiLoCo(m, adamw(m), sync_every=5, group=g), "sync_every is 3"),
    "clipping": (local(DiLoCo), local(DiLoCo, clip_to_median=True), "clip_to_median is False"),
    "delay": (local(DiLoCo), local(DiLoCo, fragment_sync_delay=1), "fragment_sync_delay is 0"),
    "method": (local(DiLoCo), local(SparseLoCo), "method is 'diloco', this one's is 'sparse_loco'"),
    "inner optimizer": (
        local(DiLoCo),
        lambda m, g: DiLoCo(m, torch.optim.SGD(m.parameters(), lr=0.1), sync_every=H, group=g),
        "inner_optimizer is 'AdamW', this one's is 'SGD'",
    ),
    "demo's coefficients": (
        lambda m, g: DeMo(m.parameters(), compression_topk=8),
        lambda m, g: DeMo(m.parameters(), compression_topk=9),
        "compression_topk is 8, this one's is 9",
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_a_setting_that_differs_is_named(name: str) -> None:
    first, second, said = OTHER[name]
    saved = first(net(), None).state_dict()
    with pytest.raises(FarflungError, match="FF-SYNC-004") as raised:
        second(net(), None).load_state_dict(saved)
    assert said in str(raised.value)


def test_what_is_refused_changes_nothing() -> None:
    model = net()
    sync = METHODS["diloco"](model, None)
    walk(sync, model, 0, range(H + 1), told=False)
    before = kept(model, sync)
    state = kept(model, sync)["sync"]
    state["peer-0"]["inner names"] = "[[]]"
    with pytest.raises(FarflungError, match=r"FF-SYNC-004.*0\.bias"):
        sync.load_state_dict(state)
    after = kept(model, sync)
    assert str(before) == str(after)


def test_a_state_of_another_version_is_told_so() -> None:
    sync = METHODS["diloco"](net(), None)
    state = sync.state_dict()
    state["about"]["version"] = 2
    with pytest.raises(FarflungError, match=r"FF-CORE-095.*form 2"):
        sync.load_state_dict(state)


def test_the_inner_optimizer_s_state_goes_to_parameters_by_name() -> None:
    """Built from the parameters in another order, as a new version of a script may do."""

    def backwards(model: nn.Module) -> Any:
        inner = torch.optim.AdamW(list(model.parameters())[::-1], lr=1e-2)
        return DiLoCo(model, inner, sync_every=H)

    square = nn.Sequential(nn.Linear(SIDE, SIDE), nn.Tanh(), nn.Linear(SIDE, SIDE))
    sync = METHODS["diloco"](square, None)
    walk(sync, square, 0, range(1, H), told=False)
    state = kept(square, sync)
    again = nn.Sequential(nn.Linear(SIDE, SIDE), nn.Tanh(), nn.Linear(SIDE, SIDE))
    other = backwards(again)
    again.load_state_dict(state["model"])
    other.load_state_dict(state["sync"])
    for each, model in ((sync, square), (other, again)):
        walk(each, model, 0, range(H, 3 * H), told=False)
    assert torch.equal(flat(square), flat(again))


def checkpointed(model: nn.Module) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model[0] = checkpoint_wrapper(model[0])  # type: ignore[operator, index]
    return model


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled": lambda model: torch.compile(model, backend="eager"),  # type: ignore[return-value]
    "a part compiled": lambda model: nn.Sequential(torch.compile(model[0], backend="eager"), *model[1:]),  # type: ignore[index, list-item]
    "checkpointed": checkpointed,
    "compiled and parallel": lambda model: nn.DataParallel(torch.compile(model, backend="eager")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_plain_model_s_state_loads_into_a_wrapped_one_and_back(wrapper: str) -> None:
    def made(wrapped: bool, seed: int) -> tuple[nn.Module, Any]:
        model = net(seed)
        outer = WRAPPERS[wrapper](model) if wrapped else model
        return model, DiLoCo(outer, adamw(model), sync_every=H)

    for first in (True, False):
        model, sync = made(first, 0)
        for step in range(H + 1):
            loss(model, 0, step).backward()
            sync.step()
            sync.zero_grad()
        again, other = made(not first, 3)
        with torch.no_grad():
            for own, value in zip(again.parameters(), model.parameters(), strict=True):
                own.copy_(value)
        other.load_state_dict(sync.state_dict())
        for each, own in ((sync, model), (other, again)):
            walk(each, own, 0, range(H + 1, 3 * H), told=False)
        assert torch.equal(flat(model), flat(again))


def test_tensors_that_differ_are_named() -> None:
    saved = METHODS["diloco"](nn.Sequential(*net()), None).state_dict()
    with pytest.raises(FarflungError, match=r"FF-SYNC-004.*it has no body\.0\.bias, and this model has"):
        METHODS["diloco"](nn.ModuleDict({"body": net()}), None).load_state_dict(saved)
    with pytest.raises(FarflungError, match=r"FF-SYNC-004.*its 0\.bias is of \[40\], here of \[41\]"):
        METHODS["diloco"](net(hidden=41), None).load_state_dict(saved)


@pytest.mark.parametrize("name", ["sparse_loco", "diloco", "muloco", "local_sgd", "dgc", "powersgd", "demo"])
def test_an_empty_parameter_is_left_alone(name: str) -> None:
    model = net()
    model.empty = nn.Parameter(torch.zeros(0, 5, device=DEVICE))  # type: ignore[assignment]
    sync = METHODS[name](model, None)
    for step in range(2 * H):
        (loss(model, 0, step) + model.empty.sum()).backward()  # type: ignore[operator]
        sync.step()
        sync.zero_grad()
    assert model.empty.shape == (0, 5)


def test_a_step_that_one_peer_s_optimizer_skipped_is_a_step_of_the_round() -> None:
    """A gradient scaler leaves a step out at one peer; its loop calls `advance` anyway."""

    def work(rank: int) -> torch.Tensor:
        model = net()
        inner = adamw(model)
        sync = SparseLoCo(model, inner, sync_every=H, group=table.groups()[rank], **SPARSE)
        for step in range(3 * H):
            loss(model, rank, step).backward()
            if not (rank == 1 and step in (1, 4, 5, 6, 7, 8)):
                inner.step()
            sync.advance()
            sync.zero_grad()
        sync.check()
        return flat(model)

    table = Table(2)
    first, second = together(2, work)
    assert torch.equal(first, second)

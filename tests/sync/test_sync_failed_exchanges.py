"""An exchange that fails leaves nothing counted twice and nothing lost: the step is made again, or the next one is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from app_sync import adamw, flat, loss, net
from torch import nn

from farflung.core.errors import UsageError
from farflung.sync import DGC, DeMo, DiLoCo, LocalSGD, MuLoCo, PowerSGD, SparseLoCo

H = 3
STEPS = 3 * H
METHODS: dict[str, Callable[[nn.Module], Any]] = {
    "sparse_loco": lambda m: SparseLoCo(m, adamw(m), sync_every=H, topk=32, chunk=256),
    "sparse_loco, on the device": lambda m: SparseLoCo(
        m, adamw(m), sync_every=H, topk=32, chunk=256, on_device=True, fragments=2
    ),
    "sparse_loco, delayed": lambda m: SparseLoCo(
        m, adamw(m), sync_every=H, topk=32, chunk=256, fragments=2, fragment_sync_delay=1
    ),
    "diloco": lambda m: DiLoCo(m, adamw(m), sync_every=H),
    "diloco, 2 bits, delayed": lambda m: DiLoCo(m, adamw(m), sync_every=H, value_bits=2, fragment_sync_delay=1),
    "local_sgd": lambda m: LocalSGD(m, adamw(m), sync_every=H),
    "muloco": lambda m: MuLoCo(m, sync_every=H),
    "dgc": lambda m: DGC(m, lr=0.05, topk=8, chunk=256),
    "dgc, on the device": lambda m: DGC(m, lr=0.05, topk=8, chunk=256, on_device=True),
    "powersgd": lambda m: PowerSGD(m, lr=0.01, rank=2),
    "demo": lambda m: DeMo(m.parameters(), lr=1e-2, compression_topk=8, compression_chunk=16),
}


class Gone(Exception):
    """A group that is gone for a moment."""


def broken(sync: Any, is_broken: Callable[[int], bool]) -> None:
    """Lets some of the group's exchanges fail, by their number: 0 is the first one from here on."""
    whole, calls = sync.group.exchange, [0]

    def exchange(*asked: Any) -> Any:
        number, calls[0] = calls[0], calls[0] + 1
        if is_broken(number):
            raise Gone
        return whole(*asked)

    sync.group.exchange = exchange


def told(sync: Any, step: int) -> dict[str, int]:
    return {} if isinstance(sync, DeMo) else {"tokens": 10 + step}


def states(sync: Any) -> list[torch.Tensor]:
    """All tensors of a state."""

    def inside(value: Any) -> list[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            return [value]
        if isinstance(value, dict):
            return [tensor for key in sorted(value, key=str) for tensor in inside(value[key])]
        return [tensor for item in value for tensor in inside(item)] if isinstance(value, list | tuple) else []

    try:
        return inside(sync.state_dict())
    except Gone:  # the last round's exchange is waited for, and was none
        return inside(sync.state_dict())


def walk(sync: Any, model: nn.Module, steps: range, *, makes_again: bool = True) -> int:
    """Trains; where an exchange fails the same step is made again, or the next batch is taken. Returns the failures."""
    failures = 0
    for step in steps:
        sync.zero_grad()
        loss(model, 0, step).backward()
        while True:
            try:
                sync.step(**told(sync, step))
                break
            except Gone:
                failures += 1
                if not makes_again:
                    break
    return failures


@pytest.mark.parametrize("name", METHODS)
def test_a_step_that_is_made_again_is_counted_once(name: str) -> None:
    """With failures at every second exchange, the meeting and second phases among them: the same bits as with none."""
    one, other = net(), net()
    whole, flaky = METHODS[name](one), METHODS[name](other)
    broken(flaky, lambda number: number % 2 == 0)
    assert walk(whole, one, range(STEPS)) == 0
    assert walk(flaky, other, range(STEPS)) >= 3
    assert torch.equal(flat(one), flat(other))
    both = [states(whole), states(flaky)]
    assert len(both[0]) == len(both[1])
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_what_goes_on_with_new_batches_is_what_a_saved_state_says(name: str) -> None:
    """A state that is saved after a failure goes on as the object that failed does; nothing waits outside of it."""
    model, again = net(), net(seed=3)
    sync, other = METHODS[name](model), METHODS[name](again)
    walk(sync, model, range(H + 1))
    broken(sync, lambda number: number == 0)
    step = H + 1
    while not walk(sync, model, range(step, step + 1), makes_again=False):
        step += 1
    again.load_state_dict(model.state_dict())
    other.load_state_dict(sync.state_dict())
    for each, own in ((sync, model), (other, again)):
        walk(each, own, range(step + 1, step + 2 + H))
    assert torch.equal(flat(model), flat(again))
    assert all(torch.equal(a, b) for a, b in zip(states(sync), states(other), strict=True))


def test_local_steps_after_a_failed_exchange_are_of_the_same_round() -> None:
    """DiLoCo at 32 bits sends the whole change: what H + 1 local steps made is what the round applies."""
    model, alone = net(), net()
    sync = LocalSGD(model, adamw(model), sync_every=H)
    broken(sync, lambda number: number == 1)
    assert walk(sync, model, range(H + 1), makes_again=False) == 1
    optimizer = adamw(alone)
    for step in range(H + 1):
        optimizer.zero_grad()
        loss(alone, 0, step).backward()
        optimizer.step()
    assert torch.allclose(flat(model), flat(alone), atol=1e-6)
    assert sync.round == 1


def test_a_round_is_made_up_for_without_gradients_too() -> None:
    model = net()
    sync = LocalSGD(model, adamw(model), sync_every=H)
    broken(sync, lambda number: number == 1)
    walk(sync, model, range(H), makes_again=False)
    before = flat(model)
    sync.zero_grad()
    report = sync.step(tokens=1)
    assert report is not None
    assert torch.allclose(flat(model), before, atol=1e-6)
    assert (sync.round, sync.done) == (1, 0)


def test_the_rate_of_an_inner_optimizer_is_not_set_beside_it() -> None:
    model = net()
    with pytest.raises(UsageError, match=r"FF-SYNC-001.*set_lr\(0.1\).*inner optimizer") as refused:
        DiLoCo(model, adamw(model)).set_lr(0.1)
    assert "param_groups" in str(refused.value.hint)

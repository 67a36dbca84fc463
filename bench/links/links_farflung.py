"""farflung's side of bench/links.py: a sync method over farflung's own group, that is, TLS between public keys."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Final

import torch
from links_shaped import address
from torch import Tensor, nn

from farflung import sync
from farflung.compress import kernels
from farflung.sync import methods

PORT: Final = 29600
RATE: Final = 1e-3
ALONE: Final = "alone"  # after the method's name: no group, hence the method's own work and no link


def make(
    module: nn.Module, method: str, rank: int, world: int, every: int
) -> tuple[Callable[[Tensor, Tensor], tuple[float, Any]], Callable[[], Any]]:
    """A training step of the method, and what ends it; both give a RoundReport where a round has ended."""
    logging.basicConfig(level=logging.WARNING)
    if os.environ.get("PLAIN"):
        kernels.use("numpy")
    elif kernels.installed():
        kernels.use("numba")  # compiled in the first block, which does not count
    name, _, alone = method.partition("-")
    group = None if alone else _group(rank, world)
    training = _method(module, name, every, group)

    def step(x: Tensor, y: Tensor) -> tuple[float, Any]:
        loss = module(x, y)
        loss.backward()
        report = training.step()
        training.zero_grad()
        return loss.item(), report

    def close() -> Any:
        last = training.finish()
        training.close()
        if group is not None:
            group.close()
        return last

    return step, close


def _group(rank: int, world: int) -> Any:
    keys = [sync.unsafe_key(1, i) for i in range(world)]
    book = [(key.public.hex(), address(i), PORT) for i, key in enumerate(keys)]
    return sync.connect(book, keys[rank], allow_remote=True)


def _method(module: nn.Module, name: str, every: int, group: Any) -> sync.Synchroniser:
    adamw = torch.optim.AdamW(module.parameters(), lr=RATE)
    match name:
        case "Dense":  # every gradient, every step, exactly; AdamW on the mean
            spec = methods._spec("dense", optimizer_lr=RATE)
            return sync.Synchroniser(module, spec, None, min_quorum=None, clip_to_median=False, group=group)
        case "DenseMuon":
            # A step of Muon on each one's batch, then the mean of all weights, exactly, every step.
            return sync.LocalSGD(module, sync.Muon(module, RATE), sync_every=1, group=group)
        case "MuLoCo":
            return sync.MuLoCo(module, lr=RATE, sync_every=every, group=group)
        case "SparseLoCo":
            return sync.SparseLoCo(module, adamw, sync_every=every, group=group)
        case "DiLoCo":
            return sync.DiLoCo(module, adamw, sync_every=every, fragment_sync_delay=1, group=group)
    raise SystemExit(f"no method {name!r}")

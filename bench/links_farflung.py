"""farflung's side of bench/links.py: a sync method over farflung's own group, that is, TLS between public keys."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from farflung.app.sync import methods
from farflung.app.sync.base import Synchroniser
from farflung.app.sync.book import unsafe_key
from farflung.app.sync.mesh import connect

PORT: Final = 29600
RATE: Final = 1e-3
ALONE: Final = "alone"  # after the method's name: no group, hence the method's own work and no link


def make(
    module: nn.Module, method: str, rank: int, world: int, every: int
) -> tuple[Callable[[Tensor, Tensor], tuple[float, Any]], Callable[[], None]]:
    """A training step of the method, and what ends it."""
    logging.basicConfig(level=logging.WARNING)
    name, _, alone = method.partition("-")
    group = None if alone else _group(rank, world)
    sync = _sync(module, name, every, group)

    def step(x: Tensor, y: Tensor) -> tuple[float, Any]:
        loss = module(x, y)
        loss.backward()
        report = sync.step()
        sync.zero_grad()
        return loss.item(), report

    def close() -> None:
        sync.finish()
        sync.close()
        if group is not None:
            group.close()

    return step, close


def _group(rank: int, world: int) -> Any:
    keys = [unsafe_key(1, i) for i in range(world)]
    book = [(key.public.hex(), f"10.77.0.{i + 1}", PORT) for i, key in enumerate(keys)]
    return connect(book, keys[rank], allow_remote=True)


def _sync(module: nn.Module, name: str, every: int, group: Any) -> Synchroniser:
    adamw = torch.optim.AdamW(module.parameters(), lr=RATE)
    match name:
        case "Dense":  # every gradient, every step, exactly; AdamW on the mean
            spec = methods._spec("dense", optimizer_lr=RATE)
            return Synchroniser(module, spec, None, min_quorum=None, group=group)
        case "MuLoCo":
            return methods.MuLoCo(module, lr=RATE, sync_every=every, group=group)
        case "SparseLoCo":
            return methods.SparseLoCo(module, adamw, sync_every=every, group=group)
        case "DiLoCo":
            return methods.DiLoCo(module, adamw, sync_every=every, fragment_sync_delay=1, group=group)
    raise SystemExit(f"no method {name!r}")

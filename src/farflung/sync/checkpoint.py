"""Saves and restores a peer: public state, its own private state, and the inner optimizer's.

    {"about": {version, layout, method, rank, round, done, in_flight}, "public": {...}, "peer-3": {..., "inner":
    {...}}}

Vectors are tensors, the rest numbers and text, so that `torch.save` and torch.distributed.checkpoint take it as
it is. What is private to a peer stands under its rank, for torch.distributed.checkpoint keeps one copy of equal
names. An exchange under way is waited for and its result kept; it is applied where it would have been.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from farflung.core.codec import encode
from farflung.core.crypto import NS_SPEC, digest
from farflung.core.errors import UsageError
from farflung.core.tensor_layout import Float32
from farflung.job.spec import JobSpec
from farflung.sync.exchange_round import RoundAggregate
from farflung.sync.group import SyncGroup
from farflung.sync.model_weights import ModelWeights
from farflung.sync.peer_memory import PeerMemory
from farflung.train.public_state import PARAMS, PublicState
from farflung.train.sync_arithmetic import Sync

VERSION: Final = 2


class CheckpointSource(Protocol):
    """What a checkpoint takes from a peer (sync.synchronizer.Synchroniser) and puts back."""

    spec: JobSpec
    weights: ModelWeights
    sync: Sync
    group: SyncGroup
    state: PublicState
    memory: PeerMemory
    done: int
    tokens: int | None
    inner_optimizer: torch.optim.Optimizer | None

    def settle(self) -> RoundAggregate | None:
        """What the exchange under way brings, when one is under way; nothing is applied yet."""

    def resume(self, gathered: RoundAggregate | None) -> None:
        """Goes on from the fields; `gathered` is what an exchange under way had brought."""


def save(sync: CheckpointSource) -> dict[str, Any]:
    """The state_dict. Blocks while an exchange is under way; raises what it raised."""
    state, gathered = sync.state, sync.settle()
    private: dict[str, Any] = {"tokens": -1 if sync.tokens is None else sync.tokens}
    if sync.spec.sync.delay:
        change = np.zeros(state.params.size, np.float32)
        if gathered is not None:
            change[: gathered.change.size] = gathered.change
        private["change"] = torch.from_numpy(change)
    private |= sync.memory.vectors()
    if sync.inner_optimizer is not None:
        private["inner"] = sync.inner_optimizer.state_dict()
    where = {"round": state.round, "done": sync.done, "in_flight": int(gathered is not None)}
    return {
        "about": _about(sync) | where,
        "public": {name: torch.from_numpy(vector.copy()) for name, vector in state.sections.items()},
        _place(sync): private,
    }


def load(sync: CheckpointSource, found: dict[str, Any]) -> None:
    """Puts everything back but the model. Raises UsageError FF-SYNC-004."""
    about = found.get("about", {})
    for name, wanted in _about(sync).items():
        if about.get(name) != wanted:
            raise _another(f"its {name} is {str(about.get(name))[:16]}, this one's is {str(wanted)[:16]}")
    if _place(sync) not in found:
        raise _another(f"it holds nothing of rank {sync.group.rank}")
    public = {name: _vector(sync, value) for name, value in found["public"].items()}
    if public.keys() != sync.state.sections.keys():
        raise _another(f"it holds {', '.join(sorted(public))}")
    private = found[_place(sync)]
    params = public.pop(PARAMS)
    sync.state = PublicState(int(about["round"]), params, public)
    sync.done = int(about["done"])
    sync.tokens = None if private["tokens"] < 0 else int(private["tokens"])
    names = sync.memory.vectors()
    sync.memory.load({name: torch.from_numpy(_vector(sync, private[name])) for name in names})
    if sync.inner_optimizer is not None:
        sync.inner_optimizer.load_state_dict(private["inner"])
    change = None
    if about["in_flight"]:
        size = sync.sync.fragment(sync.state.round, sync.weights.layout).layout.size
        change = _vector(sync, private["change"])[:size]
    sync.resume(None if change is None else RoundAggregate(change, (), {}, 0, 0, 0, 0.0))


def blank(sync: CheckpointSource) -> None:
    """Makes the inner optimizer's vectors, which appear with its first step, by a step that moves nothing."""
    optimizer = sync.inner_optimizer
    if optimizer is None:
        return
    held = [(p, p.detach().clone(), p.grad) for group in optimizer.param_groups for p in group["params"]]
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for parameter, _, _ in held:
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    with torch.no_grad():
        for parameter, value, grad in held:
            parameter.copy_(value)
            parameter.grad = grad
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _about(sync: CheckpointSource) -> dict[str, Any]:
    method = digest(NS_SPEC, encode((sync.spec.sync, sync.spec.optimizer.momentum)))
    return {
        "version": VERSION,
        "layout": sync.weights.layout.id.hex(),
        "method": method.hex(),
        "peers": len(sync.group.ids),
    }


def _place(sync: CheckpointSource) -> str:
    return f"peer-{sync.group.rank}"


def _vector(sync: CheckpointSource, value: Any) -> Float32:
    size = sync.weights.layout.size
    if not isinstance(value, Tensor) or value.shape != (size,) or value.dtype != torch.float32:
        raise _another(f"a vector of it is not float32 of {size} elements")
    vector: Float32 = value.detach().cpu().numpy().copy()
    return vector


def _another(cause: str) -> UsageError:
    return UsageError(
        "FF-SYNC-004",
        "this state_dict is of another run",
        cause=cause,
        hint="build the model and the method as they were when it was saved, with as many peers",
    )

"""Saves and restores a peer: public state, its own private state, and the inner optimizer's.

    {"about": {version, farflung, settings, tensors, peers, round, done, in_flight, lr, held}, "public": {...},
     "peer-3": {..., "inner": {...}, "inner names"}}

Vectors are tensors, the rest numbers and text, so that `torch.save` and torch.distributed.checkpoint take it as
it is. Settings of the constructor are compared, and what a setter changes (`lr`) is restored. `min_quorum`,
`on_device` and the kind of group are free. The inner optimizer's state goes to parameters by their names. What is
private to a peer stands under its rank, for torch.distributed.checkpoint keeps one copy of equal names. An exchange
under way is waited for and its result kept; it is applied where it would have been.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from farflung.core import release
from farflung.core.tensor_layout import Float32
from farflung.job.spec import JobSpec
from farflung.sync import checkpoint_terms
from farflung.sync.checkpoint_terms import another
from farflung.sync.exchange_round import RoundAggregate, SyncTerms
from farflung.sync.group import SyncGroup
from farflung.sync.model_weights import ModelWeights
from farflung.sync.peer_memory import PeerMemory
from farflung.train.public_state import PARAMS, PublicState
from farflung.train.sync_arithmetic import Sync

VERSION: Final = 3


class CheckpointSource(Protocol):
    """What a checkpoint takes from a peer (sync.synchronizer.Synchroniser) and puts back."""

    spec: JobSpec
    weights: ModelWeights
    sync: Sync
    group: SyncGroup
    state: PublicState
    memory: PeerMemory
    terms: SyncTerms
    done: int
    tokens: int | None
    inner_optimizer: torch.optim.Optimizer | None

    def set_lr(self, lr: float) -> None:
        """The rate of a method that is its own optimizer."""

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
        private["inner names"] = checkpoint_terms.text(_groups(sync, sync.inner_optimizer))
    # A vector that appears with a later round has its place from the first: what loads finds it.
    public = {name: np.zeros_like(state.params) for name in sorted(_names(sync))} | state.sections
    where = {
        "round": state.round,
        "done": sync.done,
        "in_flight": int(gathered is not None),
        "lr": sync.spec.optimizer.lr,
        "held": checkpoint_terms.text(sorted(state.sections)),
    }
    return {
        "about": _about(sync) | where,
        "public": {name: torch.from_numpy(vector.copy()) for name, vector in public.items()},
        _place(sync): private,
    }


def load(sync: CheckpointSource, found: dict[str, Any]) -> None:
    """Puts everything back but the model; where it raises, nothing has changed.

    Raises UsageError FF-SYNC-004 (of another run: what differs is named), VersionError FF-CORE-095.
    """
    about = found.get("about", {})
    checkpoint_terms.compare(about, _about(sync), VERSION)
    if _place(sync) not in found:
        raise another(f"it holds nothing of rank {sync.group.rank}")
    private, round = found[_place(sync)], int(about["round"])
    held = set(checkpoint_terms.listed(about["held"]))
    if not {PARAMS, *sync.sync.public_names(0)} <= held <= sync.sync.public_names(round):
        raise another(f"at round {round} it holds {', '.join(sorted(held))}")
    public = {name: _vector(sync, found["public"].get(name)) for name in sorted(held)}
    vectors = {name: torch.from_numpy(_vector(sync, private.get(name))) for name in sync.memory.vectors()}
    inner = _inner(sync, private)
    change = None
    if about["in_flight"]:
        size = sync.sync.fragment(round, sync.weights.layout).layout.size
        change = _vector(sync, private.get("change"))[:size]
    if sync.inner_optimizer is not None:
        # torch would go on with the very tensors of `found`
        sync.inner_optimizer.load_state_dict(copy.deepcopy(inner))
    if sync.inner_optimizer is None and sync.spec.optimizer.lr != about["lr"]:
        sync.set_lr(float(about["lr"]))
    sync.state = PublicState(round, public.pop(PARAMS), public)
    sync.done = int(about["done"])
    sync.tokens = None if private["tokens"] < 0 else int(private["tokens"])
    sync.memory.load(vectors)
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
    """What must be the same where it is loaded."""
    settings = checkpoint_terms.settings(sync.spec) | {"clip_to_median": sync.terms.is_clipped}
    if sync.inner_optimizer is not None:
        settings["inner_optimizer"] = type(sync.inner_optimizer).__name__
    return {
        "version": VERSION,
        "farflung": release.VERSION,
        "settings": checkpoint_terms.text(settings),
        "tensors": checkpoint_terms.text({tensor.name: tensor.shape for tensor in sync.weights.layout.tensors}),
        "peers": len(sync.group.ids),
    }


def _names(sync: CheckpointSource) -> frozenset[str]:
    """Of all public vectors that any round may have."""
    return sync.sync.public_names(2 * sync.sync.phases - 1)


def _groups(sync: CheckpointSource, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """The inner optimizer's parameters by name, a list a group; those outside the model by their places."""
    known, places = sync.weights.names, itertools.count()
    groups = [[(known.get(id(p), ""), next(places)) for p in group["params"]] for group in optimizer.param_groups]
    return [[name or f"parameter {place}" for name, place in group] for group in groups]


def _inner(sync: CheckpointSource, private: dict[str, Any]) -> dict[str, Any]:
    """The inner optimizer's state_dict, in the order in which it holds its parameters here."""
    if sync.inner_optimizer is None:
        return {}
    saved, own = checkpoint_terms.listed(private["inner names"]), _groups(sync, sync.inner_optimizer)
    if [sorted(group) for group in saved] != [sorted(group) for group in own]:
        odd = sorted({n for group in saved for n in group} ^ {n for group in own for n in group})
        raise another(f"its inner optimizer has other parameters, or other groups of them: {', '.join(odd[:4])}")
    state: dict[str, Any] = dict(private["inner"])
    if saved == own:
        return state
    groups = [dict(group) for group in state["param_groups"]]
    for group, before, now in zip(groups, saved, own, strict=True):
        places = dict(zip(before, group["params"], strict=True))
        group["params"] = [places[name] for name in now]
    return state | {"param_groups": groups}


def _place(sync: CheckpointSource) -> str:
    return f"peer-{sync.group.rank}"


def _vector(sync: CheckpointSource, value: Any) -> Float32:
    size = sync.weights.layout.size
    if not isinstance(value, Tensor) or value.shape != (size,) or value.dtype != torch.float32:
        raise another(f"a vector of it is not float32 of {size} elements")
    vector: Float32 = value.detach().cpu().numpy().copy()
    return vector

"""Defines the methods by their names in the literature.

They are rows of job.methods, with keyword arguments instead of a job file.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from farflung.core import limits
from farflung.job.methods.registry import method_of
from farflung.job.spec import JobSpec, OptimizerSpec, ScheduleSpec, SyncSpec
from farflung.sync.group import SyncGroup
from farflung.sync.muon import Muon
from farflung.sync.synchronizer import Synchroniser

AnyGroup = SyncGroup | dist.ProcessGroup | None


def _spec(method: str, **settings: Any) -> JobSpec:
    """The method's own defaults, over them `settings`: names of SyncSpec, or `optimizer_` and one of OptimizerSpec."""
    sync: dict[str, Any] = {"method": method}
    optimizer: dict[str, Any] = {"clip": 0.0}
    for key, value in method_of(method).defaults.items():
        section, _, name = key.partition(".")
        if section in ("sync", "optimizer"):
            (sync if section == "sync" else optimizer)[name] = value
    for key, value in settings.items():
        if key.startswith("optimizer_"):
            optimizer[key.removeprefix("optimizer_")] = value
        else:
            sync[key] = value
    return JobSpec(
        rounds=limits.ROUNDS,
        optimizer=OptimizerSpec(**optimizer),
        schedule=ScheduleSpec(kind="constant", warmup=0),
        sync=SyncSpec(**sync),
    )


class SparseLoCo(Synchroniser):
    """Local steps, then the largest `topk` of every `chunk` elements, `value_bits` each, with error feedback;
    averaged.

    Sarfi et al. 2025 (arXiv 2508.15706). `transform`: "raw", "dct" (each chunk as a square block), or "auto"
    (per tensor what keeps more energy). With "raw" and a model on an accelerator, what was not sent stays there and
    only what is chosen travels to the host (`on_device`). The default for links under about 20 Mbit/s up. Other
    arguments: see Synchroniser.
    """

    def __init__(
        self,
        model: nn.Module,
        inner_optimizer: torch.optim.Optimizer,
        *,
        sync_every: int = 15,
        topk: int = 64,
        chunk: int = 4096,
        value_bits: int = 2,
        transform: str = "raw",
        error_decay: float = 0.95,
        outer_lr: float = 1.0,
        outer_momentum: float = 0.0,
        fragments: int = 1,
        fragment_sync_delay: int = 0,
        min_quorum: float | None = None,
        clip_to_median: bool = True,
        on_device: bool | None = None,
        group: AnyGroup = None,
    ) -> None:
        spec = _spec(
            "sparse_loco",
            steps=sync_every,
            topk=topk,
            chunk=chunk,
            value_bits=value_bits,
            transform=transform,
            error_decay=error_decay,
            outer_lr=outer_lr,
            outer_momentum=outer_momentum,
            fragments=fragments,
            delay=fragment_sync_delay,
        )
        super().__init__(
            model,
            spec,
            inner_optimizer,
            min_quorum=min_quorum,
            clip_to_median=clip_to_median,
            on_device=on_device,
            group=group,
        )


class DiLoCo(Synchroniser):
    """Local steps, then the whole change at `value_bits` an element, and Nesterov momentum outside.

    Douillard et al. 2023 (arXiv 2311.08105); `fragments` and `fragment_sync_delay` make it Streaming DiLoCo
    (arXiv 2501.18512). Below 32 bits an element error feedback is on.
    """

    def __init__(
        self,
        model: nn.Module,
        inner_optimizer: torch.optim.Optimizer,
        *,
        sync_every: int = 100,
        value_bits: int = 32,
        error_decay: float = 1.0,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        nesterov: bool = True,
        fragments: int = 1,
        fragment_sync_delay: int = 0,
        min_quorum: float | None = None,
        clip_to_median: bool = False,
        group: AnyGroup = None,
    ) -> None:
        spec = _spec(
            "diloco",
            steps=sync_every,
            value_bits=value_bits,
            error_decay=error_decay,
            outer_lr=outer_lr,
            outer_momentum=outer_momentum,
            nesterov=nesterov,
            fragments=fragments,
            delay=fragment_sync_delay,
        )
        super().__init__(
            model, spec, inner_optimizer, min_quorum=min_quorum, clip_to_median=clip_to_median, group=group
        )


class MuLoCo(Synchroniser):
    """Local steps of Muon, then the whole change at two bits an element with error feedback; averaged.

    Therien et al. 2025 (arXiv 2505.23725). The quality default. `inner_optimizer` None: `Muon(model, lr)`, which
    leaves embeddings, heads and vectors to AdamW.
    """

    def __init__(
        self,
        model: nn.Module,
        inner_optimizer: torch.optim.Optimizer | None = None,
        *,
        lr: float = 3e-3,
        sync_every: int = 15,
        value_bits: int = 2,
        error_decay: float = 0.95,
        outer_lr: float = 1.0,
        outer_momentum: float = 0.0,
        fragments: int = 1,
        fragment_sync_delay: int = 0,
        min_quorum: float | None = None,
        clip_to_median: bool = False,
        group: AnyGroup = None,
    ) -> None:
        spec = _spec(
            "muloco",
            steps=sync_every,
            value_bits=value_bits,
            error_decay=error_decay,
            outer_lr=outer_lr,
            outer_momentum=outer_momentum,
            fragments=fragments,
            delay=fragment_sync_delay,
        )
        inner = inner_optimizer if inner_optimizer is not None else Muon(model, lr)
        super().__init__(model, spec, inner, min_quorum=min_quorum, clip_to_median=clip_to_median, group=group)


class LocalSGD(Synchroniser):
    """Local steps, then the mean of all weights, exactly. Stich 2019 (arXiv 1805.09767)."""

    def __init__(
        self,
        model: nn.Module,
        inner_optimizer: torch.optim.Optimizer,
        *,
        sync_every: int = 15,
        value_bits: int = 32,
        error_decay: float = 1.0,
        fragments: int = 1,
        fragment_sync_delay: int = 0,
        min_quorum: float | None = None,
        clip_to_median: bool = False,
        group: AnyGroup = None,
    ) -> None:
        spec = _spec(
            "local_sgd",
            steps=sync_every,
            value_bits=value_bits,
            error_decay=error_decay,
            fragments=fragments,
            delay=fragment_sync_delay,
        )
        super().__init__(
            model, spec, inner_optimizer, min_quorum=min_quorum, clip_to_median=clip_to_median, group=group
        )


class DGC(Synchroniser):
    """Every step, the largest `topk` of every `chunk` elements of a velocity that each peer keeps (momentum
    correction), masked where all was sent. It is the optimizer, too: momentum-SGD at rate `lr`.

    Lin et al. 2018 (arXiv 1712.01887). `clip`: largest L2 norm of a peer's gradient (0: none). `warmup_rounds`:
    over so many rounds the density falls from a quarter of all elements. For comparison: with Adam it loses what
    makes it work.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        topk: int = 4,
        chunk: int = 4096,
        value_bits: int = 32,
        clip: float = 0.0,
        warmup_rounds: int = 0,
        min_quorum: float | None = None,
        clip_to_median: bool = False,
        on_device: bool | None = None,
        group: AnyGroup = None,
    ) -> None:
        spec = _spec(
            "dgc",
            topk=topk,
            chunk=chunk,
            value_bits=value_bits,
            warmup_rounds=warmup_rounds,
            optimizer_lr=lr,
            optimizer_momentum=momentum,
            optimizer_weight_decay=weight_decay,
            optimizer_clip=clip,
        )
        super().__init__(
            model, spec, None, min_quorum=min_quorum, clip_to_median=clip_to_median, on_device=on_device, group=group
        )


class PowerSGD(Synchroniser):
    """Every step, two thin factors of each matrix of the gradient, with error feedback; AdamW on what they give.

    Vogels et al. 2019 (arXiv 1905.13727): a round has two phases, P = M Q and then Q = Mᵀ P. `rank` is the
    factors' width.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        rank: int = 4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.1,
        clip: float = 1.0,
        min_quorum: float | None = None,
        clip_to_median: bool = False,
        group: AnyGroup = None,
    ) -> None:
        spec = _spec(
            "powersgd",
            rank=rank,
            optimizer_lr=lr,
            optimizer_beta1=betas[0],
            optimizer_beta2=betas[1],
            optimizer_weight_decay=weight_decay,
            optimizer_clip=clip,
        )
        super().__init__(model, spec, None, min_quorum=min_quorum, clip_to_median=clip_to_median, group=group)

"""Compresses gradients inside PyTorch's data parallelism: a DDP communication hook and an FSDP2 all-reduce hook.

    model = DistributedDataParallel(model)
    model.register_comm_hook(GradientSync("topk", topk=64), ddp_hook)            # every bucket, every step

    fully_shard(block, mesh=mesh["shard"]); ...                                  # inside an island: uncompressed
    compress_islands(model, mesh["replicate"].get_group(), "dense", value_bits=8)    # between islands: compressed

For per-step synchronisation of gradients: dense values of 8 or 16 bits, the largest of each chunk with error
feedback, or Deep Gradient Compression (Lin et al. 2018: `momentum` here, plain SGD outside). PowerSGD as a DDP
hook is in PyTorch already (torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook). Sums are in float32, in
the order of ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from farflung import __version__
from farflung.compress import registry
from farflung.compress.payload import ContributionKey
from farflung.core.errors import ProtocolError, UsageError
from farflung.core.ids import ZERO_HASH
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.sync.exchange_channel import ExchangeChannel
from farflung.sync.group import GroupExchange, SyncGroup, too_few
from farflung.sync.group_choice import resolve

_CHUNK = 4096


class GradientMemory:
    """What one gradient vector keeps from step to step: what was not sent, and DGC's velocity."""

    def __init__(self) -> None:
        self.residual: Float32 | None = None
        self.velocity: Float32 | None = None

    def fit(self, size: int) -> None:
        """Begins anew when the vector has another size: DDP arranges its buckets anew after the first step."""
        if self.residual is not None and self.residual.size != size:
            self.residual = self.velocity = None


class GradientSync:
    """Codec, group and memory of the hooks: one object a model. Raises SpecError FF-COMP-030, FF-COMP-031,
    UsageError FF-SYNC-022.

    `codec`: "dense" or "topk". `momentum` > 0: DGC's momentum correction and masking, for "topk". `error_decay`:
    of what was not sent, a step. `group`: as in Synchroniser; DDP's own group where it is None.
    """

    def __init__(
        self,
        codec: str = "topk",
        *,
        value_bits: int = 8,
        topk: int = 64,
        chunk: int = _CHUNK,
        error_decay: float = 1.0,
        momentum: float = 0.0,
        group: SyncGroup | dist.ProcessGroup | None = None,
    ) -> None:
        if codec not in ("dense", "topk") or not 0 <= momentum < 1 or (momentum and codec != "topk"):
            raise UsageError(
                "FF-SYNC-022",
                "a setting of the gradient hook cannot be used",
                cause=f"codec {codec!r}, momentum {momentum}",
                hint='take "dense" without momentum, or "topk" with a momentum below 1',
            )
        self._codec = registry.make(
            codec, value_bits=value_bits, topk=topk, chunk=chunk, transform="raw", rank=1, error_decay=error_decay
        )
        self._momentum = momentum
        self._group = resolve(group)
        self._channel = ExchangeChannel(self._group)
        self._channels: dict[str, GradientMemory] = {}
        self._tag = 0
        self.bytes_up = self.bytes_down = 0

    def mean(self, name: str, vector: Tensor) -> Tensor:
        """The mean over all ranks of what they send of `vector`, of any shape; same type and device.

        Raises NetworkError FF-SYNC-010, FF-SYNC-011, ProtocolError FF-SYNC-023 (a rank sent what does not belong
        here), RunError FF-COMP-020 (NaN).
        """
        layout = TensorLayout.of({name: (vector.numel(),)})
        channel = self._channels.setdefault(name, GradientMemory())
        channel.fit(layout.size)
        group, size = self._group, len(self._group.ids)
        about = ContributionKey(self._tag % (1 << 32), 0, ZERO_HASH, group.ids[group.rank])
        values = self._corrected(channel, _to_numpy(vector))
        channel.residual, payload = self._codec.encode(channel.residual, values, layout, about)
        exchanged = self._exchanged(f"{name} of exchange {self._tag}", payload, self._codec.bound(layout))
        if len(exchanged.payloads) < size:
            raise too_few(len(exchanged.payloads), size, exchanged.missing)
        self._tag += 1
        self.bytes_up += exchanged.bytes_up
        self.bytes_down += exchanged.bytes_down
        total = np.zeros(layout.size, np.float32)
        for rank, data in sorted(exchanged.payloads.items()):
            try:
                total += self._codec.decode(data, layout, about._replace(peer=group.ids[rank]))
            except ProtocolError as error:
                raise _stray(rank, error) from error
        total *= np.float32(1.0 / size)
        return torch.from_numpy(total).to(vector).view(vector.shape)

    def _exchanged(self, label: str, payload: bytes, bound: int) -> GroupExchange:
        size = len(self._group.ids)
        if not self._channel.is_met:
            terms = {"method": "GradientSync", "farflung": __version__, "codec": self._codec.name}
            self._channel.meet(terms | vars(self._codec) | {"momentum": self._momentum}, size)
        return self._channel.exchange(label, payload, bound, size)

    def state_dict(self) -> dict[str, Any]:
        """What was not sent, and velocities: private to a rank, so save it under the rank's name."""
        kept = {
            name: {key: torch.from_numpy(value.copy()) for key, value in vars(channel).items() if value is not None}
            for name, channel in self._channels.items()
        }
        return {"tag": self._tag, "channels": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict`, bit for bit."""
        self._tag = int(state["tag"])
        self._channels = {}
        for name, kept in state["channels"].items():
            channel = self._channels[name] = GradientMemory()
            for key in ("residual", "velocity"):
                if key in kept:
                    setattr(channel, key, kept[key].numpy().astype(np.float32))

    def _corrected(self, channel: GradientMemory, grad: Float32) -> Float32:
        """DGC's velocity: momentum before the choice, none where all was sent (Lin et al. 2018, section 3)."""
        if not self._momentum:
            return grad
        velocity = grad
        if channel.velocity is not None:
            kept = channel.velocity
            if channel.residual is not None:
                kept = kept * (channel.residual != 0)
            velocity = np.float32(self._momentum) * kept + grad
        channel.velocity = velocity.copy()
        return velocity


def ddp_hook(state: GradientSync, bucket: Any) -> torch.futures.Future[Tensor]:
    """For DistributedDataParallel.register_comm_hook: replaces the all-reduce of a bucket of gradients."""
    found: torch.futures.Future[Tensor] = torch.futures.Future()
    found.set_result(state.mean(f"bucket {bucket.index():05d}", bucket.buffer()))
    return found


# DDP compares these with the classes themselves, and annotations are text here
ddp_hook.__annotations__["bucket"] = dist.GradBucket  # type: ignore[attr-defined]
ddp_hook.__annotations__["return"] = torch.futures.Future[Tensor]


def compress_islands(
    model: nn.Module, group: dist.ProcessGroup | None, codec: str = "dense", **settings: Any
) -> GradientSync:
    """Compresses what passes between islands of an FSDP2 model that `fully_shard` has sharded over each island alone.

    `group`: the processes that hold the same shard on all islands, a dimension of the device mesh. Each sharded
    module gets an all-reduce hook, which runs after its reduce-scatter. Raises UsageError FF-SYNC-022 when
    nothing is sharded.
    """
    from torch.distributed.fsdp import FSDPModule

    state = GradientSync(codec, group=group, **settings)
    sharded = [(name, module) for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    if not sharded:
        raise UsageError(
            "FF-SYNC-022",
            "no module of the model is sharded by FSDP2",
            cause="compress_islands wants modules that fully_shard was applied to",
            hint="call fully_shard(module, mesh=...) first, with the mesh of one island",
        )
    for name, module in sharded:
        module.set_all_reduce_hook(_islands(state, name or "root"))
    return state


def _islands(state: GradientSync, name: str) -> Any:
    def hook(reduced: Tensor) -> None:
        reduced.copy_(state.mean(name, reduced))

    return hook


def _to_numpy(vector: Tensor) -> Float32:
    flat: Float32 = vector.detach().reshape(-1).to("cpu", torch.float32).numpy()
    return flat


def _stray(rank: int, error: ProtocolError) -> ProtocolError:
    return ProtocolError(
        "FF-SYNC-023",
        f"rank {rank} sent gradients that do not belong to this step",
        cause=str(error)[:300],
        hint="run the same model and the same hook settings in all processes",
    )

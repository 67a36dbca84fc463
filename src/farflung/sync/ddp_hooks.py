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

import gc
import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from farflung import __version__
from farflung.compress import registry
from farflung.compress.payload import ContributionKey
from farflung.core.errors import ProtocolError, UsageError
from farflung.core.ids import ZERO_HASH
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.sync import checkpoint_terms
from farflung.sync.exchange_channel import ExchangeChannel
from farflung.sync.group import GroupExchange, SyncGroup, too_few
from farflung.sync.group_choice import resolve
from farflung.sync.parameter_names import bare_path, named_parameters

VERSION: Final = 3  # of the state_dict
_CHUNK = 4096
_LENGTH: Final = struct.Struct("<I")


class GradientMemory(NamedTuple):
    """What one parameter's gradient keeps from step to step: what was not sent, and DGC's velocity, flat."""

    residual: Float32 | None = None
    velocity: Float32 | None = None


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
        self._settings = checkpoint_terms.text(
            {
                "codec": codec,
                "value_bits": value_bits,
                "topk": topk,
                "chunk": chunk,
                "error_decay": error_decay,
                "momentum": momentum,
            }
        )
        self._codec = registry.make(
            codec, value_bits=value_bits, topk=topk, chunk=chunk, transform="raw", rank=1, error_decay=error_decay
        )
        self._momentum = momentum
        self._group = resolve(group)
        self._channel = ExchangeChannel(self._group)
        self._memory: dict[str, GradientMemory] = {}
        self._names = WeakTensorKeyDictionary()
        self._tag = 0
        self.bytes_up = self.bytes_down = 0

    def mean(self, name: str, vector: Tensor) -> Tensor:
        """The mean over all ranks of what they send of `vector`, of any shape; same type and device. See `means`."""
        return self.means({name: vector})[name]

    def means(self, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`mean` of several, in one exchange. Each is encoded by itself, so that company changes no bit of it.

        Raises NetworkError FF-SYNC-010, FF-SYNC-011, ProtocolError FF-SYNC-023 (a rank sent what does not belong
        here), RunError FF-COMP-020 (NaN), UsageError FF-SYNC-025 (a name has another size than before).
        """
        layouts = {n: TensorLayout.of({n: (v.numel(),)}) for n, v in sorted(vectors.items()) if v.numel()}
        if not layouts:
            return dict(vectors)
        group, size = self._group, len(self._group.ids)
        about = ContributionKey(self._tag % (1 << 32), 0, ZERO_HASH, group.ids[group.rank])
        kept: dict[str, GradientMemory] = {}
        parts: list[bytes] = []
        for name, layout in layouts.items():
            kept[name], payload = self._encoded(name, _to_numpy(vectors[name]), layout, about)
            parts += [_LENGTH.pack(len(payload)), payload]
        bound = sum(_LENGTH.size + self._codec.bound(layout) for layout in layouts.values())
        first = next(iter(layouts)).encode("ascii", "replace")[-60:].decode()  # a label is short
        exchanged = self._exchanged(f"{first} of exchange {self._tag}", b"".join(parts), bound)
        if len(exchanged.payloads) < size:
            raise too_few(len(exchanged.payloads), size, exchanged.missing)
        totals = {name: np.zeros(layout.size, np.float32) for name, layout in layouts.items()}
        for rank, data in sorted(exchanged.payloads.items()):
            try:
                for (name, layout), payload in zip(layouts.items(), _split(data, len(layouts)), strict=True):
                    totals[name] += self._codec.decode(payload, layout, about._replace(peer=group.ids[rank]))
            except ProtocolError as error:
                raise _stray(rank, error) from error
        self._tag += 1
        self._memory |= kept
        self.bytes_up += exchanged.bytes_up
        self.bytes_down += exchanged.bytes_down
        share = np.float32(1.0 / size)
        found = {
            n: torch.from_numpy(total * share).to(vectors[n]).view(vectors[n].shape) for n, total in totals.items()
        }
        return {**vectors, **found}

    def _exchanged(self, label: str, payload: bytes, bound: int) -> GroupExchange:
        size = len(self._group.ids)
        if not self._channel.is_met:
            terms = {"method": "GradientSync", "farflung": __version__, "codec": self._codec.name}
            self._channel.meet(terms | vars(self._codec) | {"momentum": self._momentum}, size)
        return self._channel.exchange(label, payload, bound, size)

    def state_dict(self) -> dict[str, Any]:
        """What was not sent, and velocities, by parameter: private to a rank, so save it under the rank's name."""
        kept = {
            name: {key: torch.from_numpy(value.copy()) for key, value in memory._asdict().items() if value is not None}
            for name, memory in self._memory.items()
        }
        return {"about": {**self._about(), "rank": self._group.rank, "tag": self._tag}, "memory": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict`, bit for bit, also in a new process.

        Raises UsageError FF-SYNC-004 (of other settings, of another rank, or of another number of them), VersionError
        FF-CORE-095 (another version).
        """
        about = state.get("about", {"version": 1} if "channels" in state else {})
        checkpoint_terms.compare(about, self._about(), VERSION)
        if about["rank"] != self._group.rank:
            raise checkpoint_terms.another(f"it is rank {about['rank']}'s, and this is rank {self._group.rank}")
        self._tag = int(about["tag"])
        self._memory = {
            name: GradientMemory(**{key: value.numpy().astype(np.float32) for key, value in kept.items()})
            for name, kept in state["memory"].items()
        }
        self._names = WeakTensorKeyDictionary()  # the model is compared with what is kept once more

    def names_of(self, parameters: Sequence[Tensor]) -> list[str]:
        """The bare names of the parameters of a DDP bucket, from the model that this is registered with.

        Raises UsageError FF-SYNC-025 (registered with none), FF-SYNC-004 (what was loaded is of another model).
        """
        if any(parameter not in self._names for parameter in parameters):
            known = [pair for ddp in _registered(self) for pair in named_parameters(ddp).items()]
            self._names.update({parameter: name for name, parameter in known})
            if any(parameter not in self._names for parameter in parameters):
                raise _unnamed()
            if lost := sorted(self._memory.keys() - {name for name, _ in known}):
                raise checkpoint_terms.another(f"it has {', '.join(lost[:4])}, and this model has none")
        return [self._names[parameter] for parameter in parameters]

    def _about(self) -> dict[str, Any]:
        """What must be the same where it is loaded."""
        return {"version": VERSION, "farflung": __version__, "settings": self._settings, "peers": len(self._group.ids)}

    def _encoded(
        self, name: str, grad: Float32, layout: TensorLayout, about: ContributionKey
    ) -> tuple[GradientMemory, bytes]:
        """What is kept of a gradient once its payload is sent, and the payload."""
        memory = self._memory.get(name, GradientMemory())
        if any(vector is not None and vector.size != grad.size for vector in memory):
            raise UsageError(
                "FF-SYNC-025",
                f"the gradient of {name} has another size than what was kept",
                cause=f"{grad.size} elements now",
                hint="make a new GradientSync, at every rank, after a change of the model",
            )
        velocity = self._corrected(memory, grad)
        residual, payload = self._codec.encode(memory.residual, grad if velocity is None else velocity, layout, about)
        return GradientMemory(residual, velocity), payload

    def _corrected(self, memory: GradientMemory, grad: Float32) -> Float32 | None:
        """DGC's velocity: momentum before the choice, none where all was sent (Lin et al. 2018, section 3)."""
        if not self._momentum:
            return None
        kept = memory.velocity
        if kept is None:
            return grad.copy()
        if memory.residual is not None:
            kept = kept * (memory.residual != 0)
        velocity: Float32 = np.float32(self._momentum) * kept + grad
        return velocity


def ddp_hook(state: GradientSync, bucket: Any) -> torch.futures.Future[Tensor]:
    """For DistributedDataParallel.register_comm_hook: replaces the all-reduce of a bucket of gradients.

    DDP arranges its buckets anew after the first step, and a new process begins with the first arrangement: so what is
    kept, and what is chosen, go by parameter.
    """
    views = dict(zip(state.names_of(bucket.parameters()), bucket.gradients(), strict=True))
    for name, mean in state.means(views).items():
        views[name].copy_(mean)
    found: torch.futures.Future[Tensor] = torch.futures.Future()
    found.set_result(bucket.buffer())
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
        reduced = ReducedParameters(model.get_submodule(name))
        module.set_all_reduce_hook(_islands(state, bare_path(model, name) or "root", reduced))
    return state


class ReducedParameters:
    """The parameters that the next reduction of a sharded module is of: FSDP leaves out those without a gradient, and
    tells the all-reduce hook no names.

    While a forward pass goes through the module it holds its whole parameters; each is watched from the first on.
    """

    def __init__(self, module: nn.Module) -> None:
        from torch.distributed.fsdp import FSDPModule

        inner = tuple(f"{name}." for name, one in module.named_modules() if name and isinstance(one, FSDPModule))
        self._own = [name for name, _ in module.named_parameters() if not name.startswith(inner)]
        self._watched, self._with_gradient = WeakTensorKeyDictionary(), set[str]()
        module.register_forward_pre_hook(self._watch)

    def _watch(self, module: nn.Module, _: Any) -> None:
        for name in self._own:
            parameter = module.get_parameter(name)
            if parameter.requires_grad and parameter not in self._watched:
                self._watched[parameter] = True
                path = bare_path(module, name)
                if parameter.is_leaf and not hasattr(parameter, "full_tensor"):  # not sharded now
                    parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                        lambda _, path=path: self._with_gradient.add(path)
                    )

    def taken(self) -> str:
        """A short word for those that have got a gradient since the last reduction."""
        names = "\0".join(sorted(self._with_gradient))
        self._with_gradient.clear()
        return hashlib.blake2s(names.encode(), digest_size=8).hexdigest()


def _islands(state: GradientSync, name: str, reduces: ReducedParameters) -> Any:
    def hook(reduced: Tensor) -> None:
        reduced.copy_(state.mean(f"{name}, {reduced.numel()} elements of {reduces.taken()}", reduced))

    return hook


def _registered(state: GradientSync) -> list[nn.parallel.DistributedDataParallel]:
    """The models whose hook this is: DDP tells a hook no names, and holds it with its state."""
    pairs = [one for one in gc.get_referrers(state) if type(one) is tuple]
    lists = [one for one in gc.get_referrers(*pairs) if type(one) is list]
    owners = gc.get_referrers(*lists)
    owners += gc.get_referrers(*[one for one in owners if type(one) is dict])
    return [one for one in owners if issubclass(type(one), nn.parallel.DistributedDataParallel)]


def _split(data: bytes, count: int) -> list[bytes]:
    """The payloads that stand one behind the other, each behind its length. Raises ProtocolError FF-SYNC-023."""
    parts, start = list[bytes](), 0
    while len(parts) < count and start + _LENGTH.size <= len(data):
        length = _LENGTH.unpack_from(data, start)[0]
        parts.append(data[start + _LENGTH.size : start + _LENGTH.size + length])
        start += _LENGTH.size + length
    if len(parts) != count or start != len(data):
        raise ProtocolError("FF-SYNC-023", f"{len(data)} bytes are no {count} payloads")
    return parts


def _unnamed() -> UsageError:
    return UsageError(
        "FF-SYNC-025",
        "a bucket holds parameters that have no name here",
        cause="DistributedDataParallel tells no names, and no such model has this GradientSync as its hook's state",
        hint="register it as model.register_comm_hook(GradientSync(...), ddp_hook)",
    )


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

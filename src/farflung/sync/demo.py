"""Implements DeMo (Peng et al. 2024, arXiv 2411.19870) as a torch optimizer.

It shares the fast-moving components of each peer's momentum.

With lr the rate, d the decay, m a peer's momentum of a tensor, and D the 2-D cosine transform of blocks, each step:
    m = d m + lr g         q = the k largest coefficients of each block of D m        m = m - D⁻¹ q     each peer
    Q = mean of all q      w = w (1 - lr weight_decay) - lr sign(D⁻¹ Q)                                 everybody
The mean of a coefficient is over the peers that sent it (`aggregation="selectors"`, the paper's): one peer alone then
decides its sign. With "all" it is over all peers, and a coefficient that few chose weighs as little as it should.

Where the reference implementation differs: momentum is in `state_dict`, so that a run resumes bit for bit; one exchange
a step for all tensors, gaps of indices entropy-coded by the codec of this project (`compress`), values at 1 to 32 bits;
sums in the order of ranks; any shape, at its share of the cost (sync.dct_blocks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from farflung import __version__
from farflung.compress import registry
from farflung.compress.payload import ContributionKey
from farflung.compress.sparse import TopKCodec
from farflung.core.crypto import NS_PAYLOAD, NS_STATE, digest
from farflung.core.errors import ProtocolError, RunError, UsageError
from farflung.core.ids import ZERO_HASH, Hash
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.sync import checkpoint_terms
from farflung.sync.dct_blocks import TensorBlocks, forward, inverse
from farflung.sync.exchange_channel import ExchangeChannel
from farflung.sync.exchange_round import check_roots, claimed_roots
from farflung.sync.group import SyncGroup, too_few
from farflung.sync.group_choice import resolve
from farflung.sync.model_weights import not_finite
from farflung.train.device_topk import choose

Aggregation = Literal["selectors", "all"]

VERSION: Final = 1  # of the state_dict


class DeMo(torch.optim.Optimizer):
    """Drop-in: give it to a plain (not DDP-wrapped) model's loop instead of another optimizer.

    Keyword names are the reference's. `compression_chunk` is a block's side. `process_group`: a
    torch.distributed group, a group of `farflung.sync.connect`, or None (the default group, else this process
    alone). `check_every`: steps between comparisons of all parameters (0: only before the first step; that all
    merged the same is compared at every step). `on_device`: whether coefficients are chosen where the model lies, so
    that only these travel; None: where that is no CPU. `aggregation`: "selectors", the paper's, averages a coefficient
    over the peers that sent it, and since only the sign is used, one peer of twenty decides what only it sent; "all"
    divides by the number of peers.

    Every peer must have gradients for the same parameters; those without one are skipped. A step that fails can be
    made again.
    Raises UsageError FF-SYNC-020 (a setting), SpecError FF-COMP-030, FF-COMP-031 (of the codec).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        compression_decay: float = 0.999,
        compression_topk: int = 32,
        compression_chunk: int = 64,
        weight_decay: float = 0.0,
        process_group: SyncGroup | dist.ProcessGroup | None = None,
        *,
        value_bits: int = 32,
        aggregation: Aggregation = "selectors",
        check_every: int = 100,
        on_device: bool | None = None,
    ) -> None:
        _check(lr, compression_decay, weight_decay, aggregation, check_every)
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "compression_decay": compression_decay,
            "step": 0,
            "chain": ZERO_HASH.hex(),
            "version": VERSION,
            "farflung": __version__,
            "settings": checkpoint_terms.text(
                {
                    "compression_topk": compression_topk,
                    "compression_chunk": compression_chunk,
                    "value_bits": value_bits,
                    "aggregation": aggregation,
                }
            ),
        }
        super().__init__(params, defaults)
        self.group = resolve(process_group)
        self._channel = ExchangeChannel(self.group)
        self.bytes_up = self.bytes_down = 0
        self.last_payload = b""
        self._side, self._aggregation, self._check_every = compression_chunk, aggregation, check_every
        self._on_device = on_device
        area = compression_chunk**2
        codec = registry.make(
            "topk",
            value_bits=value_bits,
            topk=min(compression_topk, area),
            chunk=area,
            transform="raw",
            rank=1,
            error_decay=0.0,
        )
        assert isinstance(codec, TopKCodec)
        self._codec = codec

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of all peers together.

        Raises RunError FF-SYNC-005 (NaN), VerificationError FF-SYNC-006 (parameters differ), NetworkError
        FF-SYNC-010, 011, ProtocolError FF-SYNC-021 (a rank sent what does not belong to this step).
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        own = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        own = [(p, group) for p, group in own if p.numel()]
        if not own:
            return loss
        first = self.param_groups[0]
        blocks = TensorBlocks([tuple(p.shape) for p, _ in own], self._side)
        momenta = [self._momentum(p, group) for p, group in own]
        coefficients = forward(blocks.gather(momenta))
        layout = self._layout(own, blocks)
        if not bool(torch.isfinite(coefficients).all()):
            raise _not_finite(own)
        about = ContributionKey(first["step"], 0, self._root(own), self.group.ids[self.group.rank])
        sent, mean = self._exchange(layout, about, self._encoded(layout, about, coefficients))
        first["step"] += 1
        for (parameter, _), momentum in zip(own, momenta, strict=True):
            self.state[parameter]["delta"] = momentum
        self._apply(own, blocks, sent, mean)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Momentum comes back in float32 whatever the parameters' type (torch's own method would round it).

        Raises UsageError FF-SYNC-004 where another setting chose what was sent, VersionError FF-CORE-095.
        """
        first = state_dict["param_groups"][0]
        if "settings" in first:
            checkpoint_terms.check_version(first, VERSION)
        checkpoint_terms.compare_settings(first.get("settings"), self.param_groups[0]["settings"])
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group["farflung"] = __version__
        places = [p for group in self.param_groups for p in group["params"]]
        numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
        for parameter, number in zip(places, numbers, strict=True):
            if number in state_dict["state"]:
                saved = state_dict["state"][number]["delta"]
                self.state[parameter]["delta"] = saved.to(parameter.device, torch.float32, copy=True)

    def _momentum(self, parameter: Tensor, group: dict[str, Any]) -> Tensor:
        """The momentum with this step's gradient, in a place of its own: a step that fails changes nothing."""
        state = self.state[parameter]
        if "delta" not in state:
            state["delta"] = torch.zeros_like(parameter, dtype=torch.float32)
        assert parameter.grad is not None
        delta: Tensor = state["delta"]
        return delta.mul(group["compression_decay"]).add_(parameter.grad.float(), alpha=float(group["lr"]))

    def _encoded(self, layout: TensorLayout, about: ContributionKey, coefficients: Tensor) -> bytes:
        """This peer's payload. From another device only those coefficients travel that are chosen there."""
        flat = coefficients.reshape(-1)
        if not self._is_near(flat.device):
            return self._codec.encode(None, flat.cpu().numpy(), layout, about)[1]
        chosen = choose(flat, self._codec.plan(layout).slabs)
        return self._codec.encode_chosen(chosen.indices, chosen.values, layout, about)[1]

    def _exchange(self, layout: TensorLayout, about: ContributionKey, payload: bytes) -> tuple[Float32, Float32]:
        """What this peer's payload says, and the mean of what all say: both of shape (layout.size,)."""
        self.last_payload = payload
        quorum = len(self.group.ids)
        if not self._channel.is_met:
            self._channel.meet(self._terms(), quorum)
        exchanged = self._channel.exchange(f"step {about.round}", payload, self._codec.bound(layout), quorum)
        if len(exchanged.payloads) < quorum:
            raise too_few(len(exchanged.payloads), quorum, exchanged.missing)
        self.bytes_up += exchanged.bytes_up
        self.bytes_down += exchanged.bytes_down
        check_roots(claimed_roots(exchanged.payloads), about.base_root)
        total, count = np.zeros(layout.size, np.float32), np.zeros(layout.size, np.float32)
        sent = total
        for rank, data in sorted(exchanged.payloads.items()):
            try:
                values = self._codec.decode(data, layout, about._replace(peer=self.group.ids[rank]))
            except ProtocolError as error:
                raise _stray(rank, error, self._without_gradient()) from error
            sent = values if rank == self.group.rank else sent
            total += values
            count += values != 0
        self._chain(exchanged.payloads)
        if self._aggregation == "all":
            return sent, (total / np.float32(quorum)).astype(np.float32)
        return sent, (total / np.maximum(count, np.float32(1))).astype(np.float32)

    def _apply(
        self, own: list[tuple[Tensor, dict[str, Any]]], blocks: TensorBlocks, sent: Float32, mean: Float32
    ) -> None:
        both = self._placed(np.concatenate([sent, mean]), own[0][0].device)
        both = both.view(2 * blocks.count, self._side, self._side)
        said, wanted = inverse(both).chunk(2)
        for (parameter, group), known, change in zip(own, blocks.scatter(said), blocks.scatter(wanted), strict=True):
            self.state[parameter]["delta"].sub_(known.to(parameter.device))
            if group["weight_decay"]:
                parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
            parameter.add_(change.sign().to(parameter), alpha=-float(group["lr"]))

    def _placed(self, vector: Float32, device: torch.device) -> Tensor:
        """A vector that is mostly zero, on a device: only the others travel there."""
        if not self._is_near(device):
            return torch.from_numpy(vector).to(device)
        found = torch.zeros(vector.size, device=device)
        places = np.flatnonzero(vector)
        found[torch.from_numpy(places).to(device)] = torch.from_numpy(vector[places]).to(device)
        return found

    def _is_near(self, device: torch.device) -> bool:
        """Whether the choice is made there."""
        return device.type != "cpu" if self._on_device is None else self._on_device

    def _without_gradient(self) -> list[str]:
        """Names of the parameters that have none in this step: torch's, or their place and shape."""
        places = [p for group in self.param_groups for p in group["params"]]
        known = [name for group in self.param_groups for name in group.get("param_names", ())]
        names = known if len(known) == len(places) else [f"number {n} {list(p.shape)}" for n, p in enumerate(places)]
        return [name for name, p in zip(names, places, strict=True) if p.grad is None]

    # What all peers must agree on

    def _terms(self) -> dict[str, Any]:
        names = ("lr", "weight_decay", "compression_decay", "step")
        terms: dict[str, Any] = {"method": "DeMo", "farflung": __version__}
        terms |= {name: ", ".join(str(group[name]) for group in self.param_groups) for name in names}
        terms |= {"compression_chunk": self._side, "compression_topk": self._codec.topk}
        terms |= {"value_bits": self._codec.value_bits, "aggregation": self._aggregation}
        return terms | {"check_every": self._check_every}

    def _layout(self, own: list[tuple[Tensor, dict[str, Any]]], blocks: TensorBlocks) -> TensorLayout:
        """One tensor of coefficients, named by which parameters are in it."""
        places = {id(p): n for n, p in enumerate(p for group in self.param_groups for p in group["params"])}
        which = ";".join(f"{places[id(p)]}:{tuple(p.shape)}" for p, _ in own)
        name = digest(NS_STATE, which.encode()).hex()
        return TensorLayout.of({name: (blocks.count * self._side**2,)})

    def _root(self, own: list[tuple[Tensor, dict[str, Any]]]) -> Hash:
        """Of all payloads merged so far; and of the parameters before the first step and at every `check_every`-th."""
        first = self.param_groups[0]
        chain = bytes.fromhex(first["chain"])
        step = first["step"]
        if step and not (self._check_every and step % self._check_every == 0):
            return Hash(chain)
        values = (p.detach().float().cpu().contiguous().numpy().reshape(-1) for p, _ in own)
        return digest(NS_STATE, chain, *(value.data.cast("B") for value in values))

    def _chain(self, payloads: dict[int, bytes]) -> None:
        first = self.param_groups[0]
        parts = [data for _, data in sorted(payloads.items())]
        first["chain"] = digest(NS_PAYLOAD, bytes.fromhex(first["chain"]), *parts).hex()


def _check(lr: float, decay: float, weight_decay: float, aggregation: str, check_every: int) -> None:
    if lr > 0 and 0 <= decay <= 1 and weight_decay >= 0 and check_every >= 0 and aggregation in ("selectors", "all"):
        return
    raise UsageError(
        "FF-SYNC-020",
        "a setting of DeMo cannot be used",
        cause=f"lr {lr}, compression_decay {decay}, weight_decay {weight_decay}, aggregation {aggregation!r}",
        hint='take lr > 0, 0 <= compression_decay <= 1, aggregation "selectors" or "all"',
    )


def _not_finite(own: list[tuple[Tensor, dict[str, Any]]]) -> RunError:
    """By their places among the parameters with a gradient; where none of these is to blame, momentum overflowed."""
    grads = [p.grad for p, _ in own if p.grad is not None]
    bad = [f"parameter {n}" for n, grad in enumerate(grads) if not bool(torch.isfinite(grad).all())]
    return not_finite("gradients", bad or ["earlier steps"], len(own))


def _stray(rank: int, error: ProtocolError, without: list[str]) -> ProtocolError:
    here = ", ".join(without[:6]) if without else "none"
    return ProtocolError(
        "FF-SYNC-021",
        f"rank {rank} sent what does not belong to this step",
        cause=f"{str(error)[:200]}; parameters without a gradient here: {here}",
        hint="give all ranks the same settings, and gradients for the same parameters (each rank names those it lacks)",
    )

"""Keeps a peer's memory on its model's device, and copies between accelerator and host.

    up      the k values of every chunk that were chosen, and their places
    down    what quantising made of them (k values); then what the round changed of the public weights, at most N k
            of N peers: only these and their places, or, where that is less, all weights

Residual, offset, velocity and the weights that the round began with stay on the device; public state, whose bits all
peers share, is merged and hashed on the host as ever. The arithmetic is train.sync_arithmetic's, one rounding for
one rounding: multiplications, additions and subtractions of float32, none of them fused. So payloads, weights and
checkpoints are the bytes of sync.peer_memory's HostMemory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from farflung.compress.sparse import TopKCodec
from farflung.compress.trained_tensors import TrainedTensors
from farflung.core.errors import UsageError
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.sync.model_weights import HOST, ModelWeights, on_host
from farflung.sync.peer_memory import HostMemory, PeerMemory, pushed
from farflung.train import device_topk
from farflung.train.public_state import PublicState
from farflung.train.sync_arithmetic import Sync


def remember(sync: Sync, weights: ModelWeights, on_device: bool | None) -> PeerMemory:
    """The memory of a peer: on the model's device where the codec can choose there, else on the host.

    `on_device` None: where the model lies on an accelerator. Raises UsageError FF-SYNC-001 where True cannot be had.
    """
    devices = {parameter.device for parameter in weights.parameters}
    codec = sync.codec(0)
    can = isinstance(codec, TopKCodec) and codec.transform == "raw" and len(devices) == 1
    wants = devices != {HOST} if on_device is None else on_device
    if on_device and not can:
        raise UsageError(
            "FF-SYNC-001",
            "a setting cannot be used",
            cause=f"on_device = True, transform {sync.spec.sync.transform!r}, parameters on {len(devices)} devices",
            hint='SparseLoCo with transform = "raw", or DGC, and the whole model on one device',
        )
    return DeviceMemory(sync, weights, devices.pop()) if can and wants else HostMemory(sync, weights)


class DeviceMemory:
    """Memory of a `topk` codec of raw values, as tensors on `device`."""

    def __init__(self, sync: Sync, weights: ModelWeights, device: torch.device) -> None:
        size = weights.layout.size
        self._weights, self._device = weights, device
        self._residual = torch.zeros(size, device=device)
        self._offset = torch.zeros(size, device=device) if sync.is_offset else None
        self._velocity = torch.zeros(size, device=device) if sync.is_stepwise else None
        self._params = torch.zeros(size, device=device)
        self._known: Float32 | None = None  # the same on the host, where it is public state
        self._start = self._params
        self._seen: Tensor | None = None
        self._end: Tensor | None = None

    def begin(self, params: Float32) -> None:
        """See `Memory.begin`."""
        self._follow(params)
        self._start = self._params if self._offset is None else self._params + self._offset
        self._weights.put(self._start)
        self._seen = self._weights.take(self._device) if self._weights.is_rounded else None

    def end(self, sync: Sync) -> None:
        """See `Memory.end`."""
        if self._velocity is not None:
            found = self._weights.gradients(self._device)
            self._weights.check_finite(found, "gradients")
            layout, residual = self._weights.layout, self._residual
            self._end, self._velocity = pushed(sync.spec, layout, self._start, found, self._velocity, residual)
            return
        end = self._weights.take(self._device)
        self._weights.check_finite(end, "weights")
        self._end = end if self._seen is None else self._start + (end - self._seen)

    def sent(self, sync: Sync, state: PublicState, peer: PeerId) -> bytes:
        """See `Memory.sent`."""
        layout, codec, delay = self._weights.layout, sync.codec(state.round), sync.spec.sync.delay
        assert isinstance(codec, TopKCodec)  # or `remember` would have taken the host
        self._follow(state.params)
        change = (self._params if self._end is None else self._end) - self._params
        if delay and self._offset is not None and state.round > 0:
            before = sync.fragment(state.round - 1, layout).place  # sent already, and still in the offset
            change[before] -= self._offset[before]
            self._rest(change, before)
        part, about = sync.fragment(state.round, layout), sync.about(state, layout, peer)
        self._residual = self._residual.clone()  # the exchange may fail, and all be as before
        held, trained = self._residual[part.place], _trained(part.layout, change[part.place])
        some = TrainedTensors.of(part.layout, trained)
        cut = codec.plan(some.layout)
        total = held * float(np.float32(codec.error_decay))
        total += change[part.place]
        left = device_topk.gather(total, some.places)
        vector = device_topk.gather(left, cut.order)
        chosen = device_topk.choose(vector, cut.slabs)
        said, payload = codec.encode_chosen(chosen.indices, chosen.values, part.layout, about, trained)
        device_topk.subtract(vector, chosen.places, said)
        device_topk.scatter(vector, cut.order, left)
        device_topk.scatter(left, some.places, held)
        if self._offset is not None:
            if not delay:
                change[part.place] = 0.0
            self._offset = change
        self._end = None
        return payload

    def unsent(self, sync: Sync, state: PublicState, peer: PeerId, payload: bytes) -> None:
        """See `Memory.unsent`. What was said goes down whole: it is rare."""
        layout = self._weights.layout
        said = sync.decode(sync.about(state, layout, peer), layout, payload)
        self._residual[sync.fragment(state.round, layout).place] += on_host(said).to(self._device)

    def held(self) -> tuple[Any, ...]:
        """See `Memory.held`."""
        return self._residual, self._offset, self._velocity, self._end

    def back(self, held: tuple[Any, ...]) -> None:
        """See `Memory.back`."""
        self._residual, self._offset, self._velocity, self._end = held

    def drop(self) -> None:
        """See `Memory.drop`."""
        if self._offset is not None:
            self._offset.zero_()

    def vectors(self) -> dict[str, Tensor]:
        """See `Memory.vectors`."""
        return {name: vector.to(HOST, copy=True) for name, vector in self._named().items()}

    def load(self, vectors: Mapping[str, Tensor]) -> None:
        """See `Memory.load`."""
        for name, vector in self._named().items():
            vector.copy_(vectors[name])

    def _rest(self, change: Tensor, place: slice) -> None:
        """Takes out of `change` what rounding left of tensors at `place` whose weights stayed where they began."""
        end = self._params if self._end is None else self._end
        own = [at for _, at in self._weights.layout.slices() if place.start <= at.start < place.stop]
        moved = torch.stack([(end[at] != self._start[at]).any() for at in own]).tolist()
        for at, is_moved in zip(own, moved, strict=True):
            if not is_moved:
                change[at] = 0.0

    def _named(self) -> dict[str, Tensor]:
        named = {"residual": self._residual, "offset": self._offset, "velocity": self._velocity}
        return {name: vector for name, vector in named.items() if vector is not None}

    def _follow(self, params: Float32) -> None:
        """Makes the device's public weights `params`; what is the same there does not travel."""
        known, self._known = self._known, params
        if known is params:
            return
        if known is not None:
            places = np.flatnonzero(params.view(np.uint32) != known.view(np.uint32))
            if places.nbytes + 4 * places.size < params.nbytes:
                values = torch.from_numpy(params[places]).to(self._device)
                self._params[torch.from_numpy(places).to(self._device)] = values
                return
        self._params.copy_(on_host(params))


def _trained(layout: TensorLayout, change: Tensor) -> tuple[bool, ...]:
    """For each tensor whether the round changed it at all: one bit of each travels to the host."""
    return tuple(torch.stack([change[place].any() for _, place in layout.slices()]).tolist())

"""Keeps a peer's private memory between rounds: the round's starting point, and the values it has not sent yet.

    residual    what payloads did not say (compress.codecs)
    offset      how far local weights are from the public ones, where a round sends a fragment or its result is delayed
    velocity    of a method that sends gradients instead of changes

On the host the arithmetic is train.sync_arithmetic's; on an accelerator sync.device_memory's, bit for bit the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from farflung.core.ids import PeerId
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.methods.registry import method_of
from farflung.job.spec import JobSpec
from farflung.sync.model_weights import HOST, ModelWeights, on_host
from farflung.train import optim
from farflung.train.optim import OptimState
from farflung.train.public_state import PublicState
from farflung.train.sync_arithmetic import Sync


class PeerMemory(Protocol):
    """Private vectors of shape (layout.size,), float32, wherever they lie."""

    def begin(self, params: Float32) -> None:
        """A round begins: the model holds the public `params`, and the offset, now."""

    def end(self, sync: Sync) -> None:
        """Remembers where the local steps led. Raises RunError FF-SYNC-005 (not finite)."""

    def sent(self, sync: Sync, state: PublicState, peer: PeerId) -> bytes:
        """The payload to `state`'s round; what it says is no longer unsent. After `end` the change that led there, a
        second time none. Raises what Sync.encode raises.
        """

    def unsent(self, sync: Sync, state: PublicState, peer: PeerId, payload: bytes) -> None:
        """What `payload` said did not count, and is unsent again."""

    def held(self) -> tuple[Any, ...]:
        """All that `end` and `sent` change: neither of them writes into it."""

    def back(self, held: tuple[Any, ...]) -> None:
        """Goes back to what `held` said: an exchange failed."""

    def drop(self) -> None:
        """Forgets what local weights are ahead of public ones."""

    def vectors(self) -> dict[str, Tensor]:
        """Copies on the host, by the names above; those that the method has."""

    def load(self, vectors: Mapping[str, Tensor]) -> None:
        """Goes on from `vectors`."""


class HostMemory:
    """Memory as NumPy vectors."""

    def __init__(self, sync: Sync, weights: ModelWeights) -> None:
        size = weights.layout.size
        self._weights = weights
        self._residual = _zeros(size) if has_residual(sync.spec) else None
        self._offset = _zeros(size) if sync.is_offset else None
        self._velocity = torch.zeros(size) if sync.is_stepwise else None
        self._start = _zeros(size)
        self._seen: Float32 | None = None
        self._end: Float32 | None = None
        self._trained: tuple[bool, ...] = ()  # by the step whose change was sent last

    def begin(self, params: Float32) -> None:
        """See `Memory.begin`."""
        self._start = params if self._offset is None else params + self._offset
        self._weights.put(on_host(self._start))
        self._seen = self._weights.take().numpy() if self._weights.is_rounded else None

    def end(self, sync: Sync) -> None:
        """See `Memory.end`."""
        if self._velocity is not None:
            found, start = self._weights.gradients(), torch.from_numpy(self._start.copy())
            self._weights.check_finite(found, "gradients")
            residual = None if self._residual is None else torch.from_numpy(self._residual)
            moved, self._velocity = pushed(sync.spec, self._weights.layout, start, found, self._velocity, residual)
            self._end = moved.numpy()
            return
        taken = self._weights.take()
        self._weights.check_finite(taken, "weights")
        end: Float32 = taken.numpy()
        if self._seen is not None:  # rounding to half precision is no change that the peer made
            end = self._start + (end - self._seen)
        self._end = end

    def sent(self, sync: Sync, state: PublicState, peer: PeerId) -> bytes:
        """See `Memory.sent`."""
        end = state.params if self._end is None else self._end
        again = self._trained if self._end is None else ()
        found = sync.encode(state, self._residual, self._offset, end, self._weights.layout, peer, again)
        self._residual, self._offset, self._end = found.residual, found.offset, None
        self._trained = found.trained
        return found.payload

    def unsent(self, sync: Sync, state: PublicState, peer: PeerId, payload: bytes) -> None:
        """See `Memory.unsent`."""
        if self._residual is None:
            return
        layout, codec = self._weights.layout, sync.codec(state.round)
        said = sync.decode(sync.about(state, layout, peer), layout, payload)
        said = sync.method.taken(codec, state, layout, said)
        self._residual = self._residual.copy()
        self._residual[sync.fragment(state.round, layout).place] += said

    def held(self) -> tuple[Any, ...]:
        """See `Memory.held`."""
        return self._residual, self._offset, self._velocity, self._end, self._trained

    def back(self, held: tuple[Any, ...]) -> None:
        """See `Memory.back`."""
        self._residual, self._offset, self._velocity, self._end, self._trained = held

    def drop(self) -> None:
        """See `Memory.drop`."""
        if self._offset is not None:
            self._offset = np.zeros_like(self._offset)

    def vectors(self) -> dict[str, Tensor]:
        """See `Memory.vectors`."""
        found = {} if self._velocity is None else {"velocity": self._velocity.clone()}
        for name, vector in (("residual", self._residual), ("offset", self._offset)):
            if vector is not None:
                found[name] = torch.from_numpy(vector.copy())
        return found

    def load(self, vectors: Mapping[str, Tensor]) -> None:
        """See `Memory.load`."""
        if self._residual is not None:
            self._residual = vectors["residual"].numpy().copy()
        if self._offset is not None:
            self._offset = vectors["offset"].numpy().copy()
        if self._velocity is not None:
            self._velocity = vectors["velocity"].to(HOST, copy=True)


def has_residual(spec: JobSpec) -> bool:
    """Whether the codec keeps what it did not send."""
    return method_of(spec.sync.method).has_residual(spec.sync)


def pushed(
    spec: JobSpec, layout: TensorLayout, start: Tensor, grad: Tensor, velocity: Tensor, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Where a method that sends gradients ends, as weights (train.sync_arithmetic: they stay, the velocity is what
    is sent), and its velocity. A tensor without a gradient, or with one of zeros, sends nothing.
    """
    limit = spec.optimizer.clip
    clipped = optim.bounded(grad, optim.ordered_norm(grad), limit) if limit > 0 else grad
    held = OptimState(0, (velocity,))
    if residual is not None:
        held = optim.begun(spec, held, residual)
    moved, (after,) = optim.gradient(spec.optimizer, start, clipped, held.vectors)
    tensors = [place for _, place in layout.slices()]
    used = torch.stack([grad[place].any() for place in tensors]).tolist()
    unused = (place for place, is_used in zip(tensors, used, strict=True) if not is_used)
    optim.hold(unused, (start, *held.vectors), (moved, after))
    return moved, after


def _zeros(size: int) -> Float32:
    return np.zeros(size, np.float32)

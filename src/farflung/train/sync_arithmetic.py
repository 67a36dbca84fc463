"""Implements one round's public arithmetic: a codec and an outer optimizer, built once for all peers.

Workers, the requester, the second reader of `verify-run` and the library merge through `Sync.apply`: decode, merge in
64-bit fixed point (compress.merge), one element-wise outer step (core.canon.float_operations). Every method of
job.methods is an inner optimizer, H steps, a codec with error feedback, and an outer optimizer. With e the
residual, u the change:

    a = d e + u         payload = encode(a)        e' = a - decode(payload)       each peer        (compress.codecs)
    A = merge(payloads)                            P' = outer(P, A)               everybody

Where the inner optimizer is `gradient`, weights stay at P; u = -SCALE velocity, and the outer step takes A / SCALE: a
power of two, so that small gradients keep their digits in fixed point.

Streaming and delay. A round sends fragment f = round mod F alone (train.fragments). A peer's local weights start
at P + offset: what it has changed and not sent, and with `delay` what it sent and P does not hold yet. With a delay
the merged change A waits in public state (`pending`) and is applied at the end of the next round (Douillard et al.
2025, section 2.2; Kale et al. 2025, arXiv 2502.12996); the last round applies both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from farflung.compress.codecs import Codec, is_trained, trained_tensors
from farflung.compress.merge import WeightedUpdate as Decoded
from farflung.compress.payload import ContributionKey
from farflung.compress.sparse import TopKCodec
from farflung.compress.tensor_range import RangedMean, ranged_mean
from farflung.compress.trained_tensors import plane_bytes
from farflung.core.canon.float_operations import decayed
from farflung.core.ids import PeerId
from farflung.core.mapped_pages import leave
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.methods.outer_steps import OuterSetting
from farflung.job.methods.registry import method_of
from farflung.job.methods.sync_method import SyncMethod
from farflung.job.spec import JobSpec
from farflung.train import fragments
from farflung.train.fragments import Fragment
from farflung.train.public_state import PARAMS, PENDING, PublicState
from farflung.train.schedule import learning_rate
from farflung.train.vector_store import IN_MEMORY, VectorStore, blocks, copy, difference, kept, zeros
from farflung.train.worker_messages import AcceptedPayload

# A clipped gradient's elements are at most 1 in size, and 64 is where fixed point saturates.
SCALE: Final = 64.0
GRADIENT: Final = "gradient"


class EncodedUpdate(NamedTuple):
    """What encoding left: residual and offset, each of shape (layout.size,) or None, and the payload. `trained`: for
    each tensor of the fragment whether the round trained it.
    """

    residual: Float32 | None
    offset: Float32 | None
    payload: bytes
    trained: tuple[bool, ...]


@dataclass(frozen=True)
class Sync:
    """A sync method, ready to use. Build with `Sync.of`. What it makes that lasts lies in `store`."""

    spec: JobSpec
    store: VectorStore = IN_MEMORY

    @classmethod
    def of(cls, spec: JobSpec, store: VectorStore = IN_MEMORY) -> Sync:
        """The method that a spec names. Raises SpecError FF-JOB-044, FF-COMP-030, FF-COMP-031."""
        made = cls(spec, store)
        made.codec(0)
        return made

    @property
    def method(self) -> SyncMethod:
        """Its row in job.methods."""
        return method_of(self.spec.sync.method)

    def codec(self, round: int) -> Codec:
        """The codec of a round."""
        return self.method.codec(self.spec.sync, self.method.density(self.spec.sync, round))

    def fragment(self, round: int, layout: TensorLayout) -> Fragment:
        """The tensors that a round sends."""
        return fragments.of_round(layout, self.spec.sync.fragments, round)

    def bound(self, layout: TensorLayout) -> int:
        """The longest payload of any round, in bytes."""
        parts = fragments.split(layout, self.spec.sync.fragments)
        codec = self.codec(0)
        plane = isinstance(codec, TopKCodec)
        return max(codec.bound(part.layout) + plane * plane_bytes(part.layout) for part in parts)

    @property
    def phases(self) -> int:
        """Rounds that one outer step takes."""
        return self.method.phases

    @property
    def is_offset(self) -> bool:
        """Whether local weights go on from where they were."""
        return self.spec.sync.fragments > 1 or self.spec.sync.delay > 0

    @property
    def is_stepwise(self) -> bool:
        """Whether gradients are sent, and the outer optimizer is the one that moves weights."""
        return self.spec.optimizer.name == GRADIENT

    def initial(self, params: Float32) -> PublicState:
        """Public state of round 0 from weights of shape (size,); what the outer optimizer keeps starts at zero."""
        names = self.method.first(self.spec.sync) | self._pending
        vectors = {name: self._zeros(params.size) for name in sorted(names)}
        return PublicState(0, kept(self.store, params), vectors)

    def _zeros(self, size: int) -> Float32:
        """Zeros, to be written to."""
        return zeros(self.store, size)

    def _copied(self, vector: Float32) -> Float32:
        """A copy, to be written to."""
        own = self.store.new(vector.size)
        copy(own, vector)
        return own

    def public_names(self, round: int) -> frozenset[str]:
        """Names of all vectors, each as long as the weights, that public state may hold before `round`.

        What a method's phases make is absent where nobody took part in the phase; the others are always there.
        """
        return self.method.shared(self.spec.sync, round) | {PARAMS} | self._pending

    @property
    def _pending(self) -> frozenset[str]:
        return frozenset({PENDING} if self.spec.sync.delay else ())

    def about(self, state: PublicState, layout: TensorLayout, peer: PeerId) -> ContributionKey:
        """What the payload of `peer` to `state`'s round is bound to."""
        return ContributionKey(state.round, state.round % self.phases, state.root(layout), peer)

    def start(self, state: PublicState, offset: Float32 | None) -> Float32:
        """The weights that a peer's round begins with, shape (size,)."""
        return state.params if offset is None else state.params + offset

    def encode(
        self,
        state: PublicState,
        residual: Float32 | None,
        offset: Float32 | None,
        end: Float32,
        layout: TensorLayout,
        peer: PeerId,
        again: tuple[bool, ...] = (),
    ) -> EncodedUpdate:
        """The payload of a round that led a peer from P_r (and its offset) to `end`, and what it keeps.

        `again`: the tensors that an earlier phase of the same step was about, where `end` is P_r.
        Raises what Codec.encode raises.
        """
        if not again:
            end = self._without_decay(state.round, layout, self.start(state, offset), end)
        change = difference(end, state.params)
        sync = self.spec.sync
        if sync.delay and offset is not None and state.round > 0:
            before = self.fragment(state.round - 1, layout).place  # sent already, and still in the offset
            change[before] -= offset[before]
            resting = self.start(state, offset) == end
            for _, place in layout.slices():  # P + offset was rounded, and what that leaves is no training
                if before.start <= place.start < before.stop and resting[place].all():
                    change[place] = 0.0
        part, about = self.fragment(state.round, layout), self.about(state, layout, peer)
        held = None if residual is None else residual[part.place]
        codec = self.method.encoder(self.codec(state.round), state, layout, self.spec.seed)
        trained = again or self._trained(part.layout, change[part.place])
        left, payload = codec.encode(held, change[part.place], part.layout, about, trained)
        if not self.is_offset:
            return EncodedUpdate(None if left is None else kept(self.store, left), None, payload, trained)
        unsent = None
        if left is not None:
            unsent = self._zeros(end.size) if residual is None else self._copied(residual)
            unsent[part.place] = left
        if not sync.delay:
            change[part.place] = 0.0
        return EncodedUpdate(unsent, kept(self.store, change), payload, trained)

    def _without_decay(self, round: int, layout: TensorLayout, begun: Float32, end: Float32) -> Float32:
        """`end`, with those tensors as they begun that weight decay alone moved: their gradient was zero throughout."""
        spec = self.spec
        if self.is_stepwise or not spec.optimizer.weight_decay:
            return end
        steps = range(round * spec.sync.steps, (round + 1) * spec.sync.steps)
        rates = [learning_rate(done, spec.steps, spec.optimizer.lr, spec.schedule) for done in steps]
        factors = [rate * spec.optimizer.weight_decay for rate in rates]
        for tensor, place in layout.slices():
            if len(tensor.shape) >= 2 and _is_decayed(begun[place], end[place], factors):
                end = end.copy()
                end[place] = begun[place]
        return end

    def _trained(self, layout: TensorLayout, change: Float32) -> tuple[bool, ...]:
        """For each tensor whether the round trained it. A later phase is sent of what no longer changes, too."""
        trained = trained_tensors(layout, change)
        return trained if any(trained) or self.phases == 1 else (True,) * len(trained)

    def decode(self, about: ContributionKey, layout: TensorLayout, payload: bytes | memoryview) -> Float32:
        """What a payload says, shape (fragment's size,). Raises ProtocolError."""
        part = self.fragment(about.round, layout)
        return self.codec(about.round).decode(payload, part.layout, about)

    def _decoded(self, about: ContributionKey, layout: TensorLayout, payload: bytes | memoryview) -> Float32:
        """The same, read-only, where this method's vectors lie."""
        part = self.fragment(about.round, layout)
        values = self.codec(about.round).decode(payload, part.layout, about, self.store.new(part.layout.size))
        values.flags.writeable = False
        leave(payload)
        self.store.rest()
        return values

    def spread(self, round: int, layout: TensorLayout, values: Float32) -> Float32:
        """What a round's payload says of all tensors, shape (layout.size,): nothing of those that are not sent."""
        whole = np.zeros(layout.size, np.float32)
        whole[self.fragment(round, layout).place] = values
        return whole

    def merged(self, state: PublicState, layout: TensorLayout, parts: Sequence[AcceptedPayload]) -> RangedMean:
        """The mean of the accepted parts, at least one, in any order, shape (fragment's size,), and who was clipped."""
        part = self.fragment(state.round, layout)
        decoded = [
            Decoded(p.peer, p.weight, self._decoded(self.about(state, layout, p.peer), layout, p.payload))
            for p in parts
        ]
        found = ranged_mean(part.layout, decoded, self.spec.sync.merge, self.store.new(part.layout.size))
        self.store.rest()
        return found

    def apply(self, state: PublicState, layout: TensorLayout, parts: Sequence[AcceptedPayload]) -> PublicState:
        """P_r and the accepted parts, in any order → P_{r+1}. Raises ProtocolError for a bad payload.

        Without parts nothing changes but the round's number, and what is pending.
        """
        change = self.merged(state, layout, parts).values if parts else None
        return self.moved(state, layout, change)

    def alone(self, state: PublicState, layout: TensorLayout, part: AcceptedPayload) -> Float32:
        """The weights that P_r and one contribution alone lead to, shape (size,): the outer step, at once and begun
        anew, since what earlier rounds left in it moves all alike. Raises ProtocolError for a bad payload.
        """
        at_once = Sync(replace(self.spec, sync=replace(self.spec.sync, delay=0)), self.store)
        of_step = {PENDING, *self.method.outer(self.spec.sync).vectors(self.spec.sync)}
        anew = {n: np.zeros_like(v) if n in of_step else v for n, v in state.vectors.items()}
        begun = PublicState(state.round, state.params, anew)
        return at_once.moved(begun, layout, self.merged(state, layout, [part]).values).params

    def moved(self, state: PublicState, layout: TensorLayout, change: Float32 | None) -> PublicState:
        """P_r and the aggregate of its round, shape (fragment's size,) → P_{r+1}."""
        change, shared = self.method.settled(self.codec(state.round), state, layout, change)
        params, vectors = self._copied(state.params), {name: self._copied(v) for name, v in shared.items()}
        now = self.fragment(state.round, layout).place
        if not self.spec.sync.delay:
            if change is not None:
                self._step(params, vectors, now, change, layout, state.round)
            return PublicState(state.round + 1, params, vectors)
        if state.round > 0:
            before = self.fragment(state.round - 1, layout).place
            self._step(params, vectors, before, vectors[PENDING][before].copy(), layout, state.round - 1)
        vectors[PENDING][:] = 0.0
        if change is not None and state.round + 1 == self.spec.rounds:
            self._step(params, vectors, now, change, layout, state.round)
        elif change is not None:
            vectors[PENDING][now] = change
        return PublicState(state.round + 1, params, vectors)

    def _step(
        self,
        params: Float32,
        vectors: Mapping[str, Float32],
        place: slice,
        change: Float32,
        layout: TensorLayout,
        round: int,
    ) -> None:
        """The outer step on `place` of params and vectors, in place; `round` decides the learning rate.

        A tensor that nobody trained stays as it is: no gradient is no gradient, without decay and momentum.
        """
        for tensor, at in self.fragment(round, layout).layout.slices():
            if not is_trained(change[at]):
                continue
            for piece in blocks(at):
                own = slice(place.start + piece.start, place.start + piece.stop)
                kept_ones = {name: vector[own] for name, vector in vectors.items()}
                params[own] = self._stepped(params[own], kept_ones, change[piece], len(tensor.shape) >= 2, round)
                for part in (params[own], change[piece], *kept_ones.values()):
                    leave(part)

    def _stepped(
        self, old: Float32, vectors: Mapping[str, Float32], change: Float32, is_matrix: bool, round: int
    ) -> Float32:
        """The weights of some elements of one tensor after the outer step; their vectors are written in place."""
        sync, optimizer = self.spec.sync, self.spec.optimizer
        rate = sync.outer_lr
        if self.is_stepwise:
            rate *= learning_rate(round * sync.steps, self.spec.steps, optimizer.lr, self.spec.schedule)
            change = change * np.float32(1.0 / SCALE)
            mask = np.full(old.shape, is_matrix, np.float32)
            old = decayed(old, mask, rate * optimizer.weight_decay)
        setting = OuterSetting(sync, optimizer, rate, round // self.phases + 1)
        return self.method.outer(sync).move(setting, old, change, vectors)


def _is_decayed(begun: Float32, end: Float32, factors: Sequence[float]) -> bool:
    """Whether `end` is what some of the first steps of a round make of `begun` by weight decay alone, bit for bit."""
    few = slice(0, 64)
    first = begun[few]
    for count, factor in enumerate(factors, 1):
        first = _decay(first, factor)
        if np.array_equal(first, end[few]):
            whole = begun
            for each in factors[:count]:
                whole = _decay(whole, each)
            return np.array_equal(whole, end)
    return False


def _decay(params: Float32, factor: float) -> Float32:
    """A step of an inner optimizer whose gradient and momentum are zero (train.optim.adamw)."""
    left: Float32 = params - params * np.float32(factor)
    return left

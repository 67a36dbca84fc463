"""Implements two-way aggregation (experimental; no job file names it): owners of shards sum and re-encode them.

With an all-gather each peer downloads N - 1 payloads of m bytes. Here every slot of the flat vector has one owner among
the live peers; a peer encodes its change for each owner by itself, the owner merges what came (compress.merge), encodes
the mean again with error feedback of its own, and everybody takes the owners' answers. A peer then moves
    up = down = (N - 1)/N (m_up + m_down)
bytes a round, with m of either codec: below m_up + m_down for every N. The price is the second loss of precision
(bench/scaling.py measures it). After 1-bit Adam's server-side error feedback (Tang et al. 2021, arXiv 2102.02888).

Who owns what is rendezvous hashing (Thaler & Ravishankar 1998) with bounded loads (Mirrokni et al. 2018,
arXiv 1608.01350): a pure function of the job and the live peers, and few slots move when one comes or goes. An
owner's answer is a pure function of payloads and of its own residual, so that a verifier can repeat it. An owner that
leaves loses its residual, and in its last round its shard's change: nothing of anybody else's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from farflung.compress.codecs import Codec
from farflung.compress.merge import WeightedUpdate as Decoded
from farflung.compress.merge import mean, merge
from farflung.compress.payload import ContributionKey
from farflung.core.crypto import NS_SHARD_OWNER, digest
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.train.worker_messages import AcceptedPayload

UP: Final = 0  # phase of what contributors send to an owner
DOWN: Final = 1  # phase of what an owner answers
SLOTS: Final = 1024  # about so many in a large model: 64 owners then differ by at most a sixteenth
SLOT_ELEMENTS: Final = 1 << 12  # at least: the chunk of the sparse codecs


class ShardRange(NamedTuple):
    """Consecutive elements of the flat vector that have one owner: pieces of tensors, by tensor name."""

    pieces: tuple[tuple[str, slice], ...]

    @property
    def size(self) -> int:
        """Elements."""
        return sum(place.stop - place.start for _, place in self.pieces)


def slots(layout: TensorLayout) -> tuple[ShardRange, ...]:
    """The layout cut in slots: pieces of a power of two of elements, what is shorter joined to its neighbours.

    A piece starts at a multiple of its slot's length within its tensor, so that chunks lie where they lie without
    slots. Independent of the peers.
    """
    length = SLOT_ELEMENTS
    while length * SLOTS < layout.size:
        length *= 2
    result: list[ShardRange] = []
    short: list[tuple[str, slice]] = []
    for tensor, place in layout.slices():
        for start in range(place.start, place.stop, length):
            piece = (tensor.name, slice(start, min(start + length, place.stop)))
            if piece[1].stop - start == length:
                result.append(ShardRange((piece,)))
                continue
            short.append(piece)
            if ShardRange(tuple(short)).size >= length:
                result.append(ShardRange(tuple(short)))
                short = []
    return (*result, ShardRange(tuple(short))) if short else tuple(result)


@dataclass(frozen=True)
class ModelShard:
    """All that one peer owns, as a layout of its own: each tensor's pieces joined, in the order of the flat vector."""

    owner: PeerId
    layout: TensorLayout
    places: tuple[slice, ...]

    def take(self, vector: Float32) -> Float32:
        """This shard of a flat vector, shape (shard.layout.size,)."""
        return np.concatenate([vector[place] for place in self.places])

    def put(self, values: Float32, vector: Float32) -> None:
        """Writes this shard's values to their places in the flat `vector`."""
        start = 0
        for place in self.places:
            stop = start + place.stop - place.start
            vector[place] = values[start:stop]
            start = stop


def shards(layout: TensorLayout, job: Hash, live: Sequence[PeerId]) -> tuple[ModelShard, ...]:
    """The shards of the live peers, in the peers' order by id; a peer that owns nothing has none.

    No owner has more than size / N elements and one slot.
    """
    peers = sorted(set(live))
    pieces = slots(layout)
    room = -(-layout.size // len(peers)) + max(slot.size for slot in pieces)
    owned: dict[PeerId, list[tuple[str, slice]]] = {peer: [] for peer in peers}
    load = dict.fromkeys(peers, 0)
    for number, slot in enumerate(pieces):
        ranked = sorted(peers, key=lambda peer: _score(job, peer, number), reverse=True)
        owner = next(peer for peer in ranked if load[peer] + slot.size <= room)
        load[owner] += slot.size
        owned[owner] += slot.pieces
    return tuple(_shard(peer, owned[peer]) for peer in peers if owned[peer])


def _score(job: Hash, peer: PeerId, slot: int) -> bytes:
    return digest(NS_SHARD_OWNER, job, peer, slot.to_bytes(8, "little"))


def _shard(owner: PeerId, pieces: list[tuple[str, slice]]) -> ModelShard:
    ordered = sorted(pieces, key=lambda piece: piece[1].start)
    sizes: dict[str, int] = {}
    for name, place in ordered:
        sizes[name] = sizes.get(name, 0) + place.stop - place.start
    return ModelShard(owner, TensorLayout.of({n: (s,) for n, s in sizes.items()}), tuple(p for _, p in ordered))


def moved(layout: TensorLayout, before: ModelShard | None, unsent: Float32 | None, after: ModelShard) -> Float32 | None:
    """An owner's residual when its shard changes: what it still owns stays, the rest is given up or starts at zero."""
    if before is None or unsent is None:
        return None
    whole = np.zeros(layout.size, np.float32)
    before.put(unsent, whole)
    return after.take(whole)


@dataclass(frozen=True)
class TwoWayAggregation:
    """The codec of the contributions, and that of the owners' answers (which may be denser: homes download faster)."""

    uplink: Codec
    downlink: Codec

    def send(
        self, residual: Float32 | None, change: Float32, shards: Sequence[ModelShard], about: ContributionKey
    ) -> tuple[Float32 | None, dict[PeerId, bytes]]:
        """A peer's change, shape (size,) → its residual, shape (size,) or None, and one payload for each owner.

        Raises what `Codec.encode` raises.
        """
        left = np.zeros_like(change)
        payloads: dict[PeerId, bytes] = {}
        keeps = False
        for shard in shards:
            held = None if residual is None else shard.take(residual)
            at = _bound(about, shard, UP, about.peer)
            after, payload = self.uplink.encode(held, shard.take(change), shard.layout, at)
            payloads[shard.owner] = payload
            if after is not None:
                shard.put(after, left)
                keeps = True
        return (left if keeps else None), payloads

    def combine(
        self, unsent: Float32 | None, shard: ModelShard, parts: Sequence[AcceptedPayload], about: ContributionKey
    ) -> tuple[Float32 | None, bytes]:
        """What an owner answers: the clipped weighted mean of `parts` (any order), encoded with its own residual.

        `about` is the round's place; the peers of `parts` and the owner are filled in. Raises ProtocolError (a bad
        payload), and what `merge` and `Codec.encode` raise.
        """
        layout = shard.layout
        decoded = [
            Decoded(p.peer, p.weight, self.uplink.decode(p.payload, layout, _bound(about, shard, UP, p.peer)))
            for p in parts
        ]
        at = _bound(about, shard, DOWN, shard.owner)
        return self.downlink.encode(unsent, mean(merge(layout, decoded)), layout, at)

    def receive(
        self,
        layout: TensorLayout,
        shards: Sequence[ModelShard],
        answers: Mapping[PeerId, bytes],
        about: ContributionKey,
    ) -> Float32:
        """The round's mean change, shape (size,): zero in the shard of an owner that did not answer.

        Raises ProtocolError for a bad answer.
        """
        change = np.zeros(layout.size, np.float32)
        for shard in shards:
            if shard.owner in answers:
                at = _bound(about, shard, DOWN, shard.owner)
                shard.put(self.downlink.decode(answers[shard.owner], shard.layout, at), change)
        return change


def _bound(about: ContributionKey, shard: ModelShard, phase: int, peer: PeerId) -> ContributionKey:
    """The place of one payload: its owner is bound in, for two shards may have layouts that look alike."""
    root = digest(NS_SHARD_OWNER, about.base_root, shard.owner)
    return about._replace(phase=phase, base_root=root, peer=peer)

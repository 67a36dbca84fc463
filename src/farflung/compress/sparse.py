"""The `topk` codec sends the largest coefficients of each chunk, with error feedback.

SparseLoCo (arXiv 2508.15706) without its 12-bit indices, DeMo (arXiv 2411.19870) without its 64-bit ones, DGC (arXiv
1712.01887): an index costs what the support's rows and columns leave open (compress.index_coding), a value what its
frequency asks for (compress.symbol_stream).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from farflung.compress import payload_body, symbol_stream, transform, values
from farflung.compress.bits import Int64
from farflung.compress.chunks import ChunkPlan, Slab, plan, select
from farflung.compress.codecs import accumulate, check_bound, mark_nothing_sent, seal, unseal
from farflung.compress.payload import HEADER_BYTES, CodecParameters, ContributionKey, is_partial
from farflung.compress.payload_body import SlabSymbols
from farflung.compress.trained_tensors import TrainedTensors, plane_bytes
from farflung.core.errors import VerificationError
from farflung.core.mapped_pages import leave
from farflung.core.tensor_layout import Float32, TensorLayout

# Of a uniform support's bits in Rice's code: recorded changes, once their residual has settled.
SUPPORT: Final = 0.985
BITS: Final = {1: 1.0, 2: 1.57, 4: 2.7, 8: 6.75, 16: 9.95, 32: 25.95}  # that a value takes, likewise


@dataclass(frozen=True)
class TopKCodec:
    """`topk` of every `chunk` elements, `value_bits` each, raw or of their cosine transform: whichever keeps more.

    1 ≤ topk ≤ chunk ≤ 2^20. Error feedback decays by `error_decay` a round.
    """

    value_bits: int
    topk: int
    chunk: int
    transform: str
    error_decay: float
    name = "topk"

    @property
    def form(self) -> CodecParameters:
        """See `Codec.form`."""
        return CodecParameters("topk", self.value_bits, self.transform, self.chunk, self.topk)

    def encode(
        self,
        state: Float32 | None,
        values: Float32,
        layout: TensorLayout,
        key: ContributionKey,
        trained: Sequence[bool] | None = None,
    ) -> tuple[Float32 | None, bytes]:
        """See `Codec.encode`."""
        check_bound(self, layout)
        some = TrainedTensors.of(layout, trained)
        total = accumulate(state, values, self.error_decay, layout)
        residual = some.take(total)
        cut = self.plan(some.layout)
        views, joined = cut.gather(residual)
        parts = [some.plane]
        own = iter(views)
        for slabs in cut.sections():
            parts += payload_body.write([self._send(next(own), slab) for slab in slabs], self.form)
        cut.scatter(joined, residual)
        return some.put(residual, state), seal(self, layout, key, parts, some.is_partial)

    def encode_chosen(
        self,
        indices: Int64,
        wanted: Float32,
        layout: TensorLayout,
        key: ContributionKey,
        trained: Sequence[bool] | None = None,
    ) -> tuple[Float32, bytes]:
        """What the payload says of coefficients chosen elsewhere (train.device_topk), and the payload: the bytes
        that `encode` gives. Raw values only.

        `indices`: ascending, in the order of `plan` of what was trained; `wanted`: their values; shape (count,) all
        three. Raises PolicyError FF-COMP-023, VerificationError FF-COMP-021 (not as many as are sent, or not raw),
        FF-COMP-035.
        """
        check_bound(self, layout)
        some = TrainedTensors.of(layout, trained)
        cut = self.plan(some.layout)
        count = sum(slab.count for slab in cut.slabs)
        if self.transform != "raw" or not indices.shape == wanted.shape == (count,):
            cause = f"{indices.size} indices, {wanted.size} values; {count} raw ones are sent"
            raise VerificationError("FF-COMP-021", "the chosen values do not fit the layout", cause=cause)
        said, parts, start = np.empty_like(wanted), [some.plane], 0
        for slabs in cut.sections():
            section = []
            for slab in slabs:
                own = slice(start, start + slab.count)
                quantised = values.quantise(wanted[own], self.value_bits)
                levels, symbols = quantised.levels, quantised.symbols
                section.append(SlabSymbols(slab, False, levels, symbols, indices[own] - slab.start))
                said[own] = values.restore(levels, symbols, self.value_bits)
                start = own.stop
            parts += payload_body.write(section, self.form)
        return said, seal(self, layout, key, parts, some.is_partial)

    def decode(
        self, payload: bytes | memoryview, layout: TensorLayout, key: ContributionKey, out: Float32 | None = None
    ) -> Float32:
        """See `Codec.decode`. Coefficients that were not sent are zero."""
        body = unseal(self, payload, layout, key, plane_bytes(layout))
        some = TrainedTensors.read(layout, body) if is_partial(payload) else TrainedTensors.of(layout, None)
        cut = self.plan(some.layout)
        found = np.zeros(some.layout.size, np.float32) if out is None or some.is_partial else out
        views, joined = cut.gather(found)
        own = iter(views)
        for slabs in cut.sections():
            for sent in payload_body.read(body, slabs, self.form):
                values = next(own)
                values[:] = 0.0
                self._restore(sent, values)
                leave(values)
            body.rest()
        body.close()
        cut.scatter(joined, found)
        for _, place in some.layout.slices():
            mark_nothing_sent(found[place])
            leave(found[place])
        whole = some.put(found, None)
        if out is None or whole is out:
            return whole
        out[:] = whole
        return out

    def bound(self, layout: TensorLayout) -> int:
        """Reached where no coding is shorter than the plain ones and every chunk chooses its last elements."""
        return HEADER_BYTES + sum(payload_body.bound(slabs, self.form) for slabs in self.plan(layout).sections())

    def expect(self, layout: TensorLayout) -> float:
        """What recorded changes take (docs/protocol/payload.md)."""
        alike = Counter(tuple(slab.size for slab in slabs) for slabs in self.plan(layout).sections())
        return HEADER_BYTES + sum(times * self._expect(sizes) for sizes, times in alike.items())

    def plan(self, layout: TensorLayout) -> ChunkPlan:
        """How a layout is cut; made once."""
        return _cached_plan(layout, self.chunk, self.topk)

    def _expect(self, sizes: Sequence[int]) -> float:
        """Of a section whose slabs have so many elements."""
        slabs = [Slab(0, size, self.chunk, self.topk) for size in sizes]
        count = sum(slab.count for slab in slabs)
        levels = sum(values.levels_bytes(slab.count, self.value_bits) for slab in slabs)
        supports = SUPPORT * sum(slab.rice_mean for slab in slabs) / 8
        bits = BITS[self.value_bits] - 8 * symbol_stream.rest_bytes(self.value_bits)
        unlearned = min(count, symbol_stream.FIRST) * (symbol_stream.symbol_bits(self.value_bits) - bits)
        return 1 + levels + supports + (BITS[self.value_bits] * count + unlearned) / 8

    def _send(self, own: Float32, slab: Slab) -> SlabSymbols:
        """What a slab sends; what that says is subtracted from its values `own` in place."""
        ways = []
        for is_transformed in (False, True):
            if self.transform in ("auto", ("raw", "dct")[is_transformed]):
                wanted = transform.forward(own, self.chunk) if is_transformed else own
                indices = select(wanted, slab)
                ways.append((is_transformed, indices, wanted[indices]))
        is_transformed, indices, wanted = ways[len(ways) > 1 and transform.choose(ways[0][2], ways[-1][2])]
        quantised = values.quantise(wanted, self.value_bits)
        sent = SlabSymbols(slab, is_transformed, quantised.levels, quantised.symbols, indices)
        if is_transformed:
            kept = np.zeros_like(own)
            self._restore(sent, kept)
            own -= kept
        else:
            own[indices] -= values.restore(sent.levels, sent.symbols, self.value_bits)
        return sent

    def _restore(self, sent: SlabSymbols, own: Float32) -> None:
        """Writes what a slab sent to its values `own`, which are zero."""
        own[sent.indices] = values.restore(sent.levels, sent.symbols, self.value_bits)
        if sent.is_transformed:
            own[:] = transform.inverse(own, self.chunk)


@functools.lru_cache(maxsize=8)
def _cached_plan(layout: TensorLayout, chunk: int, topk: int) -> ChunkPlan:
    return plan(layout, chunk, topk)

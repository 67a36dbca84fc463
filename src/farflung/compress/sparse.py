"""The codec that sends the largest coefficients of each chunk (`topk`), with error feedback.

SparseLoCo (arXiv 2508.15706) without its 12-bit indices, DeMo (arXiv 2411.19870) without its 64-bit ones, DGC (arXiv
1712.01887): an index costs what the support's rows and columns leave open (compress.support), a value what its
frequency asks for (compress.plane).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from farflung.compress import plane, sections, transform, values
from farflung.compress.chunks import Plan, Slab, plan, select
from farflung.compress.codecs import accumulate, check_bound, seal, unseal
from farflung.compress.payload import HEADER_BYTES, About, Form
from farflung.compress.sections import Sent
from farflung.core.layout import Float32, Layout

SUPPORT: Final = (
    0.985  # of a uniform support's bits in Rice's code: recorded changes, once their residual has settled
)
BITS: Final = {1: 1.0, 2: 2.0, 4: 2.7, 8: 6.75, 16: 9.95, 32: 25.95}  # that a value takes, likewise


@dataclass(frozen=True)
class TopK:
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
    def form(self) -> Form:
        """See `Codec.form`."""
        return Form("topk", self.value_bits, self.transform, self.chunk, self.topk)

    def encode(
        self, state: Float32 | None, values: Float32, layout: Layout, about: About
    ) -> tuple[Float32 | None, bytes]:
        """See `Codec.encode`."""
        check_bound(self, layout)
        cut = self._plan(layout)
        residual = cut.gather(accumulate(state, values, self.error_decay, layout))
        parts: list[bytes] = []
        for slabs in cut.sections():
            parts += sections.write([self._send(residual[slab.place], slab) for slab in slabs], self.form)
        return cut.scatter(residual), seal(self, layout, about, parts)

    def decode(self, payload: bytes, layout: Layout, about: About) -> Float32:
        """See `Codec.decode`. Coefficients that were not sent are zero."""
        body = unseal(self, payload, layout, about)
        cut = self._plan(layout)
        found = np.zeros(layout.size, np.float32)
        for slabs in cut.sections():
            for sent in sections.read(body, slabs, self.form):
                self._restore(sent, found[sent.slab.place])
        body.close()
        return cut.scatter(found)

    def bound(self, layout: Layout) -> int:
        """Reached where no coding is shorter than the plain ones and every chunk chooses its last elements."""
        return HEADER_BYTES + sum(sections.bound(slabs, self.form) for slabs in self._plan(layout).sections())

    def expect(self, layout: Layout) -> float:
        """What recorded changes take (docs/protocol/payload.md)."""
        return HEADER_BYTES + sum(self._expect(slabs) for slabs in self._plan(layout).sections())

    def _expect(self, slabs: Sequence[Slab]) -> float:
        count = sum(slab.count for slab in slabs)
        levels = sum(values.levels_bytes(slab.count, self.value_bits) for slab in slabs)
        supports = SUPPORT * sum(slab.rice_mean for slab in slabs) / 8
        bits = BITS[self.value_bits] - 8 * plane.rest_bytes(self.value_bits)
        unlearned = min(count, plane.FIRST) * (plane.symbol_bits(self.value_bits) - bits)
        return 1 + levels + supports + (BITS[self.value_bits] * count + unlearned) / 8

    def _plan(self, layout: Layout) -> Plan:
        return _cached_plan(layout, self.chunk, self.topk)

    def _send(self, own: Float32, slab: Slab) -> Sent:
        """What a slab sends; what that says is subtracted from its values `own` in place."""
        ways = []
        for is_transformed in (False, True):
            if self.transform in ("auto", ("raw", "dct")[is_transformed]):
                wanted = transform.forward(own, self.chunk) if is_transformed else own
                indices = select(wanted, slab)
                ways.append((is_transformed, indices, wanted[indices]))
        is_transformed, indices, wanted = ways[len(ways) > 1 and transform.choose(ways[0][2], ways[-1][2])]
        quantised = values.quantise(wanted, self.value_bits)
        sent = Sent(slab, is_transformed, quantised.levels, quantised.symbols, indices)
        if is_transformed:
            kept = np.zeros_like(own)
            self._restore(sent, kept)
            own -= kept
        else:
            own[indices] -= values.restore(sent.levels, sent.symbols, self.value_bits)
        return sent

    def _restore(self, sent: Sent, own: Float32) -> None:
        """Writes what a slab sent to its values `own`, which are zero."""
        own[sent.indices] = values.restore(sent.levels, sent.symbols, self.value_bits)
        if sent.is_transformed:
            own[:] = transform.inverse(own, self.chunk)


@functools.lru_cache(maxsize=8)
def _cached_plan(layout: Layout, chunk: int, topk: int) -> Plan:
    return plan(layout, chunk, topk)

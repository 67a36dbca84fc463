"""The `dense` codec sends every element, either as it is or quantised with error feedback.

MuLoCo (arXiv 2505.23725) sends two bits of every element of a change, with error feedback; so does this, in the bits
that their frequencies ask for. 16 and 32 bits go as they are, without codings; 32 bits need no error feedback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from farflung.compress import payload_body, transform, values
from farflung.compress.chunks import ChunkPlan, Slab, plan_whole
from farflung.compress.codecs import accumulate, check_bound, check_vector, seal, unseal, untrained_places
from farflung.compress.payload import HEADER_BYTES, CodecParameters, ContributionKey
from farflung.compress.payload_body import SlabSymbols
from farflung.core.mapped_pages import leave
from farflung.core.tensor_layout import Float32, TensorLayout

EXACT: Final = 32
PLAIN: Final = 16  # bits from which values are sent as they are
BITS: Final = {1: 1.0, 2: 1.80, 4: 3.32, 8: 7.47, 16: 10.8, 32: 26.8}  # a value takes, on recorded changes
TRANSFORMED: Final = {2: 1.87}  # likewise, where the transform is not raw and this differs


@dataclass(frozen=True)
class DenseCodec:
    """`value_bits` of every element. Where the transform is not `raw`, of each chunk's coefficients.

    A tensor is quantised by itself, in runs of 2^20 elements. Error feedback decays by `error_decay` a round.
    """

    value_bits: int
    transform: str
    chunk: int
    error_decay: float
    name = "dense"

    @property
    def form(self) -> CodecParameters:
        """See `Codec.form`."""
        return CodecParameters("dense", self.value_bits, self.transform, 0 if self.transform == "raw" else self.chunk)

    def encode(
        self,
        state: Float32 | None,
        values: Float32,
        layout: TensorLayout,
        key: ContributionKey,
        trained: Sequence[bool] | None = None,
    ) -> tuple[Float32 | None, bytes]:
        """See `Codec.encode`; with 32 raw bits the state is None in and out."""
        check_bound(self, layout)
        if self._is_exact:
            check_vector(values, layout, "values")
            return None, seal(self, layout, key, [values.astype("<f4").tobytes()])
        residual = accumulate(state, values, self.error_decay, layout)
        waiting = list(untrained_places(layout, trained))
        for place in waiting:
            residual[place] = 0.0
        parts: list[bytes] = []
        for slabs in self._plan(layout).sections():
            sent = [self._send(residual, slab) for slab in slabs]
            parts += [_plain(one) for one in sent] if self._is_plain else payload_body.write(sent, self.form)
        for place in waiting:
            residual[place] = 0.0 if state is None else state[place]
        return residual, seal(self, layout, key, parts)

    def decode(
        self, payload: bytes | memoryview, layout: TensorLayout, key: ContributionKey, out: Float32 | None = None
    ) -> Float32:
        """See `Codec.decode`."""
        body = unseal(self, payload, layout, key)
        found = np.empty(layout.size, np.float32) if out is None else out
        for slabs in self._plan(layout).sections():
            if self._is_plain:
                kind = "<u2" if self.value_bits == PLAIN else "<u4"
                sent = []
                for slab in slabs:
                    symbols = np.frombuffer(body.take(slab.size * self.value_bits // 8), kind)
                    values.check_canonical(b"", symbols, self.value_bits)
                    sent.append(SlabSymbols(slab, self.transform == "dct", b"", symbols, None))
            else:
                sent = payload_body.read(body, slabs, self.form)
            for one in sent:
                self._restore(one, found[one.slab.place])
                leave(found[one.slab.place])
            body.rest()
        body.close()
        return found

    def bound(self, layout: TensorLayout) -> int:
        """Reached by values all of whose symbols are equally frequent."""
        if self._is_plain:
            return HEADER_BYTES + self.value_bits // 8 * layout.size
        parts = self._plan(layout).sections()
        return HEADER_BYTES + sum(payload_body.bound(slabs, self.form) for slabs in parts)

    def expect(self, layout: TensorLayout) -> float:
        """The bound, less what entropy coding saves on recorded changes (docs/protocol/payload.md)."""
        if self._is_plain:
            return float(self.bound(layout))
        bits = BITS[self.value_bits]
        if self.transform != "raw":
            bits = TRANSFORMED.get(self.value_bits, bits)
        return self.bound(layout) - (self.value_bits - bits) / 8 * layout.size

    @property
    def _is_plain(self) -> bool:
        return self.value_bits >= PLAIN and self.transform != "auto"

    @property
    def _is_exact(self) -> bool:
        return self.value_bits == EXACT and self.transform == "raw"

    def _plan(self, layout: TensorLayout) -> ChunkPlan:
        return plan_whole(layout, self.chunk)

    def _send(self, residual: Float32, slab: Slab) -> SlabSymbols:
        """What a slab sends; what that says is subtracted from `residual` in place."""
        own = residual[slab.place]
        ways = []
        for is_transformed in (False, True):
            if self.transform in ("auto", ("raw", "dct")[is_transformed]):
                wanted = transform.forward(own, self.chunk) if is_transformed else own
                quantised = values.quantise(wanted, self.value_bits)
                kept = values.restore(quantised.levels, quantised.symbols, self.value_bits)
                ways.append((SlabSymbols(slab, is_transformed, quantised.levels, quantised.symbols, None), kept))
        sent, kept = ways[len(ways) > 1 and transform.choose(ways[0][1], ways[-1][1])]
        own -= transform.inverse(kept, self.chunk) if sent.is_transformed else kept
        return sent

    def _restore(self, sent: SlabSymbols, own: Float32) -> None:
        """Writes what a slab sent to its values."""
        values.restore_into(own, sent.levels, sent.symbols, self.value_bits)
        if sent.is_transformed:
            own[:] = transform.inverse(own, self.chunk)


def _plain(sent: SlabSymbols) -> bytes:
    return sent.symbols.astype(sent.symbols.dtype.newbyteorder("<")).tobytes()

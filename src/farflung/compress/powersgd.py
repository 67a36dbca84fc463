"""Implements PowerSGD (Vogels et al. 2019, arXiv 1905.13727, algorithms 1 and 2): one power iteration, two
phases.

A tensor of two or more sides is a matrix of n = first side by m = the others. With M = d e + u (residual e, decay d,
change u) and Q (m x r), the public warm start:

    phase 0    peer i sends  P_i = M_i Q        all merge P; basis P^ = orthonormal(P), public too
    phase 1    peer i sends  Q_i = M_i^T P^     all merge Q; change P^ Q^T, next warm start orthonormal(Q)
               peer i keeps  e_i = M_i - P^ Q_i^T

Between the phases M_i is the residual: whatever a peer wants to change meanwhile is added to it. Phase 0 decides the
basis and nothing else; all that is applied comes from phase 1. Its peers may therefore be a subset of phase 0's, and
one that is not among them holds M_i whole and has lost nothing. A residual is made with the peer's own projection: it
depends on nothing that others do once the basis is known. The map Q_i -> P^ Q_i^T is linear, so the mean of the
reconstructions is the aggregate, and residuals and changes add up to all that was ever wanted. P^ has orthonormal
columns, so clipping Q_i to the median norm clips the change by as much.

Where r (n + m) >= n m factors save nothing; such tensors, vectors and scalars go as they are, in phase 1.
Columns of the warm start are kept orthonormal: to multiply Q by a triangular matrix does not change P^ (nor therefore
the method), and P then has the size of M, which suits fixed point.

r (n + m) < n m gives r < n and r < m: P and Q fit in the place of their own tensor. Everything here is therefore a
vector of shape (layout.size,), each tensor's factors row by row at the start of its place, zeros behind them; public
state, merge and clip need to know nothing of factors. Every product is canonical (compress.reproducible_matmul): an
encoding is audited by repeating it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from farflung.compress.codecs import accumulate, check_vector, untrained_places
from farflung.compress.payload import (
    HEADER_BYTES,
    BodyReader,
    CodecParameters,
    ContributionKey,
    PayloadHeader,
    check_size,
    pack,
    unpack,
)
from farflung.compress.reproducible_matmul import Float64, orthonormal, product, product_across, signs
from farflung.core import limits
from farflung.core.crypto import NS_QUERY, digest
from farflung.core.errors import ProtocolError, SpecError, VerificationError
from farflung.core.tensor_layout import Float32, TensorLayout

PHASES: Final = 2
BASIS, FACTOR = range(PHASES)  # what each phase agrees on
RANK: Final = 1 << 10


class _Matrix(NamedTuple):
    """A tensor that is sent as factors: its place, rows and columns, and the places of P and Q."""

    place: slice
    n: int
    m: int
    left: slice
    right: slice


@dataclass(frozen=True, eq=False)
class LowRankCodec:
    """Factors of rank `rank` with error feedback, which decays by `error_decay` once in two phases.

    `public` is what encoding starts from: the warm start in phase 0, the basis in phase 1. Decoding needs none.
    """

    rank: int
    error_decay: float
    public: Float32 | None = None
    name = "low_rank"

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= RANK:
            raise SpecError(
                "FF-COMP-045",
                f"cannot send factors of rank {self.rank}",
                cause=f"sync.rank lies between 1 and {RANK}",
                hint="write sync.rank = 4",
            )

    @property
    def form(self) -> CodecParameters:
        """What is in the header."""
        return CodecParameters(self.name, rank=self.rank)

    def starting(self, public: Float32) -> LowRankCodec:
        """The same codec, to encode from `public`."""
        return replace(self, public=public)

    def query(self, layout: TensorLayout, seed: int) -> Float32:
        """The first warm start: random signs made orthonormal. Raises SpecError FF-COMP-046."""
        key = digest(NS_QUERY, seed.to_bytes(8, "little"))
        query = np.zeros(layout.size, np.float32)
        for index, matrix in enumerate(self._matrices(layout)):
            drawn = [signs(key, matrix.m, index, column) for column in range(self.rank)]
            query[matrix.right] = orthonormal(np.stack(drawn, axis=1).astype(np.float32)).reshape(-1)
        return query

    def encode(
        self,
        state: Float32 | None,
        values: Float32,
        layout: TensorLayout,
        about: ContributionKey,
        trained: Sequence[bool] | None = None,
    ) -> tuple[Float32, bytes]:
        """See `Codec.encode`. In phase 0 all is unsent afterwards.

        Raises also SpecError FF-COMP-046 (no tensor has factors that save bytes), VerificationError FF-COMP-047 (no
        such phase, or nothing public to start from).
        """
        check_size(self._length(layout, about.phase))
        if self.public is None:
            raise _not_in_order(about.phase, "there is no warm start and no basis")
        check_vector(self.public, layout, "public factors")
        decay = self.error_decay if about.phase == BASIS else 1.0
        unsent = accumulate(state, values, decay, layout)
        waiting = list(untrained_places(layout, trained))
        for place in waiting:
            unsent[place] = 0.0
        sent = np.zeros_like(unsent)
        if about.phase == FACTOR:
            for place in self._pieces(layout, FACTOR):
                sent[place] = unsent[place]
        for matrix in self._matrices(layout):
            wide = unsent[matrix.place].reshape(matrix.n, matrix.m)
            if about.phase == BASIS:
                sent[matrix.left] = _narrow(product(wide, self._thin(self.public[matrix.right])))
            else:
                sent[matrix.right] = _narrow(product_across(wide, self._thin(self.public[matrix.left])))
        check_vector(sent, layout, "factors")
        if about.phase == FACTOR:
            unsent -= self.restored(self.public, sent, layout)
            check_vector(unsent, layout, "residual values")
        for place in waiting:
            unsent[place] = 0.0 if state is None else state[place]
        body = b"".join(sent[piece].astype("<f4").tobytes() for piece in self._pieces(layout, about.phase))
        return unsent, pack(PayloadHeader(self.form, layout.id, about), body)

    def decode(
        self, payload: bytes | memoryview, layout: TensorLayout, about: ContributionKey, out: Float32 | None = None
    ) -> Float32:
        """The factors of a payload to `about.phase`. Raises ProtocolError: FF-COMP-017 for NaN, else as Codec's."""
        limit = min(self._length(layout, about.phase), limits.PAYLOAD_BYTES) - HEADER_BYTES
        body = BodyReader(
            unpack(
                payload,
                form=self.form,
                layout_id=layout.id,
                round=about.round,
                phase=about.phase,
                base_root=about.base_root,
                peer=about.peer,
                body_limit=limit,
            )
        )
        values = np.zeros(layout.size, np.float32) if out is None else out
        values[:] = 0.0
        for piece in self._pieces(layout, about.phase):
            values[piece] = np.frombuffer(body.take(4 * _count(piece)), "<f4")
        body.close()
        if not np.isfinite(values).all():
            raise ProtocolError("FF-COMP-017", "payload holds NaN or an infinity")
        return values

    def basis(self, mean: Float32, layout: TensorLayout) -> Float32:
        """The mean of phase 0's factors → P^, orthonormal columns of each matrix."""
        check_vector(mean, layout, "factors")
        basis = np.zeros_like(mean)
        for matrix in self._matrices(layout):
            basis[matrix.left] = orthonormal(self._thin(mean[matrix.left])).reshape(-1)
        return basis

    def restored(self, basis: Float32, factors: Float32, layout: TensorLayout) -> Float32:
        """P^ and phase 1's factors (one peer's, or their mean) → what they stand for: P^ Q^T."""
        values = factors.copy()
        for matrix in self._matrices(layout):
            left, right = self._thin(basis[matrix.left]), self._thin(factors[matrix.right])
            values[matrix.place] = _narrow(product(left, right.T))
        return values

    def change(self, basis: Float32, mean: Float32, layout: TensorLayout) -> tuple[Float32, Float32]:
        """P^ and the mean of phase 1's factors → the aggregate, and the next warm start."""
        check_vector(basis, layout, "basis values")
        check_vector(mean, layout, "factors")
        query = np.zeros_like(mean)
        for matrix in self._matrices(layout):
            query[matrix.right] = orthonormal(self._thin(mean[matrix.right])).reshape(-1)
        return self.restored(basis, mean, layout), query

    def bound(self, layout: TensorLayout) -> int:
        """The length of every payload to the phase whose payloads are longer. The decoder knows each phase's own."""
        return max(self._length(layout, phase) for phase in range(PHASES))

    def expect(self, layout: TensorLayout) -> float:
        """The mean length of a payload: both phases have as many."""
        return sum(self._length(layout, phase) for phase in range(PHASES)) / PHASES

    def _length(self, layout: TensorLayout, phase: int) -> int:
        """Of every payload to a phase, in bytes."""
        return HEADER_BYTES + 4 * sum(_count(piece) for piece in self._pieces(layout, phase))

    def _pieces(self, layout: TensorLayout, phase: int) -> list[slice]:
        """What a phase sends, as places in a vector: factors, and in phase 1 all tensors that have none."""
        if phase not in range(PHASES):
            raise _not_in_order(phase, f"phase {BASIS} agrees on a basis, phase {FACTOR} on what is applied")
        factored = {m.place.start: m.left if phase == BASIS else m.right for m in self._matrices(layout)}
        if phase == BASIS:
            return list(factored.values())
        return [factored.get(place.start, place) for _, place in layout.slices()]

    def _matrices(self, layout: TensorLayout) -> Iterator[_Matrix]:
        """Raises SpecError FF-COMP-046 when there is none."""
        is_idle = True
        for tensor, place in layout.slices():
            n = tensor.shape[0] if len(tensor.shape) >= 2 else 1
            m, at = tensor.size // n, place.start
            if self.rank * (n + m) < n * m:
                is_idle = False
                yield _Matrix(place, n, m, slice(at, at + n * self.rank), slice(at, at + m * self.rank))
        if is_idle:
            raise SpecError(
                "FF-COMP-046",
                f"no tensor of the model has factors of rank {self.rank} that save bytes",
                cause="rank * (rows + columns) < rows * columns must hold for a matrix",
                hint='write a smaller sync.rank, or sync.codec = "dense"',
            )

    def _thin(self, factors: Float32) -> Float32:
        return factors.reshape(-1, self.rank)


def _narrow(matrix: Float64) -> Float32:
    """Flat, rounded to float32; what is too large becomes an infinity, which the caller refuses."""
    with np.errstate(over="ignore"):
        return matrix.astype(np.float32).reshape(-1)


def _count(piece: slice) -> int:
    return int(piece.stop) - int(piece.start)


def _not_in_order(phase: int, cause: str) -> VerificationError:
    return VerificationError("FF-COMP-047", f"phase {phase} cannot be encoded here", cause=cause)

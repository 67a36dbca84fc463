"""Defines the interface of every codec (arrays in, one frame out), and the error feedback that they share.

Error feedback (Seide et al. 2014; Karimireddy et al. 2019; decayed as in DeMo and SparseLoCo): what a round could
not say is added to what the next round wants to say. With residual e, values u and decay d:
    a = d e + u        payload = encode(a)        e' = a - decode(payload)
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from farflung.compress.kernels import compiled
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
from farflung.core import limits
from farflung.core.errors import RunError, VerificationError
from farflung.core.tensor_layout import Float32, TensorLayout


class Codec(Protocol):
    """A pure way to send a flat float32 vector of shape (layout.size,). Make one with `registry.make`."""

    @property
    def name(self) -> str:
        """The name in a job file."""

    @property
    def form(self) -> CodecParameters:
        """The codec and its parameters, as they stand in the header."""

    def __hash__(self) -> int:
        """Plans remember what a codec's payloads take."""

    def encode(
        self, state: Float32 | None, values: Float32, layout: TensorLayout, key: ContributionKey
    ) -> tuple[Float32 | None, bytes]:
        """New residual (None if the codec has none) and payload. `state` None: an empty residual.

        Raises RunError FF-COMP-020 (a value is not finite; names the tensor), VerificationError FF-COMP-021 (a shape
        is wrong), PolicyError FF-COMP-023 (too long for anybody). The arguments are left as they are.
        """

    def decode(self, payload: bytes, layout: TensorLayout, key: ContributionKey) -> Float32:
        """The values that a payload stands for, shape (layout.size,). Raises only ProtocolError, FF-COMP-0xx."""

    def bound(self, layout: TensorLayout) -> int:
        """The exact upper limit of a payload in bytes, header included. The decoder enforces it."""

    def expect(self, layout: TensorLayout) -> float:
        """The expected length of a payload in bytes, header included: at most 2 % off."""


def check_vector(vector: Float32, layout: TensorLayout, what: str) -> None:
    """Raises VerificationError FF-COMP-021 (not the layout's shape, not float32), RunError FF-COMP-020 (not finite)."""
    if vector.shape != (layout.size,) or vector.dtype != np.float32:
        cause = f"{what} has shape {vector.shape} and type {vector.dtype}; ({layout.size},) float32 is needed"
        raise VerificationError("FF-COMP-021", f"the {what} do not fit the layout", cause=cause)
    finite = np.isfinite(vector)
    if not finite.all():
        bad = int(np.argmin(finite))
        name = next(tensor.name for tensor, place in layout.slices() if bad < place.stop)
        raise RunError(
            "FF-COMP-020",
            f"tensor {name!r} is not finite",
            cause=f"{int((~finite).sum())} NaN or infinite {what}, the first at element {bad}",
            hint="lower the learning rate (optimizer.lr), or clip gradients (optimizer.clip)",
        )


def not_finite(bad: int, size: int) -> RunError:
    """What is raised where a choice is asked for among values that are not all finite (train.device_topk)."""
    return RunError(
        "FF-COMP-039",
        "cannot choose among values that are not finite",
        cause=f"{bad} of {size} are NaN or infinite",
        hint="lower the learning rate (optimizer.lr), or clip gradients (optimizer.clip)",
    )


def accumulate(state: Float32 | None, values: Float32, decay: float, layout: TensorLayout) -> Float32:
    """decay * state + values in float32 (multiply, then add), checked; always a new array."""
    if state is None:
        check_vector(values, layout, "values")
        return values.copy()
    if values.shape == state.shape == (layout.size,) and values.dtype == state.dtype == np.float32:
        total, is_finite = _decayed(values, state, np.float32(decay))
        if is_finite:  # then so were both
            return total
    check_vector(values, layout, "values")
    check_vector(state, layout, "residual values")
    check_vector(total, layout, "sums with the residual")
    return total


@compiled("accumulate")
def _decayed(values: Float32, state: Float32, decay: np.float32) -> tuple[Float32, bool]:
    """decay * state + values, and whether all of it is finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        total: Float32 = decay * state + values
    return total, bool(np.isfinite(total).all())


def seal(codec: Codec, layout: TensorLayout, key: ContributionKey, parts: list[bytes]) -> bytes:
    """The frame around a body given in parts."""
    return pack(PayloadHeader(codec.form, layout.id, key), b"".join(parts))


def check_bound(codec: Codec, layout: TensorLayout) -> None:
    """Raises PolicyError FF-COMP-023 before the work is done when the payload could be too long."""
    check_size(codec.bound(layout))


def unseal(codec: Codec, payload: bytes, layout: TensorLayout, key: ContributionKey) -> BodyReader:
    """The body of `payload`, if it is this codec's for this layout and place; raises ProtocolError."""
    limit = min(codec.bound(layout), limits.PAYLOAD_BYTES) - HEADER_BYTES
    return BodyReader(
        unpack(
            payload,
            form=codec.form,
            layout_id=layout.id,
            round=key.round,
            phase=key.phase,
            base_root=key.base_root,
            peer=key.peer,
            body_limit=limit,
        )
    )

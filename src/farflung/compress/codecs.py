"""Defines the interface of every codec (arrays in, one frame out), and the error feedback that they share.

Error feedback (Seide et al. 2014; Karimireddy et al. 2019; decayed as in DeMo and SparseLoCo): what a round could
not say is added to what the next round wants to say. With residual e, values u and decay d:
    a = d e + u        payload = encode(a)        e' = a - decode(payload)

A tensor that a peer did not train in a round is not sent, and what is unsent of it waits as it is until the peer
trains it again: a small rest of earlier rounds would be taken for a vote on the tensor (compress.merge).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

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
        """The codec and its parameters, as they are in the header."""

    def __hash__(self) -> int:
        """Plans remember what a codec's payloads take."""

    def encode(
        self,
        state: Float32 | None,
        values: Float32,
        layout: TensorLayout,
        key: ContributionKey,
        trained: Sequence[bool] | None = None,
    ) -> tuple[Float32 | None, bytes]:
        """New residual (None if the codec has none) and payload. `state` None: an empty residual.

        `trained`: for each tensor whether it was trained; of the others nothing is sent. None: all were.

        Raises RunError FF-COMP-020 (a value is not finite; names the tensor), VerificationError FF-COMP-021 (a shape
        is wrong), PolicyError FF-COMP-023 (too long for anybody). The arguments are left as they are.
        """

    def decode(
        self, payload: bytes | memoryview, layout: TensorLayout, key: ContributionKey, out: Float32 | None = None
    ) -> Float32:
        """The values that a payload stands for, shape (layout.size,): +0 throughout a tensor that was not trained.
        Written to `out` where one is given, which may be mapped.

        Raises only ProtocolError, FF-COMP-0xx.
        """

    def bound(self, layout: TensorLayout) -> int:
        """The exact upper limit of a payload in bytes, header included. The decoder enforces it."""

    def expect(self, layout: TensorLayout) -> float:
        """The expected length of a payload in bytes, header included: at most 2 % off."""


NOTHING_SENT: Final = np.float32(-0.0)  # the values of a tensor that was trained, and of which nothing was sent


def is_trained(values: Float32) -> bool:
    """Whether a tensor's decoded or merged values are those of one that was trained: not all of them +0."""
    return bool(values.view(np.uint32).any())


def mark_nothing_sent(values: Float32) -> None:
    """Gives the zeros of a trained tensor their sign, in place, where it has nothing else."""
    if not values.any():
        values[:] = NOTHING_SENT


def trained_tensors(layout: TensorLayout, change: Float32) -> tuple[bool, ...]:
    """For each tensor whether a round changed it at all."""
    return tuple(bool(change[place].any()) for _, place in layout.slices())


def untrained_places(layout: TensorLayout, trained: Sequence[bool] | None) -> Iterator[slice]:
    """The places of the tensors that were not trained."""
    if trained is not None:
        for (_, place), is_one in zip(layout.slices(), trained, strict=True):
            if not is_one:
                yield place


def check_vector(vector: Float32, layout: TensorLayout, what: str) -> None:
    """Raises VerificationError FF-COMP-021 (not the layout's shape, not float32), RunError FF-COMP-020 (not finite)."""
    if vector.shape != (layout.size,) or vector.dtype != np.float32:
        cause = f"they are {vector.dtype} of shape {vector.shape}; float32 of ({layout.size},) is needed"
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


def seal(
    codec: Codec, layout: TensorLayout, key: ContributionKey, parts: list[bytes], is_partial: bool = False
) -> bytes:
    """The frame around a body given in parts."""
    return pack(PayloadHeader(codec.form, layout.id, key, is_partial), b"".join(parts))


def check_bound(codec: Codec, layout: TensorLayout) -> None:
    """Raises PolicyError FF-COMP-023 before the work is done when the payload could be too long."""
    check_size(codec.bound(layout))


def unseal(
    codec: Codec, payload: bytes | memoryview, layout: TensorLayout, key: ContributionKey, plane: int = 0
) -> BodyReader:
    """The body of `payload`, if it is this codec's for this layout and place; raises ProtocolError.

    `plane`: bytes beside those of the codec's bound that a partial payload may have.
    """
    limit = min(codec.bound(layout) + plane, limits.PAYLOAD_BYTES) - HEADER_BYTES
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

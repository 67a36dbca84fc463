"""Models a network as a chain of units that pipeline stages take: FLOP, and bytes of state, activations and
exchange.

The head is a unit of its own, heavy on compute; the embedding one that is heavy on memory. A layer is two units,
attention and feed-forward, where `halves` allows a stage to end between them.
"""

from __future__ import annotations

import msgspec
import numpy as np

from farflung.advice.placement.link_matrices import Floats
from farflung.core import limits
from farflung.core.errors import UsageError


class LayerChain(msgspec.Struct, frozen=True):
    """Per unit [U], of one micro-batch: FLOP forward and backward; bytes of parameters with gradients and optimizer
    states; bytes kept of each micro-batch in flight; bytes that are exchanged between replicas.
    """

    flop: Floats
    state: Floats
    kept: Floats
    exchanged: Floats

    def __len__(self) -> int:
        return len(self.flop)

    @property
    def sums(self) -> Floats:
        """[4, U + 1] running sums of the four, from 0."""
        rows = np.array([self.flop, self.state, self.kept, self.exchanged])
        return np.hstack([np.zeros((4, 1)), np.cumsum(rows, axis=1)])


def chain(flop: Floats, state: Floats, kept: Floats, exchanged: Floats) -> LayerChain:
    """Checked. Raises UsageError FF-PLAN-046, which names what is wrong."""
    rows = {"flop": flop, "state": state, "kept": kept, "exchanged": exchanged}
    for name, row in rows.items():
        if row.ndim != 1 or row.shape != flop.shape or not 0 < len(row) <= limits.TENSORS:
            raise _wrong(name, f"a number for each of 1 to {limits.TENSORS} units")
        if not ((row >= 0) & np.isfinite(row)).all():
            raise _wrong(name, "no unit has less than nothing, or more than any number")
    if not flop.sum() > 0:
        raise _wrong("flop", "nothing is computed")
    return LayerChain(flop, state, kept, exchanged)


class DecoderShape(msgspec.Struct, frozen=True):
    """A decoder-only transformer with grouped queries and a gated feed-forward, untied embedding and head."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int  # of the feed-forward
    vocabulary: int

    @property
    def attention(self) -> int:
        """Parameters of one layer's attention: queries and output, keys and values."""
        return 2 * self.width**2 * (self.heads + self.kv_heads) // self.heads

    @property
    def forward(self) -> int:
        """Parameters of one layer's feed-forward: gate, up and down."""
        return 3 * self.width * self.hidden


def decoder(
    model: DecoderShape, tokens: int, length: int, *, state: float, trained: float = 1.0, halves: bool = False
) -> LayerChain:
    """The chain of a decoder for micro-batches of so many tokens, in sequences of `length`.

    `state`: bytes of each parameter (16: bf16 with fp32 Adam; 10: with 8-bit moments; 2: frozen). `trained`: share of
    parameters whose gradients are computed and exchanged, in bf16: 4 + 2 `trained` FLOP a parameter and token
    (forward 2, gradients of activations 2, of parameters 2; Kaplan et al. 2020, section 2.1), and for attention
    12 s h a token (Narayanan et al. 2021, appendix: 4 s h forward, and twice that back). Units keep their input
    alone, 2 bytes a value: the rest is computed again, which adds its forward's FLOP (Chen et al. 2016).
    """
    if min(model.layers, model.width, model.heads, model.kv_heads, model.hidden, model.vocabulary) < 1:
        raise _wrong("model", "a size below 1")
    if tokens < 1 or length < 1:
        raise _wrong("tokens", "a micro-batch of no tokens")
    each = 6.0 + 2.0 * trained
    table = float(model.vocabulary * model.width)
    scores = 16.0 * length * model.width  # forward twice, gradients of activations: 4 s h each time, 8 s h
    attention = (float(model.attention), each * model.attention + scores)
    forward = (float(model.forward), each * model.forward)
    whole = (attention[0] + forward[0], attention[1] + forward[1])
    layer = [attention, forward] if halves else [whole]
    units = [(table, 0.0), *layer * model.layers, (table, each * table)]
    held, flop = np.array(units).T
    kept = np.full(len(units), 2.0 * tokens * model.width)
    return chain(flop * tokens, held * state, kept, 2.0 * held * trained)


def _wrong(name: str, cause: str) -> UsageError:
    return UsageError(
        "FF-PLAN-046",
        f"`{name}` of a chain of units is wrong",
        cause=cause,
        hint="FLOP and bytes of each unit of the model, in order",
    )

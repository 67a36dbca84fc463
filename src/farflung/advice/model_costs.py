"""Computes what a model needs layer by layer, from its sizes or from a trace of its own step (P1, P2).

Both answer the same questions, so that no layout asks which of them it has. A trace is of float32 tensors, and what is
advised trains in bfloat16: its bytes are halved, but for those of the loss and of what else comes after the layers,
which stays in float32. What a step keeps is taken to grow with its sequences.
"""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.advice.memory.activations import MicroBatch
from farflung.advice.memory.layer_slices import ModelStack, of_traced, sliced
from farflung.advice.memory.transformer import Transformer
from farflung.advice.traffic.transformer_shapes import TransformerShape, gpt_flop
from farflung.core.units import Flop
from farflung.plan.step_trace import Recomputation, RecomputeTrace, StepTrace

WIRE: Final = 2  # bytes of a bfloat16 value: weights, gradients and activations, kept or sent
LAST: Final = -1


class SizedModel(msgspec.Struct, frozen=True):
    """A GPT by its sizes; FLOP are those of `parameters`, activations closed forms."""

    transformer: Transformer
    context: int
    parameters: int

    @property
    def layers(self) -> int:
        """That stages can be cut between."""
        return self.transformer.layers

    @property
    def layer(self) -> float:
        """Parameters of one of them."""
        return self.transformer.layer

    @property
    def kind(self) -> str:
        """How it is known, for people."""
        return ""

    def flop(self, tokens: float, recompute: Recomputation) -> Flop:
        """Of training on so many tokens: Korthikanti et al. 2022, equation 7; with all recomputed Narayanan et al.
        2021, equation 3. For these models' inner width is four times the outer one. Selectively no product is made
        again: attention is fused here, and what it gave is kept.
        """
        repeated = recompute if recompute is Recomputation.FULL else Recomputation.NONE
        return Flop(gpt_flop(self._shape, 1, repeated) / self.context * tokens)

    def head(self, tokens: float) -> float:
        """FLOP of these that come after the layers."""
        return 6.0 * self.transformer.vocabulary * self.transformer.width * tokens

    def handed(self, sequences: int) -> float:
        """Bytes that one layer hands on."""
        return self._shape.activation(sequences)

    def stack(self, sequences: int, recompute: Recomputation, element: float = WIRE) -> ModelStack:
        """In slices, with what so many sequences keep."""
        return sliced(self.transformer, MicroBatch(sequences, self.context, recompute=recompute, element=element))

    def place(self, tensor: str) -> int:
        """The layer that it belongs to, from 1; 0: before them, LAST: after them."""
        first, _, rest = tensor.partition(".")
        if first == "blocks":
            return 1 + int(rest.partition(".")[0])
        return LAST if first in ("norm", "head") else 0

    @property
    def _shape(self) -> TransformerShape:
        m = self.transformer
        return TransformerShape(
            m.layers, m.width, self.context, m.vocabulary, parameters=float(self.parameters), element=WIRE
        )


class TracedModel(msgspec.Struct, frozen=True):
    """A module by its trace; its repeated blocks are the layers. Without any, it is not cut and not recomputed."""

    traced: StepTrace
    context: int

    @property
    def layers(self) -> int:
        """That stages can be cut between; 0: none are repeated."""
        return len(self.traced.blocks)

    @property
    def layer(self) -> float:
        """Parameters of the largest of them."""
        sizes = [block.parameters for block in self.traced.blocks] or [self.traced.parameters]
        return max(sizes) / self.traced.width

    @property
    def kind(self) -> str:
        """How it is known, for people."""
        found = self.traced
        how = "traced" if not found.ran_rows else f"run on up to {found.ran_rows} sequences"
        return f"{how}: {self.layers} repeated blocks" if self.layers else f"{how}: no repeated blocks"

    def flop(self, tokens: float, recompute: Recomputation) -> Flop:
        """Of training on so many tokens, as the trace counted them; never none, for others divide by them."""
        return Flop(max(1.0, self._mode(recompute).flop) / (self.traced.rows * self.context) * tokens)

    def head(self, tokens: float) -> float:
        """FLOP of these that come after the layers: 2 a parameter forward, 4 backward. What reads them once a sequence,
        or looks them up, has fewer: at most their share of the parameters.
        """
        after, inside = self.traced.ends[1], sum(block.parameters for block in self.traced.blocks)
        if not (self.layers and after):
            return 0.0
        share = self.flop(tokens, Recomputation.NONE) * after / (after + inside)
        return min(6.0 * after / self.traced.width * tokens, share)

    def handed(self, sequences: int) -> float:
        """Bytes that one layer hands on."""
        return self.traced.handed * sequences / self.traced.rows * WIRE / self.traced.width

    def stack(self, sequences: int, recompute: Recomputation, element: float = WIRE) -> ModelStack:
        """In slices, with what so many sequences keep."""
        return of_traced(self.traced, Recomputation(self._mode(recompute).recompute), sequences, element)

    def place(self, tensor: str) -> int:
        """The layer that it belongs to, from 1; 0: before them, LAST: after them."""
        for at, block in enumerate(self.traced.blocks, 1):
            if tensor.startswith(f"{block.name}."):
                return at
        return LAST if tensor in self.traced.tail else 0

    def _mode(self, recompute: Recomputation) -> RecomputeTrace:
        return self.traced.mode(recompute if self.traced.blocks else Recomputation.NONE)

"""What a job asks of whoever trains it, whatever the layout: tokens, FLOP, parameters and bytes a parameter (P1).

The tokens are the job's: members x rounds x steps x batch x context. A layout that takes all batches of a step at once
makes as many steps as the job says; one whose members step on their own shares the tokens out among them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.core.layout import Layout
from farflung.core.units import Flop
from farflung.job.spec import JobSpec
from farflung.plan.advice.models import WIRE, Gauged, Sized
from farflung.plan.footprint.slices import Stack
from farflung.plan.footprint.states import RECIPES, Recipe
from farflung.plan.footprint.traced import Traced
from farflung.plan.footprint.transformer import Transformer
from farflung.plan.parallel.shapes import Recompute

__all__ = ["WIRE", "Work", "work"]

# Bytes a parameter of each inner optimizer in mixed precision; a gradient that is only sent keeps no moments.
OPTIMIZERS: Final = {"adamw": "adam-mixed", "muon": "muon-mixed", "sgd": "sgd-mixed", "gradient": "sgd-mixed"}
OUTER: Final = (
    8.0  # bytes a parameter more of a method with rounds: the round's weights and a momentum, float32
)


class Work(msgspec.Struct, frozen=True):
    """A job as it is planned. `sequences`: of one step of all members together."""

    model: Sized | Gauged
    layout: Layout
    context: int
    batch: int  # sequences of one member's step
    sequences: int
    tokens: int
    recipe: Recipe

    @property
    def parameters(self) -> int:
        """Of the model."""
        return self.layout.size

    @property
    def step_tokens(self) -> int:
        """Of one member's step."""
        return self.batch * self.context

    def flop(self, tokens: float, recompute: Recompute = Recompute.NONE) -> Flop:
        """Of training on so many tokens."""
        return self.model.flop(tokens, recompute)

    def stack(self, sequences: int, recompute: Recompute) -> Stack:
        """The model in slices, with what so many sequences keep."""
        return self.model.stack(sequences, recompute)

    def with_outer(self) -> Recipe:
        """Bytes a parameter of a method with rounds."""
        return msgspec.structs.replace(self.recipe, outer=OUTER)


def work(spec: JobSpec, layout: Layout, traced: Traced | None = None) -> Work:
    """A job; `layout`: its tensors. Without a trace it is one with the built-in GPT."""
    model, members = spec.model, spec.network.providers
    sizes = (model.layers, model.width, model.heads, model.vocabulary)
    return Work(
        Gauged(traced, model.context)
        if traced is not None
        else Sized(Transformer(*sizes, positions=model.context), model.context, layout.size),
        layout,
        model.context,
        spec.batch,
        spec.batch * members,
        spec.round_tokens * spec.rounds * members,
        RECIPES[OPTIMIZERS[spec.optimizer.name]],
    )

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
from farflung.plan.footprint.activations import Load
from farflung.plan.footprint.slices import Stack, sliced
from farflung.plan.footprint.states import RECIPES, Recipe
from farflung.plan.footprint.transformer import Transformer
from farflung.plan.parallel.shapes import Recompute, Shape, gpt_flop

WIRE: Final = 2  # bytes of a bfloat16 value: weights, gradients and activations, kept or sent
# Bytes a parameter of each inner optimizer in mixed precision; a gradient that is only sent keeps no moments.
OPTIMIZERS: Final = {"adamw": "adam-mixed", "muon": "muon-mixed", "sgd": "sgd-mixed", "gradient": "sgd-mixed"}
OUTER: Final = (
    8.0  # bytes a parameter more of a method with rounds: the round's weights and a momentum, float32
)


class Work(msgspec.Struct, frozen=True):
    """A job as it is planned. `sequences`: of one step of all members together."""

    model: Transformer
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

    @property
    def shape(self) -> Shape:
        """The model as traffic and FLOP are reckoned."""
        m = self.model
        return Shape(
            m.layers, m.width, self.context, m.vocabulary, parameters=float(self.parameters), element=WIRE
        )

    def flop(self, tokens: float, recompute: Recompute = Recompute.NONE) -> Flop:
        """Of training on so many tokens: Korthikanti et al. 2022, equations 7 and 8; with all recomputed Narayanan et
        al. 2021, equation 3. For these models' inner width is four times the outer one.
        """
        return Flop(gpt_flop(self.shape, 1, recompute) / self.context * tokens)

    def stack(self, batch: int, recompute: Recompute) -> Stack:
        """The model in slices, with what `batch` sequences keep."""
        return sliced(self.model, Load(batch, self.context, recompute=recompute, element=float(WIRE)))

    def with_outer(self) -> Recipe:
        """Bytes a parameter of a method with rounds."""
        return msgspec.structs.replace(self.recipe, outer=OUTER)


def work(spec: JobSpec, layout: Layout) -> Work:
    """A job with the built-in GPT; `layout`: its tensors."""
    model, members = spec.model, spec.network.providers
    return Work(
        Transformer(model.layers, model.width, model.heads, model.vocabulary, positions=model.context),
        layout,
        model.context,
        spec.batch,
        spec.batch * members,
        spec.round_tokens * spec.rounds * members,
        RECIPES[OPTIMIZERS[spec.optimizer.name]],
    )

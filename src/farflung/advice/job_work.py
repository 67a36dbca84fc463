"""Computes what a job needs in any layout: tokens, FLOP, parameters and bytes a parameter (P1).

The tokens are the job's: members x rounds x steps x batch x context. A layout that takes all batches of a step at once
makes as many steps as the job says; one whose members step on their own shares the tokens out among them.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from farflung.advice.hardware.admission import MachineGrade
from farflung.advice.hardware.run_cost import audited
from farflung.advice.memory.layer_slices import ModelStack
from farflung.advice.memory.model_states import RECIPES, StateRecipe
from farflung.advice.memory.transformer import Transformer
from farflung.advice.method_costs import STEPS, steps_most
from farflung.advice.model_costs import WIRE, SizedModel, TracedModel
from farflung.core.money import MAX_CREDITS, Credits, parse_credits
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Bytes, Flop
from farflung.job.spec import JobSpec, SyncSpec
from farflung.plan.run_duration import optimizer_flop
from farflung.plan.state_vectors import FLOAT, carried_vectors, outer_vectors
from farflung.plan.step_trace import Recomputation, StepTrace

__all__ = ["WIRE", "JobWork", "work"]

# Bytes a parameter of each inner optimizer in mixed precision; a gradient that is only sent keeps no moments.
OPTIMIZERS: Final = {"adamw": "adam-mixed", "muon": "muon-mixed", "sgd": "sgd-mixed", "gradient": "sgd-mixed"}
ROUNDS_LEAST: Final = 10  # of a job, where it has the steps: who agrees once at the end has trained apart


class JobWork(msgspec.Struct, frozen=True):
    """A job as it is planned. `sequences`: of one step of all members together; `examples`: windows of its data that do
    not overlap, 0: not known.
    """

    model: SizedModel | TracedModel
    layout: TensorLayout
    context: int
    batch: int  # sequences of one member's step
    sequences: int
    tokens: int
    recipe: StateRecipe
    optimizer_flop: Flop = Flop(0.0)  # of one step of the inner optimizer, all matrices (plan.run_duration)
    budget: Credits = Credits(MAX_CREDITS)
    audited: float = 0.0  # share of the tokens that audits repeat (plan.run_price)
    least: MachineGrade | None = None  # class of a machine that the job asks for
    examples: int = 0

    @property
    def parameters(self) -> int:
        """Of the model."""
        return self.layout.size

    @property
    def step_tokens(self) -> int:
        """Of one member's step."""
        return self.batch * self.context

    def flop(self, tokens: float, recompute: Recomputation = Recomputation.NONE) -> Flop:
        """Of training on so many tokens."""
        return self.model.flop(tokens, recompute)

    def stack(self, sequences: int, recompute: Recomputation, element: float = WIRE) -> ModelStack:
        """The model in slices, with what so many sequences keep; `element`: bytes of a value, but for the loss's."""
        return self.model.stack(sequences, recompute, element)

    @property
    def is_movable(self) -> bool:
        """Whether the optimizer may work in RAM: elementwise, so bytes bound it; products need the card."""
        return not self.optimizer_flop

    def with_outer(self, sync: SyncSpec) -> StateRecipe:
        """Bytes a parameter with what a method with rounds keeps on the card beside them: a residual, an offset."""
        return msgspec.structs.replace(self.recipe, outer=float(FLOAT * carried_vectors(sync)))

    def public(self, sync: SyncSpec) -> Bytes:
        """Bytes of public state, float32 in the machine's memory: the weights that a round began with, and the outer
        optimizer's moments, a change that waits (plan.state_vectors).
        """
        return Bytes(FLOAT * (1 + outer_vectors(sync)) * self.parameters)

    def steps_most(self, members: int, step_tokens: int) -> int:
        """Local steps of a round of so many members: what its weight allows, and few enough for ROUNDS_LEAST rounds."""
        steps = math.ceil(self.tokens / (members * step_tokens))
        return max(1, min(steps_most(step_tokens), max(STEPS[0], steps // ROUNDS_LEAST)))


def work(spec: JobSpec, layout: TensorLayout, traced: StepTrace | None = None) -> JobWork:
    """A job; `layout`: its tensors. Without a trace it is one with the built-in GPT."""
    model, members = spec.model, spec.network.providers
    sizes = (model.layers, model.width, model.heads, model.vocabulary)
    return JobWork(
        TracedModel(traced, model.context)
        if traced is not None
        else SizedModel(Transformer(*sizes, positions=model.context), model.context, layout.size),
        layout,
        model.context,
        spec.batch,
        spec.batch * members,
        spec.round_tokens * spec.rounds * members,
        RECIPES[OPTIMIZERS[spec.optimizer.name]],
        optimizer_flop(spec, layout),
        parse_credits(spec.budget),
        audited(spec),
        None if spec.network.machines == "any" else MachineGrade(spec.network.machines),
    )

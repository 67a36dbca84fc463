"""Computes the memory of each pipeline stage and finds the one with least to spare (P2).

Embeddings and head are included.

Stage i of p keeps the activations of as many micro-batches as are alive there: all m with GPipe (Huang et al. 2019),
min(m, p - i) with 1F1B (Narayanan et al. 2021, section 2.2.1), interleaved min(m v, 2 (p - 1 - i) + (v - 1) p + 1)
parts of v (section 2.2.2). So the first stage holds most of them and the embedding, the last one the logits of one
micro-batch and the head: which of them is worst depends on the vocabulary. Averages say nothing here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import msgspec

from farflung.advice.memory import buffers
from farflung.advice.memory.breakdown import Footprint, MemoryPart, MemoryPlace, chosen
from farflung.advice.memory.buffers import DEFAULTS, MemoryMargins
from farflung.advice.memory.layer_slices import ModelSlice, ModelStack
from farflung.advice.memory.model_states import ADAM, WHOLE, StateRecipe, ZeroSplit, states
from farflung.advice.traffic import input_checks
from farflung.advice.traffic.pipeline_schedules import PipelineSchedule
from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.units import format_bytes

WINDOW: Final = 2  # slices whose activations are on the card: one at work, one coming or going
MOVED: Final = "Rajbhandari et al. 2020 (ZeRO), section 6.1: checkpoints moved out"
ALIVE: Final = "Narayanan et al. 2021, section 2.2"


class PipelineStages(msgspec.Struct, frozen=True):
    """Layers of each stage, in order, and the schedule. Raises UsageError FF-PLAN-020, FF-PLAN-059."""

    layers: tuple[int, ...]
    micros: int = 1
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    virtual: int = 1

    def __post_init__(self) -> None:
        input_checks.count("stages", len(self.layers), most=limits.PLANNED_STAGES)
        for count in self.layers:
            input_checks.count("layers", count, least=0)
        input_checks.count("micros", self.micros)
        input_checks.count("virtual", self.virtual, most=1 << 16)
        chosen("schedule", self.schedule, PipelineSchedule)

    def alive(self, at: int) -> float:
        """Micro-batches whose activations stage `at` holds at most; parts of them count as such."""
        stages, micros, v = len(self.layers), self.micros, self.virtual
        if self.schedule is PipelineSchedule.GPIPE:
            return float(micros)
        if self.schedule is PipelineSchedule.ONE_F_ONE_B:
            return float(min(micros, stages - at))
        return min(micros * v, 2 * (stages - 1 - at) + (v - 1) * stages + 1) / v


class StageTraining(msgspec.Struct, frozen=True):
    """How a stage is trained. Raises UsageError FF-PLAN-059."""

    pipeline: PipelineStages
    recipe: StateRecipe = ADAM
    split: ZeroSplit = WHOLE
    margins: MemoryMargins = DEFAULTS
    activations: MemoryPlace = MemoryPlace.CARD  # or where they wait for the backward pass

    def __post_init__(self) -> None:
        chosen("activations", self.activations, MemoryPlace)


class WorstStage(msgspec.Struct, frozen=True):
    """The card that decides: `spare` bytes are left on it, fewer than on any other; below 0 they are missing."""

    stage: int
    spare: float
    footprint: Footprint

    @property
    def fits(self) -> bool:
        """Whether all cards have what they need."""
        return self.spare >= 0


def footprints(stack: ModelStack, training: StageTraining) -> tuple[Footprint, ...]:
    """What one card of each stage needs. Raises UsageError FF-PLAN-053 (stages hold other layers than there are)."""
    counts = training.pipeline.layers
    if sum(counts) != len(stack.layers):
        raise UsageError(
            "FF-PLAN-053",
            f"the stages hold {sum(counts)} layers, the model has {len(stack.layers)}",
            cause=f"layers of the stages: {', '.join(map(str, counts[:16]))}",
            hint="give each layer to one stage",
        )
    found, start = [], 0
    for at, count in enumerate(counts):
        found.append(_stage(stack, training, at, stack.layers[start : start + count]))
        start += count
    return tuple(found)


def worst(needs: Sequence[Footprint], memory: Sequence[float]) -> WorstStage:
    """Which card has least to spare, `memory` bytes being on each. Raises UsageError FF-PLAN-054, FF-PLAN-021."""
    if len(needs) != len(memory) or not needs:
        raise UsageError(
            "FF-PLAN-054",
            f"{len(memory)} cards for {len(needs)} stages",
            cause="each stage needs one card's memory",
            hint="name as many cards as stages",
        )
    spare = [input_checks.amount("memory", have) - need.card for need, have in zip(needs, memory, strict=True)]
    at = min(range(len(spare)), key=spare.__getitem__)
    return WorstStage(at, spare[at], needs[at])


def fitting_layers(stack: ModelStack, training: StageTraining, at: int, memory: float) -> int:
    """The most layers that stage `at` has room for in `memory` bytes, -1: not even for what else it holds.

    The layers are taken to be like the model's largest; other stages' counts decide only where the stage stands.
    """
    input_checks.amount("memory", memory)
    input_checks.count("at", at, least=0, most=len(training.pipeline.layers) - 1)
    return _most_layers(stack, training, at, memory)


@functools.lru_cache(maxsize=4096)  # a search asks for the same stages on many subsets of hosts
def _most_layers(stack: ModelStack, training: StageTraining, at: int, memory: float) -> int:
    layer = max(stack.layers, key=lambda each: (each.parameters, each.kept)) if stack.layers else ModelSlice(0.0, 0.0)
    few, many = -1, len(stack.layers) + 1
    while many - few > 1:  # the need grows with the layers
        middle = (few + many) // 2
        need = _stage(stack, training, at, (layer,) * middle)
        few, many = (middle, many) if need.card <= memory else (few, middle)
    return few


def told(found: WorstStage) -> str:
    """The verdict in a line, with what takes most."""
    largest = max(found.footprint.parts, key=lambda part: part.bytes)
    spare = f"{format_bytes(abs(found.spare))} {'to spare' if found.fits else 'too little'}"
    need = format_bytes(found.footprint.card)
    return f"{found.footprint.label}: {need} on its card, {spare}; most is {largest.name}"


def _stage(stack: ModelStack, training: StageTraining, at: int, layers: Sequence[ModelSlice]) -> Footprint:
    recipe, split, margins = training.recipe, training.split, training.margins
    is_first, is_last = at == 0, at == len(training.pipeline.layers) - 1
    held = [*([stack.first] if is_first else []), *layers, *([stack.last] if is_last else [])]
    copied = stack.copied if is_first and is_last else 0.0
    size = sum(each.parameters for each in held) - copied
    unit = max((each.parameters for each in held), default=0.0)
    lasting = states(size, recipe, split, min(unit, size))
    kept = _activations(held, training.pipeline.alive(at), training.activations)
    passing = (*kept, *buffers.sending(size, unit, recipe, split, margins))
    label = f"stage {at + 1} of {len(training.pipeline.layers)}: {_holds(is_first, len(layers), is_last)}"
    return Footprint(label, (*lasting, *passing, *buffers.beside(lasting, passing, margins)))


def _holds(is_first: bool, layers: int, is_last: bool) -> str:
    words = ["the embedding"] * is_first + [f"{layers} layers"] + ["the head"] * is_last
    return ", ".join(words)


def _activations(held: Sequence[ModelSlice], alive: float, place: MemoryPlace) -> tuple[MemoryPart, ...]:
    one = sum(each.kept for each in held)
    text = f"{format_bytes(one)} a micro-batch x {alive:.4g} alive"
    sources = sorted({each.source for each in held if each.source})
    found = [MemoryPart("activations", one * alive, text, "; ".join((*sources, ALIVE)), place)]
    if place is not MemoryPlace.CARD:
        window = WINDOW * max((each.kept for each in held), default=0.0)
        found.append(MemoryPart("activations, on their way", window, f"{WINDOW} of the largest slice", MOVED))
    at, working = _working(held, place)
    if working:
        text = f"beyond what is kept, while slice {at + 1} of {len(held)} is gone through"
        found.append(MemoryPart("backward pass", working, text, held[at].source))
    return tuple(found)


def _working(held: Sequence[ModelSlice], place: MemoryPlace) -> tuple[int, float]:
    """The slice with which most is alive, and by how much it is more than all activations: those of slices that the
    backward pass has left behind are gone by then, if they were on the card at all.
    """
    at, most, gone = 0, 0.0, 0.0
    for number in range(len(held) - 1, -1, -1):
        if held[number].working - gone > most:
            at, most = number, held[number].working - gone
        gone += held[number].kept if place is MemoryPlace.CARD else 0.0
    return at, most

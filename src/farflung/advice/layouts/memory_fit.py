"""Fits a model into a card's memory by recomputation, micro-batch size and offloading (T6, P2).

Tried in the order of what they cost: keep all activations, compute all but products again, compute all again, and then
the same with more and more of it in RAM or on disk (MOVES), where the host says that it has enough, and the optimizer
is one that works there (not Muon, whose products a processor would take hours for); of each the largest micro-batch
that fits. What it costs to move is advice/memory/offload's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final

import msgspec

from farflung.advice.job_work import WIRE, JobWork
from farflung.advice.layouts.training_options import memory_of
from farflung.advice.memory.breakdown import MemoryPlace
from farflung.advice.memory.model_states import ON_CARD, OffloadConfig, StateRecipe, ZeroSplit
from farflung.advice.memory.worst_stage import PipelineStages, StageTraining, WorstStage, footprints, worst
from farflung.advice.offers.offer_file import OfferedHost
from farflung.advice.traffic.pipeline_schedules import PipelineSchedule
from farflung.job.spec import SyncSpec
from farflung.plan.step_trace import Recomputation

SINGLE: Final = 4.0  # bytes of a float32


class OffloadPlacement(msgspec.Struct, frozen=True):
    """What does not lie on the card."""

    states: OffloadConfig = ON_CARD
    activations: MemoryPlace = MemoryPlace.CARD

    @property
    def places(self) -> set[MemoryPlace]:
        """All that it takes."""
        return {self.states.optimizer, self.states.parameters, self.activations}


CARD, RAM, DISK = MemoryPlace.CARD, MemoryPlace.RAM, MemoryPlace.DISK
MOVES: Final = (
    OffloadPlacement(),
    OffloadPlacement(OffloadConfig(optimizer=RAM)),
    OffloadPlacement(OffloadConfig(optimizer=RAM, parameters=RAM)),
    OffloadPlacement(OffloadConfig(optimizer=RAM, parameters=RAM), RAM),
    OffloadPlacement(OffloadConfig(optimizer=DISK)),
    OffloadPlacement(OffloadConfig(optimizer=DISK, parameters=RAM), RAM),
    OffloadPlacement(OffloadConfig(optimizer=DISK, parameters=DISK), RAM),
)


class MemoryFit(msgspec.Struct, frozen=True):
    """How it fits, or the nearest that it comes to it (`worst` says by how much)."""

    recompute: Recomputation
    micro: int
    away: OffloadPlacement
    worst: WorstStage

    @property
    def fits(self) -> bool:
        """Whether it does."""
        return self.worst.fits


def room(work: JobWork, recipe: StateRecipe, host: OfferedHost, split: ZeroSplit, batch: int) -> MemoryFit:
    """The cheapest way for one card of `host` to train `batch` sequences a step, its states split as said."""
    wide = computes_wide([host])
    return _room(work, recipe, memory_of(host), host.cards, _beside(host), split, batch, wide)


def computes_wide(hosts: Iterable[OfferedHost]) -> bool:
    """Whether one of them has a card without bfloat16: it computes in float32, and keeps what it computes with so."""
    return any(host.card.has_bf16 is False for host in hosts)


def widened(recipe: StateRecipe) -> StateRecipe:
    """The same in float32: weights and gradients of 4 bytes, which need no copy beside."""
    return msgspec.structs.replace(
        recipe, weights=SINGLE, gradients=SINGLE, optimizer=max(0.0, recipe.optimizer - SINGLE)
    )


def replica(host: OfferedHost) -> ZeroSplit:
    """How a host holds a whole replica: its own cards share the states (FSDP)."""
    return ZeroSplit(3 if host.cards > 1 else 0, host.cards)


def need(work: JobWork, host: OfferedHost, sync: SyncSpec) -> int:
    """The least that each card of `host` must hold to train a whole replica by rounds; by its memory is not asked."""
    recipe, wide = work.with_outer(sync), computes_wide([host])
    least = _room(work, recipe, 0, host.cards, _beside(host), replica(host), work.batch, wide)
    return math.ceil(least.worst.footprint.card)


def _beside(host: OfferedHost) -> tuple[float, float]:
    """Bytes of the machine's RAM and of its disk; 0 of what is not known, and of memory that is the card's own."""
    if host.card.is_unified:
        return 0.0, 0.0
    return float(host.memory_bytes or 0), float(host.disk_bytes or 0)


@functools.lru_cache(maxsize=1024)  # hosts of one kind have the same room, in every subset that they are tried in
def _room(
    work: JobWork,
    recipe: StateRecipe,
    memory: int,
    cards: int,
    beside: tuple[float, float],
    split: ZeroSplit,
    batch: int,
    is_wide: bool,
) -> MemoryFit:
    nearest: MemoryFit | None = None
    for away, recompute, micro in _ways(batch, beside if work.is_movable else (0.0, 0.0)):
        stage = split.stage if away.states.parameters is CARD else 3  # what gathers them for each layer
        training = StageTraining(
            PipelineStages((work.model.layers,), batch // micro, PipelineSchedule.ONE_F_ONE_B),
            widened(recipe) if is_wide else recipe,
            ZeroSplit(stage, split.ways, away.states),
            activations=away.activations,
        )
        needs = footprints(work.stack(micro, recompute, SINGLE if is_wide else WIRE), training)
        if needs[0].ram * cards > beside[0] or needs[0].disk * cards > beside[1]:
            continue
        found = MemoryFit(recompute, micro, away, worst(needs, (float(memory),)))
        if found.fits:
            return found
        if nearest is None or found.worst.spare > nearest.worst.spare:
            nearest = found
    assert nearest is not None
    return nearest


def _ways(batch: int, beside: tuple[float, float]) -> Iterator[tuple[OffloadPlacement, Recomputation, int]]:
    micros = [batch // parts for parts in range(1, batch + 1) if batch % parts == 0]
    lacking = {place for place, size in zip((RAM, DISK), beside, strict=True) if not size}
    return product((away for away in MOVES if not away.places & lacking), Recomputation, micros)

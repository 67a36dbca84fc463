"""How a model finds room on a card: what is recomputed, how much goes through at once, what moves to RAM (T6, P2).

Tried in the order of what they cost: keep all activations, compute attention's again, compute all again, and then the
same with the optimizer in RAM, where the host says that it has enough, and the optimizer is one that works there (not
Muon, whose products a processor would take hours for); of each the largest micro-batch that fits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final

import msgspec

from farflung.job.spec import SyncSpec
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import memory_of
from farflung.plan.advice.work import Work
from farflung.plan.footprint.parts import Place
from farflung.plan.footprint.slices import Slice, Stack
from farflung.plan.footprint.states import Offload, Recipe, Split
from farflung.plan.footprint.worst import Pipeline, Training, Worst, footprints, worst
from farflung.plan.parallel.schedules import Schedule
from farflung.plan.parallel.shapes import Recompute

SINGLE: Final = 4.0  # bytes of a float32


class Room(msgspec.Struct, frozen=True):
    """How it fits, or the nearest that it comes to it (`worst` says by how much)."""

    recompute: Recompute
    micro: int
    offload: Place
    worst: Worst

    @property
    def fits(self) -> bool:
        """Whether it does."""
        return self.worst.fits


def room(work: Work, recipe: Recipe, host: Host, split: Split, batch: int) -> Room:
    """The cheapest way for one card of `host` to train `batch` sequences a step, its states split as said."""
    wide = computes_wide([host])
    return _room(work, recipe, memory_of(host), host.cards, host.memory_bytes, split, batch, wide)


def computes_wide(hosts: Iterable[Host]) -> bool:
    """Whether one of them has a card without bfloat16: it computes in float32, and keeps what it computes with so."""
    return any(host.card.has_bf16 is False for host in hosts)


def widened(stack: Stack, recipe: Recipe) -> tuple[Stack, Recipe]:
    """The same in float32: activations twice as large, weights and gradients of 4 bytes, which need no copy beside."""

    def wide(one: Slice) -> Slice:
        return msgspec.structs.replace(one, kept=2 * one.kept, working=2 * one.working)

    layers = tuple(map(wide, stack.layers))
    return (
        msgspec.structs.replace(stack, first=wide(stack.first), layers=layers, last=wide(stack.last)),
        msgspec.structs.replace(
            recipe, weights=SINGLE, gradients=SINGLE, optimizer=max(0.0, recipe.optimizer - SINGLE)
        ),
    )


def replica(host: Host) -> Split:
    """How a host holds a whole replica: its own cards share the states (FSDP)."""
    return Split(3 if host.cards > 1 else 0, host.cards)


def need(work: Work, host: Host, sync: SyncSpec) -> int:
    """The least that each card of `host` must hold to train a whole replica by rounds; by its memory is not asked."""
    recipe, wide = work.with_outer(sync), computes_wide([host])
    least = _room(work, recipe, 0, host.cards, host.memory_bytes, replica(host), work.batch, wide)
    return math.ceil(least.worst.footprint.card)


@functools.lru_cache(
    maxsize=1024
)  # hosts of one kind have the same room, in every crew that they are tried in
def _room(
    work: Work,
    recipe: Recipe,
    memory: int,
    cards: int,
    ram: int | None,
    split: Split,
    batch: int,
    is_wide: bool,
) -> Room:
    nearest: Room | None = None
    for offload, recompute, micro in _ways(batch, ram if work.is_movable else None):
        stack, kept = work.stack(micro, recompute), recipe
        if is_wide:
            stack, kept = widened(stack, kept)
        training = Training(
            Pipeline((work.model.layers,), batch // micro, Schedule.ONE_F_ONE_B),
            kept,
            msgspec.structs.replace(split, offload=Offload(optimizer=offload)),
        )
        needs = footprints(stack, training)
        if offload is Place.RAM and needs[0].ram * cards > (ram or 0):
            continue
        found = Room(recompute, micro, offload, worst(needs, (float(memory),)))
        if found.fits:
            return found
        if nearest is None or found.worst.spare > nearest.worst.spare:
            nearest = found
    assert nearest is not None
    return nearest


def _ways(batch: int, ram: int | None) -> Iterator[tuple[Place, Recompute, int]]:
    micros = [batch // parts for parts in range(1, batch + 1) if batch % parts == 0]
    places = (Place.CARD,) if ram is None else (Place.CARD, Place.RAM)
    return product(places, Recompute, micros)

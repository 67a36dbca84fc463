"""Bytes that real torch.distributed runs over gloo put on their interfaces, against what `plan.parallel` foretells.

Each rank has a network namespace and a link of its own, not shaped, of MTU 1500; segments leave one by one, so that the
interface's counter sees every header as a wire would. Foretold is a rank's payload by the formulas, with TCP/IP headers
and acknowledgements (`plan.parallel.wires`). Told is the largest relative difference over ranks and both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from plan_group import Sizes, run
from reporting import Row, at_most

from farflung.plan.parallel import periodic, replicas, stages, wires
from farflung.plan.parallel.collectives import Backend, Span
from farflung.plan.parallel.replicas import Sharding
from farflung.plan.parallel.shapes import Shape
from farflung.plan.parallel.stages import Cutting

GOAL: Final = 0.02
FLOAT: Final = 4

Expected = list[tuple[float, float]]  # bytes of payload that each rank sends and receives in a step


class Case(NamedTuple):
    """One way to train, on so many ranks."""

    name: str
    mode: str  # of bench/plan_worker.py
    world: int
    foretell: Callable[[Sizes, int], Expected]


def _ddp(sizes: Sizes, world: int) -> Expected:
    terms = replicas.replicated(FLOAT * sizes.parameters, Span(world), Sharding())
    return [(sum(t.sent for t in terms), sum(t.received for t in terms))] * world


def _sharded(reshard: bool) -> Callable[[Sizes, int], Expected]:
    def foretell(sizes: Sizes, world: int) -> Expected:
        sharding = Sharding(3, reshard_after_forward=reshard, units=sizes.layers, backend=Backend.GLOO)
        terms = replicas.replicated(FLOAT * sizes.parameters, Span(world), sharding)
        return [(sum(t.sent for t in terms), sum(t.received for t in terms))] * world

    return foretell


def _pipeline(sizes: Sizes, world: int) -> Expected:
    """A rank in the middle hands on what it receives, both ways; the ends one way each."""
    shape = Shape(sizes.layers, sizes.width, parameters=sizes.parameters, element=FLOAT)
    forward, backward = stages.pipelined(shape, Cutting(world, sizes.micros), batch=sizes.batch)
    inner = (forward.sent + backward.sent, forward.received + backward.received)
    first, last = (forward.sent, backward.received), (backward.sent, forward.received)
    return [first, *([inner] * (world - 2)), last]


def _diloco(sizes: Sizes, world: int) -> Expected:
    term = periodic.averaged(sizes.parameters, Span(world), 1).expected
    return [(term.sent, term.received)] * world


def _sparse(sizes: Sizes, world: int) -> Expected:
    from plan_payloads import codec, layout

    term = periodic.coded(layout(), codec(), Span(world), 1).expected
    return [(term.sent, term.received)] * world


CASES: Final = (
    Case("DDP, 2 ranks", "ddp", 2, _ddp),
    Case("DDP, 4 ranks", "ddp", 4, _ddp),
    Case("FSDP2, 2 ranks", "fsdp", 2, _sharded(True)),
    Case("FSDP2, 4 ranks", "fsdp", 4, _sharded(True)),
    Case("FSDP2, parameters kept, 4 ranks", "fsdp-kept", 4, _sharded(False)),
    Case("GPipe, 4 ranks", "gpipe", 4, _pipeline),
    Case("1F1B, 4 ranks", "1f1b", 4, _pipeline),
    Case("DiLoCo, 4 ranks", "diloco", 4, _diloco),
    Case("top-k payloads gathered, 4 ranks", "sparse", 4, _sparse),
)


def rows(*, is_quick: bool) -> Iterator[Row]:
    """A row a case: the worst relative difference between counted and foretold."""
    for case in CASES[1:] if is_quick else CASES:
        yield measured(case, steps=3 if is_quick else 10)


def measured(case: Case, steps: int) -> Row:
    """Runs a case and compares."""
    sizes = sizes_of(case)
    expected = np.array(
        [
            (
                wires.counted(sent, received, acknowledged=wires.IN_BATCHES),
                wires.counted(received, sent, acknowledged=wires.IN_BATCHES),
            )
            for sent, received in case.foretell(sizes, case.world)
        ]
    )
    seen = run(case.mode, case.world, steps, sizes, is_split=True)
    counted = np.array(list(zip(seen.sent, seen.received, strict=True)))
    worst = float(np.abs(counted / expected - 1).max())
    against = f"{counted.max():,.0f} bytes counted, {expected.max():,.0f} foretold, busiest rank and way a step"
    return at_most(f"bytes: {case.name}", worst, "share off", GOAL, against)


def sizes_of(case: Case) -> Sizes:
    """Large enough that messages' heads and the store's words are small beside what is counted."""
    if case.mode in ("gpipe", "1f1b"):
        return Sizes(batch=256)
    return Sizes(local=15) if case.mode == "sparse" else Sizes()

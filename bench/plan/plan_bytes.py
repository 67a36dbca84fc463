"""Bytes that real torch.distributed runs over gloo put on their interfaces, against what `advice.traffic` foretells.

Each rank has a network namespace and a link of its own, not shaped, of MTU 1500; segments leave one by one, so that the
interface's counter sees every header as a wire would. Foretold is a rank's payload by the formulas, with TCP/IP headers
and acknowledgements (`advice.traffic.packet_overhead`). Told is the largest relative difference over ranks and
both directions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import plan_payloads
from plan_group import Sizes, run
from reporting import Row, at_most

from farflung.advice.traffic import data_parallel, local_step_methods, packet_overhead, pipeline_traffic
from farflung.advice.traffic.collectives import CollectiveBackend, RankSpan
from farflung.advice.traffic.data_parallel import ReplicaSharding
from farflung.advice.traffic.pipeline_traffic import PipelineCuts
from farflung.advice.traffic.traffic_terms import TrafficLoad, TrafficTerm
from farflung.advice.traffic.transformer_shapes import TransformerShape

GOAL: Final = 0.02
FLOAT: Final = 4


class Way(NamedTuple):
    """What a rank sends and receives in a step: bytes of payload, and messages each way."""

    sent: float
    received: float
    messages: float


Expected = list[Way]
Wanted = Callable[[str], bool]  # whether a case of this name is asked for


class Case(NamedTuple):
    """One way to train, on so many ranks."""

    name: str
    mode: str  # of bench/plan/plan_worker.py
    world: int
    foretell: Callable[[Sizes, int], Expected]


def _alike(terms: Iterable[TrafficTerm], world: int) -> Expected:
    load = TrafficLoad(world, tuple(terms))
    return [Way(load.sent, load.received, load.messages)] * world


def _ddp(sizes: Sizes, world: int) -> Expected:
    terms = data_parallel.replicated(FLOAT * sizes.parameters, RankSpan(world), ReplicaSharding())
    return _alike(terms, world)


def _sharded(reshard: bool) -> Callable[[Sizes, int], Expected]:
    def foretell(sizes: Sizes, world: int) -> Expected:
        sharding = ReplicaSharding(3, reshard_after_forward=reshard, units=sizes.layers, backend=CollectiveBackend.GLOO)
        terms = data_parallel.replicated(FLOAT * sizes.parameters, RankSpan(world), sharding)
        return _alike(terms, world)

    return foretell


def _pipeline(sizes: Sizes, world: int) -> Expected:
    shape = TransformerShape(sizes.layers, sizes.width, parameters=sizes.parameters, element=FLOAT)
    handed = pipeline_traffic.by_stage(shape, PipelineCuts(world, sizes.micros), batch=sizes.batch)
    return [Way(one.sent, one.received, one.messages) for one in handed]


def _diloco(sizes: Sizes, world: int) -> Expected:
    term = local_step_methods.averaged(sizes.parameters, RankSpan(world), 1).expected
    return _alike([term], world)


def _sparse(length: float, world: int) -> Expected:
    """Eight bytes each that tell lengths, and the payloads."""
    terms = [local_step_methods.sent(size, RankSpan(world)).expected for size in (8.0, length)]
    return _alike(terms, world)


CASES: Final = (
    Case("DDP, 2 ranks", "ddp", 2, _ddp),
    Case("DDP, 4 ranks", "ddp", 4, _ddp),
    Case("FSDP2, 2 ranks", "fsdp", 2, _sharded(True)),
    Case("FSDP2, 4 ranks", "fsdp", 4, _sharded(True)),
    Case("FSDP2, parameters kept, 4 ranks", "fsdp-kept", 4, _sharded(False)),
    Case("GPipe, 4 ranks", "gpipe", 4, _pipeline),
    Case("1F1B, 4 ranks", "1f1b", 4, _pipeline),
    Case("DiLoCo, 4 ranks", "diloco", 4, _diloco),
)
KNOWN: Final = "top-k payloads gathered, lengths known"
EXPECTED: Final = "top-k payloads gathered, lengths as expected"
QUICK: Final = CASES[:1]


def rows(wanted: Wanted, *, is_quick: bool) -> Iterator[Row]:
    """A row a case: the worst relative difference between counted and foretold. Quick: fewer cases, fewer steps."""
    for case in QUICK if is_quick else CASES:
        if wanted(case.name):
            sizes = sizes_of(case)
            yield measured(case.name, case.mode, case.foretell(sizes, case.world), sizes, 3 if is_quick else 10)
    if not is_quick and wanted(KNOWN):
        yield _gathered(KNOWN, *plan_payloads.noise(), steps=20)
    if not is_quick and wanted(EXPECTED):
        yield _gathered(EXPECTED, *plan_payloads.real(), steps=200)


def _gathered(name: str, payloads: list[bytes], length: float, steps: int) -> Row:
    with gathering(payloads) as sizes:
        expected = _sparse(length, 4)
        return measured(f"{name}, 4 ranks", "sparse", expected, sizes, steps, packet_overhead.ACKNOWLEDGED)


@contextmanager
def gathering(payloads: list[bytes]) -> Iterator[Sizes]:
    """What tells ranks where these payloads lie."""
    with tempfile.TemporaryDirectory() as folder:
        plan_payloads.store(payloads, Path(folder))
        yield Sizes(payloads=folder)


def measured(
    name: str,
    mode: str,
    expected: Expected,
    sizes: Sizes,
    steps: int,
    acknowledged: float = packet_overhead.IN_BATCHES,  # batches form in long messages only
) -> Row:
    """Runs a case and compares."""
    back = [Way(way.received, way.sent, way.messages) for way in expected]
    ways = [[_wire(way, acknowledged) for way in both] for both in zip(expected, back, strict=True)]
    foretold = np.array(ways)
    seen = run(mode, len(expected), steps, sizes, is_split=True)
    counted = np.array(list(zip(seen.sent, seen.received, strict=True)))
    worst = float(np.abs(counted / foretold - 1).max())
    against = f"{counted.max():,.0f} bytes counted, {foretold.max():,.0f} foretold, busiest rank and way a step"
    return at_most(f"bytes: {name}", worst, "share off", GOAL, against)


def _wire(way: Way, acknowledged: float) -> float:
    return packet_overhead.counted(
        way.sent,
        way.received,
        messages=way.messages,
        head=packet_overhead.GLOO_HEAD,
        notices=packet_overhead.GLOO_NOTICES * way.messages,
        acknowledged=acknowledged,
    )


def sizes_of(case: Case) -> Sizes:
    """Large enough that messages' heads and the store's words are small beside what is counted."""
    if case.mode in ("gpipe", "1f1b"):
        return Sizes(batch=256)
    return Sizes()

"""Seconds of a step of real torch.distributed runs on shaped links, against what `advice.traffic` foretells.

Four ranks, each behind a token bucket of RATE each way, packets of 1500 bytes; no delay is added, because not every
kernel can. What a step computes is measured alone first, by as many processes at once on the same cores. Foretold is
that, and the collectives' seconds on lines whose payload is what headers and acknowledgements leave.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import plan_payloads
from plan_bytes import FLOAT, Wanted, gathering
from plan_group import Seen, Sizes, run
from reporting import Row, at_most

from farflung.advice.traffic import collective_times, packet_overhead
from farflung.advice.traffic.access_links import RankGroup, alike
from farflung.advice.traffic.collectives import CollectiveBackend
from farflung.advice.traffic.pipeline_schedules import CutTimes, PipelineSchedule, StageTimes, timeline
from farflung.advice.traffic.transformer_shapes import TransformerShape
from farflung.core.units import Seconds
from farflung.plan.link_syntax import Link

GOAL: Final = 0.15
MIDDLE: Final = 0.10  # of the median over all cases
WORLD: Final = 4
RATE: Final = 50e6
TC: Final = "50mbit"
FORWARD: Final = 1 / 3  # of a step's computing: two of three products are backward
STEPS: Final = 5
SMALL: Final = Sizes(width=512, layers=8, batch=16)
WIDE: Final = Sizes(width=512, layers=8, batch=128, micros=4)


class Case(NamedTuple):
    """One way to train. `foretell` takes seconds that a rank computes alone for what `alone` says."""

    name: str
    mode: str
    sizes: Sizes
    alone: Sizes
    foretell: Callable[[Sizes, float], float]


def lines() -> RankGroup:
    """The links as payload sees them: both ways carry data, and acknowledgements of the other way's."""
    payload = RATE / packet_overhead.counted(1.0, 1.0)
    return alike(Link(payload, payload, Seconds(0.0)), WORLD)


def _ddp(sizes: Sizes, alone: float) -> float:
    return alone + collective_times.ring(lines(), FLOAT * sizes.parameters)


def _fsdp(sizes: Sizes, alone: float) -> float:
    """Each unit is gathered twice; its gradients are summed as gloo does, by a whole all-reduce."""
    unit = FLOAT * sizes.parameters / sizes.layers
    gathered, reduced = collective_times.ring(lines(), unit, rounds=1), collective_times.ring(lines(), unit)
    return alone + sizes.layers * (2 * gathered + reduced)


def _diloco(sizes: Sizes, alone: float) -> float:
    return sizes.local * alone + collective_times.ring(lines(), FLOAT * sizes.parameters)


def _pipeline(schedule: PipelineSchedule) -> Callable[[Sizes, float], float]:
    def foretell(sizes: Sizes, alone: float) -> float:
        shape = TransformerShape(sizes.layers, sizes.width, parameters=sizes.parameters, element=FLOAT)
        # One way is busy at a time, most of the time.
        seconds = 8 * shape.activation(sizes.batch) / packet_overhead.payload_rate(RATE)
        stage = StageTimes(FORWARD * alone, (1 - FORWARD) * alone)
        cuts = [CutTimes(seconds, 0.0, seconds)] * (WORLD - 1)
        return timeline([stage] * WORLD, sizes.micros, schedule, cuts=cuts, backend=CollectiveBackend.GLOO).seconds

    return foretell


_ONE: Final = WIDE._replace(layers=WIDE.layers // WORLD)
CASES: Final = (
    Case("DDP", "ddp", SMALL, SMALL, _ddp),
    Case("FSDP2", "fsdp", SMALL, SMALL, _fsdp),
    Case("DiLoCo, 3 local steps", "diloco", SMALL, SMALL, _diloco),
    Case("GPipe", "gpipe", WIDE, _ONE, _pipeline(PipelineSchedule.GPIPE)),
    Case("1F1B", "1f1b", WIDE, _ONE, _pipeline(PipelineSchedule.ONE_F_ONE_B)),
)
GATHERED: Final = "top-k payloads gathered"


def rows(wanted: Wanted, *, is_quick: bool) -> Iterator[Row]:
    """A row a case, and the median of all. Quick: the last of them, and no median."""
    found = []
    computed: dict[Sizes, float] = {}
    for case in CASES[-1:] if is_quick else CASES:
        if wanted(case.name):
            if case.alone not in computed:
                computed[case.alone] = _middle(run("alone", WORLD, STEPS, case.alone))
            seen = run(case.mode, WORLD, STEPS, case.sizes, TC, is_split=True)
            found.append(_row(case.name, _middle(seen), case.foretell(case.sizes, computed[case.alone])))
            yield found[-1]
    if wanted(GATHERED) and not is_quick:
        payloads, length = plan_payloads.noise()
        with gathering(payloads) as sizes:
            seen = run("sparse", WORLD, STEPS, sizes, TC, is_split=True)
        found.append(_row(GATHERED, _middle(seen), collective_times.gather(lines(), [length] * WORLD)))
        yield found[-1]
    if len(found) > len(CASES):
        middle = statistics.median(row.value for row in found)
        yield at_most("steps: median", middle, "share off", MIDDLE, f"of {len(found)} cases")


def _middle(seen: Seen) -> float:
    """The slowest rank's median step: everybody waits for it."""
    return max(statistics.median(rank) for rank in seen.seconds)


def _row(name: str, seconds: float, foretold: float) -> Row:
    against = f"{seconds:.3f} s a step measured, {foretold:.3f} s foretold; {WORLD} ranks, {TC} each way"
    return at_most(f"steps: {name}", abs(foretold / seconds - 1), "share off", GOAL, against)

"""What a network of the world costs against a data centre: DT-FM says 1.7 to 2.3 times, and 4.8 times less than a
system that places at random (Yuan et al. 2022, figures of whole runs). Here: a timeline of 1F1B, event by event, on
their first and last case, each at its best layout, and then the exchange by its cost model, not overlapped.

GPT-3 XL in 8 stages; 61 sequences of 2,048 tokens a pipeline, one at a time, width 2,048, 2 bytes; a card does RATE.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import dtfm_cases
import numpy as np
from reporting import Row, told

from farflung.advice.placement import dtfm_objective, simulated_annealing
from farflung.advice.placement.dtfm_objective import DtfmLayout
from farflung.advice.placement.link_matrices import LinkMatrices
from farflung.advice.traffic.pipeline_schedules import CutTimes, StageTimes, timeline

STAGES = 8
SEQUENCE, WIDTH, SEQUENCES = 2048, 2048, 61
PARAMETERS = 1.3e9
RATES = (20e12, 40e12)  # FLOP/s that a card reaches
RARE = 10


def step(mesh: LinkMatrices, layout: DtfmLayout, rate: float, every: int = 1) -> float:
    """Seconds of a step: the slowest pipeline, and its part of an exchange `every` so many steps."""
    there = mesh.seconds(2.0 * WIDTH * SEQUENCE)
    delay = mesh.seconds(0.0)
    work = 6 * PARAMETERS * SEQUENCE / STAGES / rate
    slowest = 0.0
    for pipeline in layout.grid.T:
        cuts = [
            CutTimes(
                float(there[one, other] - delay[one, other]),
                float(delay[one, other]),
                float(there[other, one] - delay[other, one]),
            )
            for one, other in itertools.pairwise(pipeline)
        ]
        line = timeline([StageTimes(work / 3, 2 * work / 3)] * STAGES, SEQUENCES, cuts=cuts)
        slowest = max(slowest, line.seconds)
    return slowest + layout.score.exchange / every


def rows(_quick: bool) -> Iterator[Row]:
    """Times of a data centre's step: placed well, at random, and well with exchanges that are rare."""
    meshes = [dtfm_cases.case(number) for number in (0, 4)]
    costs = [dtfm_objective.costs(mesh, STAGES) for mesh in meshes]
    best = [simulated_annealing.search(of, 0) for of in costs]
    groups = np.random.default_rng(0).permutation(64).reshape(STAGES, -1)
    drawn = dtfm_objective.laid(costs[1], np.sort(groups, axis=1))
    for rate in RATES:
        centre = step(meshes[0], best[0], rate)
        for name, layout, every, published in (
            ("placed", best[1], 1, "published 1.7 to 2.3"),
            ("at random", drawn, 1, "published 4.8 times what is placed"),
            (f"placed, an exchange every {RARE} steps", best[1], RARE, "none published"),
        ):
            took = step(meshes[1], layout, rate, every)
            yield told(
                f"claim, {rate / 1e12:.0f} TFLOP/s a card: the world, {name}",
                took / centre,
                "x",
                f"{took:.1f} s a step, {centre:.1f} s in a data centre; {published}",
            )

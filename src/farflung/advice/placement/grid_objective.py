"""Evaluates a grid of nodes for a run: seconds a step, verified tokens a second, and what they cost.

A grid [W, P] has W stages in P pipelines. With m micro-batches, c_i the seconds that node i computes one, x_w and y_w
those that `handed` bytes take from stage w - 1 to w and back (the least of what lies between the sites and of both
lines, of which an inner stage has half for each neighbour), and r_w = x_w + y_w + both delays:

    first      sum of all c and r: the way of one micro-batch there and back
    free       max(x, y, 2/3 c): the pace where nobody waits for anything to come back
    loop u..v  (c_u + r_u+1 + c_u+1 + ... + c_v) for each v - u + 1 micro-batches: 1F1B keeps so many in flight between
               two stages, and goes forward again only after a backward pass (Narayanan et al. 2021, 2.2)
    pipeline   first + max over loops of k loop + (m - 1 - k (v - u + 1)) free, k as often as m suffices for
    exchange   ring all-reduce of a stage's gradients, 2 (P - 1) messages of a P-th (Patarasuk & Yuan 2009), / H steps
    step       slowest pipeline + slowest exchange: sending overlaps computing as far as the order of 1F1B lets it, an
               exchange not at all
    useful     mean over pipelines of 1 / (1 + f L): f failures a second of its nodes, each of which costs the pipeline
               L = repair + H step / 2 seconds, half a round (renewal reward)

Against advice.traffic's timeline, event by event, over 24,000 drawn pipelines: 1.7 % below in the mean, 1 in 100
more than 17 % below, none more than 2 % above; the worst 39 % below, where many loops and few micro-batches mix.
Layers are dealt by advice.placement.uneven_layers' bisection, by each stage's slowest rate and smallest memory.
The step is that of one grid; `tokens` counts what is left of it after failures, `price` what verifiers repeat besides.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from farflung.advice.placement.layer_chain import LayerChain
from farflung.advice.placement.link_matrices import Floats, Indices, LinkMatrices
from farflung.advice.placement.loop_loader import loop
from farflung.core import limits
from farflung.core.errors import UsageError

SIMILAR: Final = 1.25  # fastest to slowest card of a stage (market.match hires by the same factor)


class Fleet(msgspec.Struct, frozen=True):
    """N nodes: [N] FLOP/s that each reaches, bytes of memory to use, price an hour, owner, failures an hour."""

    mesh: LinkMatrices
    rate: Floats
    memory: Floats
    price: Floats
    owner: Indices
    failures: Floats

    def __len__(self) -> int:
        return len(self.rate)

    @property
    def table(self) -> Floats:
        """[6, N]: rate, memory, uplink, downlink, price a second, failures a second."""
        lines = [np.minimum(line, 1e15) for line in (self.mesh.up, self.mesh.down)]
        return np.array([self.rate, self.memory, *lines, self.price / 3600.0, self.failures / 3600.0])


class StepWork(msgspec.Struct, frozen=True):
    """What one step is: micro-batches of a pipeline, tokens of each, and bytes handed from stage to stage.

    `every`: steps between two exchanges; `repair`: seconds to replace a failed node; `audited`: share that is repeated.
    """

    chain: LayerChain
    micro_batches: int
    tokens: int
    handed: float
    every: int = 1
    repair: float = 60.0
    audited: float = 0.0


class PlacementGoal(msgspec.Struct, frozen=True):
    """What is wanted: least time for a token of each pipeline, or least money; and what a stage must keep to."""

    by_money: bool = False
    similar: float = SIMILAR  # fastest to slowest card of a stage; infinity: any
    of_one_owner: float = 1.0  # largest share of a stage's members; one member is always allowed


class GridEvaluation(msgspec.Struct, frozen=True):
    """What a grid does. Seconds of a step, units of each stage, verified tokens a second, money for a million.

    `infeasible`: units that no card holds; then the rest is 0. `breach`: how far the wish is broken, 0 if it is kept.
    """

    step: float
    first: float  # one micro-batch there and back, in the slowest pipeline
    rest: float  # the others, one after another
    exchange: float
    useful: float
    units: tuple[int, ...]
    tokens: float
    price: float
    breach: float
    infeasible: int = 0


def fleet(
    mesh: LinkMatrices, rate: Floats, memory: Floats, price: Floats | None = None, owner: Indices | None = None,
    failures: Floats | None = None,
) -> Fleet:  # fmt: skip
    """Checked arrays; free of charge, of different owners and without failures where nobody says.

    Raises UsageError FF-PLAN-049, which names the field that is wrong.
    """
    count = len(mesh)
    zeros = np.zeros(count)
    found = Fleet(
        mesh, rate, memory, zeros if price is None else price,
        np.arange(count) if owner is None else owner, zeros if failures is None else failures,
    )  # fmt: skip
    for name in ("rate", "memory", "price", "owner", "failures"):
        row = getattr(found, name)
        if row.shape != (count,):
            raise wrong(name, f"a number for each of {count} nodes")
        if not ((row > 0 if name == "rate" else row >= 0) & np.isfinite(row)).all():
            raise wrong(name, "a number below what can be, or none")
    return found


def terms(work: StepWork, wish: PlacementGoal) -> Floats:
    """What the loops read of both, checked. Raises UsageError FF-PLAN-049."""
    counts = {"micro_batches": work.micro_batches, "tokens": work.tokens, "every": work.every}
    for name, count in counts.items():
        if not 0 < count <= limits.ROUNDS * limits.PEERS:
            raise wrong(name, f"{count}")
    for name, value in (("handed", work.handed), ("repair", work.repair), ("audited", work.audited)):
        if not 0 <= value < float("inf"):
            raise wrong(name, f"{value:g}")
    if not wish.similar >= 1 or not 0 < wish.of_one_owner <= 1:
        raise wrong("similar" if not wish.similar >= 1 else "of_one_owner", "a ratio of 1 and more, a share up to 1")
    return np.array(
        [work.micro_batches, work.handed, work.every, work.repair, wish.similar, wish.of_one_owner], np.float64
    )


def arguments(fleet: Fleet, work: StepWork, wish: PlacementGoal) -> tuple[Any, ...]:
    """What every loop over grids is given after the grid."""
    mesh = fleet.mesh
    owner = np.unique(fleet.owner, return_inverse=True)[1].astype(np.int64)  # loops count owners by their numbers
    return work.chain.sums, fleet.table, owner, mesh.site, mesh.delay, mesh.rate, terms(work, wish)


def judge(
    fleet: Fleet, work: StepWork, grid: Indices, wish: PlacementGoal | None = None, begun: Indices | None = None
) -> GridEvaluation:
    """What a grid [W, P] of different nodes does, its layers dealt anew, or beginning at units `begun` [W].

    Raises UsageError FF-PLAN-049.
    """
    asked = wish or PlacementGoal()
    flat = np.sort(grid.reshape(-1))
    if grid.ndim != 2 or not len(flat) or flat[0] < 0 or flat[-1] >= len(fleet) or (np.diff(flat) == 0).any():
        raise wrong("grid", "stages by pipelines of different nodes of the fleet")
    given = arguments(fleet, work, asked)
    sums, table, *_, said = given
    starts, ways = np.zeros(len(grid), np.int64), grid.shape[1]
    over = 0
    if begun is None:
        over = int(loop("pipeline_loops", "deal")(grid, sums, table, work.micro_batches, starts))
    else:
        starts[:] = begun
    pipes, rings, parts = np.zeros((ways, 4)), np.zeros((len(grid), 3)), np.zeros(8)
    tally = np.zeros(len(fleet), np.int64)
    loop("grid_loops", "measure")(grid, *given, starts, pipes, rings, tally)
    seconds = float(loop("grid_loops", "summed")(pipes, rings, said, parts))
    rest, first, exchange, useful, price, broken = (float(part) for part in parts[:6])
    if over:
        return GridEvaluation(float("inf"), 0.0, 0.0, 0.0, 0.0, (), 0.0, 0.0, broken, over)
    tokens = work.tokens * work.micro_batches * ways * useful / seconds
    money = price * (1.0 + work.audited) / tokens * 1e6
    units = tuple(int(n) for n in np.diff([*starts, len(work.chain)]))
    return GridEvaluation(seconds, first, rest, exchange, useful, units, tokens, money, broken)


def wrong(name: str, cause: str) -> UsageError:
    """The error for a field that is wrong."""
    return UsageError(
        "FF-PLAN-049",
        f"`{name}` of a placement is wrong",
        cause=cause,
        hint="numbers of 0 and more; FLOP/s, bytes, seconds, an hour's price and failures",
    )

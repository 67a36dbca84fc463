"""Draws the charts of a simulated network: cost of churn, load of relays, best checkpoint intervals.

Lines differ in dash and marker, and each is named where it ends: colour is never all that tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from farflung.advice.simulation.simulation_result import SimulationResult
from farflung.advice.simulation.simulation_rules import ACCEPTED
from farflung.app.simulate.scenario_run import CheckpointOverhead, ChurnLosses
from farflung.app.views.svg import INK, MUTED, S1, S2, S3, Chart, ChartCanvas, draw, place, stretch
from farflung.core.units import format_bytes, format_rate

BARS: Final = 16  # relays that have a bar of their own
TICKS: Final = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 21_600: "6 h", 86_400: "1 d"}
SOLID: Final = "solid"
DASHED: Final[Any] = (0, (6, 3))


def churn(rows: Sequence[ChurnLosses], here: float, description: str) -> Chart:
    """All that is lost, as shares, over the mean time that a node stays; `here`: the scenario's own hours."""

    def paint(sheet: ChartCanvas) -> None:
        axes = _axes(sheet, "mean hours until a node goes away")
        hours = [row.up_hours for row in rows]
        restarted = "a job that restarts as a whole" if not sheet.is_narrow else "restarts whole"
        alone = "each node loses its own rounds" if not sheet.is_narrow else "own rounds only"
        _line(sheet, axes, hours, [100 * row.restarting for row in rows], restarted, S2, DASHED, "s")
        _line(sheet, axes, hours, [100 * row.lost for row in rows], alone, S1, SOLID, "o")
        axes.axvline(here, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
        axes.set_xscale("log", base=2)
        ticks = _stays(hours, here, 8 if sheet.is_narrow else 16)
        axes.set_xticks(ticks, [f"{each:,.10g}" for each in ticks])
        axes.set_xticks([], minor=True)
        axes.set_ylim(0, 100)
        _legend(sheet, axes)
        _upright(sheet, "per cent of hired nodes' rounds")

    return draw("churn", "What churn costs", description, 340, paint)


def _stays(hours: Sequence[float], here: float, room: int) -> list[float]:
    """Of so many octaves as there is room for, all; of more, every second or third; and here, with nothing close by."""
    octaves = math.log2(max(hours) / min(hours))
    others = [each for each in hours if each != here][:: max(1, math.ceil(octaves / room))]
    return [here, *(each for each in others if not 0.7 < each / here < 1.4)]


def accepted(outcome: SimulationResult) -> list[float]:
    """Share of hired nodes' rounds that are accepted, day by day."""
    rounds = outcome.rules.rounds
    sums = outcome.tally[:, ACCEPTED].reshape(-1, rounds).sum(axis=1)
    hired = [period.hired * rounds for period in outcome.periods]
    return [int(some) / (of or 1) for some, of in zip(sums, hired, strict=True)]


def carried(outcome: SimulationResult) -> list[tuple[str, int, float]]:
    """Each relay's name, the bytes that it gave on, the bit/s that its fullest exchange needs; the busiest first."""
    sums = [int(each) for each in outcome.relayed.sum(axis=0)]
    peaks = [int(each) for each in outcome.relayed.max(axis=0)]
    window = max(1, outcome.rules.exchange) / 1000
    order = sorted(range(len(sums)), key=lambda at: (-sums[at], at))
    return [(f"relay {at + 1}", sums[at], 8 * peaks[at] / window) for at in order]


def days(outcome: SimulationResult, description: str) -> Chart:
    """`accepted` in per cent."""
    shares = [100 * share for share in accepted(outcome)]

    def paint(sheet: ChartCanvas) -> None:
        axes = _axes(sheet, "day", lines=1)
        marker = "o" if len(shares) < 60 else ""
        _line(sheet, axes, list(range(1, len(shares) + 1)), shares, "accepted", S1, SOLID, marker)
        axes.set_ylim(0, 100)
        axes.set_xlim(0.5, len(shares) + 0.5)
        axes.xaxis.get_major_locator().set_params(integer=True, nbins=5 if sheet.is_narrow else 10)
        _upright(sheet, "per cent of hired nodes' rounds")

    return draw("days", "Day by day", description, 260, paint)


def relays(outcome: SimulationResult, description: str) -> Chart:
    """`carried` by the busiest of them."""
    rows = carried(outcome)[:BARS]

    def paint(sheet: ChartCanvas) -> None:
        stretch(sheet, 26 * len(rows) + 34)
        axes = place(sheet, 62, 6, 88 if sheet.is_narrow else 190, 28)
        most = max((row[1] for row in rows), default=1) or 1
        for at, (name, given, rate) in enumerate(rows):
            axes.barh(at, given, height=0.6, color=S1, linewidth=0)
            words = format_bytes(given) + ("" if sheet.is_narrow else f", up to {format_rate(rate)}")
            _beside(axes, words, (given, at), 6, "left", INK)
            _beside(axes, name, (0, at), -8, "right", MUTED)
        axes.set_xlim(0, most)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_axis_off()
        _upright(
            sheet,
            "given on to others" if outcome.rules.relays <= BARS else f"the busiest {BARS} of {outcome.rules.relays}",
        )

    return draw("relays", "What relays carry", description, 300, paint)


def checkpoints(rows: Sequence[CheckpointOverhead], description: str) -> Chart:
    """The best interval of a group that stops together, and what is lost with it, over its size."""
    rows = [row for row in rows if row.waste < 0.995]

    def paint(sheet: ChartCanvas) -> None:
        stretch(sheet, 420 if sheet.is_narrow else 300)
        height = sheet.figure.get_figheight() * 72
        if sheet.is_narrow:
            upper, lower = (place(sheet, 46, height / 2 + 34, 14, 34), place(sheet, 46, 46, 14, height / 2 + 22))
        else:
            half = sheet.width / 2
            upper, lower = place(sheet, 56, 46, half + 14, 34), place(sheet, half + 46, 46, 14, 34)
        sizes = [row.nodes for row in rows]
        _line(sheet, upper, sizes, [row.work for row in rows], "interval", S3, SOLID, "o")
        _line(sheet, lower, sizes, [100 * row.waste for row in rows], "lost", S2, DASHED, "s")
        upper.set_yscale("log")
        low, high = min((row.work for row in rows), default=1), max((row.work for row in rows), default=1)
        ticks = [each for each in TICKS if low / 2 <= each <= 2 * high]
        upper.set_yticks(ticks, [TICKS[each] for each in ticks])
        upper.set_yticks([], minor=True)
        lower.set_ylim(0, 100)
        for axes, words in ((upper, "best interval"), (lower, "per cent lost")):
            axes.set_xscale("log", base=2)
            shown = sizes[:: 3 if sheet.is_narrow else 2]
            axes.set_xticks(shown, [str(each) for each in shown])
            axes.set_title(words, loc="left", fontsize=sheet.type_size, color=MUTED)
            axes.grid(axis="y")
            axes.spines["left"].set_visible(False)
        lower.set_xlabel("nodes that stop together", labelpad=6)
        if not sheet.is_narrow:
            upper.set_xlabel("nodes that stop together", labelpad=6)

    return draw("checkpoints", "Checkpoints", description, 300, paint)


def _axes(sheet: ChartCanvas, label: str, lines: int = 3) -> Any:
    """With room for so many lines of words above, where the page is narrow."""
    axes = place(sheet, 46, 46, 14, 20 + 14 * lines if sheet.is_narrow else 34)
    axes.set_xlabel(label, labelpad=6)
    axes.grid(axis="y")
    axes.spines["left"].set_visible(False)
    return axes


def _line(
    sheet: ChartCanvas,
    axes: Any,
    xs: Sequence[float],
    ys: Sequence[float],
    text: str,
    colour: str,
    dash: Any,
    marker: str,
) -> None:
    axes.plot(
        xs, ys, color=colour, linestyle=dash, marker=marker, markersize=5, linewidth=2.2, label=text, clip_on=False
    )


def _legend(sheet: ChartCanvas, axes: Any) -> None:
    axes.legend(
        loc="lower left" if sheet.is_narrow else "lower right",
        bbox_to_anchor=(-0.13, 1.04) if sheet.is_narrow else (1, 1.02),
        ncols=1 if sheet.is_narrow else 2,
        handlelength=3,
        labelspacing=0.25,
        columnspacing=1.8,
    )


def _beside(axes: Any, text: str, place_: tuple[float, float], side: int, align: str, colour: str) -> None:
    axes.annotate(
        text, place_, xytext=(side, 0), textcoords="offset points", va="center", ha=align, color=colour,
        annotation_clip=False,
    )  # fmt: skip


def _upright(sheet: ChartCanvas, text: str) -> None:
    """What the upright axis counts, above it and level."""
    height = sheet.figure.get_figheight() * 72
    x, align = (1.0, "right") if sheet.is_narrow else (0.0, "left")
    sheet.figure.text(x, 1 - 6 / height, text, color=MUTED, va="top", ha=align)

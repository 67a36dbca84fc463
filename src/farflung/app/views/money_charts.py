"""Draws the charts that compare two sides: the flow of money, and the plan against the measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from farflung.app.views.loss_charts import in_order, label
from farflung.app.views.svg import (
    GOOD,
    INK,
    MUTED,
    S1,
    S2,
    S3,
    S4,
    SOFT,
    WARN,
    Chart,
    ChartCanvas,
    draw,
    place,
    stretch,
)
from farflung.core.money import format_credits
from farflung.plan.plan_comparison import HIGH, LOW
from farflung.watch.redaction import redact
from farflung.watch.report_series import MoneySummary, PlannedVsMeasuredRow

SLOT: Final = 23  # px that a flow's words need
BAND: Final = 190  # px for all money together
SHOWN: Final = 12  # payments that have a line of their own
QUANTITIES: Final = 32  # compared ones that have a line
RATIOS: Final = (0.25, 4.0)  # what the axis shows; what lies beyond is at its end


class MoneyFlowItem(Struct, frozen=True):
    """Money from one pot to one owner, in pico-credits."""

    source: str
    target: str
    amount: int
    colour: str


def flows(money: MoneySummary, names: Mapping[str, str]) -> tuple[MoneyFlowItem, ...]:
    """Escrow, then stakes; small payments beyond the twelfth are added up. Flows of nothing are left out."""
    place_of = in_order((pay.peer for pay in money.pays), names).index
    pays = sorted(money.pays, key=lambda pay: (-pay.paid, place_of(pay.peer)))
    found = [MoneyFlowItem("escrow", label(names, pay.peer), pay.paid, S1) for pay in pays[:SHOWN]]
    rest = pays[SHOWN:]
    found.append(MoneyFlowItem("escrow", f"{len(rest)} more", sum(pay.paid for pay in rest), S1))
    found.append(MoneyFlowItem("escrow", "refunded", money.refunded or 0, S3))
    found.append(MoneyFlowItem("escrow", "pay burnt", money.burnt, S2))
    found.append(MoneyFlowItem("escrow", "still in escrow", money.held, MUTED))
    found.append(MoneyFlowItem("stakes", "to the finders", sum(s.bounty for s in money.slashes), S4))
    found.append(MoneyFlowItem("stakes", "burnt", sum(s.burnt for s in money.slashes), S2))
    whose = "returned" if money.refunded is not None else "still at stake"
    found.append(MoneyFlowItem("stakes", whose, money.returned, MUTED))
    return tuple(flow for flow in found if flow.amount > 0)


def settlement(money: MoneySummary, names: Mapping[str, str], description: str) -> Chart:
    """Ribbons from escrow and stakes to those who have the money now; their width is the amount."""
    wide, narrow = flows(money, names), flows(money, {})
    return ribbons(wide, narrow, description)


def ribbons(wide: Sequence[MoneyFlowItem], narrow: Sequence[MoneyFlowItem], description: str) -> Chart:
    """One pot above the other, and what flows out of each; `narrow`: the same with shorter names."""

    def paint(sheet: ChartCanvas) -> None:
        found = narrow if sheet.is_narrow else wide
        total = sum(flow.amount for flow in found) or 1
        sides: dict[str, list[MoneyFlowItem]] = {}
        for flow in found:
            sides.setdefault(flow.source, []).append(flow)
        height = sum(max(SLOT, f.amount / total * BAND + 4) for f in found) + 26 * (len(sides) - 1) + 12
        stretch(sheet, round(height))
        axes = place(sheet, 0, 0, 0, 0)
        axes.set_xlim(0, sheet.width)
        axes.set_ylim(height, 0)
        axes.set_axis_off()
        begin = 6.0
        for source, own in sides.items():
            begin = _side(sheet, axes, source, own, total, begin) + 26

    return draw("money", "Where the money went", description, 300, paint)


def _side(sheet: ChartCanvas, axes: Any, source: str, own: Sequence[MoneyFlowItem], total: int, begin: float) -> float:
    """One pot and what flows out of it; returns where it ends."""
    left, right = (52, 112) if sheet.is_narrow else (170, 560)
    tall = [flow.amount / total * BAND for flow in own]
    slots = [max(SLOT, each + 4) for each in tall]
    start = begin + (sum(slots) - sum(tall)) / 2
    amount = format_credits(sum(flow.amount for flow in own))
    pot = f"{source}\n{amount}" if not sheet.is_narrow else source
    axes.text(
        left - (8 if sheet.is_narrow else 14),
        begin + sum(slots) / 2,
        pot,
        ha="right",
        va="center",
        color=INK,
        linespacing=1.5,
    )
    place_ = begin
    for flow, each, slot in zip(own, tall, slots, strict=True):
        middle = place_ + slot / 2
        _ribbon(axes, (left, start), (right, middle - each / 2), max(each, 1.4), flow.colour)
        words = f"{format_credits(flow.amount)}  {flow.target}"
        axes.text(
            right + (9 if sheet.is_narrow else 12),
            middle,
            words,
            va="center",
            color=INK,
            fontsize=sheet.type_size - sheet.is_narrow,
        )
        start, place_ = start + each, place_ + slot
    return place_


def _ribbon(axes: Any, source: tuple[float, float], target: tuple[float, float], tall: float, colour: str) -> None:
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path

    (x0, y0), (x1, y1) = source, target
    bend = (x0 + x1) / 2
    points = [
        (x0, y0), (bend, y0), (bend, y1), (x1, y1),
        (x1, y1 + tall), (bend, y1 + tall), (bend, y0 + tall), (x0, y0 + tall), (x0, y0),
    ]  # fmt: skip
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    axes.add_patch(PathPatch(Path(points, codes), facecolor=colour, alpha=0.28, linewidth=0))
    axes.add_patch(Rectangle((x0 - 5, y0), 5, tall, facecolor=colour, linewidth=0))
    axes.add_patch(Rectangle((x1, y1), 5, tall, facecolor=colour, linewidth=0))


def plan(rows: Sequence[PlannedVsMeasuredRow], description: str) -> Chart:
    """Measured as a multiple of the plan; the band is what counts as kept."""
    rows = rows[:QUANTITIES]

    def paint(sheet: ChartCanvas) -> None:
        row = 30
        stretch(sheet, 30 + 46 + row * len(rows))
        axes = place(sheet, 100 if sheet.is_narrow else 130, 46, 44 if sheet.is_narrow else 60, 26)
        axes.set_xscale("log")
        axes.axvspan(LOW, HIGH, facecolor=SOFT, linewidth=0)
        axes.axvline(1, color=MUTED, linewidth=1)
        for number, each in enumerate(rows):
            _ratio(axes, number, each)
        axes.set_xlim(*RATIOS)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), [redact(each.quantity, 24) for each in rows])
        axes.set_xticks([0.25, 0.5, 1, 2, 4], ["¼", "½", "1" if sheet.is_narrow else "as planned", "2", "4"])
        axes.set_xticks([], minor=True)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("measured, as a multiple of the plan", labelpad=6)
        height = sheet.figure.get_figheight() * 72
        text = f"shaded: {LOW:g} to {HIGH:g} of the plan"
        sheet.figure.text(1, 1 - 4 / height, text, color=MUTED, va="top", ha="right")

    return draw("plan", "Plan against measured", description, 300, paint)


def _ratio(axes: Any, number: int, row: PlannedVsMeasuredRow) -> None:
    low, high = RATIOS
    kept = row.ratio if row.ratio is not None else high
    x = min(max(kept, low), high)
    colour, marker = (WARN, "D") if row.off else (GOOD, "o")
    axes.plot([1, x], [number, number], color=colour, linewidth=2.2, solid_capstyle="butt")
    axes.plot(
        [x],
        [number],
        marker=marker,
        color=colour,
        markersize=7,
        markerfacecolor="none" if row.off else colour,
        clip_on=False,
    )
    text = f"{kept:.2f}" if row.ratio is not None else "unplanned"
    side = 9 if kept >= 1 else -9
    axes.annotate(
        text,
        (x, number),
        xytext=(side, 0),
        textcoords="offset points",
        va="center",
        ha="left" if side > 0 else "right",
        color=WARN if row.off else INK,
        annotation_clip=False,
    )

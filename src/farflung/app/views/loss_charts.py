"""Draws the charts of loss and bytes, only from the numbers of watch.series.

Lines differ in dash and marker, bars are labelled: colour is never all that tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from farflung.app.views.svg import INK, MUTED, PAPER, S1, S2, S3, S4, SOFT, Chart, ChartCanvas, draw, place, stretch
from farflung.core.units import format_bytes, format_count, format_seconds
from farflung.watch.redaction import redact
from farflung.watch.report_series import DepartureMark, LossCurves, LossPoint, SentBytesSeries

AXES: Final = ("tokens", "bytes", "time")  # what a loss can be drawn over
MARKERS: Final = 24  # on one line, about
POINTS: Final = 2000  # of one line: more cannot be told apart
LEAVERS: Final = 6  # whose leaving is marked; the table has all
KINDS: Final = ("sync", "audit", "join", "control", "relay")


def label(names: Mapping[str, str], peer: str) -> str:
    """A peer by its short key, with the name it has in this run."""
    short = redact(peer[:8], 8)
    return f"{names[peer]} ({short})" if peer in names else short


def in_order(peers: Iterable[str], names: Mapping[str, str]) -> list[str]:
    """Peers by the number in their name, then by key; those without a name last."""
    return sorted(peers, key=lambda p: (p not in names, len(names.get(p, "")), names.get(p, ""), p))


def _over(axis: str) -> tuple[Callable[[LossPoint], float], Callable[[float], str], str]:
    match axis:
        case "bytes":
            return (lambda p: float(p.sent)), format_bytes, "sent by all, at the sockets"
        case "time":
            return (lambda p: p.seconds), format_seconds, "time in rounds"
    return (lambda p: float(p.tokens)), format_count, "tokens trained"


def loss(
    curves: LossCurves, marks: Sequence[DepartureMark], axis: str, names: Mapping[str, str], description: str
) -> Chart:
    """Loss over tokens, bytes or time."""
    of, form, unit = _over(axis)

    def paint(sheet: ChartCanvas) -> None:
        stretch(sheet, 330 if sheet.is_narrow else 400)
        axes = place(sheet, 46, 46, 14, 62 if sheet.is_narrow else 34)
        _curves(axes, curves, axis, of)
        if curves.unigram is not None:
            axes.axhline(curves.unigram, color=MUTED, linewidth=1, linestyle=(0, (1, 3)))
            axes.annotate(
                f"single tokens alone: {curves.unigram:.2f}",
                (1, curves.unigram),
                xycoords=("axes fraction", "data"),
                xytext=(0, 4),
                textcoords="offset points",
                ha="right",
                va="bottom",
                color=MUTED,
                fontsize=sheet.type_size - 1,
            )
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.04 * (high - low))
        _leavers(sheet, axes, marks, of, names)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: form(value) if value > 0 else "0")
        axes.xaxis.get_major_locator().set_params(nbins=4 if sheet.is_narrow else 8)
        axes.set_xlabel(unit, labelpad=6)
        axes.grid(axis="y")
        axes.spines["left"].set_visible(False)
        _title(sheet, "nats per token")
        axes.legend(
            loc="lower right" if not sheet.is_narrow else "lower left",
            bbox_to_anchor=(1, 1.02) if not sheet.is_narrow else (-0.13, 1.01),
            ncols=1 if sheet.is_narrow else 3,
            handlelength=3,
            labelspacing=0.25,
            columnspacing=1.8,
        )

    return draw(f"loss-{axis}", f"Loss over {axis}", description, 400, paint)


def _title(sheet: ChartCanvas, text: str) -> None:
    """What the upright axis counts, above it and level."""
    height = sheet.figure.get_figheight() * 72
    y = 1 - (12 if not sheet.is_narrow else 8) / height
    x = 0.0 if not sheet.is_narrow else 1.0
    sheet.figure.text(x, y, text, color=MUTED, va="top", ha="left" if x == 0 else "right")


def _curves(axes: Any, curves: LossCurves, axis: str, of: Callable[[LossPoint], float]) -> None:
    lines = (
        (curves.train, "training, mean of all", S2, (0, (4, 2)), "", 1.8),
        (curves.held_out, "validation", S1, "solid", "o", 2.4),
    )
    for points, text, colour, dash, marker, width in lines:
        if points:
            few = _thinned(points)
            xs, ys = [of(p) for p in few], [p.loss for p in few]
            marker = marker or ("" if len(few) > 1 else "s")
            axes.plot(
                xs,
                ys,
                color=colour,
                linestyle=dash,
                marker=marker,
                markersize=5,
                markevery=max(1, len(few) // MARKERS),
                linewidth=width,
                label=text,
                clip_on=False,
            )
    alone = _thinned(curves.baseline)
    if not alone:
        return
    look = {"color": S3, "label": "single-machine baseline", "linewidth": 1.8, "linestyle": (0, (6, 2, 1, 2))}
    if axis == "bytes":  # it sends nothing: its end is a level to compare with
        axes.axhline(alone[-1].loss, **look)
    else:
        every = max(1, len(alone) // MARKERS)
        axes.plot([of(p) for p in alone], [p.loss for p in alone], marker="D", markersize=4, markevery=every, **look)


def _thinned(points: Sequence[LossPoint]) -> Sequence[LossPoint]:
    """About POINTS of them, the first and the last among them."""
    step = len(points) // POINTS + 1
    return points if step == 1 else [*points[:-1:step], points[-1]]


def _leavers(
    sheet: ChartCanvas,
    axes: Any,
    marks: Sequence[DepartureMark],
    of: Callable[[LossPoint], float],
    names: Mapping[str, str],
) -> None:
    _, end = axes.get_xlim()
    for number, mark in enumerate(marks[:LEAVERS]):
        x = of(mark.point) if mark.point is not None else 0.0
        side = -4 if x > 0.6 * end else 4
        axes.axvline(x, color=MUTED, linewidth=1, linestyle=(0, (2, 2)), ymax=0.96)
        axes.annotate(
            f"{label(names, mark.peer) if not sheet.is_narrow else label({}, mark.peer)} leaves",
            (x, 0.965),
            xycoords=("data", "axes fraction"),
            xytext=(side, -16 * number),
            textcoords="offset points",
            va="top",
            ha="left" if side > 0 else "right",
            color=MUTED,
            fontsize=sheet.type_size - 1,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.5},
        )


def sent(bytes_: SentBytesSeries, description: str) -> Chart:
    """To scale with the ring, then by kind."""
    kinds = [(kind, getattr(bytes_.by, kind)) for kind in KINDS if getattr(bytes_.by, kind) > 0]
    whole = [("this run", bytes_.total)] + ([("bf16 ring", bytes_.ring)] if bytes_.ring else [])

    def paint(sheet: ChartCanvas) -> None:
        row = 30
        stretch(sheet, 2 * 46 + row * (len(whole) + len(kinds)) + 10)
        height = sheet.figure.get_figheight() * 72
        split = 34 + row * len(whole)
        upper = place(sheet, 76, height - split, 84, 34)
        lower = place(sheet, 76, 6, 84, split + 50)
        _bars(upper, whole, [S1, "none"], sheet)
        _bars(lower, kinds, [S1, S2, S3, S4, MUTED], sheet)
        sheet.figure.text(0, 1 - 8 / height, "Everything, to scale", weight="bold", va="top")
        note = "sent here, by kind" if sheet.is_narrow else "What this run sent, by kind, on a scale of its own"
        sheet.figure.text(0, 1 - (split + 24) / height, note[0].upper() + note[1:], weight="bold", va="top")

    return draw("sent", "Bytes by kind", description, 300, paint)


def _bars(axes: Any, rows: Sequence[tuple[str, int]], colours: Sequence[str], sheet: ChartCanvas) -> None:
    most = float(max((value for _, value in rows), default=1) or 1)
    for place_, (name, value) in enumerate(rows):
        colour = colours[place_ % len(colours)]
        hatched = colour == "none"
        axes.barh(
            place_,
            float(value),
            height=0.58,
            color=SOFT if hatched else colour,
            edgecolor=MUTED if hatched else colour,
            hatch="//" if hatched else None,
            linewidth=1,
        )
        axes.annotate(
            format_bytes(value), (value, place_), xytext=(6, 0), textcoords="offset points", va="center", color=INK
        )
        axes.annotate(
            name, (0, place_), xytext=(-8, 0), textcoords="offset points", va="center", ha="right", color=MUTED
        )
    axes.set_xlim(0, most)
    axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    axes.set_axis_off()

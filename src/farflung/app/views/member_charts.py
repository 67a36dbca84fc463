"""Draws the charts with a row for each member: its activity in each round, and the results of its audits.

Areas differ in lightness and hatch, audits in shape: colour is never all that tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from farflung.app.views.loss_charts import in_order, label
from farflung.app.views.svg import (
    BAD,
    GOOD,
    INK,
    MUTED,
    RULE,
    S1,
    S2,
    S3,
    SOFT,
    WARN,
    Chart,
    ChartCanvas,
    draw,
    place,
    stretch,
)
from farflung.watch import report_series
from farflung.watch.report_series import AuditGrid, MemberRow, RoundCell

ROUNDS_WIDE: Final = 12  # rounds whose strips can be told apart
ROUNDS_NARROW: Final = 5
GRID_WIDE: Final = 40  # rounds in one row of the audit grid
GRID_NARROW: Final = 12
GRID_ROUNDS: Final = 200  # the last ones of a long run; the table has all that were drawn
MEMBERS: Final = 64  # that have a row in a drawing; the tables have all
GRID_LEAST: Final = 20  # a short run does not fill the page

# Finding → colour, marker, filled.
SIGNS: Final[Mapping[str, tuple[str, str, bool]]] = {
    report_series.HOLDS: (GOOD, "o", True),
    "unpaid": (WARN, "D", False),
    "false": (BAD, "X", True),
    "withheld": (BAD, "s", False),
    report_series.OPEN: (MUTED, "o", False),
}


def lanes(strips: Sequence[MemberRow], names: Mapping[str, str], description: str) -> Chart:
    """A lane for each provider: the last rounds, block by block."""

    def paint(sheet: ChartCanvas) -> None:
        shown = last_rounds(strips, ROUNDS_NARROW if sheet.is_narrow else ROUNDS_WIDE)
        peers = in_order({strip.peer for strip in shown}, names)[:MEMBERS]
        shown = [strip for strip in shown if strip.peer in peers]
        row = 34
        top = 60 if sheet.is_narrow else 46
        stretch(sheet, top + 46 + row * len(peers) + (16 if sheet.is_narrow else 0))
        axes = place(sheet, 78 if sheet.is_narrow else 150, 46, 12, top)
        origin = min((block.start for strip in shown for block in strip.blocks), default=0.0)
        for strip in shown:
            _strip(axes, strip, peers.index(strip.peer), origin)
        _round_numbers(sheet, axes, shown, origin)
        axes.set_ylim(len(peers) - 0.5, -0.5)
        axes.set_xlim(left=0)
        texts = [label({} if sheet.is_narrow else names, peer) for peer in peers]
        axes.set_yticks(range(len(peers)), texts)
        axes.spines["left"].set_visible(False)
        axes.xaxis.get_major_locator().set_params(nbins=4 if sheet.is_narrow else 8)
        axes.set_xlabel(f"seconds since round {shown[0].round} was opened", labelpad=6)
        _lane_legend(sheet)

    return draw("lanes", "What each provider did", description, 300, paint)


def last_rounds(strips: Sequence[MemberRow], count: int) -> list[MemberRow]:
    """The strips of the last `count` rounds."""
    rounds = set(sorted({strip.round for strip in strips})[-count:])
    return [strip for strip in strips if strip.round in rounds]


# Part → face, edge, hatch.
_PARTS: Final = {
    report_series.COMPUTE: (S1, S1, None),
    report_series.SEND: (S2, S2, None),
    report_series.MERGE: (S3, S3, None),
    report_series.WAIT: (SOFT, MUTED, "////"),
}


def _strip(axes: Any, strip: MemberRow, row: int, origin: float) -> None:
    for block in strip.blocks:
        face, edge, hatch = _PARTS[block.part]
        thin = block.part == report_series.WAIT
        axes.barh(
            row,
            block.end - block.start,
            left=block.start - origin,
            height=0.26 if thin else 0.56,
            color=face,
            edgecolor=edge,
            hatch=hatch,
            linewidth=0.6,
        )
    if strip.last and strip.blocks:
        axes.plot([strip.blocks[0].end - origin], [row - 0.4], marker="v", color=INK, markersize=5, linestyle="")


def _round_numbers(sheet: ChartCanvas, axes: Any, shown: Sequence[MemberRow], origin: float) -> None:
    starts: dict[int, float] = {}
    for strip in shown:
        begin = strip.blocks[0].start if strip.blocks else origin
        starts[strip.round] = min(begin, starts.get(strip.round, begin))
    axes.annotate(
        "round",
        (0, 1),
        xycoords="axes fraction",
        xytext=(-5, 3),
        textcoords="offset points",
        ha="right",
        color=MUTED,
        fontsize=sheet.type_size - 1,
    )
    for round, start in starts.items():
        axes.axvline(start - origin, color=MUTED, linewidth=1, zorder=0.5)
        axes.annotate(
            str(round),
            (start - origin, 1),
            xycoords=("data", "axes fraction"),
            xytext=(2, 3),
            textcoords="offset points",
            color=MUTED,
            fontsize=sheet.type_size - 1,
        )


def _lane_legend(sheet: ChartCanvas) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=face, edgecolor=edge, hatch=hatch, label=part) for part, (face, edge, hatch) in _PARTS.items()
    ]
    handles.append(Line2D([], [], color=INK, marker="v", linestyle="", label="all waited for it"))
    sheet.figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, 1),
        ncols=3 if sheet.is_narrow else 5,
        handlelength=1.4,
        columnspacing=1.2,
        labelspacing=0.3,
        borderaxespad=0.2,
    )


def audits(found: AuditGrid, names: Mapping[str, str], description: str) -> Chart:
    """Rounds across, members down: what was drawn, and what came of it."""
    rounds = sorted({cell.round for cell in found.cells})[-GRID_ROUNDS:]
    peers = in_order(found.peers, names)[:MEMBERS]
    cells: dict[int, list[RoundCell]] = {round: [] for round in rounds}
    for cell in found.cells:
        if cell.round in cells and cell.peer in peers:
            cells[cell.round].append(cell)

    def paint(sheet: ChartCanvas) -> None:
        across = GRID_NARROW if sheet.is_narrow else max(GRID_LEAST, min(GRID_WIDE, len(rounds)))
        rows = [rounds[i : i + across] for i in range(0, len(rounds), across)]
        row, gap, top = 26, 34, 46 if sheet.is_narrow else 30
        each = row * len(peers) + gap
        stretch(sheet, top + each * len(rows))
        height = sheet.figure.get_figheight() * 72
        for number, part in enumerate(rows):
            begin = top + each * number + 4
            left = 78 if sheet.is_narrow else 150
            right = sheet.width - left - min(len(part), across) / across * (sheet.width - left - 8)
            axes = place(sheet, left, height - begin - each + gap, max(8, right), begin)
            _grid(axes, [cell for round in part for cell in cells[round]], part, peers)
            texts = [label({} if sheet.is_narrow else names, peer) for peer in peers]
            axes.set_yticks(range(len(peers)), texts)
        _audit_legend(sheet, {cell.state for cell in found.cells})

    return draw("audits", "Audits by round and member", description, 300, paint)


def _grid(axes: Any, cells: Sequence[RoundCell], rounds: Sequence[int], peers: Sequence[str]) -> None:
    for cell in cells:
        x, y = rounds.index(cell.round), peers.index(cell.peer)
        axes.add_patch(_square(x, y, RULE if cell.state == report_series.UNDRAWN else _sign(cell.state)[0]))
        if cell.state != report_series.UNDRAWN:
            colour, marker, filled = _sign(cell.state)
            face = colour if filled else "none"
            axes.plot([x], [y], marker=marker, color=colour, markerfacecolor=face, markersize=7, linestyle="")
    axes.set_xlim(-0.5, len(rounds) - 0.5)
    axes.set_ylim(len(peers) - 0.5, -0.5)
    step = 5 if len(rounds) > 20 else 1 if len(rounds) <= 12 else 2
    ticks = [i for i, round in enumerate(rounds) if round % step == 0]
    axes.set_xticks(ticks, [str(rounds[i]) for i in ticks])
    axes.tick_params(length=0)
    axes.set_xlabel("round", labelpad=2, loc="left")
    for spine in axes.spines.values():
        spine.set_visible(False)


def _sign(state: str) -> tuple[str, str, bool]:
    return SIGNS.get(state, (BAD, "X", True))


def _square(x: float, y: float, edge: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.42, y - 0.42), 0.84, 0.84, facecolor="none", edgecolor=edge, linewidth=0.9)


def _audit_legend(sheet: ChartCanvas, states: set[str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Line2D(
            [], [], color=colour, marker=marker, linestyle="", markerfacecolor=colour if full else "none", label=state
        )
        for state, (colour, marker, full) in SIGNS.items()
        if state in states or state in (report_series.HOLDS, "false")
    ]
    handles.append(Patch(facecolor="none", edgecolor=RULE, label=report_series.UNDRAWN))
    sheet.figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, 1),
        ncols=3 if sheet.is_narrow else 6,
        handlelength=1.2,
        columnspacing=1.4,
        borderaxespad=0.2,
    )

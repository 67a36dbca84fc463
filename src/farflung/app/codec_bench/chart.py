"""Draws the chart of `farflung bench compress`: error over bits a number, beside the Gaussian floor.

Each codec is a point.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from typing import Any, Final

from farflung.app.codec_bench.measure import CodecResult

SIZE: Final = (8.0, 5.2)  # inches
DPI: Final = 144
MARKS: Final = (("dense", "o"), ("top", "^"), ("low_rank", "s"))
_SETTINGS: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "farflung",  # the same figures give the same bytes
    "text.parse_math": False,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def picture(rows: Sequence[CodecResult], title: str, kind: str) -> bytes:
    """The figure as `svg` or `png`."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells the terminal about its caches
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        figure = Figure(figsize=SIZE, layout="constrained")
        _paint(figure.add_subplot(), [row for row in rows if row.error is not None], title)
        out = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(out, format=kind, dpi=DPI, metadata=metadata)
    return out.getvalue()


def _paint(axes: Any, rows: Sequence[CodecResult], title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for kind, mark in MARKS:
        some = [row for row in rows if row.codec.startswith(kind)]
        axes.plot([r.bits for r in some], [r.error for r in some], mark, label=kind, markersize=7)
        for number, row in enumerate(sorted(some, key=lambda r: (r.bits, r.codec))):
            place = (5, 4) if number % 2 else (-5, -12)  # neighbours on different sides
            axes.annotate(
                row.codec.removeprefix(kind).strip(),
                (row.bits, row.error),
                xytext=place,
                textcoords="offset points",
                ha="left" if number % 2 else "right",
                fontsize=8,
            )
    if rows:
        low, high = min(r.bits for r in rows) / 2, max(r.bits for r in rows) * 2
        bits = [low * (high / low) ** (i / 200) for i in range(201)]
        axes.plot(bits, [2.0**-b for b in bits], "--", color="#777777", linewidth=1, label="Gaussian floor, 2^-bits")
    axes.set_ylim(-0.02, 1.05)
    axes.set_xlabel("bits sent for each number of the tensors")
    axes.set_ylabel("relative L2 error of what arrives")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)

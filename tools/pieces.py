"""Pieces of SVG charts: scales, ticks, names that keep out of each other's way, marks and the page they stand on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 574
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 62, 500  # of the plot
LETTER, BOLD = 6.9, 7.7  # mean widths of one at 12 px
LINE: Final = 15  # height of one

Point = tuple[float, float]


# Where things stand


class Scale(NamedTuple):
    """From values to pixels, along one side."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        share = (self._of(value) - self._of(self.low)) / (self._of(self.high) - self._of(self.low))
        return self.start + share * (self.end - self.start)

    def _of(self, value: float) -> float:
        return math.log10(value) if self.is_log else value


class Box(NamedTuple):
    """A rectangle that must not be written over."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> float:
        """The area in common."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, wide) * max(0.0, high)


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round values between two."""
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def places(points: Sequence[Point], widths: Sequence[float], taken: list[Box]) -> list[Box]:
    """Each name's box, near its point, over as little as can be.

    `taken` is what stands already; each point's own marker is added to it. Names of points with the most neighbours
    are placed first, each at the first of the ways round its point that meets least.
    """
    boxes = taken + [Box(x - 8, y - 8, x + 8, y + 8) for x, y in points]
    crowd = [sum(math.dist(p, q) < 140 for q in points) for p in points]
    found: dict[int, Box] = {}
    for at in sorted(range(len(points)), key=lambda i: -crowd[i]):
        options = list(_around(points[at], widths[at]))

        def cost(number: int, at: int = at, options: list[Box] = options) -> float:
            box = options[number]
            off = max(0.0, LEFT + 4 - box.left) + max(0.0, box.right - (WIDTH - RIGHT))
            off += max(0.0, TOP - box.top) + max(0.0, box.bottom - BOTTOM)
            return sum(box.meets(b) for b in boxes) + 40 * off + 3 * number

        box = options[min(range(len(options)), key=cost)]
        boxes.append(box)
        found[at] = box
    return [found[i] for i in range(len(points))]


def _around(point: Point, wide: float) -> Iterable[Box]:
    x, y = point
    for rise in (0, -16, 16, -30, 30, -46, 46, -62, 62):
        for left in (x + 12, x - 12 - wide, x - wide / 2, x + 30, x - 30 - wide):
            if rise == 0 and left == x - wide / 2:
                continue  # over the marker itself
            yield Box(left, y + rise - LINE / 2, left + wide, y + rise + LINE / 2)


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights in the order of those wanted, at least `gap` from each other, within the bounds if they fit."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    at = [wanted[i] for i in order]
    for _ in range(200):
        for i in range(1, len(at)):
            if (close := gap - (at[i] - at[i - 1])) > 0:
                at[i - 1] -= close / 2
                at[i] += close / 2
        at = [min(max(y, low + i * gap), high - (len(at) - 1 - i) * gap) for i, y in enumerate(at)]
    return [y for _, y in sorted(zip(order, at, strict=True))]


# What is drawn

STYLE: Final = """
.paper { fill: #ffffff; stroke: #d0d7de; }
text { fill: #1f2328; font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 12px; }
.head { font-size: 15px; font-weight: 600; }
.quiet { fill: #59636e; }
.on-front { font-weight: 600; }
.halo { stroke: #ffffff; stroke-width: 3px; paint-order: stroke; stroke-linejoin: round; }
.grid { stroke: #d9dfe5; fill: none; }
.goal { stroke: #59636e; stroke-dasharray: 2 4; fill: none; }
.front { stroke: #59636e; stroke-dasharray: 7 4; stroke-width: 1.6; fill: none; }
.ring { stroke: #1f2328; stroke-width: 1.4; fill: none; }
.leader { stroke: #8c959f; stroke-width: 0.9; fill: none; }
.line { fill: none; stroke-width: 1.3; opacity: 0.45; }
.strong { fill: none; stroke-width: 1.7; }
.seeds { stroke-width: 2.2; }
.dense { stroke: #6e7781; } .local { stroke: #0a5cc2; } .step { stroke: #b0500a; }
.dense-mark { fill: #6e7781; } .local-mark { fill: #0a5cc2; } .step-mark { fill: #b0500a; }
@media (prefers-color-scheme: dark) {
  .paper { fill: #161b22; stroke: #333c47; }
  text { fill: #e4e9ef; }
  .quiet { fill: #aeb9c5; }
  .halo { stroke: #161b22; }
  .grid { stroke: #2b333d; }
  .goal, .front { stroke: #aeb9c5; }
  .ring { stroke: #e4e9ef; }
  .leader { stroke: #75828f; }
  .dense { stroke: #aeb9c5; } .local { stroke: #79b8ff; } .step { stroke: #ffab70; }
  .dense-mark { fill: #aeb9c5; } .local-mark { fill: #79b8ff; } .step-mark { fill: #ffab70; }
}
"""


def page(key: str, title: str, told: str, parts: Iterable[str]) -> str:
    """A whole picture."""
    body = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg" role="img"'
        f' aria-labelledby="{key}-title {key}-told">\n<title id="{key}-title">{escape(title)}</title>\n'
        f'<desc id="{key}-told">{escape(told)}</desc>\n<style>{STYLE}</style>\n'
        f'<defs><clipPath id="{key}-plot"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT}"'
        f' height="{BOTTOM - TOP}"/></clipPath></defs>\n'
        f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6"/>\n'
        f"{text(20, 26, title, 'head')}\n{body}\n</svg>\n"
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Words, with their middle at y."""
    classes = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y + 4:.1f}"{classes} text-anchor="{anchor}">{escape(words)}</text>'


def path(points: Iterable[Point], kind: str, clip: str = "") -> str:
    """A line through pixels."""
    way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    inside = f' clip-path="url(#{clip}-plot)"' if clip else ""
    return f'<polyline class="{kind}" points="{way}"{inside}/>'


def marker(kind: str, x: float, y: float, size: float = 5.0) -> str:
    """A circle, a square or a diamond, by the kind of method."""
    if kind == "local":
        return f'<circle class="local-mark" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>'
    half = size * 0.9 if kind == "dense" else size * 1.25
    corners = (
        [(x - half, y - half), (x + half, y - half), (x + half, y + half), (x - half, y + half)]
        if kind == "dense"
        else [(x, y - half), (x + half, y), (x, y + half), (x - half, y)]
    )
    return f'<polygon class="{kind}-mark" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in corners)}"/>'

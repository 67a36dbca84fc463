"""Loss against bytes and against tokens, as SVG pictures for pages, drawn from the rows of bench/train.py.

    python tools/curves.py [bench/results/train.jsonl] [--out docs/pictures]

Writes curves.svg (bytes) and curves-tokens.svg. Every method by its best learning rate, as far as its whole runs are
there; a method or a seed that is missing is left out. The pictures stand alone: no font, style or script is fetched
from anywhere; words stay words, and they bring their own ground, light or dark as the reader's system is.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from pieces import (
    BOLD,
    BOTTOM,
    HEIGHT,
    LEFT,
    LETTER,
    LINE,
    RIGHT,
    TOP,
    WIDTH,
    Box,
    Point,
    Scale,
    apart,
    marker,
    page,
    path,
    places,
    text,
    ticks,
)  # fmt: skip

from farflung.core.units import format_bytes, format_count

SIDE: Final = 236  # at its right, for names in the picture of tokens
SPREAD, MOST = 1.30, 1.60  # the loss at the top over the best dense run's: at least, and at most
GOALS: Final = (5, 10)  # per cent above the best dense run
SHAPES: Final = ("dense", "local", "step")  # kinds of methods, each with its colour and marker
NAMES: Final = {"dense": "every gradient, whole", "local": "local steps", "step": "every gradient, compressed"}

Row = dict[str, Any]


class Method(NamedTuple):
    """One method by its best rate: what a peer sent at the end, the loss of each seed, and the way there."""

    name: str
    kind: str
    payload: float  # bytes of one peer, all rounds
    losses: tuple[float, ...]
    over_bytes: tuple[Point, ...]  # first seed
    over_tokens: tuple[Point, ...]

    @property
    def loss(self) -> float:
        """The mean over its seeds."""
        return statistics.mean(self.losses)


def methods(rows: Sequence[Row]) -> list[Method]:
    """Every method of a results file that was run to the end, in its order; runs that tuned a rate do not count."""
    most = max(row["budget"] for row in rows)
    whole = [row for row in rows if row["budget"] == most]
    names = dict.fromkeys(row["method"] for row in whole)
    return [_method([row for row in whole if row["method"] == name]) for name in names]


def _method(rows: list[Row]) -> Method:
    first = min(rows, key=lambda row: (row["seed"], row["loss"]))
    same = [row for row in rows if row["rate"] == first["rate"]]
    end = first["steps"], first["payload_bytes"], first["loss"]
    # On the way fewer tokens are judged than at the end: the way is moved by what the two differ where both stand.
    moved = first["loss"] - first["curve"][-1][2]
    curve = [(step, sent, loss + moved) for step, sent, loss in first["curve"][:-1]] + [end]
    tokens = first["tokens"] / first["steps"]
    return Method(
        first["method"],
        _kind(first),
        float(first["payload_bytes"]),
        tuple(float(row["loss"]) for row in same),
        tuple((float(sent), float(loss)) for _, sent, loss in curve),
        tuple((step * tokens, float(loss)) for step, _, loss in curve),
    )


def _kind(row: Row) -> str:
    if row["payload_bytes"] >= 4 * row["parameters"] * row["steps"]:
        return "dense"
    return "step" if row["rounds"] == row["steps"] else "local"


def front(found: Sequence[Method]) -> list[Method]:
    """Those that no other undercuts in loss at as few bytes, by bytes."""
    best: list[Method] = []
    for one in sorted(found, key=lambda m: (m.payload, m.loss)):
        if not best or one.loss < best[-1].loss:
            best.append(one)
    return best


def dense(found: Sequence[Method]) -> Method | None:
    """The best of the dense runs."""
    return min((m for m in found if m.kind == "dense"), key=lambda m: m.loss, default=None)


# What is drawn


def losses_scale(found: Sequence[Method]) -> Scale:
    """From a little below the least to SPREAD over the best dense run, or as far up as methods end, up to MOST."""
    least = min(min(m.losses) for m in found)
    best = dense(found)
    most = max(max(m.losses) for m in found)
    base = best.loss if best else least
    top = min(max(most + 0.04 * (most - least), base * SPREAD), base * MOST)
    return Scale(least - 0.06 * (top - least), top, BOTTOM, TOP)


def _losses_axis(scale: Scale, right: float) -> Iterable[str]:
    for value in ticks(scale.low, scale.high):
        y = scale(value)
        yield path([(LEFT, y), (right, y)], "grid")
        yield text(LEFT - 8, y, f"{value:.2f}", "quiet", "end")
    yield text(20, TOP - 14, "validation loss, nats a byte", "quiet")


def _goals(found: Sequence[Method], scale: Scale, right: float, kind: str) -> Iterable[str]:
    """The best dense run's loss, and lines above it."""
    best = dense(found)
    if best is None:
        return
    for per_cent in (0, *GOALS):
        y = scale(best.loss * (1 + per_cent / 100))
        if TOP < y < BOTTOM:
            yield path([(LEFT, y), (right, y)], "goal")
            words = f"{best.name}: {best.loss:.3f}" if per_cent == 0 else f"{per_cent} % above it"
            yield text(LEFT + 6, y + (9 if per_cent == 0 else -8), words, f"quiet {kind}".strip())


def _legend(kinds: Iterable[str], is_front: bool) -> Iterable[str]:
    x, y = float(LEFT), HEIGHT - 17.0
    for kind in (kind for kind in SHAPES if kind in kinds):
        yield marker(kind, x + 6, y)
        yield text(x + 17, y, NAMES[kind])
        x += 17 + LETTER * len(NAMES[kind]) + 14
    if is_front:
        yield path([(x, y), (x + 26, y)], "front")
        yield text(x + 32, y, "nothing better at its bytes")


def bytes_picture(found: Sequence[Method], about: str) -> str:
    """Loss against what one peer sent."""
    right = float(WIDTH - RIGHT)
    least, most = (pick(m.payload for m in found) for pick in (min, max))
    across = Scale(least / 1.7, most * 1.7, LEFT, right, is_log=True)
    up = losses_scale(found)
    best = front(found)
    parts = [*_losses_axis(up, right), *_goals(found, up, right, "halo")]
    for power in range(math.ceil(math.log10(across.low)), math.floor(math.log10(across.high)) + 1):
        x = across(10.0**power)
        parts += [
            path([(x, TOP), (x, BOTTOM)], "grid"),
            text(x, BOTTOM + 13, format_bytes(10.0**power), "quiet", "middle"),
        ]
    parts.append(text(right, BOTTOM + 30, "sent by one peer in the whole training, one way", "quiet", "end"))
    for m in found:
        way = [(across(sent), up(loss)) for sent, loss in m.over_bytes if sent]
        parts.append(path(way, f"line {m.kind}", "bytes"))
    steps = [(across(m.payload), up(m.loss)) for m in best]
    parts.append(path(steps, "front"))
    spots = [(across(m.payload), _inside(up(m.loss))) for m in found]
    bars = [Box(x - 3, up(max(m.losses)), x + 3, up(min(m.losses))) for (x, _), m in zip(spots, found, strict=True)]
    for (x, y), m in zip(spots, found, strict=True):
        parts.append(path([(x, up(min(m.losses))), (x, up(max(m.losses)))], f"seeds {m.kind}", "bytes"))
        parts.append(marker(m.kind, x, y))
        if m in best:
            parts.append(f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="9"/>')
    names = [m.name if m.loss <= up.high else f"{m.name}: {m.loss:.2f}, beyond the top" for m in found]
    widths = [(BOLD if m in best else LETTER) * len(name) for m, name in zip(found, names, strict=True)]
    named = places(spots, widths, [*bars, *_goal_boxes(found, up), *_along(steps)])
    for spot, box, name, m in zip(spots, named, names, found, strict=True):
        parts += _named(name, spot, box, m in best)
    parts += _legend({m.kind for m in found}, True)
    return page("bytes", "Loss against what one peer sends", about + _told(found), parts)


def _goal_boxes(found: Sequence[Method], scale: Scale) -> list[Box]:
    """Where the words of the goals stand."""
    best = dense(found)
    if best is None:
        return []
    words = [(0, f"{best.name}: 0.000", 9), *((p, f"{p} % above it", -8) for p in GOALS)]
    ys = [(scale(best.loss * (1 + p / 100)) + off, LETTER * len(said)) for p, said, off in words]
    return [Box(LEFT + 4, y - LINE / 2, LEFT + 8 + wide, y + LINE / 2) for y, wide in ys]


def _along(points: Sequence[Point]) -> Iterable[Box]:
    """Small boxes on a line, so that names keep off it."""
    for (x, y), (u, v) in pairwise(points):
        for i in range(pieces := 1 + int(math.dist((x, y), (u, v)) / 8)):
            a, b = x + (u - x) * i / pieces, y + (v - y) * i / pieces
            yield Box(a - 3, b - 3, a + 3, b + 3)


def _inside(y: float) -> float:
    """What ends beyond the top is marked at it."""
    return max(y, TOP + 7.0)


def _named(name: str, spot: Point, box: Box, is_best: bool) -> Iterable[str]:
    """A name in its box, joined to its marker where it stands off."""
    x, middle = min(max(spot[0], box.left), box.right), (box.top + box.bottom) / 2
    if math.dist(spot, (x, middle)) > 22:
        yield path([spot, (x, middle)], "leader")
    anchor = "start" if x == box.left else "end" if x == box.right else "middle"
    at = x if anchor != "middle" else (box.left + box.right) / 2
    yield text(at, middle, name, "halo on-front" if is_best else "halo", anchor)


def tokens_picture(found: Sequence[Method], about: str) -> str:
    """Loss against tokens trained, by all peers together."""
    right = float(WIDTH - SIDE)
    across = Scale(0.0, max(m.over_tokens[-1][0] for m in found), LEFT, right)
    up = losses_scale(found)
    parts = [*_losses_axis(up, right), *_goals(found, up, right, "halo")]
    parts += [
        text(across(value), BOTTOM + 13, format_count(value), "quiet", "middle")
        for value in ticks(across.low, across.high)
    ]
    parts.append(text(right, BOTTOM + 30, "tokens trained, all peers together", "quiet", "end"))
    ends = [(across(m.over_tokens[-1][0]), _inside(up(m.loss))) for m in found]
    heights = apart([y for _, y in ends], LINE, TOP + 4, BOTTOM - 4)
    for m, (x, y), at in zip(found, ends, heights, strict=True):
        way = [(across(tokens), up(loss)) for tokens, loss in m.over_tokens[:-1]]
        parts.append(path([*way, (x, up(m.loss))], f"strong {m.kind}", "tokens"))
        parts += [path([(x + 6, y), (x + 24, at)], "leader"), marker(m.kind, x, y, 4)]
        parts.append(text(x + 28, at, f"{m.name}: {m.loss:.3f}"))
    parts += _legend({m.kind for m in found}, False)
    return page("tokens", "Loss as training goes on", about + _told(found), parts)


def _told(found: Sequence[Method]) -> str:
    """The figures in words, for those who cannot see them."""
    return " ".join(f"{m.name}: {m.loss:.3f} nats at {format_bytes(m.payload)}." for m in found)


def about(rows: Sequence[Row]) -> str:
    """Under which conditions, in a sentence."""
    row = max(rows, key=lambda row: int(row["budget"]))
    seeds = len({row["seed"] for row in rows})
    return (
        f"A model of {format_count(row['parameters'])} parameters, {row['peers']} peers, {format_count(row['tokens'])}"
        f" tokens, up to {seeds} seeds, the best learning rate of each method's grid; lines show the first seed on the"
        " way, marks the mean at the end, bars the seeds. "
    )


def main() -> None:
    """Reads the arguments and writes the pictures."""
    parser = argparse.ArgumentParser(description="Loss against bytes and tokens as SVG.")
    parser.add_argument("rows", type=Path, nargs="?", default=Path("bench/results/train.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="the folder of the pictures")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.rows.read_text(encoding="utf-8").splitlines() if line]
    found = methods(rows)
    pictures: dict[str, Callable[[Sequence[Method], str], str]] = {
        "curves.svg": bytes_picture,
        "curves-tokens.svg": tokens_picture,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    for name, draw in pictures.items():
        (given.out / name).write_text(draw(found, about(rows)), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Reproduces the source article's figures for Llama3-70B on C4, each with its error and the right figure (P1).

The article (Asterfusion, on networks for parallel training) assumes 8 cards: P parameters, L layers of width H, T
tokens an epoch in N steps. Its formulas, as its own table follows from them; `ring` gives what a ring moves, all
cards together:

                     article                                        ring
    data             2 N P G (G - 1)                                2 (G - 1) 2 P N
    sharded          2 N P (G - 1), forward and backward            the same forward; twice that backward
    tensor           4 N P L (G - 1) backward, 4 L T H (G - 1) G    2 x 2 (G - 1) x 2 T H L each way
    pipeline         2 T H (G - 1) each way                         the same
    3-D              backward 2 N P Gd (2 L (Gt - 1)/Gp + Gd - 1) + 2 T H (Gp - 1),
                     forward 2 T H (2 L Gt (Gt - 1) + Gp - 1)       the sum of its groups' rings
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from farflung.advice.traffic import input_checks
from farflung.advice.traffic.collectives import RankSpan, all_gather, all_reduce, reduce_scatter
from farflung.advice.traffic.traffic_terms import told

PARAMETERS: Final = 70e9
LAYERS: Final = 80
WIDTH: Final = 8192
CARDS: Final = 8
TOKENS: Final = 156e9
SAMPLES: Final = 364.6e6
BATCH: Final = 2048
STEPS: Final = SAMPLES / BATCH  # 178,027; printed as 178,000
ELEMENT: Final = 2
MESH: Final = (8, 8, 16)  # tensor, pipeline, data: 1,024 cards
SWITCH: Final = 51.2e12  # bit/s
SLIP: Final = 1e6 / (1 << 20)  # one row of its table was divided by MiB, the others by 10^6
DAY: Final = 86_400.0
_PETA: Final = 1e15
_EXA: Final = 1e18


class FormulaMode(StrEnum):
    """Whose formulas."""

    RING = "ring"
    ARTICLE = "article"


class ArticleFigure(msgspec.Struct, frozen=True):
    """One figure of the article. `value` in `unit`, of the mode that was asked for; `printed` as the article has it."""

    name: str
    value: float
    unit: str
    printed: float
    formula: str
    note: str


_NAIVE: Final = "a naive exchange, each card sends its whole gradient to G - 1 others: a ring moves a G/2-th of that"
_NOTES: Final = {
    "data parallel, backward": _NAIVE,
    "fully sharded, forward": "right",
    "fully sharded, backward": (
        "parameters are gathered again and gradients reduced: twice as much. So sharding is 1.5 times a ring of data"
        " parallel, not 1/G of it: the article compares a ring with a naive exchange"
    ),
    "tensor parallel, backward": (
        "backward sums gradients of activations, never of weights, and L counts P twice; and the row was divided by"
        " 2^20 where others were by 10^6 (27,915 x 0.9537 = 26,622)"
    ),
    "tensor parallel, forward": "a naive exchange again, and the same slip (22,901 x 0.9537 = 21,840)",
    "pipeline, forward": "right, where one card of a stage sends",
    "pipeline, backward": "right, where one card of a stage sends",
    "3-D on 1,024 cards": (
        "naive exchanges, and weights where activations are summed. Of the ring's bytes tensor parallelism's stay"
        " inside nodes of 8: 0.78 EB leave them"
    ),
    "days on one switch of 51.2 Tbit/s": (
        "bits were read as bytes: its own 85 EB take 153.7 days. And only what leaves nodes passes the switch"
    ),
    "switches for 100 epochs in 100 days": (
        "the same factor of 8: 154 by its own figures. And nobody trains 100 epochs of this"
    ),
}


def figures(mode: FormulaMode | str = FormulaMode.RING) -> tuple[ArticleFigure, ...]:
    """All of the article's figures by its formulas, or by a ring's. Raises UsageError FF-PLAN-026."""
    return _article() if input_checks.word("mode", mode, FormulaMode) is FormulaMode.ARTICLE else _ring()


def _figure(name: str, value: float, unit: str, printed: float, formula: str) -> ArticleFigure:
    return ArticleFigure(name, value, unit, printed, formula, _NOTES[name])


def _article() -> tuple[ArticleFigure, ...]:
    others, n = CARDS - 1, STEPS
    tensor, pipeline, data = MESH
    data_bytes = 2 * n * PARAMETERS * CARDS * others
    sharded = 2 * n * PARAMETERS * others
    backward = 4 * n * PARAMETERS * LAYERS * others
    forward = 4 * LAYERS * TOKENS * WIDTH * others * CARDS
    handed = 2 * TOKENS * WIDTH * others
    mixed = 2 * n * PARAMETERS * data * (2 * LAYERS * (tensor - 1) / pipeline + data - 1)
    mixed += 2 * TOKENS * WIDTH * (pipeline - 1)
    mixed += 2 * TOKENS * WIDTH * (2 * LAYERS * tensor * (tensor - 1) + pipeline - 1)
    # Its 20 days are 85 EB over 51.2 TB/s.
    days = mixed / SWITCH / DAY
    return (
        _figure("data parallel, backward", data_bytes / _PETA, "PB", 1396.0, "2 N P G (G - 1)"),
        _figure("fully sharded, forward", sharded / _PETA, "PB", 175.0, "2 N P (G - 1)"),
        _figure("fully sharded, backward", sharded / _PETA, "PB", 175.0, "2 N P (G - 1)"),
        _figure("tensor parallel, backward", backward / _PETA * SLIP, "PB", 26622.0, "4 N P L (G - 1)"),
        _figure("tensor parallel, forward", forward / _PETA * SLIP, "PB", 21840.0, "4 L T H (G - 1) G"),
        _figure("pipeline, forward", handed / _PETA, "PB", 17.9, "2 T H (G - 1)"),
        _figure("pipeline, backward", handed / _PETA, "PB", 17.9, "2 T H (G - 1)"),
        _figure("3-D on 1,024 cards", mixed / _EXA, "EB", 85.0, "see the head of this module"),
        _figure("days on one switch of 51.2 Tbit/s", days, "days", 20.0, f"{told(mixed)} / 51.2e12 a second"),
        _figure("switches for 100 epochs in 100 days", days, "", 20.0, "100 epochs x days / 100 days"),
    )


def _ring() -> tuple[ArticleFigure, ...]:
    size, group = ELEMENT * PARAMETERS, RankSpan(CARDS)
    gathered = all_gather(group, size).total * STEPS
    reduced = reduce_scatter(group, size).total * STEPS
    summed = 2 * LAYERS * all_reduce(group, ELEMENT * TOKENS * WIDTH).total
    handed = ELEMENT * TOKENS * WIDTH * (CARDS - 1)
    whole, leaving = mixed()
    days = 8 * leaving / SWITCH / DAY
    data = all_reduce(group, size).total * STEPS
    twice = "2 L x 2 (G - 1) x 2 T H"
    return (
        _figure("data parallel, backward", data / _PETA, "PB", 1396.0, "2 (G - 1) x 2 P x N"),
        _figure("fully sharded, forward", gathered / _PETA, "PB", 175.0, "(G - 1) x 2 P x N"),
        _figure("fully sharded, backward", (gathered + reduced) / _PETA, "PB", 175.0, "2 (G - 1) x 2 P x N"),
        _figure("tensor parallel, backward", summed / _PETA, "PB", 26622.0, twice),
        _figure("tensor parallel, forward", summed / _PETA, "PB", 21840.0, twice),
        _figure("pipeline, forward", handed / _PETA, "PB", 17.9, "(G - 1) x 2 T H"),
        _figure("pipeline, backward", handed / _PETA, "PB", 17.9, "(G - 1) x 2 T H"),
        _figure("3-D on 1,024 cards", whole / _EXA, "EB", 85.0, "all rings, and activations over each cut"),
        _figure("days on one switch of 51.2 Tbit/s", days, "days", 20.0, f"8 x {told(leaving)} / 51.2e12"),
        _figure("switches for 100 epochs in 100 days", days, "", 20.0, "100 epochs x days / 100 days"),
    )


def mixed() -> tuple[float, float]:
    """Bytes of an epoch on 8 x 8 x 16 cards by rings: all, and what leaves nodes of 8."""
    tensor, pipeline, data = MESH
    inside = 2 * 2 * LAYERS * all_reduce(RankSpan(tensor), ELEMENT * TOKENS * WIDTH).total
    # Each of the 64 slices of the model is summed by 16 cards; each token crosses each cut twice.
    gradients = all_reduce(RankSpan(data), ELEMENT * PARAMETERS).total * STEPS
    handed = 2 * (pipeline - 1) * ELEMENT * TOKENS * WIDTH
    return inside + gradients + handed, gradients + handed


def unslipped() -> float:
    """Days that the article's own 85 EB take on its switch when bits are read as bits: 153.7."""
    return 8 * 85e18 / SWITCH / DAY

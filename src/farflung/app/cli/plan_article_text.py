"""Formats the output of `farflung plan --article`.

It shows the source article's traffic figures beside a ring all-reduce's, and what is wrong with them (P1).
"""

from __future__ import annotations

from textwrap import wrap
from typing import Any, Final

import msgspec

from farflung.advice.traffic import article_figures
from farflung.advice.traffic.article_figures import ArticleFigure, FormulaMode
from farflung.app.cli.plan_offers_text import columns
from farflung.core.units import format_multiple

HEAD: Final = "Llama3-70B on C4: 8 cards, and 1,024 in a mesh of 8 x 8 x 16; bytes of an epoch, all cards together"
NOTE: Final = 3  # columns that a note stands further in
FIGURE: Final = 36


def lines(*, as_json: bool) -> list[str]:
    """Each figure by the article's formulas and by a ring's, then what is wrong with the first; or one object."""
    pairs = list(
        zip(article_figures.figures(FormulaMode.ARTICLE), article_figures.figures(FormulaMode.RING), strict=True)
    )
    if as_json:
        return [msgspec.json.encode({"figures": [_fact(*pair) for pair in pairs]}).decode()]
    width = columns()
    rows = [*wrap(HEAD, width), "", f"{'':<{FIGURE}}{'article':>8} {'a ring':>8}"]
    for own, ring in pairs:
        rows.append(f"{own.name:<{FIGURE}}{_number(own.printed):>8} {_number(ring.value):>8} {own.unit}".rstrip())
        rows += [" " * NOTE + row for row in wrap(own.note, width - NOTE)]
    told = (
        f"Its own 85 EB take {article_figures.unslipped():.1f} days on its switch when bits are bits."
        " `farflung plan` assumes rings; docs/plan/traffic.md has the formulas"
    )
    return [*rows, "", *wrap(told, width)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else format_multiple(value)


def _fact(own: ArticleFigure, ring: ArticleFigure) -> dict[str, Any]:
    return {
        "name": own.name,
        "unit": own.unit,
        "printed": own.printed,
        "article": own.value,
        "article_formula": own.formula,
        "ring": ring.value,
        "ring_formula": ring.formula,
        "note": own.note,
    }

"""What the nodes of a run say they run, as a table: their word, and not a proof of work (core.attestations)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from farflung.core.attestations import NOT_A_PROOF
from farflung.watch.rows import LABEL, Row, Span, Style, block, cut, plain
from farflung.watch.words import SHORT, clean, columns_of, many

# Heads, and the columns that each may take: 71 and the label are a narrow screen.
HEADS: Final = ("node", "image", "python", "torch", "machine", "sandbox")
WIDTHS: Final = (SHORT, SHORT, 7, 13, 14, 11)
BETWEEN: Final = "  "


class Stated(msgspec.Struct, frozen=True):
    """One node's attestation as a run's folder keeps it (app.attested)."""

    hash: str
    job: str
    node: str
    image: str
    python: str
    torch: str
    system: str
    machine: str
    threads: int
    sandbox: str
    label: str = NOT_A_PROOF


def node_rows(stated: Sequence[Stated], columns: int) -> list[Row]:
    """One row a node, under the label; nothing that a node says moves a cursor or widens a column."""
    images = len({each.image for each in stated})
    counts = f"{many(len(stated), 'node')}, {many(images, 'image')}"
    head = [plain(counts), plain("what each says that it runs:"), Span(NOT_A_PROOF, Style.CARE)]
    rows = block("Nodes", head, columns)
    rows.append(_row(HEADS, columns, Style.QUIET))
    return [*rows, *(_row(_cells(each), columns, Style.PLAIN) for each in stated)]


def _cells(said: Stated) -> tuple[str, ...]:
    machine = f"{said.system} {said.machine}"
    return said.node[:SHORT], said.image[:SHORT], said.python, said.torch, machine, said.sandbox or "not said"


def _row(cells: Sequence[str], columns: int, style: Style) -> Row:
    padded = [
        text + " " * (width - columns_of(text))
        for text, width in ((clean(cell, width), width) for cell, width in zip(cells, WIDTHS, strict=True))
    ]
    return Row(cut((plain(" " * LABEL), Span(BETWEEN.join(padded).rstrip(), style)), columns))

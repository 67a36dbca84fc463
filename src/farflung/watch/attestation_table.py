"""Renders the software that nodes claim to run as a table: a claim, not a proof of work (core.attestations)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from farflung.core.attestations import NOT_A_PROOF
from farflung.watch.phrases import SHORT, clean, columns_of, many
from farflung.watch.row_layout import LABEL, ScreenRow, SpanStyle, TextSpan, block, cut, plain

# Heads, and the columns that each may take: 71 and the label are a narrow screen.
HEADS: Final = ("node", "image", "python", "torch", "machine", "sandbox")
WIDTHS: Final = (SHORT, SHORT, 7, 13, 14, 11)
BETWEEN: Final = "  "


class AttestationRecord(msgspec.Struct, frozen=True):
    """One node's attestation as a run's folder keeps it (peers.rundir.attestations)."""

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


def node_rows(nodes: Sequence[AttestationRecord], columns: int) -> list[ScreenRow]:
    """One row a node, under the label; nothing that a node says moves a cursor or widens a column."""
    images = len({each.image for each in nodes})
    counts = f"{many(len(nodes), 'node')}, {many(images, 'image')}"
    head = [plain(counts), plain("what each says that it runs:"), TextSpan(NOT_A_PROOF, SpanStyle.CARE)]
    rows = block("Nodes", head, columns)
    rows.append(_row(HEADS, columns, SpanStyle.QUIET))
    return [*rows, *(_row(_cells(each), columns, SpanStyle.PLAIN) for each in nodes)]


def _cells(attestation: AttestationRecord) -> tuple[str, ...]:
    machine = f"{attestation.system} {attestation.machine}"
    return (
        attestation.node[:SHORT],
        attestation.image[:SHORT],
        attestation.python,
        attestation.torch,
        machine,
        attestation.sandbox or "not said",
    )


def _row(cells: Sequence[str], columns: int, style: SpanStyle) -> ScreenRow:
    padded = [
        text + " " * (width - columns_of(text))
        for text, width in ((clean(cell, width), width) for cell, width in zip(cells, WIDTHS, strict=True))
    ]
    return ScreenRow(cut((plain(" " * LABEL), TextSpan(BETWEEN.join(padded).rstrip(), style)), columns))

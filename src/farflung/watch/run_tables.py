"""Exports a run as tables for computation: rounds, audits and payments, as columns of equal length.

Like screens and reports, a table is a rendering of the timeline alone, by the numbers of watch.report_series. Rounds
count from 0, as in the run's log.
"""

from __future__ import annotations

import html
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from farflung.watch import phrases, report_series
from farflung.watch.fold import RunTimeline

SHOWN_ROWS: Final = 24  # a longer table shows its first and last rows
SHOWN_CHARACTERS: Final = 24
GAP: Final = "…"
_KEY: Final = re.compile("[0-9a-f]{64}")  # a public key or a hash: its first characters are shown

ROUNDS: Final[Mapping[str, str]] = {
    "round": "from 0",
    "tokens": "trained and accepted so far",
    "seconds": "s since the first round was opened",
    "round_seconds": "s, this round alone",
    "loss": "nats per token, mean over the members' training batches",
    "heldout_loss": "nats per token after this round; NaN where it was not measured",
    "sync_bytes": "B of sync traffic so far, by all together",
    "sent_bytes": "B sent so far for everything, counted at the sockets",
    "peers": "accepted contributions",
    "waited_for": "public key of the member that came last",
    "root": "Merkle root of the public state, hex",
}
AUDITS: Final[Mapping[str, str]] = {
    "round": "from 0",
    "peer": "public key of whose work it was",
    "segment": "part of the round's steps that was repeated, from 0",
    "finding": "holds, unpaid, false or withheld; open: there is no verdict",
    "excess": "distance from honest work, in tolerances; at most 1 holds",
    "verifiers": "public keys of who repeated it",
    "flagged": "the suspicion that chose it; empty: the draw did",
    "tokens": "trained again",
    "seconds": "s from the draw to the finding",
    "slashed": "pico-credits that the peer lost by it",
}
PAYMENTS: Final[Mapping[str, str]] = {
    "peer": "public key",
    "name": "of the local process",
    "units": "tokens that were accepted, or repeated in audits",
    "paid": "pico-credits",
    "slashed": "pico-credits of stake lost",
}


class RunTable(dict[str, list[Any]]):
    """Columns by name, all of one length: `pandas.DataFrame(table)` takes it as it is. `units` explains each column."""

    def __init__(self, columns: Mapping[str, Sequence[Any]], units: Mapping[str, str]) -> None:
        super().__init__({name: list(values) for name, values in columns.items()})
        if len({len(values) for values in self.values()}) > 1:
            raise ValueError(f"columns of different lengths: { {n: len(v) for n, v in self.items()} }")
        self.units = dict(units)

    @property
    def height(self) -> int:
        """How many rows there are; `len` counts columns, as it does for every dictionary."""
        return len(next(iter(self.values()), []))

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows in order, as dictionaries."""
        return (dict(zip(self, row, strict=True)) for row in zip(*self.values(), strict=True))

    def __repr__(self) -> str:
        body = [list(self), *self._shown()]
        widths = [max(len(row[i]) for row in body) for i in range(len(self))]
        lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in body]
        return "\n".join([*lines, f"{self.height} rows; `.units` says what each column holds"])

    def _repr_html_(self) -> str:
        """For notebooks: the same rows; a column's unit appears when one points at its name."""
        head = "".join(
            f'<th title="{html.escape(self.units.get(name, ""), quote=True)}">{html.escape(name)}</th>' for name in self
        )
        body = "".join(
            "<tr>" + "".join(f'<td style="text-align:right">{html.escape(cell)}</td>' for cell in row) + "</tr>"
            for row in self._shown()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{self.height} rows</p>"

    def _shown(self) -> list[list[str]]:
        rows = [[_cell(value) for value in row] for row in zip(*self.values(), strict=True)]
        if len(rows) <= SHOWN_ROWS:
            return rows
        half = SHOWN_ROWS // 2
        return [*rows[:half], [GAP] * len(self), *rows[-half:]]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.3f}" if abs(value) < 1000 else f"{value:.1f}"
    if isinstance(value, tuple):
        return " ".join(_cell(part) for part in value)
    text = str(value)
    return phrases.peer(text) if _KEY.fullmatch(text) else phrases.clean(text, SHOWN_CHARACTERS)


def rounds(timeline: RunTimeline) -> RunTable:
    """One row for each closed round (ROUNDS)."""
    curve = report_series.losses(timeline)
    held = {point.round: point.loss for point in curve.held_out}
    closed = [timeline.rounds[point.round] for point in curve.train]
    return RunTable(
        {
            "round": [point.round for point in curve.train],
            "tokens": [point.tokens for point in curve.train],
            "seconds": [point.seconds for point in curve.train],
            "round_seconds": [r.seconds for r in closed],
            "loss": [point.loss for point in curve.train],
            "heldout_loss": [held.get(point.round + 1, math.nan) for point in curve.train],
            "sync_bytes": [r.sync_bytes for r in closed],
            "sent_bytes": [point.sent for point in curve.train],
            "peers": [r.peers for r in closed],
            "waited_for": [r.waited_for for r in closed],
            "root": [r.root for r in closed],
        },
        ROUNDS,
    )


def audits(timeline: RunTimeline) -> RunTable:
    """One row for each segment that was drawn (AUDITS), in the order of rounds."""
    rows = report_series.audits(timeline).rows
    caught = {(c.round, c.peer, c.segment): c.slashed for c in timeline.caught.values()}
    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in AUDITS if name != "slashed"}
    lost = [caught.get((row.round, row.peer, row.segment), 0) for row in rows]
    return RunTable({**columns, "slashed": lost}, AUDITS)


def payments(timeline: RunTimeline) -> RunTable:
    """One row for each lease that the ledger paid, or whose holder lost its stake (PAYMENTS)."""
    names = report_series.names(timeline)
    slashed: Counter[str] = Counter()
    for each in report_series.money(timeline).slashes:
        slashed[each.peer] += each.slashed
    peers = [*timeline.settled, *(peer for peer in slashed if peer not in timeline.settled)]
    peers.sort(key=lambda peer: (names.get(peer, ""), peer))
    settled = [timeline.settled.get(peer) for peer in peers]
    return RunTable(
        {
            "peer": peers,
            "name": [names.get(peer, "") for peer in peers],
            "units": [0 if one is None else one.units for one in settled],
            "paid": [0 if one is None else one.paid for one in settled],
            "slashed": [slashed[peer] for peer in peers],
        },
        PAYMENTS,
    )

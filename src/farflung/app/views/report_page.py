"""Renders `report.html`: a run as one self-contained page to read, print and share.

It holds no script and asks for nothing; it names neither paths nor addresses. The same events give the same bytes.
"""

from __future__ import annotations

import datetime
import errno
import functools
import os
import secrets
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from farflung.app.views import loss_charts, member_charts, money_charts, report_text
from farflung.app.views.svg import Chart
from farflung.core import events
from farflung.core.errors import RunError
from farflung.core.io import extras
from farflung.core.money import format_credits
from farflung.core.units import format_bytes, format_count, format_rate, format_seconds
from farflung.job import text_files
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.journal import EventEmitter, read_timeline
from farflung.plan.plan_comparison import HIGH, LOW
from farflung.watch import canary_text, job_class_text, plan_vs_run_text, report_series
from farflung.watch.fold import RunTimeline
from farflung.watch.peer_paths import path_summary
from farflung.watch.phrases import anchor, less_than, loss_text
from farflung.watch.redaction import redact
from farflung.watch.report_series import (
    AuditGrid,
    AuditRow,
    LossCurves,
    MemberRow,
    MemberTimeShare,
    PlannedVsMeasuredRow,
)

if TYPE_CHECKING:
    import jinja2

FILE: Final = "report.html"
SECTIONS: Final = ("Plan", "Network", "Train", "Verify", "Settle", "Result")
YEAR_9999: Final = 253_370_764_800  # seconds since the epoch: dates end with that year
ROWS: Final = 2000  # of one table; of a longer one the page shows the last, or what is contested
_HERE: Final = Path(__file__).parent


class RunStatus(Struct, frozen=True):
    """How a run stands: a word, a sign that differs in shape, and what the word means."""

    word: str
    sign: str
    tone: str
    means: str


class KeyFigure(Struct, frozen=True):
    """One key figure."""

    name: str
    value: str
    note: str
    tone: str = ""


FINISHED: Final = RunStatus("finished", "●", "good", "All rounds are done, and the work that passed is paid.")
STOPPED: Final = RunStatus(
    "stopped", "■", "warn", "A person ended it: the open round was finished, and the work that passed is paid."
)
FAILED: Final = RunStatus("failed", "▲", "bad", "It ended in an error.")
RUNNING: Final = RunStatus("still running", "◌", "info", "This page shows how far it was when it was written.")
INTERRUPTED: Final = RunStatus(
    "interrupted", "◆", "warn", "No process works on it; what was logged stays, and it can go on."
)


def state_of(t: RunTimeline, *, is_owned: bool) -> RunStatus:
    """Where the run stands, from its events and from whether a process works on it."""
    if t.result is not None:
        planned = t.plan.rounds if t.plan is not None else t.result.rounds
        return FINISHED if t.result.rounds >= planned else STOPPED
    if t.failed is not None:
        return FAILED
    return RUNNING if is_owned else INTERRUPTED


def write(folder: RunFolder, out: Path | None = None, *, is_over: bool = False) -> Path:
    """Writes the report of a run, finished or not; raises RunError FF-APP-155 where it cannot be written.

    `is_over`: nobody works on the run any more, whoever still holds its lock.
    """
    path = out if out is not None else folder.root / FILE
    created = folder.read_identity().created
    text = render(read_timeline(folder), folder.name, created, is_owned=not is_over and folder.owner() is not None)
    try:
        replace(path, text.encode())
    except OSError as error:
        raise RunError(
            "FF-APP-155",
            "the report cannot be written",
            cause=error.strerror or str(error),
            hint=f"farflung report {shlex.quote(folder.name)} --out report.html",
        ) from error
    return path


def keep(folder: RunFolder, journal: EventEmitter) -> None:
    """Writes the report at the end of a run; what goes wrong there is told, and does the run no harm."""
    try:
        write(folder, is_over=True)
    except Exception as error:  # the boundary: a view of a run is never a reason for the run to fail
        missing = extras.not_installed(error.name or "") if isinstance(error, ModuleNotFoundError) else None
        said = f"the report was not written: {missing.message if missing is not None else error}"
        hint = f"farflung report {shlex.quote(folder.name)}"
        if missing is not None:
            hint = f"{missing.hint}, then {hint}"
        journal.emit(events.WarningEvent(code="FF-APP-156", message=said, hint=hint))


def replace(path: Path, data: bytes) -> None:
    """Whoever reads sees the old page or the new one. It can always be made again, so it need not outlive a crash.

    The folder may be a stranger's: what lies there under the new file's name is neither followed nor written to.
    """
    beside, handle = _beside(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def try_beside(path: Path) -> None:
    """Raises the OSError with which `replace` would begin; leaves nothing."""
    beside, handle = _beside(path)
    os.close(handle)
    beside.unlink(missing_ok=True)


def _beside(path: Path) -> tuple[Path, int]:
    """A new file in the same folder, open for writing."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "there is something that is no ordinary file")
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    return beside, os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)


def render(t: RunTimeline, name: str, created: float, *, is_owned: bool) -> str:
    """The page. `created`: seconds since the epoch, shown in UTC so that it says the same everywhere."""
    page = environment().get_template("report.html.j2")
    return page.render(facts(t, name, created, is_owned=is_owned))


def facts(t: RunTimeline, name: str, created: float, *, is_owned: bool) -> dict[str, Any]:
    """All that the page shows."""
    names = report_series.names(t)
    curves, sent, found = report_series.losses(t), report_series.sent(t), report_series.audits(t)
    strips = report_series.member_rows(t)
    rows = report_series.time_shares(strips)
    order = loss_charts.in_order((row.peer for row in rows), names)
    money = report_series.money(t)
    paid = loss_charts.in_order((pay.peer for pay in money.pays), names)
    # A date beyond the calendar is no date of a run.
    when = datetime.datetime.fromtimestamp(created if 0 <= created < YEAR_9999 else 0, datetime.UTC)
    seconds = t.result.seconds if t.result is not None else t.at
    return {
        "t": t,
        "name": redact(name, 120),
        "run": shlex.quote(redact(name, 120)),
        "state": state_of(t, is_owned=is_owned),
        "when": f"{when:%-d %B %Y, %H:%M} UTC",
        "when_iso": f"{when:%Y-%m-%dT%H:%M:%SZ}",
        "seconds": seconds,
        "basis": plan_vs_run_text.basis(t),
        "version": t.began.version if t.began is not None else "",
        "short": report_text.short(t, curves, sent, found),
        "tiles": tiles(t),
        "against": less_than(sent.ring, sent.total),
        "per_provider": report_text.per_provider(t),
        "buys": anchor(t.matched.unit_price if t.matched is not None else 0),
        "work": job_class_text.fact(t),
        "names": names,
        "curves": curves,
        "sent": sent,
        "strips": charts_rounds(strips),
        "shares": tuple(sorted(rows, key=lambda row: order.index(row.peer))),
        "waiting": _waiting(t, rows, names) if rows else "",
        "audits": found,
        "stories": report_text.stories(t, names),
        "money": money,
        "pays": sorted(money.pays, key=lambda pay: paid.index(pay.peer)),
        "planned": report_series.planned(t),
        "members": members(t),
        "marks": report_series.departures(t),
        "meetings": path_summary(t),
        "charts": _charts(t, names, curves, found, strips),
        "rows": ROWS,
        "listed": listed(found.rows),
        "low": LOW,
        "high": HIGH,
        "kinds": loss_charts.KINDS,
        "sections": SECTIONS,
        "parts": report_series.PARTS,
        "grid_rounds": member_charts.GRID_ROUNDS,
        "css": (_HERE / "report.css").read_text(),
    }


def _waiting(t: RunTimeline, rows: tuple[MemberTimeShare, ...], names: dict[str, str]) -> str:
    return report_text.waiting(report_series.slowest(rows), rows, names, report_series.between_rounds(t))


def charts_rounds(strips: tuple[MemberRow, ...]) -> list[MemberRow]:
    """The strips that the lane chart shows, for the table beside it."""
    return member_charts.last_rounds(strips, member_charts.ROUNDS_WIDE)[-ROWS:]


def listed(rows: tuple[AuditRow, ...]) -> list[AuditRow]:
    """The audits in the table: all, or of too many first those that do not hold, then the last ones."""
    kept = sorted(range(len(rows)), key=lambda i: (rows[i].finding == report_series.HOLDS, -i))[:ROWS]
    return [rows[i] for i in sorted(kept)]


def members(t: RunTimeline) -> tuple[str, ...]:
    """Everybody who was hired, joined or was opened a round for."""
    hired = t.matched.peers if t.matched is not None else ()
    opened = {peer for opening in t.openings.values() for peer in opening.peers}
    return tuple(loss_charts.in_order({*hired, *t.joined, *opened}, report_series.names(t)))


def _charts(
    t: RunTimeline, names: dict[str, str], curves: LossCurves, found: AuditGrid, strips: tuple[MemberRow, ...]
) -> dict[str, Chart]:
    """The charts for which there are numbers."""
    marks, sent, money, rows = (
        report_series.departures(t),
        report_series.sent(t),
        report_series.money(t),
        report_series.planned(t),
    )
    names = {peer: redact(name, 24) for peer, name in names.items()}
    made: dict[str, Chart] = {}
    if curves.train or len(curves.held_out) > 1:
        for axis, over in zip(loss_charts.AXES, ("tokens", "bytes sent", "time"), strict=True):
            said = report_text.loss_described(curves, over)
            made[f"loss-{axis}"] = loss_charts.loss(curves, marks, axis, names, said)
    if sent.total:
        made["sent"] = loss_charts.sent(sent, report_text.sent_described(sent))
    if strips:
        late = report_series.slowest(report_series.time_shares(strips))
        made["lanes"] = member_charts.lanes(strips, names, report_text.lanes_described(strips, late, names))
    if found.rows and found.cells:
        made["audits"] = member_charts.audits(found, names, report_text.audits_described(found))
    if money_charts.flows(money, names):
        made["money"] = money_charts.settlement(money, names, report_text.money_described(money))
    if rows:
        made["plan"] = money_charts.plan(rows, report_text.plan_described(rows))
    return made


def tiles(t: RunTimeline) -> tuple[KeyFigure, ...]:
    """The key figures that there are, each with what it is compared with."""
    return tuple(tile for tile in (_loss(t), _gap(t), _bytes(t), _audited(t), _paid(t), _sum(t)) if tile is not None)


def _loss(t: RunTimeline) -> KeyFigure | None:
    if not t.losses:
        return None
    last = t.losses[max(t.losses)]
    start = t.losses.get(0)
    unit = loss_text(last, t).partition(" ")[2]
    note = f"{unit}; {start:.3f} at the start" if start is not None else unit
    return KeyFigure("Validation loss", f"{last:.3f}", note)


def _gap(t: RunTimeline) -> KeyFigure | None:
    if t.baseline is None or not t.losses:
        return None
    gap = t.losses[max(t.losses)] - t.baseline.loss
    return KeyFigure("Against the baseline", f"{gap:+.3f}", f"a single machine came to {t.baseline.loss:.3f}")


def _bytes(t: RunTimeline) -> KeyFigure | None:
    sent = report_series.sent(t)
    if sent.times is None:
        return None
    note = f"{less_than(sent.ring, sent.total)}; sync traffic alone {format_bytes(sent.agreeing)}"
    return KeyFigure("All traffic", format_bytes(sent.total), note)


def _audited(t: RunTimeline) -> KeyFigure | None:
    found = report_series.audits(t)
    if not found.concluded:
        return None
    caught = len(t.caught)
    note = f"{report_text.many(caught, 'provider')} caught" if caught else "nobody was caught"
    note += f"; {told}" if (told := canary_text.summary(t)) else ""
    return KeyFigure("Segments audited", f"{found.concluded}", note)


def _paid(t: RunTimeline) -> KeyFigure | None:
    money = report_series.money(t)
    if not money.escrow:
        return None
    rest = (
        f"{format_credits(money.refunded)} refunded"
        if money.refunded is not None
        else f"{format_credits(money.held)} still in escrow"
    )
    rest += f", {format_credits(money.burnt)} of the convicted burnt" if money.burnt else ""
    return KeyFigure("Credits paid", format_credits(money.paid), f"of {format_credits(money.escrow)} in escrow; {rest}")


def _sum(t: RunTimeline) -> KeyFigure | None:
    if t.result is None:
        return None
    note = "no money was made or lost" if t.result.sum == 0 else "pico-credits: the ledger is not balanced"
    return KeyFigure("Ledger balance", f"{t.result.sum}", note, "" if t.result.sum == 0 else "bad")


def amount(row: PlannedVsMeasuredRow, value: float) -> str:
    """A planned or measured value with its unit."""
    match row.unit:
        case "B":
            return format_bytes(value)
        case "s":
            return format_seconds(value)
        case "pico-credits":
            return f"{format_credits(round(value))} credits"
    return f"{value:.4g} {redact(row.unit, 20)}".rstrip()


@functools.cache  # what is compiled of its templates is kept
def environment() -> jinja2.Environment:
    """Everything that is shown is escaped; a name that is not there is an error, not an empty place."""
    import jinja2
    from markupsafe import Markup

    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        credits=format_credits,
        bytes=format_bytes,
        rate=format_rate,
        count=format_count,
        secs=format_seconds,
        redact=redact,
        told=text_files.told,
        many=report_text.many,
        excess=report_text.excess,
        drawn=lambda piece: Markup(piece),  # noqa: S704 - made by app.views.svg, which escapes what it writes
    )
    env.globals.update(amount=amount, person=report_text.person, label=loss_charts.label)
    return env

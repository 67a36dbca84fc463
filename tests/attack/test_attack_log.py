"""A stranger's run folder: its event log may say anything, and its files may be anything; every view of it ends.

What is shown is bounded, printable and escaped. Nothing outside the folder is written, and nothing waits for ever.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from farflung.app.cli.main import main
from farflung.app.views import loss_charts, member_charts, money_charts, report_page, svg
from farflung.core import events, limits
from farflung.core.errors import RunError
from farflung.core.events import AnyEvent, SentBytesByKind, to_json
from farflung.peers.rundir import folder
from farflung.peers.rundir.bounded_read import read_file
from farflung.peers.rundir.folder import IDENTITY_BYTES, RunFolder, RunIdentity
from farflung.peers.rundir.journal import read_timeline
from farflung.watch import event_limits, report_series
from farflung.watch.fold import LISTED, RunTimeline, fold
from farflung.watch.io import event_log
from farflung.watch.io.event_log import EventLogReader

PEERS = tuple(f"{i:02x}" * 32 for i in (0x1A, 0x2B, 0x3C, 0x4D))
CREATED = 1_795_270_000.0
LINE = '{"event":"evaluated","at":1.0,"round":%s,"loss":%s,"tokens":%s}\n'
NASTY = "\x1b[31m\u202e</style></title>]]><script>alert(1)</script>{{ 7*7 }}[red]\x00"


def closed(number: int = 0, **said: object) -> AnyEvent:
    return msgspec.structs.replace(
        events.RoundEndEvent(
            at=float(number), round=number, rounds=9, peers=4, loss=2.0, tokens=100, root="ab" * 32,
            waited_for=PEERS[0], seconds=5.0, train_seconds=3.0, sync_bytes=10,
        ),
        **said,
    )  # fmt: skip


def whole(peers: tuple[str, ...] = PEERS, rounds: int = 3, text: str = "words") -> Iterator[AnyEvent]:
    """A run with everything in it that a report draws."""
    yield events.RunStartEvent(run=text, name=text, seed=1, version=text, python=text, torch=text)
    yield events.PlanEvent(
        name=text, run=text, model=text, parameters=9, rounds=rounds, steps=9, peers=4, tokens=9, sync_bytes=9,
        ring_bytes=99, memory_bytes=9, seconds=9.0, price=9, escrow=900, data_bytes=9, sync=text,
    )  # fmt: skip
    for peer in peers[:8]:
        yield events.ProcessStartEvent(role=text, name=f"{text}{peer}", pid=1, peer=peer)
    yield events.EscrowEvent(job=text, escrow=900, stakes=900)
    yield events.ProviderMatchEvent(peers=peers, offers=4, unit_price=1)
    yield events.EvaluationEvent(round=0, loss=5.0, tokens=9)
    for number in range(rounds):
        yield events.RoundStartEvent(at=9.0 * number, round=number, rounds=rounds, peers=peers, waited=0.1)
        for phase in ("train", "reveal", "merge"):
            for place, peer in enumerate(peers):
                yield events.ArrivalEvent(round=number, peer=peer, phase=phase, seconds=0.1 * place)
        yield closed(number, at=9.0 * number + 5, waited_for=peers[0])
        yield events.TrafficEvent(session=1, process=text, sync=9, audit=9, join=9, control=9)
        yield events.EvaluationEvent(round=number + 1, loss=4.0, tokens=9)
    for segment, finding in enumerate(("false", "holds", text)):
        yield events.AuditEndEvent(
            round=1, peer=peers[0], segment=segment, verifiers=peers[:2], finding=finding, excess=5.0,
            tokens=9, seconds=1.0,
        )  # fmt: skip
    yield events.SlashEvent(
        peer=peers[0], round=1, segment=0, why=text, slashed=5, bounty=2, burnt=3, evidence="../../x"
    )
    yield events.ProcessExitEvent(at=20.0, peer=peers[0], reason=text)
    yield events.ProcessRestartEvent(name=text, why=text, seconds=1.0)
    yield events.WarningEvent(code=text, message=text, hint=text)
    yield events.SandboxEvent(tier=text, gaps=(text, text))
    yield events.LeasePaymentEvent(peer=peers[1], units=9, paid=9)
    yield events.PlanComparisonEvent(quantity=text, unit=text, planned=1.0, measured=9.0, most=2.0, cause=text)
    yield events.BaselineEvent(loss=3.0, steps=9, seconds=9.0)


def a_run(root: Path, lines: bytes | None = None, **said: object) -> RunFolder:
    identity = msgspec.structs.replace(RunIdentity(folder.FORMAT, CREATED, "", "/"), **said)
    root.mkdir(parents=True)
    (root / "run.json").write_bytes(msgspec.json.encode(identity))
    if lines is not None:
        (root / "events.jsonl").write_bytes(lines)
    return RunFolder(root)


def packed(said: Iterator[AnyEvent]) -> bytes:
    return "".join(to_json(event) + "\n" for event in said).encode()


def called(*words: str) -> int:
    try:
        main(words)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return 0


@pytest.mark.parametrize(
    "line",
    [
        '{"event":"evaluated","x":' + "[" * 100_000 + "]" * 100_000 + "}\n",
        LINE % (10**30, 1.0, 1),
        LINE % ("1" * 100_000, 1.0, 1),
        LINE % (1, 1.0, 1 << 63),
        LINE % (1, 1.0, -(1 << 63) - 1),
        LINE % (limits.ROUNDS + 1, 1.0, 1),
        LINE % (-1, 1.0, 1),
        LINE % (1, "1e999", 1),
        LINE % (1, "NaN", 1),
        LINE % ("true", 1.0, 1),
        to_json(events.WarningEvent(code="x" * (event_limits.TEXT + 1), message="")) + "\n",
        to_json(events.SandboxEvent(tier="", gaps=("x",) * (event_limits.ENTRIES + 1))) + "\n",
        to_json(events.SandboxEvent(tier="", gaps=("x" * (event_limits.TEXT + 1),))) + "\n",
        to_json(
            events.RunResultEvent(
                loss=1.0, loss_start=1.0, loss_unigram=1.0, bytes_sent=1, bytes_by=SentBytesByKind(sync=1 << 70),
                bytes_ring_bf16=1, segments_audited=1, caught=(), paid=1, slashed=1, refunded=1, sum=0, model_hash="",
                ledger_root="", seconds=1.0, run="", rounds=1, tokens=1, reexecuted=0,
            )
        )
        + "\n",
    ],
)  # fmt: skip
def test_a_line_beyond_the_bounds_is_passed_over(tmp_path: Path, line: str) -> None:
    good = LINE % (1, 2.0, 3)
    run = a_run(tmp_path / "r", (line + good).encode())
    assert [event.__class__ for event in event_log.read(run.events_file)] == [events.EvaluationEvent]
    assert read_timeline(run).losses == {1: 2.0}


def test_a_number_beyond_what_can_be_drawn_counts_as_the_largest(tmp_path: Path) -> None:
    run = a_run(tmp_path / "r", (LINE % (1, "1e308", 3) + LINE % (2, "-1e308", 3)).encode())
    assert read_timeline(run).losses == {1: event_limits.MOST_REAL, 2: -event_limits.MOST_REAL}


def test_a_log_names_so_many_and_no_more(tmp_path: Path) -> None:
    joined = (
        events.PeerJoinEvent(peer=f"{i:x}", round=0, replayed=0, seconds=1.0) for i in range(event_limits.NAMES + 9)
    )
    again = events.PeerJoinEvent(peer="0", round=7, replayed=0, seconds=1.0)
    started = events.ProcessStartEvent(role="", name="another", pid=1, peer="0")
    run = a_run(tmp_path / "r", packed(joined) + packed(iter([again, started])))
    timeline = read_timeline(run)
    assert len(timeline.joined) == event_limits.NAMES
    assert (timeline.joined["0"], timeline.processes) == (7, {})


def test_a_log_that_is_too_long_is_an_error_and_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path / "r", b"")
    with run.events_file.open("r+b") as file:
        file.truncate(1 << 40)  # one line of zeros, which takes no room on the disk
    with pytest.raises(RunError, match="FF-WATCH-004"):
        read_timeline(run)
    monkeypatch.setattr(event_limits, "EVENTS", 20)
    many = a_run(tmp_path / "many", packed(closed(i) for i in range(21)))
    with pytest.raises(RunError, match="FF-WATCH-004"):
        read_timeline(many)
    listed = events.RoundStartEvent(round=0, rounds=1, peers=PEERS, waited=0.0)
    wide = a_run(tmp_path / "wide", packed(listed for _ in range(5)))
    with pytest.raises(RunError, match="FF-WATCH-004"):
        read_timeline(wide)


def test_of_what_a_run_has_few_the_last_are_kept() -> None:
    timeline = RunTimeline()
    for number in range(LISTED + 3):
        timeline = fold(timeline, events.WarningEvent(code=str(number), message=""))
    assert [timeline.warnings[0].code, timeline.warnings[-1].code] == ["3", str(LISTED + 2)]


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder"])
def test_a_log_that_is_no_file_keeps_nobody_waiting(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "runs" / "r")
    match kind:
        case "pipe":
            os.mkfifo(run.events_file)
        case "endless":
            run.events_file.symlink_to("/dev/zero")
        case "folder":
            run.events_file.mkdir()
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path / "runs"))
    for verb in (("watch", "r"), ("watch", "r", "--round", "0"), ("report", "r"), ("status", "r")):
        assert called(*verb) == 1
        assert "error[FF-WATCH-002]" in capsys.readouterr().err


def test_a_log_that_is_replaced_while_it_is_followed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(packed(closed(i) for i in range(3)))
    follower = EventLogReader(path)
    assert len(follower.new()) == 3
    (tmp_path / "other").write_bytes(packed(closed(i) for i in range(9)))
    os.replace(tmp_path / "other", path)
    with pytest.raises(RunError, match="FF-WATCH-003"):
        follower.new()


def test_a_log_that_is_cut_off_under_its_reader_is_an_error_unless_only_its_torn_tail_went(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = packed(closed(i) for i in range(3))
    path.write_bytes(lines + b"rubbish\n")
    follower = EventLogReader(path)
    assert len(follower.new()) == 3
    path.write_bytes(lines + packed(iter([closed(3)])))
    assert follower.new() == [closed(3)]
    path.write_bytes(lines)
    with pytest.raises(RunError, match="FF-WATCH-003"):
        follower.new()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without its charts, which take nearly all of its time."""
    for module in (loss_charts, member_charts, money_charts):
        monkeypatch.setattr(module, "draw", lambda key, title, *_: svg.Chart(key, title, "", ""))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.whole
@pytest.mark.parametrize("created", [1e308, -1e18, 1e12])
def test_a_run_of_no_date_has_a_report(tmp_path: Path, created: float) -> None:
    run = a_run(tmp_path / "r", packed(whole()), created=created)
    assert "1 January 1970" in report_page.write(run).read_text()


def test_an_identity_is_read_within_bounds(tmp_path: Path) -> None:
    run = a_run(tmp_path / "r")
    with run.identity_file.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(RunError, match="FF-APP-011"):
        run.read_identity()
    assert IDENTITY_BYTES <= limits.MIB
    run.identity_file.write_text('{"x":' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(RunError, match="FF-APP-011"):
        run.read_identity()


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder", "huge"])
def test_a_file_of_a_run_that_is_no_file_keeps_nobody_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "requester.receipt"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "endless":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "huge":
            path.touch()
            os.truncate(path, 1 << 40)
    with pytest.raises(RunError, match="FF-APP-161"):
        read_file(path, limits.MIB)


@pytest.mark.slow
def test_a_report_shows_text_of_any_kind_as_text(tmp_path: Path) -> None:
    evil = tuple(f"\x1b\u202e<b>{i}" + peer for i, peer in enumerate(PEERS))
    page = report_page.write(a_run(tmp_path / "r", packed(whole(evil, text=NASTY)))).read_text()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page)
    assert "<script" not in page
    assert page.count("</style>") == page.count("</title>") - page.count("<title id=") == 1
    assert "<b>" not in page


@pytest.mark.whole
@pytest.mark.parametrize(("number", "real"), [(-1, -1e30), ((1 << 63) - 1, 1e30), (-(1 << 63), 5e-324)])
def test_a_report_of_absurd_numbers_is_drawn(number: int, real: float) -> None:
    timeline = RunTimeline()
    for event in whole(rounds=2):
        changed: dict[str, object] = {}
        for field in event.__struct_fields__:
            value = getattr(event, field)
            if isinstance(value, float):
                changed[field] = real
            elif isinstance(value, int):
                is_row = field in ("round", "rounds", "segment", "session")
                changed[field] = min(max(number, 0), limits.ROUNDS) if is_row else number
        timeline = fold(timeline, msgspec.structs.replace(event, **changed))
    assert "</html>" in report_page.render(timeline, "r", CREATED, is_owned=False)


@pytest.mark.whole
def test_a_report_of_very_many_rounds_members_and_audits_stays_a_page() -> None:
    timeline = RunTimeline()
    for event in whole(tuple(f"{i:064x}" for i in range(100)), rounds=2):
        timeline = fold(timeline, event)
    for number in range(2, 3000):
        opened = events.RoundStartEvent(round=number, rounds=3000, peers=PEERS, waited=0.0)
        drawn = events.AuditDrawEvent(round=number, peer=PEERS[0], segment=number)
        held = events.AuditEndEvent(
            round=number, peer=PEERS[0], segment=number, verifiers=(), finding="holds", excess=0.1, tokens=1,
            seconds=1.0,
        )  # fmt: skip
        for event in (opened, closed(number), drawn, held, events.EvaluationEvent(round=number, loss=2.0, tokens=1)):
            timeline = fold(timeline, event)
    page = report_page.render(timeline, "r", CREATED, is_owned=False)
    assert len(page) < 8_000_000
    assert "These are the last 2000 of 3,000 rounds." in page
    assert f"{report_page.ROWS} of 3,001 drawn segments as a table" in page
    assert "▲ false" in page  # what is contested is listed before what is last


def test_a_line_has_so_many_points_its_ends_among_them() -> None:
    points = [report_series.LossPoint(i, i, i, float(i), 1.0) for i in range(9 * loss_charts.POINTS)]
    few = loss_charts._thinned(points)
    assert (few[0], few[-1], len(few) <= loss_charts.POINTS + 1) == (points[0], points[-1], True)
    assert loss_charts._thinned(points[:9]) == points[:9]


@pytest.mark.whole
def test_a_drawing_has_a_row_for_so_many_members_and_no_more() -> None:
    timeline = RunTimeline()
    for event in whole(tuple(f"{i:064x}" for i in range(200)), rounds=2):
        timeline = fold(timeline, event)
    for chart in (
        member_charts.lanes(report_series.member_rows(timeline), {}, ""),
        member_charts.audits(report_series.audits(timeline), {}, ""),
    ):
        assert member_charts.MEMBERS < chart.wide.count("<text") < 2 * member_charts.MEMBERS


def test_of_too_many_audits_those_that_do_not_hold_are_listed() -> None:
    rows = tuple(
        report_series.AuditRow(i, "", 0, "false" if i == 3 else "holds", 0.0, (), 0, 0.0, "") for i in range(3000)
    )
    shown = report_page.listed(rows)
    assert (len(shown), shown[0].round, shown[1].round, shown[-1].round) == (report_page.ROWS, 3, 1001, 2999)
    assert report_page.listed(rows[:5]) == list(rows[:5])


@pytest.mark.usefixtures("undrawn")
@pytest.mark.slow
def test_a_report_follows_no_link_that_lies_in_the_run_folder(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    run = a_run(tmp_path / "r", packed(whole()))
    (run.root / "report.html").symlink_to(precious)
    (run.root / f".report.html.{os.getpid()}").symlink_to(precious)
    written = report_page.write(run)
    assert precious.read_text() == "precious"
    assert not written.is_symlink()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.whole
@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_a_report_takes_the_place_of_ordinary_files_only(tmp_path: Path, kind: str) -> None:
    run, out = a_run(tmp_path / "r", packed(whole())), tmp_path / "out"
    match kind:
        case "pipe":
            os.mkfifo(out)
        case "folder":
            out.mkdir()
        case "device":
            out.symlink_to("/dev/null")
    with pytest.raises(RunError, match="FF-APP-155"):
        report_page.write(run, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "r"]
    assert not out.is_file()


def test_what_a_log_calls_evidence_is_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "x"
    outside.write_text("precious")
    run = a_run(tmp_path / "runs" / "r", packed(whole()))
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path / "runs"))
    assert called("watch", run.name, "--dispute", "1", "--json") == 0
    assert msgspec.json.decode(capsys.readouterr().out)["evidence"] is None


def test_every_view_of_a_nasty_log_is_printable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = tuple(f"\x1b\u202e<b>{i}" + peer for i, peer in enumerate(PEERS))
    a_run(tmp_path / "runs" / "r", packed(whole(evil, text=NASTY)))
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path / "runs"))
    for words in (("watch", "r"), ("watch", "r", "--round", "1"), ("watch", "r", "--dispute", "1")):
        assert called(*words) == 0
        told = capsys.readouterr()
        assert all(c.isprintable() or c == "\n" for c in told.out + told.err), words

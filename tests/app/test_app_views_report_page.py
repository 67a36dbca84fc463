"""The report page: complete in itself, the same bytes for the same events, every state of a run told."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import app_told
import msgspec
import pytest
from app_told import CHEATER, CREATED, PEERS, RESULT, STORIES
from click.testing import CliRunner

from farflung.app.cli.report import report as verb
from farflung.app.views import report_page
from farflung.core import events
from farflung.core.errors import RunError
from farflung.core.events import AnyEvent
from farflung.core.money import MICRO, format_credits
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.journal import Journal, read_timeline
from farflung.watch import report_series
from farflung.watch.fold import RunTimeline, fold

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("report")]  # its pages are drawn once

HOSTILE = "<script>alert(1)</script>\"'&amp;</title><img src=x onerror=y>{{ 7*7 }}$x$"


def told(said: list[AnyEvent]) -> RunTimeline:
    timeline = RunTimeline()
    for event in said:
        timeline = fold(timeline, event)
    return timeline


def page_of(said: list[AnyEvent], name: str = "tale", *, is_owned: bool = False) -> str:
    return report_page.render(told(said), name, CREATED, is_owned=is_owned)


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without their charts, which take nearly all of their time."""
    monkeypatch.setattr(report_page, "_charts", lambda *_: {})


def undrawn(said: list[AnyEvent], name: str = "tale") -> str:
    """The page without its charts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_page, "_charts", lambda *_: {})
        return page_of(said, name)


class Reader(HTMLParser):
    """What is in a page: tags with attributes, identifiers, and the words outside the style."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: page_of(list(said()), is_owned=name in ("begun", "running")) for name, said in STORIES.items()}


@pytest.mark.parametrize("name", STORIES)
def test_a_page_asks_for_nothing_and_runs_nothing(pages: dict[str, str], name: str) -> None:
    page = pages[name]
    assert not re.search(r"https?://|//[a-z]|@import|javascript:", page, re.IGNORECASE)
    assert re.findall(r"url\((?!#)[^)]*\)", page) == []
    for tag, attributes in read(page).tags:
        assert tag not in ("script", "iframe", "object", "embed", "img", "base", "form"), tag
        for key, value in attributes.items():
            assert not key.startswith("on"), (tag, key)
            assert key not in ("src", "srcset", "action", "ping"), (tag, key)
            if key in ("href", "xlink:href"):
                assert value == "data:," if tag == "link" else value is not None and value.startswith("#"), value


@pytest.mark.parametrize("name", STORIES)
def test_no_identifier_is_given_twice_and_every_reference_is_answered(pages: dict[str, str], name: str) -> None:
    tags = read(pages[name]).tags
    given = [value for _, a in tags if (value := a.get("id"))]
    assert len(given) == len(set(given))
    asked = {value[1:] for _, a in tags for key, value in a.items() if key == "href" and value and value[0] == "#"}
    asked |= set(re.findall(r"url\(#([^)]+)\)", pages[name]))
    asked |= {name for _, a in tags for name in (a.get("aria-labelledby") or "").split()}
    asked |= {value for _, a in tags if (value := a.get("for"))}
    assert asked <= set(given)


@pytest.mark.parametrize("name", STORIES)
def test_every_chart_is_named_and_described_and_takes_the_pages_colours(pages: dict[str, str], name: str) -> None:
    charts = re.findall(r"<svg.*?</svg>", pages[name], re.DOTALL)
    for chart in charts:
        assert re.match(r'<svg viewBox="[\d. ]+" role="img" aria-labelledby="[^"]+"><title id=', chart), chart[:200]
        assert "<desc id=" in chart
        assert re.findall(r"#[0-9a-f]{6}\b", chart) == []
    known = set(re.findall(r"(--[a-z0-9-]+):", pages[name]))
    assert set(re.findall(r"var\((--[a-z0-9-]+)\)", pages[name])) <= known


def test_the_policy_in_the_page_forbids_scripts_and_requests(pages: dict[str, str]) -> None:
    policies = [
        a["content"] for tag, a in read(pages["whole"]).tags if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == [
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    ]


def test_the_same_events_give_the_same_bytes(pages: dict[str, str]) -> None:
    assert page_of(app_told.whole()) == pages["whole"]


def test_every_number_of_the_result_is_on_the_page(pages: dict[str, str]) -> None:
    text = read(pages["whole"]).text
    by = RESULT.bytes_by
    numbers = [
        *(f"{x:.4f}" for x in (RESULT.loss, RESULT.loss_start, RESULT.loss_unigram, RESULT.loss_baseline)),
        *(f"{x:,}" for x in (RESULT.bytes_sent, RESULT.bytes_ring_bf16, RESULT.tokens)),
        *(f"{getattr(by, kind):,}" for kind in by.__struct_fields__),
        *(format_credits(x) for x in (RESULT.paid, RESULT.slashed, RESULT.refunded, RESULT.bounty, RESULT.burnt)),
        "5 segments",
        "8 rounds",
        "64 s",
        "2 contributions computed again",
        "sum 0",
        RESULT.model_hash,
        RESULT.ledger_root,
        CHEATER[:8],
    ]
    assert [number for number in numbers if number not in text] == []


def test_every_root_every_payment_and_every_audit_is_on_the_page(pages: dict[str, str]) -> None:
    text = read(pages["whole"]).text
    t = told(app_told.whole())
    assert [closed.round for closed in t.rounds.values() if closed.root not in text] == []
    assert text.count("0.102400") >= 5  # three payments, bounty, burnt
    assert "4,107" in text
    assert "◆ unpaid" in text
    assert "○ open" in text


def test_the_story_of_the_cheater_is_told(pages: dict[str, str]) -> None:
    text = read(pages["whole"]).text
    for words in (
        "provider-2 (3c3c3c3c) was caught",
        "In round 1, provider-2 (3c3c3c3c) signed a commitment to its work",
        "Only then was it drawn which parts are trained again, and segment 2 of it was.",
        "verifier-0 (5e5e5e5e) and verifier-1 (6f6f6f6f) trained that segment again",
        "the claim lies 4,107 tolerances from what they found, where 1 is the limit: its work is false.",
        "It lost 0.204800 credits of its stake: 0.102400 went to the verifiers, 0.102400 were burnt.",
        "it was paid nothing",
        "3c" * 32,
    ):
        assert words in text


def test_the_story_of_a_verifier_that_guessed_is_told_and_its_money_counted() -> None:
    verifier, member = app_told.VERIFIERS[0], app_told.PEERS[0]
    canary = events.CanaryEndEvent(
        at=15.0, round=1, peer=member, segment=1, verifier=verifier, finding="holds", tokens=0
    )
    guessed = events.PerjuryEvent(
        at=15.0,
        verifier=verifier,
        round=1,
        peer=member,
        slashed=51_200 * MICRO,
        bounty=25_600 * MICRO,
        burnt=25_600 * MICRO,
    )
    before, t = told(app_told.whole()), told([*app_told.whole(), canary, guessed])
    text = read(undrawn([*app_told.whole(), canary, guessed])).text
    assert "verifier-0 (5e5e5e5e) guessed" in text
    assert "It lost 0.051200 credits of its stake: 0.025600 went to who showed it, 0.025600 were burnt." in text
    assert "0 of 1 canary found" in text
    money = report_series.money(t)
    assert (money.slashed, money.returned + money.slashed) == (
        report_series.money(before).slashed + 51_200 * MICRO,
        money.stakes,
    )


def test_the_loss_is_compared_even_when_the_gap_is_bad(pages: dict[str, str]) -> None:
    text = read(pages["whole"]).text
    assert "the single-machine baseline reached 1.997 on the same tokens, and this run is 0.328 above it" in text
    assert "+0.328" in text


def ways_of(said: list[AnyEvent]) -> str:
    """The text of the part on connections; empty where there is none."""
    found = re.search("<h3>Connections</h3>(.*?)<h3>", undrawn(said), re.DOTALL)
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", found[1])).split()) if found else ""


def test_how_pairs_reached_each_other_and_what_the_exchange_took_is_told() -> None:
    text = ways_of(app_told.whole())
    assert "15 pairs of nodes were connected" in text
    for row in (
        "on the LAN 2",
        "direct 9",
        "hole-punched 3",
        "relayed 1",
        "all-gather 1 0.50 s 0.75 s",
        "fan-out 7 0.25 s 0.24 s",
        "2 relays carried 152 MB that both ends signed for, and got 0.015200 credits",
    ):
        assert row in text


def test_of_ways_the_page_says_no_more_than_is_known() -> None:
    assert "is told at the end of the run" in ways_of(app_told.running())
    homes = events.SimulatedHomeEvent(names=("a", "b"), routers=("cone", "cone"), up=20.0, down=100.0, rtt=40.0)
    assert "2 simulated homes of 20/100 Mbit/s, 40 ms, NAT 2 cone." in ways_of([*app_told.begun(), homes])
    assert "No nodes were connected" in ways_of([*app_told.begun(), homes, events.PathCountsEvent()])
    assert ways_of(app_told.begun()) == ""


def test_the_plan_is_compared_and_what_is_off_is_marked(pages: dict[str, str]) -> None:
    rows = re.findall(r"<tr><th scope=\"row\">([^<]+)</th>.*?</tr>", pages["whole"])
    assert {"sync", "audit", "worker memory", "time", "price"} <= set(rows)
    assert pages["whole"].count("◆ off") == 3  # audit 1.80, time 0.73, price 0.75
    assert "Compared with the plan" not in pages["whole"]


def test_what_lies_within_the_most_of_the_plan_is_marked_and_what_a_part_is_compared_with_is_told() -> None:
    within = events.PlanComparisonEvent(
        quantity="sync", unit="B", planned=1.0, measured=2.0, most=3.0, cause="within the most"
    )
    page = undrawn([*app_told.stopped(), events.RunResumeEvent(round=2, session=2), within, app_told.stopped()[-1]])
    assert "◆ off</strong>: within the most" in page
    assert "Compared with the plan of 3 of 8 rounds." in page
    assert "Time is not compared: how long the run was stopped is unknown." in page


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("whole", ["finished", "the same bits as tale-1", "provider-1 died and was up again after 1.50 s"]),
        ("honest", ["Nobody was caught.", "All of 2 audited segments held.", "farflung run --baseline"]),
        ("unaudited", ["No segment was drawn for an audit in this run", "No process had to be started again"]),
        ("stopped", ["■ stopped", "3 of 8 rounds", "A person ended it", "warning"]),
        ("failed", ["▲ failed", "cannot write ab.bin", "FF-CORE-050", "farflung resume tale", "still in escrow"]),
        ("early-failure", ["▲ failed", "FF-APP-024", "Nobody was hired yet.", "No money was locked yet."]),
        ("begun", ["◌ still running", "The run has just begun", "The plan is not made yet.", "farflung report tale"]),
        ("planned", ["◆ interrupted", "are to train a model", "No round has closed yet", "farflung resume tale"]),
        (
            "running",
            [
                "◌ still running",
                "3 of 8 rounds",
                "without a verdict yet",
                "There is no verdict yet.",
                "The run is not over.",
            ],
        ),
        ("single", ["● finished", "1 of 1 round", "One provider trained", "One provider alone waits for nobody."]),
        ("nothing", ["◆ interrupted", "There is no work to audit yet.", "before there was anything to tell"]),
    ],
)
def test_every_state_of_a_run_is_told(pages: dict[str, str], name: str, words: list[str]) -> None:
    text = read(pages[name]).text.replace(" ,", ",")
    assert [each for each in words if each not in text] == []
    for section in report_page.SECTIONS:
        assert f'id="{section.lower()}"' in pages[name]


def test_a_page_that_is_passed_on_names_no_folder_and_no_address(pages: dict[str, str]) -> None:
    text = read(pages["failed"]).text
    for told_ in ("ada", "/home", "192.168", "4433"):
        assert told_ not in text
    assert "…/ab.bin" in text


def hostile() -> list[AnyEvent]:
    """Every text that may come from elsewhere tries to be markup."""

    def spoil(event: AnyEvent) -> AnyEvent:
        kept = {"finding", "phase", "unit", "peer", "process", "waited_for"}
        fields = {
            key: HOSTILE for key in event.__struct_fields__ if isinstance(getattr(event, key), str) and key not in kept
        }
        return msgspec.structs.replace(event, **fields)

    failure = events.RunFailureEvent(code=HOSTILE, message=HOSTILE, cause=HOSTILE, hint=HOSTILE)
    said = [event for event in app_told.whole() if not isinstance(event, events.RunResultEvent)]
    sandbox = events.SandboxEvent(tier=HOSTILE, gaps=(HOSTILE,))
    differs = events.RepeatedRunEvent(run=HOSTILE, differs=(HOSTILE,))
    strange = events.AuditEndEvent(
        round=0, peer=HOSTILE, segment=9, verifiers=(HOSTILE,), finding=HOSTILE, excess=1.0, tokens=1, seconds=1.0
    )
    gone = events.ProcessExitEvent(at=1.0, peer=HOSTILE, reason=HOSTILE)
    stands = events.LineageEvent(
        run=HOSTILE, jobs=(HOSTILE,), root=HOSTILE, rounds=1, merges=1, signatures=1, seconds=1.0
    )
    row = events.PlanComparisonEvent(quantity=HOSTILE, unit=HOSTILE, planned=1.0, measured=2.0)
    return [*(spoil(event) for event in said), sandbox, differs, strange, gone, row, stands, failure]


@pytest.mark.parametrize("ends", [False, True])
def test_text_from_elsewhere_stays_text(ends: bool) -> None:
    last = [msgspec.structs.replace(RESULT, run=HOSTILE, model_hash=HOSTILE, ledger_root=HOSTILE, caught=(HOSTILE,))]
    page = page_of([*hostile(), *(last if ends else [])], name=HOSTILE)
    reader = read(page)
    assert {tag for tag, _ in reader.tags} & {"script", "img"} == set()
    assert "onerror" not in {key for _, a in reader.tags for key in a}
    assert "<script>alert(1)" in reader.text  # shown, as the text that it is
    assert "onerror=y>49" not in html.unescape(page)


def test_a_name_in_a_command_is_quoted_for_the_shell() -> None:
    assert "farflung verify-run &#39;two words; rm x&#39;" in undrawn(app_told.whole(), name="two words; rm x")


@pytest.mark.usefixtures("no_charts")
def test_writing_replaces_the_page_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    run = app_told.folder(tmp_path / "tale", app_told.planned())
    before = report_page.write(run).read_bytes()
    (run.root / "events.jsonl").unlink()
    run = app_told.folder(tmp_path / "again" / "tale", app_told.begun())
    written = report_page.write(run)
    assert written == run.root / "report.html"
    assert written.read_bytes() != before
    assert sorted(path.name for path in run.root.iterdir()) == ["events.jsonl", "report.html", "run.json"]


@pytest.mark.usefixtures("no_charts")
def test_a_page_that_cannot_be_written_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    run = app_told.folder(tmp_path / "tale", app_told.begun())
    with pytest.raises(RunError, match="FF-APP-155") as raised:
        report_page.write(run, tmp_path / "no" / "such" / "x.html")
    assert raised.value.hint == "farflung report tale --out report.html"


@pytest.mark.usefixtures("no_charts")
def test_a_report_that_fails_is_a_warning_and_nothing_else(tmp_path: Path) -> None:
    run = app_told.folder(tmp_path / "tale", app_told.begun())
    (run.root / "report.html").mkdir()  # in the way
    journal = Journal(run.events_file, CREATED)
    report_page.keep(run, journal)
    journal.close()
    (warned,) = read_timeline(run).warnings[-1:]
    assert (warned.code, warned.hint) == ("FF-APP-156", "farflung report tale")


@pytest.mark.usefixtures("no_charts")
def test_the_verb_writes_any_run_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = app_told.folder(tmp_path / "runs" / "tale", app_told.failed())
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path / "runs"))
    said = CliRunner().invoke(verb, ["--json"])
    facts = msgspec.json.decode(said.stdout)
    path = run.root / "report.html"
    assert facts == {"run": "tale", "report": str(path), "bytes": path.stat().st_size}
    elsewhere = tmp_path / "mine.html"
    plain = CliRunner().invoke(verb, ["tale", "--out", str(elsewhere)])
    assert plain.stdout == f"{elsewhere}\n"
    assert elsewhere.read_bytes() == path.read_bytes()


@pytest.mark.usefixtures("no_charts")
def test_a_run_that_a_process_holds_still_goes_on(tmp_path: Path) -> None:
    run = app_told.folder(tmp_path / "tale", app_told.running())
    holder = RunFolder(run.root)
    holder.lock()
    assert "still running" in report_page.write(run).read_text()


@pytest.mark.usefixtures("no_charts")
def test_a_run_without_any_event_has_a_page(tmp_path: Path) -> None:
    run = app_told.folder(tmp_path / "tale", [])
    (run.root / "events.jsonl").unlink()
    assert "before there was anything to tell" in report_page.write(run).read_text()


def test_lines_differ_in_more_than_colour(pages: dict[str, str]) -> None:
    chart = re.findall(r'<svg viewBox="0 0 880[^>]*loss-tokens.*?</svg>', pages["whole"], re.DOTALL)[0]
    looks = {}
    for style in re.findall(r'style="([^"]*stroke: var\(--series-\d\)[^"]*)"', chart):
        colour = re.search(r"stroke: var\((--series-\d)\)", style)
        dash = re.search(r"stroke-dasharray: ([^;]+)", style)
        if "fill: none" in style and colour is not None:
            looks[colour[1]] = dash[1] if dash else "solid"
    assert len(looks) == 3
    assert len(set(looks.values())) == 3


def test_long_runs_stay_within_a_few_megabytes() -> None:
    said = [*app_told.began(), *app_told.network(), *app_told.rounds(0, 200)]
    page = page_of(said)
    assert len(page) < 2_000_000
    assert PEERS[0][:8] in page

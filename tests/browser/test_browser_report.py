"""The report page, and that of a simulated network, in a browser: nothing leaves, nothing overflows, it can be read
in light, dark and print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import app_told
import pytest
from app_told import STORIES

from farflung.app.simulate import scenario, scenario_run
from farflung.app.views import report_page, simulation_page

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

WIDTHS = (360, 768, 1600)
SIMULATED = "simulated"
PAGES = (*STORIES, SIMULATED)
Open = Callable[..., Any]

# Text whose contrast with what is behind it is below AA: 4.5 to 1, or 3 to 1 where letters are large.
FAINT = """
() => {
  const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => (v /= 255, v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c[3] > 0) return c;
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !e.checkVisibility() || ["title", "desc"].includes(e.tagName)) continue;
    const style = getComputedStyle(e);
    const svg = e.closest("svg");
    const [a, b] = [light(parse(svg ? style.fill : style.color)), light(behind(svg ? svg.parentElement : e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    seen += 1;
    if (ratio < (large ? 3 : 4.5)) found.push(`${walk.currentNode.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return { seen, found };
}
"""
# Shapes of charts that carry meaning (series and findings) below 3 to 1.
PALE = """
() => {
  const root = getComputedStyle(document.documentElement);
  const probe = document.createElement("span");
  document.body.append(probe);
  const light = (name) => {
    probe.style.color = root.getPropertyValue(name);
    const [r, g, b] = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number)
      .map((v) => (v /= 255, v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light("--paper");
  const names = ["--series-1", "--series-2", "--series-3", "--series-4", "--good", "--warn", "--bad", "--ink"];
  const ratio = (a) => (Math.max(a, paper) + 0.05) / (Math.min(a, paper) + 0.05);
  const pale = names.filter((name) => ratio(light(name)) < 3);
  probe.remove();
  return pale;
}
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("runs")
    found = {name: report_page.write(app_told.folder(base / name, list(told()))) for name, told in STORIES.items()}
    asked = scenario.read(None, "", {"network.nodes": "300", "network.days": "3", "market.members": "4"})
    found[SIMULATED] = base / "simulated.html"
    simulation_page.write(scenario_run.tell(asked, 1, scenario_run.simulate(asked, 1)), found[SIMULATED])
    return found


@pytest.fixture
def opened(chromium: Any, pages: dict[str, Path]) -> Iterator[Open]:
    """Opens a page; at the end of the test nothing may have been asked for and nothing said on the console."""
    contexts, asked, said = [], [], []

    def open_(name: str, width: int = 1000, scheme: str = "light") -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(pages[name].as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    own = {path.as_uri() for path in pages.values()}
    assert [url for url in asked if url not in own and not url.startswith("data:")] == []
    assert said == []


@pytest.mark.parametrize("name", PAGES)
def test_nothing_overflows_sideways(opened: Open, name: str) -> None:
    page = opened(name)
    page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        over = page.evaluate(
            """() => [...document.querySelectorAll('svg text')].filter((t) => t.checkVisibility())
            .filter((t) => { const r = t.getBoundingClientRect(); return r.left < 0 || r.right > innerWidth; })
            .map((t) => t.textContent)"""
        )
        assert over == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["whole", "failed", "honest", "begun", SIMULATED])
def test_all_text_can_be_told_from_what_is_behind_it(opened: Open, name: str, scheme: str) -> None:
    page = opened(name, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
    looked = page.evaluate(FAINT)
    assert looked["found"] == []
    assert looked["seen"] > 20
    assert page.evaluate(PALE) == []


def test_dark_is_dark_and_charts_follow(opened: Open) -> None:
    seen = []
    for scheme in ("light", "dark"):
        page = opened("whole", scheme=scheme)
        text = "getComputedStyle(document.querySelector('.over.tokens .wide svg text')).fill"
        seen.append((page.evaluate("getComputedStyle(document.body).backgroundColor"), page.evaluate(text)))
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]


def shown(page: Any) -> list[str]:
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('.over')].filter((e) => e.checkVisibility()).map((e) => e.className)"
    )
    return found


def test_the_axis_of_the_loss_is_chosen_with_the_keyboard_alone(opened: Open) -> None:
    page = opened("whole")
    assert shown(page) == ["over tokens"]
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "over-tokens":
            break
    else:
        pytest.fail("Tab never reaches the switch")
    outline = "getComputedStyle(document.activeElement.nextElementSibling).outlineStyle"
    assert page.evaluate(outline) == "solid"  # one sees where one is
    page.keyboard.press("ArrowRight")
    assert shown(page) == ["over bytes"]
    page.keyboard.press("ArrowRight")
    assert shown(page) == ["over time"]
    assert page.locator(".over.time .wide svg").is_visible()


def test_tables_open_with_the_keyboard(opened: Open) -> None:
    page = opened("whole")
    page.locator("summary").first.focus()
    assert not page.locator("details table").first.is_visible()
    page.keyboard.press("Enter")
    assert page.locator("details table").first.is_visible()


def test_each_width_has_its_own_drawing_of_every_chart(opened: Open) -> None:
    for width, kind, other in ((360, "narrow", "wide"), (1600, "wide", "narrow")):
        page = opened("whole", width)
        assert page.evaluate(f"[...document.querySelectorAll('.{other}')].some((e) => e.checkVisibility())") is False
        charts = page.locator(f".{kind} svg:visible")
        assert charts.count() == 6
        for number in range(charts.count()):
            box = charts.nth(number).bounding_box()
            assert box["width"] > 0.75 * min(width, 800)
            assert box["height"] > 80


@pytest.mark.parametrize("name", ["whole", SIMULATED])
def test_letters_of_charts_are_large_enough_to_read(opened: Open, name: str) -> None:
    for width in WIDTHS:
        page = opened(name, width)
        small = page.evaluate(
            """() => [...document.querySelectorAll('svg text')].filter((t) => t.checkVisibility())
            .map((t) => [t.textContent, parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a])
            .filter(([, size]) => size < 9)"""
        )
        assert small == []


def test_print_shows_every_table_and_every_axis_and_cuts_no_chart(opened: Open, screenshots: Path) -> None:
    page = opened("whole", 720)
    page.emulate_media(media="print")
    assert shown(page) == ["over tokens", "over bytes", "over time"]
    seen = "e.checkVisibility({contentVisibilityAuto: true})"
    assert page.evaluate(f"[...document.querySelectorAll('details table')].every((e) => {seen})")
    tall = page.evaluate(
        "[...document.querySelectorAll('details table')].every((e) => e.getBoundingClientRect().height > 20)"
    )
    assert tall
    uncut = page.evaluate(
        "[...document.querySelectorAll('.wide svg')].every((e) => getComputedStyle(e).breakInside === 'avoid')"
    )
    assert uncut
    assert page.evaluate("document.querySelectorAll('.narrow')[0].checkVisibility()") is False
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.emulate_media(media=None)
    made = page.pdf(path=str(screenshots / "report.pdf"), format="A4", print_background=True)
    assert made.startswith(b"%PDF")
    assert 3 <= made.count(b"/Type /Page\n") + made.count(b"/Type /Page ") <= 20


@pytest.mark.parametrize("name", PAGES)
def test_a_picture_of_every_state_is_kept(opened: Open, screenshots: Path, name: str) -> None:
    for width, scheme in ((1600, "light"), (1600, "dark"), (360, "light")):
        if name != "whole" and (width, scheme) != (1600, "light"):
            continue
        page = opened(name, width, scheme)
        path = screenshots / f"report-{name}-{width}-{scheme}.png"
        page.screenshot(path=str(path), full_page=True)
        assert path.stat().st_size > 20_000

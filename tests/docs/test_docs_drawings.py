"""The drawings of the documentation: well-formed, told in words as well, in both themes, asking nobody for anything."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DRAWINGS = sorted((DOCS / "_static").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
YELLOW = "#e3b341"  # of tools/picture.py: something to look after
MAY_LINK = {"http://www.w3.org/2000/svg"}  # a name, not a request
WIDTH = 480  # readable on a telephone: text keeps 9 px and more at 360 px


def named(path: Path) -> str:
    return path.name


def test_there_is_a_drawing_of_a_round_of_an_audit_and_of_money() -> None:
    assert {path.stem for path in DRAWINGS} >= {"round", "audit", "money"}


@pytest.mark.parametrize("path", DRAWINGS, ids=named)
def test_a_drawing_is_told_in_words_too(path: Path) -> None:
    root = ET.parse(path).getroot()
    title, told = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    assert title is not None
    assert told is not None
    assert title.text
    assert told.text
    assert len(told.text.split()) > 20
    assert (root.get("aria-labelledby") or "").split() == [title.get("id"), told.get("id")]


@pytest.mark.parametrize("path", DRAWINGS, ids=named)
def test_text_in_a_drawing_stays_text_and_fits_its_width(path: Path) -> None:
    root = ET.parse(path).getroot()
    assert [float(part) for part in (root.get("viewBox") or "").split()][2] == WIDTH
    texts = ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]
    assert len(texts) > 10
    assert all(len(text) <= 60 for text in texts)


@pytest.mark.parametrize("path", DRAWINGS, ids=named)
def test_a_drawing_has_both_themes_and_asks_nobody(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) <= MAY_LINK
    assert "@import" not in text
    assert not re.search(r"<(script|image|foreignObject)\b", text)


@pytest.mark.parametrize("path", DRAWINGS, ids=named)
def test_a_drawing_is_shown_by_a_page_with_words_in_its_place(path: Path) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    shown = re.findall(rf"!\[([^\]]+)\]\([^)]*_static/{path.name}\)", pages)
    assert shown
    assert all(len(words.split()) > 8 for words in shown)


def test_the_readmes_picture_asks_nobody_and_is_of_the_run_whose_figures_stand_below_it() -> None:
    """`tools/picture.py` and `bench/figures.py` were called on one run."""
    picture = (DOCS / "pictures" / "run.svg").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "docs/pictures/run.svg" in readme
    assert set(re.findall(r"https?://[^\s\"'<)]+", picture)) <= MAY_LINK
    assert not re.search(r"<(script|image|foreignObject)\b|@import|url\((?!#)", picture)
    shown = re.sub(r"\s+", " ", "".join(ET.fromstring(picture).itertext()).replace("\u00a0", " "))
    figures = " ".join(readme.partition("<!-- figures -->")[2].partition("<!-- /figures -->")[0].split())
    for what in (
        r"sync traffic alone is ([\d.,]+ \w+)",
        r"Validation loss ([\d.]+)",
        r"([+-][\d.]+) against the single",
    ):
        value = re.search(what, figures)
        assert value is not None, what
        assert value[1] in shown, what
    assert figures.index("sent in all") < figures.index("sync traffic"), "all traffic comes first"
    assert len(re.findall(r"[\d.,]+x (?:less|more)", figures)) == 2, "one multiple each"


def test_the_readmes_picture_has_no_yellow_line_and_one_multiple() -> None:
    picture = (DOCS / "pictures" / "run.svg").read_text(encoding="utf-8")
    shown = "".join(ET.fromstring(picture).itertext()).replace("\u00a0", " ")
    assert not re.search(YELLOW, picture, re.IGNORECASE)
    assert len(re.findall(r"[\d.,]+ ?(?:x|times) (?:less|more|as much)", shown)) == 1


def test_the_quickstarts_screen_is_of_the_run_of_the_picture() -> None:
    picture = (DOCS / "pictures" / "run.svg").read_text(encoding="utf-8")
    shown = re.sub(r"\s+", "", "".join(ET.fromstring(picture).itertext()))
    screen = (DOCS / "start.md").read_text(encoding="utf-8").partition("<!-- screen -->")[2]
    lines = screen.partition("<!-- /screen -->")[0].strip().splitlines()[1:-1]
    assert len(lines) > 10
    assert [line for line in lines if re.sub(r"\s+", "", line) not in shown] == []

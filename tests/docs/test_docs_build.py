"""The pages as Sphinx builds them: without a warning, without a request to any other host, with nothing left out."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytestmark = [pytest.mark.extra(name="docs"), pytest.mark.xdist_group("sphinx"), pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
WHY = "the extra `docs` is not installed"
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
# Places that pages may name: the papers and projects they rest on.
KNOWN = re.compile(
    r"https?://((www\.)?(python\.org|sphinx-doc\.org|w3\.org|rfc-editor\.org)|arxiv\.org|doi\.org"
    r"|(docs\.)?pytorch\.org|toml\.io|pradyunsg\.me|github\.com/pradyunsg/furo|www\.sphinx-doc\.org)"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built pages."""
    for module in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(module, reason=WHY)
    out = tmp_path_factory.mktemp("html")
    words = ["-W", "--keep-going", "-n", "-q", "-E", "-d", str(out.parent / "trees"), "-b", "html"]
    ended = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(DOCS), str(out)],
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return out


class Tags(HTMLParser):
    """All tags of a page with their attributes."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def loaded(page: Path) -> Iterator[str]:
    """What a browser fetches on its own when it shows the page."""
    for tag, attributes in Tags(page).found:
        place = attributes.get(LOADS.get(tag, ""))
        if place and not (tag == "link" and attributes.get("rel") in ("next", "prev", "search", "index")):
            yield place


def test_every_page_is_built(built: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md") if "_build" not in path.parts}
    assert {page for page in pages if not (built / page).with_suffix(".html").is_file()} == set()


def test_a_page_loads_nothing_from_anywhere_else(built: Path) -> None:
    for page in built.rglob("*.html"):
        assert [place for place in loaded(page) if re.match(r"(\w+:)?//", place)] == [], page.name
    for style in built.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", text), style.name


def test_links_that_leave_lead_to_known_papers_and_projects(built: Path) -> None:
    for page in built.rglob("*.html"):
        out = {
            attributes["href"] or ""
            for tag, attributes in Tags(page).found
            if tag == "a" and re.match(r"https?:", attributes.get("href") or "")
        }
        assert {place for place in out if not KNOWN.match(place)} == set(), page.name


def test_help_and_signatures_are_in_the_pages(built: Path) -> None:
    verbs = (built / "cli.html").read_text(encoding="utf-8")
    assert "Usage: farflung run" in verbs
    assert "Usage: farflung receipt verify" in verbs
    assert 'id="farflung-verify-run"' in verbs
    assert "on a code host" not in verbs.lower()
    assert "callbacks" in (built / "api.html").read_text(encoding="utf-8")


def test_the_page_of_changes_has_every_fragment(built: Path) -> None:
    page = (built / "changelog.html").read_text(encoding="utf-8")
    fragments = [path for path in (ROOT / "changes").glob("*.md") if path.name != "README.md"]
    assert len(fragments) > 100
    assert page.count("<li><p>") >= sum(path.read_text("utf-8").count("\n- ") for path in fragments)


def test_links_to_the_source_name_the_file(built: Path) -> None:
    page = (built / "architecture.html").read_text(encoding="utf-8")
    assert "src/farflung/compress/merge.py" in page.replace("<wbr>", "")
    assert 'href="../src' not in page


def test_front_pages_of_the_repository_are_linked_and_their_links_lead_to_pages(built: Path) -> None:
    """README, CONTRIBUTING, SECURITY and the examples: `project/`, each including one file."""
    names = ("readme", "contributing", "security", "examples")
    index = (built / "index.html").read_text(encoding="utf-8").partition("<article")[2]
    assert [name for name in names if f'href="project/{name}.html"' not in index] == []
    for name in names:
        page = built / "project" / f"{name}.html"
        places = [attributes.get("href") or "" for tag, attributes in Tags(page).found if tag == "a"]
        inside = {place.partition("#")[0] for place in places if not re.match(r"https?:", place)} - {""}
        assert {place for place in inside if not (page.parent / place).is_file()} == set(), name
    assert 'href="../train.html"' in (built / "project" / "readme.html").read_text(encoding="utf-8")


def test_a_request_to_another_host_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        '<link rel="stylesheet" href="//fonts.example/a.css"><img src="here.svg"><a href="https://x.example">x</a>',
        encoding="utf-8",
    )
    assert list(loaded(page)) == ["//fonts.example/a.css", "here.svg"]
    assert not KNOWN.match("https://x.example")

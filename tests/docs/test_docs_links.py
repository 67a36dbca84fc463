"""The documentation against the code: every link, job, command and name that it shows is there."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import farflung
from farflung.app.cli.main import cli
from farflung.job.job_loader import load

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
START = ROOT / "docs" / "start.md"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "changes").rglob("*.md"),
    ]
)
LINK = re.compile(r"(?<!\!)\[[^\]\[]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```+|~~~+)[ \t]*(\w*)[^\n]*\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
CODE = re.compile(r"FF-[A-Z]+-\d{3}")
README_LINES = 90


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, content) of each fenced block."""
    return [(language, body) for _, language, body in FENCE.findall(page.read_text(encoding="utf-8"))]


@cache
def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchor(heading: str) -> str:
    """The anchor that a Markdown renderer makes of a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(line.lstrip("#")) for line in prose(page).splitlines() if re.match(r"#{1,6} ", line)}


def links(page: Path) -> Iterator[str]:
    """Targets of links within the repository."""
    for target in LINK.findall(INLINE.sub("", prose(page))):
        if not re.match(r"[a-z]+:", target):
            yield target


def commands(page: Path) -> list[list[str]]:
    """Every `farflung ...` in a block or in the text, as words, with the lines that go on; comments are left out."""
    shown = [body for language, body in blocks(page) if language != "text"]
    texts = [line for body in shown for line in body.replace("\\\n", " ").splitlines()]
    texts += INLINE.findall(prose(page).replace("\n", " "))
    texts += [line for line in prose(page).replace("\\\n", " ").splitlines() if line.startswith("    ")]
    found = []
    for text in texts:
        command = text.strip().removeprefix("$ ")
        if not command.startswith("farflung ") or command.count('"') % 2:
            continue
        words = shlex.split(command, comments=True)
        if len(words) > 1 and words[1] != "VERB":
            found.append(words[1:])
    return found


def test_all_pages_are_found() -> None:
    assert {"README.md", "docs/index.md", "docs/errors.md", "examples/README.md"} <= set(map(name, PAGES))


def test_every_link_leads_somewhere(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(page=name(page)):
            broken = []
            for target in links(page):
                path, _, fragment = target.partition("#")
                there = (page.parent / path).resolve() if path else page
                is_there = there.exists() and there.is_relative_to(ROOT)
                if not is_there or (fragment and fragment not in anchors(there)):
                    broken.append(target)
            assert broken == []


def test_every_job_file_that_is_shown_loads(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(page=name(page)):
            for language, body in blocks(page):
                if language == "toml":
                    load(body, origin_name=name(page))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=name)
def test_every_example_job_loads(path: Path) -> None:
    load(path.read_text(encoding="utf-8"), origin_name=path.name)


def understood(words: list[str]) -> Result:
    """The answer to a command that does nothing: `--help` stands behind the verb, where it is no option's value.

    An option that is shown without its value gets one.
    """
    given = [word for word in words if word not in ("...", "…")]
    command: click.Command | None = cli
    at = 0
    while isinstance(command, click.Group) and at < len(given):
        command = command.get_command(click.Context(command), given[at])
        at += 1
    asked = [*given[:at], "--help", *given[at:]]
    answer = CliRunner().invoke(cli, asked)
    return CliRunner().invoke(cli, [*asked, "1"]) if "requires an argument" in answer.output else answer


@pytest.mark.slow
def test_every_command_that_is_shown_is_understood(
    subtests: pytest.Subtests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in PAGES:
        with subtests.test(page=name(page)):
            monkeypatch.chdir(tmp_path)
            for words in commands(page):
                answer = understood(words)
                assert answer.exit_code == 0, f"farflung {' '.join(words)}\n{answer.output}"
                assert "Usage: " in answer.output, words
            assert list(tmp_path.iterdir()) == []


def test_every_file_and_test_that_is_named_is_there(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(page=name(page)):
            pattern = re.compile(r"(?:src|tests|bench|examples|docs|changes)/[\w./*-]+(?:::\w+)?")
            missing = []
            for shown in INLINE.findall(prose(page)):
                if not pattern.fullmatch(shown) or "NNNN" in shown:
                    continue
                path, _, test = shown.partition("::")
                files = [path for path in ROOT.glob(path.rstrip("/")) if path.exists()]
                if not files or (test and f"def {test}(" not in files[0].read_text(encoding="utf-8")):
                    missing.append(shown)
            assert missing == []


def test_every_module_that_is_named_is_there() -> None:
    """`package/module`, also with `.py`; a name with dots may be a setting or a column, and is left alone."""
    package = ROOT / "src" / "farflung"
    names = "|".join(path.parent.name for path in package.glob("*/__init__.py"))
    pattern = re.compile(rf"(?:{names})(?:/\w+)+(?:\.py)?")
    shown = {(name(page), word) for page in PAGES for word in INLINE.findall(prose(page)) if pattern.fullmatch(word)}
    assert len(shown) > 30
    assert [at for at in sorted(shown) if not any(package.glob(f"{at[1].removesuffix('.py')}*"))] == []


def test_python_that_is_shown_is_python_and_uses_what_exists(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(page=name(page)):
            for language, body in blocks(page):
                if language == "python":
                    for node in ast.walk(ast.parse(body)):
                        is_ours = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                        if is_ours and node.value.id == "farflung":
                            assert hasattr(farflung, node.attr), node.attr


def test_a_command_that_ends_in_an_option_is_only_asked_for_its_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["key", "new", "--account"], ["key", "new"], ["relay", "--key"], ["run", "--preset"]):
        assert understood(words).exit_code == 0, words
    assert list(tmp_path.iterdir()) == []


def test_the_readme_is_short_and_begins_with_the_two_commands() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= README_LINES
    first = "\n".join(lines[:16])
    assert "make run" in first
    assert "make test" in first


def test_every_make_target_that_is_shown_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = {
        target
        for page in PAGES
        for target in re.findall(r"(?:^ {4}|`)make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert shown <= targets
    assert {"run", "test"} <= shown


def test_every_line_of_a_screen_that_is_shown_is_one_of_the_screen() -> None:
    """Labels of the excerpts are labels of the screen, and what belongs to them is below; figures are not compared."""
    labels = {"Plan", "Network", "Train", "Verify", "Settle", "Result", "Next", "farflung"}
    shown = [body for page in (README, START) for language, body in blocks(page) if language == "text"]
    assert shown
    for excerpt in shown:
        assert len(excerpt.splitlines()) <= 24
        for line in excerpt.splitlines():
            assert len(line) <= 100
            assert not line or line.strip() == "..." or line[:9].isspace() or line.split()[0] in labels, line


def test_error_codes_that_pages_mention_are_in_the_source() -> None:
    source = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py"))
    known = set(CODE.findall(source))
    for page in PAGES:
        assert set(CODE.findall(page.read_text(encoding="utf-8"))) <= known, name(page)


def test_the_decisions_are_all_in_their_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "index.md").read_text(encoding="utf-8")
    records = sorted(path for path in folder.glob("*.md") if path.name != "index.md")
    assert [path.name for path in records if f"]({path.name})" not in index] == []
    numbers = [path.name[:3] for path in records]
    assert len(set(numbers)) == len(numbers)


def rooms_on_the_page(page: str) -> dict[str, set[str]]:
    """Package → its rooms, as the drawing of the floors names them."""
    found: dict[str, set[str]] = {}
    package = ""
    for line in page.partition("```text\n")[2].partition("```")[0].splitlines()[1:]:
        package = line[8:19].strip() or package
        found.setdefault(package, set()).update(line[19:69].split())
    return found


def test_the_drawing_of_the_floors_names_every_package_and_every_room() -> None:
    there: dict[str, set[str]] = {}
    for init in (ROOT / "src" / "farflung").glob("*/**/__init__.py"):
        package, *room = init.parent.relative_to(ROOT / "src" / "farflung").parts
        there.setdefault(package, set()).update(room)
    assert rooms_on_the_page((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")) == there


def test_every_room_says_what_it_holds_and_every_term_of_the_glossary_links_to_a_module() -> None:
    rooms = sorted((ROOT / "src" / "farflung").glob("*/*/__init__.py"))
    silent = [room for room in rooms if not ast.get_docstring(ast.parse(room.read_text(encoding="utf-8")))]
    assert len(rooms) > 30
    assert silent == []
    terms = [
        line
        for line in (ROOT / "docs" / "glossary.md").read_text().partition("## People")[2].splitlines()
        if line.startswith("| ") and not line.startswith("| term")
    ]
    assert len(terms) > 60
    assert [term for term in terms if not re.match(r"\| \[[^]]+\]\(\.\./src/farflung/", term)] == []


# Each reader above finds what it looks for: a rule that cannot fail would be no rule.


def test_a_broken_link_an_unknown_command_and_a_wrong_job_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "[a](gone.md) [b](https://example.org) `[no](link)`\n\n## A heading, *marked*\n\n"
        "`farflung fly`\n\n    farflung run --speed 9   # a comment\n\n```toml\nrouds = 2\n```\n",
        encoding="utf-8",
    )
    assert list(links(page)) == ["gone.md"]
    assert anchors(page) == {"a-heading-marked"}
    assert commands(page) == [["fly"], ["run", "--speed", "9"]]
    assert all(understood(words).exit_code for words in commands(page))
    assert blocks(page) == [("toml", "rouds = 2\n")]

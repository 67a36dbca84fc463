"""`--tier` chooses tests by what a change touches; without it, pytest runs whatever it is asked for.

    change  (make test)      all without a mark; of the rest, those that import a file that changed, and `guarantee`
    all     (make test-all)  whatever needs neither root, nor extras, nor a browser, and is no soak
    rest    (.ci/run)        whatever `change` left out last time, root, browser and small extras included; but for
                             what .ci/extras holds, which it runs when its files have changed

A file has changed where it differs from what it was when `change` last passed (.pytest_cache). On a fresh clone: from
the merge base of HEAD and main. What a test imports is found in the import graph of the package, in which a
module's name in a string is an import too: networks and workers are started by `python -m`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD, CHOSEN = "selection/passed", "selection/chosen"
APART = {"soak", "netns", "browser", "extra", "quiet"}
EXTRAS = tomllib.loads((ROOT / ".ci" / "extras.toml").read_text("utf-8"))  # tried when their files change
HELD = {file for row in EXTRAS.values() for file in row.get("holds", "").split()}
EVERYTHING = re.compile(r"pyproject\.toml|constraints\.txt|tests/(conftest|support/(selection|kernel_cache))\.py")
MODULE = re.compile(r"\bfarflung(?:\.\w+)+\.?")


def _git(*words: str, told: str = "") -> list[str]:
    """The lines that git answers; none where there is no repository, or it does not know what it is asked."""
    try:
        ended = subprocess.run(["git", *words], cwd=ROOT, input=told, capture_output=True, text=True)
    except OSError:
        return []
    return ended.stdout.splitlines() if ended.returncode == 0 else []


def fingerprints() -> dict[str, str]:
    """The hash of each file that git knows or would add."""
    listed = _git("ls-files", "--cached", "--others", "--exclude-standard")
    paths = sorted(path for path in set(listed) if (ROOT / path).is_file())
    return dict(zip(paths, _git("hash-object", "--stdin-paths", told="\n".join(paths)), strict=False))


def changed_files(passed: dict[str, str]) -> set[str]:
    """Files that differ from those that passed, or from the merge base with main where none did."""
    if passed:
        now = fingerprints()
        return {path for path in passed.keys() | now.keys() if passed.get(path) != now.get(path)}
    mains = ("origin/HEAD", "origin/main", "main", "HEAD")
    base = next((found[0] for main in mains if (found := _git("merge-base", "HEAD", main))), "HEAD")
    return {*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")}


def _python(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Graph:
    """Modules of the package, and modules of tests by their file's stem: who imports whom."""

    def __init__(self) -> None:
        package = grimp.build_graph("farflung", cache_dir=str(ROOT / ".import_linter_cache"))
        self.modules = package.modules
        self.importers: dict[str, set[str]] = defaultdict(set)
        for name in self.modules:
            for imported in package.find_modules_directly_imported_by(name):
                self.importers[imported].add(name)
        for path in (ROOT / "src").rglob("*.py"):
            self._add(_python(path), path.read_text("utf-8"))
        self.tests = {path.stem: path for path in (ROOT / "tests").rglob("*.py") if path.stem != "conftest"}
        self.texts = {stem: path.read_text("utf-8") for stem, path in self.tests.items()}
        for stem, text in self.texts.items():
            beside = self.tests[stem].with_name("conftest.py")
            if beside.exists() and beside.parent.name != "tests":
                text += beside.read_text("utf-8")
            self._add(stem, text)
            for node in ast.walk(ast.parse(text)):
                names = [node.module] if isinstance(node, ast.ImportFrom) else []
                names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
                for name in names:
                    self.importers[name or ""].add(stem)
                    for part in node.names if isinstance(node, ast.ImportFrom) else ():
                        self.importers[f"{name}.{part.name}"].add(stem)

    def _add(self, name: str, text: str) -> None:
        """Modules that a text names, as it does to start them; `farflung.x.` stands for all of x."""
        for found in set(MODULE.findall(text)):
            if found.endswith("."):
                for module in self.modules:
                    if module.startswith(found):
                        self.importers[module].add(name)
            elif found in self.modules:
                self.importers[found].add(name)

    def importing(self, files: Iterable[str]) -> set[str]:
        """Files of tests that one of these is imported by, or named in, directly or through others."""
        waiting: list[str] = []
        for file in files:
            path = ROOT / file
            if file.startswith("src/farflung/"):
                package = _python(path.parent / "__init__.py")
                is_whole = path.suffix != ".py" or path.stem == "__init__"
                below = [name for name in self.modules if name.startswith(f"{package}.")] if is_whole else []
                waiting += [package if is_whole else _python(path), *below]
            elif file.startswith("tests/") and path.suffix == ".py":
                beside = [stem for stem, own in self.tests.items() if own.parent == path.parent]
                waiting += beside if path.stem == "conftest" else [path.stem]
            else:
                words = (path.name, f'"{Path(file).parts[0]}"')
                waiting += [stem for stem, text in self.texts.items() if any(word in text for word in words)]
        seen = set(waiting)
        while waiting:
            found = self.importers[waiting.pop()] - seen
            seen |= found
            waiting += found
        return {str(path.relative_to(ROOT)) for stem, path in self.tests.items() if stem in seen}


def chosen_files(passed: dict[str, str]) -> list[str]:
    """Test files whose marked tests a change asks for."""
    changed = changed_files(passed)
    if any(EVERYTHING.fullmatch(file) for file in changed):
        return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    return sorted(Graph().importing(changed)) if changed else []


class Selection:
    """What was asked for, what it chose, and how much of all that is."""

    def __init__(self, tier: str | None) -> None:
        self.tier, self.chosen, self.before = tier, list[str](), dict[str, str]()
        self.counts = ("", "")

    def runs(self, item: pytest.Item) -> bool:
        marks = {mark.name for mark in item.iter_markers()}
        path = str(item.path.relative_to(ROOT))
        if self.tier == "rest" and path in HELD and marks & {"whole", "slow", "quiet", "browser"}:
            return False
        if marks & APART:
            parts = {mark.kwargs["name"] for mark in item.iter_markers("extra")}
            return self.tier == "rest" and "soak" not in marks and not parts & EXTRAS.keys()
        is_asked = path in self.chosen and "slow" not in marks
        is_quick = "guarantee" in marks or not marks & {"whole", "slow"}
        return self.tier == "all" or (is_quick or is_asked) == (self.tier == "change")


KEY = pytest.StashKey[Selection]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=["change", "all", "rest"], help="which tests: tests/support/selection.py")


def pytest_configure(config: pytest.Config) -> None:
    """The process that was started chooses; it tells those of xdist."""
    config.stash[KEY] = state = Selection(config.getoption("--tier"))
    cache = getattr(config, "cache", None)  # none with -p no:cacheprovider
    if hasattr(config, "workerinput"):
        state.chosen = config.workerinput["chosen"]
    elif state.tier == "rest" and cache is not None:
        state.chosen = cache.get(CHOSEN, [])
    elif state.tier is not None and cache is not None:
        state.before = fingerprints()
        state.chosen = chosen_files(cache.get(RECORD, {})) if state.tier == "change" else []


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["chosen"] = node.config.stash[KEY].chosen


def _count(items: list[pytest.Item]) -> str:
    functions = {item.nodeid.partition("[")[0] for item in items}
    return f"{len(functions):,} ({len(items):,} with their parameters)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    state = config.stash[KEY]
    if state.tier is not None:
        left = [item for item in items if not state.runs(item)]
        items[:] = [item for item in items if state.runs(item)]
        state.counts = (_count(items), _count(left))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    node.config.stash[KEY].counts = getattr(node, "workeroutput", {}).get("counts", ("", ""))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Who ran all that was asked for, and saw it pass, need not run it again before something changes."""
    config, state = session.config, session.config.stash[KEY]
    if hasattr(config, "workeroutput"):
        config.workeroutput["counts"] = state.counts
        return
    narrowed = config.option.keyword or config.option.markexpr or config.args_source.name != "TESTPATHS"
    if exitstatus == 0 and state.before and not narrowed and config.cache:
        config.cache.set(RECORD, state.before)
        config.cache.set(CHOSEN, state.chosen)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    state = config.stash[KEY]
    ran, left = state.counts
    if state.tier is not None:
        more = {"change": "; `make test-all` runs all but soaks and what needs root or extras", "all": "", "rest": ""}
        terminalreporter.write_line(f"tests: {ran} ran, {left} left out{more[state.tier]}")

"""The rules of the house that no linter knows, read off the syntax tree of every source file."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("house rules")  # the source is read once

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "farflung"
ERRORS = ROOT / "docs" / "errors.md"
FILES = sorted(SOURCE.rglob("*.py"))
CODE = re.compile(r"FF-([A-Z]+)-(\d{3})")

MAX_FILE = 500
MAX_FUNCTION = 60
MAX_PARAMETERS = 7  # of a constructor
FREE = {"sync"}  # whose classes take the options that people choose by name
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
FIELD = {  # terms that end in -ing and are nouns, or stand before one
    *("annealing", "cheating", "clearing", "coding", "keyring", "matching", "metering", "opening", "timing", "training")
}
METAPHORS = frozenset(
    re.findall(
        r"\w+",
        """
    ahead altered anew attendant berth books brief chronicle contest counsel crew crews docket door
    duct fan fanway fare fares foreseen foretold frontdoor guessing handed hearer hearing junction
    keeper keeping knock laid leash lender lift likeness manners meetings mooring moorings muster
    neighbourhood outbox outlet panel perjurers pieces purse quarters reign roads rooms rung rungs
    seldom sharing shelf sightings signers silence spares speaker strip summoned tale telling
    tenancy tenure terrain tether thrift tidings till together tollgate turns valve vigil voices
    walk whereabouts workplace worth yardstick
    """,
    )
)
HEADLESS = re.compile(r"(What|Who|Whose|Whether|How|Where|When|Why|Which)\b")
OWNERS = {  # the rooms in which an area's errors are made: one code may tell them in other words there
    "CORE": {"core"},
    "SYNC": {"sync"},
    "LAB": {"local"},
    "COMP": {"compress"},
    "LEDG": {"ledger"},
    "NET": {"net"},
    "STOR": {"store"},
    "JOB": {"job"},
    "PLAN": {"plan", "advice"},
    "HOST": {"host"},
    "MARK": {"market", "advice"},
    "TRAIN": {"train"},
    "VERI": {"verify"},
    "WATCH": {"watch"},
    "APP": {"app", "local", "peers", "job"},
}
RUNS_MODELS = SOURCE / "train" / "user_module.py"  # the one place that runs a model's source, inside the worker
UNPICKLERS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(module: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a module: each rule goes through them, and to find them takes longer than to look at them."""
    return tuple(ast.walk(module))


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute; empty for anything else."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *[f"{node.module}.{name.name}" for name in node.names]]
    return []


def floats(module: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Whatever makes or needs a float: literals, true division, float(), math, statistics."""
    for node in nodes(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, float | complex):
            yield node, "a float literal"
        elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
            yield node, "true division"
        elif isinstance(node, ast.Name) and node.id in {"float", "complex"}:
            yield node, node.id
        elif isinstance(node, ast.Attribute) and node.attr in {"truediv", "fsum", "total_seconds"}:
            yield node, node.attr


def unpicklers(module: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Whatever runs what it reads."""
    for node in nodes(module):
        for name in imports(node):
            if name.split(".")[0] in UNPICKLERS or name == "torch.load" or name.startswith("torch.load."):
                yield node, name
        if isinstance(node, ast.Attribute) and dotted(node) in {"torch.load", "torch.package", "torch.jit.load"}:
            yield node, dotted(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}:
            yield node, node.func.id
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            value = node.value
            if not (isinstance(value, ast.Constant) and value.value is False):
                yield node.value, "allow_pickle"


def long_functions(module: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    for node in nodes(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > MAX_FUNCTION:
                yield node, f"{node.name} has {size} lines"


def codes(module: ast.Module) -> Iterator[tuple[str, ast.Constant]]:
    """Each string that is wholly an `FF-XXX-NNN`: where the error (or the warning) is made."""
    for node in nodes(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
            yield node.value, node


@cache
def all_codes() -> dict[str, list[str]]:
    """Every error code of the source with the places where it is made."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for code, node in codes(tree(path)):
            found[code].append(place(path, node))
    return dict(found)


def made(module: ast.Module) -> Iterator[tuple[str, str, str]]:
    """(code, error class, fixed part of the message) of each error that is built on the spot."""
    for node in nodes(module):
        if isinstance(node, ast.Call) and len(node.args) > 1 and dotted(node.func).endswith("Error"):
            code, message = node.args[0], node.args[1]
            if isinstance(code, ast.Constant) and isinstance(code.value, str) and CODE.fullmatch(code.value):
                yield code.value, dotted(node.func).split(".")[-1], fixed_text(message)


def fixed_text(node: ast.expr) -> str:
    """A message without what is filled in."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)


def test_the_ledger_knows_no_floats() -> None:
    broken = [
        f"{place(path, node)}: {what}"
        for path in FILES
        if path.is_relative_to(SOURCE / "ledger")
        for node, what in floats(tree(path))
    ]
    assert broken == []


def test_nothing_that_is_read_is_run() -> None:
    found = [(path, node, what) for path in FILES for node, what in unpicklers(tree(path))]
    broken = [f"{place(path, node)}: {what}" for path, node, what in found if (path, what) != (RUNS_MODELS, "exec")]
    assert broken == []


def test_no_file_is_over_500_lines() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {path: size for path, size in sizes.items() if size > MAX_FILE} == {}


def test_no_function_is_over_60_lines() -> None:
    broken = [f"{place(path, node)}: {what}" for path in FILES for node, what in long_functions(tree(path))]
    assert broken == []


def test_no_module_has_a_vague_name() -> None:
    names = [path for path in FILES if VAGUE & {path.stem, *path.relative_to(SOURCE).parts}]
    assert names == []


def test_every_module_says_in_its_head_what_it_decides() -> None:
    """In a plain sentence, with a subject."""
    broken = []
    for path in FILES:
        first = (ast.get_docstring(tree(path)) or "").split("\n\n")[0]
        if HEADLESS.match(first) or "Part of" in first or not first.endswith((".", ":")):
            broken.append(f"{path.relative_to(ROOT)}: {first}")
    assert broken == []


def test_names_are_nouns_of_the_field() -> None:
    """No gerund and no metaphor names a module; no metaphor a public class."""
    broken = [
        str(path.relative_to(ROOT))
        for path in FILES
        for word in (*path.stem.split("_"), *path.parent.name.split("_"))
        if (word.endswith("ing") and word not in FIELD) or word in METAPHORS
    ]
    assert broken == []
    words = {name: re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", name) for name in public_classes()}
    assert [name for name, parts in words.items() if METAPHORS & {part.lower() for part in parts}] == []


def public_classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(place(path, node))
    return found


def test_no_two_public_classes_have_one_name() -> None:
    assert {name: places for name, places in public_classes().items() if len(places) > 1} == {}


def large_constructors(module: ast.Module) -> Iterator[tuple[ast.ClassDef, int]]:
    for kind in nodes(module):
        for node in kind.body if isinstance(kind, ast.ClassDef) else ():
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                a = node.args
                count = len([*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]) - 1
                if count > MAX_PARAMETERS:
                    yield kind, count


def test_no_constructor_takes_more_than_seven_parameters() -> None:
    rooms = [path for path in FILES if path.relative_to(SOURCE).parts[0] not in FREE]
    broken = {kind.name: count for path in rooms for kind, count in large_constructors(tree(path))}
    assert not broken, broken


def test_folders_are_at_most_two_deep() -> None:
    assert [str(path) for path in FILES if len(path.relative_to(SOURCE).parts) > 3] == []


def test_a_code_has_one_meaning() -> None:
    """One code, one class of error (and so one exit status); outside its own rooms only with the very same message."""
    classes: dict[str, set[str]] = defaultdict(set)
    messages: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in FILES:
        for code, kind, message in made(tree(path)):
            classes[code].add(kind)
            room = path.relative_to(SOURCE).parts[0]
            messages[code]["" if room in OWNERS[code.split("-")[1]] else room].add(message)
    assert {code: sorted(kinds) for code, kinds in classes.items() if len(kinds) > 1} == {}
    shared = {code: dict(by) for code, by in messages.items() if len(by) > 1}
    assert {code: by for code, by in shared.items() if len(set().union(*by.values())) > 1} == {}


def test_a_code_names_the_package_that_owns_it() -> None:
    unknown = {code for code in all_codes() if code.split("-")[1] not in OWNERS}
    assert unknown == set()
    homeless = {
        code: spots
        for code, spots in all_codes().items()
        if not OWNERS[code.split("-")[1]] & {Path(spot).parts[2] for spot in spots}
    }
    assert homeless == {}


def test_every_error_of_the_page_says_what_went_wrong() -> None:
    """The page itself: test_house_error_texts."""
    silent = [line for line in ERRORS.read_text("utf-8").splitlines() if re.match(r"\| `FF-[^|]*\|[^|]*\| +\|", line)]
    assert silent == [], "nothing says what went wrong: a remark after the code's line does"


def test_who_runs_tests_by_their_marks_finds_the_files_by_what_is_written_in_them() -> None:
    """.ci/run reads only test files that name one of its marks: no helper may hold one for them."""
    (asked,) = re.findall(r"'(mark.*?)' tests", (ROOT / ".ci" / "run").read_text())
    for mark in ("whole", "slow", "extra", "browser", "netns"):
        assert re.search(asked, f"@pytest.mark.{mark}"), mark
    elsewhere = [
        path.name
        for path in (ROOT / "tests").rglob("*.py")
        if not path.name.startswith("test_") and re.search(asked, path.read_text())
    ]
    assert elsewhere == []


ROOTED = {"netns", "computers"}  # folders of tests that need root
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def guarantees_of(path: Path) -> set[str]:
    """The tests of a file that `make test` never leaves out; of those that need root, all: .ci/run runs their files."""
    text, is_root = path.read_text("utf-8"), bool(ROOTED & set(path.parts))
    if not is_root and "pytest.mark.guarantee" not in text:
        return set()
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {f.name for f in functions if is_root or "pytest.mark.guarantee" in map(ast.unparse, f.decorator_list)}


def table_rows(page: str) -> list[str]:
    """The rows of all tables whose head begins with `claim`."""
    tables = re.findall(r"^\| claim[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n?)+)", page, re.MULTILINE)
    return [row for table in tables for row in table.splitlines()]


def test_each_guarantee_names_a_test_that_is_never_left_out() -> None:
    rows = table_rows((ROOT / "docs" / "guarantees.md").read_text("utf-8"))
    assert len(rows) > 15
    named = {row: NAMED.findall(row) for row in rows if "bench/" not in row}  # a measurement has a benchmark
    unseen = [
        row for row, tests in named.items() if not any(test in guarantees_of(ROOT / file) for file, test in tests)
    ]
    assert unseen == []
    marked = {
        (path.relative_to(ROOT).as_posix(), test)
        for path in (ROOT / "tests").rglob("test_*.py")
        if not ROOTED & set(path.parts)
        for test in guarantees_of(path)
    }
    assert marked - {pair for tests in named.values() for pair in tests} == set(), "marked, and in no row"


def test_each_claim_of_the_readme_names_files_of_the_guarantees() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
    rows = table_rows((ROOT / "README.md").read_text("utf-8"))
    assert len(rows) > 4
    shown = {row: re.findall(r"\((tests/[^)]*)\)", row) for row in rows}
    assert [row for row, files in shown.items() if not files or any(f"`{file}::" not in page for file in files)] == []


def test_a_row_without_a_marked_test_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "test_some.py"
    path.write_text("@pytest.mark.guarantee\n@pytest.mark.whole\ndef test_a(): ...\n\n\n@x\ndef test_b(): ...\n")
    assert guarantees_of(path) == {"test_a"}
    assert table_rows("| a |\n|---|\n| no |\n\n| claim, here | x |\n|---|---|\n| yes | 1 |\n") == ["| yes | 1 |"]


def test_test_files_have_unique_names() -> None:
    seen: dict[str, list[Path]] = defaultdict(list)
    for path in (ROOT / "tests").rglob("test_*.py"):
        seen[path.name].append(path)
    assert {name: paths for name, paths in seen.items() if len(paths) > 1} == {}


# Each reader above finds what it looks for: a rule that cannot fail would be no rule.


@pytest.mark.parametrize("code", ["x = 1.0", "x = a / b", "x /= 2", "float(x)", "def f(a: float): ...", "1j"])
def test_the_float_rule_sees(code: str) -> None:
    assert list(floats(ast.parse(code)))


def test_the_float_rule_lets_whole_numbers_pass() -> None:
    assert not list(floats(ast.parse("x = a // b + 1 - divmod(a, 2)[1]\ny = 'a / b 1.0'")))


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from marshal import loads",
        "def f():\n    import shelve",
        "torch.load(x)",
        "from torch import load",
        "f = torch.load",
        "eval(x)",
        "np.load(p, allow_pickle=True)",
        "np.load(p, allow_pickle=flag)",
    ],
)
def test_the_unpickling_rule_sees(code: str) -> None:
    assert list(unpicklers(ast.parse(code)))


def test_the_unpickling_rule_lets_safe_loading_pass() -> None:
    assert not list(unpicklers(ast.parse("np.load(p, allow_pickle=False)\nmodel.eval()\nsafetensors.numpy.load(x)")))


def test_the_length_rule_sees() -> None:
    body = "\n".join("    pass" for _ in range(MAX_FUNCTION))
    assert list(long_functions(ast.parse(f"async def f():\n{body}")))
    assert not list(long_functions(ast.parse("def f():\n" + body[: body.rindex("\n")])))


def test_the_constructor_rule_sees() -> None:
    many = "class A:\n    def __init__(self, a, b, c, d, e, f, *, g{}): ..."
    assert list(large_constructors(ast.parse(many.format(", h"))))
    assert not list(large_constructors(ast.parse(many.format(""))))


def test_the_code_collector_sees_values_and_not_prose() -> None:
    module = ast.parse(
        '"""Raises FF-A-001."""\nraise E("FF-B-002", "m", hint="FF-C-003")\nif e.code == "FF-D-004": f()'
    )
    assert {code for code, _ in codes(module)} == {"FF-B-002", "FF-C-003", "FF-D-004"}


def test_the_meaning_collector_sees_class_and_message() -> None:
    module = ast.parse('raise NetworkError("FF-B-002", f"no {x} here", cause="c")\nlog("FF-B-003", "m")')
    assert list(made(module)) == [("FF-B-002", "NetworkError", "no {} here")]

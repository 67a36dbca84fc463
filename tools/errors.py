"""Writes docs/errors.md from the source: what each error says is read off the calls that make it.

    python tools/errors.py            writes the page
    python tools/errors.py --check    only compares it: exit status 1 where it differs

An error is made by `SomeError("FF-X-001", message, cause=, hint=)`, or by a function of the same module or package
that is given the code and the message. `…` stands for what is filled in when it happens.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "farflung"
PAGE = ROOT / "docs" / "errors.md"
CODE = re.compile(r"FF-([A-Z]+)-\d{3}")
TABLE = "| code | class, exit status | message | cause | next step |\n|---|---|---|---|---|"
MOST = 3  # ways to say one thing that are listed
AREAS = {
    "APP": "running, resuming, and what roles say to each other",
    "COMP": "payloads and the merge",
    "CORE": "ids, money, encoding, keys, files",
    "HOST": "worker processes, and what `farflung check` finds",
    "JOB": "job files, data, models",
    "LAB": "simulated lines",
    "LEDG": "the ledger",
    "MARK": "finding providers",
    "NET": "connections",
    "PLAN": "plans",
    "STOR": "stored objects",
    "SYNC": "the methods in your own loop",
    "TRAIN": "training",
    "VERI": "`farflung verify-run`",
    "WATCH": "events",
}
HEAD = """# Error codes

Every error that a person can meet has a code, a cause and one thing to try:

    error[FF-JOB-001]: unknown key "rouds" at the top level
      cause: job.toml line 2
      try:   did you mean "rounds"?

The middle of a code names the area of the rule, and the class of the error gives the exit status of the command: 1 the
run failed · 2 not understood · 3 network · 4 refused by policy · 5 verification failed · 130 stopped by you (the error
tree stands in `core/errors.py`). A code is never used twice. `…` stands for what is filled in; a slash separates what
one code says in several places. Where no class stands, the code is that of a warning, of a finding, or of a
transaction that a ledger refuses. `farflung -v …` adds the traceback. `tools/errors.py` writes this page from the
source.

A `ProtocolError` without a next step is *a peer's fault*: bytes from elsewhere broke a rule; the connection or the peer
is dropped, and the others go on. Any other error without one that you meet is *a mistake in farflung*: please report it
with the output of `farflung -v`.
"""


@dataclass
class Row:
    """What is known of one code."""

    classes: set[str] = field(default_factory=set)
    columns: tuple[list[str], list[str], list[str]] = field(
        default_factory=lambda: ([], [], [])
    )  # message, cause, step


class Module:
    """A source file: its tree, the parent of each node, its functions and what its names stand for."""

    def __init__(self, path: Path) -> None:
        self.lines = path.read_text("utf-8").splitlines()
        self.tree = ast.parse("\n".join(self.lines))
        self.nodes: list[ast.AST] = [self.tree]
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in self.nodes:  # which grows while it is walked
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                self.nodes.append(child)
        self.codes = dict(self._constants())

    def _constants(self) -> Iterator[tuple[str, str]]:
        for node in self.tree.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            value = getattr(node, "value", None)
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and CODE.fullmatch(str(value.value)):
                yield target.id, str(value.value)

    def around(self, node: ast.AST) -> ast.AST:
        """The function that a node stands in, or the module."""
        while node in self.parents and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node = self.parents[node]
        return node

    def text(self, node: ast.AST | None, depth: int = 0) -> str:
        """A message without what is filled in; empty where nothing of it is written here."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else ""
        if isinstance(node, ast.JoinedStr):
            return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)  # type: ignore[misc]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return (self.text(node.left, depth) or "…") + (self.text(node.right, depth) or "…")
        if isinstance(node, ast.IfExp):
            return _joined([self.text(node.body, depth), self.text(node.orelse, depth)])
        if isinstance(node, ast.Subscript):
            return self.text(node.value, depth)
        if isinstance(node, ast.BoolOp):
            return _joined([self.text(value, depth) for value in node.values])
        if isinstance(node, ast.Name) and depth < 2:
            return _joined([self.text(value, depth + 1) for value in self._assigned(node)])
        return ""

    def _assigned(self, name: ast.Name) -> Iterator[ast.AST]:
        """What a name is given in the function that it is used in, and at the top of the module."""
        scope = self.around(name)
        for node in [*(() if scope is self.tree else ast.walk(scope)), *self.tree.body]:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            value = getattr(node, "value", None)
            if isinstance(value, ast.AST) and any(isinstance(t, ast.Name) and t.id == name.id for t in targets):
                yield value


def _joined(texts: list[str]) -> str:
    kept = dict.fromkeys(text for text in texts if text.strip(" …") and not CODE.fullmatch(text))
    return " / ".join(list(kept)[:MOST])


@cache
def modules() -> dict[Path, Module]:
    """Every file of the package."""
    return {path: Module(path) for path in sorted(SOURCE.rglob("*.py"))}


@cache
def classes() -> dict[str, str]:
    """Each class of error with the exit status that it or its nearest base states."""
    found = {n.name: n for m in modules().values() for n in m.nodes if isinstance(n, ast.ClassDef)}

    def status(name: str) -> str:
        if name not in found:
            return ""
        for node in found[name].body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "exit_code":
                return ast.unparse(node.value)
        return next(filter(None, (status(ast.unparse(base).split(".")[-1]) for base in found[name].bases)), "")

    return {name: code for name in found if name.endswith("Error") and (code := status(name))}


def _called(call: ast.Call) -> str:
    """The last part of the name that is called."""
    if isinstance(call.func, ast.Name):  # nearly all; to write an expression out takes long
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func).split(".")[-1]


@cache
def _makers() -> dict[str, list[tuple[Module, list[ast.Call]]]]:
    """Functions that make errors, by their names: where they stand, and the calls in which they do."""
    found: dict[str, dict[int, tuple[Module, list[ast.Call]]]] = defaultdict(dict)
    for module in modules().values():
        for node in module.nodes:
            if isinstance(node, ast.Call) and _called(node) in classes():
                function = module.around(node)
                name = getattr(function, "name", "")
                found[name].setdefault(id(function), (module, []))[1].append(node)
    return {name: list(by.values()) for name, by in found.items()}


def _words(module: Module, call: ast.Call, at: ast.AST) -> tuple[str, str, str]:
    """Message, cause and next step of a call that is given a code."""
    given = {word.arg: word.value for word in call.keywords if word.arg}
    after = call.args[call.args.index(at) + 1 :] if at in call.args else []  # type: ignore[arg-type]
    if _called(call) == "ProbeFinding":  # name, state, measured, cause, step, code
        name, cause, step = (module.text(value) for value in (call.args[0], *call.args[3:5]))
        failing = f"`farflung check` finds that this fails: {name}" if isinstance(at, ast.Constant) else ""
        return failing, cause, step
    told = next(iter(after), given.get("message") or given.get("what"))
    step = given.get("hint") or given.get("step")
    return module.text(told), module.text(given.get("cause")), module.text(step)


def _through(module: Module, call: ast.Call, row: Row, message: str, cause: str, step: str) -> tuple[str, str, str]:
    """What a function makes of the code and the words that it is given."""
    makers = _makers().get(_called(call), [])
    of, calls = next((each for each in makers if each[0] is module), makers[0] if makers else (module, []))
    for made in calls:
        row.classes.add(_called(made))
        said = _words(of, made, made.args[0] if made.args else made)
        if said[0].strip(" …"):
            message = (message and said[0][::-1].replace("…", message[::-1], 1)[::-1]) or said[0]
        cause, step = cause or said[1], step or said[2]
    return message, cause, step


def _site(module: Module, node: ast.AST, row: Row) -> tuple[str, str, str]:
    """What one place that writes a code, or the name of one, tells of it: message, cause, next step."""
    at = module.parents.get(node)
    at = module.parents.get(at) if isinstance(at, ast.keyword | ast.IfExp) else at
    at = module.parents.get(at) if isinstance(at, ast.keyword) else at
    if isinstance(at, ast.Tuple):
        message = next((text for value in at.elts[at.elts.index(node) + 1 :] if (text := module.text(value))), "")  # type: ignore[arg-type]
        loop = module.parents.get(module.parents[at])
        calls = [n for n in ast.walk(loop) if isinstance(n, ast.Call)] if isinstance(loop, ast.For) else []
        found = next((call for call in calls if _called(call) in _makers()), None)
        return _through(module, found, row, message, "", "") if found else (message, "", "")
    if not isinstance(at, ast.Call):
        return "", "", ""
    if _called(at) in classes():
        row.classes.add(_called(at))
        return _words(module, at, node)
    return _through(module, at, row, *_words(module, at, node))


def rows() -> dict[str, Row]:
    """Every code of the source, in order."""
    found: dict[str, Row] = defaultdict(Row)
    named = {name: code for module in modules().values() for name, code in module.codes.items()}
    for module in modules().values():
        for node in module.nodes:
            if isinstance(node, ast.Constant) and CODE.fullmatch(str(node.value)):
                code = str(node.value)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                name = node.id if isinstance(node, ast.Name) else node.attr
                code = module.codes.get(name, named.get(name, ""))
            else:
                continue
            if code:
                message, cause, step = _site(module, node, found[code])
                remark = module.lines[node.lineno - 1].partition("  # ")[2] if isinstance(node, ast.Constant) else ""
                for kept, text in zip(found[code].columns, (remark or message, cause, step), strict=True):
                    kept.append(text)
    return dict(sorted(found.items()))


def _cell(texts: list[str]) -> str:
    plain = (re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("<", "&lt;") for text in texts)
    kept = sorted({text for text in plain if text.strip(" …")})
    return " / ".join(kept[:MOST])


def page() -> str:
    """The whole page."""
    parts, area = [HEAD], ""
    for code, row in rows().items():
        if (own := code.split("-")[1]) != area:
            area = own
            parts.append(f"\n\n## {area}: {AREAS[area]}\n\n{TABLE}")
        kinds = ", ".join(f"{name} {classes()[name]}" for name in sorted(row.classes))
        cells = " | ".join(_cell(texts) for texts in row.columns)
        parts.append(f"\n| `{code}` | {kinds} | {cells} |")
    return "".join(parts) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(page() != PAGE.read_text("utf-8"))
    PAGE.write_text(page(), "utf-8")

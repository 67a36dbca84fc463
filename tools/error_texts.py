"""Renders the sentences of every error with sample values, and says which of them are broken.

    python tools/error_texts.py       prints what is broken: exit status 1 where there is anything

Each way through a sentence is rendered: both sides of a condition, every value that a name is given, each text that
a caller hands to a function that makes errors, and each text that is put into a field that a sentence quotes. What
cannot be known here (a name, a number) is a sample.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import count, islice, product
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
import errors

MOST: Final = 64  # ways of one sentence that are rendered
DEPTH: Final = 5  # names and calls that are followed
SAMPLE: Final = "\ue000"  # stands before a sample's number, and behind it
OPEN, CLOSE = "\ue001", "\ue002"  # round a phrase of another module
_SAMPLE: Final = re.compile(f"{SAMPLE}\\d+{SAMPLE}")
_NUMBER: Final = re.compile(r"^[,.\d+<>^ ]*[dfegn%x]?$|^[,.]")
FRAGMENTS: Final = {  # fields of structs that sentences quote, and the structs that they are fields of
    "least.shortcut.about": ("ShortcutDistance",),
    "shortcut.about": ("Shortcut",),
    "binding.cause": ("InfeasibleOption",),
    "binding.help": ("InfeasibleOption",),
    "nearest.cause": ("InfeasibleOption",),
    "nearest.constraint": ("InfeasibleOption",),
    "nearest.help": ("InfeasibleOption",),
    "fate.why": ("TransactionOutcome",),
}
PHRASES: Final = frozenset({"about", "cause", "constraint", "help", "hint", "message", "reason", "why", "words"})
_KEPT: Final = frozenset({"strip", "rstrip", "lstrip", "lower", "removeprefix", "removesuffix", "splitlines"})


class Sentence(NamedTuple):
    """One way in which one part of an error may read: its `message`, `cause` or `hint`."""

    place: str
    part: str
    text: str


class Renderer:
    """Renders the expressions of all modules."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._rendered: dict[ast.AST | None, list[str]] = {}

    def _fragment(self, text: str) -> str:
        """A phrase that another module puts into a sentence, between marks."""
        return f"{OPEN}{text}{CLOSE}" if " " in text.strip() and OPEN not in text else text

    def _sample(self) -> str:
        return f"{SAMPLE}{next(self._numbers)}{SAMPLE}"

    def render(self, module: errors.Module, node: ast.AST | None, depth: int = 0) -> list[str]:
        """The ways in which an expression may read; at least one. Inside itself it is a sample."""
        if node not in self._rendered:
            self._rendered[node] = [self._sample()]
            ways = list(dict.fromkeys(islice(self._ways(module, node, depth), MOST)))
            if is_guarded(module, node):
                ways = [text for text in ways if text]
            self._rendered[node] = ways or self._rendered[node]
        return self._rendered[node]

    def _ways(self, module: errors.Module, node: ast.AST | None, depth: int) -> Iterator[str]:
        if node is None:
            yield ""
        elif isinstance(node, ast.Constant):
            yield node.value if isinstance(node.value, str) else self._sample()
        elif depth > DEPTH:
            yield self._sample()
        elif isinstance(node, ast.JoinedStr):
            yield from self._joined(module, node.values, depth)
        elif isinstance(node, ast.FormattedValue):
            yield from self._formatted(module, node, depth)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield from self._joined(module, [node.left, node.right], depth)
        elif isinstance(node, ast.IfExp):
            yield from self.render(module, node.body, depth)
            yield from self.render(module, node.orelse, depth)
        elif isinstance(node, ast.BoolOp):
            values = node.values if isinstance(node.op, ast.Or) else node.values[-1:]
            for value in values:
                yield from (text for text in self.render(module, value, depth) if text)
        elif isinstance(node, ast.Subscript):
            yield from self._taken(module, node, depth)
        elif isinstance(node, ast.Name):
            yield from self._named(module, node, depth)
        elif isinstance(node, ast.Attribute):
            yield from self._field(node, depth)
        elif isinstance(node, ast.Call):
            yield from self._called(module, node, depth)
        else:
            yield self._sample()

    def _joined(self, module: errors.Module, parts: Iterable[ast.AST], depth: int) -> Iterator[str]:
        rendered = [self.render(module, part, depth) for part in parts]
        longest = max(map(len, rendered), default=0)
        total = 1
        for each in rendered:
            total *= len(each)
        if total <= MOST:
            yield from ("".join(texts) for texts in product(*rendered))
            return
        for place in range(longest):  # too many: each way of each part comes once
            yield "".join(each[place % len(each)] for each in rendered)

    def _formatted(self, module: errors.Module, node: ast.FormattedValue, depth: int) -> Iterator[str]:
        spec = "".join(part.value for part in getattr(node.format_spec, "values", []) if isinstance(part, ast.Constant))
        if node.format_spec is not None and _NUMBER.match(str(spec)):
            yield self._sample()
            return
        quote = "'" if node.conversion == ord("r") else ""
        yield from (f"{quote}{text}{quote}" for text in self.render(module, node.value, depth))

    def _taken(self, module: errors.Module, node: ast.Subscript, depth: int) -> Iterator[str]:
        """A part of a text is the text; an entry of a table is any of its values."""
        table = node.value
        found = list(module._assigned(table)) if isinstance(table, ast.Name) else [table]
        for each in found:
            if isinstance(each, ast.Dict):
                for value in each.values:
                    yield from self.render(module, value, depth + 1)
        if isinstance(node.slice, ast.Slice):
            yield from self.render(module, table, depth)

    def _named(self, module: errors.Module, node: ast.Name, depth: int) -> Iterator[str]:
        scope = module.around(node)
        values = list(module._assigned(node))
        for value in values:
            yield from self.render(module, value, depth + 1)
        for loop in () if scope is module.tree else ast.walk(scope):
            if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Tuple | ast.List):
                yield from self._looped(module, loop, node.id, depth)
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [a.arg for a in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)]
            if node.id in names:
                yield from self._handed(module, scope, node.id, depth)

    def _looped(self, module: errors.Module, loop: ast.For, name: str, depth: int) -> Iterator[str]:
        targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        place = next((n for n, t in enumerate(targets) if isinstance(t, ast.Name) and t.id == name), None)
        for row in loop.iter.elts if place is not None else ():  # type: ignore[attr-defined]
            if len(targets) == 1:
                yield from self.render(module, row, depth + 1)
            elif isinstance(row, ast.Tuple) and len(row.elts) == len(targets):
                yield from self.render(module, row.elts[place], depth + 1)  # type: ignore[index]

    def _handed(
        self, module: errors.Module, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, depth: int
    ) -> Iterator[str]:
        """What callers give a parameter."""
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        is_method = bool(names) and names[0] in ("self", "cls")
        called = function.name
        if called == "__init__":
            called = class_of(module, function)
        for other, call in callers().get(called, []):
            if other is not module and (called.startswith("_") or len(makers().get(called, [])) > 1):
                continue  # another module's own function of that name
            given = {word.arg: word.value for word in call.keywords}
            place = names.index(name) - is_method if name in names else None
            value = given.get(name)
            if value is None and place is not None and 0 <= place < len(call.args):
                value = call.args[place]
            if value is None or isinstance(value, ast.Starred):
                continue
            for text in self.render(other, value, depth + 1):
                yield text if other is module else self._fragment(text)
        default = default_of(function, name)
        if default is not None:
            yield from self.render(module, default, depth + 1)

    def _field(self, node: ast.Attribute, depth: int) -> Iterator[str]:
        """Every text that is put into a field of FRAGMENTS; of another field with such a name, any phrase."""
        found: list[str] = []
        if node.attr in PHRASES and ast.unparse(node) not in FRAGMENTS:
            found.append(self._fragment("a phrase of any form"))
        for struct in FRAGMENTS.get(ast.unparse(node), ()):
            for module, value in fields(struct).get(node.attr, []):
                found += map(self._fragment, self.render(module, value, depth + 1))
        yield from found

    def _called(self, module: errors.Module, node: ast.Call, depth: int) -> Iterator[str]:
        function = node.func
        if isinstance(function, ast.Attribute):
            if function.attr == "join" and isinstance(function.value, ast.Constant) and node.args:
                yield from self._listed(module, str(function.value.value), node.args[0], depth)
            elif function.attr in _KEPT:
                yield from self.render(module, function.value, depth)
            elif function.attr == "format":
                for text in self.render(module, function.value, depth):
                    yield re.sub(r"\{[^{}]*\}", lambda _: self._sample(), text)
            else:
                yield self._sample()
            return
        name = getattr(function, "id", "")
        for made in [node for node in module.tree.body if isinstance(node, ast.FunctionDef) and node.name == name]:
            for part in ast.walk(made):
                if isinstance(part, ast.Return) and part.value is not None:
                    yield from self.render(module, part.value, depth + 1)

    def _listed(self, module: errors.Module, between: str, items: ast.AST, depth: int) -> Iterator[str]:
        if isinstance(items, ast.GeneratorExp | ast.ListComp):
            ways = self.render(module, items.elt, depth + 1)
            yield ways[0]
            yield between.join([ways[0], ways[-1] if len(ways) > 1 else self._sample()])
        elif isinstance(items, ast.Tuple | ast.List):
            yield between.join(self.render(module, item, depth + 1)[0] for item in items.elts)
        else:
            yield self._sample()
            yield between.join((self._sample(), self._sample()))


def is_guarded(module: errors.Module, node: ast.AST | None) -> bool:
    """Whether a name or field is used only where it is not empty: `if name:`, `... if name else ...`."""
    if not isinstance(node, ast.Name | ast.Attribute):
        return False
    text, inner = ast.unparse(node), module.parents.get(node)
    child: ast.AST = node
    while inner is not None and not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
        within = inner.body if isinstance(inner, ast.If) else [inner.body] if isinstance(inner, ast.IfExp) else []
        if child in within and ast.unparse(inner.test) == text:  # type: ignore[attr-defined]
            return True
        child, inner = inner, module.parents.get(inner)
    return False


def class_of(module: errors.Module, node: ast.AST) -> str:
    """The name of the class that a node stands in."""
    while node in module.parents and not isinstance(node, ast.ClassDef):
        node = module.parents[node]
    return getattr(node, "name", "")


@cache
def callers() -> dict[str, list[tuple[errors.Module, ast.Call]]]:
    """The calls of each name."""
    found: dict[str, list[tuple[errors.Module, ast.Call]]] = defaultdict(list)
    for module in errors.modules().values():
        for node in module.nodes:
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                found[name].append((module, node))
    return found


@cache
def makers() -> dict[str, list[ast.AST]]:
    """The functions and classes of each name."""
    found: dict[str, list[ast.AST]] = defaultdict(list)
    for module in errors.modules().values():
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[node.name].append(node)
    return found


@cache
def fields(struct: str) -> dict[str, list[tuple[errors.Module, ast.AST]]]:
    """What is put into the fields of a struct, by the field's name."""
    found: dict[str, list[tuple[errors.Module, ast.AST]]] = defaultdict(list)
    (made,) = [node for node in makers()[struct] if isinstance(node, ast.ClassDef)]
    rows = [row.target.id for row in made.body if isinstance(row, ast.AnnAssign) and isinstance(row.target, ast.Name)]
    for module, call in callers()[struct]:
        given = dict(zip(rows, call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}
        for name, value in given.items():
            found[name].append((module, value))
    return found


def default_of(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.AST | None:
    """What a parameter is where nobody gives it."""
    positional = [*function.args.posonlyargs, *function.args.args]
    defaults = dict(zip([a.arg for a in positional][::-1], function.args.defaults[::-1], strict=False))
    keyword = {a.arg: d for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)}
    return defaults.get(name) or keyword.get(name)


def sentences(renderer: Renderer) -> Iterator[Sentence]:
    """Every way of every part of every error of the package."""
    for path, module in errors.modules().items():
        for node in module.nodes:
            if not isinstance(node, ast.Call) or errors._called(node) not in errors.classes():
                continue
            given = {word.arg: word.value for word in node.keywords}
            parts = {"message": node.args[1] if len(node.args) > 1 else given.get("message")}
            parts |= {part: given[part] for part in ("cause", "hint") if part in given}
            place = f"{path.relative_to(errors.SOURCE)}:{node.lineno}"
            for part, value in parts.items():
                if value is not None:
                    for text in renderer.render(module, value):
                        yield Sentence(place, part, text)


_ARTICLES: Final = re.compile(
    r"\b[Aa] (?!one|uni|una|use|eu|u\b)[aeiou]|\b[Aa]n (?!hour|honest|nn\.|[fhlmnrsx]\b)[bcdfghj-np-tv-z]"
)
BROKEN: Final = {  # what is wrong with a sentence, and what shows it
    "two blanks, or one at an end": re.compile(r"  |^\s|\s$"),
    "a blank before a point or comma": re.compile(r" [,;:)](?:\s|$)| \.(?:\s|$)"),
    "two points or commas": re.compile(r"[,;:] ?[,;:.](?:\s|$)|(?<!\.)\.\.(?!\.)"),
    "a point, comma or bracket at its end": re.compile(r"(?<!\.\.)[.,;:({]$"),
    "nothing between quotes or brackets": re.compile(r"(?<!\w)''(?!\w)|``|\"\"|(?<![\w\]])\(\)|(?<![\w=])\[\]"),
    "a name that was not filled in": re.compile(r"\{\w*\}|%[sdr]\b|\bNone\b"),
    "a word that comes twice": re.compile(r"(?<!-)\b([A-Za-z]+) \1\b(?!\.\w)"),
    "a where an belongs, or an where a": _ARTICLES,
    "an article before nothing": re.compile(
        r"\b(?:[Aa]n?|[Tt]he) (?:an?|the|of|in|to|is|are|and|or|by|at|for|from|with|has)\b"
    ),
    "a preposition before nothing": re.compile(
        r"\b(?:of|into|by|from|with|for) (?:is|are|has|have|and|or|of|into|from)\b"
    ),
}
_BESIDE: Final = re.compile(r"(?:: |; |, |\(|['\"`])$")  # what may stand before a phrase of any form


def faults(sentence: Sentence) -> Iterator[str]:
    """What is wrong with a sentence."""
    text = _SAMPLE.sub("Xx7", plain(sentence.text))
    if sentence.part == "message" and not text.strip():
        yield "a message without words"
    yield from (fault for fault, shows in BROKEN.items() if shows.search(text))


def plain(text: str) -> str:
    """A sentence without the marks of phrases."""
    return text.replace(OPEN, "").replace(CLOSE, "")


def shown(text: str) -> str:
    """A sentence as a person reads it: … for what is filled in, <phrases> of other modules."""
    return _SAMPLE.sub("…", text).replace(OPEN, "<").replace(CLOSE, ">")


def is_glued(text: str) -> bool:
    """Whether a phrase of another module stands in the middle of a sentence, whose grammar it has to fit."""
    inner = re.sub(f"^{OPEN}[^{CLOSE}]*{CLOSE}(?=[:;]|$)", "", text)
    return any(not _BESIDE.search(plain(inner[: at.start()])) for at in re.finditer(OPEN, inner))


if __name__ == "__main__":
    found = [(each, fault) for each in sentences(Renderer()) for fault in faults(each)]
    for each, fault in found:
        sys.stdout.write(f"{each.place} {each.part}: {fault}: {shown(each.text)}\n")
    sys.exit(bool(found))

"""A change of any wire format changes a line of `tests/conformance.toml`, which a reviewer sees.

For each struct that is hashed, signed or sent, 2,000 values from a seed are encoded and hashed. To accept a change:

    FARFLUNG_BLESS=1 python -m pytest tests/house/test_house_conformance.py
"""

from __future__ import annotations

import ast
import enum
import importlib
import os
import random
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from farflung.core.codec import Wire, decode, encode
from farflung.core.ids import Hash, PeerId, Signature
from farflung.core.money import MAX_CREDITS, Credits

pytestmark = pytest.mark.xdist_group("wire types")  # they are found once

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
FROZEN = ROOT / "tests" / "conformance.toml"
ENCODINGS = 2000
DEPTH = 4  # below this, tuples are empty and unions take their first member

Make = Callable[[random.Random, int], Any]


# Which modules: all but those that import torch, directly or through others.


def _name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, ast.Module]:
    found = {_name(path): ast.parse(path.read_text("utf-8")) for path in sorted((SOURCE / "farflung").rglob("*.py"))}
    return {name: tree for name, tree in found.items() if not name.endswith("__main__")}


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:  # at the top only: what a function imports is not loaded with the module
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


@cache
def with_torch() -> frozenset[str]:
    """Modules that load torch when they are imported."""
    needs = {name: set(_imported(tree)) for name, tree in modules().items()}
    found = {name for name, wanted in needs.items() if any(w.split(".")[0] == "torch" for w in wanted)}
    while more := {name for name, wanted in needs.items() if wanted & found} - found:
        found |= more
    return frozenset(found)


@cache
def wire_types() -> dict[str, type[Wire]]:
    """Every subclass of Wire in the package, by its full name."""
    for name in modules():
        if name not in with_torch():
            importlib.import_module(name)
    found: dict[str, type[Wire]] = {}
    waiting: list[type[Wire]] = [Wire]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind.__module__.startswith("farflung."):
                found[f"{kind.__module__}.{kind.__qualname__}"] = kind
    return dict(sorted(found.items()))


# Values from annotations. `getrandbits` alone is used: its output is the same in every version of Python.


def _below(source: random.Random, count: int) -> int:
    return source.getrandbits(32) % count


def _integer(low: int, high: int) -> Make:
    """Small and large numbers alike: the width in bits is drawn first, so that each msgpack form occurs."""

    def make(source: random.Random, depth: int) -> int:
        value = source.getrandbits(1 + _below(source, 63)) if _below(source, 4) else _below(source, 3)
        return value if low <= value <= high else low + value % (high - low + 1)

    return make


def _bytes(source: random.Random, depth: int) -> bytes:
    size = _below(source, 70)
    return source.getrandbits(8 * size).to_bytes(size, "big") if size else b""


def _id(size: int) -> Make:
    return lambda source, depth: source.getrandbits(8 * size).to_bytes(size, "big")


LETTERS = "abcdefghijklmnopqrstuvwxyz./-_0ABZ é→\U0001d6fc"


def _text(source: random.Random, depth: int) -> str:
    draw = source.getrandbits  # looked up once: a third of all time is spent on texts
    return "".join([LETTERS[draw(32) % len(LETTERS)] for _ in range(draw(32) % 40)])


def _float(source: random.Random, depth: int) -> float:
    return (source.getrandbits(53) - (1 << 52)) * 2.0 ** (_below(source, 120) - 100)


_I64 = (1 << 63) - 1
SIMPLE: dict[Any, Make] = {
    int: _integer(0, _I64),
    bool: lambda source, depth: bool(source.getrandbits(1)),
    bytes: _bytes,
    str: _text,
    float: _float,
    type(None): lambda source, depth: None,
    Hash: _id(32),
    PeerId: _id(32),
    Signature: _id(64),
    Credits: _integer(0, MAX_CREDITS),
}


@cache
def maker(kind: Any) -> Make:
    """A function from (random source, depth) to a value of the annotated type."""
    if kind in SIMPLE:
        return SIMPLE[kind]
    if isinstance(kind, typing.NewType):
        return maker(kind.__supertype__)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _bounded(arguments)
    if origin is typing.Literal:
        return lambda source, depth: arguments[_below(source, len(arguments))]
    if origin in (typing.Union, types.UnionType):
        return _either([maker(argument) for argument in arguments])
    if origin is tuple:
        return _row(arguments)
    if origin is dict:
        return _mapping(*[maker(argument) for argument in arguments])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        members = list(kind)
        return lambda source, depth: members[_below(source, len(members))]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind)
    raise TypeError(f"the generator does not know {kind!r}: teach it, or use another type on the wire")


def _bounded(arguments: tuple[Any, ...]) -> Make:
    inner, *metas = arguments
    low = [m.ge for m in metas if getattr(m, "ge", None) is not None]
    high = [m.le for m in metas if getattr(m, "le", None) is not None]
    base = inner.__supertype__ if isinstance(inner, typing.NewType) else inner
    if base is int and (low or high):
        return _integer(max(low, default=0), min(high, default=_I64))
    return maker(inner)


def _either(makers: list[Make]) -> Make:
    return lambda source, depth: makers[0 if depth > DEPTH else _below(source, len(makers))](source, depth + 1)


def _row(arguments: tuple[Any, ...]) -> Make:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = maker(arguments[0])

        def many(source: random.Random, depth: int) -> tuple[Any, ...]:
            size = 0 if depth > DEPTH else _below(source, 4)
            return tuple([item(source, depth + 1) for _ in range(size)])

        return many
    items = [maker(argument) for argument in arguments]
    return lambda source, depth: tuple([item(source, depth + 1) for item in items])


def _mapping(key: Make, value: Make) -> Make:
    def make(source: random.Random, depth: int) -> dict[Any, Any]:
        size = 0 if depth > DEPTH else _below(source, 4)
        return {key(source, depth + 1): value(source, depth + 1) for _ in range(size)}

    return make


def _struct(kind: type[msgspec.Struct]) -> Make:
    fields: list[Make] = []

    def make(source: random.Random, depth: int) -> Any:
        if not fields:  # filled on first use, so that a type may contain itself
            hints = typing.get_type_hints(kind, include_extras=True)
            fields.extend(maker(hints[name]) for name in kind.__struct_fields__)
        return kind(*[field(source, depth + 1) for field in fields])

    return make


def fingerprint(name: str, kind: type[Wire], count: int = ENCODINGS) -> str:
    """BLAKE3 over `count` length-prefixed encodings; the seed is the name under which the type was first blessed."""
    seed = int.from_bytes(blake3(name.encode()).digest()[:8], "big")
    source, make, hasher = random.Random(seed), maker(kind), blake3()
    for i in range(count):
        value = make(source, 0)
        data = encode(value)
        if i < 20:  # what is encoded can be decoded, to the same value
            assert decode(data, kind, len(data)) == value, name
        hasher.update(len(data).to_bytes(4, "little") + data)
    return hasher.hexdigest()


Frozen = dict[str, dict[str, str]]


@cache
def frozen() -> Frozen:
    return tomllib.loads(FROZEN.read_text("utf-8"))


@cache
def fingerprints() -> Frozen:
    """Each wire type's hash and, where it was renamed, the seed that it keeps."""
    found: Frozen = {}
    for name, kind in wire_types().items():
        kept = {key: value for key, value in frozen().get(name, {}).items() if key == "seed"}
        found[name] = {"hash": fingerprint(kept.get("seed", name), kind), **kept}
    return found


def bless(found: Frozen) -> None:
    head = "".join(line for line in FROZEN.read_text("utf-8").splitlines(True) if line.startswith("#"))
    rows = (", ".join(f'{key} = "{value}"' for key, value in row.items()) for row in found.values())
    lines = (f'"{name}" = {{ {row} }}\n' for name, row in zip(found, rows, strict=True))
    FROZEN.write_text(f"{head}\n{''.join(lines)}", "utf-8")


@pytest.mark.whole
def test_no_wire_format_has_changed() -> None:
    if os.environ.get("FARFLUNG_BLESS"):
        bless(fingerprints())
        frozen.cache_clear()
    old, found = frozen(), fingerprints()
    assert sorted(set(found) - set(old)) == [], "new wire types: bless them"
    assert sorted(set(old) - set(found)) == [], "wire types that are gone: bless their removal"
    assert [name for name in found if found[name] != old[name]] == [], "changed wire formats"


def test_wire_types_are_frozen_arrays_without_unknown_fields() -> None:
    for name, kind in wire_types().items():
        config = kind.__struct_config__
        assert (config.frozen, config.array_like, config.forbid_unknown_fields) == (True, True, True), name
        assert not config.omit_defaults, name


@pytest.mark.whole
def test_no_wire_type_hides_behind_torch() -> None:
    hidden = [
        f"{name}.{node.name}"
        for name in sorted(with_torch())
        for node in ast.walk(modules()[name])
        if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") == "Wire" for base in node.bases)
    ]
    assert hidden == []


def test_finding_wire_types_needs_no_torch_and_finds_the_job() -> None:
    assert "farflung.job.spec.JobTerms" in wire_types()
    assert len(wire_types()) > 20
    if os.environ.get("PYTEST_XDIST_WORKER") is None and "torch" not in sys.modules:
        fingerprint("farflung.job.spec.JobTerms", wire_types()["farflung.job.spec.Terms"], 1)
        assert "torch" not in sys.modules


class Before(Wire, frozen=True):
    number: int
    name: str


class Renamed(Wire, frozen=True):
    count: int
    name: str


class Swapped(Wire, frozen=True):
    name: str
    number: int


class Longer(Wire, frozen=True):
    number: int
    name: str
    flag: bool = False


class Tagged(Wire, frozen=True, tag="t"):
    number: int
    name: str


@pytest.mark.parametrize("changed", [Swapped, Longer, Tagged])
def test_a_changed_format_changes_its_fingerprint(changed: type[Wire]) -> None:
    assert fingerprint("x", changed, 50) != fingerprint("x", Before, 50)


def test_a_renamed_field_does_not_since_names_do_not_travel() -> None:
    assert fingerprint("x", Renamed, 50) == fingerprint("x", Before, 50)


def test_fingerprints_are_the_same_on_every_machine_and_version() -> None:
    assert fingerprint("x", Before, 50) == "a561efdc86ded874a85973a793cdea17cf1ad78123d4354de085c17b664911b2"

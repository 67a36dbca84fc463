"""Takes the source of a module that was written in a notebook or a program, with all of its own that it uses.

What runs in a worker is always a text, whose hash the terms name. So a class, an instance or a function becomes one:
its own source, the functions and classes of yours that it names, the imports that it needs, and plain constants.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import site
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from farflung.core.errors import SpecError

BUILD: Final = "build"
_PLAIN: Final = (int, float, str, bytes, bool, type(None))
_HINT: Final = "write the model to a file: farflung.run(set={'model.kind': 'module', 'model.module': 'model.py:build'})"


class ModuleSource(NamedTuple):
    """What `model.module` says, and the source that it names."""

    name: str
    source: bytes


def source_of(module: Any) -> ModuleSource:
    """The source of a function without arguments that returns the module, of its class, or of an instance.

    An instance is built anew by its class, without arguments; its present weights are not taken.
    Raises SpecError FF-APP-496 where the source cannot be had, or builds something else.
    """
    made = module if isinstance(module, type | FunctionType) else type(module)
    if made is not module:
        _check_built(module, made)
    texts = _Sources()
    texts.add(made.__name__, made)
    lines = [f"# {made.__name__}, as farflung.run found it.", *sorted(texts.imports), "", *texts.parts]
    if made.__name__ != BUILD:
        lines += ["", "", f"def {BUILD}():", f"    return {made.__name__}()"]
    return ModuleSource(f"{made.__name__}.py:{BUILD}", ("\n".join(lines) + "\n").encode())


def _check_built(module: Any, made: Callable[[], Any]) -> None:
    """Whether the class alone builds what the instance is."""
    try:
        again = made()
    except TypeError as error:
        raise SpecError(
            "FF-APP-496",
            f"{type(module).__name__} cannot be built anew",
            cause=f"its class needs arguments: {error}",
            hint="give a function that builds it: farflung.run(module=build), with def build(): return Net(64)",
        ) from error
    shapes = [[(n, tuple(p.shape)) for n, p in each.named_parameters()] for each in (module, again)]
    if shapes[0] != shapes[1]:
        raise SpecError(
            "FF-APP-496",
            f"{type(module).__name__}() is another model than the one that was given",
            cause="its parameters differ from those of the class without arguments",
            hint="give a function that builds it: farflung.run(module=build), with def build(): return Net(64)",
        )


class _Sources:
    """Texts in the order in which they are run: what a class derives from comes before it."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.imports: set[str] = set()
        self._seen: dict[str, Any] = {}

    def add(self, name: str, found: Any) -> None:
        """One name, with all that it uses."""
        if name in self._seen:
            if self._seen[name] is not found:
                raise SpecError(
                    "FF-APP-496",
                    f"two things are called {name}",
                    cause="a model's source is one file",
                    hint="rename one of them",
                )
            return
        self._seen[name] = found
        if isinstance(found, ModuleType):
            self.imports.add(f"import {found.__name__} as {name}")
        elif isinstance(found, type | FunctionType):
            self._add_code(name, found)
        elif _is_plain(found):
            self.parts.append(f"{name} = {found!r}")
        else:
            what = type(found).__name__
            raise SpecError(
                "FF-APP-496",
                f"{name} cannot be written into a source",
                cause=f"it is a {what}: only plain constants, functions, classes and imports can",
                hint=_HINT,
            )

    def _add_code(self, name: str, found: Any) -> None:
        if not _is_own(found.__module__):
            self.imports.add(f"from {found.__module__} import {found.__qualname__} as {name}")
            return
        try:
            text = textwrap.dedent(inspect.getsource(found))
            tree = ast.parse(text)
        except (OSError, TypeError, SyntaxError) as error:
            raise SpecError("FF-APP-496", f"{name} has no source", cause=str(error)[:200], hint=_HINT) from error
        if found.__name__ != name or not isinstance(tree.body[0], ast.ClassDef | ast.FunctionDef):
            raise SpecError("FF-APP-496", f"{name} has no source", cause="it is a lambda, or has two names", hint=_HINT)
        for used, value in _used(found, tree):
            self.add(used, value)
        self.parts += ["", "", text.rstrip()]


def _used(found: Any, tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Names that the source reads, with what they are where it was written."""
    known: dict[str, Any] = dict(vars(sys.modules.get(found.__module__, builtins)))
    inner = [found] if isinstance(found, FunctionType) else [f for f in vars(found).values() if inspect.isfunction(f)]
    for function in inner:
        known.update(function.__globals__)
        known.update(inspect.getclosurevars(function).nonlocals)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for name in sorted(names - {found.__name__}):
        if name in known and not hasattr(builtins, name):
            yield name, known[name]


def _is_own(module: str) -> bool:
    """Whether a module is the user's: neither Python's nor an installed package's, so no worker has it."""
    if module == "__main__" or module not in sys.modules:
        return True
    if module.partition(".")[0] in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules[module], "__file__", None)
    places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    return file is not None and not any(file.startswith(place) for place in places)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(each) for each in value)
    if isinstance(value, dict):
        return all(_is_plain(each) for pair in value.items() for each in pair)
    return type(value) in _PLAIN

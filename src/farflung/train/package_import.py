"""Imports a user's package from the files that its job packed; nothing is read from a disk, and each time anew."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

from farflung.job.module_package import INIT

Execute = Callable[[str, bytes, types.ModuleType], None]  # runs the source of a file as a module


def import_package(name: str, files: Mapping[str, bytes], execute: Execute) -> types.ModuleType:
    """The package of that name, run anew with all that it imports of itself. Raises what its files raise."""
    for loaded in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[loaded]
    finder = _PackageFinder(name, files, execute)
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(name)
    finally:
        sys.meta_path.remove(finder)


def is_packed(module: types.ModuleType) -> bool:
    """Whether a module came from a packed package."""
    return isinstance(getattr(getattr(module, "__spec__", None), "loader", None), _PackageFinder)


class _PackageFinder(MetaPathFinder, Loader):
    def __init__(self, name: str, files: Mapping[str, bytes], execute: Execute) -> None:
        self._name, self._files, self._execute = name, files, execute

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of the package and what is in it; of all else nothing."""
        first, *inner = fullname.split(".")
        if first != self._name:
            return None
        for place, is_package in (("/".join([*inner, INIT]), True), ("/".join(inner) + ".py", False)):
            if place in self._files:
                return ModuleSpec(fullname, self, origin=f"{self._name}/{place}", is_package=is_package)
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        """Runs one file of the package."""
        assert module.__spec__ is not None
        where = str(module.__spec__.origin)
        module.__file__ = where
        self._execute(where, self._files[where.removeprefix(f"{self._name}/")], module)

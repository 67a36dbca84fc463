"""Finds where a user's source reads or writes what no job commits to: clocks, environment, process, machine, entropy.

It reads the source and does not run it, and finds what is written openly. Whoever hides it is held by the graph that
each node tries (verify.canon.step_check), and by the rule that no accusation goes against that graph.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

from farflung.core.errors import SpecError
from farflung.job.module_package import parts_of

MODULES: Final = frozenset({
    "_thread", "asyncio", "atexit", "builtins", "concurrent", "ctypes", "datetime", "gc", "getpass", "glob",
    "importlib", "io", "locale", "mmap", "multiprocessing", "os", "pathlib", "platform", "psutil", "pwd", "requests",
    "resource", "sched", "secrets", "shelve", "shutil", "signal", "socket", "sqlite3", "subprocess", "sys", "tempfile",
    "threading", "time", "timeit", "tracemalloc", "urllib", "uuid", "weakref", "zoneinfo",
})  # fmt: skip
HARMLESS: Final = frozenset({"os.path", "sys.maxsize", "sys.float_info", "sys.byteorder"})
NAMES: Final = frozenset({"__import__", "eval", "exec", "hash", "id", "input", "open"})
ATTRIBUTES: Final = frozenset({
    "SystemRandom", "__builtins__", "__globals__", "__subclasses__", "environ", "get_num_threads", "getenv", "getpid",
    "monotonic", "perf_counter", "time_ns", "urandom",
})  # fmt: skip
UNSEEDED: Final = frozenset({"MT19937", "PCG64", "Random", "RandomState", "SeedSequence", "default_rng", "seed"})


class Place(NamedTuple):
    """A line of the source, and what it reads or writes there."""

    line: int
    name: str


def check(file: str, source: bytes) -> None:
    """Raises SpecError FF-TRAIN-067 for the first place in the source that depends on more than a job's state."""
    for name, text in parts_of(file, source).items():
        found = min(_Reader(ast.parse(text, name)).places(), default=None)
        if found is not None:
            raise _depends(name, found)


def _depends(file: str, found: Place) -> SpecError:
    return SpecError(
        "FF-TRAIN-067",
        f"the model depends on {found.name}",
        cause=f"{file}, line {found.line}: it differs between machines or from pass to pass, and is no part of the job",
        hint="compute from the arguments, the parameters and constants of the file alone, and keep nothing elsewhere",
    )


class _Reader:
    def __init__(self, tree: ast.Module) -> None:
        self.nodes = tuple(ast.walk(tree))
        self.imported = dict(self._imports())
        stored = {n.id for n in self.nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        self.own = stored | {n.arg for n in self.nodes if isinstance(n, ast.arg)}

    def _imports(self) -> Iterator[tuple[str, str]]:
        """Names of the file, and what of which module each stands for."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for each in node.names:
                    yield (each.asname, each.name) if each.asname else (each.name.partition(".")[0],) * 2
            elif isinstance(node, ast.ImportFrom) and node.module:
                for each in node.names:
                    yield each.asname or each.name, f"{node.module}.{each.name}"

    def places(self) -> Iterator[Place]:
        """Every place that is found, in no order."""
        harmless = {id(n.value) for n in self.nodes if isinstance(n, ast.Attribute) and self._path(n) in HARMLESS}
        for node in self.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in harmless:
                if name := self._outside(node.id):
                    yield Place(node.lineno, name)
            elif isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
                yield Place(node.lineno, self._path(node) or node.attr)
            elif (
                isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and self._is_foreign(node.value)
            ):
                if not self._path(node).startswith("torch.backends."):
                    yield Place(node.lineno, f"{self._path(node)}, which it writes")
            elif isinstance(node, ast.Call):
                yield from self._called(node)

    def _outside(self, name: str) -> str:
        """What a name that is read stands for, where that is outside of the job; empty where it is not."""
        path = self.imported.get(name, "")
        if path:
            return path if path.partition(".")[0] in MODULES and path not in HARMLESS else ""
        return name if name in NAMES and name not in self.own else ""

    def _called(self, node: ast.Call) -> Iterator[Place]:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if self.imported.get(name, name).rpartition(".")[2] in UNSEEDED and not (node.args or node.keywords):
            yield Place(node.lineno, f"{name}() without a seed")
        if name in ("setattr", "delattr") and node.args and self._is_foreign(node.args[0]):
            yield Place(node.lineno, f"{self._path(node.args[0])}, which it writes")

    def _is_foreign(self, node: ast.expr) -> bool:
        return self._path(node).partition(".")[0] in {path.partition(".")[0] for path in self.imported.values()}

    def _path(self, node: ast.expr) -> str:
        """`torch.nn.Linear` of a chain of attributes that begins with an imported name; else empty."""
        if isinstance(node, ast.Attribute):
            inner = self._path(node.value)
            return f"{inner}.{node.attr}" if inner else ""
        return self.imported.get(node.id, "") if isinstance(node, ast.Name) else ""

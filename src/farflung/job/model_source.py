"""Parses a user's model source: its name, `file.py:function` or `package:function`, and whether it has the function.

The source is never run here; it runs in the worker's sandbox.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from farflung.core import limits
from farflung.core.errors import SpecError
from farflung.core.similar_name import similar_name
from farflung.job.module_package import INIT, parts_of


def parse_name(module: str) -> tuple[str, str]:
    """`dir/file.py:function` or `dir/package:function` → path and function; raises SpecError FF-JOB-040."""
    path, _, function = module.rpartition(":")
    if not path or not function.isidentifier():
        raise SpecError(
            "FF-JOB-040",
            f"not a model: {module[:80]!r}",
            cause="a model is named by a file, a colon and a function",
            hint='write it like module = "model.py:build"',
        )
    return path, function


def check_source(source: bytes, path: str, function: str) -> None:
    """Raises SpecError FF-JOB-041 (too long), FF-JOB-042 (not Python), FF-JOB-043 (no such function)."""
    if len(source) > limits.MODULE_BYTES:
        raise too_long(path)
    parts = parts_of(path, source)
    trees = {name: _parsed(text, name) for name, text in parts.items()}
    names = set(_top_names(trees.get(f"{path}/{INIT}") or trees[path]))
    if function not in names and "*" not in names:
        guess = similar_name(function, names)
        raise SpecError(
            "FF-JOB-043",
            f"{path} has no function {function!r}",
            cause="the name after the colon is not defined at the top level of the file",
            hint=f'did you mean "{guess}"?' if guess else "name a function of that file",
        )


def too_long(path: str) -> SpecError:
    """The error FF-JOB-041."""
    return SpecError(
        "FF-JOB-041",
        f"{path} is too long",
        cause=f"a model's source has at most {limits.MODULE_BYTES} bytes",
        hint="keep the model alone in its file, and data in data files",
    )


def _parsed(source: bytes, path: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        cause = f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
        raise _not_python(path, cause) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise _not_python(path, str(error)) from None


def _not_python(path: str, cause: str) -> SpecError:
    return SpecError("FF-JOB-042", f"{path} is not Python", cause=cause[:200], hint=f"python {path}")


def _top_names(body: ast.AST) -> Iterator[str]:
    """Names bound outside functions and classes; `*` for what a star import may bring. However deep its expressions."""
    waiting = [body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        else:
            waiting += ast.iter_child_nodes(node)

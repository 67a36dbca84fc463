"""Builds a user's model from its source text: runs it as a module, calls one function, returns an nn.Module.

The source is the requester's own program; a worker runs it inside its sandbox (host) and nowhere else. Whatever
it raises is shown with the user's own text and line. Each build runs the whole file anew, so that two models share no
global, class or cache of that file.
"""

from __future__ import annotations

import functools
import sys
import traceback
import types
from typing import Final

from torch import nn

from farflung.core import limits
from farflung.core.errors import FarflungError, RunError, SpecError, type_and_text
from farflung.job.module_package import unpack
from farflung.train import meta_kernels
from farflung.train.logits_loss import with_loss
from farflung.train.package_import import import_package

MODULE_NAME: Final = "farflung_user_model"
CONTRACT: Final = "a module needs forward(x, y) -> scalar loss, or forward(x) -> logits; see examples/own_module.py"


def build(module: str, source: bytes) -> nn.Module:
    """Runs `source` and calls the function of "file.py:function" or "package:function", without arguments.

    Raises SpecError FF-TRAIN-051 (no such function) or FF-TRAIN-053 (not an nn.Module), FF-TRAIN-107 (another forward),
    RunError FF-TRAIN-052 (the source raised).
    """
    file, _, function = module.partition(":")
    if not file or not function.isidentifier() or len(source) > limits.MODULE_BYTES:
        raise SpecError(
            "FF-TRAIN-051",
            f"not a model: {module[:80]!r}",
            cause=f"a model is named file.py:function, in a file of at most {limits.MODULE_BYTES} bytes",
            hint='write it like module = "model.py:build"',
        )
    meta_kernels.restore()
    built = _run(file, function, source)
    if not isinstance(built, nn.Module):
        raise SpecError(
            "FF-TRAIN-053",
            f"{module} did not return a model",
            cause=f"it returned {type(built).__name__}, not a torch.nn.Module",
            hint=CONTRACT,
        )
    return with_loss(built, CONTRACT)


def _run(file: str, function: str, source: bytes) -> object:
    try:
        make = getattr(_loaded(file, source), function, None)
        if not callable(make):
            raise _missing(file, function)
        return make()
    except FarflungError:
        raise
    except (Exception, SystemExit) as error:
        raise failure("FF-TRAIN-052", f"{file}:{function} failed", error) from error


def _loaded(file: str, source: bytes) -> types.ModuleType:
    files = unpack(source)
    if files:
        return import_package(file.rpartition("/")[2], files, _execute)
    fresh = types.ModuleType(MODULE_NAME)
    fresh.__file__ = file
    sys.modules[MODULE_NAME] = fresh  # dataclasses and typing look a class's module up by name
    _execute(file, source, fresh)
    return fresh


def _execute(file: str, source: bytes, module: types.ModuleType) -> None:
    exec(_compiled(file, source), module.__dict__)  # noqa: S102 - the user's model is a program


@functools.lru_cache(256)
def _compiled(file: str, source: bytes) -> types.CodeType:
    return compile(source, file, "exec")


def _missing(file: str, function: str) -> SpecError:
    return SpecError(
        "FF-TRAIN-051",
        f"{file} has no function {function!r}",
        cause="the name after the colon is not defined there",
        hint='name a function of that file: module = "model.py:build"',
    )


def failure(code: str, message: str, error: BaseException) -> RunError:
    """An exception of the user's code as a RunError that says what and where in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.endswith(".py") and "farflung" not in f.filename]
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    return RunError(code, message, cause=f"{type_and_text(error)}{where}"[:2000], hint=CONTRACT)

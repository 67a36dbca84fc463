"""Notes what a model's pass could leave behind in libraries: attributes of their classes and modules.

A module that is built anew shares nothing with the one before but the libraries that both use. A class attribute of
`nn.Linear` that counts calls would live on, differ between a worker that trains and one that repeats, and be found by
no comparison of the two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Final

from torch import nn

from farflung.core.errors import SpecError
from farflung.train.package_import import is_packed
from farflung.train.user_module import MODULE_NAME

SCALARS: Final = (bool, int, float, str, bytes, type(None))
CONTAINERS: Final = (list, dict, set)

Marks = dict[tuple[str, str], object]  # of owner and attribute


def taken(module: nn.Module) -> Marks:
    """What is in the classes of a model's layers, and in the modules that its file imports."""
    return {(owner, name): _mark(value) for owner, held in _owners(module) for name, value in list(held.items())}


def check(before: Marks, after: Marks) -> None:
    """Raises SpecError FF-TRAIN-068 where a pass of the model has left something behind."""
    for place in sorted(before.keys() | after.keys()):
        if before.get(place, place) != after.get(place, place):
            raise SpecError(
                "FF-TRAIN-068",
                f"the model keeps something in {'.'.join(place)}",
                cause="it outlives the model, so that who trains and who repeats a step would find other things there",
                hint="keep nothing outside of the model's own file",
            )


def _owners(module: nn.Module) -> Iterator[tuple[str, dict[str, object]]]:
    classes = {kind for layer in module.modules() for kind in type(layer).__mro__}
    own = {name: each for name, each in list(sys.modules.items()) if name == MODULE_NAME or is_packed(each)}
    for kind in classes:
        if kind.__module__ not in own:
            yield f"{kind.__module__}.{kind.__qualname__}", dict(vars(kind))
    for value in [value for each in own.values() for value in vars(each).values()]:
        if isinstance(value, ModuleType) and value.__name__ not in own:
            yield value.__name__, vars(value)


def _mark(value: object) -> object:
    if isinstance(value, SCALARS):
        return repr(value)  # NaN equals itself here
    return id(value), len(value) if isinstance(value, CONTAINERS) else 0

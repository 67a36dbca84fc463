"""Leaves out of a worker's torch the kernels for tensors without numbers, until a module of a user's own is built.

`import torch` ends with Python code that registers, for each operation, which shape it gives (the device "meta"). It
takes a third of the time of the whole import. Our own model is never traced where it trains; a user's module may ask
for that device. No operation on numbers depends on them.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any, Final

NAME: Final = "torch._meta_registrations"


class _LeftOut(types.ModuleType):
    """Stands in the module's place. Whoever wants something of it gets the module itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system looks at these
            raise AttributeError(name)
        restore()
        return getattr(sys.modules[NAME], name)


def leave_out() -> None:
    """The next `import torch` goes without them; where torch is here already, nothing changes."""
    if "torch" not in sys.modules:
        sys.modules[NAME] = _LeftOut(NAME)


def restore() -> None:
    """Loads them if they were left out."""
    if isinstance(sys.modules.get(NAME), _LeftOut):
        del sys.modules[NAME]
        importlib.import_module(NAME)

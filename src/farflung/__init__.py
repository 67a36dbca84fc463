"""farflung trains real PyTorch models on computers of different owners and pays for accepted work.

import farflung
run = farflung.run("job.toml", callbacks=[print])
print(run.result.loss, run.folder / "model.safetensors")
run.metrics                 # in a notebook: a table; for pandas: pandas.DataFrame(run.metrics)
model = run.model()         # a torch.nn.Module
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from farflung.core import release

__version__ = release.VERSION
__all__ = ["Run", "__version__", "callbacks", "load", "plan", "resume", "run", "sync"]

if TYPE_CHECKING:
    from inspect import Signature

    from farflung import callbacks, sync
    from farflung.app.api.runs import Run, load, plan, resume, run


class _PlanPackage(ModuleType):
    """`farflung.plan` is a package and, because people expect `farflung.plan(spec)`, a function as well."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from farflung.app.api import runs

        return runs.plan(*arguments, **named)

    @property
    def __signature__(self) -> Signature:
        """What editors and notebooks show of the function."""
        from inspect import signature

        from farflung.app.api import runs

        return signature(runs.plan)


def __getattr__(name: str) -> Any:
    """`farflung.run` and its like are loaded when they are first used: importing the package stays cheap."""
    if name in ("Run", "load", "resume", "run"):
        from farflung.app.api import runs

        return getattr(runs, name)
    if name in ("callbacks", "sync"):
        return import_module(f"farflung.{name}")
    raise AttributeError(f"module 'farflung' has no attribute {name!r}")


if not TYPE_CHECKING:
    from farflung import plan  # a docstring: nothing is loaded by this

    plan.__class__ = _PlanPackage

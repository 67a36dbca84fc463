"""Selects the form of each loop: its NumPy function, or the compiled twin that gives the same bytes.

`@compiled("name")` above a NumPy function makes it the *twin* of the loop of that name in compress/loops: where
compiling pays, a call goes to the loop, else to the function below the decorator. A loop uses whole numbers and
single, correctly rounded operations only, in the twin's order: no fused multiply-add, no re-ordered sum of floats.

The loops of another craft (verify/canon) are a KernelRegistry of their own: decided alike, loaded by themselves.

numba is optional and never imported before it pays: importing and compiling cost seconds, once a process. In `auto`
the twins run until they have cost about as much (the ski rental rule: never more than twice the best choice made with
foresight); what they cost is estimated from COSTS, for nothing here reads a clock. Where numba is missing or does not
work (a sandbox that forbids it), the twins go on. Who knows how much is to come says so before
(`KernelRegistry.foresee`). Nothing here reads the environment either; a process calls `use`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, ParamSpec, TypeVar, cast, get_args

from farflung.core.errors import UsageError

Mode = Literal["auto", "numpy", "numba"]
WORTH: Final = 5_000_000_000  # nanoseconds of a job's twins from which a process compiles before its first round
PAYS: Final = 8_000_000_000  # nanoseconds: about what compiling all that a codec needs takes (bench/codec.py)
COSTS: Final = {  # nanoseconds of a twin for each element of its first array, or of its work; 2 where none is told
    "largest": 4, "accumulate": 1, "plane_shares": 15, "plane_stream": 120, "support_shares": 3000,
    "support_places": 10,
}  # fmt: skip

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Loop = Callable[..., Any]


@dataclass
class _KernelSettings:
    """What somebody asked this process for."""

    asked: Mode = "auto"
    cache: str = ""


_settings = _KernelSettings()
_registries: list[KernelRegistry] = []


@dataclass
class KernelRegistry:
    """The loops of one craft with their twins, whether they run, and what the twins have cost so far.

    `module`: where the loops are; it has `load(cache) -> dict`, and nothing else imports it.
    `costs`: as COSTS, of this craft's twins. `pays`: as PAYS, where this craft's loops have their own.
    """

    module: str
    costs: Mapping[str, int]
    settled: Mode | None = None
    spent: int = 0
    loops: dict[str, _Loop] | None = None
    pays: int | None = None
    twins: dict[str, _Loop] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _registries.append(self)

    @property
    def mode(self) -> Mode:
        """What was decided for this registry, else what the process was asked for."""
        return self.settled or _settings.asked

    def ready(self, name: str, size: int) -> _Loop | None:
        """The compiled form, if it is to run on an array of `size` more elements."""
        if self.mode == "numpy":
            return None
        if self.loops is None:
            self.spent += size * self.costs.get(name, 2)
            if self.mode == "auto" and self.spent < self._pays:
                return None
        return self.loop(name)

    def foresee(self, cost: int) -> None:
        """Twins of so many nanoseconds are about to be called: in `auto`, loops run from the first of them on if that
        pays.
        """
        if self.mode == "auto" and self.spent + cost >= self._pays:
            self.spent = self._pays

    @property
    def _pays(self) -> int:
        return PAYS if self.pays is None else self.pays

    def drop(self, name: str) -> None:
        """Never tries a loop again that did not work."""
        if self.loops is not None:
            self.loops.pop(name, None)

    def names(self) -> list[str]:
        """Every kernel whose module has been imported, sorted."""
        return sorted(self.twins)

    def kernel(self, name: str) -> _Loop:
        """What runs now under a name: the loop where this process has compiled it, else the twin."""
        return self.ready(name, 0) or self.twins[name]

    def twin(self, name: str) -> _Loop:
        """The NumPy function of a kernel."""
        return self.twins[name]

    def loop(self, name: str) -> _Loop | None:
        """The compiled function of a kernel, loaded whatever the mode; None where numba is missing or does not work."""
        if self.loops is None:
            self.loops = _load(self.module, _settings.cache)
        return self.loops.get(name)

    def compiled(
        self, name: str, work: Callable[..., int] | None = None
    ) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
        """Makes a NumPy function the twin of the loop `name`. Both take the same arguments, an array first.

        `work`: how many elements of an ordinary twin a call takes as long as; without it, the first array's size.
        """

        def wrap(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
            self.twins[name] = function

            @functools.wraps(function)
            def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
                size = work(*args, **kwargs) if work else cast(Any, args[0]).size
                fast = self.ready(name, size)
                if fast is None:
                    return function(*args, **kwargs)
                try:
                    return cast(_Result, fast(*args, **kwargs))
                except Exception:  # it did not compile, and so has changed nothing: a loop never raises
                    self.drop(name)
                    return function(*args, **kwargs)

            return call

        return wrap


CODECS: Final = KernelRegistry("farflung.compress.loops.kernel_table", COSTS)
compiled = CODECS.compiled  # what stands above a codec's functions


def use(mode: str, cache: str = "") -> None:
    """Fixes which form runs from now on in this process: `numpy`, `numba` from the first element on, or `auto`.

    `cache`: a folder for compiled code that nobody but this user may write to (it is made, and not used if that
    is not so); "" compiles in memory.
    Raises UsageError: FF-COMP-037 no such mode, FF-COMP-038 `numba` is asked for and not installed.
    """
    if mode not in get_args(Mode):
        raise UsageError(
            "FF-COMP-037",
            f"no kernels called {mode[:40]!r}",
            cause=f"there are {', '.join(get_args(Mode))}",
            hint="FARFLUNG_KERNELS=auto",
        )
    if mode == "numba" and not installed():
        raise UsageError(
            "FF-COMP-038", "compiled kernels are not installed", cause="numba is missing", hint="pip install numba"
        )
    _settings.asked, _settings.cache = cast(Mode, mode), cache
    for registry in _registries:
        registry.settled, registry.spent = None, 0


def settle(cost: int) -> None:
    """In `auto`, decides for the codecs of a job: `cost` is the nanoseconds that their twins take in this process, all
    rounds together. Others wait for whoever compiles in the middle of a round.
    """
    if _settings.asked == "auto":
        CODECS.settled = "numba" if compiles(cost) else "numpy"


def compiles(cost: int) -> bool:
    """Whether processes like this one compile before the first round of a job, as `settle` decides."""
    if _settings.asked == "auto":
        return cost >= WORTH and installed()
    return _settings.asked == "numba"


def installed() -> bool:
    """Whether numba could be imported."""
    return importlib.util.find_spec("numba") is not None


def _load(module: str, cache: str) -> dict[str, _Loop]:
    """Every loop of a registry by its name; none where numba is missing or does not work."""
    try:
        found: dict[str, _Loop] = importlib.import_module(module).load(cache)
    except Exception:  # whatever numba meets in a sandbox: the twins give the same bytes
        return {}
    return found

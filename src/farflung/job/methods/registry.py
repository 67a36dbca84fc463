"""Lists the sync methods by name. Whoever has to know something of a method asks its row here.

A package of your own adds one by an entry point of the group `farflung.methods`: its name is the method's, its object
the SyncMethod. Every process finds it when it first asks for a method, so it is enough to install the package on each
computer that meets a job which names it: the requester's, the nodes' and the verifiers'. What a job names and no
package has is refused by name, and so is a method whose package fails to load.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from itertools import product
from typing import Any, Final, NamedTuple

from farflung.core.errors import SpecError, type_and_text
from farflung.core.similar_name import similar_name
from farflung.job.methods.demo import DEMO
from farflung.job.methods.dense import DENSE
from farflung.job.methods.dgc import DGC
from farflung.job.methods.diloco import DILOCO
from farflung.job.methods.local_sgd import LOCAL_SGD
from farflung.job.methods.muloco import MULOCO
from farflung.job.methods.powersgd import POWERSGD
from farflung.job.methods.sparse_loco import SPARSE_LOCO
from farflung.job.methods.sync_method import METHOD, LinkRole, SyncMethod
from farflung.job.spec import SyncSpec

BUILT_IN: Final = (DENSE, LOCAL_SGD, DILOCO, MULOCO, SPARSE_LOCO, DEMO, DGC, POWERSGD)
NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")

GROUP: Final = "farflung.methods"

_FOUND: Final[dict[str, SyncMethod]] = {method.name: method for method in BUILT_IN}


class InstalledMethods(NamedTuple):
    """Of the methods of installed packages: which package has each, `name version`, and why those do not load that do
    not.
    """

    packages: dict[str, str]
    faults: dict[str, str]


class _MethodTable(Mapping[str, SyncMethod]):
    """All methods by name, our own first; those of installed packages are loaded when it is first read.

    A package that reads it while it is imported sees ours and those of the packages before it.
    """

    def __getitem__(self, name: str) -> SyncMethod:
        installed()
        return _FOUND[name]

    def __iter__(self) -> Iterator[str]:
        installed()
        return iter(_FOUND)

    def __len__(self) -> int:
        installed()
        return len(_FOUND)


METHODS: Final[Mapping[str, SyncMethod]] = _MethodTable()


_installed: InstalledMethods | None = None  # not complete while a package is being imported: it may ask, too


def installed() -> InstalledMethods:
    """Loads the methods of installed packages, once a process. One that fails stops no other."""
    global _installed
    if _installed is None:
        _installed = InstalledMethods({}, {})
        _load_all(_installed)
    return _installed


def _load_all(known: InstalledMethods) -> None:
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    several = {name for name, count in Counter(point.name for point in points).items() if count > 1}
    for point in points:
        package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        if point.name in several:
            known.faults[point.name] = "more than one package registers it"
            continue
        try:
            register(_loaded(point))
        except Exception as error:  # whatever a foreign module raises when it is imported
            known.faults[point.name] = f"{package} registers it, and {type_and_text(error)}"
        else:
            known.packages[point.name] = package


def _loaded(point: EntryPoint) -> SyncMethod:
    method = point.load()
    if not isinstance(method, SyncMethod) or method.name != point.name:
        raise TypeError(f"{point.value} is no SyncMethod of the name {point.name}")
    return method


def method_of(name: str) -> SyncMethod:
    """The method of that name. Raises SpecError FF-JOB-044 unknown, FF-JOB-046 its package does not load."""
    if name in METHODS:
        return _FOUND[name]
    check_loaded(name)
    near = similar_name(name, _FOUND)
    raise SpecError(
        "FF-JOB-044",
        f"unknown sync method {name[:40]!r}",
        cause=f"there are {', '.join(_FOUND)}",
        hint=f'write {METHOD} = "{near}"' if near else "install the package that has it, on each computer of the run",
    )


def check_loaded(name: str) -> None:
    """Raises SpecError FF-JOB-046 for a method whose package is installed and does not load."""
    if (fault := installed().faults.get(name)) is not None:
        raise SpecError(
            "FF-JOB-046",
            f"the sync method {name[:40]!r} does not load",
            cause=fault[:300],
            hint="fix that package, or install another version",
        )


def with_role(role: LinkRole) -> tuple[SyncMethod, ...]:
    """The methods that a plan tries for such links, in order."""
    return tuple(method for method in METHODS.values() if method.role is role)


def shared_names() -> frozenset[str]:
    """Names of all vectors that public state may hold beside the weights under some method."""
    found: set[str] = set()
    for method in METHODS.values():
        for codec, outer in product(method.codecs, method.outers):
            parts: dict[str, Any] = {"method": method.name, "codec": codec, "outer": outer, "outer_momentum": 0.5}
            found |= method.all_shared(SyncSpec(**parts))
    return frozenset(found)


def register(method: SyncMethod) -> None:
    """Adds a method to those that a job can name. Raises SpecError FF-JOB-045: its name is taken, or is no name."""
    if not NAME.fullmatch(method.name) or method.name in _FOUND:
        raise SpecError(
            "FF-JOB-045",
            f"cannot register the sync method {method.name[:40]!r}",
            cause="there is one of that name" if method.name in _FOUND else "a name is of a-z, 0-9 and _, at most 32",
            hint="give it another name",
        )
    _FOUND[method.name] = method


def unregister(name: str) -> None:
    """Takes a method back that `register` added; one of our own stays."""
    if name not in {method.name for method in BUILT_IN}:
        _FOUND.pop(name, None)

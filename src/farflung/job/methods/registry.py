"""Lists the sync methods by name. Whoever has to know something of a method asks its row here.

A package of your own adds one with `register` in every process that meets a job which names it: those of the requester,
the nodes and the verifiers. What a job names and nobody registered is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from types import MappingProxyType
from typing import Any, Final

from farflung.core.errors import SpecError
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

_FOUND: Final[dict[str, SyncMethod]] = {method.name: method for method in BUILT_IN}
METHODS: Final[Mapping[str, SyncMethod]] = MappingProxyType(_FOUND)


def method_of(name: str) -> SyncMethod:
    """The method of that name. Raises SpecError FF-JOB-044."""
    if name in _FOUND:
        return _FOUND[name]
    near = similar_name(name, _FOUND)
    raise SpecError(
        "FF-JOB-044",
        f"unknown sync method {name[:40]!r}",
        cause=f"there are {', '.join(_FOUND)}",
        hint=f'write {METHOD} = "{near}"' if near else "install what registers it, with each peer",
    )


def with_role(role: LinkRole) -> tuple[SyncMethod, ...]:
    """The methods that a plan tries for such links, in order."""
    return tuple(method for method in _FOUND.values() if method.role is role)


def shared_names() -> frozenset[str]:
    """Names of all vectors that public state may hold beside the weights under some method."""
    found: set[str] = set()
    for method in _FOUND.values():
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

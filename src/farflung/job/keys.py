"""Lists the keys of a job file by dotted names, with type and default: every field of JobSpec, and `deadline`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec

from farflung.core.codec import Wire
from farflung.job.methods.registry import METHODS
from farflung.job.methods.sync_method import METHOD
from farflung.job.spec import JobSpec


class JobKey(NamedTuple):
    """One value of a job: `sync.steps` has section `sync` and name `steps`; a top-level key's section is ''."""

    section: str
    name: str
    written: Any
    default: object

    @property
    def kind(self) -> Any:
        """Its type; of a method the names that are registered now."""
        return Literal[tuple(METHODS)] if self.dotted == METHOD else self.written

    @property
    def dotted(self) -> str:
        """The key as it is written on a command line."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def variable(self) -> str:
        """The key's environment variable."""
        return "FARFLUNG_" + self.dotted.replace(".", "_").upper()


def _section(name: str, kind: type[Wire]) -> list[JobKey]:
    return [JobKey(name, f.name, f.type, f.default) for f in msgspec.structs.fields(kind)]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Wire)


DEADLINE: Final = "deadline"  # no term: the job's row on the ledger has the moment that follows from it
_TOP = [*_section("", JobSpec), JobKey("", DEADLINE, str, "")]

SECTIONS: Final[Mapping[str, type[Wire]]] = MappingProxyType(
    {key.name: key.kind for key in _TOP if _is_section(key.kind)}
)
KEYS: Final[Mapping[str, JobKey]] = MappingProxyType(
    {
        key.dotted: key
        for key in [k for k in _TOP if not _is_section(k.kind)]
        + [k for name, kind in SECTIONS.items() for k in _section(name, kind)]
    }
)

TERM_KEYS: Final = tuple(dotted for dotted in KEYS if dotted != DEADLINE)  # the fields of JobSpec


def keys() -> tuple[str, ...]:
    """All dotted keys: top level first, then section by section."""
    return tuple(KEYS)


def expected(kind: Any) -> str:
    """What a value of this type looks like, in words."""
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return "one of " + ", ".join(f'"{c}"' if isinstance(c, str) else str(c) for c in choices)
    if get_origin(kind) is tuple:
        return 'a list of texts, ["KEY", "KEY"]'
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes"}
    return words[kind]


def value_of(spec: JobSpec, dotted: str) -> Any:
    """The value of one of TERM_KEYS in a spec."""
    key = KEYS[dotted]
    return getattr(getattr(spec, key.section) if key.section else spec, key.name)

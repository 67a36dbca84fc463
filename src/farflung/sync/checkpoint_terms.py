"""Decides whether a saved state belongs to a method as it is built here, and names what differs.

Settings and tensors are in a state as JSON text: one value for torch.distributed.checkpoint, readable by people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from farflung.core.errors import UsageError
from farflung.core.file_header import FileFormat, earlier_version, other_version
from farflung.job.spec import JobSpec

_REMEDY: Final = "begin a new run from the model's own state"
SHOWN: Final = 4  # differences that an error names
KEYWORDS: Final = {"steps": "sync_every", "delay": "fragment_sync_delay", "name": "optimizer", "kind": "schedule"}


def settings(spec: JobSpec) -> dict[str, Any]:
    """What decides a method's steps by the keywords of its class, but for the rate, which a setter changes."""
    found: dict[str, Any] = {"seed": spec.seed}
    for section in (spec.sync, spec.optimizer, spec.schedule):
        found |= {KEYWORDS.get(name, name): value for name, value in msgspec.structs.asdict(section).items()}
    del found["lr"]
    return found


def text(value: Any) -> str:
    """The one JSON form of a value."""
    return json.dumps(value, sort_keys=True)


def listed(value: Any) -> Any:
    """The value of `text`. Raises UsageError FF-SYNC-004."""
    try:
        return json.loads(value)
    except (TypeError, ValueError) as error:
        raise another("a part is missing") from error


def compare(found: Mapping[str, Any], own: Mapping[str, Any], version: int) -> None:
    """Raises VersionError FF-CORE-095 (another version of the form), UsageError FF-SYNC-004: names what differs."""
    if "version" not in found:
        raise another("it is no state_dict of a farflung method")
    check_version(found, version)
    odd = _odd_settings(found.get("settings"), own["settings"])
    if found.get("peers") != own["peers"]:
        odd.append(f"it is of {found.get('peers')} peers, here are {own['peers']}")
    if "tensors" in own:
        odd += _odd_tensors(listed(found.get("tensors")), listed(own["tensors"]))
    _refuse(odd)


def check_version(found: Mapping[str, Any], version: int) -> None:
    """Whether a state is in this form, by its `version`. Raises VersionError FF-CORE-095."""
    form = FileFormat("state_dict", version, _REMEDY)
    if "version" not in found:
        raise earlier_version(form)
    if not isinstance(found["version"], int):
        raise another("its version is no number")
    if found["version"] != version:
        raise other_version(form, found["version"], str(found.get("farflung", "")))


def compare_settings(found: Any, own: str) -> None:
    """Raises UsageError FF-SYNC-004 with the names of the settings (as `text`) that differ."""
    _refuse(_odd_settings(found, own))


def _odd_settings(found: Any, own: str) -> list[str]:
    before, now = listed(found), listed(own)
    odd = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    if "method" in odd:
        odd = ["method"]  # what its settings are says no more
    return [f"its {name} is {before.get(name)!r}, this one's is {now.get(name)!r}" for name in odd]


def _refuse(odd: list[str]) -> None:
    if odd:
        raise another("; ".join(odd[:SHOWN]) + (f"; and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""))


def another(cause: str) -> UsageError:
    """FF-SYNC-004."""
    return UsageError(
        "FF-SYNC-004",
        "this state_dict is of another run",
        cause=cause,
        hint="build the model and the method as they were when it was saved, with as many peers",
    )


def _odd_tensors(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is the matter with each tensor that differs."""
    odd = [f"it has no {name}, and this model has" for name in sorted(now.keys() - before.keys())]
    odd += [f"it has {name}, and this model has none" for name in sorted(before.keys() - now.keys())]
    both = sorted(before.keys() & now.keys())
    return odd + [f"its {n} is of {before[n]}, here of {now[n]}" for n in both if before[n] != now[n]]

"""The verb that looks at this computer: `check`. Which sandbox a tenant's code gets here, and what stays open."""

from __future__ import annotations

import sys
from typing import Any, Final

import click
import msgspec

from farflung.host import sandbox
from farflung.host.io import tiers
from farflung.host.io.tiers import Tried

# What no tier changes: a sandbox protects the host from the tenant, never the tenant from the host's root.
ROOT_SEES: Final = (
    "the worker's memory: model, data and keys in clear, while it computes on them (ptrace, /proc/PID/mem)",
    "the memory of the graphics card",
    "sizes and times of everything that is computed, stored and sent",
    "all of it unnoticed: root can switch off any tripwire, or run the agent in a virtual machine",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def _facts(chosen: Tried, all_tiers: list[Tried]) -> dict[str, Any]:
    rows = [
        {
            "tier": one.tier.name,
            "works": not one.why,
            "why_not": one.why,
            "command": one.command,
            "not_stopped": one.tier.gaps,
        }
        for one in all_tiers
    ]
    return {
        "sandbox": {"tier": chosen.tier.name, "not_stopped": chosen.tier.gaps},
        "tiers": rows,
        "root_sees": ROOT_SEES,
    }


def _text(chosen: Tried, stronger: list[Tried]) -> list[str]:
    mark = "ok  " if chosen.tier.name != sandbox.LIMITS else "warn"
    lines = [f"{mark}  sandbox   {chosen.tier.made_of}"]
    lines += [f"      open      {gap}" for gap in chosen.tier.gaps]
    for one in stronger:
        why = one.why or f"works, but {tiers.VARIABLE} names {chosen.tier.name}"
        lines.append(f"--    {one.tier.name:<8}  not used: {why}")
        command = one.command or ("" if one.why else f"unset {tiers.VARIABLE}")
        lines += [f"      try       {command}"] if command else []
    lines.append("note  host      whoever is root on the computer that computes can still see:")
    return lines + [f"      sees      {thing}" for thing in ROOT_SEES]


@click.command(epilog="Example: farflung check")
@_JSON
def check(as_json: bool) -> None:
    """Show which sandbox other people's code gets on this computer, and what it does not stop."""
    chosen = tiers.tried(tiers.choose().name)
    all_tiers = [tiers.tried(name) for name in sandbox.ORDER]
    stronger = all_tiers[: sandbox.ORDER.index(chosen.tier.name)]
    lines = [msgspec.json.encode(_facts(chosen, all_tiers)).decode()] if as_json else _text(chosen, stronger)
    sys.stdout.write("\n".join(lines) + "\n")

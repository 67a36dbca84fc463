"""Resolves a job from flags, environment and file into a run that can be started."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.money import format_credits
from farflung.core.units import Millis
from farflung.job import cheat_names, job_toml
from farflung.job.io.job_files import read_job
from farflung.job.job_loader import ResolvedJob, load
from farflung.job.keys import DEADLINE
from farflung.job.open_network import with_open_defaults
from farflung.job.spec import JobSpec
from farflung.local.jobs.deadline import deadline_of
from farflung.peers.requester import relay_fees
from farflung.peers.rundir import folder as folders
from farflung.peers.rundir.folder import RunFolder, RunIdentity
from farflung.peers.rundir.genesis import RELAY_FUNDS
from farflung.peers.rundir.runs import command_name, runs_folder

# Variables that steer the program, not a job.
_OURS = frozenset(
    {
        "FARFLUNG_RUNS",
        "FARFLUNG_SANDBOX",
        "FARFLUNG_DEBUG",
        "FARFLUNG_KERNELS",
        "FARFLUNG_FAILPOINT",
        "FARFLUNG_FAILPOINT_LOG",
    }
)

SHOWN = "local"  # the preset that shows everything, a caught cheater included


def resolve(
    job: Path | str | None,
    preset: str,
    flags: Mapping[str, str],
    base: Path | None = None,
    cheat: str | None = None,
    baseline: bool = False,
    relay_price: int | None = None,
    relay_most: int | None = None,
    disputes: bool = False,
    is_open: bool = False,
) -> tuple[ResolvedJob, RunIdentity]:
    """The resolved configuration and the identity of a new run, from a job file's path or its text.

    Raises SpecError FF-JOB-0xx, UsageError FF-APP-019 (no such cheat), -243, -247 (relays' pay), -387 (no dispute),
    -435, -436 (no such deadline).
    Relative paths in the job start from the file's folder, else from `base`. `cheat` names what one of the providers
    does instead of its work (job.cheat_names); None: it skips its work in the run that shows what audits are for,
    and nobody cheats in a run of your own. `baseline`: whether one machine is trained on the same tokens to
    compare with, after the result.
    `relay_price`: pico-credits a GiB for relays; None: relay_fees.PRICE, or 0 for more nodes than a pass can name.
    `relay_most`: pico-credits that relays may cost together; None: what the plan puts aside. `disputes`: who is found
    guilty contests it; then somebody cheats, unless `cheat` names nobody. `is_open`: others' computers do the work, and
    what nobody set is as job.open_network has it.
    """
    text = read_job(job) if isinstance(job, Path) else job
    name = job.name if isinstance(job, Path) else "the given text"
    start = job.parent if isinstance(job, Path) else base or Path()
    environment = {k: v for k, v in os.environ.items() if k.startswith("FARFLUNG_") and k not in _OURS}
    resolved = load(text, preset=preset, flags=flags, environment=environment, origin_name=name)
    if resolved.deadline:
        deadline_of(resolved.deadline, Millis(round(1000 * time.time())), resolved.origins[DEADLINE])
    if is_open:
        resolved = with_open_defaults(resolved)
    is_shown = job is None and preset == SHOWN
    if cheat is None:
        cheat = cheat_names.DEFAULT if (is_shown or disputes) and resolved.spec.is_audited else cheat_names.HONEST
    elif cheat not in cheat_names.KINDS:
        raise UsageError(
            "FF-APP-019",
            f"unknown --cheat {cheat[:40]!r}",
            cause=f"there are {', '.join(cheat_names.KINDS)}",
            hint=f"farflung run --cheat {cheat_names.DEFAULT}",
        )
    if disputes:
        _check_dispute(resolved.spec, cheat)
    if job is None and cheat != cheat_names.HONEST:
        resolved = _shows(resolved)
    fare = _fare(resolved.spec, relay_price)
    whole = "\n".join(job_toml.lines(resolved)) + "\n"
    begun = (folders.FORMAT, time.time(), whole, str(start.resolve()))
    most = _most(relay_most)
    return resolved, RunIdentity(*begun, cheat, baseline, relay_price=fare, relay_most=most, disputes=disputes)


def _shows(resolved: ResolvedJob) -> ResolvedJob:
    """A demonstration of a cheater in which no segment of its first false round is honest, unless somebody set how work
    is audited: each then has two steps at least, of which `skip` leaves one out.
    """
    spec, key = resolved.spec, "audit.segments"
    segments = max(1, spec.sync.steps // 2)
    is_set = any(not resolved.origins[each].startswith(("default", "preset")) for each in (key, "audit.canaries"))
    if is_set or spec.segments <= segments:
        return resolved
    shown = structs.replace(spec, audit=structs.replace(spec.audit, segments=segments))
    return structs.replace(resolved, spec=shown, origins={**resolved.origins, key: "the demonstration of a cheater"})


def _check_dispute(spec: JobSpec, cheat: str) -> None:
    """A dispute begins with a verdict. Raises UsageError FF-APP-387, -396."""
    if spec.audit.canaries:
        raise UsageError(
            "FF-APP-396",
            "a run with disputes has no canaries",
            cause="a verifier that is found out could not be accused while it plays for an accusation of its own",
            hint="set audit.canaries = 0, or leave --dispute out",
        )
    if cheat != cheat_names.HONEST and spec.is_audited:
        return
    raise UsageError(
        "FF-APP-387",
        "there is nothing to dispute in this run",
        cause="nobody cheats in it" if spec.is_audited else "its job has no audits, so nobody is accused",
        hint=f"--dispute --cheat {cheat_names.DEFAULT}, with audit.rate or audit.probation above 0",
    )


def _fare(spec: JobSpec, asked: int | None) -> int:
    """What a run's relays are paid, pico-credits a GiB."""
    fits = relay_fees.can_pay(spec)
    if asked is None:
        return relay_fees.PRICE if fits else 0
    if 0 <= asked <= limits.RELAY_PRICE and (fits or not asked):
        return asked
    raise UsageError(
        "FF-APP-243",
        f"relays cannot be paid {format_credits(asked)} credits a GiB",
        cause=f"it is 0 to {format_credits(limits.RELAY_PRICE)}, and a pass names {limits.PASS_HOLDERS} nodes at most",
        hint="--relay-price 0: they carry for nothing",
    )


def _most(asked: int | None) -> int:
    """What a run's relays may cost together, pico-credits; 0: what its plan says."""
    if asked is None or relay_fees.LEAST <= asked <= RELAY_FUNDS:
        return asked or 0
    raise UsageError(
        "FF-APP-247",
        f"relays cannot cost {format_credits(asked)} credits",
        cause=f"it is {format_credits(relay_fees.LEAST)} to {format_credits(RELAY_FUNDS)}",
        hint="--relay-most 1: a credit; or --relay-price 0: they carry for nothing",
    )


def must_be_named(run: RunFolder) -> str:
    """How commands name the run, where one without a name would take another, or its name would not find it."""
    word = command_name(run)
    others = [other for other in folders.all_known(runs_folder()) if other.root.resolve() != run.root.resolve()]
    is_newest = not run.identity_file.exists() or not any(
        other.identity_file.stat().st_mtime > run.identity_file.stat().st_mtime for other in others
    )
    return "" if word == run.name and is_newest else word

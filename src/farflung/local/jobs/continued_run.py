"""Makes a new job of a run that has settled, so that its training goes on: the run that `farflung resume` starts.

A settled run is closed: its log has an end and its escrow is paid out. So training goes on in a run of its own beside
it, which stands on its final weights (`model.start`, V4) and keeps the schedule's place (`schedule.begin`): no second
warm-up. Data and the source of a model of your own are those that the run was made from, unless a setting names others.

A run that diverged, or that was stopped before its first round, has no weights worth keeping: the new run begins where
that one began.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from farflung.core.errors import UsageError
from farflung.core.events import RunResultEvent
from farflung.job import cheat_names, job_toml
from farflung.job.job_loader import ResolvedJob, load
from farflung.job.spec import JobSpec
from farflung.peers.rundir import folder as folders
from farflung.peers.rundir.folder import RunFolder, RunIdentity
from farflung.peers.rundir.runs import command_name, resolve_again
from farflung.train.rounds import REASON_DIVERGED
from farflung.watch.phrases import many

_ROUNDS: Final = re.compile(r"(\+?)([0-9]{1,9})")
_MORE: Final = re.compile(r"-more(-[0-9]+)?$")
_RATE: Final = "optimizer.lr"


class ContinuedRun(NamedTuple):
    """A run that trains on: its job, its identity, its folder, the run whose inputs it takes, and what to say of it."""

    resolved: ResolvedJob
    identity: RunIdentity
    root: Path
    inputs: RunFolder
    what: str


def continued(parent: RunFolder, ended: RunResultEvent, rounds: str | None, flags: Mapping[str, str]) -> ContinuedRun:
    """The run that goes on from `parent`, which ended so.

    rounds: `+N`, N more; `N`, until N in all, those of `parent` included; None: those that `parent` did not come to.
    flags: settings by key that differ from those of `parent`.
    Raises UsageError FF-APP-480 (nothing is left to do), FF-APP-481 (no such number), FF-APP-482 (diverged, and no
    setting differs), SpecError FF-JOB-0xx.
    """
    spec = resolve_again(parent).spec
    if ended.reason == REASON_DIVERGED and not flags:
        raise UsageError(
            "FF-APP-482",
            f"run {parent.name} diverged: with the same settings it would diverge again",
            cause=f"its loss rose above evaluate.stop_loss = {spec.evaluate.stop_loss:g} times its start, or is no"
            " number",
            hint=f"farflung resume {command_name(parent)} --set {_RATE}={spec.optimizer.lr / 10:g}",
        )
    is_new = ended.reason == REASON_DIVERGED or not ended.rounds
    more = _more(parent, spec, 0 if is_new else ended.rounds, rounds if rounds is not None else flags.get("rounds"))
    own = {} if is_new else _behind(parent, spec, ended.rounds)
    identity = parent.read_identity()
    resolved = load(identity.text, flags={**own, **flags, "rounds": str(more)}, origin_name=f"run {parent.name}")
    begun = msgspec.structs.replace(
        identity,
        format=folders.FORMAT,
        created=time.time(),
        text="\n".join(job_toml.lines(resolved)) + "\n",
        cheat=cheat_names.HONEST,
        baseline=False,
        disputes=False,
    )
    root = _beside(parent.root)
    what = f"{root.name} begins again where it began" if is_new else f"{root.name} trains on from round {ended.rounds}"
    return ContinuedRun(resolved, begun, root, parent, f"{what}, {many(more, 'round')}")


def to_continue(
    parent: RunFolder, ended: RunResultEvent | None, rounds: str | None, flags: Mapping[str, str]
) -> ContinuedRun | None:
    """What `farflung resume` begins for a run that ended so; None where it goes on with that run itself, or where the
    run has its result and no more was asked for.

    Raises what `continued` raises, UsageError FF-APP-483 (the run has not settled).
    """
    if ended is None and (rounds is not None or flags):
        raise not_settled(parent)
    if ended is None or (rounds is None and not flags and not is_early(parent, ended)):
        return None
    return continued(parent, ended, rounds, flags)


def is_early(run: RunFolder, ended: RunResultEvent) -> bool:
    """Whether a run that has settled ended before its last round."""
    return ended.rounds < resolve_again(run).spec.rounds


def not_settled(run: RunFolder) -> UsageError:
    """The error FF-APP-483: the terms of a run that has not settled stay as they are."""
    word = command_name(run)
    return UsageError(
        "FF-APP-483",
        f"run {run.name} has not settled: its terms are fixed",
        cause="--rounds and --set make a new run from the weights of one that has ended",
        hint=f"end it with `farflung resume {word}` (Ctrl-C there finishes the open round), then give them again",
    )


def _more(parent: RunFolder, spec: JobSpec, done: int, asked: str | None) -> int:
    """How many rounds the new run has."""
    found = _ROUNDS.fullmatch(asked) if asked is not None else None
    if asked is not None and (found is None or not int(found[2])):
        raise UsageError(
            "FF-APP-481",
            f"--rounds {asked[:20]} is no number of rounds",
            cause="+N trains N more; N trains until there are N, those that were done included",
            hint=f"farflung resume {command_name(parent)} --rounds +{spec.rounds}",
        )
    more = int(found[2]) - (0 if found[1] else done) if found is not None else spec.rounds - done
    if more < 1:
        raise UsageError(
            "FF-APP-480",
            f"run {parent.name} has trained all of its rounds",
            cause=f"{done} of {done if found is None else int(found[2])} are done, and paid",
            hint=f"train on: farflung resume {command_name(parent)} --rounds +{spec.rounds}",
        )
    return more


def _behind(parent: RunFolder, spec: JobSpec, done: int) -> dict[str, str]:
    """What the new run begins with: the weights, the schedule's place, what of a method's own warm-up is left, and a
    seed of its own, so that it draws other batches than the run before it.
    """
    base = parent.read_identity().base
    word = command_name(parent)
    return {
        "seed": str((spec.seed + 1) % (1 << 63)),
        "model.start": parent.name if word == parent.name else os.path.relpath(parent.root, base),
        "schedule.begin": str(spec.schedule.begin + done * spec.sync.steps),
        "sync.warmup_rounds": str(max(0, spec.sync.warmup_rounds - done)),
    }


def _beside(root: Path) -> Path:
    """The first free `NAME-more`, `NAME-more-2`, ... in the folder that holds `root`."""
    name, number = _MORE.sub("", root.resolve().name) + "-more", 1
    made = root.with_name(name)
    while made.exists():
        number += 1
        made = root.with_name(f"{name}-{number}")
    return made


def take_inputs(run: RunFolder, parent: RunFolder, spec: JobSpec) -> None:
    """Copies what `parent` was made from into the folder of `run`: the data set, and the source of a user's model;
    each unless its own settings differ.
    """
    before = resolve_again(parent).spec
    wanted = []
    if (before.data, before.model.vocabulary, before.model.context) == (
        spec.data,
        spec.model.vocabulary,
        spec.model.context,
    ):
        wanted += [parent.dataset_file, parent.account_file]
    if before.model.module == spec.model.module:
        wanted += [parent.module_file]
    for path in wanted:
        if path.is_file() and not path.is_symlink():
            shutil.copyfile(path, run.root / path.name)

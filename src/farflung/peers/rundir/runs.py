"""Finds the folder of runs, names new runs, and loads the job of an existing one."""

from __future__ import annotations

import datetime
import errno
import os
import shlex
from pathlib import Path

from farflung.core.errors import SpecError, UsageError
from farflung.job.job_loader import ResolvedJob, load
from farflung.peers.rundir import folder as folders
from farflung.peers.rundir.folder import RunFolder


def runs_folder() -> Path:
    """Where runs are kept: FARFLUNG_RUNS, or `runs` in the current folder. Raises UsageError FF-APP-173 (no folder)."""
    found = Path(os.environ.get("FARFLUNG_RUNS") or "runs")
    if not found.is_dir() and _is_in_the_way(found):
        raise UsageError(
            "FF-APP-173",
            f"{found} is not a folder",
            cause="runs are kept in it" + (": FARFLUNG_RUNS names it" if "FARFLUNG_RUNS" in os.environ else ""),
            hint="set FARFLUNG_RUNS to a folder, or unset it: export FARFLUNG_RUNS=runs",
        )
    return found


def _is_in_the_way(path: Path) -> bool:
    """Whether no folder can be made there: there is something else, a link to nowhere, a circle of links."""
    try:
        path.stat()
    except FileNotFoundError:
        return path.is_symlink()
    except OSError as error:
        return error.errno == errno.ELOOP  # of all else says whoever makes the folder
    return True


def command_name(run: RunFolder) -> str:
    """The word by which a verb finds the run: its name in the runs' folder, else its folder."""
    is_here = (runs_folder() / run.name).resolve() == run.root.resolve()
    return shlex.quote(run.name if is_here else str(run.root))


def resolve_again(folder: RunFolder) -> ResolvedJob:
    """The configuration of an existing run, from its own folder and from nowhere else.

    Raises RunError FF-APP-011, VersionError FF-CORE-095 (another farflung wrote it, with keys that this one has not).
    """
    try:
        return load(folder.read_identity().text, origin_name="run.json")
    except SpecError as error:
        raise folder.other_program() or error from error


def new_root(out: Path | None, name: str) -> Path:
    """The folder of a new run: as asked, or the first free one of today."""
    if out is not None:
        return out
    return folders.new_root(runs_folder(), datetime.date.today().isoformat(), name)

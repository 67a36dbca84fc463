"""Defines a run's folder: the path of each file, the lock of its only writer, and the list of runs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
from pathlib import Path
from typing import Final

import msgspec

from farflung.core import limits
from farflung.core.errors import RunError, UsageError, VersionError
from farflung.core.file_header import FileFormat, check_json, earlier_version, other_version
from farflung.core.io import process_mark
from farflung.core.io.durable_files import is_left, write_atomic
from farflung.core.io.ordinary_files import open_ordinary, open_own, own_files
from farflung.core.release import VERSION
from farflung.core.similar_name import similar_name
from farflung.peers.rundir import known_runs

FORMAT: Final = 3
MICRO_FORMAT: Final = 2  # and before: money in micro-credits
_OWNER: Final = re.compile(rb"([0-9]{1,10})(?:\.[0-9]{1,20})?")  # a process mark, or an earlier version's id
_FORM: Final = FileFormat("run.json", FORMAT)
_EARLIER: Final = (1, 2)  # a folder of these is looked at (status, watch, report, sample, eval), and not worked on
IDENTITY_BYTES = 4 * limits.SPEC_BYTES
COORDINATOR_SECONDS = 10.0  # for the coordinator of an earlier session to end
LOOK_SECONDS = 0.1
WORKER_FOLDERS = ("scratch", "tracer", "checker")  # of sandboxed workers alone: nothing of ours is written there


class RunIdentity(msgspec.Struct, frozen=True):
    """`run.json`: written first, never changed."""

    format: int
    created: float  # seconds since the epoch
    text: str  # the whole resolved job, as a job file
    base: str  # the folder that relative paths in it start from
    cheat: str = "none"  # what one of the local providers does instead of its work (job.cheat_names)
    baseline: bool = False  # whether one machine is trained on the same tokens, to compare with
    lab: bool = False  # whether providers and verifiers are in simulated homes (local.network.placement)
    relays: int = 2  # how many there are for those who cannot be reached, 1 to local.network.placement.MOST_RELAYS
    relay_price: int = 0  # pico-credits a GiB that a relay is paid; 0: nothing (peers.requester.relay_fees)
    validators: int = 1  # of its ledger, 1 to local.network.placement.MOST_VALIDATORS
    relay_most: int = 0  # pico-credits that all relays may cost; 0: what the plan puts aside
    disputes: bool = False  # whether its ledger has disputes, and who cheats contests
    program: str = ""  # the version of farflung that wrote it; empty in form 1


class RunFolder:
    """Paths of one run. Opening for writing takes a lock that ends with the process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: int | None = None
        self._coordinator: int | None = None

    @property
    def name(self) -> str:
        """The run's name: its folder's."""
        return self.root.name

    @property
    def identity_file(self) -> Path:
        """What the run is."""
        return self.root / "run.json"

    @property
    def network_file(self) -> Path:
        """The network that the run is on, where that is not this computer's own (peers.rundir.network_record)."""
        return self.root / "network.json"

    @property
    def genesis_file(self) -> Path:
        """What the ledger of that network began with."""
        return self.root / "genesis.bin"

    @property
    def resolved_file(self) -> Path:
        """The resolved configuration, for people and tools."""
        return self.root / "resolved.json"

    @property
    def events_file(self) -> Path:
        """All events, one JSON object a line."""
        return self.root / "events.jsonl"

    @property
    def rounds_file(self) -> Path:
        """The run log."""
        return self.root / "rounds.log"

    @property
    def model_file(self) -> Path:
        """The trained model, handed over at the end."""
        return self.root / "model.safetensors"

    @property
    def evidence(self) -> Path:
        """What was opened in audits that found somebody guilty."""
        return self.root / "evidence"

    @property
    def attestations(self) -> Path:
        """What the nodes that were hired say they run: their word, and not a proof of work."""
        return self.root / "attestations"

    @property
    def module_file(self) -> Path:
        """The user's model source, as it was when the run was created."""
        return self.root / "module.py"

    @property
    def dataset_file(self) -> Path:
        """The packed data set, as it was when the run was created."""
        return self.root / "dataset.bin"

    @property
    def account_file(self) -> Path:
        """What was left out of the data set when it was read, for the plan."""
        return self.root / "data.json"

    @property
    def base_file(self) -> Path:
        """What the terms say of the run that this one stands on, as it was proved when this one was created."""
        return self.root / "base.bin"

    @property
    def base_state_file(self) -> Path:
        """The final public state of that run."""
        return self.root / "base-state.bin"

    @property
    def graph_file(self) -> Path:
        """The canonical graph of one step, which the terms of a proven job name."""
        return self.root / "graph.bin"

    @property
    def terms_file(self) -> Path:
        """What was fixed before the work: written last of all that a run is made from."""
        return self.root / "terms.bin"

    @property
    def initial_file(self) -> Path:
        """Public state of round 0."""
        return self.snapshot(0)

    @property
    def snapshots(self) -> Path:
        """Public states of some rounds."""
        return self.root / "snapshots"

    @property
    def export(self) -> Path:
        """The log of a finished run, for a second reader."""
        return self.root / "export"

    @property
    def store(self) -> Path:
        """The requester's own object store."""
        return self.root / "store"

    def validator(self, index: int) -> Path:
        """A local validator's folder."""
        return self.ledger if index == 0 else self.root / f"ledger-{index + 1}"

    @property
    def ledger(self) -> Path:
        """The first local validator's folder."""
        return self.root / "ledger"

    def home(self, role: str, index: int) -> Path:
        """The folder of a local provider or verifier."""
        return self.root / f"{role}s" / str(index)

    def relay_folder(self, relay: str) -> Path:
        """A local relay's folder, by its name: with its last receipts, if it is paid."""
        return self.root / "relays" / relay

    def snapshot(self, round: int) -> Path:
        """Where the public state before `round` is kept, if it is."""
        return self.snapshots / f"{round:06d}.bin"

    def lock(self) -> None:
        """Takes the run for this process, if all that lies in its folder is ours to write.

        Raises RunError FF-APP-010 when another one has it, FF-APP-470 for links, pipes and another user's files.
        """
        handle = self._lock_file("lock")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 64).decode("ascii", "replace").partition(".")[0].strip() or "another process"
            os.close(handle)
            raise RunError(
                "FF-APP-010",
                f"run {self.name} is in use",
                cause=f"process {owner} is working on it",
                hint=f"watch it with `farflung status {self.name}`, or end it with `farflung stop {self.name}`",
            ) from None
        try:
            for path in [path for path in own_files(self.root, WORKER_FOLDERS) if is_left(path)]:
                path.unlink(missing_ok=True)
        except OSError as error:
            os.close(handle)
            raise _foreign(self, error) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, process_mark.own_mark().encode(), 0)
        self._lock = handle

    def unlock(self) -> None:
        """Lets go of the run: another process, or this one again, may work on it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def lock_coordinator(self) -> None:
        """Takes the run log for this process: there is one coordinator at a time, whoever supervises it.

        Waits for one that is about to end; raises RunError FF-APP-018 when it does not.
        """
        handle = self._lock_file("coordinator.lock")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + COORDINATOR_SECONDS
        while self._coordinator is None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._coordinator = handle
            except BlockingIOError:
                if loop.time() > deadline:
                    os.close(handle)
                    raise RunError(
                        "FF-APP-018",
                        f"another process coordinates run {self.name}",
                        cause="it holds coordinator.lock, and does not end",
                        hint="end it, then run `farflung resume`",
                    ) from None
                await asyncio.sleep(LOOK_SECONDS)

    def _lock_file(self, name: str) -> int:
        try:
            return open_own(self.root / name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise RunError(
                "FF-APP-017",
                f"the lock of run {self.name} cannot be used",
                cause=error.strerror or str(error),
                hint=f"see that the run's folder is yours, and that `{name}` in it is no link",
            ) from error

    def owner(self) -> int | None:
        """The process that works on this run now, if any; its number is that of its own PID namespace."""
        mark = self._owner_mark()
        return int(mark.partition(b".")[0]) if mark is not None else None

    def is_owner_here(self) -> bool:
        """Whether a process works on this run now that has its number here: not one of another container."""
        mark = self._owner_mark()
        where = mark.partition(b".")[2] if mark is not None else b""
        return mark is not None and (not where or int(where) == process_mark.namespace())

    def _owner_mark(self) -> bytes | None:
        try:
            handle = os.open(self.root / "lock", os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # none, a link, or somebody else's
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            mark = os.read(handle, 64)
            # A signal is sent to what stands here: 0, 1 and -1 are no run's process but whole groups of processes.
            found = _OWNER.fullmatch(mark)
            return mark if found is not None and int(found[1]) > 1 else None
        finally:
            os.close(handle)
        return None

    def read_identity(self) -> RunIdentity:
        """Reads run.json, of IDENTITY_BYTES at most; raises RunError FF-APP-011, VersionError FF-CORE-095."""
        try:
            with open_ordinary(self.identity_file, os.O_NOFOLLOW) as file:
                data = file.read(IDENTITY_BYTES)
            check_json(_FORM, data, *_EARLIER)
            return msgspec.json.decode(data, type=RunIdentity)
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(
                "FF-APP-011",
                f"{self.root} is not a run's folder",
                cause=str(error)[:200],
                hint="list your runs with `farflung status`",
            ) from error

    def other_program(self) -> VersionError | None:
        """What to say where what run.json holds cannot be understood: another farflung wrote it; None: it was ours."""
        said = self.read_identity()
        if said.program == VERSION:
            return None
        return other_version(_FORM, said.format, said.program) if said.program else earlier_version(_FORM)

    def check_version(self) -> RunIdentity:
        """Whether this farflung may go on with the run. Raises VersionError FF-CORE-095, RunError FF-APP-011."""
        said = self.read_identity()
        if said.format != FORMAT:
            raise other_version(_FORM, said.format, said.program) if said.program else earlier_version(_FORM)
        return said


def _foreign(run: RunFolder, error: OSError) -> RunError:
    path = Path(error.filename) if error.filename else run.root
    shown = path.relative_to(run.root) if path.is_relative_to(run.root) else path
    return RunError(
        "FF-APP-470",
        f"the folder of run {run.name} holds what farflung did not put there",
        cause=f"{shown}: {error.strerror or error}",
        hint="see who made the folder; move that file away, and begin again. Nothing was changed",
    )


def create(root: Path, identity: RunIdentity) -> RunFolder:
    """Makes a new run's folder and locks it; raises RunError FF-APP-012 when the place is taken."""
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise _taken(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)  # the seed of all keys and the user's data lie here in clear
        for name in ("snapshots", "store", "ledger", "providers"):
            (root / name).mkdir()
    except OSError as error:
        raise RunError(
            "FF-APP-013", f"cannot make the folder {root}", cause=str(error), hint="choose another with --out"
        ) from error
    folder = RunFolder(root)
    folder.lock()
    named = msgspec.structs.replace(identity, program=VERSION)
    write_atomic(folder.identity_file, msgspec.json.encode(named), "run.identity")
    known_runs.note(root)
    return folder


def _taken(root: Path) -> RunError:
    """The error FF-APP-012, which says what is there."""
    run, other = RunFolder(root), "choose another with --out"
    if not root.is_dir():
        cause, hint = "it is a file", other
    elif not run.identity_file.is_file():
        cause, hint = "it holds other files, and no run", other
    elif (owner := run.owner()) is not None:
        cause = f"process {owner} is working on the run in it"
        hint = f"{other}, or `farflung watch {root}`; `farflung stop {root}` ends it, `farflung resume {root}` goes on"
    elif run.model_file.exists():
        cause, hint = "it holds a finished run", f"{other}, or train that run on: `farflung resume {root} --rounds +N`"
    else:
        cause, hint = "it holds a run that has not ended", f"{other}, or go on with `farflung resume {root}`"
    return RunError("FF-APP-012", f"the folder {root} is in use", cause=cause, hint=hint)


def new_root(base: Path, day: str, name: str) -> Path:
    """The first free `DAY-NAME`, `DAY-NAME-2`, ... below `base`."""
    root, number = base / f"{day}-{name}", 1
    while root.exists():
        number += 1
        root = base / f"{day}-{name}-{number}"
    return root


def all_runs(base: Path) -> list[RunFolder]:
    """The runs below `base`, oldest first."""
    if not base.is_dir():
        return []
    found = [RunFolder(p) for p in base.iterdir() if (p / "run.json").is_file()]
    return sorted(found, key=lambda f: f.identity_file.stat().st_mtime)


def all_known(base: Path) -> list[RunFolder]:
    """The runs below `base` and those that this user made elsewhere (known_runs), oldest first."""
    runs = {run.root.resolve(): run for run in (*map(RunFolder, known_runs.elsewhere()), *all_runs(base))}
    return sorted(runs.values(), key=lambda run: run.identity_file.stat().st_mtime)


def find(base: Path, name: str | None) -> RunFolder:
    """A run by name or path, also of those made elsewhere; the newest when no name is given.

    Raises UsageError FF-APP-014.
    """
    runs = all_known(base)
    if name is None and runs:
        return runs[-1]
    if name is not None:
        places = (base / name, Path(name), *(run.root for run in reversed(runs) if run.name == name))
        for root in places:
            if (root / "run.json").is_file():
                return RunFolder(root)
    known = ", ".join(r.name for r in runs[-3:]) or "none"
    near = similar_name(name or "", [r.name for r in runs])
    raise UsageError(
        "FF-APP-014",
        f"no run {name[:100]!r}" if name else "no run yet",
        cause=f"{_what_is(name)}runs in {base}{_beyond(base, runs)}: {'' if len(runs) <= 3 else '..., '}{known}",
        hint=f"did you mean {near}? `farflung status` lists all"
        if near
        else "`farflung status` lists all"
        if runs
        else "start one with `farflung run`",
    )


def _beyond(base: Path, runs: list[RunFolder]) -> str:
    return " and elsewhere" if any(run.root.parent.resolve() != base.resolve() for run in runs) else ""


def _what_is(name: str | None) -> str:
    """What lies where a name that is no run's leads to; "" for nothing."""
    try:
        if name is None or not Path(name).exists():
            return ""
        is_folder = Path(name).is_dir()
    except (OSError, ValueError):
        return ""
    return f"{name[:100]} is a folder without a run.json, so no run's; " if is_folder else f"{name[:100]} is a file; "

"""Whole networks for tests: real processes, started by the real command, in a process group of their own.

Used by `tests/app` and `tests/soak`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_SECONDS = 240  # of one command, on a machine that other tests keep busy
GONE_SECONDS = 60  # until the kernel has cleared away what was killed
UNDRAWN = Path(__file__).with_name("app_command.py")
# A network is two processes smaller where nobody is audited.
UNAUDITED = ("--set", "audit.rate=0", "--set", "audit.probation=0", "--set", "network.verifiers=0")
# More than are over before somebody stops the run; of 180 its workers would compile the codec, for seconds.
MANY = ("--rounds", "150", "--set", "budget=10")
RUN_KEYS = ("model_hash", "ledger_root", "sum", "paid", "refunded", "rounds")

Event = dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    lines: list[str]
    errors: str

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def events(self) -> list[Event]:
        return [json.loads(line) for line in self.lines]

    @property
    def result(self) -> Event:
        assert self.code == 0, self.errors + "\n".join(self.lines[-5:])
        last = self.events[-1]
        assert last["event"] == "result"
        return last

    def refusal(self, code: str, exit_code: int) -> str:
        """The error on stderr, when it is this one: a code, a cause, a next step, and nothing besides."""
        assert self.code == exit_code, (self.code, self.errors, self.lines[-3:])
        lines = self.errors.splitlines()
        assert lines, self.lines[-3:]
        assert lines[0].startswith(f"error[{code}]: "), self.errors
        assert [line[:9] for line in lines[1:]] == ["  cause: ", "  try:   "], self.errors
        assert "Traceback" not in "".join(self.lines), self.lines
        return self.errors


class Farflung:
    """The command line, with its runs below one folder."""

    def __init__(self, runs: Path, limit: float = LIMIT_SECONDS) -> None:
        self.runs, self.limit = runs, limit
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("FARFLUNG_")}
        program = (str(UNDRAWN),) if words[0] in ("run", "resume") else ("-m", "farflung.app.cli.main")
        process = subprocess.Popen(
            [sys.executable, *program, *words],
            env={**clean, "FARFLUNG_RUNS": str(self.runs), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> Ended:
        try:
            out, errors = process.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            kill_tree(process)
            raise
        expect_gone(process.pid)
        return Ended(process.returncode, out.splitlines(), errors)

    def close(self) -> None:
        """Ends what a test that failed has left behind."""
        for process in self._started:
            if process.poll() is None:
                kill_tree(process)

    def __call__(self, *words: str, **environment: str) -> Ended:
        return self.finish(self.start(*words, **environment))

    def newest(self) -> Path | None:
        """The folder of the run that was created last, if any has come so far as to be one."""
        runs = [p.parent for p in self.runs.glob("*/run.json")] if self.runs.is_dir() else []
        return max(runs, key=lambda run: (run / "run.json").stat().st_mtime_ns, default=None)


def kill_tree(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the whole group that `start` made."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    expect_gone(process.pid)


def expect_gone(group: int) -> None:
    """Waits until no process of the group is left; fails when one stays."""
    deadline = time.monotonic() + GONE_SECONDS
    while left := [pid for pid in _pids() if _group_of(pid) == group]:
        assert time.monotonic() < deadline, f"still running: {[(p, _command(p)) for p in left]}"
        time.sleep(0.02)


def living(run: Path) -> list[int]:
    """Those of a run's announced processes that stay as ours. A sandboxed worker is in no group: it ends by itself."""
    pids = {int(e["pid"]) for e in stored_events(run) if e["event"] == "process"}
    deadline = time.monotonic() + GONE_SECONDS
    while left := [pid for pid in pids if _group_of(pid) != 0 and "farflung" in _command(pid)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return left


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _group_of(pid: int) -> int:
    """The process group; 0 for one that is gone or only waits to be reaped."""
    try:
        state, _, group, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return 0
    return 0 if state in "ZX" else int(group)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def stored_events(run: Path) -> list[Event]:
    """The whole events of a run's event log."""
    try:
        lines = (run / "events.jsonl").read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def reexecuted(run: Path) -> Counter[tuple[int, str]]:
    """Contributions that were computed again, by session and peer."""
    session, found = 1, Counter[tuple[int, str]]()
    for event in stored_events(run):
        if event["event"] == "resumed":
            session = int(event["session"])
        elif event["event"] == "reexecuted":
            found[session, str(event["peer"])] += 1
    return found


def outcome(result: Event) -> dict[str, Any]:
    """What two runs of one job must have in common, whatever happened to them."""
    return {key: result[key] for key in RUN_KEYS}


@dataclass
class Legs:
    """What `kill_at_each` did."""

    fired: dict[str, int]  # failpoint → how many rounds were closed in the run's log when it fired
    runs: set[Path]
    completed: int  # legs that came to the end of their run

    @property
    def most_reexecuted(self) -> int:
        """The most often that one peer had to compute anew in one session."""
        return max((n for run in self.runs for n in reexecuted(run).values()), default=0)


def kill_at_each(farflung: Farflung, job: Sequence[str], names: Sequence[str], wanted: Event) -> Legs:
    """Kills the tree at the first passing of each failpoint, resuming in between; then lets the run end.

    One leg follows the other in one run. A leg that ends without passing its failpoint has finished the run,
    which must then be the wanted one; that failpoint gets a new run. What died before it was a run starts anew.
    """
    legs = Legs({}, set(), 0)
    run: Path | None = None
    for name in names:
        while name not in legs.fired:
            is_new = run is None
            ended = _leg(farflung, job, run, FARFLUNG_FAILPOINT=name)
            run = run or farflung.newest()
            run = run if run not in legs.runs or not is_new else None
            if ended.was_killed:
                legs.fired[name] = sum(e["event"] == "round" for e in stored_events(run)) if run else 0
                assert not (run and living(run)), name
                break
            assert outcome(ended.result) == wanted, f"{name} was not passed, and the run ended otherwise"
            assert not is_new, f"{name} is never passed"
            assert run is not None
            legs.runs.add(run)
            legs.completed += 1
            run = None
    if run is not None:
        assert outcome(_leg(farflung, job, run).result) == wanted
        legs.runs.add(run)
    for finished in sorted(legs.runs):
        checked = farflung("verify-run", str(finished), "--json")
        assert checked.code == 0, checked.errors
    return legs


def _leg(farflung: Farflung, job: Sequence[str], run: Path | None, **environment: str) -> Ended:
    if run is None:
        return farflung("run", *job, "--json", **environment)
    return farflung("resume", str(run), "--json", **environment)

"""The whole tree is killed at each of its writes, fsyncs, renames and commits; what is resumed gives the same bits."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from app_trees import Ended, Farflung, kill_at_each, outcome

from farflung.peers.rundir import export
from farflung.watch.io import event_log

pytestmark = pytest.mark.whole
KILLED = pytest.mark.xdist_group("failpoints")  # one run is what those that are killed are compared with

SOURCES = Path(__file__).parents[2] / "src" / "farflung"
TINY = ("--preset", "tiny")

# Those that write, and what their labels begin with.
WRITERS = {
    "write_atomic",
    "write_at",
    "sync_file",
    "sync_folder",
    "append_whole",
    "AppendLog",
    "DiskObjectStore",
    "_transaction",
}
LABEL = re.compile(r"(run|ledger|provider|requester|watch)(\.[a-z]+)+")

MODULE = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(256, 16), nn.Linear(16, 256)

    def forward(self, x_BT, y_BT):
        logits_BTV = self.out(torch.tanh(self.table(x_BT)))
        return nn.functional.cross_entropy(logits_BTV.flatten(0, 1), y_BT.flatten())

def make():
    return Small()
"""
JOB = '[model]\nkind = "module"\nmodule = "small.py:make"\n'


def passed(listing: Path) -> list[str]:
    """The failpoints that the processes of one run passed, in the order of their first occurrence."""
    return list(dict.fromkeys(listing.read_text().split()))


def labels(source: str) -> set[str]:
    """The failpoint labels that a module gives to what it writes."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    writing = [call for call in calls if (getattr(call.func, "id", "") or getattr(call.func, "attr", "")) in WRITERS]
    given = [arg.value for call in writing for arg in call.args if isinstance(arg, ast.Constant)]
    return {text for text in given if isinstance(text, str) and LABEL.fullmatch(text)}


@pytest.mark.xdist_group("tree")  # whose run it looks at
def test_a_run_passes_a_failpoint_of_every_label_in_the_source(tiny: Any) -> None:
    points = passed(tiny[0].runs.parent / "failpoints")
    named = {export.LABEL, event_log.LABEL}
    for path in sorted(SOURCES.rglob("*.py")):
        named |= labels(path.read_text())
    assert len(named) >= 15
    unpassed = {label for label in named if not any(point.startswith(f"{label}.") for point in points)}
    # of jobs with a module, of runs that stand on another one or have a cheater, of what is fetched from a run, of
    # ledgers that no run made, of runs on others' network, of hosts that somebody tampers with, of disputed segments,
    # of data sets that no node gets whole
    others = {"ledger.init", "run.genesis", "run.net", "provider.tampering", "provider.briefs"}
    assert unpassed == {"run.module", "run.base", "run.evidence", "run.fetch", "run.tree"} | others


@dataclass(frozen=True)
class Reference:
    """An undisturbed run of a user's module, which passes every failpoint."""

    words: tuple[str, ...]
    command: Farflung
    ended: Ended
    points: list[str]

    @property
    def outcome(self) -> dict[str, Any]:
        """How each run of this job must end."""
        return outcome(self.ended.result)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Reference]:
    @cache
    def run(*more: str) -> Reference:
        folder = tmp_path_factory.mktemp("reference")
        (folder / "small.py").write_text(MODULE)
        (folder / "job.toml").write_text(JOB)
        words = (str(folder / "job.toml"), *TINY, *more)
        command = Farflung(folder / "runs")
        ended = command("run", *words, "--json", FARFLUNG_FAILPOINT_LOG=str(folder / "points"))
        return Reference(words, command, ended, passed(folder / "points"))

    return run


# All is audited, with canaries among it.
TESTED = (
    *("--set", "sync.steps=5", "--set", "audit.rate=1", "--set", "audit.canaries=0.5", "--set", "audit.jackpot=2"),
)
# One for each kind of thing that is written: a file of the run, a database, a log, a store, what is told. In the log
# the audits of round 1 are over, canaries included, and half written; the next leg cuts off what is torn there.
KINDS = (
    *("run.module.rename", "ledger.create.commit", "run.log.write@18", "run.log.cut"),
    *("provider.store.manifest.rename", "watch.events.fsync"),
)


@KILLED
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_with_canaries_is_proved(reference: Callable[..., Reference]) -> None:
    whole = reference(*TESTED)
    found = [event for event in whole.ended.events if event["event"] == "canary"]
    assert found
    assert {event["finding"] for event in found} == {"false"}
    told = whole.command("verify-run", str(whole.command.newest()))
    assert told.code == 0, told.errors
    assert f"{len(found)} canaries hold; nobody guessed" in "\n".join(told.lines)


@KILLED
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("is_each", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_kill_at_failpoints_ends_with_the_same_bits(
    reference: Callable[..., Reference], farflung: Farflung, is_each: bool
) -> None:
    """At one for each kind of thing that is written; in `make soak` at each of all."""
    whole = reference(*(() if is_each else TESTED))
    assert len(whole.points) > 60
    points = list(whole.points) if is_each else list(KINDS)
    if is_each:
        points.insert(points.index("run.log.write") + 1, "run.log.cut")
    assert {point.partition("@")[0] for point in KINDS} <= {*whole.points, "run.log.cut"}
    legs = kill_at_each(farflung, whole.words, points, whole.outcome)
    print(f"\n{len(legs.fired)} failpoints fired in {len(legs.runs)} runs: " + ", ".join(legs.fired))
    assert list(legs.fired) == points
    assert legs.most_reexecuted <= 1


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_kill_at_any_record_of_the_run_log_ends_with_the_same_bits(
    reference: Callable[..., Reference], farflung: Farflung
) -> None:
    whole = reference()
    names = [f"run.log.write@{count}" for count in range(2, 9)]
    legs = kill_at_each(farflung, whole.words, names, whole.outcome)
    rounds = ", ".join(f"{name} in round {closed}" for name, closed in legs.fired.items())
    print(f"\n{len(legs.fired)} records torn in {len(legs.runs)} runs: {rounds}")
    assert list(legs.fired) == names
    assert legs.most_reexecuted <= 1

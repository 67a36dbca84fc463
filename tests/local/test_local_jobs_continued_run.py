"""`farflung resume` of a run that has settled: which run it makes, and what it says where it makes none."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import farflung
from farflung.app.api import runs
from farflung.core.errors import FarflungError
from farflung.core.events import RoundStartEvent, RunResultEvent, SentBytesByKind
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.tensor_layout import TensorLayout
from farflung.job import job_toml
from farflung.job.job_loader import ResolvedJob, load
from farflung.job.spec import EvaluateSpec, JobSpec, JobTerms, ScheduleSpec
from farflung.local.jobs.continued_run import continued, is_early, not_settled, take_inputs
from farflung.local.network.evaluation import has_diverged
from farflung.local.network.session import RunSession
from farflung.peers.rundir import folder as folders
from farflung.peers.rundir.folder import FORMAT, RunFolder, RunIdentity
from farflung.watch.fold import RunTimeline


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run of 12 rounds of one step in the runs' folder, with nothing but its identity and what it was made from."""
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path))
    job = load(None, preset="tiny", flags={"rounds": "12", "sync.method": "dgc", "sync.warmup_rounds": "4"})
    text = "\n".join(job_toml.lines(job)) + "\n"
    run = RunFolder(tmp_path / "j1")
    run.root.mkdir()
    run.identity_file.write_bytes(msgspec.json.encode(RunIdentity(FORMAT, 1.0, text, str(tmp_path), "skip", True)))
    return run


def ended(rounds: int, reason: str = "stopped") -> RunResultEvent:
    money = {"paid": 1, "slashed": 0, "refunded": 0, "sum": 0}
    return RunResultEvent(
        loss=3.0, loss_start=5.0, loss_unigram=3.5, bytes_sent=1, bytes_by=SentBytesByKind(), bytes_ring_bf16=1,
        segments_audited=0, caught=(), **money, model_hash="", ledger_root="", seconds=1.0, run="j1", rounds=rounds,
        tokens=1, reexecuted=0, reason=reason,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("end", "rounds", "flags", "made"),
    [
        (ended(4), None, {}, {"rounds": 8, "start": "j1", "begin": 4, "seed": 2, "warmup": 0}),
        (ended(4, ""), "+3", {}, {"rounds": 3, "start": "j1", "begin": 4}),
        (ended(4), "20", {"optimizer.lr": "0.001"}, {"rounds": 16, "begin": 4, "lr": 0.001}),
        (ended(1), None, {"seed": "9"}, {"rounds": 11, "begin": 1, "seed": 9, "warmup": 3}),
        (ended(12, "complete"), "+12", {}, {"rounds": 12, "start": "j1", "begin": 12}),
        (ended(12, "complete"), None, {"rounds": "+2"}, {"rounds": 2, "begin": 12}),
        (ended(0), None, {}, {"rounds": 12, "start": "", "begin": 0, "seed": 1, "warmup": 4}),
        (ended(5, "diverged"), None, {"optimizer.lr": "0.1"}, {"rounds": 12, "start": "", "begin": 0, "lr": 0.1}),
    ],
)
def test_a_settled_run_is_gone_on_with_in_a_run_beside_it(
    parent: RunFolder, end: RunResultEvent, rounds: str | None, flags: dict[str, str], made: dict[str, Any]
) -> None:
    more = continued(parent, end, rounds, flags)
    spec = more.resolved.spec
    found = {
        "rounds": spec.rounds,
        "start": spec.model.start,
        "begin": spec.schedule.begin,
        "seed": spec.seed,
        "lr": spec.optimizer.lr,
        "warmup": spec.sync.warmup_rounds,
    }
    assert {key: found[key] for key in made} == made
    assert more.root == parent.root.with_name("j1-more")
    assert (more.identity.cheat, more.identity.baseline) == ("none", False)
    assert load(more.identity.text).spec == spec


@pytest.mark.parametrize(
    ("end", "more", "begun"),
    [
        (ended(12, "complete"), {"rounds": 3}, ("j1-more", 3, 0.1)),
        (ended(12, "complete"), {"rounds": "20", "set": {"optimizer.lr": 1e-3}}, ("j1-more", 8, 0.001)),
        (ended(4), {}, ("j1-more", 8, 0.1)),
        (ended(12, "complete"), {}, None),  # all is done: the run as it is
        (None, {}, ("j1", 12, 0.1)),
    ],
)
def test_python_goes_on_with_a_run_as_the_command_does(
    parent: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    end: RunResultEvent | None,
    more: dict[str, Any],
    begun: tuple[str, int, float] | None,
) -> None:
    started: list[tuple[str, int, float]] = []

    def start(root: Path, resolved: ResolvedJob, *_: object) -> None:
        if root != parent.root:
            folders.create(root, parent.read_identity())
        started.append((root.name, resolved.spec.rounds, resolved.spec.optimizer.lr))

    monkeypatch.setattr(runs, "read_timeline", lambda _: RunTimeline(result=end))
    monkeypatch.setattr(runs.session, "start", start)
    monkeypatch.setattr(runs.session, "resume", lambda run, *others: start(run.root, *others))
    heard: list[object] = []
    run = farflung.resume(parent.root, **more, callbacks=[heard.append])
    assert started == ([begun] if begun is not None else [])
    assert run.folder == (parent.root.with_name(begun[0]) if begun is not None else parent.root)
    if end is None:
        with pytest.raises(FarflungError, match="FF-APP-483"):
            farflung.resume(parent.root, rounds=3)


def test_each_further_run_has_a_free_name_and_finds_its_parent_elsewhere(parent: RunFolder) -> None:
    parent.root.with_name("j1-more").mkdir()
    assert continued(parent, ended(4), None, {}).root.name == "j1-more-2"
    away = RunFolder(parent.root.parent / "elsewhere" / "j1-more")
    away.root.parent.mkdir()
    parent.root.rename(away.root)
    more = continued(away, ended(4), None, {})
    assert more.root == away.root.with_name("j1-more-2")
    assert more.resolved.spec.model.start == "elsewhere/j1-more"  # from the folder that its relative paths start at


@pytest.mark.parametrize(
    ("end", "rounds", "code"),
    [
        (ended(12, "complete"), None, "FF-APP-480"),
        (ended(4), "4", "FF-APP-480"),
        (ended(4), "0", "FF-APP-481"),
        (ended(4), "+0", "FF-APP-481"),
        (ended(4), "-3", "FF-APP-481"),
        (ended(4), "many", "FF-APP-481"),
        (ended(4, "diverged"), None, "FF-APP-482"),
        (ended(4, "diverged"), "+4", "FF-APP-482"),
    ],
)
def test_where_nothing_can_go_on_the_next_command_is_named(
    parent: RunFolder, end: RunResultEvent, rounds: str | None, code: str
) -> None:
    with pytest.raises(FarflungError, match=code) as error:
        continued(parent, end, rounds, {})
    assert "farflung resume j1 --" in (error.value.hint or "")


def test_a_run_that_ended_early_goes_on_without_being_told_how_far(parent: RunFolder) -> None:
    assert is_early(parent, ended(4))
    assert not is_early(parent, ended(12, "complete"))
    assert "farflung resume j1" in (not_settled(parent).hint or "")


@pytest.mark.parametrize(
    ("flags", "taken"),
    [
        ({}, {"dataset.bin", "data.json", "module.py"}),
        ({"data.limit": "5"}, {"module.py"}),
        ({"model.vocabulary": "300"}, {"module.py"}),
        ({"model.kind": "module", "model.module": "other.py:build"}, {"dataset.bin", "data.json"}),
    ],
)
def test_inputs_are_those_of_the_run_before_unless_a_setting_differs(
    parent: RunFolder, flags: dict[str, str], taken: set[str]
) -> None:
    for path in (parent.dataset_file, parent.account_file, parent.module_file):
        path.write_bytes(b"kept")
    made = RunFolder(parent.root.with_name("made"))
    made.root.mkdir()
    take_inputs(made, parent, load(parent.read_identity().text, flags=flags).spec)
    assert {path.name for path in made.root.iterdir()} == taken


def test_ctrl_c_before_the_first_round_stops_and_loses_nothing() -> None:
    """Settled after no round it would be over; later the round is finished."""
    asked: list[str] = []
    session = RunSession.__new__(RunSession)
    session._identity = SimpleNamespace(baseline=False)  # type: ignore[assignment]
    session._processes = SimpleNamespace(ask_to_stop=lambda reason: not asked.append(reason))  # type: ignore[assignment]
    session._main = SimpleNamespace(cancel=lambda: asked.append("now"))  # type: ignore[assignment]
    for opened, expected in ((None, ["now"]), (RoundStartEvent(round=0, rounds=2, peers=(), waited=0.0), ["stopped"])):
        asked.clear()
        timeline = RunTimeline(opened=opened)
        session._journal = SimpleNamespace(timeline=timeline, emit=lambda _: None)  # type: ignore[assignment]
        session.interrupt()
        assert asked == expected


@pytest.mark.parametrize(
    ("most", "start", "loss", "stops"),
    [
        (2.0, 5.5, 11.1, True),
        (2.0, 5.5, 10.9, False),
        (2.0, 5.5, math.nan, True),
        (2.0, None, math.inf, True),
        (2.0, None, 9e9, False),
        (2.0, -1.0, 9e9, False),
        (3.0, 5.5, 16.0, False),
        (0.0, 5.5, 9e9, False),
        (0.0, 5.5, math.nan, False),
    ],
)
def test_a_loss_far_above_the_start_stops_a_run(most: float, start: float | None, loss: float, stops: bool) -> None:
    spec = JobSpec(evaluate=EvaluateSpec(stop_loss=most))
    assert has_diverged(spec, start, loss) is stops


@pytest.mark.parametrize("value", ["-1", "0.5", "1", "nan"])
def test_a_stop_that_any_run_would_meet_is_refused(value: str) -> None:
    with pytest.raises(FarflungError, match="FF-JOB-00"):
        load(None, flags={"evaluate.stop_loss": value})
    assert load(None, flags={"evaluate.stop_loss": "0"}).spec.evaluate.stop_loss == 0


def test_a_job_that_states_neither_key_has_the_id_that_it_always_had(bare_terms: JobTerms) -> None:
    ids = {bare_terms.id}
    assert bare_terms.id.hex() == "0aaaf20a07cce70db0e82b09eff5107b29f600ebe54cbc1f8947d051d38dd655"
    for change in ({"schedule": ScheduleSpec(begin=3)}, {"evaluate": EvaluateSpec(stop_loss=3.0)}):
        spec = msgspec.structs.replace(bare_terms.spec, **change)
        ids.add(msgspec.structs.replace(bare_terms, spec=spec).id)
    assert len(ids) == 3


@pytest.fixture
def bare_terms() -> JobTerms:
    spec = load(None, preset="tiny").spec
    return JobTerms(spec, ZERO_HASH, ZERO_HASH, TensorLayout.of({"a": (2,)}), PeerId(bytes(32)), ZERO_HASH)

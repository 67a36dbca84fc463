"""What is passed on tells nothing of the computer it came from; what cannot be written leaves nothing half done."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from farflung.app.cli.fetch import RESOLVED
from farflung.app.views import report_page
from farflung.core import events
from farflung.core.crypto import local_key
from farflung.core.errors import RunError, UsageError
from farflung.core.events import SentBytesByKind
from farflung.core.ids import ZERO_HASH
from farflung.core.io import durable_files
from farflung.core.io.durable_files import write_atomic
from farflung.core.tensor_layout import TensorLayout
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.spec import DataSpec, JobSpec, JobTerms, ModelSpec
from farflung.local.model import load, model_card
from farflung.peers.rundir.folder import FORMAT, RunFolder, RunIdentity
from farflung.peers.rundir.runs import runs_folder
from farflung.train import model_file
from farflung.train.public_state import PublicState
from farflung.watch.io.event_log import EventLog

MAIN = "from farflung.app.cli.main import main; main()"
SECRETS = ("bob", "secret-host", "203.0.113.7", "2001:db8::7", "4711")
TELLING = (
    "cannot read /home/bob/my data/x.txt, '/home/bob/a b/c', ~bob/y or C:\\Users\\bob\\z",
    "peer at 203.0.113.7:4711 and [2001:db8::7]:4711, secret-host:4711 and https://bob@secret-host/x",
    "file:///home/bob/x and tls://203.0.113.7:4711",
)
SPEC = JobSpec(
    name="small",
    model=ModelSpec(layers=1, width=8, heads=2, context=16),
    data=DataSpec(path="/home/bob/private/words.txt"),
)


def result(**said: str) -> events.RunResultEvent:
    named = {"run": "r", "model_hash": "ab" * 32, "ledger_root": "cd" * 32} | said
    return events.RunResultEvent(
        loss=1.0, loss_start=2.0, loss_unigram=3.0, bytes_sent=1, bytes_by=SentBytesByKind(), bytes_ring_bf16=1,
        segments_audited=1, caught=(), paid=1, slashed=1, refunded=1, sum=0, seconds=1.0, rounds=1, tokens=1,
        reexecuted=0, **named,
    )  # fmt: skip


def a_run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "home" / "bob" / "runs" / "r")
    run.root.mkdir(parents=True)
    run.identity_file.write_bytes(msgspec.json.encode(RunIdentity(FORMAT, 1e9, "", "/home/bob")))
    log = EventLog(run.events_file)
    for text in TELLING:
        log.append(events.WarningEvent(code="X", message=text, hint=text))
        log.append(events.ProcessRestartEvent(name="requester", why=text, seconds=1.0))
        log.append(events.ProcessExitEvent(peer="ab" * 32, reason=text))
        log.append(events.ProcessStartEvent(role="provider", name="provider-0", pid=4711, peer="ab" * 32))
        log.append(events.SandboxEvent(tier="bwrap", gaps=(text,)))
        log.append(events.RunFailureEvent(code="X", message=text, cause=text, hint=text))
    log.close()
    return run


def test_a_report_names_nothing_of_the_computer_that_made_it(tmp_path: Path) -> None:
    page = report_page.write(a_run(tmp_path)).read_text()
    for secret in (*SECRETS, str(tmp_path), socket.gethostname() + ":", str(Path.home()) + "/"):
        assert secret not in page, secret


def test_the_settings_beside_a_fetched_model_name_files_and_no_folders(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    own = {"spec": {"model": {"module": "/home/bob/m.py:build"}, "data": {"path": "/home/bob/x.txt"}}}
    run.resolved_file.write_text(json.dumps(own))
    assert run.resolved_file.name == RESOLVED
    said = json.loads(load.settings(run))
    assert said == {"spec": {"model": {"module": "m.py:build"}, "data": {"path": "x.txt"}}}
    own["spec"]["model"]["start"] = "/home/bob/runs/base"
    run.resolved_file.write_text(json.dumps(own))
    assert json.loads(load.settings(run))["spec"]["model"] == {"module": "m.py:build", "start": "base"}
    for bad in ("[]", "{}", "{", '{"spec":' * 5000, '{"spec":{"model":{"module":7},"data":{}}}'):
        run.resolved_file.write_text(bad)
        with pytest.raises(RunError, match="FF-APP-161"):
            load.settings(run)


def test_a_model_card_and_a_model_file_name_files_and_no_folders() -> None:
    layout = TensorLayout.of(gpt_shapes(SPEC.model))
    terms = JobTerms(SPEC, ZERO_HASH, ZERO_HASH, layout, local_key(1, "r", 0).public, ZERO_HASH)
    data = model_file.write(terms, PublicState(1, np.zeros(layout.size, np.float32)))
    said, _ = model_file.read(data)
    text = model_card.readme(said, SPEC, result(), "ab" * 32, "out", None)
    assert "words.txt" in text
    assert "bob" not in text + repr(said)
    assert b"bob" not in data


def test_what_a_log_says_stays_between_its_backticks_in_a_model_card() -> None:
    said = model_file.ModelFileHeader(
        format=1, kind="gpt", context=16, vocabulary=256, tokens="bytes", name="n", job="ab" * 32, rounds=1
    )
    evil = "x`\n# Owned\n<script>\x1b[31m"
    text = model_card.readme(said, SPEC, result(run=evil, ledger_root=evil), "ab" * 32, 'f");import os;("', None)
    assert not any(line.startswith(("# Owned", "<script")) for line in text.splitlines())
    assert "\x1b" not in text
    assert all(line.count("`") % 2 == 0 for line in text.splitlines() if not line.startswith("```"))
    assert 'from_pretrained("f\\");import os;(\\"")' in text


def test_files_that_cannot_all_be_written_are_taken_away_again(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="FF-APP-164"):
        load.write_files(tmp_path / "new", {"a": b"x", "no/such/folder": b"y"})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(RunError, match="FF-APP-164"):
        load.write_files(tmp_path / "mine", {"a": b"x", "no/such/folder": b"y"})
    assert [list(path.iterdir()) for path in tmp_path.iterdir()] == [[]]


def test_a_written_file_follows_no_link_under_its_temporary_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    monkeypatch.setattr(durable_files.secrets, "token_hex", lambda _: "0a1b2c3d")
    (tmp_path / "x.0a1b2c3d.tmp").symlink_to(precious)
    with pytest.raises(RunError, match="FF-CORE-050"):
        write_atomic(tmp_path / "x", b"other", "test")
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("kind", ["circle", "below", "nowhere", "file"])
def test_a_runs_folder_that_cannot_be_one_is_a_mistake(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "runs"
    match kind:
        case "circle" | "below":
            place.symlink_to("runs")
        case "nowhere":
            place.symlink_to("no such")
        case "file":
            place.touch()
    monkeypatch.setenv("FARFLUNG_RUNS", str(place / "a" if kind == "below" else place))
    with pytest.raises(UsageError, match="FF-APP-173"):
        runs_folder()


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    bad, good = a_run(tmp_path), a_run(tmp_path / "other")
    bad.events_file.unlink()
    os.mkfifo(bad.events_file)
    good.root.rename(bad.root.parent / "good")
    environment = os.environ | {"FARFLUNG_RUNS": str(bad.root.parent)}
    told = subprocess.run(
        [sys.executable, "-c", MAIN, "status", "--json"], env=environment, capture_output=True, timeout=60, check=True
    )
    states = {row["run"]: row["state"] for row in json.loads(told.stdout)["runs"]}
    assert states == {"r": "unreadable", "good": "failed"}


@pytest.mark.whole
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_leads_nowhere(tmp_path: Path, closed: str) -> None:
    run = a_run(tmp_path)
    environment = os.environ | {"FARFLUNG_RUNS": str(run.root.parent), "PYTHON": sys.executable, "MAIN": MAIN}
    before = run.events_file.read_bytes()
    for verb in ("watch r", "status", "report r"):
        ended = subprocess.run(
            ["bash", "-c", f'exec "$PYTHON" -c "$MAIN" {verb} {closed}'], env=environment, timeout=60, check=False
        )
        assert ended.returncode == 0, verb
    assert run.events_file.read_bytes() == before
    assert (run.root / "report.html").read_text().endswith("</html>")

"""Files from before headers (tests/old/first): what is read for ever, and what is refused by its version.

Every file here was written by the program; see README.md beside this file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from farflung.app.cli.main import main
from farflung.core.errors import VersionError
from farflung.core.money import MICRO
from farflung.core.release import VERSION
from farflung.job import terms_file
from farflung.ledger import genesis_file
from farflung.ledger.receipt_file import check_receipt_file, read_receipt_file
from farflung.local.model import hf_export, load
from farflung.peers.rundir.archive import RunLog, read_entries
from farflung.peers.rundir.export import read_export
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.genesis import NetworkKeys
from farflung.peers.rundir.journal import read_timeline
from farflung.peers.rundir.runs import resolve_again

FIRST = Path(__file__).parent / "first"
RECEIPTS = sorted((FIRST / "run" / "export" / "receipts").glob("*.receipt"))
MODEL = "5d1abb01dca77a537016b4a14f626fa74e7d0aae5f0602c141393fef2c31d7d9"

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy: what is read must not be what the test changes."""
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path))
    shutil.copytree(FIRST / "run", tmp_path / "old")
    return tmp_path / "old"


@pytest.fixture
def said(run: Path, capsys: Capture) -> Callable[..., Any]:
    def call(*words: str) -> Any:
        main(words)
        out = capsys.readouterr().out
        return json.loads(out) if "--json" in words else out

    return call


@pytest.mark.parametrize("path", RECEIPTS, ids=lambda path: path.stem)
def test_receipts_are_verified_offline(path: Path) -> None:
    genesis = genesis_file.read((FIRST / "run" / "export" / "genesis.bin").read_bytes())
    held = read_receipt_file(path.read_bytes())
    assert check_receipt_file(held, genesis.chain)
    parties = NetworkKeys(resolve_again(RunFolder(FIRST / "run")).spec).parties
    assert held.party == parties[path.stem]


def test_there_is_a_receipt_of_every_party() -> None:
    assert [path.stem for path in RECEIPTS] == ["provider-0", "provider-1", "requester", "verifier-0"]


def test_the_verb_tells_what_an_old_receipt_proves(said: Callable[..., Any]) -> None:
    told = said("receipt", "verify", str(RECEIPTS[0]), "--json")
    assert told["jobs"][0]["state"] == "settled"
    assert told["jobs"][0]["lease"]["paid"] == 576 * MICRO
    assert "Paid     0.000576 credits" in said("receipt", "verify", str(RECEIPTS[0]))


def test_event_logs_give_the_same_result_and_views(run: Path, said: Callable[..., Any]) -> None:
    result = read_timeline(RunFolder(run)).result
    assert result is not None
    assert (result.model_hash, result.paid) == (MODEL, 1408 * MICRO)
    assert "round 3" in said("watch", "old", "--speed", "0").lower() or MODEL in said("watch", "old", "--speed", "0")
    (listed,) = said("status", "--json")["runs"]
    assert (listed["run"], listed["state"]) == ("old", "finished")
    assert "paid 0.00141" in said("watch", "old", "--speed", "0")
    said("report", "old", "--out", str(run / "page.html"))
    assert MODEL in (run / "page.html").read_text()


def test_model_files_are_loaded_sampled_and_measured(run: Path, said: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("ten green bottles hanging on the wall\n" * 9)
    assert len(said("sample", str(run / "model.safetensors"), "--tokens", "5", "--json")["tokens"]) == 5
    measured = said("eval", "old", "--data", str(tmp_path / "text.txt"), "--json")
    assert measured["loss"] < 5.5
    assert load.model_hash((run / "model.safetensors").read_bytes()).hex() == MODEL


def test_models_of_old_runs_are_fetched_and_exported_as_the_ledger_names_them(
    run: Path, said: Callable[..., Any], tmp_path: Path
) -> None:
    for verb in ("fetch", "export"):
        told = said(verb, "old", "--out", str(tmp_path / verb), "--json")
        assert (told["model"], told["on_ledger"]) == (MODEL, True)
    assert (tmp_path / "fetch" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    (run / "export" / "receipts" / "requester.receipt").write_bytes(RECEIPTS[0].read_bytes())
    with pytest.raises(SystemExit):
        said("fetch", "old", "--out", str(tmp_path / "again"))


def test_an_export_of_then_holds_the_tensors_of_an_export_of_now(run: Path) -> None:
    held = load.open_model(str(run))
    now = hf_export.weights(held.tensors)
    then = safetensors.numpy.load_file(FIRST / "hf" / "model.safetensors")
    assert now.keys() == then.keys()
    assert all(np.array_equal(now[name], then[name]) for name in now)
    assert MODEL in (FIRST / "hf" / "README.md").read_text()
    assert json.loads((FIRST / "hf" / "config.json").read_bytes())["model_type"] == "gpt2"


REFUSED: dict[str, Callable[[Path], Any]] = {
    "terms": lambda run: terms_file.read((run / "terms.bin").read_bytes()),
    "run log": lambda run: read_entries(run / "rounds.log"),
    "run log, to go on": lambda run: RunLog(
        run / "rounds.log", NetworkKeys(resolve_again(RunFolder(run)).spec).requester
    ),
    "exported log": lambda run: read_export(RunFolder(run)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_everything_else_is_refused_as_of_an_earlier_farflung(what: str, run: Path) -> None:
    before = (run / "rounds.log").read_bytes()
    with pytest.raises(VersionError, match="FF-CORE-095") as caught:
        REFUSED[what](run)
    text = " ".join(caught.value.lines())
    assert f"written by an earlier farflung; this is farflung {VERSION}" in text
    assert "damaged" not in text
    assert (run / "rounds.log").read_bytes() == before


@pytest.mark.parametrize("words", [("resume", "old"), ("verify-run", "old")])
def test_verbs_that_need_another_version_say_so(words: tuple[str, ...], run: Path, capsys: Capture) -> None:
    events = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(line for line in events if '"event":"result"' not in line))
    (run / "export" / "payloads").mkdir()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as ended:
        main(words)
    told = capsys.readouterr().err
    assert ended.value.code in (1, 5)
    assert "error[FF-CORE-095]" in told
    assert "earlier farflung" in told
    assert "damaged" not in told
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before

"""A real run's model on its way out: fetched, held against the ledger, used, measured, exported."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.numpy
from app_trees import Ended, Farflung

from farflung.app.cli.main import main
from farflung.train import model_file

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("tree")]

Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def called(
    tiny: tuple[Farflung, Ended], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Called:
    """Runs the command in an empty folder: exit status, standard output, standard error."""
    monkeypatch.setenv("FARFLUNG_RUNS", str(tiny[0].runs))
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = 0
        try:
            main(words)
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


@pytest.fixture
def copied(tiny: tuple[Farflung, Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run that may be broken, in a folder of its own."""
    source = tiny[0].newest()
    assert source is not None
    shutil.copytree(source, tmp_path / "mine" / "tiny")
    return tmp_path / "mine" / "tiny"


def test_fetch_hands_over_model_receipt_and_settings_and_names_the_hash_on_the_ledger(
    tiny: tuple[Farflung, Ended], called: Called
) -> None:
    code, out, err = called("fetch", "--out", "got", "--json")
    assert code == 0, err
    said = json.loads(out)
    assert (said["model"], said["on_ledger"]) == (tiny[1].result["model_hash"], True)
    files = {Path(row["file"]).name: row["bytes"] for row in said["files"]}
    assert set(files) == {"model.safetensors", "requester.receipt", "resolved.json"}
    assert files == {path.name: path.stat().st_size for path in Path("got").iterdir()}
    for row in said["files"]:
        assert row["sha256"] == hashlib.sha256(Path(row["file"]).read_bytes()).hexdigest()
    assert called("receipt", "verify", "got/requester.receipt")[0] == 0
    assert called("sample", "got", "--tokens", "5")[0] == 0


def test_fetch_writes_into_a_folder_of_the_runs_name_and_never_into_a_full_one(called: Called) -> None:
    code, out, _ = called("fetch")
    assert code == 0
    (folder,) = Path().iterdir()
    assert f"farflung sample {folder}" in out
    code, _, err = called("fetch")
    assert code == 2
    assert "error[FF-APP-163]" in err


def test_a_folder_that_cannot_be_made_is_named(called: Called) -> None:
    code, _, err = called("fetch", "--out", "/proc/new")
    assert code == 1
    assert "error[FF-APP-164]: cannot make the folder /proc/new" in err


@pytest.mark.parametrize("place", [100, -1])
def test_a_model_that_is_not_the_one_on_the_ledger_is_not_handed_over(called: Called, copied: Path, place: int) -> None:
    data = bytearray((copied / "model.safetensors").read_bytes())
    data[place] ^= 1
    (copied / "model.safetensors").write_bytes(data)
    for verb in ("fetch", "export"):
        code, _, err = called(verb, str(copied), "--out", "got")
        assert code in (2, 5)
        assert code == 5 or "FF-TRAIN-100" in err  # a damaged head cannot even be read
        assert not Path("got").exists()
    assert place != -1 or "FF-APP-162" in err


def test_a_receipt_that_was_altered_hands_nothing_over(called: Called, copied: Path) -> None:
    path = copied / "export" / "receipts" / "requester.receipt"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    code, _, err = called("fetch", str(copied), "--out", "got")
    assert code == 5
    assert "error[FF-LEDG-" in err


def test_the_receipt_of_another_party_names_no_model(called: Called, copied: Path) -> None:
    receipts = copied / "export" / "receipts"
    (receipts / "requester.receipt").write_bytes((receipts / "provider-0.receipt").read_bytes())
    code, _, err = called("fetch", str(copied), "--out", "got")
    assert code == 5
    assert "error[FF-APP-472]" in err
    code, _, err = called("verify-run", str(copied))
    assert code == 5
    assert "error[FF-VERI-160]" in err


def test_eval_gives_the_figure_of_the_run_itself_to_the_last_bit(tiny: tuple[Farflung, Ended], called: Called) -> None:
    code, out, err = called("eval", "--json")
    assert code == 0, err
    said = json.loads(out)
    assert said["loss"] == said["loss_of_run"] == tiny[1].result["loss"]
    assert said["tokens"] == 2048


def test_plain_safetensors_hold_the_same_tensors(called: Called) -> None:
    assert called("export", "--format", "safetensors", "--out", "plain")[0] == 0
    assert called("fetch", "--out", "got")[0] == 0
    plain = safetensors.numpy.load_file("plain/model.safetensors")
    said, tensors = model_file.read(Path("got/model.safetensors").read_bytes())
    assert {n: v.tobytes() for n, v in plain.items()} == {n: v.tobytes() for n, v in tensors.items()}
    assert said.rounds == 3


def test_the_model_card_tells_the_runs_figures_and_not_better_ones(
    tiny: tuple[Farflung, Ended], called: Called
) -> None:
    assert called("export", "--format", "hf", "--out", "hf")[0] == 0
    told = Path("hf/README.md").read_text()
    result = tiny[1].result
    for figure in (result["loss"], result["loss_start"], result["loss_unigram"], result["loss_baseline"]):
        assert f"| {figure:.3f} |" in told
    assert "It has not learned more than which tokens are frequent." in told
    assert result["model_hash"] in told


@pytest.mark.extra(name="hf")
def test_transformers_loads_the_folder_that_the_verb_wrote(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    library = pytest.importorskip("transformers", reason="transformers is not installed")
    library.utils.logging.disable_progress_bar()
    assert called("export", "--out", "hf")[0] == 0
    ours = json.loads(called("sample", "--prompt", "def ", "--temperature", "0", "--tokens", "9", "--json")[1])
    tokenizer = library.AutoTokenizer.from_pretrained("hf")
    theirs = library.AutoModelForCausalLM.from_pretrained("hf")
    found = theirs.generate(**tokenizer("def ", return_tensors="pt"), do_sample=False, max_new_tokens=9)
    assert found[0, 4:].tolist() == ours["tokens"]


def test_the_second_reader_holds_the_described_model_to_be_the_runs(
    tiny: tuple[Farflung, Ended], called: Called
) -> None:
    code, out, err = called("verify-run", "--json")
    assert code == 0, err
    assert json.loads(out)["model_hash"] == tiny[1].result["model_hash"]

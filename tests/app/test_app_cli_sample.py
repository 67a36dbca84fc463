"""`farflung sample` and `farflung eval`, on a folder made for the test; a real run is in test_app_handing."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_models import JOB, LETTERS, finished_run

from farflung.app.cli.main import main
from farflung.core.codec import encode
from farflung.local.model.prompts import as_text, harmless
from farflung.train.inference_messages import GenerateReply, ModelEvaluationReply

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("using") / "runs"
    finished_run(root, "small")
    return root


@pytest.fixture
def said(runs: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("FARFLUNG_RUNS", str(runs))

    def call(*words: str) -> Any:
        main(words)
        out = capsys.readouterr().out
        return json.loads(out) if "--json" in words else out

    return call


def test_a_seed_gives_its_text_again_and_another_seed_another(said: Callable[..., Any]) -> None:
    first, again = (said("sample", "small", "--tokens", "50", "--json") for _ in range(2))
    assert first == again
    assert len(first["tokens"]) == 50
    assert said("sample", "small", "--tokens", "50", "--seed", "2", "--json")["tokens"] != first["tokens"]


def test_lines_and_json_tell_the_same_text(said: Callable[..., Any]) -> None:
    words = ("sample", "small", "--prompt", "ten green", "--tokens", "40")
    assert said(*words) == "ten green" + said(*words, "--json")["text"] + "\n"


def test_the_file_alone_is_enough(runs: Path, said: Callable[..., Any], tmp_path: Path) -> None:
    wanted = said("sample", "small", "--tokens", "20", "--json")
    shutil.copy(runs / "small" / "model.safetensors", tmp_path / "model.safetensors")
    assert said("sample", str(tmp_path / "model.safetensors"), "--tokens", "20", "--json") == wanted
    assert said("sample", str(tmp_path), "--tokens", "20", "--json") == wanted
    assert said("sample", "--tokens", "20", "--json") == wanted


def test_a_longer_prompt_than_the_context_is_used_and_said(said: Callable[..., Any], capsys: Capture) -> None:
    main(["sample", "small", "--prompt", "x" * 30, "--tokens", "1"])
    assert "the model sees the last 24 of the prompt's 30 bytes" in capsys.readouterr().err


def test_a_character_is_written_when_its_last_byte_has_come() -> None:
    parts = list(as_text("é🌍\n".encode()))
    assert [part for part in parts if part] == ["é", "🌍", "\n"]
    assert "".join(as_text(b"a\xf0\x9f\x8c")) == "a\ufffd"


def test_nothing_that_steers_a_terminal_is_written() -> None:
    everything = "".join(chr(code) for code in range(0x3000) if not 0xD800 <= code < 0xE000) + "\U000e0001"
    shown = harmless(everything)
    assert harmless("\x1b[2J\r\x7f\x9b") == "␛[2J␍␡\ufffd"
    assert harmless("a\tb\nc 👩‍🔬") == "a\tb\nc 👩‍🔬"
    kept = {char for char in shown if unicodedata.category(char) in ("Cc", "Cf")}
    assert kept == {"\n", "\t", "\u200c", "\u200d"}
    assert len(shown) == len(everything)


def test_eval_gives_the_runs_own_figure_to_the_last_bit(runs: Path, said: Callable[..., Any]) -> None:
    found = said("eval", "small", "--json")
    assert found["loss"] == found["loss_of_run"]
    assert found["bits_per_token"] == pytest.approx(found["loss"] / np.log(2))
    assert 0 <= found["accuracy"] <= 1
    assert found["tokens"] == 600
    assert "the run's own figure" in said("eval")


def test_eval_measures_fewer_tokens_and_other_text(runs: Path, said: Callable[..., Any], tmp_path: Path) -> None:
    fewer = said("eval", "small", "--tokens", "48", "--json")
    assert (fewer["tokens"], fewer["loss_of_run"]) == (48, None)
    (tmp_path / "other.txt").write_text("entirely different words " * 20)
    np.save(tmp_path / "other.npy", np.frombuffer(b"entirely different words " * 20, "u1"))
    text = said("eval", "small", "--data", str(tmp_path / "other.txt"), "--json")
    numbers = said("eval", "small", "--data", str(tmp_path / "other.npy"), "--json")
    assert text["loss"] == numbers["loss"] != fewer["loss"]
    assert text["tokens"] == 480


@pytest.mark.whole
def test_a_model_of_the_users_own_is_used_in_a_process_of_its_own(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = str(tmp_path / "mark")
    guarded = f"try:\n    open({mark!r}, 'w').close()\nexcept OSError:\n    pass\n"
    finished_run(tmp_path / "runs", "own", source=LETTERS.format(name="logits"))
    folder = tmp_path / "runs" / "own"
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path / "runs"))
    main(["sample", "own", "--tokens", "30", "--json"])
    assert len(json.loads(capsys.readouterr().out)["tokens"]) == 30
    main(["eval", "own", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["loss"] == found["loss_of_run"]
    assert found["accuracy"] is not None
    (folder / "module.py").write_text(guarded + LETTERS.format(name="logits"))
    with pytest.raises(SystemExit) as left:
        main(["sample", "own", "--tokens", "3"])
    assert left.value.code == 5
    assert "FF-APP-165" in capsys.readouterr().err
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
def test_the_source_of_a_model_cannot_write_files_when_it_is_sampled(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    spy = f"\ntry:\n    open({str(mark)!r}, 'w').close()\n    WROTE = 1\nexcept OSError:\n    WROTE = 0\n"
    finished_run(tmp_path / "runs", "own", source=LETTERS.format(name="logits") + spy)
    mark.unlink()  # made when the test itself built the model to write its file
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path / "runs"))
    main(["sample", "own", "--tokens", "3", "--json"])
    assert len(json.loads(capsys.readouterr().out)["tokens"]) == 3
    assert not mark.exists()


LIES = """
import os
import sys

if sys.argv[0].endswith("inference_process.py"):  # in the process that the command starts, and nowhere else
    word = bytes.fromhex({word!r})
    os.write(int(sys.argv[1]), len(word).to_bytes(8, "little") + word)
"""


@pytest.mark.whole
@pytest.mark.parametrize("lie", [GenerateReply(4000), GenerateReply(-1), ModelEvaluationReply(0.0, 1.0, 9)])
def test_a_model_that_speaks_in_the_name_of_its_process_is_not_believed(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, lie: GenerateReply | ModelEvaluationReply
) -> None:
    source = LETTERS.format(name="logits") + LIES.format(word=encode(lie).hex())
    finished_run(tmp_path / "runs", "own", source=source)
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path / "runs"))
    with pytest.raises(SystemExit) as left:
        main(["sample", "own"])
    assert left.value.code == 1
    assert "error[FF-APP-167]" in capsys.readouterr().err


@pytest.mark.slow
def test_a_models_own_words_in_an_error_are_one_harmless_line(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    raises = "raise ValueError('one\\n\\x1b[2Jtwo' + 9999 * 'x')"
    source = LETTERS.format(name="logits") + f"\nimport sys\nif 'inference_process' in sys.argv[0]:\n    {raises}\n"
    finished_run(tmp_path / "runs", "own", source=source)
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path / "runs"))
    with pytest.raises(SystemExit):
        main(["sample", "own"])
    lines = capsys.readouterr().err.split("\n")
    assert [line[:9] for line in lines] == ["error[FF-", "  cause: ", "  try:   ", ""]
    assert "one ?[2Jtwo" in lines[1]
    assert max(map(len, lines)) <= 400


@pytest.mark.whole
def test_a_model_without_logits_says_what_to_add_and_is_still_measured(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_run(tmp_path / "runs", "own", JOB, source=LETTERS.format(name="scores"))
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path / "runs"))
    with pytest.raises(SystemExit) as left:
        main(["sample", "own"])
    told = capsys.readouterr().err
    assert left.value.code == 1
    assert "error[FF-TRAIN-105]" in told
    assert "def logits(self, x_BT)" in told
    main(["eval", "own"])
    assert "not measured: the model has no method logits" in capsys.readouterr().out

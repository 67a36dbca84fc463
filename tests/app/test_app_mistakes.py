"""What clumsy people type: each mistake gets a code, a cause, a next step and the helpful word."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from app_models import JOB, LETTERS, finished_run
from app_trees import Farflung

from farflung.app.cli.main import main

FAILED, USAGE, REFUSED, VERIFICATION = 1, 2, 4, 5


class Mistake(NamedTuple):
    words: str  # as typed; "~" stands for a space inside one word
    code: str
    exit_code: int
    helps: str  # what must be in the answer
    variable: str = ""  # NAME=VALUE


VERBS = [
    Mistake("trian", "FF-APP-001", USAGE, "Did you mean 'run'"),
    Mistake("rnu job.toml", "FF-APP-001", USAGE, "Did you mean 'run'"),
    Mistake("Run", "FF-APP-001", USAGE, "Did you mean 'run'"),
    Mistake("stauts", "FF-APP-001", USAGE, "Did you mean 'status'"),
    Mistake("ls", "FF-APP-001", USAGE, "farflung status --help"),
    Mistake("generate", "FF-APP-001", USAGE, "Did you mean 'sample'"),
    Mistake("evaluate small", "FF-APP-001", USAGE, "Did you mean 'eval'"),
    Mistake("help", "FF-APP-001", USAGE, "farflung --help"),
    Mistake("xyzzy", "FF-APP-001", USAGE, "init, plan, quote, simulate, run"),
    Mistake("provide", "FF-APP-001", USAGE, "Did you mean 'lend'"),
    Mistake("lend", "FF-APP-585", USAGE, "farflung lend INVITE", "XDG_CONFIG_HOME=/nowhere"),
    Mistake("lend commons", "FF-APP-528", USAGE, "farflung1", "XDG_CONFIG_HOME=/nowhere"),
    Mistake("lend status", "FF-APP-586", USAGE, "farflung lend INVITE"),
    Mistake("--verison", "FF-APP-001", USAGE, "farflung --help"),
    Mistake("receipt verfiy x", "FF-APP-001", USAGE, "receipt"),
    Mistake("receipt verify nowhere.receipt", "FF-APP-001", USAGE, "does not exist"),
    Mistake("receipt verify jobs/good.toml", "FF-LEDG-077", VERIFICATION, "not a receipt file"),
    Mistake("completion tcsh", "FF-APP-001", USAGE, "bash"),
]
FLAGS = [
    Mistake("run --round 3", "FF-APP-001", USAGE, "--rounds"),
    Mistake("run --rounds", "FF-APP-001", USAGE, "farflung run --help"),
    Mistake("run --rounds three", "FF-APP-001", USAGE, "'three' is not a valid integer"),
    Mistake("run --preset tinny", "FF-JOB-005", USAGE, 'did you mean "tiny"'),
    Mistake("run --cheat lazy", "FF-APP-001", USAGE, "'skip'"),
    Mistake("run --set rounds", "FF-APP-001", USAGE, "--set sync.steps=20"),
    Mistake("run --set =3", "FF-JOB-001", USAGE, "keys"),
    Mistake("run --set sync.step=3", "FF-JOB-001", USAGE, 'did you mean "steps"'),
    Mistake("run --set snyc.steps=3", "FF-JOB-001", USAGE, "did you mean [sync]"),
    Mistake("run --set steps=3", "FF-JOB-001", USAGE, '"steps" in [sync]'),
    Mistake("run --set rounds=0", "FF-JOB-004", USAGE, "at least 1"),
    Mistake("run --set rounds=2.5", "FF-JOB-002", USAGE, "a whole number"),
    Mistake("run --rounds -1", "FF-JOB-004", USAGE, "at least 1"),
    Mistake("run --set network.providers=1000", "FF-JOB-004", USAGE, "at most 64"),
    Mistake("run --set model.heads=3", "FF-JOB-004", USAGE, "a divisor of model.width"),
    Mistake("run --set optimizer.lr=nan", "FF-JOB-004", USAGE, "finite"),
    Mistake("run --set budget=lots", "FF-JOB-004", USAGE, "budget"),
    Mistake("run --set sync.codec=gzip", "FF-JOB-002", USAGE, "low_rank"),
    Mistake("run --out full --preset tiny", "FF-APP-012", FAILED, "--out"),
    Mistake("run --out jobs/good.toml", "FF-APP-001", USAGE, "is a file"),
    Mistake("run a.toml b.toml", "FF-APP-001", USAGE, "b.toml"),
]
FILES = [
    Mistake("run nowhere.toml", "FF-JOB-010", USAGE, "looked for in"),
    Mistake("run jobs", "FF-APP-001", USAGE, "is a directory"),
    Mistake("run model.py", "FF-JOB-003", USAGE, "farflung init --model module"),
    Mistake("run job.json", "FF-JOB-003", USAGE, "TOML, not in JSON"),
    Mistake("plan job.yaml", "FF-JOB-003", USAGE, "farflung init"),
    Mistake("run bottles.txt", "FF-JOB-003", USAGE, "bottles.txt line 1"),
    Mistake("run jobs/key.toml", "FF-JOB-001", USAGE, "key.toml line 2"),
    Mistake("run jobs/section.toml", "FF-JOB-001", USAGE, "did you mean [network]"),
    Mistake("run jobs/type.toml", "FF-JOB-002", USAGE, "type.toml line 1"),
    Mistake("run jobs/unquoted.toml", "FF-JOB-003", USAGE, 'text in "quotes"'),
    Mistake("run jobs/twice.toml", "FF-JOB-003", USAGE, "twice.toml line 2"),
    Mistake("run jobs/latin1.toml", "FF-JOB-003", USAGE, "save the file as UTF-8"),
    Mistake("run jobs/nul.toml", "FF-JOB-003", USAGE, "nul.toml line 1"),
    Mistake("run jobs/huge.toml", "FF-JOB-012", USAGE, "is too large"),
    Mistake("run jobs/utf16.toml", "FF-JOB-003", USAGE, "save the file as UTF-8"),
    Mistake("plan jobs/module.toml", "FF-JOB-010", USAGE, "nobody.py is not there"),
    Mistake("run jobs/nodata.toml", "FF-JOB-010", USAGE, "is not there"),
    Mistake("run jobs/binary.toml", "FF-JOB-021", USAGE, "is not text"),
    Mistake("init --data nowhere.txt", "FF-JOB-010", USAGE, "nowhere.txt is not there"),
    Mistake("init jobs/good.toml", "FF-APP-168", USAGE, "farflung init jobs/good-2.toml"),
    Mistake("init --model lstm", "FF-APP-001", USAGE, "'gpt', 'module'"),
    Mistake("init bottles.txt/sub", "FF-APP-169", FAILED, "Not a directory"),
]
RUNS = [
    Mistake("status samll", "FF-APP-014", USAGE, "did you mean small"),
    Mistake("resume nothing", "FF-APP-014", USAGE, "farflung status"),
    Mistake("stop small", "FF-APP-015", USAGE, "it is finished"),
    Mistake("stop half", "FF-APP-015", USAGE, "farflung resume half"),
    Mistake("verify-run half", "FF-APP-080", VERIFICATION, "farflung resume"),
    Mistake("fetch half", "FF-APP-160", FAILED, "farflung resume half"),
    Mistake("fetch small --out full", "FF-APP-163", USAGE, "--out full-2"),
    Mistake("fetch small --out bottles.txt", "FF-APP-163", USAGE, "it is a file"),
    Mistake("export small --format gguf", "FF-APP-001", USAGE, "'safetensors', 'hf'"),
    Mistake("sample half", "FF-APP-160", FAILED, "no model yet"),
    Mistake("sample bottles.txt", "FF-TRAIN-100", USAGE, "farflung fetch"),
    Mistake("sample jobs", "FF-APP-014", USAGE, "no run 'jobs'"),
    Mistake("status " + "n" * 300, "FF-APP-003", FAILED, "File name too long"),
    Mistake("sample small --temperature -1", "FF-TRAIN-103", USAGE, "from 0"),
    Mistake("sample small --temperature hot", "FF-APP-001", USAGE, "'hot' is not a valid float"),
    Mistake("sample small --top-p 2", "FF-TRAIN-103", USAGE, "at most 1"),
    Mistake("sample small --top-k -3", "FF-TRAIN-103", USAGE, "0 (all tokens)"),
    Mistake("sample small --tokens 0", "FF-APP-001", USAGE, "--tokens"),
    Mistake("sample small --seed -1", "FF-APP-001", USAGE, "--seed"),
    Mistake("sample small --prompt " + "x" * 70_000, "FF-APP-171", USAGE, "the prompt is too long"),
    Mistake("sample numbers --prompt hello", "FF-APP-172", REFUSED, "token IDs, not text"),
    Mistake("sample own", "FF-TRAIN-105", FAILED, "logits(self, x_BT)"),
    Mistake("export own", "FF-APP-170", REFUSED, "--format safetensors"),
    Mistake("eval small --data nowhere.txt", "FF-JOB-010", USAGE, "is not there"),
    Mistake("eval small --data noise.bin", "FF-JOB-021", USAGE, "is not text"),
    Mistake("eval small --data short.txt", "FF-APP-174", USAGE, "a longer text"),
    Mistake("eval small --tokens 5", "FF-APP-174", USAGE, "farflung eval --tokens "),
    Mistake("--json status", "FF-APP-001", USAGE, "farflung status --json"),
    Mistake("eval small --tokens 1", "FF-APP-001", USAGE, "--tokens"),
]
VARIABLES = [
    Mistake("plan", "FF-JOB-001", USAGE, "did you mean FARFLUNG_ROUNDS", "FARFLUNG_ROUDNS=3"),
    Mistake("plan", "FF-JOB-001", USAGE, "did you mean FARFLUNG_SYNC_STEPS", "FARFLUNG_SYNC_STEP=3"),
    Mistake("plan", "FF-JOB-002", USAGE, "FARFLUNG_ROUNDS", "FARFLUNG_ROUNDS=many"),
    Mistake("status", "FF-APP-173", USAGE, "FARFLUNG_RUNS", "FARFLUNG_RUNS=bottles.txt"),
    Mistake("run --preset tiny", "FF-APP-173", USAGE, "is not a folder", "FARFLUNG_RUNS=bottles.txt"),
    Mistake("sample", "FF-APP-014", USAGE, "farflung run", "FARFLUNG_RUNS=empty"),
    Mistake("status", "FF-APP-003", FAILED, "File name too long", "FARFLUNG_RUNS=" + "n" * 300),
    Mistake("run --preset tiny", "FF-APP-013", FAILED, "--out", "FARFLUNG_RUNS=bottles.txt/runs"),
]
TABLE = [*VERBS, *FLAGS, *FILES, *RUNS, *VARIABLES]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that can be mistaken for something else."""
    root = tmp_path_factory.mktemp("mistakes")
    for folder in ("jobs", "full", "empty"):
        (root / folder).mkdir()
    for name, data in FOUND.items():
        (root / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    np.save(root / "numbers.npy", np.arange(4000) % 200)
    finished_run(root / "runs", "small")
    finished_run(root / "runs", "half", is_done=False)
    finished_run(root / "runs", "own", source=LETTERS.format(name="scores"))
    finished_run(root / "runs", "numbers", JOB.replace("bottles.txt", str(root / "numbers.npy")))
    return root


FOUND: dict[str, bytes | str] = {
    "bottles.txt": "ten green bottles\n" * 90,
    "short.txt": "short",
    "noise.bin": bytes(range(256)) * 40,
    "model.py": "def build(): ...\n",
    "job.json": '{"rounds": 3}',
    "job.yaml": "rounds: 3\n",
    "full/file": "mine",
    "jobs/good.toml": JOB,
    "jobs/key.toml": "seed = 1\nrouds = 3\n",
    "jobs/section.toml": "[netwrk]\nproviders = 3\n",
    "jobs/type.toml": 'rounds = "three"\n',
    "jobs/unquoted.toml": "name = first run\n",
    "jobs/twice.toml": "rounds = 3\nrounds = 4\n",
    "jobs/latin1.toml": 'name = "caf\xe9"\n'.encode("latin-1"),
    "jobs/nul.toml": b"rounds = 3\0\n",
    "jobs/huge.toml": b"# " + b"x" * 10_000_000,
    "jobs/utf16.toml": "rounds = 3\n".encode("utf-16"),
    "jobs/module.toml": '[model]\nkind = "module"\nmodule = "../nobody.py:build"\n',
    "jobs/nodata.toml": '[data]\npath = "nowhere.txt"\n',
    "jobs/binary.toml": '[data]\npath = "../noise.bin"\n',
}


def test_the_table_is_long_enough() -> None:
    assert len(set(TABLE)) == len(TABLE) >= 40


def refused(errors: str, mistake: Mistake) -> None:
    lines = errors.splitlines()
    assert lines[0].startswith(f"error[{mistake.code}]: "), errors
    assert len(lines) <= 6, errors
    assert lines[1].startswith("  cause: "), errors
    assert lines[2].startswith("  try:   "), errors
    assert max(map(len, lines)) <= 500, errors
    assert mistake.helps in errors
    assert not re.search("Traceback|FF-APP-099|mistake in farflung", errors)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", TABLE, ids=[f"{m.variable} {m.words}".strip()[:60] for m in TABLE])
def test_a_mistake_is_answered_with_what_was_meant(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mistake: Mistake
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("FARFLUNG_RUNS", "runs")
    if mistake.variable:
        monkeypatch.setenv(*mistake.variable.split("=", 1))
    before = sorted(path.name for path in (place / "runs").iterdir())
    with pytest.raises(SystemExit) as left:
        main([word.replace("~", " ") for word in mistake.words.split(" ")])
    told = capsys.readouterr()
    refused(told.err, mistake)
    assert left.value.code == mistake.exit_code
    assert not re.search("Traceback", told.out)
    assert sorted(path.name for path in (place / "runs").iterdir()) == before, "nothing is left behind"


@pytest.mark.parametrize(
    "words", ["run --gpu", "plan --set network.ledger=3", "plan --set model.tokenizer=3", "xyzzy", "plan --preset gpt2"]
)
def test_what_resembles_no_name_gets_no_guess(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words.split())
    assert "did you mean" not in capsys.readouterr().err.lower()


def test_a_mistyped_option_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--prest", "tiny"])
    assert "No such option '--prest'. Did you mean --preset?" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "said"), [(13, "permission denied: {path} (owner: "), (28, "No space left")])
def test_an_error_of_the_operating_system_names_path_and_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    path = str(tmp_path / "gone" / "run.json")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr("farflung.app.cli.init.init.callback", refuse)
    with pytest.raises(SystemExit) as left:
        main(["init"])
    told = capsys.readouterr().err
    assert said.format(path=path) in told
    assert path in told
    assert ("owner" in told) is (number == 13)
    assert left.value.code == FAILED


def test_a_job_file_with_a_byte_order_mark_or_windows_line_ends_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bottles.txt").write_bytes(b"ten green bottles\n" * 90)
    (tmp_path / "job.toml").write_bytes(b"\xef\xbb\xbf" + JOB.replace("\n", "\r\n").encode())
    main(["plan", str(tmp_path / "job.toml")])
    assert "3 rounds" in capsys.readouterr().out


def test_an_empty_job_file_is_the_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.toml").write_bytes(b"")
    main(["plan", str(tmp_path / "job.toml"), "--preset", "tiny"])
    assert "gpt 1x32" in capsys.readouterr().out


def test_resuming_a_finished_run_says_so_and_shows_how_it_ended(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARFLUNG_RUNS", str(place / "runs"))
    main(["resume", "small"])
    told = capsys.readouterr()
    assert "run small is finished" in told.err
    assert "Result" in told.out


@pytest.mark.parametrize(
    ("words", "code"), [("run --preset tiny --out /proc/new", "FF-APP-013"), ("init /proc/new", "FF-APP-169")]
)
def test_a_place_where_nobody_can_write_is_named(capsys: pytest.CaptureFixture[str], words: str, code: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(words.split())
    assert left.value.code == FAILED
    assert f"error[{code}]" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("words", ["run --preset tiny", "init locked", "fetch small --out locked/got"])
def test_a_folder_without_permission_is_named(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(place)
    locked = place / "locked"
    locked.mkdir(exist_ok=True)
    monkeypatch.setenv("FARFLUNG_RUNS", "locked" if words.startswith("run") else "runs")
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(SystemExit) as left:
            main(words.split())
    finally:
        locked.chmod(stat.S_IRWXU)
    assert left.value.code == FAILED
    assert "Permission denied" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("mistake", [VERBS[0], FLAGS[0], FILES[2], RUNS[0]], ids=["verb", "flag", "file", "run"])
def test_a_real_process_answers_alike(place: Path, monkeypatch: pytest.MonkeyPatch, mistake: Mistake) -> None:
    monkeypatch.chdir(place)
    ended = Farflung(place / "runs")(*mistake.words.split(" "))
    refused(ended.errors, mistake)
    assert (ended.code, ended.lines) == (mistake.exit_code, [])

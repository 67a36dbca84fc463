"""`farflung init`: the example job runs as it is, explains every key, and overwrites nothing."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from farflung.app.cli import init
from farflung.app.cli.main import main
from farflung.job.job_loader import load
from farflung.job.job_toml import ABOUT
from farflung.job.keys import KEYS
from farflung.train import flat_model, inner_steps, user_module
from farflung.train.data_order import batch

COMMENTED = re.compile(r"# ([a-z0-9_]+ = .*)")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def called(*words: str) -> None:
    main(["init", *words])


def with_comments_taken(text: str) -> str:
    """Every commented key becomes an active one."""
    return "\n".join(COMMENTED.sub(r"\1", line, count=1) for line in text.splitlines())


@pytest.mark.parametrize("kind", ["gpt", "module"])
def test_every_commented_key_shows_the_jobs_own_default(kind: str) -> None:
    text = init.document(kind)
    active = {key for key, origin in load(text).origins.items() if origin != "default"}
    whole = load(with_comments_taken(text))
    assert {key for key, origin in whole.origins.items() if origin == "default"} == set()
    for key in set(KEYS) - active:
        assert whole.value_of(key) == KEYS[key].default, key


@pytest.mark.parametrize("kind", ["gpt", "module"])
def test_at_most_20_keys_are_active_and_each_has_one_comment(kind: str) -> None:
    text = init.document(kind)
    origins = load(text).origins
    assert 10 <= sum(origin != "default" for origin in origins.values()) <= 20
    lines = [line for line in text.splitlines() if COMMENTED.match(line) or re.match(r"[a-z0-9_]+ = ", line)]
    assert len(lines) == len(KEYS)
    for line, key in zip(lines, KEYS, strict=True):
        assert line.endswith(f"# {ABOUT[key]}")
        assert re.sub("^# ", "", line).startswith(f"{KEYS[key].name} = ")


def test_the_example_is_a_job_that_the_plan_takes(capsys: pytest.CaptureFixture[str]) -> None:
    called("new")
    main(["plan", "new/job.toml", "--json"])
    told = capsys.readouterr().out.splitlines()
    assert told[:3] == ["wrote new/job.toml", "next  farflung plan new/job.toml", "      farflung run new/job.toml"]
    assert json.loads(told[3])["event"] == "plan"


def test_a_name_that_ends_in_toml_is_the_file_itself(here: Path) -> None:
    called("deep/er/mine.toml")
    called()
    assert (here / "deep" / "er" / "mine.toml").read_text() == (here / "job.toml").read_text()


def test_data_is_written_as_the_jobs_folder_sees_it(here: Path) -> None:
    (here / "text.txt").write_text("one two three\n" * 400)
    called("sub", "--data", "text.txt")
    called("--data", "text.txt")
    assert tomllib.loads((here / "sub" / "job.toml").read_text())["data"]["path"] == "../text.txt"
    assert tomllib.loads((here / "job.toml").read_text())["data"]["path"] == "text.txt"
    called("far/away", "--data", "text.txt")
    assert tomllib.loads((here / "far/away/job.toml").read_text())["data"]["path"] == str(here / "text.txt")


def test_nothing_is_overwritten_and_nothing_is_written_by_halves(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "model.py").write_text("mine")
    with pytest.raises(SystemExit) as left:
        called("--model", "module")
    assert left.value.code == 2
    assert "error[FF-APP-168]: model.py is there already" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["model.py"]
    assert (here / "model.py").read_text() == "mine"


@pytest.mark.parametrize(("data", "code"), [("nothing.txt", "FF-JOB-010"), ("short.txt", "FF-JOB-022")])
def test_data_that_cannot_be_used_is_said_before_a_file_is_written(
    here: Path, capsys: pytest.CaptureFixture[str], data: str, code: str
) -> None:
    (here / "short.txt").write_text("too short")
    with pytest.raises(SystemExit):
        called("new", "--data", data)
    assert code in capsys.readouterr().err
    assert not (here / "new").exists()


def test_the_example_module_can_be_trained_and_sampled() -> None:
    spec = load(init.document("module")).spec
    built = flat_model.build(spec, init.SOURCE.encode())
    tokens = np.frombuffer(b"some text and more " * 20, "u1")
    x_BT, y_BT = inner_steps.tensors(batch(tokens, spec, 0, 0, 0))
    built.probe(x_BT, y_BT)
    module = user_module.build(spec.model.module, init.SOURCE.encode())
    assert module.logits(x_BT).shape == (spec.batch, spec.model.context, 256)


def test_as_json_it_names_the_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called("--model", "module", "--json")
    said = json.loads(capsys.readouterr().out)
    assert said == {"files": ["job.toml", "model.py"], "job": "job.toml", "data": "stdlib"}


def bare(source: str) -> str:
    """A program without its comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.unparse(tree)


def test_the_module_that_is_made_is_the_one_among_the_examples() -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "own_module.py"
    assert bare(init.SOURCE) == bare(example.read_text(encoding="utf-8"))

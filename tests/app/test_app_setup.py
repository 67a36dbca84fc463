"""Without PyTorch a ledger, a relay and a client start; what needs it names `farflung setup`, which installs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from farflung.app.cli.main import main
from farflung.core.errors import UsageError
from farflung.core.io import extras
from farflung.host import torch_build
from farflung.host.io import torch_setup
from farflung.host.torch_build import CPU, CUDA, ROCM, GraphicsCards
from farflung.peers.node.process import lend

ROOT = Path(__file__).parents[2]

# Imported in one process from which the libraries of both extras are hidden.
FREE = ("core", "compress", "ledger", "net", "store", "job", "plan", "host", "market", "watch", "peers", "local", "app")
IMPORTS = f"""
import importlib, pkgutil, sys
hidden = {tuple(extras.LIBRARIES)!r}
for name in hidden:
    sys.modules[name] = None
import farflung
for package in {FREE!r}:
    for found in pkgutil.walk_packages([farflung.__path__[0] + "/" + package], f"farflung.{{package}}."):
        if not found.name.endswith(("__main__", "_loops", "numba_kernels")) and ".loops" not in found.name:
            importlib.import_module(found.name)
sys.exit(any(sys.modules[name] is not None for name in hidden))
"""


def test_every_package_but_train_verify_and_sync_is_imported_without_either_extra() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr[-800:]) == (0, "")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder, in a process without the libraries of both extras."""
    for name in extras.LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(torch_setup, "installed", lambda: "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path / "runs"))
    return tmp_path


@pytest.mark.parametrize(
    "words", ["run --preset tiny", "run --preset tiny --on net", "plan --preset tiny --trace", "lend net"]
)
def test_a_verb_that_needs_pytorch_names_the_command_that_installs_it(
    bare: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words.split())
    assert left.value.code == 2
    told = capsys.readouterr().err.splitlines()
    assert "error[FF-CORE-120]: PyTorch is not installed" in told
    assert told[-1].split() == ["try:", "farflung", "setup"]
    assert not list(bare.rglob("run.json"))


def test_a_node_without_pytorch_ends_before_it_registers(bare: Path) -> None:
    coroutine = lend(None, None, None)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as refused:
        coroutine.send(None)
    assert (refused.value.code, refused.value.hint) == ("FF-CORE-120", "farflung setup")


@pytest.mark.parametrize("library", sorted(extras.LIBRARIES))
def test_an_import_that_fails_deep_inside_names_its_extra(library: str) -> None:
    error = extras.not_installed(f"{library}.part")
    assert error is not None
    assert f"the extra {extras.LIBRARIES[library].extra}" in str(error.cause)
    assert extras.not_installed("another") is None


def test_the_version_is_told_without_pytorch(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["version", "--json"])
    assert json.loads(capsys.readouterr().out)["torch"] == "not installed: farflung setup"


@pytest.mark.parametrize(
    ("cards", "build"), [((False, False), CPU), ((True, False), CUDA), ((False, True), ROCM), ((True, True), CUDA)]
)
def test_the_build_suits_the_cards(cards: tuple[bool, bool], build: str) -> None:
    assert torch_build.build_for(GraphicsCards(*cards)) == build


@pytest.mark.parametrize(
    ("build", "system", "index", "again", "tail"),
    [
        (CPU, "Linux", "", False, ["--index-url", "https://download.pytorch.org/whl/cpu"]),
        (CPU, "Darwin", "", False, []),
        (CUDA, "Linux", "", False, []),
        (CUDA, "Linux", "file:///wheels", True, ["--index-url", "file:///wheels", "--force-reinstall"]),
    ],
)
def test_pip_is_told_one_version_and_where_it_is(
    build: str, system: str, index: str, again: bool, tail: list[str]
) -> None:
    words = torch_build.arguments(build, system, index, again=again)
    assert words == ["install", f"torch=={torch_build.VERSION}", *tail]


def test_the_version_is_that_of_the_constraints() -> None:
    assert f"torch=={torch_build.VERSION}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_a_driver_that_lists_no_card_counts_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = [torch_setup.cards()]
    for name, text in (("nvidia-smi", "echo GPU 0"), ("rocminfo", "echo no device; exit 1")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o700)
    seen.append(torch_setup.cards())
    assert seen == [GraphicsCards(), GraphicsCards(nvidia=True)]


def test_a_dry_run_shows_the_command_and_installs_nothing(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["setup", "--torch", "cpu", "--index", "file:///wheels", "--dry-run", "--json"])
    words = json.loads(capsys.readouterr().out)["command"].split()
    assert words[1:] == ["-m", "pip", "install", f"torch=={torch_build.VERSION}", "--index-url", "file:///wheels"]


@pytest.mark.slow
def test_pip_looks_where_it_is_told_and_what_it_does_not_find_is_an_error(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A real pip, and a package index that is an empty folder."""
    settings = {"CONFIG_FILE": "/dev/null", "FIND_LINKS": "", "NO_INDEX": "", "TARGET": str(bare / "there")}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(SystemExit) as left:
        main(["setup", "--index", bare.as_uri(), "--yes"])
    told = capfd.readouterr()
    assert (left.value.code, told.out) == (1, "")
    assert "error[FF-HOST-121]: PyTorch was not installed" in told.err
    assert f"torch=={torch_build.VERSION}" in told.err


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        ("setup", "FF-APP-523", 2),  # there is no terminal to ask on
        ("setup --torch tpu", "FF-APP-001", 2),
    ],
)
def test_setup_asks_and_knows_its_builds(
    bare: Path, capsys: pytest.CaptureFixture[str], words: str, code: str, status: int
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words.split())
    assert left.value.code == status
    assert f"error[{code}]" in capsys.readouterr().err


@pytest.mark.parametrize("lacks", ["environment", "pip"])
def test_setup_never_touches_the_python_of_the_system(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lacks: str
) -> None:
    if lacks == "environment":
        monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    else:
        monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(SystemExit) as left:
        main(["setup", "--yes"])
    assert left.value.code == 2
    assert "error[FF-HOST-120]" in capsys.readouterr().err


def test_setup_leaves_what_is_installed(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch_setup, "installed", lambda: "2.6.0")
    main(["setup"])
    assert capsys.readouterr().out == "PyTorch 2.6.0 is installed already\n"

"""The same history gives the same roots, whatever the seed of hashes and whichever Python reads it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ledger_replay import ends

ROOT = Path(__file__).resolve().parents[2]
NEEDS = "import blake3, cryptography, ed25519_zebra, msgspec, numpy"
OTHERS = [name for name in ("3.11", "3.12", "3.13") if name != f"3.{sys.version_info.minor}"]


@pytest.fixture(scope="module")
def wanted() -> list[str]:
    return ends()


def replayed(python: str, seed: str) -> list[str]:
    folders = (ROOT / "src", Path(__file__).parent, ROOT / "tests" / "support")
    environment = dict(os.environ, PYTHONHASHSEED=seed, PYTHONPATH=os.pathsep.join(map(str, folders)))
    done = subprocess.run(
        [python, "-m", "ledger_replay"], env=environment, capture_output=True, text=True, timeout=240, check=True
    )
    return done.stdout.split("\n")[:-1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "1", "77777"])
def test_the_seed_of_hashes_changes_no_root(wanted: list[str], seed: str) -> None:
    assert replayed(sys.executable, seed) == wanted


def interpreter(version: str) -> str:
    """Of this version, with the packages that the ledger needs: made by .ci/interpreters, or the system's."""
    own = ROOT / f".venv-{version}" / "bin" / "python"
    for python in (str(own), shutil.which(f"python{version}")):
        if python and Path(python).exists():
            tried = subprocess.run([python, "-c", NEEDS], capture_output=True, timeout=60)
            if tried.returncode == 0:
                return python
    pytest.skip(f"no Python {version} with the ledger's packages here: run .ci/interpreters")


@pytest.mark.slow
@pytest.mark.parametrize("version", OTHERS)
def test_another_python_finds_the_same_roots(wanted: list[str], version: str) -> None:
    assert replayed(interpreter(version), "3") == wanted

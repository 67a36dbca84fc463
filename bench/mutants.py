"""Takes away, one at a time, what each promise of the README rests on: its own named test must fail.

    python bench/mutants.py [--only WORD] [--out FILE]

`bench/mutants.toml` has the changes, a check each; tests/house sees to it that each row of the table has one, and that
each still fits the source. Here the tree is copied to a temporary folder with an environment of its own, so that
processes in a sandbox import the copy too. The test passes there first; then the change is made, and the test must
fail. A line a change: "met" is true where the test failed, and the exit status is 1 where one did not.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

from reporting import Row, load, show

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "bench" / "mutants.toml"
PAGE = ROOT / "docs" / "guarantees.md"
THREATS = ROOT / "docs" / "threats.md"
NAMED = re.compile(r"tests/([\w/]+\.py(?:::\w+)?)")
PASSED, FAILED, NOTHING = 0, 1, 5  # of pytest: all else is no verdict


class Mutant(NamedTuple):
    """One check taken away: `old` stands once in `file` and becomes `new`, and so does each pair of `also`; `test` is
    what must notice.
    """

    gone: str
    test: str
    file: str
    old: str
    new: str
    also: list[list[str]] = []  # noqa: RUF012 - a tuple's default

    @property
    def test_file(self) -> str:
        """The test's file, from the root."""
        return "tests/" + self.test.partition("::")[0]

    def change(self, text: str) -> str | None:
        """The file without the check; None where what is to change does not stand there once."""
        for old, new in [(self.old, self.new), *self.also]:
            if text.count(old) != 1 or old == new:
                return None
            text = text.replace(old, new)
        return text


def mutants() -> list[Mutant]:
    """All of the table."""
    return [Mutant(**row) for row in tomllib.loads(TABLE.read_text("utf-8"))["mutant"]]


def promises() -> list[tuple[str, set[str]]]:
    """Each row of the page of guarantees: what it claims, and the tests that it names, by file or by name."""
    rows = re.findall(r"^\| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    found = [(claim, set(NAMED.findall(shown))) for claim, _, shown in (row.partition(" | ") for row in rows)]
    return [(claim, named) for claim, named in found if named]


def linked(source: str, target: str) -> None:
    """A file of the environment: a sandbox shows its workers one environment, and no second one's packages."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def copied(place: Path) -> Path:
    """The tree, and the interpreter of an environment that imports from it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / ".venv")], check=True)
    python = place / ".venv" / "bin" / "python"
    (site,) = (place / ".venv" / "lib").glob("python*/site-packages")
    ours = shutil.ignore_patterns("*farflung*.pth", "__editable__*farflung*")
    shutil.copytree(sysconfig.get_path("purelib"), site, copy_function=linked, ignore=ours, dirs_exist_ok=True)
    (site / "copy.pth").write_text(f"{place / 'src'}\n")
    script = python.with_name("farflung")
    script.write_text(f"#!{python}\nfrom farflung.app.cli.main import main\nmain()\n")
    script.chmod(0o755)
    return python


def verdict(python: Path, place: Path, test: str) -> tuple[int, str]:
    """What pytest says of one test in the copy: its status, or -1 where nothing was run, and its last line."""
    command = [str(python), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/{test}"]
    for more in (["-m", "not soak"], []):  # more seeds of a test are left out, a test that is all soak is not
        done = subprocess.run([*command, *more], cwd=place, capture_output=True, text=True, check=False)
        if done.returncode != NOTHING:
            break
    last = (done.stdout.strip().splitlines() or [done.stderr.strip()])[-1]
    ran = re.search(r"\d+ (?:passed|failed|error)", last)
    return (done.returncode if ran else -1), last


def tried(python: Path, place: Path, mutant: Mutant) -> Row:
    """One change in the copy, and what its test says."""
    file, began = place / mutant.file, time.monotonic()
    whole = file.read_text("utf-8")
    changed = mutant.change(whole)
    if changed is None:
        return Row(mutant.gone, 1, "missed", 0, False, f"its text is not once in {mutant.file}")
    before, said = verdict(python, place, mutant.test)
    if before == PASSED:
        file.write_text(changed, "utf-8")
        try:
            after, said = verdict(python, place, mutant.test)
        finally:
            file.write_text(whole, "utf-8")
        is_seen = after == FAILED
    else:
        is_seen, said = False, f"without the change: {said}"
    took = f"{time.monotonic() - began:.0f} s"
    return Row(mutant.gone, 0 if is_seen else 1, "missed", 0, is_seen, f"{mutant.test}: {said}; {mutant.file}; {took}")


def main() -> int:
    """Tries all, or those with a word in them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="a word of what is taken away, of its file or of its test")
    parser.add_argument("--out", type=Path, help="adds the lines to this file")
    asked = parser.parse_args()
    chosen = [m for m in mutants() if asked.only.lower() in f"{m.gone} {m.file} {m.test}".lower()]
    busy, missed = load(), 0
    with tempfile.TemporaryDirectory(prefix="farflung-mutants-") as folder:
        place = Path(folder) / "farflung"
        place.mkdir()
        python = copied(place)
        for mutant in chosen:
            row = tried(python, place, mutant)
            show("mutants", row, busy, asked.out)
            missed += not row.met
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

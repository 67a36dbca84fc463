"""The house itself: names that stand twice, how the source is spread over the packages, and what its tests cost.

    python bench/house.py [--quick | --tests all] [--out FILE]

Seconds are of the wall, of whole commands on this machine: lint, format and types once their caches are warm; then,
left out with --quick, `make test` as on a fresh clone (no record of an earlier run) and `make test-all`; `--tests`
takes one of the two (`change`, `all`). They compare with the rows of another commit on the same idle machine alone.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from reporting import Row, at_most, load, show, told

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "farflung"
BIN = Path(sys.executable).parent
LINTS = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",), ("lint-imports",))
# What is typed, how many processes it has, and the most seconds.
TIERS = {"change": ("make test", 3, 360), "all": ("make test-all", 4, 840)}


def lines(folder: Path) -> int:
    """Lines of all Python files below a folder."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in folder.rglob("*.py"))


def classes_named_twice() -> int:
    """Public classes at the top of a module whose name another module's class has, too."""
    trees = (ast.parse(path.read_text("utf-8")) for path in SOURCE.rglob("*.py"))
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    return sum(count for name, count in names.items() if count > 1 and not name.startswith("_"))


def badly_named_modules() -> int:
    """Modules whose names the rules of the house refuse: gerunds, metaphors (tests/house says which)."""
    sys.path.insert(0, str(ROOT / "tests" / "house"))
    import test_house_rules as rules

    words = [path.stem.split("_") for path in SOURCE.rglob("*.py")]
    gerunds = sum(parts[-1].endswith("ing") and parts[-1] not in rules.FIELD for parts in words)
    return gerunds + sum(bool(rules.METAPHORS.intersection(parts)) for parts in words)


def seconds(*commands: tuple[str, ...]) -> float:
    """What the commands take one after another. Raises CalledProcessError where one fails."""
    began = time.monotonic()
    for command in commands:
        subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    return time.monotonic() - began


def warm_lints() -> float:
    """Lint, format, types and contracts, with their caches filled by a first pass."""
    commands = [(str(BIN / name), *words) for name, *words in LINTS]
    seconds(*commands)
    return seconds(*commands)


def rows(tiers: list[str]) -> list[Row]:
    """What the house promises of its names, rooms and tests, of these tiers of them."""
    share = 100 * lines(SOURCE / "app") / lines(SOURCE)
    found = [
        at_most("public classes with another's name", classes_named_twice(), "classes", 0, "all of the package"),
        at_most("modules named by gerunds or metaphors", badly_named_modules(), "modules", 0, "all of the package"),
        at_most("app's share of lines", share, "%", 15, "lines of src"),
        told("lines of src", lines(ROOT / "src"), "lines", "Python"),
        told("lines of tests", lines(ROOT / "tests"), "lines", "Python"),
        at_most("lint, format, types, contracts", warm_lints(), "s", 60, "caches warm"),
    ]
    if tiers:
        pytest = (str(BIN / "pytest"), "-q", "--dist", "loadgroup")
        checks = seconds(*[(str(BIN / name), *words) for name, *words in LINTS])
        for tier in tiers:
            name, workers, goal = TIERS[tier]
            with tempfile.TemporaryDirectory() as fresh:
                tests = seconds((*pytest, "-n", str(workers), "--tier", tier, "-o", f"cache_dir={fresh}"))
            took = tests + (checks if tier == "change" else 0)
            found.append(at_most(name, took, "s", goal, "nothing is compiled or known yet"))
    return found


def main() -> None:
    """Measures, prints, and keeps what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without the tests: a minute")
    parser.add_argument("--tests", action="append", choices=TIERS, help="of the tests these; default: both")
    parser.add_argument("--out", type=Path, help="add the rows to this file")
    asked = parser.parse_args()
    before = load()
    for row in rows([] if asked.quick else asked.tests or list(TIERS)):
        show("house", row, before, asked.out)


if __name__ == "__main__":
    main()

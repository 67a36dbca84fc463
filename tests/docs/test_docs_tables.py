"""Tables of the documentation against the source: settings, environment variables, verbs, exit codes, fragments.

The page of all settings is written by `FARFLUNG_BLESS=1 python -m pytest tests/docs/test_docs_tables.py`.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from farflung.app.cli.main import VERBS
from farflung.core import errors
from farflung.job.job_toml import ABOUT
from farflung.job.keys import KEYS, JobKey
from farflung.job.methods.registry import METHODS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SETTINGS = DOCS / "settings.md"
VARIABLE = re.compile(r"_?FARFLUNG_[A-Z_]+[A-Z]")
EXAMPLES_IN_WORDS = {"FARFLUNG_KEY", "FARFLUNG_SECTION_KEY"}  # stand for any of them in a message

HEAD = """\
# All settings

Every key of a job file with its default: `sync.steps` is `steps` in the section `[sync]`. `farflung init` writes a file
to start with; `farflung plan --show-config` shows your job's values and where each came from.

A flag (`--set sync.steps=20`) wins over the environment (`FARFLUNG_SYNC_STEPS=20`), that over the file, that over
`--preset`. Accepted ranges are wider than what was run: [sizes](plan/memory.md#how-well-it-holds).

| key | default | what |
|---|---|---|
"""


def rows(page: Path) -> Iterator[list[str]]:
    """The cells of each table row, heads and rules left out."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        is_head = after.startswith("|---")
        if line.startswith("|") and not line.startswith("|---") and not is_head:
            yield [cell.strip() for cell in line.replace("\\|", "\0").strip("|").split("|")]


def shown(value: Any) -> str:
    """A default as one writes it in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str | tuple) else repr(value)


def about(key: JobKey) -> str:
    """What a key is for, and which words it takes."""
    text = ABOUT[key.dotted]
    choices = tuple(map(str, get_args(key.kind))) if get_origin(key.kind) is Literal else ()
    if choices and not all(choice in text for choice in choices):
        text += ": " + ", ".join(f"`{choice}`" for choice in choices)
    return text.replace("|", "\\|")


def settings() -> str:
    """The page of all settings."""
    return HEAD + "".join(f"| `{key.dotted}` | `{shown(key.default)}` | {about(key)} |\n" for key in KEYS.values())


def test_the_page_of_settings_is_what_the_source_says() -> None:
    if os.environ.get("FARFLUNG_BLESS"):
        SETTINGS.write_text(settings(), encoding="utf-8")
    assert SETTINGS.read_text(encoding="utf-8") == settings()


def test_every_default_that_the_other_pages_name_is_the_real_one() -> None:
    seen = set()
    for page in (DOCS / "train.md",):
        for cells in rows(page):
            key = KEYS.get(cells[0].strip("`"))
            if key is not None:
                seen.add(key.dotted)
                assert cells[1] == f"`{shown(key.default)}`", f"{page.name}: {key.dotted}"
    assert {"rounds", "sync.steps", "audit.rate"} <= seen


def test_the_table_of_methods_says_what_their_files_say() -> None:
    told = {cells[0].strip("`"): cells for cells in rows(DOCS / "train" / "methods.md") if len(cells) == 6}
    assert {name: (told[name][3], told[name][5]) for name in METHODS if name in told} == {
        name: (method.sends, method.source) for name, method in METHODS.items()
    }


def variables_of_the_source() -> set[str]:
    """What the program reads from its environment, apart from the settings of a job."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        found |= set(VARIABLE.findall(path.read_text(encoding="utf-8")))
    return found - {key.variable for key in KEYS.values()} - EXAMPLES_IN_WORDS


def test_the_environment_variables_listed_are_those_of_the_source() -> None:
    listed = {cells[0].strip("`") for cells in rows(DOCS / "operate.md") if "FARFLUNG_" in cells[0]}
    assert listed == variables_of_the_source()


def test_the_verbs_listed_are_those_of_the_program() -> None:
    listed = [cells[0].strip("`") for cells in rows(DOCS / "cli.md")]
    assert sorted(listed) == sorted(VERBS)


def test_the_exit_codes_listed_are_those_of_the_error_tree() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if hasattr(kind, "exit_code")]
    listed = {int(cells[0]) for cells in rows(DOCS / "operate.md") if cells[0].isdigit()}
    assert listed == {kind.exit_code for kind in kinds} | {0, 130}


@pytest.mark.parametrize("kind", ["docs/decisions", "docs/protocol", "docs/concepts"])
def test_every_page_has_a_place_among_the_others(kind: str) -> None:
    """In a table of contents; the page of changes has all fragments by itself (docs/_ext/change_fragments.py)."""
    places = [DOCS / "index.md", *DOCS.glob("*/index.md")]
    text = "".join(place.read_text(encoding="utf-8") for place in places)
    names = {path.stem for path in (ROOT / kind).glob("*.md")} - {"README", "index"}
    assert {name for name in names if name not in text} == set()


def test_the_page_of_results_tells_of_every_case_of_the_network() -> None:
    asked = subprocess.run(
        [sys.executable, ROOT / "bench" / "net.py", "--help"], capture_output=True, text=True, check=True
    )
    cases = re.findall(r"only these of: ([a-z\s]+?)\n\s+--out", asked.stdout)[0].split()
    page = (ROOT / "bench" / "results" / "README.md").read_text()
    assert len(cases) > 9
    assert [case for case in cases if f"| `{case}` |" not in page] == []


def test_the_readmes_steps_behind_a_limited_link_are_those_of_the_results() -> None:
    lines = (ROOT / "bench" / "results" / "links.jsonl").read_text(encoding="utf-8").splitlines()
    steps = {
        row["case"].removesuffix(": a step"): row for row in map(json.loads, lines) if row["case"].endswith(": a step")
    }
    page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for case, shown in (
        ("SparseLoCo", "SparseLoCo {:.2f} ({:.2f})"),
        ("MuLoCo", "MuLoCo {:.2f} ({:.2f})"),
        ("DDP dense", "PyTorch's DDP {:.2f} ({:.2f};"),
        ("DDP PowerSGD rank 4", "DDP with PowerSGD {:.2f} ({:.2f})"),
    ):
        loss = float(re.findall(r"loss ([\d.]+)", steps[case]["against"])[0])
        assert shown.format(steps[case]["value"], loss) in page
    assert f"{steps['DDP dense, free']['value']:.2f} s without a limit" in page

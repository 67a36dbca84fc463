"""What others hand to whoever plans: scenarios, offers, profiles of cards and jobs that hang, allocate, or draw on a
terminal. Each is refused with a code before anything is made of it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from farflung.advice.hardware import card_profile
from farflung.advice.io import card_files
from farflung.advice.offers import offer_file
from farflung.core.errors import FarflungError, UsageError

ESCAPE = r"\u001b[31m\u001b]0;owned\u0007"
HOST = '[[host]]\nname = "a"\ncard = "RTX 3090"\nlink = "20/100/30ms"\nprice = "0.1"\n'
# Memory that a process of ours may map: torch alone, which planning a job imports, maps some of it.
ROOM = 8 << 30
PATIENCE = 240.0
NUMBERS = ("9" * 400, "9" * 5000, "0x" + "f" * 12000, "nan", "-inf", "1e999", "[" * 15000, "-1", "true")


def refused(text: str) -> FarflungError:
    with pytest.raises(FarflungError) as raised:
        card_profile.parse(text)
    return raised.value


def test_no_number_of_a_profile_gets_past_its_bound_or_ends_in_a_traceback(subtests: pytest.Subtests) -> None:
    for number in NUMBERS:
        for field in sorted(card_profile.MOST):
            with subtests.test(number=number, field=field):
                assert refused(f'card = "RTX 3090"\n{field} = {number}').code == "FF-PLAN-033"


@pytest.mark.parametrize("field", ["card", "conditions"])
def test_words_of_a_profile_cannot_draw_on_the_terminal(field: str) -> None:
    other = "" if field == "card" else 'card = "RTX 3090"\n'
    assert refused(f'{other}{field} = "{ESCAPE}"').code == "FF-PLAN-033"
    assert refused(f'{other}{field} = "{"long " * 200}"').code == "FF-PLAN-033"


@pytest.mark.parametrize("number", NUMBERS)
def test_no_number_of_an_offer_ends_in_a_traceback(number: str) -> None:
    with pytest.raises(UsageError) as raised:
        offer_file.parse(f"{HOST}cores = {number}\n", card_files.read())
    assert raised.value.code in ("FF-PLAN-060", "FF-PLAN-061")


# Several command lines in one process, which may map so much and no more: what each says, and its exit status.
SCRIPT = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from farflung.app.cli.main import main
for words in json.loads(sys.argv[2]):
    try:
        main(words)
        status = 0
    except SystemExit as left:
        status = left.code
    sys.stderr.write(f"=== {status}\\n")
"""


def farflung(folder: Path, *lines: tuple[str, ...]) -> list[tuple[str, int]]:
    """What each command line says on stderr, and its exit status."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(ROOM), json.dumps(lines)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return [(said, int(status)) for said, status in re.findall(r"(.*?)=== (\d+)\n", done.stderr, re.DOTALL)]


def strange(folder: Path) -> tuple[str, ...]:
    """Names of what looks like a file and is none."""
    (folder / "endless.toml").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.toml")
    with (folder / "huge.toml").open("wb") as made:
        made.truncate(1 << 40)  # a hole: it takes no room on the disk
    (folder / "bytes.toml").write_bytes(b"\xff\xfe\x00\x1b[31m")
    (folder / "folder.toml").mkdir()
    return ("endless.toml", "pipe.toml", "huge.toml", "bytes.toml", "folder.toml", "none.toml")


@pytest.mark.whole
@pytest.mark.parametrize("words", [("simulate",), ("plan", "--cards"), ("plan", "--offers"), ("plan",)])
def test_a_file_that_is_none_is_refused_at_once(tmp_path: Path, words: tuple[str, ...]) -> None:
    files = strange(tmp_path)
    found = farflung(tmp_path, *((*words, file) for file in files))
    assert len(found) == len(files)
    for file, (said, status) in zip(files, found, strict=True):
        assert status in (1, 2), (file, said)
        assert re.fullmatch(r"error\[FF-[A-Z]+-\d{3}\]: .+\n  cause: .+\n  try:   .+\n", said), (file, said)
        assert "FF-APP-099" not in said, (file, said)


@pytest.mark.parametrize(
    "text",
    [
        "[network]\nnodes = 1048576\n[round]\ntrain_seconds = 1.0\n",
        "[network]\nnodes = 1048576\n[churn]\nup_hours = 0.01\ndown_hours = 0.01\n",
        "[network]\nnodes = 1000\ndays = 1\n[round]\ntrain_seconds = 0.006\nexchange_seconds = 0\n",
    ],
)
def test_a_scenario_whose_days_would_not_end_is_refused_before_it_is_played(text: str) -> None:
    from farflung.app.simulate import scenario

    with pytest.raises(UsageError) as raised:
        scenario.read(text, "net.toml", {})
    assert raised.value.code == "FF-APP-432"


def test_words_of_a_scenario_cannot_draw_on_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "net.toml").write_text(f'[network]\n"{ESCAPE}" = 1\nnodes = 200\n', encoding="utf-8")
    [(said, _)] = farflung(tmp_path, ("simulate", "net.toml"))
    assert said.startswith("error[FF-APP-430]")
    assert said.replace("\n", "").isprintable()

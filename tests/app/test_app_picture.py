"""The picture of a run for pages: what the screen says, and no request to anywhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from app_story import kept, story

TOOL = Path(__file__).parents[2] / "tools" / "picture.py"


def drawn(run: Path, out: Path, *more: str) -> str:
    subprocess.run([sys.executable, str(TOOL), str(run), str(out), *more], check=True)
    return out.read_text()


def test_a_picture_stands_alone_and_says_what_the_screen_says(tmp_path: Path) -> None:
    run = kept(tmp_path, story())
    text = drawn(run, tmp_path / "a.svg")
    root = ElementTree.fromstring(text)
    said = "".join(root.itertext()).replace("\xa0", " ")
    for part in ("(04040404) caught cheating", "validation loss 3.125 nats/token", "ledger balanced (sum 0)"):
        assert part in said
    assert set(re.findall(r"https?://[^\"')\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "@font-face" not in text
    assert "<script" not in text
    assert drawn(run, tmp_path / "b.svg") == text  # the same run, the same picture


def test_a_picture_of_the_middle_shows_what_was_known_then(tmp_path: Path) -> None:
    run = kept(tmp_path, story())
    said = drawn(run, tmp_path / "a.svg", "--at", "8").replace("&#160;", " ")
    assert "1/3 rounds" in said
    assert "3.125" not in said

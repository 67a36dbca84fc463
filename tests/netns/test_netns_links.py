"""The library's own bytes of a round against the kernel's counters of each worker's link, over shaped links."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LINKS = Path(__file__).resolve().parents[2] / "bench" / "links.py"


@pytest.mark.netns
@pytest.mark.whole  # held by .ci/extras methods
@pytest.mark.timeout(500)
def test_the_bytes_of_a_round_report_agree_with_each_workers_link_within_five_percent(tmp_path: Path) -> None:
    method = "SparseLoCo"
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("needs root and iproute2")
    out = tmp_path / "links.jsonl"
    done = subprocess.run(
        [sys.executable, LINKS, "--bytes", "--cases", method, "--out", out], capture_output=True, text=True, check=False
    )
    if done.stderr.startswith("skipped: "):
        pytest.skip(done.stderr.removeprefix("skipped: ").strip())
    assert done.returncode == 0, done.stderr
    rows = {row["case"]: row for row in map(json.loads, out.read_text().splitlines())}
    agreement = rows[f"{method}: the library's own count of bytes is off by"]
    print(agreement["value"], agreement["against"])
    assert agreement["value"] <= 0.05
    assert rows[f"{method}: bytes up a peer and step"]["value"] > 1000

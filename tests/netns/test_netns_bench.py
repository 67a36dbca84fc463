"""The network's benchmark, in its quick form, over lines that exist."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from farflung.local.netlab import namespaces

NET = Path(__file__).resolve().parents[2] / "bench" / "net.py"


@pytest.mark.netns
@pytest.mark.quiet
@pytest.mark.timeout(300)
def test_a_connection_over_a_line_that_loses_packets_is_many_times_faster_than_plain_tcp(tmp_path: Path) -> None:
    if why := namespaces.why_not():
        pytest.skip(why)
    out = tmp_path / "net.jsonl"
    done = subprocess.run(
        [sys.executable, NET, "--quick", "--cases", "direct", "--out", out], capture_output=True, text=True, check=False
    )
    if "skipped: direct: " in done.stderr:  # by the laboratory's own self-check
        pytest.skip(done.stderr.partition("skipped: direct: ")[2].strip())
    assert done.returncode == 0, done.stderr
    rows = {row["case"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert set(rows) == {
        f"direct, loss {loss} %, 100 ms: {what}" for loss in (0, 2) for what in ("goodput", "against cubic")
    }
    for row in rows.values():
        assert (row["value"] >= row["goal"]) is row["met"]
        assert row["unit"] == "ratio" or 0 < row["value"] <= 1.0, "more than the line can carry"
    clean, lossy = (rows[f"direct, loss {loss} %, 100 ms: against cubic"] for loss in (0, 2))
    print(clean["value"], lossy["value"], lossy["against"])
    assert clean["value"] > 0.3  # both fill it, but for a machine that does other things as well
    if "ours by bbr" in lossy["against"]:
        assert lossy["value"] > 5.0
        assert lossy["value"] > 3 * clean["value"]

"""`farflung check` tells the tier, what it leaves open, why no stronger one is used, and what root sees."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from farflung.app.cli import checking
from farflung.host import sandbox
from farflung.host.io import tiers


@pytest.fixture(autouse=True)
def _without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    why = {"bwrap": "bubblewrap is not installed", "landlock": "", "limits": ""}
    monkeypatch.setattr(tiers, "probe", why.__getitem__)
    monkeypatch.setattr(tiers, "facts", lambda: sandbox.Facts(True, frozenset(), True))
    monkeypatch.delenv(tiers.VARIABLE, raising=False)


def test_check_tells_people_what_is_open_and_what_would_help() -> None:
    lines = CliRunner().invoke(checking.check).stdout.splitlines()
    assert lines[0].startswith("ok    sandbox   Landlock + seccomp")
    for gap in sandbox.tier("landlock", tiers.facts()).gaps:
        assert f"      open      {gap}" in lines
    assert "--    bwrap     not used: bubblewrap is not installed" in lines
    assert "      try       apt-get install bubblewrap" in lines
    assert sum("      sees      " in line for line in lines) == len(checking.ROOT_SEES)


def test_the_weakest_tier_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tiers.VARIABLE, "limits")
    text = CliRunner().invoke(checking.check).stdout
    assert text.startswith("warn  sandbox   resource limits")
    assert "landlock  not used: works, but FARFLUNG_SANDBOX names limits" in text
    assert "try       unset FARFLUNG_SANDBOX" in text


def test_check_speaks_json() -> None:
    facts = json.loads(CliRunner().invoke(checking.check, ["--json"]).stdout)
    assert facts["sandbox"]["tier"] == "landlock"
    assert facts["tiers"][0] == {
        "tier": "bwrap",
        "works": False,
        "why_not": "bubblewrap is not installed",
        "command": "apt-get install bubblewrap",
        "not_stopped": list(sandbox.tier("bwrap", tiers.facts()).gaps),
    }
    assert facts["root_sees"]

"""`farflung check` tells the sandbox tier, what it leaves open, why no stronger one is used, and what root sees."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from farflung.app.cli import check, check_text
from farflung.host import sandbox
from farflung.host.io import doctor_probes as probing
from farflung.host.io import sandbox_tiers


@pytest.fixture(autouse=True)
def _without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    why = {"bwrap": "bubblewrap is not installed", "landlock": "", "limits": ""}
    monkeypatch.setattr(sandbox_tiers, "probe", why.__getitem__)
    monkeypatch.setattr(sandbox_tiers, "sandbox_support", lambda: sandbox.SandboxSupport(True, frozenset(), True, True))
    monkeypatch.delenv(sandbox_tiers.VARIABLE, raising=False)
    whole = probing.probes  # the other probes have tests of their own
    monkeypatch.setattr(
        probing, "probes", lambda runs, port: [one for one in whole(runs, port) if one.name == "sandbox"]
    )


def below(lines: list[str], word: str) -> list[str]:
    """What stands behind `word` below a finding, put together again where it was broken."""
    found: list[str] = []
    last = ""
    for line in lines:
        head, text = line[: check_text.INDENT].strip(), line[check_text.INDENT :]
        if head == word:
            found.append(text)
        elif not line.strip():
            break  # the summary
        elif not head and last == word:
            found[-1] += " " + text
        last = head or last
    return found


def test_check_tells_people_what_is_open_and_what_would_help() -> None:
    lines = CliRunner().invoke(check.check).stdout.splitlines()
    assert lines[0].startswith("ok       sandbox    Landlock + seccomp")
    assert below(lines, "open") == list(sandbox.tier("landlock", sandbox_tiers.sandbox_support()).gaps)
    assert below(lines, "bwrap") == ["not used: bubblewrap is not installed"]
    assert below(lines, "try") == ["apt-get install bubblewrap"]
    assert below(lines, "sees") == list(check.ROOT_SEES)


def test_the_weakest_tier_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sandbox_tiers.VARIABLE, "limits")
    done = CliRunner().invoke(check.check)
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert lines[0].startswith("warn     sandbox    resource limits")
    assert below(lines, "landlock") == ["not used: works, but FARFLUNG_SANDBOX names limits"]
    assert f"unset {sandbox_tiers.VARIABLE}" in below(lines, "try")


def test_a_tier_that_does_not_work_fails_with_its_code_and_is_never_replaced_by_a_weaker_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(sandbox_tiers.VARIABLE, "bwrap")
    done = CliRunner().invoke(check.check)
    assert done.exit_code == 1
    assert "fails    sandbox    FF-HOST-004: the sandbox tier bwrap does not work here" in done.stdout
    assert "0 ok, 0 slow, 1 fails (sandbox)" in done.stdout


def test_check_speaks_json() -> None:
    facts = json.loads(CliRunner().invoke(check.check, ["--json"]).stdout)
    assert facts["sandbox"]["tier"] == "landlock"
    assert facts["tiers"][0] == {
        "tier": "bwrap",
        "works": False,
        "why_not": "bubblewrap is not installed",
        "command": "apt-get install bubblewrap",
        "not_stopped": list(sandbox.tier("bwrap", sandbox_tiers.sandbox_support()).gaps),
    }
    assert facts["root_sees"]

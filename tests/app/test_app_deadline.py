"""`deadline` is a key of the job file: when a job on others' computers ends whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app_trees import Ended

from farflung.app.cli import run_on
from farflung.app.cli.job_options import flags_of
from farflung.core.errors import PolicyError, UsageError
from farflung.ledger.params import DAY_MS, LedgerParams
from farflung.local.jobs.resolve import resolve
from farflung.local.network import remote_start

SOON = 'name = "j"\ndeadline = "2h"\n'


def test_the_deadline_of_a_job_is_no_term_of_it_and_is_kept_with_the_run() -> None:
    said, identity = resolve(SOON, "tiny", {}, cheat="none")
    plain, _ = resolve('name = "j"\n', "tiny", {}, cheat="none")
    assert (said.deadline, plain.deadline, said.spec) == ("2h", "", plain.spec)
    assert resolve(identity.text, "tiny", {}, is_open=True)[0].deadline == "2h"  # also with the open network's defaults
    assert resolve(SOON, "tiny", flags_of((), deadline="3d"))[0].deadline == "3d"  # the flag wins, as any flag
    assert resolve(SOON, "tiny", flags_of(("deadline=90m",)))[0].deadline == "90m"


@pytest.mark.parametrize(("text", "code"), [("soon", "FF-APP-435"), ("2001-01-01", "FF-APP-436")])
def test_no_verb_takes_a_job_with_an_impossible_deadline(
    text: str, code: str, tmp_path: Path, command: Callable[..., Ended]
) -> None:
    file = tmp_path / "job.toml"
    file.write_text(f'rounds = 2\ndeadline = "{text}"\n')
    offers = str(Path(__file__).resolve().parents[2] / "examples" / "offers" / "six_hosts.toml")
    for words in (("plan",), ("quote", "--offers", offers), ("run",), ("run", "--on", "nowhere", "--yes")):
        ended = command(words[0], str(file), *words[1:])
        assert (ended.code, code in ended.errors, "job.toml line 2" in ended.errors) == (2, True, True), words


def test_plans_over_offers_take_the_deadline_of_the_job(tmp_path: Path, command: Callable[..., Ended]) -> None:
    file = tmp_path / "job.toml"
    large = "[model]\nlayers = 12\nwidth = 768\nheads = 12\ncontext = 1024\n[sync]\nsteps = 100\n"
    file.write_text(f'deadline = "1m"\nbatch = 8\nrounds = 20\n{large}')
    offers = str(Path(__file__).resolve().parents[2] / "examples" / "offers" / "six_hosts.toml")
    assert "FF-APP-428" in command("plan", str(file), "--offers", offers).errors
    assert command("plan", str(file), "--offers", offers, "--deadline", "900d").code == 0


def test_a_run_on_a_network_ends_when_its_job_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    async def prepared(_on: str, _job: Any, _bytes: int, ends: int, *_: Any) -> Any:
        seen.append(ends)
        raise UsageError("FF-APP-999", "far enough")

    monkeypatch.setattr(run_on, "prepare_start", prepared)
    monkeypatch.setattr(run_on, "require", lambda _: None)
    for text in (SOON, 'name = "j"\n'):
        job, _ = resolve(text, "tiny", {}, is_open=True)
        with pytest.raises(UsageError, match="FF-APP-999"):
            run_on.start_on("lab", job, None, agreed=True)
    now = 1000 * time.time()
    assert [round((ends - now) / 3_600_000) for ends in seen] == [2, 24]


def test_a_deadline_beyond_the_law_of_the_network_is_refused() -> None:
    law = LedgerParams(job_ms_max=DAY_MS)
    now = round(1000 * time.time())
    remote_start._check_deadline(law, now + DAY_MS)
    with pytest.raises(PolicyError, match="FF-APP-564") as refused:
        remote_start._check_deadline(law, now + 2 * DAY_MS)
    assert "deadline" in refused.value.hint

"""A network among computers that share nothing, by the commands that people type: open, lend, run.

Lenders and requester are behind routers of their own, one of them symmetric; nobody supervises them.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator

import pytest
from separate_computers import Computer, computers

from farflung.local.netlab import EmulatedHome, NatType, NetworkLab, why_not

pytestmark = [pytest.mark.netns, pytest.mark.whole, pytest.mark.xdist_group("lab"), pytest.mark.timeout(600)]

HOMES = [EmulatedHome(nat=NatType.SYMMETRIC), EmulatedHome(), EmulatedHome(), EmulatedHome()]
OPERATOR, REQUESTER, LAPTOP = "s1", "h4", 4
LENDERS = {"h1": "", "h2": "", "h3": " --audit"}
AT_ROUND = re.compile(r"^Train +(\d+)/\d+ rounds", re.MULTILINE)


def rounds_in(text: str) -> int:
    return max((int(found) for found in AT_ROUND.findall(text)), default=0)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NetworkLab, dict[str, Computer], str]]:
    """The laboratory, its computers, and the invitation: an operator's network in which three lend."""
    if why := why_not():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("computers")
    with NetworkLab(HOMES) as lab, computers(lab, folder, OPERATOR, *LENDERS, REQUESTER) as booted:
        operator = booted[OPERATOR]
        opened = operator.start(f"network open net --host {operator.address}")
        invitation = re.search(r"farflung1\S+", opened.until(lambda said: "Ctrl-C" in said))
        assert invitation is not None
        lent = [booted[place].start(f"lend {invitation[0]}{more}", "lend") for place, more in LENDERS.items()]
        for program in lent:
            program.until(lambda said: "waiting" in said)
        yield lab, booted, invitation[0]


def test_a_job_is_trained_audited_paid_and_proved_by_three_commands(
    network: tuple[NetworkLab, dict[str, Computer], str],
) -> None:
    _, booted, invitation = network
    requester = booted[REQUESTER]
    said = requester.run(f"run --preset tiny --on {invitation} --yes --out first", 240)
    assert "2 of 2 providers, 1 of 1 verifiers online" in said
    assert rounds_in(said) == 3
    assert "nobody was caught" in said
    assert "job balanced (sum 0)" in said
    assert "verified: the log is consistent" in requester.run("verify-run first")
    (row,) = json.loads(requester.run("jobs --json"))["jobs"]
    assert (row["network"], row["state"], row["locked"], row["round"]) == ("commons", "settled", 0, 3)
    fetched = requester.run("fetch first --out model")
    assert "as the ledger says" in fetched
    for place in LENDERS:  # each was paid, and waits for the next job
        text = (booted[place].scratch / "lend.log").read_text()
        assert "paid" in text.partition("waiting")[2]


def test_a_closed_lid_a_pulled_plug_and_an_old_copy(network: tuple[NetworkLab, dict[str, Computer], str]) -> None:
    lab, booted, _ = network
    requester = booted[REQUESTER]
    run = requester.start("run --preset tiny --on commons --yes --out second --rounds 14", "second")
    run.until(lambda said: rounds_in(said) >= 2, 180)
    requester.freeze()
    lab.cut(LAPTOP)
    time.sleep(12)  # longer than members are waited for, and than any connection lives without a word
    lab.restore(LAPTOP)
    requester.thaw()
    before = rounds_in(run.text)
    run.until(lambda said: rounds_in(said) >= before + 2, 60)
    home = requester.disk / "user"
    shutil.copytree(home / "second", home / "copy", symlinks=True)
    for path in (home / "copy", *(home / "copy").rglob("*")):
        shutil.chown(path, 1000, 1000)
    later = rounds_in(run.text) + 2
    run.until(lambda said: rounds_in(said) >= later, 60)
    requester.off()
    requester.boot()
    resumed = requester.run("resume second", 240)
    assert rounds_in(resumed) == 14
    assert "job balanced (sum 0)" in resumed
    assert "verified: the log is consistent" in requester.run("verify-run second")
    old = requester.start("resume copy", "copy")
    assert old.wait(120) != 0
    assert "FF-APP-560" in old.text
    rows = json.loads(requester.run("jobs --json"))["jobs"]
    assert {row["state"] for row in rows} == {"settled"}
    for place in LENDERS:
        assert "slashed" not in (booted[place].scratch / "lend.log").read_text()

"""A whole network whose relays are paid: what they got is what both ends signed for, and no money is lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from app_trees import UNAUDITED, Ended, Event, Farflung, kill_tree

from farflung.core import limits
from farflung.core.money import CREDIT, format_credits
from farflung.core.relay_passes import cost
from farflung.peers.rundir.genesis import FEE, POCKET
from farflung.watch.phrases import shown_credits

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("fares"), pytest.mark.timeout(300)]

PRICE = 50 * CREDIT  # a GiB, so that a little is carried for some credits
GOODBYES = 20_000  # bytes of connections that end, which nobody signs for any more
STEPS = 120  # so that training takes many times as long as it takes to join a group, on a busy machine too
JOB = (
    "run", "--preset", "tiny", "--json", "--rounds", "2", "--set", "network.hidden=1", "--set", f"sync.steps={STEPS}",
    "--set", "audit.proof=outcome", "--relay-price", format_credits(PRICE),
)  # fmt: skip


def of(ended: Ended, kind: str) -> list[Event]:
    return [event for event in ended.events if event["event"] == kind]


def forwarded(ended: Ended) -> dict[str, int]:
    """What each relay moved, by its own count, in all sessions."""
    last: dict[tuple[int, str], int] = {}
    for event in of(ended, "traffic"):
        last[event["session"], event["process"]] = event["relay"]
    found: dict[str, int] = {}
    for (_, name), size in last.items():
        if name.startswith("relay"):
            found[name] = found.get(name, 0) + size
    return found


def channels(farflung: Farflung, run: str, party: str) -> tuple[int, list[Event]]:
    """A party's balance and its channels, by its receipt file alone."""
    file = farflung.runs / run / "export" / "receipts" / f"{party}.receipt"
    said = farflung("receipt", "verify", str(file), "--json").events[0]
    return said["balance"], said["channels"]


def run(farflung: Farflung, *, kills: bool) -> Ended:
    """A run, in which the requester is killed after a round where the test wants so."""
    process = farflung.start(*JOB)
    assert process.stdout is not None
    lines, pids = list[str](), dict[str, int]()
    for line in process.stdout:
        lines.append(line.strip())
        event = json.loads(line)
        if event["event"] == "process":
            pids[event["name"]] = event["pid"]
        if event["event"] == "round":
            if kills:
                os.kill(pids["requester"], signal.SIGKILL)
            break
    rest = farflung.finish(process)
    return Ended(rest.code, lines + rest.lines, rest.errors)


# With the whole network dies its requester, too: the test below pays for all that was carried, in CI.
@pytest.mark.soak
@pytest.mark.parametrize("kills", [False, True])
def test_relays_earn_price_times_what_both_ends_signed_for(farflung: Farflung, kills: bool) -> None:
    ended = run(farflung, kills=kills)
    result = ended.result
    assert result["sum"] == 0
    # Nothing was refused, and nobody had to do without its group.
    assert "relay" not in str(of(ended, "warning"))
    names = {event["peer"]: event["name"] for event in of(ended, "process") if event["role"] == "relay"}
    paid = {names[event["peer"]]: event for event in of(ended, "relay-paid")}
    assert sorted(paid) == ["relay", "relay-2"]
    moved = forwarded(ended)
    for name, event in paid.items():
        assert event["held"] == 0
        missing = moved[name] - event["bytes"]
        assert 0 <= missing < (limits.RECEIPT_BYTES if kills else GOODBYES)
        balance, (channel,) = channels(farflung, result["run"], name)
        assert channel["paid"] == event["paid"] == cost(event["bytes"], PRICE)
        assert (channel["carried"], channel["price"], channel["open"]) == (event["bytes"], PRICE, False)
        assert balance == POCKET + event["paid"] - FEE * (2 if event["bytes"] else 1)
    assert paid["relay"]["paid"] > 0
    # A group was paid for: before anything is measured it needs the fewest round trips. Later, noise may decide.
    assert of(ended, "round")[0]["way"] == "fan-out"
    assert len(channels(farflung, result["run"], "requester")[1]) == len(paid)
    plan = of(ended, "plan")[0]
    assert plan["relay_price"] == PRICE
    assert sum(event["paid"] for event in paid.values()) < plan["relay_funds"]
    _is_told(farflung, result["run"], paid["relay"]["paid"])
    checked = farflung("verify-run", result["run"], "--json")
    assert checked.events[0]["ledger_root"] == result["ledger_root"]


@pytest.mark.slow
def test_a_run_that_was_killed_as_a_whole_pays_for_both_of_its_sessions(farflung: Farflung) -> None:
    process = farflung.start(*JOB, *UNAUDITED)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if json.loads(line)["event"] == "round":
            kill_tree(process)
            break
    found = farflung.newest()
    assert found is not None
    rest = farflung("resume", found.name, "--json")
    assert rest.result["sum"] == 0
    ended = Ended(rest.code, lines + rest.lines, rest.errors)
    names = {event["peer"]: event["name"] for event in of(ended, "process") if event["role"] == "relay"}
    paid = {names[event["peer"]]: event for event in of(ended, "relay-paid")}
    assert sorted(paid) == ["relay", "relay-2"]
    later, whole = sum(forwarded(rest).values()), sum(forwarded(ended).values())
    assert later - 2 * GOODBYES < sum(event["bytes"] for event in paid.values()) <= whole
    for name, event in paid.items():
        assert event["held"] == 0
        _, opened = channels(farflung, found.name, name)
        assert {(channel["price"], channel["open"]) for channel in opened} == {(PRICE, False)}
        assert sum(channel["carried"] for channel in opened) == event["bytes"]
        assert sum(channel["paid"] for channel in opened) == event["paid"]
        assert event["paid"] == sum(cost(channel["carried"], PRICE) for channel in opened)
    assert sum(event["paid"] for event in paid.values()) < of(ended, "plan")[0]["relay_funds"]
    assert of(ended, "round")[0]["way"] == "fan-out"  # a group was paid for
    _is_told(farflung, found.name, max(event["paid"] for event in paid.values()))
    assert farflung("verify-run", found.name).code == 0


def _is_told(farflung: Farflung, run: str, paid: int) -> None:
    """Every page names what was earned."""
    assert farflung("report", run).code == 0
    assert shown_credits(paid) in " ".join(farflung("watch", run, "--speed", "0").lines)
    assert format_credits(paid) in Path(farflung.runs / run / "report.html").read_text()

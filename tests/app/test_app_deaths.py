"""Processes that are killed while a run goes on: started again, nothing lost, nothing paid twice, the same bits."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from app_trees import UNAUDITED, Ended, Event, Farflung

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("deaths"), pytest.mark.timeout(400)]

JOB = ("run", "--preset", "tiny", "--json", "--rounds", "8", "--set", "sync.steps=12", "--set", "network.hidden=1")
PROVED = ("model_hash", "ledger_root", "rounds", "paid", "refunded")  # what the log must come to
SERVANTS = ("ledger", "relay-2", "verifier-0", "requester")  # whose deaths change nothing


# Rounds that last longer than a worker takes to start anew.
LONG = (*UNAUDITED, "--rounds", "14", "--set", "sync.steps=64", "--set", "network.providers=3")


def run_with_deaths(
    farflung: Farflung, victims: Sequence[str], *more: str, taken: socket.socket | None = None
) -> Ended:
    """Kills one process after each closed round, in this order; then the first relay, if its port is to be taken, and
    the requester while it ends the job on the ledger.
    """
    process = farflung.start(*JOB, *more)
    assert process.stdout is not None
    left, lines, pids = list(victims), list[str](), dict[str, int]()
    is_ending = taken is None
    while left or taken is not None or not is_ending:
        line = process.stdout.readline()
        assert line, process.communicate()
        lines.append(line.strip())
        event: Event = json.loads(line)
        if event["event"] == "process":
            pids[event["name"]] = event["pid"]
        elif event["event"] == "round" and left:
            os.kill(pids[left.pop(0)], signal.SIGKILL)
        elif event["event"] == "round" and taken is not None:
            _take_over(pids["relay"], taken)
            taken = None
        elif event["event"] == "settled" and not is_ending:
            os.kill(pids["requester"], signal.SIGKILL)
            is_ending = True
    ended = farflung.finish(process)
    return Ended(ended.code, lines + ended.lines, ended.errors)


def told(ended: Ended, kind: str) -> list[Event]:
    return [event for event in ended.events if event["event"] == kind]


@pytest.mark.guarantee
def test_ledger_relay_verifier_and_requester_may_die_and_nobody_sees_it_in_the_result(farflung: Farflung) -> None:
    """Each of them comes back; then the first relay dies and cannot, and the run goes on by the other one. When all
    are paid the requester dies once more. Bits like those of an undisturbed run: test_peers_failpoints.
    """
    with socket.socket() as taken:
        ended = run_with_deaths(farflung, SERVANTS, taken=taken)
    assert_bytes_are_not_forgotten(ended, "ledger")
    result = ended.result
    assert (result["rounds"], result["sum"], result["caught"]) == (8, 0, [])
    restarted = told(ended, "restarted")
    assert {event["name"] for event in restarted} == set(SERVANTS)
    assert all("SIGKILL" in event["why"] for event in restarted)
    providers = {event["peer"] for event in told(ended, "process") if event["role"] == "provider"}
    assert not providers & {event["peer"] for event in told(ended, "left")}
    units = {event["peer"]: event["units"] for event in told(ended, "settled")}
    assert [units[peer] for peer in providers] == [8 * 2 * 32 * 12] * 2  # rounds, sequences, context, steps
    assert {event["finding"] for event in told(ended, "audit")} == {"holds"}
    sent = [event["relay"] for event in told(ended, "traffic") if event["process"] == "relay-2"]
    assert sent[-1] > 0
    checked = farflung("verify-run", result["run"], "--json")
    assert checked.code == 0, checked.errors
    assert {name: checked.events[0][name] for name in PROVED} == {name: result[name] for name in PROVED}


def _take_over(pid: int, taken: socket.socket) -> None:
    """Kills a process and holds its port, where everybody is turned away from now on."""
    mine = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (port,) = [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine]
    os.kill(pid, signal.SIGKILL)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for _ in range(500):
        with suppress(OSError):
            taken.bind(("127.0.0.1", port))
            break
        time.sleep(0.01)
    taken.listen()
    threading.Thread(target=_turn_away, args=(taken,), daemon=True).start()


def _turn_away(taken: socket.socket) -> None:
    with suppress(OSError):  # it is closed
        while True:
            taken.accept()[0].close()


def test_a_provider_and_a_worker_that_are_killed_come_back_and_the_run_ends_well(farflung: Farflung) -> None:
    ended = run_with_deaths(farflung, ["provider-2", "provider-1 worker"], *LONG)
    result = ended.result
    assert (result["rounds"], result["sum"], result["caught"]) == (14, 0, [])
    peers = {event["name"]: event["peer"] for event in told(ended, "process") if event["role"] == "provider"}
    units = {event["peer"]: event["units"] for event in told(ended, "settled")}
    whole = units[peers["provider-0"]]

    lost = peers["provider-2"]
    (left,) = [event for event in told(ended, "left") if event["peer"] == lost]
    assert "SIGKILL" in left["reason"]
    assert "provider-2" in {event["name"] for event in told(ended, "restarted")}
    joined = [event["round"] for event in told(ended, "joined") if event["peer"] == lost]
    assert len(joined) == 2
    assert joined[1] > 0
    assert 0 < units[lost] < whole

    kept = peers["provider-1"]
    assert len([e for e in told(ended, "process") if e["name"] == "provider-1 worker"]) == 2
    assert units[kept] > 0
    assert farflung("verify-run", result["run"]).code == 0


def assert_bytes_are_not_forgotten(ended: Ended, name: str) -> None:
    """What a process sent before it died is counted on."""
    counts = [event for event in told(ended, "traffic") if event["process"] == name]
    sent = [event["control"] for event in counts]
    assert len(sent) > 2
    assert sent == sorted(sent)


@pytest.mark.soak  # with one provider, and no network: tests/attack/test_attack_death.py
def test_a_provider_that_is_killed_when_it_is_drawn_opens_as_soon_as_it_is_back(farflung: Farflung) -> None:
    """Whether the kill comes before it has opened or just after: nothing is held against it."""
    process = farflung.start(*JOB, "--rounds", "3", "--set", "network.hidden=0")
    assert process.stdout is not None
    lines, pids, names = list[str](), dict[str, int](), dict[str, str]()
    while True:
        line = process.stdout.readline()
        assert line, process.communicate()
        lines.append(line.strip())
        event: Event = json.loads(line)
        if event["event"] == "process":
            pids[event["name"]], names[event["peer"]] = event["pid"], event["name"]
        elif event["event"] == "drawn":
            os.kill(pids[names[event["peer"]]], signal.SIGKILL)
            break
    ended = farflung.finish(process)
    ended = Ended(ended.code, lines + ended.lines, ended.errors)
    assert (ended.result["rounds"], ended.result["caught"], ended.result["sum"]) == (3, [], 0)
    audits = [e for e in told(ended, "audit") if (e["peer"], e["round"]) == (event["peer"], event["round"])]
    assert [audit["finding"] for audit in audits] == ["holds"]
    checked = farflung("verify-run", ended.result["run"], "--json")
    assert checked.code == 0
    assert json.loads("".join(checked.lines))["owed"] <= 1

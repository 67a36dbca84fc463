"""Every kind of process killed twenty times while a job trains: the run goes on, and all that it owes is paid once.

A run takes many kills, one after another, at most one a round: who dies and at which moment of a round is drawn from
the run's seed, which is printed with all that died. Runs are made until each kind has died KILLS times.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from app_trees import Ended, Event, Farflung, expect_gone, kill_tree, living, stored_events

from farflung.core import limits
from farflung.core.codec import decode
from farflung.ledger.transactions import VerdictFinding
from farflung.peers.rundir.archive import read_entries
from farflung.train.run_log import AcceptSetRecord, AuditsRecord, Record, RunLogEntry

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

KILLS = 20  # of each kind
ROUNDS = 48
JOB = (
    "run", "--preset", "tiny", "--json", "--rounds", str(ROUNDS), "--set", "sync.steps=32",
    "--set", "network.providers=3", "--set", "network.verifiers=2", "--set", "network.hidden=2",
)  # fmt: skip
SERVANTS = ("coordinator", "ledger", "relay", "verifier")  # whose deaths leave the model as it is
PEERS = ("agent", "worker")
NAMES = {
    "coordinator": ("requester",),
    "ledger": ("ledger",),
    "relay": ("relay",),
    "verifier": ("verifier-0", "verifier-1"),
    "agent": ("provider-0", "provider-1", "provider-2"),
    "worker": ("provider-0 worker", "provider-1 worker", "provider-2 worker"),
}
# Which verifier is paid may differ, hence the ledger's root.
SAME = ("model_hash", "rounds", "paid", "refunded")
OFTEN = 4  # deaths of one process in a run: whoever dies more often within a minute is given up
LIMIT = 300.0
SILENCE = 120.0  # seconds without an event
RUNS = 9  # in which all kills must be done


@dataclass
class Killer:
    """Follows one run and kills in it."""

    draw: random.Random
    wanted: Counter[str]  # kinds, and how often each is still to die
    pids: dict[str, int] = field(default_factory=dict)  # of those that are up
    peers: dict[str, str] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)  # peers that died and are not back
    dead: set[str] = field(default_factory=set)  # names that were killed and not announced again
    deaths: Counter[str] = field(default_factory=Counter)
    kills: list[str] = field(default_factory=list)
    at: float = 0.0  # of the last round
    round: int = -1

    def hear(self, event: Event) -> float | None:
        """Takes note of an event; after how many seconds to kill somebody, None for not now."""
        kind = event["event"]
        if kind == "process":
            self.pids[event["name"]] = event["pid"]
            self.peers.setdefault(event["name"], event["peer"])
            self.dead.discard(event["name"])
        elif kind == "joined":
            self.away.discard(event["peer"])
        elif kind == "left":
            self.away.add(event["peer"])
        elif kind == "round":
            took, self.at, self.round = event["at"] - self.at, event["at"], event["round"]
            return self.draw.uniform(0.0, took) if self.round < ROUNDS - 2 else None
        return None

    def kill(self) -> None:
        """One process that is up, of a kind that is wanted; nobody when all of them are away."""
        kinds = [kind for kind in self.wanted if self.wanted[kind] > 0 and self._victims(kind)]
        if not kinds or (self.away and len(self.away) > 1):
            return
        kind = self.draw.choice(kinds)
        name = self.draw.choice(self._victims(kind))
        os.kill(self.pids[name], signal.SIGKILL)
        self.dead.add(name)
        if kind in PEERS:
            self.away.add(self._peer(name))
        self.deaths[name] += 1
        self.wanted[kind] -= 1
        self.kills.append(f"{name} in round {self.round + 1}")

    def _peer(self, name: str) -> str:
        return self.peers[name.removesuffix(" worker")]

    def _victims(self, kind: str) -> list[str]:
        return [
            name
            for name in NAMES[kind]
            if name in self.pids
            and name not in self.dead
            and self.deaths[name] < OFTEN
            and (kind not in PEERS or self._peer(name) not in self.away)
        ]


def run_with_kills(farflung: Farflung, seed: int, wanted: Counter[str]) -> tuple[Ended, list[str]]:
    """One run to its end, and whom it lost. At most one kill a round; `wanted` is counted down."""
    killer, lines = Killer(random.Random(seed), wanted), list[str]()
    heard: queue.Queue[str] = queue.Queue()
    due: float | None = None
    with farflung.start(*JOB) as process:
        threading.Thread(target=_read, args=(process, heard), daemon=True).start()
        while True:
            wait = SILENCE if due is None else max(0.0, due - time.monotonic())
            try:
                line = heard.get(timeout=wait)
            except queue.Empty:
                if due is None:
                    kill_tree(process)
                    pytest.fail(f"seed {seed}: silent for {SILENCE:.0f} s after {killer.kills}: {lines[-3:]}")
                due = None
                killer.kill()
                continue
            if not line:
                break
            lines.append(line)
            after = killer.hear(json.loads(line))
            due = time.monotonic() + after if after is not None else due
        assert process.stderr is not None
        errors = process.stderr.read()
    expect_gone(process.pid)
    return Ended(process.returncode, lines, errors), killer.kills


def _read(process: subprocess.Popen[str], heard: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        heard.put(line.strip())
    heard.put("")


def records(run: Path) -> list[Record]:
    entries, _ = read_entries(run / "rounds.log")
    return [decode(data, RunLogEntry, limits.LOG_RECORD_BYTES).record for data in entries]


def assert_settled(farflung: Farflung, ended: Ended) -> Event:
    """The run ended well, nobody was wronged, and each accepted contribution is paid exactly once."""
    result = ended.result
    run = farflung.newest()
    assert run is not None
    assert result["sum"] == 0
    assert result["rounds"] == ROUNDS
    assert (result["caught"], result["slashed"], result["burnt"]) == ([], 0, 0)
    (escrow,) = {e["escrow"] for e in stored_events(run) if e["event"] == "funded"}
    assert result["paid"] + result["refunded"] == escrow
    logged = records(run)
    findings = {v.verdict.finding for r in logged if isinstance(r, AuditsRecord) for v in r.verdicts}
    assert findings == {VerdictFinding.HOLDS}
    accepted = Counter[str]()
    for record in logged:
        if isinstance(record, AcceptSetRecord):
            accepted.update({c.peer.hex(): c.weight for c in record.contributions})
    settled = {e["peer"]: e["units"] for e in stored_events(run) if e["event"] == "settled"}
    assert {peer: settled.get(peer) for peer in accepted} == accepted
    assert not living(run)
    checked = farflung("verify-run", str(run))
    assert checked.code == 0, checked.errors
    return result


def soak(tmp_path: Path, kinds: tuple[str, ...], undisturbed: Event | None) -> None:
    """Runs until each kind has died often enough."""
    wanted, seed = Counter(dict.fromkeys(kinds, KILLS)), 0
    while wanted.total():
        seed += 1
        assert seed <= RUNS, f"still to die: {wanted}"
        farflung = Farflung(tmp_path / f"seed{seed}", LIMIT)
        ended, kills = run_with_kills(farflung, seed, wanted)
        print(f"\nseed {seed}: {len(kills)} kills: {', '.join(kills)}")
        result = assert_settled(farflung, ended)
        if undisturbed is not None:
            assert {key: result[key] for key in SAME} == {key: undisturbed[key] for key in SAME}


def test_servants_die_and_the_result_keeps_its_bits(tmp_path: Path) -> None:
    soak(tmp_path, SERVANTS, Farflung(tmp_path / "undisturbed", LIMIT)(*JOB).result)


def test_agents_and_workers_die_and_the_others_go_on(tmp_path: Path) -> None:
    soak(tmp_path, PEERS, None)

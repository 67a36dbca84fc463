"""Draws from a seed what happens to the computers of a network while a job trains, does it, and looks at what is left.

    seed -> Mishap, Mishap, ... -> calm (all is mended, what ended is typed again) -> faults, none if all is well

Nobody is dishonest here, so: no node is slashed; the ledger's file is sound and its money sums; the job ends, or ends
with an error that says why, within CALM_SECONDS of calm; where no provider missed a round the model has the bits of an
undisturbed run; no stake is locked but under an open lease of a job whose deadline is not over.

`World` is a network of seven computers by the commands that people type. A seed is one job on it: a seed that fails
fails alone as well, on a new world.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from separate_computers import SOURCE, UID, Computer, Program, computers

from farflung.core.ids import short
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.ledger_state import LedgerState
from farflung.ledger.state_transition import total_money
from farflung.ledger.table_rows import HOLDS_MONEY
from farflung.local.netlab import EmulatedHome, NatType, NetworkLab
from farflung.peers.validator.config import read_config

SEEDS: Final = 100
CALM_SECONDS: Final = 60.0  # in which a job ends on an idle machine
SPAN: Final = 14.0  # seconds in which mishaps begin, from the first round on
LONGEST: Final = 10.0  # seconds that one lasts
READY: Final = 120.0  # for a program to be up, on a busy machine
DISK_MB: Final = 400
ROUNDS: Final = 16
OPERATOR, REQUESTER = "s1", "h6"
PROVIDERS: Final = ("h1", "h2", "h3")
VERIFIERS: Final = ("h4", "h5")
LENDERS: Final = PROVIDERS + VERIFIERS
HOMES: Final = [EmulatedHome(nat=kind) for kind in (NatType.SYMMETRIC, NatType.PORT_RESTRICTED, NatType.FULL_CONE)] * 2
JOB: Final = f"--preset tiny --set network.providers={len(PROVIDERS)} --set network.verifiers={len(VERIFIERS)}"
LEND: Final = "--disk-gb 0.1 --cores 1"
VICTIMS: Final = {
    "kill": (OPERATOR, REQUESTER, *LENDERS),
    "cut": (REQUESTER, *LENDERS),
    "move": (REQUESTER, *LENDERS),
    "freeze": (OPERATOR, REQUESTER, *LENDERS),
    "fill": (OPERATOR, REQUESTER, *LENDERS),
    "clock": (OPERATOR, REQUESTER, *LENDERS),
    "version": LENDERS,
    "copy": (REQUESTER,),
}
RESTARTS: Final = ("kill", "clock", "version")  # mishaps at whose beginning and end a program starts anew
VERSION: Final = 'VERSION: Final = "'


@dataclass(frozen=True, order=True)
class Mishap:
    """What happens to a computer, `at` seconds after the first round. `amount`: seconds that a clock is off."""

    at: float
    kind: str
    place: str
    lasts: float
    amount: int = 0

    def __str__(self) -> str:
        more = f" by {self.amount} s" if self.amount else ""
        return f"{self.at:.1f} s {self.kind} {self.place}{more} for {self.lasts:.1f} s"


def schedule(seed: int) -> list[Mishap]:
    """Two to four mishaps, each of another computer."""
    draw, found = random.Random(f"chaos {seed}"), list[Mishap]()
    for _ in range(draw.randint(2, 4)):
        kind = draw.choice(sorted(VICTIMS))
        left = [place for place in VICTIMS[kind] if place not in {each.place for each in found}]
        if not left:
            continue
        off = draw.choice((-1, 1)) * draw.randint(60, 1200) if kind == "clock" else 0
        found.append(Mishap(draw.uniform(0, SPAN), kind, draw.choice(left), draw.uniform(1, LONGEST), off))
    return sorted(found)


@dataclass
class Outcome:
    """What a seed came to. `waited`: seconds of calm until the job's process ended."""

    seed: int
    mishaps: list[Mishap]
    faults: list[str] = field(default_factory=list)
    ended: str = ""
    waited: float = 0.0

    def __str__(self) -> str:
        told = "; ".join(map(str, self.mishaps))
        said = "; ".join(self.faults) or "no fault"
        return f"seed {self.seed}: {told} -> {self.ended} after {self.waited:.0f} s of calm: {said}"


def events(text: str, kind: str) -> list[dict[str, Any]]:
    """The events of a kind in what `run --json` printed."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and event.get("event") == kind:
                found.append(event)
    return found


class World:
    """The laboratory's computers, and which programs people have started on them."""

    def __init__(self, lab: NetworkLab, booted: dict[str, Computer], folder: Path) -> None:
        self.lab, self.computers, self._folder = lab, booted, folder
        self._site = folder / "another"
        self._programs: dict[str, Program] = {}
        self._words: dict[str, str] = {}
        self.roots, self.is_spoiled = dict[int, str](), False

    def open(self) -> None:
        """The operator opens, five lend, and an undisturbed job says which bits are right."""
        operator = self.computers[OPERATOR]
        said = self._type(OPERATOR, f"network open net --host {operator.address}").until(_is_open, READY)
        found = re.search(r"farflung1\S+", said)
        assert found is not None
        for place in LENDERS:
            self._type(place, f"lend {found[0]} {LEND}" + (" --audit" if place in VERIFIERS else ""))
        for place in LENDERS:
            self._programs[place].until(lambda text: "waiting" in text, READY)
        told = self.computers[REQUESTER].run(
            f"run {JOB} --rounds {ROUNDS} --on {found[0]} --yes --json --out calm", 300
        )
        self.roots = _roots([told])

    def _type(self, place: str, words: str) -> Program:
        self._words[place] = words
        self._programs[place] = program = self.computers[place].start(words)
        return program

    def _again(self, place: str) -> None:
        """Whoever owns a computer types again what no longer runs there; the requester goes on with the run."""
        if place in self._words and self._programs[place].process.poll() is not None:
            words = self._words[place]
            self._type(place, f"resume {words.split()[-1]} --json" if words.startswith("run") else words)

    # One seed

    def suffer(self, seed: int) -> Outcome:
        """One job with the mishaps of a seed, and what is wrong afterwards."""
        outcome, name = Outcome(seed, schedule(seed)), f"seed{seed}-{os.urandom(2).hex()}"
        for place in LENDERS:
            self._programs[place].until(lambda text: "waiting" in text, READY)
        run = self._type(
            REQUESTER, f"run {JOB} --set name={name} --rounds {ROUNDS} --on commons --yes --json --out {name}"
        )
        texts = [run]
        try:
            run.until(lambda text: bool(events(text, "round")), READY)
            texts += self._happen(outcome.mishaps, name)
            self._end(outcome, texts)
            self._look(outcome, texts, name)
        except AssertionError as error:
            outcome.faults.append(str(error)[-2000:])
        self.is_spoiled = bool(outcome.faults)
        return outcome

    def _happen(self, mishaps: list[Mishap], name: str) -> list[Program]:
        """Does all of it in its time, and mends it. The requester's further programs."""
        began, started = time.monotonic(), list[Program]()
        steps = [(each.at, 0, each) for each in mishaps] + [(each.at + each.lasts, 1, each) for each in mishaps]
        for at, is_over, mishap in sorted(steps):
            time.sleep(max(0.0, began + at - time.monotonic()))
            if is_over:
                self._mend(mishap)
            else:
                started += self._strike(mishap, name)
        for place in (OPERATOR, *LENDERS, REQUESTER):
            self._again(place)
        return [*started, self._programs[REQUESTER]]

    def _strike(self, mishap: Mishap, name: str) -> list[Program]:
        computer, place = self.computers[mishap.place], mishap.place
        if mishap.kind in RESTARTS:
            computer.off()
        match mishap.kind:
            case "cut":
                self.lab.cut(int(place[1:]))
            case "move":
                self.lab.change_address(int(place[1:]))
            case "freeze":
                computer.freeze()
                if place != OPERATOR:
                    self.lab.cut(int(place[1:]))
            case "fill":
                computer.fill()
            case "clock":
                computer.clock = mishap.amount
                self._boot(place)
            case "version":
                computer.site = self._other_version()
                self._boot(place)
            case "copy":
                home = computer.disk / "user"
                shutil.copytree(home / name, home / f"{name}-copy", symlinks=True, dirs_exist_ok=True)
                for path in (home / f"{name}-copy", *(home / f"{name}-copy").rglob("*")):
                    shutil.chown(path, UID, UID)
                return [computer.start(f"resume {name}-copy --json")]
        return []

    def _mend(self, mishap: Mishap) -> None:
        computer, place = self.computers[mishap.place], mishap.place
        if mishap.kind in ("cut", "freeze") and place != OPERATOR:
            self.lab.restore(int(place[1:]))
        match mishap.kind:
            case "freeze":
                computer.thaw()
            case "fill":
                computer.empty()
                self._again(place)
            case "clock" | "version":
                computer.off()
                computer.clock, computer.site = 0, SOURCE
        if mishap.kind in RESTARTS:
            self._boot(place)

    def _boot(self, place: str) -> None:
        self.computers[place].boot()
        self._again(place)

    def _other_version(self) -> Path:
        """The same program under another version's name."""
        if not self._site.exists():
            shutil.copytree(SOURCE, self._site)
            path = self._site / "farflung" / "core" / "release.py"
            path.write_text(path.read_text().replace(f'{VERSION}0.1.0"', f'{VERSION}0.2.0"'))
        return self._site

    # Afterwards

    def _end(self, outcome: Outcome, texts: list[Program]) -> None:
        """Waits for the job's processes; a lender's that ended is started again, as a service is."""
        began = time.monotonic()
        patience = CALM_SECONDS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        while any(each.process.poll() is None for each in texts):
            outcome.waited = time.monotonic() - began
            if outcome.waited > patience:
                outcome.faults.append("the job is stuck")
                return
            for place in (OPERATOR, *LENDERS):
                self._again(place)
            time.sleep(0.5)

    def _look(self, outcome: Outcome, texts: list[Program], name: str) -> None:
        said = [each.text for each in texts]
        results = [found[0] for text in said if (found := events(text, "result"))]
        errors = re.findall(r"FF-[A-Z]+-\d+", said[-1])
        outcome.ended = "ended well" if results else f"ended with {errors[-1] if errors else 'nothing said'}"
        if not results and not errors:
            outcome.faults.append(f"the job does not say why it ended: {said[-1][-500:]}")
        rounds = [each for text in said for each in events(text, "round")]
        if results and all(each["peers"] == len(PROVIDERS) for each in rounds) and _roots(said) != self.roots:
            outcome.faults.append("no provider was missing, and the model has other bits")
        for each in results[:1]:
            run = name if events(self._programs[REQUESTER].text, "result") else f"{name}-copy"
            checked = self.computers[REQUESTER].run(f"verify-run {run}", 300)
            if "verified: the log is consistent" not in checked or each["sum"]:
                outcome.faults.append(f"the run's log or sum is wrong: {checked[-300:]}")
        state = self._ledger()
        outcome.faults += faults_of(state, round(1000 * time.time()))

    def _ledger(self) -> LedgerState:
        """What the operator's disk holds, once it is found to be sound. The plug is pulled for it."""
        operator = self.computers[OPERATOR]
        operator.off()
        operator.boot()
        operator.run("ledger audit net/seat/validator.toml", 300)
        folder = self._folder / "ledger"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(operator.disk / "user" / "net", folder)
        self._again(OPERATOR)
        self._programs[OPERATOR].until(_is_open, READY)
        _, setting, _ = read_config(folder / "seat" / "validator.toml")
        store = LedgerStore.open(setting.folder / "chain.db", setting.genesis)
        try:
            return store.load().state
        finally:
            store.close()


def faults_of(state: LedgerState, now: int) -> list[str]:
    """What a ledger must not hold after honest nodes alone worked on it. `now`: ms since 1970."""
    found = []
    if total_money(state) != state.law.minted:
        found.append(f"the ledger holds {total_money(state)} of {state.law.minted}")
    tables = {name: list(table.rows) for name, table in state.tables.items()}
    jobs = {row.job: row for row in tables["jobs"]}
    held = {row.job for row in jobs.values() if row.state in HOLDS_MONEY and row.due > now}
    for node in tables["nodes"]:
        leases = [row for row in tables["leases"] if row.node == node.node and (row.is_open or row.disputes)]
        if node.burnt:
            found.append(f"{short(node.node)} lost {node.burnt}")
        if node.locked and not any(row.job in held for row in leases):
            found.append(f"{short(node.node)} has {node.locked} locked for no job")
    found += [f"{short(row.node)} was slashed in {short(row.job)}" for row in tables["leases"] if row.slashed]
    found += [f"{short(row.node)} is accused" for row in (*tables["disputes"], *tables["exclusions"])]
    found += [
        f"job {short(row.job)} is {row.state.name} behind its deadline" for row in jobs.values() if row.due <= now
    ]
    return found


def _roots(texts: list[str]) -> dict[int, str]:
    """The root of the public state after each round; the model's file also holds the run's name."""
    return {each["round"]: each["root"] for text in texts for each in events(text, "round")}


def _is_open(text: str) -> bool:
    return "Ctrl-C" in text


@contextlib.contextmanager
def world(folder: Path) -> Iterator[World]:
    """A network that is open and has trained one job."""
    places = (OPERATOR, *LENDERS, REQUESTER)
    with NetworkLab(HOMES) as lab, computers(lab, folder, *places, disk_mb=DISK_MB) as booted:
        made = World(lab, booted, folder)
        made.open()
        yield made

"""A whole network on this computer: one validator, n providers with a worker each, and this requester.

Nothing in it is a stand-in: separate processes, real sockets, real signatures. It differs from a network of
strangers in one thing only: keys come from the run's seed and ledger time is counted, not read, so that two runs
with one seed give the same bits (docs/architecture, law 4). Such keys are unsafe anywhere else.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from farflung.app.folder import RunFolder
from farflung.app.journal import Journal
from farflung.app.leash import Child, Report
from farflung.core.codec import encode
from farflung.core.crypto import local_key
from farflung.core.errors import RunError
from farflung.core.events import ProcessStarted, Traffic, Usage, Warned
from farflung.core.ids import PeerId
from farflung.core.money import MICRO, Credits, parse_credits, times
from farflung.host.io.probe import sgemm_flops
from farflung.host.io.process import WorkerProcess, start_worker
from farflung.job.spec import JobSpec
from farflung.ledger.block import DAY_MS, Genesis, Params
from farflung.train.io.pipe import WorkerPipe

FEE = Credits(10)  # micro-credits a transaction
STAKE_ROUNDS = (
    20  # a provider stakes the price of this many rounds: more than it could save by cheating in one
)
POCKET = MICRO  # credits for fees, beyond budget or stake
JOB_MS = 30 * DAY_MS
NODE_MS = 60 * DAY_MS


def stake_of(spec: JobSpec) -> Credits:
    """What each provider of a local network puts at stake."""
    return times(parse_credits(spec.unit_price), STAKE_ROUNDS * spec.round_tokens)


def genesis_of(spec: JobSpec) -> Genesis:
    """The genesis of a job's local ledger: it follows from the job, so that a reader need not be told it."""
    pocket, stake = POCKET, stake_of(spec)
    accounts = [(local_key(spec.seed, "requester").public, parse_credits(spec.budget) + pocket)]
    providers = [local_key(spec.seed, "provider", index).public for index in range(spec.network.providers)]
    accounts += [(peer, stake + pocket) for peer in providers]
    validators = (local_key(spec.seed, "validator").public,)
    return Genesis(f"local-{spec.seed}", 0, tuple(accounts), validators, Params(fee_min=FEE))


class LocalNetwork:
    """Starts the processes of a run, hears their reports, and ends them."""

    def __init__(self, folder: RunFolder, spec: JobSpec, journal: Journal) -> None:
        self._folder, self._spec, self._journal = folder, spec, journal
        self._session = journal.timeline.sessions
        self.requester = local_key(spec.seed, "requester")
        self.validator = local_key(spec.seed, "validator")
        self.providers = [local_key(spec.seed, "provider", i) for i in range(spec.network.providers)]
        self.unit_price = parse_credits(spec.unit_price)
        self.stake = stake_of(spec)
        self.genesis = genesis_of(spec)
        for index in range(spec.network.providers):
            folder.provider(index).mkdir(parents=True, exist_ok=True)
        self._children: dict[str, Child] = {}
        self._own_worker: WorkerProcess | None = None
        self._starting: asyncio.Task[None] | None = None
        self.ledger_address = ("", 0)

    def start_own_worker(self) -> WorkerPipe:
        """The requester's own torch process: builds the initial weights and evaluates."""
        scratch = self._folder.root / "scratch"
        self._own_worker = start_worker(scratch, self._folder.root / "worker.log")
        self._announce("worker", "requester worker", self._own_worker.pid, b"")
        return WorkerPipe(self._own_worker.socket)

    def start(self) -> asyncio.Task[None]:
        """Starts all other processes; `stop` ends this too, wherever it is."""
        self._starting = asyncio.create_task(self._start())
        return self._starting

    async def _start(self) -> None:
        """Validator first, then all providers at once; they register in turn, so that the ledger is reproducible."""
        config: Report = {
            "name": "ledger",
            "key": self.validator.seed.hex(),
            "genesis": encode(self.genesis).hex(),
            "folder": str(self._folder.ledger),
            "local": True,
            "port": 0,
        }
        validator = await self._start_child("ledger", "validator", config, self._folder.ledger)
        ready = await validator.first
        self.ledger_address = (str(ready["host"]), int(ready["port"]))
        self._announce("validator", "ledger", validator.pid, self.validator.public)
        flops = int(sgemm_flops())
        names = [f"provider-{i}" for i in range(len(self.providers))]
        for index, name in enumerate(names):
            await self._start_provider(index, name, flops)
        for index, name in enumerate(names):
            child = self._children[name]
            await child.first
            self._announce("provider", name, child.pid, self.providers[index].public)
        for name in names:
            await self._children[name].ask({"do": "register"}, "registered")

    async def _start_provider(self, index: int, name: str, flops: int) -> None:
        host, port = self.ledger_address
        config: Report = {
            "name": name,
            "key": self.providers[index].seed.hex(),
            "genesis": encode(self.genesis).hex(),
            "folder": str(self._folder.provider(index)),
            "ledger": {"peer": self.validator.public.hex(), "host": host, "port": port},
            "port": 0,
            "unit_price": self.unit_price,
            "stake": self.stake,
            "expires": NODE_MS,
            "flops": flops,
        }
        await self._start_child(name, "provider", config, self._folder.provider(index))

    async def _start_child(self, name: str, role: str, config: Report, folder: Path) -> Child:
        child = await Child.start(name, role, config, folder / "process.log", self._heard)
        self._children[name] = child
        return child

    def _announce(self, role: str, name: str, pid: int, peer: bytes) -> None:
        self._journal.emit(ProcessStarted(role=role, name=name, pid=pid, peer=peer.hex()))

    def _heard(self, child: Child, said: Report) -> None:
        match said.get("kind"):
            case "bytes":
                self.count(child.name, {k: int(v) for k, v in said.items() if k != "kind"})
            case "usage":
                facts = {k: v for k, v in said.items() if k != "kind"}
                self._journal.emit(Usage(**facts))
            case "worker":
                self._announce("worker", f"{child.name} worker", int(said["pid"]), b"")
            case "warning":
                self._journal.emit(Warned(code=str(said.get("code")), message=str(said.get("message"))))

    def count(self, process: str, sent: dict[str, int]) -> None:
        """Records what a process has sent so far in this session."""
        self._journal.emit(Traffic(session=self._session, process=process, **sent))

    async def first_death(self) -> tuple[str, PeerId | None, str]:
        """Waits until one of the processes ends by itself: its name, its key if it is a provider, and why."""
        waits = {asyncio.create_task(child.gone()): name for name, child in self._children.items()}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        task = done.pop()
        name = waits[task]
        child = self._children.pop(name)
        why = f"its process ended with status {task.result()}"
        if child.failure is not None:
            why = f"{child.failure.code} {child.failure.message}"
        peers = {f"provider-{i}": key.public for i, key in enumerate(self.providers)}
        return name, peers.get(name), why

    async def leave(self) -> None:
        """Every provider takes its stake back, in turn."""
        for name, child in self._children.items():
            if name != "ledger":
                await child.ask({"do": "leave"}, "left")

    async def stop(self) -> None:
        """Ends all processes; providers first, so that the ledger hears them out."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        ledger = self._children.pop("ledger", None)
        await asyncio.gather(*(child.stop() for child in self._children.values()))
        self._children.clear()
        if ledger is not None:
            await ledger.stop()
        if self._own_worker is not None:
            used = self._own_worker.usage()
            peak, seconds = int(used["peak_bytes"]), used["cpu_seconds"]
            self._journal.emit(Usage(process="requester worker", peak_bytes=peak, cpu_seconds=seconds))
            self._own_worker.terminate()
            self._own_worker = None


def died(name: str, why: str) -> RunError:
    """The ledger is gone: nothing can be paid until it is back."""
    return RunError(
        "FF-APP-021", f"{name} ended", cause=why, hint="`farflung resume` starts it again from its disk"
    )

"""Manages the processes of a run: starts, monitors, restarts and ends them.

On a stage the ledger and relays come first, then providers and verifiers at once; these register in turn, so that the
ledger is reproducible. The requester comes last, when the job's terms are fixed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from farflung.core.errors import FarflungError, RunError
from farflung.core.events import (
    AnyEvent,
    ProcessStartEvent,
    ProcessUsageEvent,
    SandboxEvent,
    SentBytesByKind,
    TrafficEvent,
    WarningEvent,
    from_json,
)
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import TensorLayout
from farflung.host.io.machine_probe import sgemm_flops
from farflung.host.io.worker_process import WorkerProcess, start_worker
from farflung.local.network import supervisor_worker
from farflung.local.network.joined_network import JoinedNetwork
from farflung.local.network.path_counts import PathCounts
from farflung.local.network.restarts import PORT_TAKEN, ProcessSupervisor, SupervisedProcess
from farflung.local.network.stage import LocalStage
from farflung.local.network.supervisor_worker import SupervisorWorker
from farflung.peers.process.channel import REQUESTER, Report
from farflung.peers.process.child import ChildProcess
from farflung.peers.process.config import write_role_config
from farflung.peers.program.worker_bounds import bounds_of
from farflung.peers.requester.conclusion import FinalLedgerSummary
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.journal import Journal

OnEvent = Callable[[AnyEvent, bool], None]


class RunProcesses:
    """All processes of a run but this one."""

    def __init__(
        self,
        folder: RunFolder,
        network: JoinedNetwork,
        stage: LocalStage | None,
        journal: Journal,
        on_event: OnEvent,
        staged: Mapping[str, Report] = MappingProxyType({}),
    ) -> None:
        """`on_event` hears, in order, what the requester's process tells; its second argument: make it durable.

        `stage`: what else is started; None: nothing. `staged`: what is added to the configuration of a node, by its
        name (local.network.demonstration).
        """
        self._stage, self._staged = stage, staged
        self._folder, self._network, self._journal, self._on_event = folder, network, journal, on_event
        self._session = journal.timeline.sessions
        self._supervisor = ProcessSupervisor(self, journal)
        self._own_worker: SupervisorWorker | None = None
        self._starting: asyncio.Task[None] | None = None
        self._outcome: asyncio.Future[Report] | None = None
        self._stop_reason = ""
        self._sent: dict[str, dict[str, int]] = {}  # by processes that live, so far
        self._before: dict[str, dict[str, int]] = {}  # by those that died before them
        self._peers: dict[str, PeerId] = {REQUESTER: network.account, **(stage.peers if stage else {})}
        self._roles = {node.name: node.role for node in stage.nodes} if stage else {}
        self._seats = list(stage.seats) if stage else []
        self._has_met = False  # the seats were told of each other
        self.guard, self.ways = self._supervisor.guard, PathCounts()

    def peer(self, name: str) -> PeerId:
        """The key of a process; empty: there is none of that name."""
        return self._peers.get(name, PeerId(b""))

    def start_own_worker(self, layout: TensorLayout | None) -> SupervisorWorker:
        """The supervisor's own torch process: builds the initial weights, measures, evaluates."""
        self._own_worker = SupervisorWorker(self._worker_life, self._journal, layout)
        return self._own_worker

    def _worker_life(self) -> WorkerProcess:
        scratch, data_bytes = self._folder.root / "scratch", self._folder.dataset_file.stat().st_size
        # all cores: when the others are done it trains the single-machine baseline
        bounds = msgspec.structs.replace(bounds_of(self._network.spec, data_bytes), cores=0)
        process = start_worker(scratch, self._folder.root / "worker.log", bounds)
        self._note_tier(process.tier.name, process.tier.gaps)
        self._announce("worker", supervisor_worker.NAME, process.pid, b"")
        return process

    def start(self) -> asyncio.Task[None]:
        """Starts all processes that need no terms; `stop` ends this too, wherever it is."""
        self._starting = asyncio.create_task(self._start(self._stage))
        return self._starting

    async def _start(self, stage: LocalStage | None) -> None:
        """A network of this computer's own; then its nodes register, in turn."""
        if stage is None:
            return
        folder = self._folder
        await self._start_ledger(stage)
        for name, config in stage.write_relays(folder).items():
            await self._launch(name, "relay", config, folder.root / f"{name}.log")
        stage.open_relays({name: await self._port_of(name) for name in stage.relays})
        flops = int(sgemm_flops())
        for node in stage.nodes:
            config = stage.write_node(folder, node, flops, self._staged.get(node.name, {}))
            await self._launch(node.name, node.role, config, config.with_name("process.log"))
        stage.write_requester(folder)  # while they load
        for name in self._roles:
            self._announce_child(await self._supervisor.ready(name))
        for name in self._roles:
            await self._supervisor.ask(name, {"do": "register"}, "registered")

    async def _start_ledger(self, stage: LocalStage) -> None:
        """All validators, which are told of each other."""
        for name, config in stage.write_seats(self._folder).items():
            await self._launch(name, "validator", config, config.with_name("process.log"))
        stage.open_ledger({name: await self._port_of(name) for name in self._seats})
        self._has_met = True  # one that dies over it is told again
        for name in self._seats if len(self._seats) > 1 else ():
            self._supervisor.tell(name, _meeting(self._network))

    async def _launch(self, name: str, role: str, config: Path, log: Path) -> None:
        await self._supervisor.launch(SupervisedProcess(name, role, config, log, self._network.placement.way(name)))

    async def _port_of(self, name: str) -> int:
        """Where a launched process listens, once it is ready."""
        child = await self._supervisor.ready(name)
        self._announce_child(child)
        return int(child.first.result()["port"])

    # The requester

    async def coordinate(self, plan: Report) -> Report:
        """Starts the requester's process and waits until it tells how the job ended."""
        self._outcome = asyncio.get_running_loop().create_future()
        root = self._folder.root
        config = write_role_config(root / "requester.toml", {**self._network.requester(), **plan})
        await self._launch(REQUESTER, "requester", config, root / "requester.log")
        await self._port_of(REQUESTER)
        if self._stop_reason:
            self._supervisor.tell(REQUESTER, {"do": "stop", "reason": self._stop_reason})
        return await self._outcome

    async def conclude(self) -> FinalLedgerSummary:
        """Every node of the stage takes its stake back, in turn; one that was caught takes what is left of it. Then the
        requester ends the job on the ledger, and its process ends.
        """
        for name in self._roles:
            with contextlib.suppress(FarflungError):  # a stake that stays behind shows in the sum
                if self._supervisor.is_given_up(name):
                    await self._supervisor.bring_back(name)
                await self._supervisor.ask(name, {"do": "leave"}, "left")
        said = await self._supervisor.ask(REQUESTER, {"do": "conclude"}, "concluded")
        await self._supervisor.dismiss(REQUESTER)
        return msgspec.convert(said, FinalLedgerSummary)

    def ask_to_stop(self, reason: str) -> bool:
        """Lets the requester finish the open round and settle; False when it is not at work, or was asked before."""
        if self._stop_reason or self._outcome is None:
            return False
        self._stop_reason = reason
        self._supervisor.tell(REQUESTER, {"do": "stop", "reason": reason})
        return True

    def kill(self, name: str) -> bool:
        """Kills a process, which the supervisor starts again; False where none runs."""
        child = self._supervisor.child(name)
        if child is None:
            return False
        os.kill(child.pid, signal.SIGKILL)
        return True

    # What the supervisor asks (restarts.RestartPolicy)

    def heard(self, child: ChildProcess, said: Report) -> None:
        """A process reported something."""
        facts = {key: value for key, value in said.items() if key != "kind"}
        with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
            match said.get("kind"):
                case "event":
                    self._on_event(from_json(str(said["event"])), bool(said.get("durable")))
                case "outcome" if self._outcome is not None and not self._outcome.done():
                    self._outcome.set_result(said)
                case "bytes":
                    self.count(child.name, {kind: int(size) for kind, size in facts.items()})
                case "way":
                    self.ways.hear(self._peers[child.name], said)
                case "usage":
                    self._journal.emit(ProcessUsageEvent(**facts))
                case "worker":
                    self._note_tier(str(said.get("tier", "")), ())
                    self._announce("worker", f"{child.name} worker", int(said["pid"]), b"")
                case "warning":
                    self._journal.emit(WarningEvent(code=str(said.get("code")), message=str(said.get("message"))))

    def died(self, name: str, why: str, failure: FarflungError | None) -> bool:
        """Evidence for the requester, at once; and whether the process is started again."""
        self._before[name] = _sum(self._before.get(name, {}), self._sent.pop(name, {}))
        is_crash = failure is None or failure.code == PORT_TAKEN
        if self._roles.get(name) == "provider":
            peer = self._peers[name]
            self._supervisor.tell(REQUESTER, {"do": "lost", "peer": peer.hex(), "reason": why})
            return is_crash and not self._is_out(peer)
        if failure is not None and not is_crash:
            if self.may_miss(name, why):
                return False
            raise failure if name == REQUESTER else _ended(name, why)
        return True

    def _is_out(self, peer: PeerId) -> bool:
        """Whether a provider was caught, and has no dispute to play any more: silent, it would lose it."""
        caught = self._journal.timeline.caught.get(peer.hex())
        return caught is not None and not caught.pending

    def may_miss(self, name: str, why: str) -> bool:
        """Whether the run goes on without this process: it is a relay, and another one is there."""
        relays = self._network.relays
        if name not in relays or all(self._supervisor.is_given_up(other) for other in relays if other != name):
            return False
        said = f"{name} is not started again: {why}"
        self._journal.emit(WarningEvent(code="FF-APP-200", message=said, hint="nothing: another relay is there"))
        return True

    async def revived(self, child: ChildProcess) -> None:
        """A process that died is ready again."""
        self._announce_child(child)
        if child.name in self._seats and self._has_met:
            child.order(_meeting(self._network))
        if child.name in self._roles:
            await child.ask({"do": "register"}, "registered")
            peer = self._peers[child.name]
            # A verifier is dialled when there is work for it, who was caught has a dispute left and no work.
            if self._roles[child.name] == "provider" and peer.hex() not in self._journal.timeline.caught:
                self._supervisor.tell(REQUESTER, {"do": "back", "peer": peer.hex()})
        elif child.name == REQUESTER and self._stop_reason:
            child.order({"do": "stop", "reason": self._stop_reason})

    # What is told

    def _announce(self, role: str, name: str, pid: int, peer: bytes) -> None:
        self._journal.emit(ProcessStartEvent(role=role, name=name, pid=pid, peer=peer.hex()))

    def _announce_child(self, child: ChildProcess) -> None:
        self._announce(child.role, child.name, child.pid, self._peers[child.name])

    def _note_tier(self, tier: str, gaps: tuple[str, ...]) -> None:
        """Said once for all workers that run alike."""
        if tier not in {told.tier for told in self._journal.timeline.sandboxes}:
            self._journal.emit(SandboxEvent(tier=tier, gaps=gaps))

    def count(self, process: str, sent: dict[str, int]) -> None:
        """Records what a process has sent so far in this session, those that died before it included."""
        named = (*SentBytesByKind.__struct_fields__, "received")
        self._sent[process] = {kind: sent[kind] for kind in named if kind in sent}
        whole = _sum(self._before.get(process, {}), self._sent[process])
        self._journal.emit(TrafficEvent(session=self._session, process=process, **whole))

    async def stop(self) -> None:
        """Ends all processes; the ledger last, so that it hears the others out."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._supervisor.dismiss(REQUESTER)
        await self._supervisor.stop(last=self._seats)
        if self._own_worker is not None:
            self._own_worker.stop()


def _meeting(network: JoinedNetwork) -> Report:
    """Where all validators are."""
    ledger = network.record.ledger
    places = [{"peer": one.peer.hex(), "host": one.host, "port": one.port} for one in (ledger, *ledger.others)]
    return {"do": "meet", "validators": places}


def _sum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {kind: one.get(kind, 0) + other.get(kind, 0) for kind in {**one, **other}}


def _ended(name: str, why: str) -> RunError:
    """A process that all others need said that it cannot go on."""
    return RunError("FF-APP-021", f"{name} ended", cause=why, hint="`farflung resume` starts it again from its disk")

"""Sets up a lease's workspace, to train or to audit: the job's data on disk, and a worker set up for the job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, TypeVar

from farflung.core import limits
from farflung.core.crypto import NS_TRIAL, SigningKey
from farflung.core.errors import RunError, VerificationError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.job.cheat_names import HONEST
from farflung.job.dataset import Dataset, unpack
from farflung.job.spec import JobTerms
from farflung.job.token_tree import is_root, read_root
from farflung.net.messages import MessageKind
from farflung.peers.node.token_supply import CACHE_BYTES, Probe, TokenSupply
from farflung.peers.program import trace
from farflung.peers.program.graph_runs import JobGraph
from farflung.peers.protocol.job_key import KEY_BYTES
from farflung.peers.protocol.messages import LeaseStartRequest
from farflung.peers.transfer import objects
from farflung.plan.device_choice import CPU
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import ObjectManifest
from farflung.train import worker_messages
from farflung.verify.canon.graph_file import SHIPPED_BYTES

ReplyT = TypeVar("ReplyT", bound=worker_messages.Reply)


class WorkerHandle(Protocol):
    """A worker process, as those who use it see it."""

    async def request(self, message: worker_messages.Request) -> worker_messages.Reply:
        """Sends one request and waits for its reply."""

    async def abandon(self) -> None:
        """Lets it give up what it trains."""


async def ask(worker: WorkerHandle, message: worker_messages.Request, kind: type[ReplyT]) -> ReplyT:
    """The worker's reply. Raises RunError FF-APP-037 when it is of another kind."""
    reply = await worker.request(message)
    if not isinstance(reply, kind):
        raise RunError("FF-APP-037", f"the worker answered {type(reply).__name__} to {type(message).__name__}")
    return reply


class JobWorkspace:
    """One job's on one node. `job_key` and `worker` are there once the lease has started."""

    def __init__(
        self,
        key: SigningKey,
        terms: JobTerms,
        disk: DiskObjectStore,
        dial: objects.Dial,
        dataset_bytes: int,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """`dataset_bytes`: what the proposal said of the data set's size; `cache_bytes`: of pieces of a large one that
        stay on disk.
        """
        self.key, self.terms, self.disk, self.dial = key, terms, disk, dial
        self._draw = key.secret(NS_TRIAL, terms.id)
        self._dataset_bytes = dataset_bytes
        self._cache_bytes = cache_bytes
        self._supply: TokenSupply | None = None  # of a data set that is not here whole
        self._member, self._is_honest = 0, True
        self._lists: tuple[ObjectManifest, ...] = ()  # of data set and graph, once they are here
        self.job_key, self.threads, self.device = b"", 1, CPU  # of its worker
        self.worker: WorkerHandle | None = None

    def is_set_up(self, worker: WorkerHandle, job_key: bytes) -> bool:
        """Whether this very worker knows the job already."""
        return worker is self.worker and job_key == self.job_key

    def check(self, start: LeaseStartRequest, job_key: bytes, further: Mapping[str, bool]) -> None:
        """Only what the terms name, and no more bytes than they can need; `further`: faults by what is at fault.

        Raises VerificationError FF-APP-058.
        """
        faults = {
            "the job's key": len(job_key) != KEY_BYTES,
            "the data set": start.dataset.content != self.terms.dataset or start.dataset.size > self._dataset_bytes,
            "the module": not self._is_module(start.module),
            "the graph": start.graph.size > (SHIPPED_BYTES if self.terms.is_proven else 0),
            **further,
        }
        for what, is_wrong in faults.items():
            if is_wrong:
                raise VerificationError(
                    "FF-APP-058", "a start does not keep to the job's terms", cause=f"{what} is another"
                )

    def _is_module(self, module: ObjectManifest) -> bool:
        if self.terms.module == ZERO_HASH:
            return module.size == 0
        return module.content == self.terms.module and module.size <= limits.MODULE_BYTES

    async def enter(
        self, start: LeaseStartRequest, job_key: bytes, worker: WorkerHandle, requester: PeerId, cheat: str = HONEST
    ) -> JobGraph | None:
        """Brings data, module and graph here, checks the job's program, and sets the worker up; until that is done it
        does not count as set up. Returns the program with its parts; raises what tracing.parts raises.
        """
        self.job_key, self.worker = job_key, None
        dataset = await self.bring(start.dataset, (requester,), MessageKind.JOIN)
        module = await self.bring(start.module, (requester,), MessageKind.JOIN)
        graph = await self.bring(start.graph, (requester,), MessageKind.JOIN)
        self._lists = start.dataset, start.graph
        self._member, self._is_honest = start.member, cheat == HONEST
        self.close()
        self._supply = self._supplied(dataset, requester)
        made = await self._made(dataset, graph)
        setup = worker_messages.SetupCommand(
            self.terms.spec, dataset, bytes(module), start.member, self.key.public, self.threads, cheat, self.device
        )
        await ask(worker, setup, worker_messages.SetupResult)
        self.worker = worker
        return made

    async def _made(self, data: memoryview, shipped: memoryview) -> JobGraph | None:
        parts = await asyncio.to_thread(trace.parts, self.terms, self._data(data), shipped)
        return None if parts is None else JobGraph(parts, self.terms.layout, self.terms.tolerance, data, shipped)

    @property
    def secret_round(self) -> int:
        """The round in which this node tries a step of the job's graph: nobody else can know it."""
        return int.from_bytes(self._draw, "little") % self.terms.spec.rounds

    async def graph(self) -> JobGraph | None:
        """The job's program with its parts, made again of what lies on this disk; None: the job has none."""
        if not self._lists:
            return None
        data, graph = [await self.bring(each, (), MessageKind.JOIN) for each in self._lists]
        return await self._made(data, graph)

    def _supplied(self, dataset: memoryview, requester: PeerId) -> TokenSupply | None:
        if not is_root(dataset):
            return None
        root, where = read_root(dataset), (self.job_key, self.disk, self.dial, requester)
        return TokenSupply(self.terms, root, *where, self._cache_bytes)

    def _data(self, dataset: memoryview) -> Callable[[], Dataset]:
        supply = self._supply
        return partial(unpack, dataset) if supply is None else lambda: supply.data

    async def supply(
        self,
        round: int,
        members: tuple[int, ...] | None = None,
        sources: tuple[PeerId, ...] = (),
        probe: Probe | None = None,
    ) -> None:
        """Gives the worker the tokens of a round of these members (None: of this one), where it has not all data.

        Raises what TokenSupply.bring raises.
        """
        if (supply := self._supply) is None:
            return
        own = (self._member,)
        rounds = [(round, member) for member in (own if members is None else members)]
        if members is None and self.terms.spec.sync.delay and round + 1 < self.terms.spec.rounds:
            rounds.append((round + 1, self._member))  # it trains ahead
        if not self._is_honest:
            rounds.append((0, self._member))  # the batches of a demonstration's shortcut
        pieces = await supply.bring(rounds, sources, probe)
        await self.ask(worker_messages.HoldTokensCommand(pieces), worker_messages.HoldTokensResult)

    def look_ahead(self, round: int) -> None:
        """Fetches what will be missing of the own tokens when `round` comes, where not all data are here."""
        last = round + bool(self.terms.spec.sync.delay)  # up to which it trains then
        if self._supply is not None and last < self.terms.spec.rounds:
            self._supply.look_ahead([(last, self._member)])

    def kept_tokens(self, round: int, member: int) -> bytes:
        """The packed tokens of a member's round, for a dispute about it; nothing where all data are here."""
        return b"" if self._supply is None else self._supply.kept(round, member)

    def close(self) -> None:
        """Ends what is fetched ahead."""
        if self._supply is not None:
            self._supply.cancel()

    async def bring(self, manifest: ObjectManifest, sources: tuple[PeerId, ...], kind: MessageKind) -> memoryview:
        """An object of the job, from the first source that has it, mapped; it stays in the node's store, sealed."""
        others = tuple(dict.fromkeys(p for p in sources if p != self.key.public))
        await objects.fetch(self.disk, manifest, others, self.dial, kind)
        return await asyncio.to_thread(self.disk.content, self.job_key, manifest)

    async def ask(self, message: worker_messages.Request, kind: type[ReplyT]) -> ReplyT:
        """What the worker that was set up replies. Raises RunError FF-APP-037."""
        assert self.worker is not None
        return await ask(self.worker, message, kind)

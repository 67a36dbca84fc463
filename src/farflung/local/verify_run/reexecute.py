"""Retrains contributions of a finished run on this computer, in a worker's sandbox like the original workers'."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from farflung.core.crypto import NS_OBJECT, digest
from farflung.core.errors import RunError, VerificationError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.io.extras import require
from farflung.host.io import temporary_folders
from farflung.host.io.worker_process import WorkerProcess, start_worker
from farflung.job.spec import JobTerms
from farflung.peers.node.workspace import WorkerHandle, ask
from farflung.peers.program.stall_watch import watched
from farflung.peers.program.worker_bounds import bounds_of
from farflung.peers.rundir.dataset_file import DatasetFile
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.inputs import module_source
from farflung.train import worker_messages
from farflung.train.blobs import Blob
from farflung.train.io.worker_pipe import WorkerPipe
from farflung.train.reply_bounds import WorkerReplies
from farflung.train.run_log import Contribution, accepted_by_round, payload_hash
from farflung.verify.export_reader import ExportedRun
from farflung.verify.reexecution import (
    ChainRerun,
    condemned_places,
    cost,
    drawn,
    lasts,
    reexecution_report,
    retrial_reports,
    segment_keys,
)
from farflung.verify.replay_report import ReexecutionReport, RetrialReport
from farflung.verify.run_replay import ReplayResult
from farflung.watch.phrases import many

DIVERGED: Final = "FF-TRAIN-062"  # whoever committed to this round came to numbers

Tell = Callable[[str], None]


async def reexecute(
    folder: RunFolder, exported: ExportedRun, proven: ReplayResult, rate: float, seed: int, tell: Tell
) -> ReexecutionReport:
    """Draws segments of a proven run at `rate` and trains again what they need; `tell` hears how far it is.

    Raises RunError FF-APP-354 (data or model source are not in the folder), FF-TRAIN-090 (the worker ended),
    VerificationError FF-APP-353 (a payload is not that of its own trace).
    """
    terms, accepted = proven.terms, accepted_by_round(proven.records)
    among = segment_keys(accepted, terms.spec.segments, proven.condemned)
    sample = drawn(terms.id, seed, rate, among)
    said = f"{len(sample)} of {many(len(among), 'segment')} drawn"
    replays = await _replays(folder, exported, proven, lasts(sample), said, tell)
    return reexecution_report((rate, seed), among, sample, replays, accepted)


async def retry(
    folder: RunFolder, exported: ExportedRun, proven: ReplayResult, tell: Tell
) -> tuple[RetrialReport, ...]:
    """Trains again what the run's audits had condemned, as a juror of an appeal does. Raises as `reexecute`."""
    sample = condemned_places(accepted_by_round(proven.records), proven.condemned)
    said = f"{many(len(sample), 'contribution')} condemned"
    return retrial_reports(sample, await _replays(folder, exported, proven, lasts(sample), said, tell))


async def _replays(
    folder: RunFolder, exported: ExportedRun, proven: ReplayResult, until: Mapping[PeerId, int], said: str, tell: Tell
) -> list[ChainRerun]:
    """Peers' chains, each up to its round, in one worker."""
    require("torch")
    terms, accepted, replays = proven.terms, accepted_by_round(proven.records), list[ChainRerun]()
    data, module = _inputs(folder, terms)
    tell(f"{said}; {many(cost(accepted, until), 'contribution')} to be trained for that")
    chains = RunReexecution(terms, exported, accepted, data.lent(), module)
    scratch = temporary_folders.make("farflung-again-")
    process = start_worker(scratch / "scratch", scratch / "worker.log", bounds_of(terms.spec, data.size))
    try:
        worker = _WatchedWorker(process, WorkerPipe(process.socket, WorkerReplies(terms.layout).to, scratch))
        for peer, last in until.items():
            replay = await chains.replay(worker, peer, proven.seats.index(peer), last)
            came = "the same bits" if replay.broken is None else f"other bits in round {replay.broken}"
            tell(f"peer {peer[:4].hex()}: {many(replay.trained, 'contribution')} trained again, {came}")
            replays.append(replay)
    finally:
        process.terminate(0)
        shutil.rmtree(scratch, ignore_errors=True)
    return replays


class _WatchedWorker:
    """A worker (peers.node.workspace.WorkerHandle) whose requests end where its model never returns."""

    def __init__(self, process: WorkerProcess, pipe: WorkerPipe) -> None:
        self._process, self._pipe = process, pipe

    async def request(self, message: worker_messages.Request) -> worker_messages.Reply:
        """The reply. Raises what the pipe raises, RunError FF-APP-488 (it stalled)."""
        reply: worker_messages.Reply = await watched(self._process, self._pipe.request(message))
        return reply

    async def abandon(self) -> None:
        """Lets it give up what it trains."""
        await self._pipe.abandon()


class RunReexecution:
    """A run's rounds as one of its peers went through them."""

    def __init__(
        self,
        terms: JobTerms,
        exported: ExportedRun,
        accepted: Mapping[int, Sequence[Contribution]],
        data: Blob,
        module: bytes,
    ) -> None:
        self._terms, self._exported, self._accepted = terms, exported, accepted
        self._data, self._module = data, module

    async def replay(self, worker: WorkerHandle, peer: PeerId, member: int, last: int) -> ChainRerun:
        """The peer's contributions up to round `last`, until one comes out otherwise."""
        setup = worker_messages.SetupCommand(self._terms.spec, self._data, self._module, member, peer)
        await ask(worker, setup, worker_messages.SetupResult)
        await ask(worker, worker_messages.LoadCommand(0, self._exported.initial, b""), worker_messages.StateResult)
        equal = set[int]()
        for round in range(last + 1):
            own = next((c for c in self._accepted[round] if c.peer == peer), None)
            if own is not None and not await self._is_equal(worker, round, own):
                return ChainRerun(peer, frozenset(equal), round)
            equal |= {round} if own is not None else set()
            parts = tuple(
                worker_messages.AcceptedPayload(c.peer, c.weight, self._exported.payload(c.payload))
                for c in self._accepted[round]
            )
            await ask(worker, worker_messages.MergeCommand(round, parts), worker_messages.StateResult)
        return ChainRerun(peer, frozenset(equal), None)

    async def _is_equal(self, worker: WorkerHandle, round: int, own: Contribution) -> bool:
        """Whether a contribution's whole trace comes out again, from the state that the peer had left or from a fresh
        one: it may have lost what it had.
        """
        request = worker_messages.TrainCommand(round, self._terms.spec.steps_of(own.weight))
        for is_fresh in (False, True):
            if is_fresh:
                await ask(worker, worker_messages.RewindCommand(round, b""), worker_messages.StateResult)
            try:
                trained = await ask(worker, request, worker_messages.TrainResult)
            except RunError as error:
                if error.code != DIVERGED:
                    raise
                continue
            if trained.trace.root == own.trace:
                _check_payload(trained, own)
                return True
        return False


def _check_payload(trained: worker_messages.TrainResult, own: Contribution) -> None:
    """On any machine: what a peer committed to names its payload, and the accepted one must be that."""
    if payload_hash(trained.payload) != own.payload:
        raise VerificationError(
            "FF-APP-353",
            f"a payload of {own.peer[:4].hex()} is not what its committed work encodes to",
            cause=f"round {trained.round} came out again under its trace, with another payload",
            hint="do not trust this contribution: no audit of it can have held",
        )


def _inputs(folder: RunFolder, terms: JobTerms) -> tuple[DatasetFile, bytes]:
    """Data set and model source, as the terms name them."""
    try:
        data, module = DatasetFile(folder.dataset_file), module_source(folder)
        is_named = data.is_named(terms.dataset)
    except RunError as error:
        raise _not_here(folder, error.cause) from error
    named = digest(NS_OBJECT, module) if module else ZERO_HASH
    if not is_named or named != terms.module:
        raise _not_here(folder, "dataset.bin or module.py is not what the terms name")
    return data, module


def _not_here(folder: RunFolder, cause: str) -> RunError:
    return RunError(
        "FF-APP-354",
        f"nothing of run {folder.name} can be trained again here",
        cause=cause[:200],
        hint="copy dataset.bin, and module.py where there is one, from the folder of the run",
    )

"""Reads the recorded payloads of a finished run: their sizes, and vectors to measure other codecs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from farflung.app.codec_bench.measure import coefficients, support_floor
from farflung.app.codec_bench.vectors import BenchVector, VectorSelection
from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import FarflungError, VerificationError
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job import terms_file
from farflung.job.spec import JobTerms, SyncSpec
from farflung.peers.rundir.export import read_export
from farflung.peers.rundir.folder import RunFolder
from farflung.plan.state_vectors import has_residual, payload_bytes
from farflung.train import public_state, worker_messages
from farflung.train.blobs import Blob
from farflung.train.public_state import PublicState
from farflung.train.run_log import Contribution, RunLogEntry, RunStartRecord, accepted_by_round, payload_hash, read_log
from farflung.train.sync_arithmetic import Sync
from farflung.verify.export_reader import ExportedRun

SAMPLES: Final = 3  # vectors that are taken of a run, at most
LEAST: Final = 4  # rounds that a change of public state goes over, where there are as many


class RunPayloads(NamedTuple):
    """All payloads that a run accepted: bytes of one on the average, and what the plan expected.

    `coefficient`: bits of one coefficient, all in, where a sparse codec sent all tensors; `support_floor` of its index.
    """

    total: int
    mean: float
    expected: float
    coefficient: float | None = None
    support_floor: float | None = None


class RunVectors(NamedTuple):
    """What a run gives: vectors, and its own payloads."""

    drawn: VectorSelection
    payloads: RunPayloads


class _RecordedLog(NamedTuple):
    terms: JobTerms
    exported: ExportedRun
    accepted: Mapping[int, tuple[Contribution, ...]]

    def parts(self, round: int) -> list[worker_messages.AcceptedPayload]:
        """The inputs of a round's merge, each compared with its hash."""
        return [
            worker_messages.AcceptedPayload(c.peer, c.weight, self._payload(c)) for c in self.accepted.get(round, ())
        ]

    def _payload(self, contribution: Contribution) -> Blob:
        payload = self.exported.payload(contribution.payload)
        if payload_hash(payload) != contribution.payload:
            raise VerificationError("FF-APP-192", "a payload of this run is not the one in its log")
        return payload


def read(run: RunFolder) -> RunVectors:
    """Replays a finished run from its exported log alone.

    Raises VerificationError FF-APP-192 (the log is not the terms', or says nothing), FF-APP-080 and -081 (not there,
    too long), or what a payload's codec says.
    """
    log = _log(run)
    sync, layout = Sync.of(log.terms.spec), log.terms.layout
    rounds = sorted(log.accepted)
    is_lossy = has_residual(log.terms.spec.sync)
    most = max(1, len(rounds) // LEAST) if is_lossy else SAMPLES
    taken = _evenly(rounds, min(SAMPLES, most))
    initial = public_state.unpack(log.exported.initial, layout)
    public = public_state.check(initial, layout, 0, log.terms.initial_root)
    edges, exact, sizes = [public.params], list[BenchVector](), list[int]()
    while public.round <= rounds[-1]:
        parts = log.parts(public.round)
        sizes += [len(part.payload) for part in parts]
        if not is_lossy and public.round in taken and parts:
            exact.append(_exact(sync, public, layout, parts[0]))
        public = sync.apply(public, layout, parts)
        if public.round - 1 in taken:
            edges.append(public.params)
    payloads = _payloads(log.terms.spec.sync, layout, sizes)
    if not is_lossy:
        said = f"pseudo-gradients as they were sent: payloads of rounds {', '.join(map(str, sorted(taken)))}, exact"
        return RunVectors(_drawn(exact, (said,)), payloads)
    found = _changes(edges, [-1, *sorted(taken)], layout)
    share = sum(np.count_nonzero(one.values) for one in found) / (layout.size * max(1, len(found)))
    said = (
        "its payloads are lossy, and what they were made from was private: measured on the change of public state over"
        f" rounds {', '.join(one.name for one in found)}; {100 * share:.0f} % of its numbers are not 0"
    )
    return RunVectors(_drawn(found, (said,)), payloads)


def _payloads(sync: SyncSpec, layout: TensorLayout, sizes: Sequence[int]) -> RunPayloads:
    found = RunPayloads(len(sizes), float(np.mean(sizes)), payload_bytes(sync, layout))
    if sync.codec != "topk" or sync.fragments > 1 or sync.warmup_rounds:
        return found
    bits = 8 * found.mean / coefficients(layout, sync.topk, sync.chunk)
    return found._replace(coefficient=bits, support_floor=support_floor(sync.chunk, sync.topk))


def _log(run: RunFolder) -> _RecordedLog:
    exported = read_export(run)
    try:
        terms = terms_file.read(exported.terms)
        first = decode(exported.entries[0], RunLogEntry, limits.LOG_RECORD_BYTES).record
        if not isinstance(first, RunStartRecord) or first.job != terms.id:
            raise _bad(run, "its log is of another job")
        accepted = accepted_by_round(read_log(exported.entries, first.coordinator))
    except (IndexError, FarflungError) as error:
        raise _bad(run, str(error)) from error
    if not accepted:
        raise _bad(run, "none of its rounds accepted anything")
    return _RecordedLog(terms, exported, accepted)


def _exact(sync: Sync, public: PublicState, layout: TensorLayout, part: worker_messages.AcceptedPayload) -> BenchVector:
    values = sync.decode(sync.about(public, layout, part.peer), layout, part.payload)
    return BenchVector(str(public.round), sync.fragment(public.round, layout).layout, values)


def _changes(edges: Sequence[Float32], rounds: Sequence[int], layout: TensorLayout) -> list[BenchVector]:
    """The change of the parameters between neighbouring edges, each after the round of the same index."""
    found = []
    for number in range(1, len(edges)):
        first, last = rounds[number - 1] + 1, rounds[number]
        name = f"{first} to {last}" if first < last else f"{last}"
        found.append(BenchVector(name, layout, edges[number] - edges[number - 1]))
    return found


def _drawn(found: Sequence[BenchVector], notes: tuple[str, ...]) -> VectorSelection:
    good = tuple(one for one in found if np.isfinite(one.values).all() and one.values.any())
    return VectorSelection(good, sum(one.layout.size for one in good), notes)


def _evenly(rounds: Sequence[int], count: int) -> frozenset[int]:
    """At most `count` of `rounds`, the last one among them."""
    parts = min(count, len(rounds))
    return frozenset(rounds[len(rounds) * (i + 1) // parts - 1] for i in range(parts))


def _bad(run: RunFolder, cause: str) -> VerificationError:
    return VerificationError(
        "FF-APP-192",
        f"run {run.name} has no payloads to measure on",
        cause=cause[:200],
        hint=f"farflung verify-run {run.name}",
    )

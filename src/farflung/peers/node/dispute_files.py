"""Stores the files that a node needs to take part in a dispute later: about a sampled segment of its own, or
about one that it found false.

    case     of a job: its terms, its key, and the objects that its program is put together from
    file     of a segment: the states at both borders, weights included

Both outlive the lease and the process: a requester may end a lease and accuse its node a moment later. So they lie in a
folder of their own, sealed under a key that follows from the node's, and nothing in it is served to anybody.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TypeVar

import numpy as np

from farflung.core import limits
from farflung.core.codec import Wire
from farflung.core.crypto import NS_BRIEF, SigningKey
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import Float32
from farflung.job.spec import JobTerms
from farflung.ledger.pinpoint_game import BorderProof
from farflung.peers.node.sealed_files import UNUSABLE, SealedFileStore
from farflung.peers.protocol.messages import LeaseStartRequest
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import ObjectManifest
from farflung.train import segments, worker_messages
from farflung.train.blobs import Blob, bytes_of
from farflung.train.contribution_trace import ContributionTrace
from farflung.train.segments import BorderState
from farflung.verify.segment_audit import SegmentAudit
from farflung.verify.segment_opening import read_border

T = TypeVar("T", bound=Wire)
Place = tuple[int, int]  # round, segment


class DisputeJob(Wire, frozen=True):
    """One job, as a game about it needs it. `start`: which of the job's objects, and under which number of the job."""

    terms: JobTerms
    job_key: bytes
    start: LeaseStartRequest


class DisputeFile(Wire, frozen=True):
    """One segment of a contribution of `node`. `start` and `claimed`: train.segments form, with weights.

    `borders`: those of the segment under `trace`, which only the node itself shows. `tokens`: packed leaves of the
    round's batches (core.canon.token_leaves), where the job's data set is not kept whole.
    """

    job: Hash
    node: PeerId
    round: int
    segment: int
    seat: int
    weight: int
    trace: Hash
    start: Blob
    claimed: Blob
    borders: tuple[BorderProof, ...] = ()
    tokens: Blob = b""


def own_dispute_file(
    case: DisputeJob, node: PeerId, place: Place, trace: ContributionTrace, states: worker_messages.OpenSegmentResult
) -> DisputeFile:
    """What a node keeps of its own work. `states`: as its worker gives them."""
    terms, (round, segment) = case.terms, place
    start = _whole(terms, round, states.start, np.frombuffer(bytes_of(states.public), np.float32))
    shown = (BorderProof(read_border(leaf), leaf.path) for leaf in trace.opened(segment, segment + 1))
    about = round, segment, case.start.member, trace.statistics.tokens, trace.root
    return DisputeFile(terms.id, node, *about, start, states.end, tuple(shown))


def found_dispute_file(terms: JobTerms, seat: int, audit: SegmentAudit, start: Blob, claimed: Blob) -> DisputeFile:
    """What a verifier keeps of a segment that it found false; both states as the node opened them."""
    place, c = audit.place, audit.place.contribution
    begun = _whole(terms, place.round, start, audit.base)
    return DisputeFile(terms.id, c.peer, place.round, place.segment, seat, c.weight, c.trace, begun, claimed)


def _whole(terms: JobTerms, round: int, start: Blob, public: Float32) -> Blob:
    """An opened start with its weights, shape (layout.size,), which border 0 leaves out; without what is unsent."""
    optimizer, layout = terms.spec.optimizer, terms.layout
    state = segments.unpack(start, optimizer, layout, round)
    weights = public if state.params is None else state.params
    return segments.pieces(BorderState(round, state.step, weights, state.vectors), optimizer, layout)


class DisputeFileStore:
    """All that one node keeps, of however many jobs."""

    def __init__(self, folder: Path, key: SigningKey) -> None:
        self._vault = SealedFileStore(folder, key.secret(NS_BRIEF))
        self.disk = DiskObjectStore(folder / "objects", "provider.briefs")
        self._held: dict[tuple[Hash, PeerId], set[Place]] = defaultdict(set)
        for name in self._vault.names():
            job, _, place = name.partition("-")
            if place != "case":
                node, round, segment = place.split("-")
                named = Hash(bytes.fromhex(job)), PeerId(bytes.fromhex(node))
                self._held[named].add((int(round), int(segment)))

    @property
    def accusable(self) -> tuple[tuple[Hash, PeerId], ...]:
        """Job and node of all that is kept."""
        return tuple(self._held)

    def keep(self, case: DisputeJob, dispute_file: DisputeFile, store: DiskObjectStore) -> None:
        """Keeps a segment, and with the first one the job's objects out of `store`; durable on return."""
        job = dispute_file.job
        if self.case(job) is None:
            for manifest in (case.start.dataset, case.start.module, case.start.graph):
                self._copy(manifest, store)
            self._vault.save(f"{job.hex()}-case", case)
        self._vault.save(_name(dispute_file), dispute_file)
        self._held[job, dispute_file.node].add((dispute_file.round, dispute_file.segment))

    def _copy(self, manifest: ObjectManifest, store: DiskObjectStore) -> None:
        # The manifest is the job's: all empty objects are one object, and whoever forgets a state may have deleted it.
        for index in self.disk.begin(manifest):
            self.disk.write_chunk(manifest.id, index, store.chunk(manifest.id, index))
        self.disk.finish(manifest.id)

    def case(self, job: Hash) -> DisputeJob | None:
        """A job of which something is kept; None too where it cannot be used."""
        return self._load(f"{job.hex()}-case", DisputeJob)

    def find(self, job: Hash, node: PeerId, round: int, segment: int) -> DisputeFile | None:
        """What is kept of a segment; None too where it cannot be used."""
        if (round, segment) not in self._held.get((job, node), ()):
            return None
        return self._load(_name(DisputeFile(job, node, round, segment, 0, 0, job, b"", b"")), DisputeFile)

    def _load(self, name: str, kind: type[T]) -> T | None:
        try:
            return self._vault.load(name, kind)
        except UNUSABLE:
            return None

    def drop(self, job: Hash, node: PeerId | None = None, before: int = limits.ROUNDS) -> None:
        """Deletes what is kept of rounds below `before`; with a job's last segment goes all that it has here."""
        for named in [each for each in self._held if each[0] == job and node in (None, each[1])]:
            for round, segment in [place for place in self._held[named] if place[0] < before]:
                self._vault.drop(_name(DisputeFile(*named, round, segment, 0, 0, job, b"", b"")))
                self._held[named].discard((round, segment))
            if not self._held[named]:
                del self._held[named]
        case = self.case(job) if all(each != job for each, _ in self._held) else None
        if case is not None:
            self._vault.drop(f"{job.hex()}-case")
            for manifest in (case.start.dataset, case.start.module, case.start.graph):
                self.disk.delete(manifest.id)


def _name(dispute_file: DisputeFile) -> str:
    return f"{dispute_file.job.hex()}-{dispute_file.node.hex()}-{dispute_file.round:06d}-{dispute_file.segment:03d}"

"""Stores what the requester keeps of a run: its log, every accepted payload, and some public states."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, ProtocolError, VerificationError
from farflung.core.file_header import FileFormat, body_of, headed, other_version
from farflung.core.ids import Hash, PeerId
from farflung.core.io.durable_files import AppendLog, read_records, remove, write_atomic
from farflung.core.io.spool_file import mapped_file
from farflung.job.spec import JobTerms
from farflung.peers.protocol import messages as protocol_messages
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import ObjectManifest
from farflung.train import public_state, worker_messages
from farflung.train.blobs import parts_of
from farflung.train.public_state import PublicState
from farflung.train.run_log import (
    CommitmentsRecord,
    Contribution,
    Record,
    RoundEndRecord,
    RunLogChain,
    RunStartRecord,
    accepted_by_round,
    payload_hash,
    promised_by_round,
)
from farflung.train.sync_arithmetic import Sync
from farflung.train.vector_store import IN_MEMORY, VectorStore

SNAPSHOT_EVERY: Final = 4  # rounds; a resume replays at most this many
SNAPSHOTS_KEPT: Final = 2  # besides that of round 0: one to resume from, one in case it is damaged
_FORMAT: Final = FileFormat("run-log")
REMEMBERED: Final = 3  # public states in memory: the rounds that may be under audit


class RunLog:
    """The run's log on disk, checked as it is read."""

    def __init__(self, path: Path, key: SigningKey) -> None:
        """Raises VersionError FF-CORE-095 (another version wrote it), and what AppendLog and RunLogChain raise."""
        self._key, self._chain = key, RunLogChain()
        self._file = AppendLog(path, "run.log", headed(_FORMAT, b""))
        try:
            self.records: list[Record] = [self._entry(data) for data in _entries(self._file.records)]
        except FarflungError:
            self._file.close()
            raise
        self.accepted = accepted_by_round(self.records)  # round → its accept set; grows with the log
        self.promised = promised_by_round(self.records)  # round → what was committed to; likewise

    def _entry(self, data: bytes) -> Record:
        try:
            return self._chain.check(data, self._key.public)
        except ProtocolError as error:  # by its checksum it is what was written
            raise other_version(_FORMAT, _FORMAT.version) from error

    def write(self, record: Record) -> None:
        """Appends a record; durable on return."""
        self._file.append(self._chain.extend(self._key, record))
        self.records.append(record)
        self.accepted.update(accepted_by_round([record]))
        self.promised.update(promised_by_round([record]))

    def committed(self, round: int) -> CommitmentsRecord:
        """The commitments of a round that has them: it lies near the end of the log."""
        return next(r for r in reversed(self.records) if isinstance(r, CommitmentsRecord) and r.round == round)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_entries(path: Path) -> tuple[tuple[bytes, ...], int]:
    """The encoded entries of a log that nobody writes, and how many bytes follow its header.

    Raises VersionError FF-CORE-095, VerificationError FF-CORE-052, ProtocolError FF-CORE-096, OSError.
    """
    found = list(read_records(path))
    entries = _entries([record for record, _ in found])
    return tuple(entries), path.stat().st_size - (found[0][1] if found else 0)


def _entries(records: Sequence[bytes]) -> Sequence[bytes]:
    """What follows the header."""
    if records:
        body_of(_FORMAT, records[0])
    return records[1:]


class PublishedState(NamedTuple):
    """A public state as others can fetch it."""

    root: Hash
    manifest: ObjectManifest


class Archive:
    """The requester's own copy of every accepted payload, and of some public states."""

    def __init__(
        self, disk: DiskObjectStore, snapshots: Path, job_key: bytes, me: PeerId, store: VectorStore = IN_MEMORY
    ) -> None:
        """`store`: where the public states lie that are made here."""
        self.store = store
        self.disk, self._snapshots, self._job_key, self._me = disk, snapshots, job_key, me
        self._states: dict[int, PublicState] = {}
        self._shown: dict[int, PublishedState] = {}
        # One state is put by two threads at once where its round is audited while a peer begins from it.
        self._putting = threading.Lock()

    def payload(self, contribution: Contribution) -> memoryview:
        """An accepted payload, checked against the log."""
        manifest = self.disk.manifest(contribution.object)
        payload = self.disk.content(self._job_key, manifest)
        if payload_hash(payload) != contribution.payload:
            raise VerificationError("FF-APP-050", "an archived payload is not the one that was accepted")
        return payload

    def share(self, contribution: Contribution) -> protocol_messages.StoredContribution:
        """An accepted contribution as others can fetch it: from its maker or from here."""
        return protocol_messages.StoredContribution(contribution, self.disk.manifest(contribution.object), self._me)

    def parts(self, accepted: tuple[Contribution, ...]) -> list[worker_messages.AcceptedPayload]:
        """The inputs of a round's merge."""
        return [worker_messages.AcceptedPayload(c.peer, c.weight, self.payload(c)) for c in accepted]

    def save_state(self, state: PublicState, terms: JobTerms) -> None:
        """Keeps a public state; durable on return."""
        write_atomic(self._snapshots / f"{state.round:06d}.bin", _parts(state, terms), "run.snapshot")
        for old in sorted(self._snapshots.glob("*.bin"))[1:-SNAPSHOTS_KEPT]:
            remove(old, "run.snapshot")

    def put(self, *data: bytes | memoryview) -> ObjectManifest:
        """Seals data, in parts, into the store."""
        with self._putting:
            return self.disk.seal(self._job_key, *data)

    def remember(self, state: PublicState) -> None:
        """Holds a public state in memory while its round may be under audit."""
        self._states[state.round] = state
        for round in [r for r in self._states if r <= state.round - REMEMBERED]:
            del self._states[round]

    def state(self, round: int, terms: JobTerms, records: Sequence[Record]) -> PublicState:
        """Public state before a round: remembered, or the newest stored one before it with the accept sets merged."""
        if (held := self._states.get(round)) is not None:  # asked for once: another thread may forget it
            return held
        sync, layout = Sync.of(terms.spec, self.store), terms.layout
        roots, accepted = roots_by_round(records), accepted_by_round(records)
        public = self.latest_state(terms, {r: root for r, root in roots.items() if r <= round})
        while public.round < round:
            public = sync.apply(public, layout, self.parts(accepted[public.round]))
        return public_state.check(public, layout, round, roots[round])

    def show(self, round: int, terms: JobTerms, records: Sequence[Record]) -> PublishedState:
        """Public state before a round, sealed in the store for a verifier to fetch."""
        if round not in self._shown:
            public = self.state(round, terms, records)
            held = self.put(*_parts(public, terms))
            self._shown[round] = PublishedState(public.root(terms.layout), held)
        return self._shown[round]

    def hide(self, round: int) -> None:
        """Audits and scores of a round are over. A stored state of the same content stays where others may need it."""
        self._shown.pop(round, None)

    def latest_state(self, terms: JobTerms, roots: Mapping[int, Hash]) -> PublicState:
        """The newest stored state whose root is the logged one; damaged or stale files are passed over."""
        for path in sorted(self._snapshots.glob("*.bin"), reverse=True):
            try:
                state = public_state.unpack(mapped_file(path), terms.layout)
            except (FarflungError, OSError):
                continue
            if roots.get(state.round) == state.root(terms.layout):
                return state
        raise VerificationError(
            "FF-APP-051",
            "no stored public state agrees with the run log",
            cause="all snapshots are stale or damaged",
            hint="restore the run's snapshots folder from a copy",
        )


def _parts(state: PublicState, terms: JobTerms) -> Iterator[bytes | memoryview]:
    return iter(parts_of(public_state.pieces(state, terms.layout)))


def roots_by_round(records: Sequence[Record]) -> dict[int, Hash]:
    """Round → root of the public state that the round starts from."""
    roots: dict[int, Hash] = {}
    for record in records:
        if isinstance(record, RunStartRecord):
            roots[0] = record.initial_root
        elif isinstance(record, RoundEndRecord):
            roots[record.round + 1] = record.root
    return roots

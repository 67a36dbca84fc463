"""Holds what every part of a requester knows of its one job: the key, the terms, and where the run is kept and told."""

from __future__ import annotations

from typing import NamedTuple

from farflung.core.crypto import NS_JOB_KEY, SigningKey
from farflung.core.ids import Hash
from farflung.job.spec import JobTerms
from farflung.peers.rundir.archive import Archive, RunLog
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.journal import EventEmitter
from farflung.store.io.disk_store import DiskObjectStore
from farflung.train.public_state import PublicState
from farflung.train.sync_arithmetic import Sync


class JobContext(NamedTuple):
    """One job of one requester. `key`: its account's; `chain`: the ledger that pays."""

    key: SigningKey
    chain: Hash
    terms: JobTerms
    folder: RunFolder
    log: RunLog
    archive: Archive
    journal: EventEmitter

    @classmethod
    def open(
        cls, key: SigningKey, chain: Hash, terms: JobTerms, folder: RunFolder, journal: EventEmitter
    ) -> JobContext:
        """Opens the log and the store of a run's folder; `log.close` ends it."""
        disk = DiskObjectStore(folder.store, "requester.store")
        archive = Archive(disk, folder.snapshots, key.secret(NS_JOB_KEY, terms.id), key.public)
        return cls(key, chain, terms, folder, RunLog(folder.rounds_file, key), archive, journal)

    @property
    def job_key(self) -> bytes:
        """What all of the job's objects are sealed with."""
        return self.key.secret(NS_JOB_KEY, self.terms.id)

    @property
    def payload_bytes(self) -> int:
        """The most that one payload may have."""
        return Sync.of(self.terms.spec).bound(self.terms.layout)

    def state(self, round: int) -> PublicState:
        """Public state before a round."""
        return self.archive.state(round, self.terms, self.log.records)

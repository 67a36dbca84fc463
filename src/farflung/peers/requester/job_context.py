"""Holds what every part of a requester knows of its one job: the key, the terms, and where the run is kept and told."""

from __future__ import annotations

from typing import Final, NamedTuple

from farflung.core.crypto import NS_JOB_KEY, SigningKey
from farflung.core.ids import Hash
from farflung.job.spec import JobTerms
from farflung.peers.rundir.archive import Archive, RunLog
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.journal import EventEmitter
from farflung.plan.state_vectors import FLOAT, outer_vectors
from farflung.plan.worker_memory import PAGE
from farflung.store.io.disk_store import DiskObjectStore
from farflung.train.io.mapped_vectors import in_folder
from farflung.train.public_state import PublicState
from farflung.train.sync_arithmetic import Sync

STATES: Final = 12  # public states at a time: those that are remembered, one before a merge and one after it, and more


def _vectors(terms: JobTerms) -> int:
    """As long as the weights, that lie in the run's file: of public states, and of all parts of a merge."""
    return STATES * (1 + outer_vectors(terms.spec.sync)) + terms.spec.network.providers + 1


def _bytes(terms: JobTerms) -> int:
    return FLOAT * terms.layout.size + PAGE


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
        job_key, store = key.secret(NS_JOB_KEY, terms.id), in_folder(folder.root, _vectors(terms) * _bytes(terms))
        archive = Archive(disk, folder.snapshots, job_key, key.public, store)
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

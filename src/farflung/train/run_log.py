"""Defines the run log, which records what decided the result, in the order in which it was decided.

Each entry holds one record, the hash of the entry before it, and the coordinator's signature. The accept set,
weights and H of a round are here, on disk, before anything is merged (docs/concepts/roundlog, law 2); replaying the
records gives the coordinator's state back, and with the payloads gives every bit of public state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from farflung.core import limits, merkle
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_LOG, NS_PAYLOAD, SigningKey, digest, is_signed
from farflung.core.errors import VerificationError
from farflung.core.ids import ZERO_HASH, Hash, PeerId, Signature
from farflung.ledger.transactions import DAMNING, Canary, SignedVerdict
from farflung.train.contribution_trace import LoggedStatistics
from farflung.train.scores import SignedRoundScores


class RunStartRecord(Wire, frozen=True, tag="opened"):
    """The first record: which job, under which terms, from which public state."""

    job: Hash
    coordinator: PeerId
    initial_root: Hash
    rounds: int


class RoundMember(Wire, frozen=True):
    """A peer that a round counts on, and the most that its contribution may weigh (tokens)."""

    peer: PeerId
    weight: int


class RoundStartRecord(Wire, frozen=True, tag="round"):
    """A round starts: who is in, and with how many local steps and kept coefficients a chunk."""

    round: int
    members: tuple[RoundMember, ...]
    steps: int
    density: int


class Commitment(Wire, frozen=True):
    """A peer's promise of one payload, before anybody has seen any (V1: nobody can copy one)."""

    peer: PeerId
    digest: Hash
    signature: Signature


class Contribution(Wire, frozen=True):
    """One revealed payload: content hash, the stored object that holds it, and what it weighs in the merge.

    `trace` is the Merkle root over how it was made (train.contribution_trace), and `stated` sums up the statistics
    under it, which the coordinator saw; `sandbox` names the tier in which it was made, and `attests` what its node
    says that it runs (core.attestations: its word, and not a proof of work).
    """

    peer: PeerId
    weight: int
    payload: Hash
    object: Hash
    nonce: Hash
    trace: Hash
    sandbox: str
    stated: LoggedStatistics = LoggedStatistics()
    attests: Hash = ZERO_HASH


class CommitmentTiming(Wire, frozen=True):
    """How long the coordinator waited for a commitment, ms, and the node's benchmark, FLOP/s; 0: not known."""

    took: int
    flops: int


class CommitmentsRecord(Wire, frozen=True, tag="committed"):
    """All commitments of a round: from here on payloads may be shown.

    `promised`: what each stands for, as its maker told the coordinator alone, in the same order; object, sandbox and
    attestation are not named yet. By it is audited who is drawn and then shows nothing. `timed`: in the same order,
    where the job judges claimed speed (verify.speed_check); measured, so that no two runs have the same.
    """

    round: int
    commitments: tuple[Commitment, ...]
    promised: tuple[Contribution, ...]
    timed: tuple[CommitmentTiming, ...] = ()


class BeaconRecord(Wire, frozen=True, tag="beaconed"):
    """What was unforeseen of the block in which the ledger anchored the round's commitments (ledger.block, V2).

    Only in jobs with audits, between a round's commitments and its accept set.
    """

    round: int
    block: Hash


class AcceptSetRecord(Wire, frozen=True, tag="accepted"):
    """The accept set of a round: the only input of its merge besides the state before it."""

    round: int
    contributions: tuple[Contribution, ...]


class RoundEndRecord(Wire, frozen=True, tag="closed"):
    """Public state after a round, and each peer's signature under its root."""

    round: int
    root: Hash
    signatures: tuple[tuple[PeerId, Signature], ...]


class AuditsRecord(Wire, frozen=True, tag="audited"):
    """What the audits of a round found; written before the round after the next one opens, in order of rounds.

    Whom a verdict finds false or withholding is out from here on; `node` and `verifier` ascend together.

    `canaries`: with what verifiers were tested in that round, and what they said (ledger.canaries); by node. They
    judge no node. Who said that one holds is asked in no audit of the round after the next one, or later
    (verify.audit_accounts).

    `scores`, in the order in which they were asked for, where the job has loss probes and somebody answered.
    """

    round: int
    verdicts: tuple[SignedVerdict, ...]
    canaries: tuple[Canary, ...] = ()
    scores: tuple[SignedRoundScores, ...] = ()


class RunEndRecord(Wire, frozen=True, tag="finished"):
    """The last record: how many rounds were closed, and why no more follow."""

    rounds: int
    root: Hash
    reason: str


Record = (
    RunStartRecord
    | RoundStartRecord
    | CommitmentsRecord
    | BeaconRecord
    | AcceptSetRecord
    | RoundEndRecord
    | AuditsRecord
    | RunEndRecord
)


class RunLogEntry(Wire, frozen=True):
    """One place in the log."""

    sequence: int
    previous: Hash
    record: Record
    signature: Signature


def payload_hash(payload: bytes | memoryview) -> Hash:
    """The content hash under which a payload is committed, logged and paid."""
    return digest(NS_PAYLOAD, payload)


def contributions_root(contributions: Sequence[Contribution]) -> Hash:
    """Merkle root over a round's contributions, as it stands on the ledger."""
    return merkle.root([encode(c) for c in contributions])


def accepted_by_round(records: Sequence[Record]) -> dict[int, tuple[Contribution, ...]]:
    """Round → its accept set."""
    return {r.round: r.contributions for r in records if isinstance(r, AcceptSetRecord)}


def promised_by_round(records: Sequence[Record]) -> dict[int, tuple[Contribution, ...]]:
    """Round → what its commitments stand for."""
    return {r.round: r.promised for r in records if isinstance(r, CommitmentsRecord)}


def excluded_by(audited: AuditsRecord) -> frozenset[PeerId]:
    """Nodes of which most verdicts say that they lied or withheld: they take part no more."""
    said = Counter(v.verdict.node for v in audited.verdicts)
    bad = Counter(v.verdict.node for v in audited.verdicts if v.verdict.finding in DAMNING)
    return frozenset(node for node, accusers in bad.items() if 2 * accusers > said[node])


def _signed_parts(sequence: int, previous: bytes, record: Record) -> tuple[bytes, ...]:
    return sequence.to_bytes(8, "little"), previous, encode(record)


class RunLogChain:
    """Makes the next entry of a log, or checks one that was read. Holds only the last hash and the length."""

    def __init__(self) -> None:
        self.sequence = 0
        self.previous: Hash = ZERO_HASH

    def _advance(self, entry: RunLogEntry) -> bytes:
        data = encode(entry)
        self.previous = digest(NS_LOG, data)
        self.sequence += 1
        return data

    def extend(self, key: SigningKey, record: Record) -> bytes:
        """The bytes of the next entry, signed."""
        signature = key.sign(NS_LOG, *_signed_parts(self.sequence, self.previous, record))
        return self._advance(RunLogEntry(self.sequence, self.previous, record, signature))

    def check(self, data: bytes, coordinator: PeerId) -> Record:
        """Reads the next entry; raises VerificationError FF-TRAIN-010 when chain or signature do not hold."""
        entry = decode(data, RunLogEntry, limits.LOG_RECORD_BYTES)
        parts = _signed_parts(self.sequence, self.previous, entry.record)
        in_place = entry.sequence == self.sequence and entry.previous == self.previous
        if not in_place or not is_signed(coordinator, entry.signature, NS_LOG, *parts):
            raise VerificationError(
                "FF-TRAIN-010",
                f"entry {self.sequence} of the run log is not genuine",
                cause="it does not follow the entry before it, or the coordinator did not sign it",
                hint="restore the run's folder from a copy; nothing was computed from this entry",
            )
        self._advance(entry)
        return entry.record


def read_log(entries: Iterable[bytes], coordinator: PeerId) -> list[Record]:
    """All records of a log, each checked."""
    chain = RunLogChain()
    return [chain.check(data, coordinator) for data in entries]

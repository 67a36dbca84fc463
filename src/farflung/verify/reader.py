"""The second reader: recomputes a finished run from its exported log alone.

It trusts the genesis hash and nothing else. From the terms it derives the job's id; from the log's entries who
signed what, in which order; from each accepted payload the merge and the root after it; from the blocks the
state of the ledger, transaction by transaction; from the receipts who was paid. Every comparison that it makes
is counted in the report, so that a reader that checks nothing would be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import safetensors.numpy

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.crypto import NS_OUTPUT, digest
from farflung.core.errors import FarflungError, VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.job.spec import Terms
from farflung.ledger.block import Genesis, read_block
from farflung.ledger.chain import Chain
from farflung.ledger.receipts import Receipt, check_receipt
from farflung.ledger.rows import EpochRow, JobRow, JobState, LeaseRow
from farflung.train import messages, snapshot
from farflung.train.roundlog import (
    Accepted,
    Closed,
    Commitment,
    Committed,
    Contribution,
    Entry,
    Finished,
    Opened,
    Record,
    RoundOpened,
    contributions_root,
    payload_hash,
    read_log,
)
from farflung.train.snapshot import PublicState
from farflung.train.sync import Sync
from farflung.verify.commitments import is_commitment, is_root_signed, opens


class Exported(msgspec.Struct, frozen=True):
    """The bytes of an exported run. `payload` finds one payload by its content hash."""

    genesis: bytes
    terms: bytes
    initial: bytes
    entries: tuple[bytes, ...]
    log_bytes: int
    blocks: tuple[bytes, ...]
    receipts: tuple[bytes, ...]
    payload: Callable[[Hash], bytes]
    model: bytes


class Report(msgspec.Struct):
    """How often each kind of statement was recomputed and found true."""

    rounds: int = 0
    merges: int = 0
    roots: int = 0
    commitments: int = 0
    signatures: int = 0
    blocks: int = 0
    transactions: int = 0
    receipts: int = 0
    paid: int = 0
    refunded: int = 0
    model_hash: str = ""
    ledger_root: str = ""


def verify_run(exported: Exported) -> Report:
    """Recomputes everything; raises VerificationError at the first statement that is not true.

    Bytes that cannot even be read are not true either: their error keeps its code.
    """
    try:
        return _recompute(exported)
    except VerificationError:
        raise
    except FarflungError as error:
        raise VerificationError(error.code, error.message, cause=error.cause, hint=error.hint) from error


def _recompute(exported: Exported) -> Report:
    report = Report()
    genesis = decode(exported.genesis, Genesis, limits.TX_BYTES)
    terms = decode(exported.terms, Terms, limits.LOG_RECORD_BYTES)
    terms.layout.check()
    records = _records(exported, terms)
    public = _Rounds(terms, exported, report).recompute(records)
    state = _ledger(genesis, exported.blocks, report)
    _compare(terms, records, state, report)
    _receipts(exported.receipts, genesis, terms, state, report)
    _model(exported.model, terms, public, state, report)
    return report


def _require(is_true: bool, code: str, what: str, cause: str = "") -> None:
    if not is_true:
        raise VerificationError(
            code, what, cause=cause, hint="the log was altered, or the run was not what it says it was"
        )


def _records(exported: Exported, terms: Terms) -> list[Record]:
    _require(bool(exported.entries), "FF-VERI-001", "the run log is empty")
    first = _first(exported.entries[0])
    _require(isinstance(first, Opened), "FF-VERI-001", "the run log does not begin with its opening")
    assert isinstance(first, Opened)
    records = read_log(exported.entries, first.coordinator)
    _require(
        first.job == terms.id, "FF-VERI-002", "the log is of another job", "the terms hash to another id"
    )
    framed = sum(8 + len(entry) for entry in exported.entries)
    _require(framed == exported.log_bytes, "FF-VERI-003", "the run log has bytes that are no entry")
    _require(isinstance(records[-1], Finished), "FF-VERI-004", "the run log has no end")
    return records


def _first(entry: bytes) -> object:
    return decode(entry, Entry, limits.LOG_RECORD_BYTES).record


class _Rounds:
    """Walks through the log, recomputing each round from the one before."""

    def __init__(self, terms: Terms, exported: Exported, report: Report) -> None:
        self._terms, self._exported, self._report = terms, exported, report
        self._sync = Sync.of(terms.spec.sync)
        self._public = snapshot.unpack(exported.initial, terms.layout)
        self._members: Mapping[PeerId, int] = {}
        self._commitments: Mapping[PeerId, Commitment] = {}
        self._accepted: tuple[Contribution, ...] | None = None

    def recompute(self, records: Sequence[Record]) -> PublicState:
        """The public state at the end."""
        for record in records:
            self._one(record)
        return self._public

    def _one(self, record: Record) -> None:
        match record:
            case Opened(_, _, initial_root):
                self._root(0, initial_root)
            case RoundOpened(round, members, steps):
                self._in_turn(round)
                _require(steps == self._terms.spec.sync.steps, "FF-VERI-010", f"round {round} has another H")
                self._members = {m.peer: m.weight for m in members}
            case Committed(round, commitments):
                self._in_turn(round)
                self._commit(round, commitments)
            case Accepted(round, contributions):
                self._in_turn(round)
                self._accept(round, contributions)
            case Closed(round, root, signatures):
                self._in_turn(round)
                self._close(round, root, signatures)
            case Finished(rounds, root):
                _require(
                    rounds == self._public.round, "FF-VERI-011", "the log ends at another round than it says"
                )
                self._root(rounds, root)

    def _in_turn(self, round: int) -> None:
        _require(round == self._public.round, "FF-VERI-011", f"round {round} is out of turn")

    def _root(self, round: int, root: Hash) -> None:
        held = self._public.root(self._terms.layout)
        _require(held == root, "FF-VERI-012", f"the root before round {round} is not what the payloads give")
        self._report.roots += 1

    def _commit(self, round: int, commitments: Sequence[Commitment]) -> None:
        for commitment in commitments:
            is_in = commitment.peer in self._members
            is_good = is_in and is_commitment(commitment, self._terms.id, round)
            _require(is_good, "FF-VERI-013", f"a commitment of round {round} is not signed by a member")
            self._report.signatures += 1
        self._commitments = {c.peer: c for c in commitments}

    def _accept(self, round: int, contributions: tuple[Contribution, ...]) -> None:
        peers = [c.peer for c in contributions]
        _require(len(set(peers)) == len(peers), "FF-VERI-014", f"round {round} counts a peer twice")
        for c in contributions:
            commitment = self._commitments.get(c.peer)
            is_opened = commitment is not None and opens(c, commitment, self._terms.id, round)
            _require(is_opened, "FF-VERI-015", f"a payload of round {round} is not the committed one")
            _require(
                1 <= c.weight <= self._members[c.peer],
                "FF-VERI-016",
                f"a weight of round {round} is too large",
            )
            self._report.commitments += 1
        self._accepted = contributions

    def _close(self, round: int, root: Hash, signatures: Sequence[tuple[PeerId, bytes]]) -> None:
        _require(self._accepted is not None, "FF-VERI-017", f"round {round} closes without an accept set")
        parts = [self._part(c) for c in self._accepted or ()]
        self._public = self._sync.apply(self._public, self._terms.layout, parts)
        self._report.merges += 1
        self._root(round + 1, root)
        for peer, signature in signatures:
            is_good = peer in self._members and is_root_signed(peer, signature, self._terms.id, round, root)  # type: ignore[arg-type]
            _require(is_good, "FF-VERI-018", f"a root of round {round} is not signed by a member")
            self._report.signatures += 1
        self._accepted, self._commitments = None, {}
        self._report.rounds += 1

    def _part(self, c: Contribution) -> messages.Part:
        payload = self._exported.payload(c.payload)
        _require(
            payload_hash(payload) == c.payload, "FF-VERI-019", "a payload is not the one that was accepted"
        )
        return messages.Part(c.peer, c.weight, payload)


def _ledger(genesis: Genesis, blocks: Sequence[bytes], report: Report) -> Chain:
    chain = Chain(genesis)
    for data in blocks:
        block = read_block(data)
        chain.adopt(block)
        report.blocks += 1
        report.transactions += len(block.txs)
    report.ledger_root = chain.head.state.hex()
    return chain


def _compare(terms: Terms, records: Sequence[Record], chain: Chain, report: Report) -> None:
    """The ledger says of each round, and of each peer's pay, what the log says."""
    job = chain.state.find(JobRow, terms.id)
    _require(job is not None, "FF-VERI-020", "the ledger does not know the job")
    assert job is not None
    units: dict[PeerId, int] = {}
    accepted = {r.round: r.contributions for r in records if isinstance(r, Accepted)}
    closed = [r for r in records if isinstance(r, Closed)]
    epochs = {row.round: row for row in chain.state.rows(EpochRow) if row.job == terms.id}
    _require(job.round == len(closed), "FF-VERI-021", "the ledger has another number of rounds than the log")
    for record in closed:
        contributions = accepted[record.round]
        epoch = epochs[record.round]
        is_same = (epoch.root, epoch.contributions) == (record.root, contributions_root(contributions))
        _require(is_same, "FF-VERI-022", f"round {record.round} on the ledger is not the round in the log")
        for c in contributions:
            units[c.peer] = units.get(c.peer, 0) + c.weight
    leases = [row for row in chain.state.rows(LeaseRow) if row.job == terms.id]
    for lease in leases:
        due = units.pop(lease.node, 0)
        is_right = lease.units == due and lease.paid == due * lease.unit_price
        _require(is_right, "FF-VERI-023", f"{lease.node[:4].hex()} was not paid for what it did")
    _require(not units, "FF-VERI-024", "somebody worked without a lease")
    _require(sum(x.paid for x in leases) == job.paid, "FF-VERI-025", "the job's payments do not add up")
    report.paid, report.refunded = job.paid, job.refunded


def _receipts(data: Sequence[bytes], genesis: Genesis, terms: Terms, chain: Chain, report: Report) -> None:
    """Each receipt proves its row, and the row is what re-executing the blocks gives."""
    proved: set[bytes] = set()
    for item in data:
        receipt = decode(item, Receipt, limits.TX_BYTES)
        row = check_receipt(receipt, genesis)
        headers = {block.header.id for block in chain.blocks}
        _require(
            receipt.header.id in headers, "FF-VERI-030", "a receipt is of a block that is not in the log"
        )
        if isinstance(row, JobRow):
            _require(
                chain.state.find(JobRow, row.key) == row, "FF-VERI-031", "a receipt contradicts the blocks"
            )
            proved.add(row.key)
        elif isinstance(row, LeaseRow):
            _require(
                chain.state.find(LeaseRow, row.key) == row, "FF-VERI-031", "a receipt contradicts the blocks"
            )
            proved.add(row.key)
        report.receipts += 1
    leases = {row.key for row in chain.state.rows(LeaseRow) if row.job == terms.id}
    _require(leases | {terms.id} <= proved, "FF-VERI-032", "a party of the job has no receipt")


def _model(data: bytes, terms: Terms, public: PublicState, chain: Chain, report: Report) -> None:
    """The model file holds the final public state, and its digest is the job's output on the ledger."""
    try:
        tensors = safetensors.numpy.load(data)
    except Exception as error:  # the library raises its own untyped errors
        raise VerificationError(
            "FF-VERI-040", "the model file cannot be read", cause=str(error)[:200]
        ) from error
    is_same = tensors.keys() == {t.name for t in terms.layout.tensors}
    flat = terms.layout.flatten(tensors) if is_same else public.params[:0]
    is_same = is_same and flat.tobytes() == public.params.tobytes()
    _require(is_same, "FF-VERI-041", "the model file is not the public state at the end of the log")
    job = chain.state.find(JobRow, terms.id)
    output = digest(NS_OUTPUT, data)
    is_settled = job is not None and job.state is JobState.SETTLED
    is_output = job is not None and job.output == output
    _require(not is_settled or is_output, "FF-VERI-042", "the ledger names another model file")
    report.model_hash = output.hex()

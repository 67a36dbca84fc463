"""Replays a finished run: recomputes it from its exported log alone, independently of its coordinator.

It trusts the genesis hash and nothing else. From the terms it derives the job's id; from the log's entries who
signed what, in which order; from each accepted payload the merge and the root after it; from the commitments whom
an audit had to look at, and from the verdicts whom it found false; from the blocks the state of the ledger,
transaction by transaction; from the receipts who was paid. Every comparison that it makes
is counted in the report, so that a reader that checks nothing would be seen.

What it cannot see: the data set (its hash is in the terms), and whether a peer trained on it. That is what audits
are for; of those it sees that they were held as drawn and what the verifiers signed, not whether they looked. Where
the evidence of an accusation lies beside the log, it sees that the accusation hangs together, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import FarflungError, VerificationError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.mapped_pages import walked
from farflung.core.money import parse_credits
from farflung.core.tensor_layout import TensorLayout
from farflung.job import proof_class, terms_file
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.spec import AncestorRun, JobTerms
from farflung.job.spec_checks import check
from farflung.ledger import genesis_file
from farflung.train import model_file
from farflung.train.blobs import Blob
from farflung.train.public_state import PublicState
from farflung.train.run_log import BeaconRecord, Record, RunEndRecord, RunLogEntry, RunStartRecord, read_log
from farflung.verify import ledger_replay
from farflung.verify.audit_replay import AuditReplay
from farflung.verify.evidence import check_evidence
from farflung.verify.export_reader import ExportedRun
from farflung.verify.lineage_check import check_lineage, check_parent
from farflung.verify.log_replay import LogReplay
from farflung.verify.reexecution import condemned_in
from farflung.verify.replay_report import ReplayReport, require

__all__ = ["ExportedRun", "ReplayReport", "ReplayResult", "check_parents", "prove_base", "prove_run", "verify_run"]


class ReplayResult(NamedTuple):
    """A run in which every statement was found true. `public`: its public state at the end of the log; `is_named`:
    whether the ledger names its model file; `seats`: who trained, at each one's index in the job; `condemned`: round
    and node of every contribution that its audits found false or withheld.
    """

    report: ReplayReport
    terms: JobTerms
    records: Sequence[Record]
    public: PublicState
    is_named: bool
    seats: tuple[PeerId, ...]
    condemned: frozenset[tuple[int, PeerId]]

    @property
    def itself(self) -> AncestorRun:
        """The run as those name it that stand on it."""
        return AncestorRun(Hash(bytes.fromhex(self.report.genesis)), self.terms.id, self.public.root(self.terms.layout))


def verify_run(exported: ExportedRun, chain: Hash | None = None, parents: Sequence[ExportedRun] = ()) -> ReplayReport:
    """What `prove_run` and `check_parents` report. Raises VerificationError."""
    return check_parents(prove_run(exported, chain), parents).report


def check_parents(result: ReplayResult, parents: Sequence[ExportedRun]) -> ReplayResult:
    """Proves the runs that a proven run stands on, nearest first, as far as they are given, and that the one before
    each begins where it ended (verify.lineage_check). Raises VerificationError.
    """
    child, result.report.parents = result, len(parents)
    for parent in parents:
        above = prove_base(parent)
        check_parent(child.terms, above.terms, above.itself, above.public)
        child = above
    return result


def prove_base(exported: ExportedRun, chain: Hash | None = None) -> ReplayResult:
    """`prove_run` of a run that others may stand on. Raises VerificationError FF-VERI-129: it came to no model."""
    result = prove_run(exported, chain)
    require(
        result.is_named,
        "FF-VERI-129",
        "the ledger names no model of the run that is to be stood on",
        f"its job ended after {result.public.round} rounds without one",
    )
    return result


def prove_run(exported: ExportedRun, chain: Hash | None = None) -> ReplayResult:
    """Recomputes everything; raises VerificationError at the first statement that is not true.

    `chain` is the hash of the genesis that the run claims; without it the reader of the report must compare
    `ReplayReport.genesis`. Bytes that cannot even be read are not true either: their error keeps its code.
    """
    try:
        return _recompute(exported, chain)
    except VerificationError:
        raise
    except FarflungError as error:
        raise VerificationError(error.code, error.message, cause=error.cause, hint=error.hint) from error


def _recompute(exported: ExportedRun, chain: Hash | None) -> ReplayResult:
    genesis = genesis_file.read(exported.genesis)
    report = ReplayReport(genesis=genesis.chain.hex())
    require(chain in (None, genesis.chain), "FF-VERI-005", "the run is on another ledger")
    terms = _terms(exported.terms)
    report.work = proof_class.label(terms)
    report.lineage = tuple(ancestor.job.hex() for ancestor in terms.lineage)
    records = _records(exported, terms)
    held = ledger_replay.replay_ledger(genesis, exported.blocks, terms, report)
    audits = AuditReplay(genesis.chain, terms, held.verifiers, report)
    public = LogReplay(terms, exported, report, audits).to_end(records)
    ledger_replay.compare(held, terms, records, report)
    ledger_replay.check_receipts(held, exported.receipts, genesis, report)
    ledger_replay.check_receipt_files(held, exported.receipt_files, genesis, report)
    blocks = {r.round: r.block for r in records if isinstance(r, BeaconRecord)}
    check_evidence(exported.evidence, held.accused, blocks, terms, report)
    output = _model(exported.model, terms, public)
    ledger_replay.check_output(held, output)
    report.model_hash = output.hex()
    is_named = held.job.output != ZERO_HASH
    condemned = condemned_in(records, len(held.verifiers), is_proven=terms.is_proven)
    return ReplayResult(report, terms, records, public, is_named, held.seats, condemned)


def _terms(data: bytes) -> JobTerms:
    terms = terms_file.read(data)
    check(terms.spec)
    terms.layout.check()
    check_lineage(terms)
    model = terms.spec.model
    is_models = model.kind != "gpt" or terms.layout == TensorLayout.of(gpt_shapes(model))
    require(is_models, "FF-VERI-006", "the terms name tensors that are not the model's")
    is_named = (terms.image != ZERO_HASH) == (terms.spec.network.image == "mine")
    require(is_named, "FF-VERI-146", "the terms name an image that the job does not ask for, or none")
    fault = proof_class.fault(terms, parse_credits(terms.spec.unit_price))
    require(not fault, "FF-VERI-112", "the terms are not of the class that they claim", fault)
    return terms


def _records(exported: ExportedRun, terms: JobTerms) -> list[Record]:
    require(bool(exported.entries), "FF-VERI-001", "the run log is empty")
    first = decode(exported.entries[0], RunLogEntry, limits.LOG_RECORD_BYTES).record
    require(isinstance(first, RunStartRecord), "FF-VERI-001", "the run log does not begin with its opening")
    assert isinstance(first, RunStartRecord)
    records = read_log(exported.entries, first.coordinator)
    is_same = first.job == terms.id
    require(is_same, "FF-VERI-002", "the log is of another job", "the terms hash to another id")
    framed = sum(8 + len(entry) for entry in exported.entries)
    require(framed == exported.log_bytes, "FF-VERI-003", "the run log has bytes that are no entry")
    require(isinstance(records[-1], RunEndRecord), "FF-VERI-004", "the run log has no end")
    return records


def _model(data: Blob, terms: JobTerms, public: PublicState) -> Hash:
    """The model file holds the final public state, float32 and bit for bit, and says what it is; returns its digest."""
    try:
        tensors, said = model_file.tensors_of(data), model_file.read_text(data)
    except FarflungError as error:
        raise VerificationError("FF-VERI-040", "the model file cannot be read", cause=error.cause[:200]) from error
    wanted = {tensor.name: public.params[place].reshape(tensor.shape) for tensor, place in terms.layout.slices()}
    is_public = tensors.keys() == wanted.keys() and all(_are_equal(tensors[name], wanted[name]) for name in wanted)
    require(is_public, "FF-VERI-041", "the model file is not the public state at the end of the log")
    is_named = said == model_file.text(model_file.of(terms, public.round))
    require(is_named, "FF-VERI-044", "the model file describes another model than the terms")
    return model_file.model_hash(data)


def _are_equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two tensors are the same, bit for bit; piece by piece, for one of them may be mapped."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    pairs = zip(walked(one.data), walked(other.data), strict=True)
    return all(np.array_equal(np.frombuffer(a, np.uint8), np.frombuffer(b, np.uint8)) for a, b in pairs)

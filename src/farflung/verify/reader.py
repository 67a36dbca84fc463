"""The second reader: recomputes a finished run from its exported log alone.

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
from typing import NamedTuple

import numpy as np
import safetensors.numpy

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.crypto import NS_OUTPUT, digest
from farflung.core.errors import FarflungError, VerificationError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.layout import Layout
from farflung.core.money import parse_credits
from farflung.job import proof
from farflung.job.check import check
from farflung.job.model import gpt_shapes
from farflung.job.spec import Ancestor, Terms
from farflung.ledger.block import Genesis
from farflung.train import card
from farflung.train.roundlog import Beaconed, Entry, Finished, Opened, Record, read_log
from farflung.train.snapshot import PublicState
from farflung.verify import books
from farflung.verify.audits import Audits
from farflung.verify.evidence import check_evidence
from farflung.verify.lineage import check_lineage, check_parent
from farflung.verify.reexecution import condemned_in
from farflung.verify.report import Report, require
from farflung.verify.source import Exported
from farflung.verify.walk import Walk

__all__ = ["Exported", "Proven", "Report", "check_parents", "prove_base", "prove_run", "verify_run"]


class Proven(NamedTuple):
    """A run in which every statement was found true. `public`: its public state at the end of the log; `is_named`:
    whether the ledger names its model file; `seats`: who trained, at each one's index in the job; `condemned`: round
    and node of every contribution that its audits found false or withheld.
    """

    report: Report
    terms: Terms
    records: Sequence[Record]
    public: PublicState
    is_named: bool
    seats: tuple[PeerId, ...]
    condemned: frozenset[tuple[int, PeerId]]

    @property
    def itself(self) -> Ancestor:
        """The run as those name it that stand on it."""
        return Ancestor(
            Hash(bytes.fromhex(self.report.genesis)), self.terms.id, self.public.root(self.terms.layout)
        )


def verify_run(exported: Exported, chain: Hash | None = None, parents: Sequence[Exported] = ()) -> Report:
    """What `prove_run` and `check_parents` report. Raises VerificationError."""
    return check_parents(prove_run(exported, chain), parents).report


def check_parents(proven: Proven, parents: Sequence[Exported]) -> Proven:
    """Proves the runs that a proven run stands on, nearest first, as far as they are given, and that the one before
    each begins where it ended (verify.lineage). Raises VerificationError.
    """
    child, proven.report.parents = proven, len(parents)
    for parent in parents:
        above = prove_base(parent)
        check_parent(child.terms, above.terms, above.itself, above.public)
        child = above
    return proven


def prove_base(exported: Exported, chain: Hash | None = None) -> Proven:
    """`prove_run` of a run that others may stand on. Raises VerificationError FF-VERI-129: it came to no model."""
    proven = prove_run(exported, chain)
    require(
        proven.is_named,
        "FF-VERI-129",
        "the ledger names no model of the run that is to be stood on",
        f"its job ended after {proven.public.round} rounds without one",
    )
    return proven


def prove_run(exported: Exported, chain: Hash | None = None) -> Proven:
    """Recomputes everything; raises VerificationError at the first statement that is not true.

    `chain` is the hash of the genesis that the run claims; without it the reader of the report must compare
    `Report.genesis`. Bytes that cannot even be read are not true either: their error keeps its code.
    """
    try:
        return _recompute(exported, chain)
    except VerificationError:
        raise
    except FarflungError as error:
        raise VerificationError(error.code, error.message, cause=error.cause, hint=error.hint) from error


def _recompute(exported: Exported, chain: Hash | None) -> Proven:
    genesis = decode(exported.genesis, Genesis, limits.TX_BYTES)
    report = Report(genesis=genesis.chain.hex())
    require(chain in (None, genesis.chain), "FF-VERI-005", "the run is on another ledger")
    terms = _terms(exported.terms)
    report.work = proof.label(terms)
    report.lineage = tuple(ancestor.job.hex() for ancestor in terms.lineage)
    records = _records(exported, terms)
    held = books.read_books(genesis, exported.blocks, terms, report)
    audits = Audits(genesis.chain, terms, held.verifiers, report)
    public = Walk(terms, exported, report, audits).to_end(records)
    books.compare(held, terms, records, report)
    books.check_receipts(held, exported.receipts, genesis, report)
    books.check_receipt_files(held, exported.receipt_files, genesis, report)
    blocks = {r.round: r.block for r in records if isinstance(r, Beaconed)}
    check_evidence(exported.evidence, held.accused, blocks, terms, report)
    output = _model(exported.model, terms, public)
    books.check_output(held, output)
    report.model_hash = output.hex()
    is_named = held.job.output != ZERO_HASH
    condemned = condemned_in(records, len(held.verifiers))
    return Proven(report, terms, records, public, is_named, held.seats, condemned)


def _terms(data: bytes) -> Terms:
    terms = decode(data, Terms, limits.LOG_RECORD_BYTES)
    check(terms.spec)
    terms.layout.check()
    check_lineage(terms)
    model = terms.spec.model
    is_models = model.kind != "gpt" or terms.layout == Layout.of(gpt_shapes(model))
    require(is_models, "FF-VERI-006", "the terms name tensors that are not the model's")
    is_named = (terms.image != ZERO_HASH) == (terms.spec.network.image == "mine")
    require(is_named, "FF-VERI-146", "the terms name an image that the job does not ask for, or none")
    fault = proof.fault(terms, parse_credits(terms.spec.unit_price))
    require(not fault, "FF-VERI-112", "the terms are not of the class that they claim", fault)
    return terms


def _records(exported: Exported, terms: Terms) -> list[Record]:
    require(bool(exported.entries), "FF-VERI-001", "the run log is empty")
    first = decode(exported.entries[0], Entry, limits.LOG_RECORD_BYTES).record
    require(isinstance(first, Opened), "FF-VERI-001", "the run log does not begin with its opening")
    assert isinstance(first, Opened)
    records = read_log(exported.entries, first.coordinator)
    is_same = first.job == terms.id
    require(is_same, "FF-VERI-002", "the log is of another job", "the terms hash to another id")
    framed = sum(8 + len(entry) for entry in exported.entries)
    require(framed == exported.log_bytes, "FF-VERI-003", "the run log has bytes that are no entry")
    require(isinstance(records[-1], Finished), "FF-VERI-004", "the run log has no end")
    return records


def _model(data: bytes, terms: Terms, public: PublicState) -> Hash:
    """The model file holds the final public state, float32 and bit for bit, and says what it is; returns its digest."""
    try:
        tensors = safetensors.numpy.load(data)
    except Exception as error:  # the library raises its own untyped errors
        raise VerificationError(
            "FF-VERI-040", "the model file cannot be read", cause=str(error)[:200]
        ) from error
    is_same = tensors.keys() == {t.name for t in terms.layout.tensors}
    is_same = is_same and all(tensor.dtype == np.float32 for tensor in tensors.values())
    flat = terms.layout.flatten(tensors) if is_same else public.params[:0]
    is_public = flat.tobytes() == public.params.tobytes()
    require(is_public, "FF-VERI-041", "the model file is not the public state at the end of the log")
    is_named = card.read_text(data) == card.text(card.of(terms, public.round))
    require(is_named, "FF-VERI-044", "the model file describes another model than the terms")
    return digest(NS_OUTPUT, data)

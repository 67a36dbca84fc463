"""Replays the ledger's side of a run: executes its blocks again, and compares its accounts with the run log.

Of each round and each peer's pay the ledger must say what the log says, and of the job what the terms say. The
sums are taken here once more, so that a law that pays wrongly is seen, and not only a validator that breaks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.money import parse_credits
from farflung.job.spec import JobTerms
from farflung.ledger.block import Genesis, read_block, unforeseen, worked_state
from farflung.ledger.chain import Chain
from farflung.ledger.disputes import DisputeRow
from farflung.ledger.receipt_checks import LedgerReceipt, check_receipt
from farflung.ledger.receipt_file import check_receipt_file, read_receipt_file
from farflung.ledger.table_rows import EpochRow, JobRow, JobState, LeaseRow, Row
from farflung.ledger.transactions import JobCreate, JobDraw, JobLeave, JobSlash, LeaseRole
from farflung.ledger.tx_results import AppliedResult
from farflung.train.run_log import (
    AuditsRecord,
    BeaconRecord,
    CommitmentsRecord,
    Record,
    RoundEndRecord,
    RoundStartRecord,
    RunStartRecord,
    accepted_by_round,
    contributions_root,
    promised_by_round,
)
from farflung.verify.audit_accounts import AuditAccounts
from farflung.verify.audit_sample import anchor
from farflung.verify.replay_report import ReplayReport, require

REQUESTER: Final = "requester"  # the name of its receipt
ENDED: Final = (JobState.SETTLED, JobState.CANCELLED, JobState.EXPIRED)


class LedgerReplay(msgspec.Struct, frozen=True):
    """The chain at its last block, the job's rows in it, and what the requester locked (pico-credits).

    `draws`: of each round its anchor, and what was unforeseen of the block that holds it.
    """

    chain: Chain
    job: JobRow
    leases: tuple[LeaseRow, ...]
    escrow: int
    draws: Mapping[int, tuple[Hash, Hash]]
    left: frozenset[PeerId] = frozenset()  # who ended its own lease while the requester was silent
    unopened: frozenset[PeerId] = frozenset()  # whom an accusation convicted that opens no graph

    @property
    def verifiers(self) -> frozenset[PeerId]:
        """Who was hired to audit."""
        return frozenset(lease.node for lease in self.leases if lease.role == LeaseRole.AUDIT)

    @property
    def seats(self) -> tuple[PeerId, ...]:
        """Who was hired to train, in the order that gives each its index in the job."""
        return tuple(lease.node for lease in self.leases if lease.role == LeaseRole.TRAIN)

    @property
    def perjured(self) -> frozenset[PeerId]:
        """Which verifiers lost their stakes."""
        return frozenset(x.node for x in self.leases if x.role == LeaseRole.AUDIT and x.evidence != ZERO_HASH)

    @property
    def accused(self) -> Mapping[PeerId, Hash]:
        """Who trained and whose lease ended in a slash, and the hash of the evidence."""
        trained = [lease for lease in self.leases if lease.role == LeaseRole.TRAIN]
        return {lease.node: lease.evidence for lease in trained if lease.evidence != ZERO_HASH}

    @property
    def burnt(self) -> int:
        """Pico-credits of pay that nobody gets: of those whom an accusation without a graph convicted at once."""
        lost = [lease for lease in self.leases if lease.node in self.unopened and lease.evidence != ZERO_HASH]
        at_once = [lease for lease in lost if self.chain.state.find(DisputeRow, lease.key) is None]
        return sum(lease.earned * lease.unit_price for lease in at_once)

    @property
    def slashed(self) -> frozenset[PeerId]:
        """Who trained and whose lease ended in a slash."""
        return frozenset(self.accused)


def replay_ledger(genesis: Genesis, blocks: Sequence[bytes], terms: JobTerms, report: ReplayReport) -> LedgerReplay:
    """Executes every block. Raises VerificationError FF-LEDG-06x, FF-VERI-020."""
    chain, escrow, draws = Chain(genesis, audits=True), 0, dict[int, tuple[Hash, Hash]]()
    left, unopened = set[PeerId](), set[PeerId]()
    for data in blocks:
        block = read_block(data)
        outcomes = chain.adopt(block)
        for signed, outcome in zip(block.txs, outcomes, strict=True):
            ops = signed.tx.ops if isinstance(outcome, AppliedResult) else ()
            escrow += sum(op.escrow for op in ops if isinstance(op, JobCreate) and op.job == terms.id)
            for op in ops:
                if isinstance(op, JobDraw) and op.job == terms.id:
                    draws[op.round] = (op.commitments, unforeseen(block))
                if isinstance(op, JobLeave) and op.job == terms.id:
                    left.add(signed.tx.sender)
                if isinstance(op, JobSlash) and op.job == terms.id and op.program.graph == ZERO_HASH:
                    unopened.add(op.node)
        report.blocks += 1
        report.transactions += len(block.txs)
    report.ledger_root = worked_state(chain.blocks).hex()
    job = chain.state.find(JobRow, terms.id)
    require(job is not None, "FF-VERI-020", "the ledger does not know the job")
    assert job is not None
    leases = tuple(row for row in chain.state.rows(LeaseRow) if row.job == terms.id)
    return LedgerReplay(chain, job, leases, escrow, draws, frozenset(left), frozenset(unopened))


def compare(replay: LedgerReplay, terms: JobTerms, records: Sequence[Record], report: ReplayReport) -> None:
    """Holds the books against terms and log. Raises VerificationError FF-VERI-021 to -029, -039, -133, -138, -170."""
    _compare_terms(replay, terms, records)
    _compare_rounds(replay, records)
    _compare_draws(replay, terms, records)
    _compare_pay(replay, terms, records, report)
    report.attested = _attested(replay, records)
    report.paid, report.refunded, report.burnt = replay.job.paid, replay.job.refunded, replay.job.burnt
    report.slashed, report.guessed = len(replay.slashed), len(replay.perjured)


def _compare_terms(replay: LedgerReplay, terms: JobTerms, records: Sequence[Record]) -> None:
    job, spec = replay.job, terms.spec
    coordinators = {r.coordinator for r in records if isinstance(r, RunStartRecord)}
    is_theirs = coordinators == {job.requester} == {terms.requester}
    require(is_theirs, "FF-VERI-027", "the log is not signed by the job's requester")
    require(job.state in ENDED, "FF-VERI-026", "the job still holds money", f"it is {job.state.name.lower()}")
    within = (
        job.rounds == spec.rounds
        and job.unit_price_max <= parse_credits(spec.unit_price)
        and replay.escrow <= parse_credits(spec.budget)
    )
    require(within, "FF-VERI-028", "rounds, price or escrow on the ledger are not those of the terms")


def _compare_rounds(replay: LedgerReplay, records: Sequence[Record]) -> None:
    accepted = accepted_by_round(records)
    closed = [r for r in records if isinstance(r, RoundEndRecord)]
    is_same = replay.job.round == len(closed)
    require(is_same, "FF-VERI-021", "the ledger has another number of rounds than the log")
    epochs = {row.round: row for row in replay.chain.state.rows(EpochRow) if row.job == replay.job.job}
    for record in closed:
        epoch = epochs[record.round]
        told = (record.root, contributions_root(accepted[record.round]))
        is_same = (epoch.root, epoch.contributions) == told
        require(is_same, "FF-VERI-022", f"round {record.round} on the ledger is not the round in the log")


def _compare_draws(replay: LedgerReplay, terms: JobTerms, records: Sequence[Record]) -> None:
    committed = {r.round: r.commitments for r in records if isinstance(r, CommitmentsRecord)}
    for record in (r for r in records if isinstance(r, BeaconRecord)):
        named = (anchor(terms.id, record.round, committed[record.round]), record.block)
        is_anchored = replay.draws.get(record.round) == named
        require(is_anchored, "FF-VERI-133", f"round {record.round} is drawn from a block that does not anchor it")


def _attested(replay: LedgerReplay, records: Sequence[Record]) -> int:
    """How many contributions name what their node's lease does. A node that was changed since then names another."""
    named = {lease.node: lease.attests for lease in replay.leases}
    made = (c for contributions in accepted_by_round(records).values() for c in contributions)
    return sum(c.attests == named.get(c.peer) for c in made)


def _compare_pay(replay: LedgerReplay, terms: JobTerms, records: Sequence[Record], report: ReplayReport) -> None:
    job, leases = replay.job, replay.leases
    members = {m.peer for r in records if isinstance(r, RoundStartRecord) for m in r.members}
    lent = {x.node for x in leases if x.role == LeaseRole.TRAIN}
    require(members <= lent, "FF-VERI-024", "somebody takes part without a lease")
    units, report.unpaid = _units(replay, terms, records)
    for lease in leases:
        due = units.get(lease.node, 0)
        if lease.node in replay.left:  # what the log has of it later is not paid
            due = min(due, lease.earned)
        pay = 0 if lease.node in replay.slashed | replay.perjured else due * lease.unit_price
        is_right = lease.earned == due and lease.paid == pay
        require(is_right, "FF-VERI-023", f"{lease.node[:4].hex()} was not paid for what it did")
    require(sum(x.paid for x in leases) == job.paid, "FF-VERI-025", "the job's payments do not add up")
    require(job.burnt == replay.burnt, "FF-VERI-170", "other pay is burnt than that of the convicted")
    is_whole = job.paid + job.refunded + job.burnt == replay.escrow
    require(is_whole, "FF-VERI-029", "what was paid, refunded and burnt is not what was in escrow")


def _units(replay: LedgerReplay, terms: JobTerms, records: Sequence[Record]) -> tuple[Mapping[PeerId, int], int]:
    """What everybody earned by the log, and how many contributions their scores cost the pay; that those are slashed
    whom the log finds guilty, and nobody that it does not.

    A job that ran out had nobody to bring an accusation before the ledger.
    """
    accepted, promised = accepted_by_round(records), promised_by_round(records)
    audited = {r.round: r for r in records if isinstance(r, AuditsRecord)}
    tally, units = AuditAccounts(terms, len(replay.verifiers)), dict[PeerId, int]()
    for round in sorted(accepted):
        found = audited.get(round, AuditsRecord(round, ()))
        for peer, earned in tally.add(accepted[round], found, promised[round]).items():
            units[peer] = units.get(peer, 0) + earned
    is_late = replay.job.state is JobState.EXPIRED
    is_just = replay.slashed <= tally.out and (is_late or tally.guilty.keys() <= replay.slashed)
    require(is_just, "FF-VERI-039", "the ledger punishes others than the audits found guilty")
    guessed = {verifier for verifier in tally.disqualified.found if tally.owed(verifier) is not None}
    is_just = replay.perjured <= guessed and (is_late or guessed <= replay.perjured)
    require(is_just, "FF-VERI-138", "the ledger punishes other verifiers than said that a false segment holds")
    return units, tally.unpaid


def check_receipts(replay: LedgerReplay, data: Sequence[bytes], genesis: Genesis, report: ReplayReport) -> None:
    """Each receipt proves its row, and the row is what executing the blocks again gives.

    Raises VerificationError FF-LEDG-07x, FF-VERI-030 to -032.
    """
    proved: set[bytes] = set()
    headers = _headers(replay)
    for item in data:
        receipt = decode(item, LedgerReceipt, limits.TX_BYTES)
        row = check_receipt(receipt, genesis, replay.chain.steps)
        _compare_row(replay, headers, receipt, row)
        if isinstance(row, JobRow | LeaseRow):
            proved.add(row.key)
        report.receipts += 1
    parties = {replay.job.key, *(lease.key for lease in replay.leases)}
    require(parties <= proved, "FF-VERI-032", "a party of the job has no receipt")


def check_receipt_files(
    replay: LedgerReplay, files: Mapping[str, bytes], genesis: Genesis, report: ReplayReport
) -> None:
    """What each party was given as its proof holds by itself, and says what executing the blocks again gives.

    A reader of the log alone has none. `files`: by the party's name. Raises VerificationError FF-LEDG-07x, -085,
    FF-VERI-030, -031, -160 (the requester's is another party's, or a party's is there under two names).
    """
    parties: set[PeerId] = set()
    headers = _headers(replay)
    for name, data in files.items():
        held = read_receipt_file(data)
        rows = check_receipt_file(held, genesis.chain)
        for receipt, row in zip(held.receipts, rows, strict=True):
            _compare_row(replay, headers, receipt, row)
        is_own = held.party not in parties and (held.party == replay.job.requester) == (name == REQUESTER)
        require(is_own, "FF-VERI-160", "a receipt is another party's than its name says", f"{name[:40]}.receipt")
        parties.add(held.party)
        report.receipt_files += 1


def _headers(replay: LedgerReplay) -> frozenset[Hash]:
    return frozenset(block.header.id for block in replay.chain.blocks)


def _compare_row(replay: LedgerReplay, headers: frozenset[Hash], receipt: LedgerReceipt, row: Row) -> None:
    is_known = receipt.header.id in headers
    require(is_known, "FF-VERI-030", "a receipt is of a block that is not in the log")
    is_same = replay.chain.state.tables[row.TABLE].row(row.key) == row
    require(is_same, "FF-VERI-031", "a receipt contradicts the blocks")


def check_output(replay: LedgerReplay, output: Hash) -> None:
    """The ledger names this output; none only if the job was ended before it had one.

    Raises VerificationError FF-VERI-042.
    """
    job = replay.job
    is_unnamed = job.output == ZERO_HASH and job.state is not JobState.SETTLED
    require(is_unnamed or job.output == output, "FF-VERI-042", "the ledger names another model file")

"""A small genuine run, made in process, and told with lies: whoever lies signs everything anew that depends on it.

Requester, validator and all peers hold their keys here, so that a lie can be carried through the whole export: the
log's chain, the payloads, roots, blocks, receipts and the model all agree with it. What is left is the one statement
that cannot be made true.

`Story(lies={"accepted": f})` passes what is told at the point `accepted` through f. A lie about a record may
return several records (or none); one that takes a second argument is told the round.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from core_asks import scheduled

from farflung.core.codec import encode
from farflung.core.crypto import NS_EVIDENCE, NS_OBJECT, NS_OUTPUT, NS_STATE, SigningKey, digest, local_key
from farflung.core.errors import FarflungError, VerificationError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.money import parse_credits
from farflung.core.tensor_layout import TensorLayout
from farflung.job import terms_file
from farflung.job.proof_class import probe_of
from farflung.job.spec import AncestorRun, AuditSpec, JobSpec, JobTerms, ModelSpec, NetworkSpec, SyncSpec
from farflung.ledger import transactions
from farflung.ledger.block import Genesis, unforeseen
from farflung.ledger.chain import Chain
from farflung.ledger.receipt_checks import LedgerReceipt, prove
from farflung.ledger.table_rows import AccountRow, JobRow, LeaseRow, lease_key
from farflung.ledger.transactions import DAMNING, LeaseRole, SignedVerdict, Verdict, VerdictFinding, sign_verdict
from farflung.train import model_file, public_state, worker_messages
from farflung.train.public_state import PublicState
from farflung.train.rounds import REASON_COMPLETE, REASON_STOPPED
from farflung.train.run_log import (
    AcceptSetRecord,
    AuditsRecord,
    BeaconRecord,
    CommitmentsRecord,
    Contribution,
    Record,
    RoundEndRecord,
    RoundMember,
    RoundStartRecord,
    RunEndRecord,
    RunLogChain,
    RunStartRecord,
    contributions_root,
    excluded_by,
    payload_hash,
)
from farflung.train.scores import ContributionScore, RoundScores, SignedRoundScores, sign_scores
from farflung.train.sync_arithmetic import Sync
from farflung.verify import audit_sample
from farflung.verify.audit_accounts import AuditAccounts
from farflung.verify.audit_verdict import EXCESS_CAP, WHOLE
from farflung.verify.commitment_check import commit, nonce_of, sign_root
from farflung.verify.run_replay import ExportedRun
from farflung.verify.score_rules import LossStreaks, harmful, panel_of

REQUESTER, VALIDATOR, STRANGER = (local_key(9, role) for role in ("requester", "validator", "stranger"))
PEERS = sorted((local_key(9, "peer", i) for i in range(3)), key=lambda key: key.public)
VERIFIERS = sorted((local_key(9, "verifier", i) for i in range(2)), key=lambda key: key.public)
KEYS = {key.public: key for key in (*PEERS, *VERIFIERS, REQUESTER, VALIDATOR, STRANGER)}
LAYOUT = TensorLayout.of({"alpha": (40, 32), "beta": (600,), "gamma": (8, 16)})
SPEC = JobSpec(
    name="story",
    rounds=3,
    batch=2,
    budget="1",
    unit_price="0.000000000001",  # so that what is paid is the number of tokens
    model=ModelSpec(kind="module", context=8, module="small.py:make"),
    sync=SyncSpec("sparse_loco", 3, "topk", topk=16, chunk=64, outer_lr=1.0, outer_momentum=0.5),
    network=NetworkSpec(providers=3, verifiers=2),
    audit=AuditSpec(rate=0.25, probation=1),
)
NO_AUDITS = AuditSpec(rate=0.0, probation=0)
ESCROW = parse_credits("0.5")
PRICE = parse_credits(SPEC.unit_price)
RICH = parse_credits("10")
START, HOUR = 1_000, 3_600_000
EXCESS = {
    VerdictFinding.HOLDS: 3,
    VerdictFinding.UNPAID: WHOLE + 500,
    VerdictFinding.FALSE: EXCESS_CAP,
    VerdictFinding.WITHHELD: 0,
}
LOSS = 3 << 20  # nats/token, in units of 2^-20
LOST_IN = 1  # the round in which the last peer commits and does not show; it is no member afterwards

Lies = Mapping[str, Callable[..., Any]]
replace = msgspec.structs.replace


def object_of(payload: bytes) -> Hash:
    """Stands for the stored object's id, which no reader of an export can check."""
    return digest(NS_OBJECT, payload)


class Story:
    """One run from genesis to model. The honest one is `Story()`."""

    def __init__(
        self,
        lies: Lies | None = None,
        *,
        spec: JobSpec = SPEC,
        layout: TensorLayout = LAYOUT,
        done: int = 3,
        parent: Story | None = None,
    ):
        """`parent`: the run whose final weights this one begins with."""
        self.lies, self.done = dict(lies or {}), done
        self.sync = Sync.of(spec)
        weights = np.random.default_rng(1).standard_normal(layout.size).astype(np.float32)
        if parent is not None:
            weights, spec = parent.public.params, replace(spec, model=replace(spec.model, start="parent"))
        initial = self.sync.initial(weights)
        about = (digest(NS_OBJECT, b"data"), ZERO_HASH, layout, REQUESTER.public, initial.root(layout))
        made = JobTerms(spec, *about, lineage=parent.line if parent is not None else ())
        self.terms: JobTerms = self.told("terms", made)
        self.layout = layout
        self.public: PublicState = self.told("initial", initial)
        self.initial = public_state.pack(self.public, layout)
        accounts = tuple((key.public, RICH) for key in (REQUESTER, *PEERS, *VERIFIERS))
        self.genesis: Genesis = self.told("genesis", Genesis("story", START, accounts, (VALIDATOR.public,)))
        self.payloads: dict[Hash, bytes] = {}
        self.records: list[Record] = []
        self.out: frozenset[PeerId] = frozenset()
        self.chain = Chain(self.genesis, VALIDATOR)
        self.hire()
        self.work()
        self.model: bytes = self.told("model", model_file.write(self.terms, self.public))
        self.book()

    @property
    def line(self) -> tuple[AncestorRun, ...]:
        """What the terms of a run say that stands on this one."""
        itself = AncestorRun(self.genesis.chain, self.terms.id, self.public.root(self.layout))
        return (itself, *self.terms.lineage)

    @property
    def judged(self) -> int:
        """Verdicts in the log: how many depends on the draw."""
        return sum(len(r.verdicts) for r in self.records if isinstance(r, AuditsRecord))

    def told(self, point: str, truth: Any, *about: Any) -> Any:
        """The truth, or what the lie at this point makes of it."""
        lie = self.lies.get(point)
        if lie is None:
            return truth
        return lie(truth, *about[: len(inspect.signature(lie).parameters) - 1])

    # The run log

    def say(self, point: str, record: Record, *about: Any) -> None:
        """Logs a record, or what is told instead of it."""
        told = self.told(point, record, *about)
        self.records += told if isinstance(told, list) else [told]

    def last(self, kind: type[Any]) -> Any:
        """The newest record of a kind as it was logged."""
        return next((r for r in reversed(self.records) if isinstance(r, kind)), None)

    def work(self) -> None:
        """All rounds, and the end."""
        terms = self.terms
        self.say("opened", RunStartRecord(terms.id, REQUESTER.public, self.public.root(self.layout), terms.spec.rounds))
        for round in range(self.done):
            self.round(round)
            if round:
                self.audit(round - 1)
        if self.done:
            self.audit(self.done - 1)
        reason = REASON_COMPLETE if self.done == terms.spec.rounds else REASON_STOPPED
        self.say("finished", RunEndRecord(self.done, self.public.root(self.layout), reason))

    def round(self, round: int) -> None:
        """One round, the last peer of which may be lost."""
        spec = self.terms.spec
        here = PEERS if round <= LOST_IN else PEERS[:-1]
        members = [key for key in here if key.public not in self.out]
        opened = RoundStartRecord(
            round, tuple(RoundMember(k.public, spec.round_tokens) for k in members), spec.sync.steps, spec.sync.topk
        )
        self.say("round", opened, round)
        shown = [self.contribution(key, round) for key in members]
        commitments = tuple(self.commitment(c, round) for c in shown)
        promised = tuple(replace(c, object=ZERO_HASH, sandbox="") for c in shown)
        self.say("committed", CommitmentsRecord(round, commitments, promised), round)
        if spec.is_audited:
            self.anchor(round)
        accepted = tuple(c for c in shown if round != LOST_IN or c.peer != PEERS[-1].public)
        self.say("accepted", AcceptSetRecord(round, accepted), round)
        self.merge(self.last(AcceptSetRecord).contributions, accepted)
        root = self.told("root", self.public.root(self.layout), round)
        signatures = tuple((c.peer, sign_root(KEYS[c.peer], self.terms.id, round, root)) for c in accepted)
        self.say("closed", RoundEndRecord(round, root, signatures), round)

    def anchor(self, round: int) -> None:
        """The block that the round is drawn from."""
        logged = self.last(CommitmentsRecord)
        anchored = audit_sample.anchor(self.terms.id, round, logged.commitments if logged is not None else ())
        self.send(REQUESTER, "draw", transactions.JobDraw(self.job, round, anchored), round)
        self.say("beaconed", BeaconRecord(round, unforeseen(self.chain.blocks[-1])), round)

    def contribution(self, key: SigningKey, round: int) -> Contribution:
        """A peer's payload of a random change, of which its maker says what it weighs."""
        payload = self.told("payload", self.encoded(key.public, round), key.public, round)
        self.payloads[payload_hash(payload)] = payload
        weight = self.told("weight", self.terms.spec.round_tokens, key.public, round)
        nonce = nonce_of(key, self.terms.id, round)
        trace = self.told("trace", digest(NS_STATE, key.public, bytes([round])), key.public, round)
        return Contribution(key.public, weight, payload_hash(payload), object_of(payload), nonce, trace, "subprocess")

    # Audits

    def audit(self, round: int) -> None:
        """The verdicts that the draw asks for, as the first verifier finds, confirmed by the next if it accuses."""
        if not self.terms.spec.is_audited:
            return
        promised = self.of_round(CommitmentsRecord, round).promised
        drawn = {d.peer: d.segment for d in self.drawn(round)}
        verdicts = tuple(
            verdict
            for c in sorted(promised, key=lambda c: c.peer)
            if c.peer in drawn and c.peer not in self.out
            for verdict in self.verdicts(c, round, drawn[c.peer])
        )
        self.say("audited", AuditsRecord(round, verdicts, scores=self.scores(round)), round)
        told = self.last(AuditsRecord)
        self.out |= excluded_by(told) if told is not None else frozenset()

    def scores(self, round: int) -> tuple[SignedRoundScores, ...]:
        """What the round's verifiers state. The point `gains` is told the verifier's place, peer and round."""
        probe = probe_of(self.terms.spec, is_proven=self.terms.is_proven)
        accepted, beacon = self.of_round(AcceptSetRecord, round).contributions, self.luck(round)
        found: list[SignedRoundScores] = []
        for place, verifier in enumerate(panel_of(probe, beacon, [key.public for key in VERIFIERS])):
            gains = {c.peer: self.told("gains", (1000, 2000), place, c.peer, round) for c in accepted}
            each = tuple(ContributionScore(p, LOSS - held, LOSS, LOSS - own) for p, (held, own) in gains.items())
            about = (self.genesis.chain, self.terms.id, round, beacon, contributions_root(accepted))
            found.append(sign_scores(KEYS[verifier], RoundScores(*about, verifier, LOSS, each)))
            if not harmful(found[0].scores):
                break
        told: tuple[SignedRoundScores, ...] = self.told("scores", tuple(found), round)
        return told

    def drawn(self, round: int) -> tuple[audit_sample.AuditSample, ...]:
        """The draw of a round; no payload of a story is suspicious, so none is flagged but for what scores say."""
        spec = self.terms.spec
        committed = self.of_round(CommitmentsRecord, round)
        luck = self.luck(round)
        before = [c.peer for r in range(round) for c in self.of_round(AcceptSetRecord, r).contributions]
        known = [(peer, before.count(peer)) for peer in {c.peer for c in committed.commitments}]
        streaks = LossStreaks()
        for record in (r for r in self.records if isinstance(r, AuditsRecord) and r.round < round - 1):
            streaks.add(record)
        flagged: dict[PeerId, str] = self.told("flagged", streaks.suspected, round)
        return audit_sample.draw(spec.audit, spec.segments, luck, known, flagged)

    def luck(self, round: int) -> Hash:
        """The beacon of a round, as it was logged."""
        anchored = audit_sample.anchor(self.terms.id, round, self.of_round(CommitmentsRecord, round).commitments)
        return audit_sample.beacon(anchored, self.of_round(BeaconRecord, round).block)

    def of_round(self, kind: type[Any], round: int) -> Any:
        """The record of a round as it was logged."""
        return next(r for r in self.records if isinstance(r, kind) and r.round == round)

    def verdicts(self, c: Contribution, round: int, segment: int) -> list[SignedVerdict]:
        """In the order of a record. The point `finding` is told verifier (its place in the order), peer and round."""
        order = audit_sample.verifier_order(self.luck(round), c.peer, self.asked(round))
        found: list[SignedVerdict] = []
        for place, verifier in enumerate(order):
            finding = self.told("finding", VerdictFinding.HOLDS, place, c.peer, round)
            found.append(self.verdict(c, round, segment, verifier, finding))
            if finding not in DAMNING:
                break
        return sorted(found, key=lambda signed: signed.verdict.verifier)

    def asked(self, round: int) -> list[PeerId]:
        """Whom the audits of a round may ask."""
        return [key.public for key in VERIFIERS]

    def verdict(
        self, c: Contribution, round: int, segment: int, verifier: PeerId, finding: VerdictFinding
    ) -> SignedVerdict:
        """One verifier's word."""
        result = ZERO_HASH if finding is VerdictFinding.WITHHELD else digest(NS_STATE, verifier, c.peer)
        about = (self.genesis.chain, self.terms.id, round, c.peer, segment, c.trace)
        return sign_verdict(KEYS[verifier], Verdict(*about, verifier, finding, EXCESS[finding], result))

    def encoded(self, peer: PeerId, round: int, salt: int = 0) -> bytes:
        """A payload that is genuine in every respect but whose change it is."""
        seed = [round, salt, *peer]
        delta = np.random.default_rng(seed).standard_normal(self.layout.size).astype(np.float32) / 8
        return self.sync.codec(0).encode(None, delta, self.layout, self.sync.about(self.public, self.layout, peer))[1]

    def commitment(self, c: Contribution, round: int) -> Any:
        """The peer's own signature under what it will show."""
        return commit(KEYS[c.peer], self.terms.id, round, c.payload, c.weight, c.trace)

    def merge(self, told: Sequence[Contribution], honest: Sequence[Contribution]) -> None:
        """Public state after what was logged; after the truth when the lie cannot be merged."""
        for contributions in (told, honest):
            parts = [worker_messages.AcceptedPayload(c.peer, c.weight, self.payloads[c.payload]) for c in contributions]
            try:
                self.public = self.sync.apply(self.public, self.layout, parts)
                return
            except FarflungError:
                continue
        self.public = self.sync.apply(self.public, self.layout, [])

    # The ledger

    def hire(self) -> None:
        """The job's life in blocks, up to its first round."""
        for key in (*PEERS, *VERIFIERS):
            self.send(key, "register", transactions.NodeRegister(ZERO_HASH, PRICE, 1000, START + 9 * HOUR))
        spec = self.terms.spec
        self.send(
            REQUESTER, "create", transactions.JobCreate(self.terms.id, ESCROW, PRICE, spec.rounds, START + 8 * HOUR)
        )
        self.send(REQUESTER, "schedule", scheduled(self.job, self.offers(self.job)))

    def book(self) -> None:
        """The rest of it, from what the log says."""
        job = self.job
        accepted = [r for r in self.records if isinstance(r, AcceptSetRecord)]
        closed = [r for r in self.records if isinstance(r, RoundEndRecord)]
        tally = AuditAccounts(self.terms, len(VERIFIERS))
        known = {key.public for key in (*PEERS, *VERIFIERS)}
        for a, c in zip(accepted, closed, strict=False):
            audited = [r for r in self.records if isinstance(r, AuditsRecord) and r.round == a.round]
            earned = tally.add(
                a.contributions,
                audited[0] if audited else AuditsRecord(a.round, ()),
                self.of_round(CommitmentsRecord, a.round).promised,
            )
            units = tuple((peer, count) for peer, count in earned.items() if peer in known)
            progress = transactions.Progress(job, c.round, c.root, contributions_root(a.contributions), units)
            self.send(REQUESTER, "progress", progress, c.round)
            for guilty in [g for g in tally.guilty.values() if g.round == a.round]:
                self.send(REQUESTER, "slash", self.slash(a, *guilty), c.round)
            due = {a.round - 1} | ({a.round} if a is accepted[-1] else set())
            for perjury in [p for p in map(tally.owed, tally.disqualified.found) if p and p.round in due]:
                self.send(REQUESTER, "perjury", transactions.JobPerjury(job, perjury.canary), c.round)
        root = closed[-1].root if closed else ZERO_HASH
        self.send(REQUESTER, "finish", transactions.JobFinish(job, root, digest(NS_OUTPUT, self.model)))
        self.send(REQUESTER, "settle", transactions.JobSettle(job))

    @property
    def job(self) -> Hash:
        """The job on the ledger."""
        rows = self.chain.state.rows(JobRow)
        return rows[0].job if rows else self.terms.id

    def offers(self, job: Hash) -> tuple[transactions.SignedLeaseOffer, ...]:
        """Of all peers, then of the verifiers."""
        training = [self.offer(key, job) for key in PEERS]
        return (*training, *(self.offer(key, job, LeaseRole.AUDIT) for key in VERIFIERS))

    def offer(self, key: SigningKey, job: Hash, role: LeaseRole = LeaseRole.TRAIN) -> transactions.SignedLeaseOffer:
        """A node's half of a lease."""
        units = max(10_000, 2 * self.terms.spec.rounds * self.terms.spec.round_tokens)
        offer = transactions.LeaseOffer(self.chain.id, job, key.public, PRICE, 1000, units, START + 7 * HOUR, role)
        return transactions.sign_offer(key, offer)

    def slash(
        self, a: AcceptSetRecord, node: PeerId, round: int, verdicts: tuple[SignedVerdict, ...]
    ) -> transactions.JobSlash:
        """The accusation that the log bears out."""
        c = next(c for c in self.of_round(CommitmentsRecord, round).promised if c.peer == node)
        commitment = next(x for x in self.of_round(CommitmentsRecord, round).commitments if x.peer == node)
        claim = transactions.CommitmentOpening(c.payload, c.weight, c.nonce, commitment.signature)
        return transactions.JobSlash(self.job, node, claim, verdicts, digest(NS_EVIDENCE, node))

    def send(self, key: SigningKey, point: str, op: transactions.Op, *about: Any) -> None:
        """One transaction in one block, or the operations that are told instead; it must be applied."""
        told = self.told(point, op, *about)
        for each in told if isinstance(told, list) else [told]:
            self.put(key, each)

    def put(self, key: SigningKey, *ops: transactions.Op, after: int = 1000) -> None:
        """A block with one transaction, or none."""
        account = self.chain.state.find(AccountRow, key.public) or AccountRow(key.public)
        made = transactions.make_tx(self.chain.id, key.public, account.nonce, *ops)
        txs = [transactions.sign_tx(key, made)] if ops else []
        block, results = self.chain.propose(txs, self.chain.head.time + after)
        assert all(type(result).__name__ == "AppliedResult" for result in results), results
        self.chain.adopt(block)

    def receipts(self) -> list[LedgerReceipt]:
        """Proof of the job's end and of everybody's pay."""
        leases = [lease_key(self.job, row.node) for row in self.chain.state.rows(LeaseRow)]
        return [prove(self.chain, "jobs", self.job), *(prove(self.chain, "leases", key) for key in leases)]

    # The export

    def entries(self) -> tuple[bytes, ...]:
        """The log, chained and signed by whoever says to be its coordinator."""
        first = self.records[0]
        key = KEYS[first.coordinator] if isinstance(first, RunStartRecord) else REQUESTER
        chain = RunLogChain()
        return tuple(chain.extend(key, record) for record in self.records)

    def export(self) -> ExportedRun:
        """What a second reader gets."""
        entries: tuple[bytes, ...] = self.told("entries", self.entries())
        receipts = self.told("receipts", self.receipts(), self)
        return ExportedRun(
            genesis=encode(self.genesis),
            terms=terms_file.write(self.terms),
            initial=self.initial,
            entries=entries,
            log_bytes=sum(8 + len(entry) for entry in entries),
            blocks=tuple(encode(block) for block in self.chain.blocks),
            receipts=tuple(encode(receipt) for receipt in receipts),
            payload=self.find,
            model=self.model,
        )

    def find(self, name: Hash) -> bytes:
        """A payload by its hash."""
        if name not in self.payloads:
            raise VerificationError("FF-APP-080", "the exported log is not complete")
        return self.payloads[name]

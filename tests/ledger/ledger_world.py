"""A small ledger with named actors, for tests: one transaction a block, money counted after each."""

from __future__ import annotations

from ledger_parties import mark_attest
from msgspec.structs import replace

from farflung.core.canon.program import CanonicalProgram, job_id
from farflung.core.commitments import commitment_digest, number
from farflung.core.crypto import NS_ACK, NS_SPEC, SigningKey, digest, local_key
from farflung.core.ids import Hash, PeerId
from farflung.core.relay_passes import GIB, RelayPass, RelayReceipt, SignedRelayReceipt, sign_pass, sign_receipt
from farflung.core.tie_break import rank
from farflung.ledger import earnings_tally, transactions
from farflung.ledger.block import Genesis
from farflung.ledger.disputes import DisputeRow
from farflung.ledger.params import LedgerParams
from farflung.ledger.state_transition import LedgerState, apply_block, genesis_state, total_money
from farflung.ledger.table_rows import AccountRow, ChannelRow, JobRow, LeaseRow, NodeRow, channel_key, lease_key
from farflung.ledger.tx_results import Outcome

VALIDATOR = local_key(7, "validator")
REQUESTER = local_key(7, "requester")
NODES = tuple(local_key(7, "node", index) for index in range(3))
VERIFIERS = tuple(local_key(7, "verifier", index) for index in range(2))
STRANGER = local_key(7, "stranger")  # no account at genesis
ACTORS = (VALIDATOR, REQUESTER, *NODES, *VERIFIERS)

START = 5_000
RICH = 1_000_000
PARAMS = LedgerParams(job_ms_max=100_000, node_ms_max=200_000)
WINDOW, DISPUTE, BOND = 10_000, 12_000, 8
SLOW_PARAMS = replace(PARAMS, window_ms=WINDOW, dispute_ms=DISPUTE, bond_min=BOND)
CAPS = digest(NS_SPEC, b"caps")
ROOTS = tuple(digest(NS_SPEC, b"root", bytes([index])) for index in range(8))
TRACE, PAYLOAD, NONCE, RESULT, EVIDENCE = (
    digest(NS_SPEC, name) for name in (b"trace", b"payload", b"nonce", b"result", b"evidence")
)
REST = digest(NS_SPEC, b"rest")
PROGRAM = CanonicalProgram(
    *ROOTS[:3], 1, 1, 1, 1, *ROOTS[3:7], seed=1, rows=1, context=1, places=1, round_steps=1, segments=1, step_tokens=1
)
JOB, OTHER_JOB = job_id(REST, PROGRAM), digest(NS_SPEC, b"other job")  # a proven job, and one without a graph


def genesis(
    params: LedgerParams = PARAMS,
    name: str = "test",
    owners: tuple[SigningKey, ...] = ACTORS,
    validators: tuple[SigningKey, ...] = (VALIDATOR,),
) -> Genesis:
    accounts = tuple((key.public, RICH) for key in owners)
    return Genesis(name, START, accounts, tuple(key.public for key in validators), params)


def clearings_of(
    state: LedgerState, job: Hash, offers: tuple[transactions.SignedLeaseOffer, ...]
) -> tuple[transactions.ClearingPrice, ...]:
    """Nobody is left over: the last of the hired sets the price."""

    def place(node: PeerId) -> tuple[int, Hash]:
        row = state.find(NodeRow, node)
        return row.unit_price if row else 0, rank(job, node)

    roles: dict[transactions.LeaseRole, list[PeerId]] = {}
    for signed in offers:
        roles.setdefault(signed.offer.role, []).append(signed.offer.node)
    return tuple(transactions.ClearingPrice(role, max(nodes, key=place)) for role, nodes in sorted(roles.items()))


class World:
    """A state that moves by one block a call."""

    def __init__(
        self,
        params: LedgerParams = PARAMS,
        owners: tuple[SigningKey, ...] = ACTORS,
        validators: tuple[SigningKey, ...] = (VALIDATOR,),
    ) -> None:
        self.state: LedgerState = genesis_state(genesis(params, owners=owners, validators=validators))

    @property
    def chain(self) -> Hash:
        return self.state.law.chain

    def sign(self, key: SigningKey, *ops: transactions.Op, fee: int = 0, expires: int = 0) -> transactions.SignedTx:
        nonce = self.account(key).nonce
        return transactions.sign_tx(
            key, transactions.make_tx(self.chain, key.public, nonce, *ops, fee=fee, expires=expires)
        )

    def send(self, *signed: transactions.SignedTx, after: int = 1000) -> tuple[Outcome, ...]:
        self.state, outcomes = apply_block(self.state, self.state.time + after, signed, VALIDATOR.public)
        assert total_money(self.state) == self.state.law.minted
        return outcomes

    def do(self, key: SigningKey, *ops: transactions.Op, fee: int = 0) -> str:
        """The code of the refusal, or `ok`."""
        outcome = self.send(self.sign(key, *ops, fee=fee))[0]
        return getattr(outcome, "code", "ok")

    def account(self, key: SigningKey) -> AccountRow:
        return self.state.find(AccountRow, key.public) or AccountRow(key.public)

    def balance(self, key: SigningKey) -> int:
        return self.account(key).balance

    def node(self, key: SigningKey) -> NodeRow:
        row = self.state.find(NodeRow, key.public)
        assert row is not None
        return row

    def job(self, job: Hash = JOB) -> JobRow:
        row = self.state.find(JobRow, job)
        assert row is not None
        return row

    def lease(self, key: SigningKey, job: Hash = JOB) -> LeaseRow:
        row = self.state.find(LeaseRow, lease_key(job, key.public))
        assert row is not None
        return row

    def channel(self, payer: SigningKey = REQUESTER, relay: SigningKey = VALIDATOR) -> ChannelRow:
        row = self.state.find(ChannelRow, channel_key(payer.public, relay.public))
        assert row is not None
        return row

    # Operations with terms that are accepted unless a test changes one of them

    def register(self, stake: int = 500, expires: int = START + 90_000, price: int = 5) -> transactions.NodeRegister:
        return transactions.NodeRegister(CAPS, price, stake, expires)

    def create(
        self, job: Hash = JOB, escrow: int = 1000, rounds: int = 3, deadline: int = START + 60_000, price: int = 5
    ) -> transactions.JobCreate:
        return transactions.JobCreate(job, escrow, price, rounds, deadline)

    def offer(
        self,
        key: SigningKey,
        job: Hash = JOB,
        price: int = 5,
        stake: int = 100,
        units: int = 60,
        expires: int = START + 50_000,
        chain: Hash | None = None,
        signer: SigningKey | None = None,
        role: transactions.LeaseRole = transactions.LeaseRole.TRAIN,
    ) -> transactions.SignedLeaseOffer:
        offer = transactions.LeaseOffer(chain or self.chain, job, key.public, price, stake, units, expires, role)
        return transactions.sign_offer(signer or key, offer)

    def open_channel(
        self, relay: SigningKey = VALIDATOR, amount: int = 1000, price: int = GIB, expires: int = START + 60_000
    ) -> transactions.ChannelOpen:
        """At a pico-credit a byte, unless `price` says otherwise."""
        return transactions.ChannelOpen(relay.public, amount, price, expires)

    def passage(
        self,
        serial: int,
        *said: tuple[SigningKey, int, int],
        payer: SigningKey = REQUESTER,
        relay: SigningKey = VALIDATOR,
        holders: tuple[SigningKey, ...] = NODES[:2],
        signer: SigningKey | None = None,
        **fields: object,
    ) -> transactions.PassReceipts:
        """A pass for the first two nodes, and what who signed (sent, received); `fields` of the pass."""
        keys = tuple(sorted(key.public for key in holders))
        toll = RelayPass(self.chain, payer.public, relay.public, 1, serial, keys, 1 << 40, 0, 0, 600)
        toll = replace(toll, **fields)
        receipts = tuple(self.receipt(toll, key, key, sent, got) for key, sent, got in said)
        return transactions.PassReceipts(sign_pass(signer or payer, toll), receipts)

    def receipt(
        self, toll: RelayPass, party: SigningKey, signer: SigningKey, sent: int, got: int
    ) -> SignedRelayReceipt:
        named = (toll.chain, toll.payer, toll.relay, toll.opening, toll.serial)
        return sign_receipt(signer, RelayReceipt(*named, party.public, sent, got))

    def schedule(self, *offers: transactions.SignedLeaseOffer, job: Hash = JOB) -> transactions.JobSchedule:
        """The last of each role, by what they ask now, sets its price."""
        return transactions.JobSchedule(job, offers, clearings_of(self.state, job, offers))

    def progress(self, number: int, *units: tuple[SigningKey, int], job: Hash = JOB) -> transactions.Progress:
        return transactions.Progress(
            job, number, ROOTS[number], CAPS, tuple((key.public, count) for key, count in units)
        )

    def draw(self, round: int, job: Hash = JOB, commitments: Hash = TRACE) -> transactions.JobDraw:
        return transactions.JobDraw(job, round, commitments)

    def claim(
        self, key: SigningKey, job: Hash = JOB, round: int = 0, trace: Hash = TRACE
    ) -> transactions.CommitmentOpening:
        """What a node had committed to in a round, under its own signature."""
        promise = commitment_digest(job, key.public, round, PAYLOAD, 512, trace, NONCE)
        return transactions.CommitmentOpening(PAYLOAD, 512, NONCE, key.sign(NS_ACK, job, number(round), promise))

    def verdict(self, verifier: SigningKey, node: SigningKey, /, **change: object) -> transactions.SignedVerdict:
        """A verifier's word that the node's first round is false, unless a test changes it."""
        says = transactions.Verdict(
            self.chain, JOB, 0, node.public, 1, TRACE, verifier.public, transactions.VerdictFinding.FALSE, 2001, RESULT
        )
        return transactions.sign_verdict(verifier, replace(says, **change))

    def accuse(self, node: SigningKey, /, *verifiers: SigningKey, **change: object) -> transactions.JobSlash:
        """Both verifiers, or those named, say the same of the node's claim; of the proven job, by its program."""
        verdicts = tuple(self.verdict(key, node, **change) for key in verifiers or VERIFIERS)
        says = verdicts[0].verdict
        claim = self.claim(node, says.job, says.round, says.trace)
        op = transactions.JobSlash(says.job, node.public, claim, verdicts, EVIDENCE)
        return replace(op, terms=REST, program=PROGRAM) if says.job == JOB else op

    def settle_many(
        self,
        *earned: tuple[SigningKey, int],
        by: tuple[SigningKey, ...] = (REQUESTER,),
        job: Hash = JOB,
        chain: Hash | None = None,
        claimed: int = 99,
    ) -> earnings_tally.SettleMany:
        """A tally under the marks of `by`, and its first `claimed` vouchers."""
        said = [(key.public, units) for key, units in earned]
        tally, vouchers = earnings_tally.make_tally(chain or self.chain, job, 1, said)
        marks = tuple(earnings_tally.sign_tally(key, tally) for key in by)
        return earnings_tally.SettleMany(earnings_tally.SignedEarningsTally(tally, marks), vouchers[:claimed])

    def attest(self, *by: SigningKey, **change: object) -> earnings_tally.JobAttest:
        """Both verifiers, or those named, have nothing against the job's end."""
        row = self.job()
        said = replace(earnings_tally.OutputAttestation(self.chain, JOB, row.root, row.output), **change)
        return earnings_tally.JobAttest(JOB, tuple(mark_attest(key, said) for key in by or VERIFIERS))

    def dispute(self, key: SigningKey, job: Hash = JOB) -> DisputeRow:
        row = self.state.find(DisputeRow, lease_key(job, key.public))
        assert row is not None
        return row

    def running(self) -> World:
        """Two nodes hold leases of 60 units at 5; a third one is registered; the job runs."""
        for key in NODES:
            assert self.do(key, self.register()) == "ok"
        assert self.do(REQUESTER, self.create()) == "ok"
        offers = [self.offer(key) for key in NODES[:2]]
        assert self.do(REQUESTER, self.schedule(*offers)) == "ok"
        return self

    def watched(self, *, units: int = 20, stake: int = 50) -> World:
        """The running job, and both verifiers hold leases of `units` units at 5."""
        self.running()
        for key in VERIFIERS:
            assert self.do(key, self.register()) == "ok"
        offers = [self.offer(key, stake=stake, units=units, role=transactions.LeaseRole.AUDIT) for key in VERIFIERS]
        assert self.do(REQUESTER, self.schedule(*offers)) == "ok"
        return self

    def finished(self) -> World:
        """One round of 10 and 20 units is recorded, the output is named."""
        self.running()
        assert self.do(REQUESTER, self.progress(0, (NODES[0], 10), (NODES[1], 20))) == "ok"
        assert self.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS)) == "ok"
        return self

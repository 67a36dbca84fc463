"""`farflung receipt verify`: what it says of a file, to people and to programs, and how it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core_asks import scheduled
from ledger_parties import party_receipts

from farflung.app.cli.main import main
from farflung.core import limits
from farflung.core.canon.program import CanonicalProgram, job_id
from farflung.core.commitments import commitment_digest, number
from farflung.core.crypto import NS_ACK, NS_SEAT, NS_SPEC, SigningKey, digest, local_key
from farflung.core.errors import VerificationError
from farflung.ledger import transactions
from farflung.ledger.block import LOGICAL_MS, Genesis
from farflung.ledger.chain import Chain
from farflung.ledger.motions import AdmitValidator, Motion
from farflung.ledger.params import LedgerParams
from farflung.ledger.receipt_file import MAGIC, write_receipt_file
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.validators import ValidatorJoin, ValidatorLeave

NOTARY, REQUESTER, HONEST, LIAR, VERIFIER, SECOND = (local_key(5, "party", index) for index in range(6))
REST, ROOT, TRACE, NONCE, EVIDENCE = (
    digest(NS_SPEC, name) for name in (b"rest", b"root", b"trace", b"nonce", b"evidence")
)
PROGRAM = CanonicalProgram(
    *(ROOT,) * 3, 1, 1, 1, 1, *(ROOT,) * 4, rows=1, context=1, places=1, round_steps=1, segments=1, step_tokens=1
)
JOB = job_id(REST, PROGRAM)
HOLDS, DAMAGED, MISUSED = 0, 5, 2

Said = tuple[int, str, str]
Verb = Callable[..., Said]


def record(chain: Chain, key: SigningKey, *ops: transactions.Op) -> None:
    row = chain.state.find(AccountRow, key.public)
    assert row is not None
    signed = transactions.sign_tx(key, transactions.make_tx(chain.id, key.public, row.nonce, *ops))
    block, results = chain.propose([signed], chain.head.time + LOGICAL_MS)
    assert not hasattr(results[0], "code"), results
    chain.adopt(block)


def accusation(chain: Chain, *verifiers: SigningKey) -> transactions.JobSlash:
    """By one verifier it opens the job's program, by two it counts as one without a graph."""
    says = [
        transactions.Verdict(
            chain.id, JOB, 0, LIAR.public, 1, TRACE, key.public, transactions.VerdictFinding.FALSE, 7000, ROOT
        )
        for key in verifiers
    ]
    promise = commitment_digest(JOB, LIAR.public, 0, ROOT, 64, TRACE, NONCE)
    claim = transactions.CommitmentOpening(ROOT, 64, NONCE, LIAR.sign(NS_ACK, JOB, number(0), promise))
    verdicts = tuple(transactions.sign_verdict(key, said) for key, said in zip(verifiers, says, strict=True))
    opened = (REST, PROGRAM) if len(verifiers) == 1 else ()
    return transactions.JobSlash(JOB, LIAR.public, claim, verdicts, EVIDENCE, *opened)


@pytest.fixture(scope="module")
def running() -> Chain:
    return found_out(VERIFIER)


def found_out(*verifiers: SigningKey, stake: int = 400_000) -> Chain:
    """A job of which one round is recorded: a node works, another lied, the verifiers found it out (with a stake)."""
    keys = (NOTARY, REQUESTER, HONEST, LIAR, *verifiers)
    genesis = Genesis("small", 0, tuple((key.public, 2_000_000) for key in keys), (NOTARY.public,))
    chain = Chain(genesis, NOTARY)
    offers = []
    for key in (HONEST, LIAR, *verifiers):
        record(chain, key, transactions.NodeRegister(ROOT, 5, 500_000, 9_000_000))
        role = transactions.LeaseRole.AUDIT if key in verifiers else transactions.LeaseRole.TRAIN
        offer = transactions.LeaseOffer(chain.id, JOB, key.public, 5, stake, 2000, 8_000_000, role, TRACE)
        offers.append(transactions.sign_offer(key, offer))
    record(chain, REQUESTER, transactions.JobCreate(JOB, 50_000, 5, 2, 9_000_000), scheduled(JOB, offers))
    units = ((HONEST.public, 1000), (LIAR.public, 900), (VERIFIER.public, 300))
    accused = (accusation(chain, *verifiers),) if stake else ()
    record(chain, REQUESTER, transactions.Progress(JOB, 0, ROOT, ROOT, units), *accused)
    return chain


@pytest.fixture(scope="module")
def settled(running: Chain) -> Chain:
    return ended(running)


def ended(running: Chain) -> Chain:
    chain = Chain(running.genesis, NOTARY)
    for block in running.blocks:
        chain.adopt(block)
    record(chain, REQUESTER, transactions.JobFinish(JOB, ROOT, ROOT), transactions.JobSettle(JOB))
    return chain


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Verb:
    """Runs the verb on the file of a party (or on given bytes): exit status, stdout, stderr."""

    def run(what: Chain | bytes, *options: str, party: SigningKey = HONEST) -> Said:
        data = what if isinstance(what, bytes) else file_of(what, party)
        path = tmp_path / "some.receipt"
        path.write_bytes(data)
        return said(capsys, "receipt", "verify", str(path), *options)

    return run


def file_of(chain: Chain, party: SigningKey) -> bytes:
    return write_receipt_file(chain.genesis, party.public, party_receipts(chain, party.public))


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> Said:
    try:
        main(arguments)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def told(said: Said, code: str, status: int) -> str:
    assert said[0] == status, said
    assert said[1] == ""
    assert said[2].startswith(f"error[{code}]: ")
    assert "\n  cause: " in said[2]
    assert "\n  try:   " in said[2]
    assert "Traceback" not in said[2]
    return said[2]


def test_a_provider_reads_in_words_what_it_was_paid(settled: Chain, verify: Verb) -> None:
    code, out, err = verify(settled, "--genesis", settled.id.hex())
    assert (code, err) == (HOLDS, "")
    for words in (
        HONEST.public.hex(),
        f"{JOB.hex()}: settled after 1 of 2 rounds",
        "trained: 1000 units at 0.000000000005 credits each",
        "0.000000005 credits; slashed 0.000000",
        f"Attests  {TRACE.hex()}: not a proof of work",
        f"block {settled.head.height}, at ledger time {settled.head.time} ms",
        f"{settled.id.hex()} ('small')",
        f"committee's key {NOTARY.public.hex()}",
        "what the ledger recorded of which you gave the hash",
    ):
        assert words in out


def test_without_a_genesis_the_reader_is_told_what_it_must_know(settled: Chain, verify: Verb) -> None:
    code, out, _ = verify(settled)
    assert code == HOLDS
    assert settled.id.hex() in out
    assert NOTARY.public.hex() in out
    assert "if you know the genesis hash above from elsewhere" in out
    assert "what the ledger recorded" not in out


def test_who_was_slashed_reads_why_and_what_it_lost(settled: Chain, verify: Verb) -> None:
    _, out, _ = verify(settled, party=LIAR)
    assert "0.0000004 of 0.0000004 credits at stake; its units are forfeited: paid nothing" in out
    assert f"Evidence {EVIDENCE.hex()}" in out
    assert "0.0000002 burnt for ever" in out
    assert "Paid " not in out


def test_a_verifier_reads_its_fee(settled: Chain, verify: Verb) -> None:
    _, out, _ = verify(settled, party=VERIFIER)
    assert "audited: 300 units at 0.000000000005 credits each" in out
    assert "Paid     0.0000000015 credits" in out


def test_a_requester_reads_what_it_paid_and_got_back(settled: Chain, verify: Verb) -> None:
    _, out, _ = verify(settled, party=REQUESTER)
    assert "paid 0.0000000065 credits, refunded 0.0000000435, 0.000000 still in escrow" in out
    assert "Role" not in out


def test_burnt_pay_is_named_and_is_no_escrow(verify: Verb) -> None:
    """In a job without a graph; two verifiers agree there."""
    chain = ended(found_out(VERIFIER, SECOND))
    _, out, _ = verify(chain, party=REQUESTER)
    assert "refunded 0.000000039, 0.000000 still in escrow" in out
    assert "Burnt    0.0000000045 credits that convicted providers had earned: nobody gets them" in out
    (job,) = facts(verify(chain, "--json", party=REQUESTER))["jobs"]
    assert (job["paid"], job["refunded"], job["burnt"], job["escrow"]) == (6500, 39_000, 4500, 0)


def test_a_job_that_goes_on_has_paid_nothing_yet(running: Chain, verify: Verb) -> None:
    _, out, _ = verify(running)
    assert "nothing yet: the job goes on" in out
    assert "running after 1 of 2 rounds" in out


def facts(answer: Said) -> dict[str, Any]:
    assert answer[0] == HOLDS
    found: dict[str, Any] = json.loads(answer[1])
    return found


def test_programs_get_one_object(settled: Chain, verify: Verb) -> None:
    found = facts(verify(settled, "--json", "--genesis", settled.id.hex(), party=LIAR))
    assert (found["party"], found["genesis"]) == (LIAR.public.hex(), settled.id.hex())
    assert (found["height"], found["time"]) == (settled.head.height, settled.head.time)
    assert found["committee"] == [NOTARY.public.hex()]
    assert found["node"] == {"free": 100_000, "locked": 0, "burnt": 200_000}
    assert found["balance"] == 1_500_000
    (job,) = found["jobs"]
    assert (job["state"], job["paid"], job["slashed"]) == ("settled", 6500, 400_000)
    assert job["lease"] == {
        "role": "train",
        "units": 900,
        "unit_price": 5,
        "paid": 0,
        "stake": 400_000,
        "slashed": 400_000,
        "evidence": EVIDENCE.hex(),
        "open": False,
        "attests": {"hash": TRACE.hex(), "label": "not a proof of work"},
    }
    assert found["genesis_given"] is True
    assert facts(verify(settled, "--json", party=REQUESTER))["genesis_given"] is False
    assert facts(verify(settled, "--json", party=REQUESTER))["jobs"][0]["lease"] is None


def test_a_file_of_a_later_committee_is_followed_from_the_genesis(running: Chain, verify: Verb) -> None:
    """The notary hands its seat to another key: the file still needs nothing but the genesis hash."""
    heir = local_key(5, "heir")
    params = LedgerParams(epoch_blocks=2)
    genesis = Genesis("handed", 0, tuple((key.public, 9_000) for key in (NOTARY, REQUESTER)), (NOTARY.public,), params)
    chain = Chain(genesis, NOTARY)
    proof = heir.sign(NS_SEAT, chain.id, NOTARY.public)
    record(chain, NOTARY, ValidatorJoin(heir.public, 10, "heir.example:1", proof))
    admit = Motion(AdmitValidator(heir.public), chain.head.time + 50_000)
    record(chain, NOTARY, admit, ValidatorLeave(NOTARY.public))
    assert chain.state.committee.members == (heir.public,)
    later = Chain(genesis, heir)
    later.adopt_many(chain.blocks)
    record(later, REQUESTER, transactions.JobCreate(JOB, 50, 5, 2, 9_000_000))
    receipts = party_receipts(later, REQUESTER.public)
    data = write_receipt_file(genesis, REQUESTER.public, receipts, later.steps)
    code, out, err = verify(data, "--genesis", genesis.chain.hex())
    assert (code, err) == (HOLDS, "")
    assert f"committee's key {heir.public.hex()}" in out
    assert NOTARY.public.hex() not in out
    assert "Epoch    1" in out
    found = json.loads(verify(data, "--json")[1])
    assert (found["epoch"], found["committee"]) == (1, [heir.public.hex()])
    with pytest.raises(VerificationError, match="FF-LEDG-072"):
        write_receipt_file(genesis, REQUESTER.public, receipts)


DAY_MS = 86_400_000
BEGAN_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def dated() -> Chain:
    """A ledger whose time is that of the calendar."""
    genesis = Genesis("dated", BEGAN_MS, ((REQUESTER.public, 9_000),), (NOTARY.public,))
    chain = Chain(genesis, NOTARY)
    record(chain, REQUESTER, transactions.JobCreate(JOB, 50, 5, 2, BEGAN_MS + DAY_MS))
    return chain


def clock(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    monkeypatch.setattr("farflung.app.cli.receipt.time.time_ns", lambda: (BEGAN_MS + days * DAY_MS) * 1_000_000)


def test_of_a_genesis_whose_seats_may_have_left_the_age_is_told(
    dated: Chain, verify: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ("--genesis", dated.id.hex())
    clock(monkeypatch, 21)
    assert "Age " not in verify(dated, *known, party=REQUESTER)[1]
    assert facts(verify(dated, "--json", party=REQUESTER))["genesis_too_old"] is False
    clock(monkeypatch, 22)
    code, out, _ = verify(dated, *known, party=REQUESTER)
    assert code == HOLDS
    assert "Age      the genesis is too old to rest on alone: the committee of 22 days ago" in out
    assert "what the ledger recorded" not in out
    assert facts(verify(dated, "--json", party=REQUESTER))["genesis_too_old"] is True


def test_a_block_that_is_known_from_elsewhere_needs_no_young_genesis(
    dated: Chain, verify: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(monkeypatch, 400)
    block = ("--block", dated.head.id.hex())
    out = verify(dated, *block, party=REQUESTER)[1]
    assert "Age " not in out
    assert "what the ledger recorded of which you gave the hash" in out
    assert facts(verify(dated, "--json", *block, party=REQUESTER))["block_given"] is True
    assert dated.head.id.hex() in told(verify(dated, "--block", "ab" * 32, party=REQUESTER), "FF-APP-336", DAMAGED)


def test_another_genesis_is_refused(settled: Chain, verify: Verb) -> None:
    assert settled.id.hex() in told(verify(settled, "--genesis", "ab" * 32), "FF-LEDG-079", DAMAGED)


def test_a_failed_check_is_refused(settled: Chain, verify: Verb) -> None:
    data = MAGIC + file_of(settled, HONEST).partition(b"\n")[2]  # of form 1, which has no checksum
    signature = settled.certificate.signatures[0]
    assert data.count(signature) == 4
    told(verify(data.replace(signature, bytes(64))), "FF-LEDG-072", DAMAGED)


def test_what_is_not_a_receipt_file_or_is_damaged_is_refused(settled: Chain, verify: Verb) -> None:
    told(verify(b"hello"), "FF-LEDG-077", DAMAGED)
    told(verify(b""), "FF-LEDG-077", DAMAGED)
    told(verify(file_of(settled, HONEST)[:-1]), "FF-LEDG-078", DAMAGED)


def test_an_endless_file_is_refused(verify: Verb) -> None:
    assert "the limit is" in told(verify(MAGIC + bytes(limits.RECEIPT_FILE_BYTES + 9)), "FF-LEDG-078", DAMAGED)


@pytest.mark.parametrize("text", ["", "ab", "zz" * 32, "ab" * 33])
def test_a_genesis_that_is_no_hash_is_refused(settled: Chain, verify: Verb, text: str) -> None:
    assert "64 hexadecimal digits" in told(verify(settled, "--genesis", text), "FF-APP-001", MISUSED)


def test_a_file_that_is_not_there_or_a_folder_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        told(said(capsys, "receipt", "verify", str(path)), "FF-APP-001", MISUSED)


def test_a_name_with_control_characters_does_not_reach_the_terminal(verify: Verb) -> None:
    genesis = Genesis("\x1b]0;owned\x07" + "x" * 500, 0, ((REQUESTER.public, 9000),), (NOTARY.public,))
    chain = Chain(genesis, NOTARY)
    record(chain, REQUESTER, transactions.JobCreate(JOB, 500, 5, 1, 9_000_000))
    code, out, _ = verify(chain, party=REQUESTER)
    assert code == HOLDS
    assert not set(out) & {"\x1b", "\x07"}
    assert max(map(len, out.splitlines())) < 250


def test_a_receipt_of_a_job_without_stakes_says_that_its_proof_is_weaker(settled: Chain, verify: Verb) -> None:
    told = "At stake nothing, as where a requester names its verifiers"
    assert told in verify(ended(found_out(VERIFIER, stake=0)))[1]
    assert told not in verify(settled)[1]

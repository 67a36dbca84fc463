"""The second reader and a lying ledger: the requester and the one validator agree on books that the log refutes.

One case for each check of verify.ledger_replay, and for the model that is handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from ledger_parties import party_receipts
from verify_story import (
    ESCROW,
    HOUR,
    LAYOUT,
    NO_AUDITS,
    PEERS,
    PRICE,
    REQUESTER,
    RICH,
    SPEC,
    STRANGER,
    VALIDATOR,
    VERIFIERS,
    Story,
    replace,
)

from farflung.core.codec import encode
from farflung.core.crypto import NS_OUTPUT, SigningKey, digest
from farflung.core.errors import VerificationError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.money import CREDIT
from farflung.ledger import transactions
from farflung.ledger.block import Block, BlockHeader, vote_for
from farflung.ledger.chain import Chain
from farflung.ledger.ledger_state import StateDraft
from farflung.ledger.receipt_checks import LedgerReceipt, prove
from farflung.ledger.receipt_file import write_receipt_file
from farflung.ledger.rules import settlement
from farflung.ledger.table_rows import JobRow, JobState, LeaseRow
from farflung.ledger.votes import QuorumCertificate, VoteKind, certificate_of, sign_vote
from farflung.train.run_log import AcceptSetRecord, BeaconRecord, RoundMember, RoundStartRecord
from farflung.verify.run_replay import verify_run

OTHER = digest("test/other/1")
A, B, C = (key.public for key in PEERS)
SEGMENT = SPEC.round_tokens // 3  # tokens of a step, here a segment of its own
Lie = Callable[..., Any]


def refused(story: Story, code: str) -> None:
    with pytest.raises(VerificationError) as caught:
        verify_run(story.export())
    assert caught.value.code == code, caught.value.lines()


def nothing(op: transactions.Op) -> list[transactions.Op]:
    return []


def only(round: int, lie: Lie) -> Lie:
    """A lie that is told in one round."""
    return lambda truth, now: lie(truth) if now == round else truth


class Late(Story):
    """The requester is gone in the end: empty blocks go on until the job's deadline has passed."""

    def book(self) -> None:
        super().book()
        for _ in range(9):
            self.put(VALIDATOR, after=HOUR)


# Blocks


def test_blocks_that_are_missing_or_out_of_order_are_refused() -> None:
    exported = Story().export()
    for blocks in (exported.blocks[1:], exported.blocks[:3] + exported.blocks[4:], exported.blocks[::-1]):
        with pytest.raises(VerificationError, match="FF-LEDG-061"):
            verify_run(replace(exported, blocks=blocks))


def certified(header: BlockHeader, key: SigningKey) -> QuorumCertificate:
    return certificate_of([sign_vote(key, 0, vote_for(header, 1, VoteKind.FINALIZE))], 1)


def test_a_block_that_no_validator_signed_is_refused() -> None:
    story = Story()
    last = story.chain.blocks[-1]
    forged = Block(last.header, last.txs, certified(last.header, STRANGER))
    blocks = (*(encode(block) for block in story.chain.blocks[:-1]), encode(forged))
    with pytest.raises(VerificationError, match="FF-LEDG-066"):
        verify_run(replace(story.export(), blocks=blocks))


def test_a_state_that_the_transactions_do_not_give_is_refused_although_it_is_certified() -> None:
    story = Story()
    last = story.chain.blocks[-1]
    header = replace(last.header, state=OTHER)
    forged = Block(header, last.txs, certified(header, VALIDATOR))
    blocks = (*(encode(block) for block in story.chain.blocks[:-1]), encode(forged))
    with pytest.raises(VerificationError, match="FF-LEDG-065"):
        verify_run(replace(story.export(), blocks=blocks))


def test_blocks_after_the_settlement_change_nothing() -> None:
    story = Story()
    for key in PEERS:
        story.put(key, transactions.NodeLeave())
    report = verify_run(story.export())
    assert report.blocks == 18


# Draws


@pytest.mark.parametrize(
    ("point", "lie"),
    [
        ("beaconed", lambda record: replace(record, block=OTHER)),  # a draw that nobody can make
        ("draw", lambda op: replace(op, commitments=OTHER)),  # of something else
    ],
)
def test_a_round_that_its_block_does_not_anchor_is_refused(point: str, lie: Any) -> None:
    refused(Story({point: only(1, lie)}), "FF-VERI-133")


def test_a_round_that_no_block_anchors_is_refused() -> None:
    refused(Story({"draw": only(2, nothing)}), "FF-VERI-133")


def test_a_round_of_audits_that_names_no_block_is_refused_and_one_without_audits_that_does() -> None:
    story = Story()
    story.records[:] = [r for r in story.records if not (isinstance(r, BeaconRecord) and r.round == 1)]
    refused(story, "FF-VERI-132")
    other = Story(spec=replace(SPEC, audit=NO_AUDITS))
    place = next(i for i, r in enumerate(other.records) if isinstance(r, AcceptSetRecord))
    other.records.insert(place, BeaconRecord(0, OTHER))
    refused(other, "FF-VERI-132")


# The job


def test_a_job_that_the_ledger_does_not_know_is_refused() -> None:
    refused(Story({"create": lambda op: replace(op, job=OTHER)}), "FF-VERI-020")


@pytest.mark.parametrize(
    "changed", [{"rounds": 4}, {"unit_price_max": PRICE + 1}, {"escrow": CREDIT + 1}], ids=lambda x: next(iter(x))
)
def test_a_job_of_other_terms_is_refused(changed: dict[str, int]) -> None:
    refused(Story({"create": lambda op: replace(op, **changed)}), "FF-VERI-028")


def test_a_failed_funding_counts_for_nothing() -> None:
    """What is in a block and was refused there is no escrow."""

    class Failing(Story):
        def hire(self) -> None:
            chain = self.chain
            op = transactions.JobCreate(self.terms.id, RICH * 2, PRICE, 3, self.chain.head.time + HOUR)
            signed = transactions.sign_tx(REQUESTER, transactions.make_tx(chain.id, REQUESTER.public, 0, op))
            chain.adopt(chain.propose([signed], chain.head.time + 1000)[0])
            super().hire()

    assert verify_run(Failing().export()).transactions == 16


def test_another_job_of_the_same_requester_changes_nothing() -> None:
    lie = {"create": lambda op: [op, replace(op, job=OTHER, escrow=RICH // 2)]}
    report = verify_run(Story(lie).export())
    assert report.paid + report.refunded == ESCROW


def test_a_log_that_the_requester_of_the_job_did_not_sign_is_refused() -> None:
    refused(Story({"opened": lambda record: replace(record, coordinator=STRANGER.public)}), "FF-VERI-027")


@pytest.mark.parametrize("missing", [("settle",), ("settle", "finish")])
def test_a_job_that_still_holds_money_is_refused(missing: Sequence[str]) -> None:
    refused(Story(dict.fromkeys(missing, nothing)), "FF-VERI-026")


# Its rounds


def test_a_round_that_the_ledger_does_not_have_is_refused() -> None:
    lies = {"progress": only(2, nothing), "finish": lambda op: replace(op, root=Story().records[10].root)}
    refused(Story(lies), "FF-VERI-021")


def test_a_round_that_the_log_does_not_have_is_refused() -> None:
    def lie(op: transactions.Progress) -> list[transactions.Op]:
        return [op, replace(op, round=2, units=())]

    refused(Story({"progress": only(1, lie)}, done=2), "FF-VERI-021")


@pytest.mark.parametrize("field", ["root", "contributions"])
def test_a_round_that_is_another_on_the_ledger_is_refused(field: str) -> None:
    refused(Story({"progress": only(1, lambda op: replace(op, **{field: OTHER}))}), "FF-VERI-022")


# Its pay


@pytest.mark.parametrize("units", [SPEC.round_tokens - 1, SPEC.round_tokens + 1, 0])
def test_a_peer_that_is_credited_more_or_less_than_it_did_is_found(units: int) -> None:
    lie = only(1, lambda op: replace(op, units=((op.units[0][0], units), *op.units[1:])))
    refused(Story({"progress": lie}), "FF-VERI-023")


def test_a_peer_that_did_nothing_and_is_credited_is_found() -> None:
    lie = only(2, lambda op: replace(op, units=(*op.units, (C, SPEC.round_tokens))))
    refused(Story({"progress": lie}), "FF-VERI-023")


def test_work_without_a_lease_is_refused() -> None:
    """Its units are on no lease: it worked and is not paid."""
    lies = {
        "schedule": lambda op: replace(op, offers=(*op.offers[:2], *op.offers[3:])),
        "progress": lambda op: replace(op, units=tuple(u for u in op.units if u[0] != C)),
    }
    refused(Story(lies), "FF-VERI-024")


def test_a_member_without_a_lease_is_refused_although_it_did_nothing() -> None:
    def lie(record: RoundStartRecord) -> RoundStartRecord:
        members = sorted((*record.members, RoundMember(STRANGER.public, SPEC.round_tokens)), key=lambda m: m.peer)
        return replace(record, members=tuple(members))

    refused(Story({"round": only(2, lie)}), "FF-VERI-024")


def close(draft: StateDraft, job: JobRow, lease_more: dict[str, int], job_more: dict[str, int]) -> None:
    """The law's own `settle.close`, which then writes down other amounts; the money itself is conserved."""
    honest(draft, job, JobState.SETTLED)
    row = draft.find(JobRow, job.job)
    assert row is not None
    lease = draft.find(LeaseRow, row.job + row.last)
    assert lease is not None
    draft.put(replace(lease, **{name: getattr(lease, name) + more for name, more in lease_more.items()}))
    draft.put(replace(row, **{name: getattr(row, name) + more for name, more in job_more.items()}))


honest = settlement.close


@pytest.mark.parametrize(
    ("lease", "job", "code"),
    [
        ({"paid": 1}, {"paid": 1, "refunded": -1}, "FF-VERI-023"),
        ({"units": 1}, {}, "FF-VERI-023"),
        ({}, {"paid": 1, "refunded": -1}, "FF-VERI-025"),
        ({}, {"refunded": 1}, "FF-VERI-029"),
    ],
)
def test_a_law_that_pays_wrongly_is_seen_although_the_reader_executes_it_alike(
    lease: dict[str, int], job: dict[str, int], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlement, "close", lambda draft, row, target: close(draft, row, lease, job))
    refused(Story(), code)


def test_a_job_that_ran_out_is_found_true() -> None:
    """The clock settles it: recorded work is paid, the output has no name."""
    story = Late({"finish": nothing, "settle": nothing})
    report = verify_run(story.export())
    assert report.paid == (7 * SPEC.round_tokens + story.judged * SEGMENT) * PRICE
    assert report.paid + report.refunded == ESCROW


# Receipts


def test_receipts_of_another_chain_are_refused() -> None:
    def lie(receipts: list[LedgerReceipt], story: Story) -> list[LedgerReceipt]:
        richer = {"genesis": lambda g: replace(g, name="another")}
        return Story(richer).receipts()

    refused(Story({"receipts": lie}), "FF-LEDG-071")


def forked(chain: Chain) -> Chain:
    """The same rows under another last block, which the validator has certified as well."""
    fork = Chain(chain.genesis, VALIDATOR)
    for block in chain.blocks[:-1]:
        fork.adopt(block)
    last = chain.blocks[-1]
    fork.adopt(fork.propose(list(last.txs), last.header.time + 1)[0])
    return fork


def test_receipts_of_a_fork_are_refused() -> None:
    def lie(receipts: list[LedgerReceipt], story: Story) -> list[LedgerReceipt]:
        fork = forked(story.chain)
        return [prove(fork, r.table, fork.state.tables[r.table].rows[r.index].key) for r in receipts]

    refused(Story({"receipts": lie}), "FF-VERI-030")


@pytest.mark.parametrize("table", ["jobs", "leases", "accounts", "nodes"])
def test_a_receipt_of_a_block_since_which_its_row_has_changed_is_refused(table: str) -> None:
    """Genuine, certified, in the log, and no longer true."""

    class Stale(Story):
        def send(self, key: Any, point: str, op: transactions.Op, *about: Any) -> None:
            if point == "settle":
                rows = self.chain.state.tables[table].rows
                self.stale = prove(self.chain, table, C if table == "accounts" else rows[-1].key)
            super().send(key, point, op, *about)

    story = Stale()
    if table == "accounts":  # a peer's, paid by the settlement
        assert story.stale.row != prove(story.chain, table, C).row
    story.lies["receipts"] = lambda receipts: [*receipts, story.stale]
    refused(story, "FF-VERI-031")


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_party_without_a_receipt_is_found(place: int) -> None:
    lie = {"receipts": lambda receipts: receipts[:place] + receipts[place + 1 :]}
    refused(Story(lie), "FF-VERI-032")


def test_receipts_of_other_rows_prove_no_partys_pay() -> None:
    def lie(receipts: list[LedgerReceipt], story: Story) -> list[LedgerReceipt]:
        return [*receipts[:-1], prove(story.chain, "accounts", C), prove(story.chain, "nodes", C)]

    refused(Story({"receipts": lie}), "FF-VERI-032")


def test_a_receipt_with_another_row_is_refused() -> None:
    def lie(receipts: list[LedgerReceipt]) -> list[LedgerReceipt]:
        return [replace(receipts[0], row=receipts[0].row[:-1] + b"\x01"), *receipts[1:]]

    refused(Story({"receipts": lie}), "FF-LEDG-075")


# The model


def altered(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Lie:
    return lambda data: safetensors.numpy.save(change(safetensors.numpy.load(data)))


def one_weight(tensors: dict[str, Any]) -> dict[str, Any]:
    beta = tensors["beta"].copy()
    beta[599] = np.nextafter(beta[599], np.float32(1))
    return {**tensors, "beta": beta}


def one_tensor_less(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if name != "gamma"}


def one_tensor_more(tensors: dict[str, Any]) -> dict[str, Any]:
    return {**tensors, "delta": np.zeros(3, np.float32)}


def wider(tensors: dict[str, Any]) -> dict[str, Any]:
    """The same numbers, and another model to whoever loads it."""
    return {**tensors, "beta": tensors["beta"].astype(np.float64)}


@pytest.mark.parametrize("change", [one_weight, one_tensor_less, one_tensor_more, wider])
def test_a_model_that_the_payloads_do_not_give_is_refused_although_the_ledger_names_it(change: Lie) -> None:
    refused(Story({"model": altered(change)}), "FF-VERI-041")


def test_a_tensor_of_another_shape_is_refused() -> None:
    lie = altered(lambda tensors: {**tensors, "alpha": tensors["alpha"].T.copy()})
    refused(Story({"model": lie}), "FF-VERI-041")


@pytest.mark.parametrize(
    "said", [None, {}, {"farflung": "{}"}, {"farflung": '{"context":9,"format":1,"kind":"module"}'}]
)
def test_a_model_that_says_it_is_another_is_refused_although_the_ledger_names_it(said: Any) -> None:
    lie = lambda data: safetensors.numpy.save(safetensors.numpy.load(data), said)  # noqa: E731
    refused(Story({"model": lie}), "FF-VERI-044")


def test_a_model_that_cannot_be_read_is_refused() -> None:
    refused(Story({"model": lambda data: data[:-1]}), "FF-VERI-040")


@pytest.mark.parametrize("output", [OTHER, ZERO_HASH])
def test_a_settled_job_that_names_another_model_is_refused(output: Any) -> None:
    refused(Story({"finish": lambda op: replace(op, output=output)}), "FF-VERI-042")


def test_a_job_that_named_another_model_and_ran_out_is_refused() -> None:
    refused(Late({"finish": lambda op: replace(op, output=OTHER), "settle": nothing}), "FF-VERI-042")


def test_a_model_file_under_another_name_is_the_same_file() -> None:
    story = Story()
    job = story.chain.state.rows(JobRow)[0]
    assert job.output == digest(NS_OUTPUT, story.model)
    assert sum(t.size for t in safetensors.numpy.load(story.model).values()) == LAYOUT.size


def kept(chain: Chain, party: PeerId) -> bytes:
    """What a party keeps of a chain as its proof."""
    return write_receipt_file(chain.genesis, party, party_receipts(chain, party))


def test_what_each_party_keeps_is_read_and_held_against_the_blocks() -> None:
    story = Story(done=1)
    files = {f"provider-{i}": kept(story.chain, key.public) for i, key in enumerate((*PEERS, *VERIFIERS))}
    files["requester"] = kept(story.chain, REQUESTER.public)
    assert verify_run(replace(story.export(), receipt_files=files)).receipt_files == 6


@pytest.mark.parametrize(
    "files",
    [
        {"requester": 1, "provider-0": 1},
        {"requester": 1, "provider-0": 0},
        {"requester": 1},
        {"provider-0": 0},
        {"provider-0": 1, "provider-1": 1},
    ],
)
def test_a_receipt_of_another_party_than_its_name_says_is_refused(files: dict[str, int]) -> None:
    story = Story(done=1)
    parties = [kept(story.chain, key.public) for key in (REQUESTER, PEERS[0])]
    with pytest.raises(VerificationError, match="FF-VERI-160"):
        verify_run(replace(story.export(), receipt_files={name: parties[i] for name, i in files.items()}))


def test_a_receipt_file_of_a_fork_is_refused() -> None:
    """Genuine in itself: the validator certified two last blocks, and gave one party the other one."""
    story = Story(done=1)
    file = kept(forked(story.chain), PEERS[0].public)
    with pytest.raises(VerificationError, match="FF-VERI-030"):
        verify_run(replace(story.export(), receipt_files={"provider-0": file}))


@pytest.mark.parametrize(("place", "code"), [(-1, "FF-LEDG"), (0, "FF-LEDG-077")])
def test_a_receipt_file_that_was_altered_is_refused(place: int, code: str) -> None:
    story = Story(done=1)
    file = bytearray(kept(story.chain, PEERS[0].public))
    file[place] ^= 1
    with pytest.raises(VerificationError, match=code):
        verify_run(replace(story.export(), receipt_files={"provider-0": bytes(file)}))

"""The chain of a committee of one: what it proposes, what it adopts, what it refuses."""

from __future__ import annotations

import pytest
from ledger_history import signed
from ledger_world import ACTORS, JOB, NODES, PARAMS, REQUESTER, RICH, ROOTS, START, STRANGER, VALIDATOR, World, genesis
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import PolicyError, VerificationError
from farflung.core.ids import Signature
from farflung.core.money import CREDIT, MAX_CREDITS
from farflung.ledger import block_execution, transactions
from farflung.ledger.block import LOGICAL_MS, Block, BlockHeader, Genesis, read_block, state_root, txs_root, vote_for
from farflung.ledger.chain import Chain
from farflung.ledger.params import HOUR_MS
from farflung.ledger.state_transition import genesis_header, genesis_state
from farflung.ledger.tx_results import AlreadyAppliedResult, AppliedResult, FailedResult, RejectedResult
from farflung.ledger.votes import NO_CERTIFICATE, QuorumCertificate, VoteKind, certificate_of, sign_vote

A, B, C = NODES


def pay(chain: Chain, amount: int = 5) -> transactions.SignedTx:
    return signed(chain, A, transactions.Transfer(B.public, amount))


def step(chain: Chain, *txs: transactions.SignedTx) -> Block:
    block, _ = chain.propose(txs, chain.head.time + LOGICAL_MS)
    chain.adopt(block)
    return block


def sealed(header: BlockHeader, txs: tuple[transactions.SignedTx, ...], key: SigningKey = VALIDATOR) -> Block:
    return Block(header, txs, certified_by(header, [(0, key)], 1))


def certified_by(
    header: BlockHeader, signers: list[tuple[int, SigningKey]], seats: int, kind: VoteKind = VoteKind.FINALIZE
) -> QuorumCertificate:
    vote = vote_for(header, 1, kind)
    return certificate_of([sign_vote(key, seat, vote) for seat, key in signers], seats)


def test_replay_from_genesis_gives_the_same_root():
    world, chain = World(), Chain(genesis(), VALIDATOR)
    blocks = [
        step(chain, *(signed(chain, key, world.register()) for key in NODES)),
        step(chain, signed(chain, REQUESTER, world.create())),
        step(chain, signed(chain, REQUESTER, world.schedule(world.offer(A), world.offer(B)), fee=4)),
        step(chain, signed(chain, REQUESTER, world.progress(0, (A, 3)))),
        step(chain),
        step(chain, signed(chain, REQUESTER, transactions.JobCancel(JOB))),
    ]
    reader = Chain(genesis())
    for block in blocks:
        reader.adopt(read_block(encode(block)))
    assert (reader.head, reader.state.root) == (chain.head, chain.state.root)
    assert state_root(reader.state.entries) == chain.head.state


def test_genesis_names_the_chain():
    assert genesis(name="one").chain != genesis(name="two").chain
    assert Chain(genesis()).head == genesis_header(genesis())


@pytest.mark.parametrize(
    "change",
    [
        {"validators": ()},
        {"validators": (A.public, A.public)},
        {"validators": (A.public[:31],)},
        {"accounts": ((A.public, 1), (A.public, 2))},
        {"accounts": ((A.public, -1),)},
        {"accounts": ((A.public, MAX_CREDITS), (B.public, 1))},
        {"accounts": ((b"short", 1),)},
        {"params": replace(PARAMS, step_ms_max=0)},
        {"time": -1},
    ],
)
def test_unusable_genesis_is_refused(change: dict[str, object]):
    with pytest.raises(VerificationError, match="FF-LEDG-060"):
        genesis_state(replace(genesis(), **change))


def test_a_genesis_of_more_money_than_fits_names_the_most():
    with pytest.raises(VerificationError) as refused:
        genesis_state(replace(genesis(), accounts=((A.public, 9_000_000 * CREDIT), (B.public, 223_373 * CREDIT))))
    assert "9223373.000000 credits in all, and 9223372.036854775807 are the most" in refused.value.cause


def test_genesis_may_hold_all_the_money_that_numbers_allow():
    rich = replace(genesis(), accounts=((A.public, MAX_CREDITS),))
    assert genesis_state(rich).law.minted == MAX_CREDITS


# Time


@pytest.mark.parametrize(
    ("now", "step_ms"),
    [
        (START + 1, 1),
        (START + 70_000, 70_000),
        (START, 1),
        (0, 1),
        (-5, 1),
        (START + HOUR_MS, HOUR_MS),
        (START + HOUR_MS + 1, HOUR_MS),
        (1 << 62, HOUR_MS),
    ],
)
def test_a_clock_that_jumps_moves_the_ledger_by_an_hour_at_most(now: int, step_ms: int):
    chain = Chain(genesis(), VALIDATOR)
    block, _ = chain.propose((), now)
    assert block.header.time == START + step_ms
    Chain(genesis()).adopt(block)


def test_a_ledger_may_move_by_a_millisecond_a_block():
    slow = genesis(replace(PARAMS, step_ms_max=1))
    chain = Chain(slow, VALIDATOR)
    block, _ = chain.propose((), START + 1000)
    chain.adopt(block)
    assert chain.head.time == START + 1


@pytest.mark.parametrize("step_ms", [0, -1, HOUR_MS + 1])
def test_a_block_of_an_impossible_time_is_refused(step_ms: int):
    chain = Chain(genesis(), VALIDATOR)
    block, _ = chain.propose((), START + 1000)
    forged = sealed(replace(block.header, time=START + step_ms), ())
    with pytest.raises(VerificationError, match="FF-LEDG-062"):
        chain.adopt(forged)


# Proposing


def test_proposing_does_not_move_the_chain_until_adopted():
    chain = Chain(genesis(), VALIDATOR)
    block, (result,) = chain.propose([pay(chain)], START + 1000)
    assert (chain.head.height, len(chain.blocks), chain.find(transactions.tx_id(block.txs[0]))) == (0, 0, None)
    assert result == AppliedResult(transactions.tx_id(block.txs[0]), 1)
    chain.adopt(block)
    assert (chain.head, chain.find(transactions.tx_id(block.txs[0]))) == (block.header, 1)


def test_a_block_that_was_just_proposed_is_not_executed_twice(monkeypatch: pytest.MonkeyPatch):
    chain = Chain(genesis(), VALIDATOR)
    block, _ = chain.propose([pay(chain)], START + 1000)
    monkeypatch.setattr(block_execution, "apply_block", lambda *_, **__: pytest.fail("executed again"))
    chain.adopt(block)
    assert chain.head == block.header


def test_only_a_validator_proposes():
    for key in (None, A):
        with pytest.raises(PolicyError, match="FF-LEDG-068"):
            Chain(genesis(), key).propose((), START + 1000)


def test_a_transaction_handed_in_again_is_already_applied():
    chain = Chain(genesis(), VALIDATOR)
    good, bad = pay(chain), signed(chain, C, transactions.NodeLeave())
    step(chain, good, bad)
    step(chain)
    block, results = chain.propose([good, bad], chain.head.time + 1000)
    assert results == (
        AlreadyAppliedResult(transactions.tx_id(good), 1),
        AlreadyAppliedResult(transactions.tx_id(bad), 1, "FF-LEDG-020"),
    )
    assert block.txs == ()


def test_a_reader_that_replayed_knows_what_is_applied():
    chain, reader = Chain(genesis(), VALIDATOR), Chain(genesis(), VALIDATOR)
    good = pay(chain)
    reader.adopt(step(chain, good))
    assert reader.propose([good], 0)[1] == (AlreadyAppliedResult(transactions.tx_id(good), 1),)


def test_a_second_signature_does_not_make_a_second_transaction():
    chain = Chain(genesis(), VALIDATOR)
    good = pay(chain)
    step(chain, good)
    other = transactions.SignedTx(good.tx, Signature(bytes(64)))
    assert isinstance(chain.propose([other], 0)[1][0], AlreadyAppliedResult)


def test_results_keep_the_order_of_what_was_handed_in():
    chain = Chain(genesis(), VALIDATOR)
    old = pay(chain)
    step(chain, old)
    new, wrong = (
        pay(chain, 9),
        transactions.sign_tx(B, transactions.make_tx(ROOTS[0], B.public, 0, transactions.NodeLeave())),
    )
    failing = signed(chain, C, transactions.NodeLeave())
    huge = transactions.sign_tx(C, transactions.make_tx(chain.id, C.public, 0, transactions.Transfer(A.public, 1))).tx
    unencodable = transactions.SignedTx(replace(huge, fee=1 << 70), Signature(bytes(64)))
    block, results = chain.propose([old, new, new, wrong, failing, unencodable], 0)
    kinds = [AlreadyAppliedResult, AppliedResult, RejectedResult, RejectedResult, FailedResult, RejectedResult]
    assert [type(result) for result in results] == kinds
    assert block.txs == (new, failing)
    assert [getattr(result, "code", "") for result in results[2:4]] == ["FF-LEDG-008", "FF-LEDG-003"]


def test_a_full_block_leaves_the_rest_for_the_next(monkeypatch: pytest.MonkeyPatch):
    chain = Chain(genesis(), VALIDATOR)
    txs = [signed(chain, key, transactions.Transfer(STRANGER.public, 1)) for key in ACTORS[:5]]
    monkeypatch.setattr(limits, "BLOCK_TXS", 3)
    block, results = chain.propose(txs, 0)
    assert len(block.txs) == 3
    Chain(genesis()).adopt(block)
    assert [getattr(result, "code", "") for result in results] == ["", "", "", "FF-LEDG-007", "FF-LEDG-007"]
    monkeypatch.setattr(limits, "BLOCK_TXS", 100)
    monkeypatch.setattr(limits, "BLOCK_BYTES", limits.BLOCK_FRAME_BYTES + 2 * len(encode(txs[0])))
    block, results = chain.propose(txs, 0)
    assert len(block.txs) == 2
    assert len(encode(block)) <= limits.BLOCK_BYTES


# Adopting


def refused(block: Block, code: str, *, audits: bool = False) -> None:
    chain = Chain(genesis(), audits=audits)
    with pytest.raises(VerificationError, match=code):
        chain.adopt(block)
    assert chain.head.height == 0
    assert chain.state.root == genesis_state(genesis()).root


def honest() -> Block:
    chain = Chain(genesis(), VALIDATOR)
    return chain.propose([pay(chain)], START + 1000)[0]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"chain": ROOTS[0]}, "FF-LEDG-061"),
        ({"height": 2}, "FF-LEDG-061"),
        ({"height": 0}, "FF-LEDG-061"),
        ({"parent": ROOTS[0]}, "FF-LEDG-061"),
        ({"txs": ROOTS[0]}, "FF-LEDG-063"),
        ({"state": ROOTS[0]}, "FF-LEDG-065"),
        ({"epoch": 1}, "FF-LEDG-251"),
        ({"proposer": A.public}, "FF-LEDG-251"),
        ({"time": START + 1001}, "ok"),
    ],
)
def test_a_header_that_does_not_follow_is_refused(change: dict[str, object], code: str):
    block = honest()
    forged = sealed(replace(block.header, **change), block.txs)
    if code == "ok":
        Chain(genesis()).adopt(forged)
    else:
        refused(forged, code)


def test_transactions_other_than_the_headers_are_refused():
    block = honest()
    refused(replace(block, txs=()), "FF-LEDG-063")


def test_a_block_with_a_transaction_that_may_not_be_in_it_is_refused():
    block = honest()
    wrong = transactions.SignedTx(replace(block.txs[0].tx, nonce=7), block.txs[0].signature)
    for txs in ((wrong,), block.txs * 2):
        refused(sealed(replace(block.header, txs=txs_root(txs)), txs), "FF-LEDG-064")


def test_a_forged_signature_in_a_final_block_is_seen_by_a_second_reader_and_splits_no_replica():
    block = honest()
    txs = (transactions.SignedTx(block.txs[0].tx, Signature(bytes(64))),)
    forged = sealed(replace(block.header, txs=txs_root(txs)), txs)
    refused(forged, "FF-LEDG-064", audits=True)
    replica = Chain(genesis())
    replica.adopt(forged)
    assert replica.head == forged.header


def test_a_block_over_the_size_limits_is_refused(monkeypatch: pytest.MonkeyPatch):
    block = honest()
    monkeypatch.setattr(limits, "BLOCK_TXS", 0)
    refused(block, "FF-LEDG-067")
    monkeypatch.setattr(limits, "BLOCK_TXS", 1)
    monkeypatch.setattr(limits, "BLOCK_BYTES", limits.BLOCK_FRAME_BYTES + len(encode(block.txs)) - 1)
    refused(block, "FF-LEDG-067")


def test_a_block_signed_by_another_is_refused():
    block = honest()
    refused(replace(block, certificate=certified_by(block.header, [(0, A)], 1)), "FF-LEDG-066")


def test_a_block_without_certificate_is_refused():
    refused(replace(honest(), certificate=NO_CERTIFICATE), "FF-LEDG-066")


def test_a_block_that_is_notarized_only_is_not_final():
    block = honest()
    notarized = certified_by(block.header, [(0, VALIDATOR)], 1, VoteKind.NOTARIZE)
    refused(replace(block, certificate=notarized), "FF-LEDG-252")


def test_a_notarized_block_is_final_with_a_finalized_one_behind_it():
    chain = Chain(genesis(), VALIDATOR)
    first = step(chain, pay(chain))
    second = step(chain, pay(chain))
    weak = replace(first, certificate=certified_by(first.header, [(0, VALIDATOR)], 1, VoteKind.NOTARIZE))
    reader = Chain(genesis())
    assert [len(outcomes) for outcomes in reader.adopt_many([weak, second])] == [1, 1]
    assert (reader.head, reader.state.root) == (chain.head, chain.state.root)
    broken = replace(second, txs=())
    reader = Chain(genesis())
    with pytest.raises(VerificationError, match="FF-LEDG-063"):
        reader.adopt_many([weak, broken])
    assert reader.head.height == 0


def test_money_moved_by_the_validator_is_seen_by_a_reader():
    """A validator that writes itself money certifies a state that re-execution does not give."""
    richer: Genesis = replace(genesis(), accounts=((VALIDATOR.public, RICH * 9),))
    block, _ = Chain(richer, VALIDATOR).propose((), START + 1000)
    header = replace(block.header, chain=genesis().chain, parent=genesis_header(genesis()).id)
    refused(sealed(header, ()), "FF-LEDG-065")

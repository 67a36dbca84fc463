"""Form and signature are judged once, anywhere; what depends on the ledger is judged in every block."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_world import CAPS, NODES, REQUESTER, START, STRANGER, VALIDATOR, World
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash
from farflung.ledger import transactions
from farflung.ledger.mempool import CheckedTxCache
from farflung.ledger.rules import accounts
from farflung.ledger.rules.accounts import unsound
from farflung.ledger.state_transition import apply_block
from farflung.ledger.stateless_checks import TRUSTED, UNJUDGED, Stamp, is_sound
from farflung.ledger.tx_results import AppliedResult, RejectedResult

WORLD = World()


def stamps(*judged: transactions.SignedTx) -> frozenset[Stamp]:
    return frozenset((transactions.tx_id(signed), bytes(signed.signature)) for signed in judged)


def every_kind() -> list[transactions.SignedTx]:
    world = World()
    good = world.sign(REQUESTER, transactions.Transfer(STRANGER.public, 5))
    return [
        good,
        replace(good, signature=bytes(64)),
        replace(good, tx=replace(good.tx, fee=1)),
        world.sign(NODES[0], world.register()),
        world.sign(NODES[1], transactions.Transfer(STRANGER.public, -1)),
        world.sign(NODES[2], transactions.Transfer(b"short", 1)),  # type: ignore[arg-type]
        world.sign(NODES[2], *[transactions.NodeLeave()] * (limits.TX_OPS + 1)),
        transactions.sign_tx(REQUESTER, replace(good.tx, version=2)),
        transactions.sign_tx(REQUESTER, replace(good.tx, nonce=1)),
        transactions.sign_tx(NODES[1], transactions.make_tx(CAPS, NODES[1].public, 0, transactions.NodeLeave())),
    ]


def test_bytes_are_judged_as_the_value_is(subtests):
    for signed in every_kind():
        with subtests.test(signed=signed):
            fault = unsound(signed.tx.chain, signed)
            assert is_sound(encode(signed)) == (fault is None)


def test_only_what_may_be_in_a_block_of_some_ledger_is_sound():
    good = [place for place, signed in enumerate(every_kind()) if is_sound(encode(signed))]
    assert good == [0, 3, 8, 9]


@given(st.sampled_from(every_kind()[:4]), st.integers(0, 500), st.integers(1, 255), st.integers(0, 3))
@settings(max_examples=150)
def test_bytes_that_broke_are_judged_as_the_value_that_they_decode_to(
    signed: transactions.SignedTx, place: int, flip: int, cut: int
):
    data = bytearray(encode(signed))
    data[place % len(data)] ^= flip
    broken = bytes(data[: len(data) - cut])
    try:
        value = decode(broken, transactions.SignedTx, limits.TX_BYTES)
    except ProtocolError:
        assert not is_sound(broken)
    else:
        assert is_sound(broken) == (unsound(value.tx.chain, value) is None)


def test_a_block_of_judged_transactions_is_the_same_block():
    txs = every_kind()
    sound = stamps(*(signed for signed in txs if unsound(signed.tx.chain, signed) is None))
    state, outcomes = apply_block(WORLD.state, START + 1000, txs, VALIDATOR.public)
    same, again = apply_block(WORLD.state, START + 1000, txs, VALIDATOR.public, judged=sound)
    assert (state.root, outcomes) == (same.root, again)
    assert {type(outcome) for outcome in outcomes} == {AppliedResult, RejectedResult}


def test_what_is_judged_is_not_judged_again(monkeypatch: pytest.MonkeyPatch):
    good, other = every_kind()[0], every_kind()[3]
    asked: list[Hash] = []
    seen = SimpleNamespace(fault_of=accounts.fault_of)
    monkeypatch.setattr(
        accounts, "fault_of", lambda signed: asked.append(transactions.tx_id(signed)) or seen.fault_of(signed)
    )
    monkeypatch.setattr(accounts, "is_signed", lambda *_: True)
    apply_block(WORLD.state, START + 1000, [good, other], VALIDATOR.public, judged=stamps(good))
    assert asked == [transactions.tx_id(other)]
    asked.clear()
    apply_block(WORLD.state, START + 1000, [good, other], VALIDATOR.public, judged=TRUSTED)
    assert asked == []


def test_a_stamp_is_of_one_signature_alone():
    good = every_kind()[0]
    wrong = replace(good, signature=bytes([good.signature[0] ^ 1, *good.signature[1:]]))
    (outcome,) = apply_block(WORLD.state, START + 1000, [wrong], VALIDATOR.public, judged=stamps(good))[1]
    assert isinstance(outcome, RejectedResult)
    assert outcome.code == "FF-LEDG-002"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"chain": CAPS}, "FF-LEDG-003"),
        ({"nonce": 3}, "FF-LEDG-004"),
        ({"expires": 1}, "FF-LEDG-005"),
        ({"fee": 10**9}, "FF-LEDG-006"),
    ],
)
@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_stamp_says_nothing_of_what_the_ledger_decides(change: dict[str, object], code: str, is_trusted: bool):
    signed = transactions.sign_tx(REQUESTER, replace(every_kind()[0].tx, **change))
    assert is_sound(encode(signed))
    judged = TRUSTED if is_trusted else stamps(signed)
    (outcome,) = apply_block(WORLD.state, START + 1000, [signed], VALIDATOR.public, judged=judged)[1]
    assert isinstance(outcome, RejectedResult)
    assert outcome.code == code


def test_what_cannot_be_encoded_has_no_stamp():
    broken = replace(every_kind()[0], tx=replace(every_kind()[0].tx, nonce=2**70))
    unhashable = replace(every_kind()[0], signature=["x"])
    for judged in (UNJUDGED, TRUSTED):
        outcomes = apply_block(WORLD.state, START + 1000, [broken, unhashable], VALIDATOR.public, judged=judged)[1]
        assert [outcome.code for outcome in outcomes if isinstance(outcome, RejectedResult)] == ["FF-LEDG-001"] * 2


def test_the_pools_memory_is_stamps_of_the_sound():
    good, wrong = every_kind()[:2]
    verdicts = CheckedTxCache(lambda signed: unsound(WORLD.chain, signed))
    for signed in (good, wrong):
        assert (transactions.tx_id(signed), signed.signature) not in verdicts
        verdicts(signed)
    assert (transactions.tx_id(good), good.signature) in verdicts
    assert (transactions.tx_id(wrong), wrong.signature) not in verdicts

"""Channels of payers with relays: each rule of docs/protocol/ledger by itself."""

from __future__ import annotations

import ledger_world
import pytest
from ledger_history import history
from ledger_parties import party_receipts
from ledger_world import CAPS, NODES, REQUESTER, RICH, START, STRANGER, VALIDATOR, VERIFIERS, World
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.money import MAX_CREDITS
from farflung.core.relay_passes import GIB
from farflung.ledger import transactions
from farflung.ledger.receipt_file import check_receipt_file, read_receipt_file, write_receipt_file
from farflung.ledger.rules.relays import GRACE_MS
from farflung.ledger.table_rows import ChannelRow

A, B, C = NODES
RELAY = C  # a key like any other; it trains in no job here


def opened(**terms: int) -> World:
    world = World()
    assert world.do(REQUESTER, world.open_channel(RELAY, **terms)) == "ok"
    return world


def claim(world: World, *passages: transactions.PassReceipts, key=RELAY) -> str:  # type: ignore[no-untyped-def]
    return world.do(key, transactions.ChannelClaim(REQUESTER.public, passages))


def passage(world: World, serial: int, up: int = 100, down: int = 100, **fields: object) -> transactions.PassReceipts:
    """A sent `up`, of which B says that it got `down`."""
    return world.passage(serial, (A, up, 0), (B, 0, down), **{"relay": RELAY, **fields})


def test_a_relay_is_paid_the_smaller_and_the_payer_gets_the_rest() -> None:
    world = opened(amount=1000)
    assert world.balance(REQUESTER) == RICH - 1000
    assert claim(world, passage(world, 1, up=100, down=80)) == "ok"
    assert (world.balance(RELAY), world.channel(relay=RELAY).held) == (RICH + 80, 920)
    assert world.do(RELAY, transactions.ChannelClose(REQUESTER.public)) == "ok"
    assert world.balance(REQUESTER) == RICH - 80
    assert not world.channel(relay=RELAY).is_open


def test_a_pass_is_paid_once_and_in_order() -> None:
    world = opened()
    one = passage(world, 5)
    assert claim(world, one) == "ok"
    assert claim(world, one) == "FF-LEDG-095"
    assert claim(world, passage(world, 5, up=200, down=200)) == "FF-LEDG-095"
    assert claim(world, passage(world, 4)) == "FF-LEDG-095"
    assert claim(world, passage(world, 7), passage(world, 6)) == "FF-LEDG-095"
    assert claim(world, passage(world, 6), passage(world, 6)) == "FF-LEDG-095"
    assert claim(world, passage(world, 6), passage(world, 7)) == "ok"
    assert world.balance(RELAY) == RICH + 300


def test_nothing_is_paid_after_the_close_or_by_an_older_opening() -> None:
    world = opened()
    old = passage(world, 1)
    assert world.do(RELAY, transactions.ChannelClose(REQUESTER.public)) == "ok"
    assert claim(world, old) == "FF-LEDG-091"
    assert world.do(RELAY, transactions.ChannelClose(REQUESTER.public)) == "FF-LEDG-091"
    assert world.do(REQUESTER, world.open_channel(RELAY)) == "ok"
    assert world.channel(relay=RELAY).opening == 2
    assert claim(world, old) == "FF-LEDG-093"
    assert claim(world, passage(world, 1, opening=2)) == "ok"


def test_a_channel_pays_no_more_than_it_holds() -> None:
    world = opened(amount=150)
    assert claim(world, passage(world, 1)) == "ok"
    assert claim(world, passage(world, 2)) == "ok"
    assert (world.balance(RELAY), world.channel(relay=RELAY).held) == (RICH + 150, 0)
    assert world.do(REQUESTER, world.open_channel(RELAY, amount=500)) == "ok"  # adds
    assert claim(world, passage(world, 3)) == "ok"
    assert world.balance(RELAY) == RICH + 300


def test_money_that_goes_round_in_one_opening_never_outgrows_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rich = 1 << 60
    monkeypatch.setattr(ledger_world, "RICH", rich)
    world = World()
    for serial in range(1, 20):  # 2^64 is no number of a row: a block that made one would end every validator
        amount = world.balance(REQUESTER)
        assert world.do(REQUESTER, world.open_channel(RELAY, amount=amount, price=MAX_CREDITS)) == "ok"
        assert claim(world, passage(world, serial, 1 << 40, 1 << 40)) == "ok"
        if world.balance(RELAY) == rich:  # nothing came any more
            break
        assert world.do(RELAY, transactions.Transfer(REQUESTER.public, world.balance(RELAY) - rich)) == "ok"
    assert (world.channel(relay=RELAY).paid, world.balance(RELAY)) == (MAX_CREDITS, rich)
    assert world.do(RELAY, transactions.ChannelClose(REQUESTER.public)) == "ok"
    assert world.balance(REQUESTER) == rich


def test_splitting_a_claim_brings_nothing_more() -> None:
    price = GIB // 3
    whole, split = opened(price=price), opened(price=price)
    assert claim(whole, *(passage(whole, i, 10, 10) for i in range(1, 6))) == "ok"
    for i in range(1, 6):
        assert claim(split, passage(split, i, 10, 10)) == "ok"
    assert split.balance(RELAY) == whole.balance(RELAY) == RICH + 16


def test_the_quota_of_a_pass_is_the_most_that_is_billed() -> None:
    world = opened()
    assert claim(world, passage(world, 1, quota=30)) == "ok"
    assert world.channel(relay=RELAY).carried == 30


def test_what_the_payer_makes_good_is_billed_within_the_quota() -> None:
    whole, bounded = opened(), opened()
    assert claim(whole, passage(whole, 1, lost=7)) == "ok"
    assert whole.channel(relay=RELAY).carried == 100 + 7
    assert claim(bounded, passage(bounded, 1, lost=7, quota=103)) == "ok"
    assert bounded.channel(relay=RELAY).carried == 103


def test_a_group_is_billed_for_each_member_that_received() -> None:
    world = opened()
    holders = (A, B, VALIDATOR)
    fan = world.passage(1, (A, 50, 0), (B, 0, 50), (VALIDATOR, 0, 40), holders=holders, relay=RELAY)
    assert claim(world, fan) == "ok"
    assert world.channel(relay=RELAY).carried == 90


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"payer": A}, "FF-LEDG-093"),
        ({"relay": VALIDATOR}, "FF-LEDG-093"),
        ({"opening": 2}, "FF-LEDG-093"),
        ({"chain": CAPS}, "FF-LEDG-093"),
        ({"quota": limits.PASS_BYTES + 1}, "FF-LEDG-093"),
        ({"lost": limits.PASS_BYTES + 1}, "FF-LEDG-093"),
        ({"holders": (A, B, RELAY)}, "FF-LEDG-093"),
        ({"signer": RELAY}, "FF-LEDG-094"),
    ],
)
def test_a_pass_of_something_else_is_refused(fields: dict[str, object], code: str) -> None:
    world = opened()
    assert claim(world, passage(world, 1, **fields)) == code
    assert world.balance(RELAY) == RICH


def test_receipts_of_others_of_something_else_or_twice_are_refused() -> None:
    world = opened()
    good = passage(world, 1)
    toll, (a, b) = good.signed.toll, good.receipts
    forged = world.receipt(toll, B, RELAY, 0, 100)  # the relay signs for B
    other = world.receipt(replace(toll, serial=2), B, B, 0, 100)
    stranger = world.receipt(toll, STRANGER, STRANGER, 0, 100)
    for bad in ((a, forged), (a, other), (a, b, b), (a, b, stranger), (a, replace(b, signer=B.public[::-1]))):
        assert claim(world, transactions.PassReceipts(good.signed, bad)) == "FF-LEDG-096"
    assert claim(world, transactions.PassReceipts(good.signed, (a,))) == "ok"  # one side alone is worth nothing
    assert world.balance(RELAY) == RICH


def test_a_certified_node_key_signs_until_it_is_revoked() -> None:
    world = opened()
    node = STRANGER
    assert world.do(B, transactions.KeyCertify(node.public, 1, 2_000_000_000, 0)) == "ok"
    made = passage(world, 1)
    toll, (a, _) = made.signed.toll, made.receipts
    by_node = transactions.PassReceipts(made.signed, (a, world.receipt(toll, B, node, 0, 100)))
    assert claim(world, by_node) == "ok"
    assert world.balance(RELAY) == RICH + 100
    assert world.do(B, transactions.KeyRevoke(1)) == "ok"
    again = passage(world, 2)
    said = (again.receipts[0], world.receipt(again.signed.toll, B, node, 0, 100))
    assert claim(world, transactions.PassReceipts(again.signed, said)) == "FF-LEDG-096"


def test_only_the_relay_claims_and_closes() -> None:
    world = opened()
    for key in (REQUESTER, A, VERIFIERS[0]):
        assert claim(world, passage(world, 1), key=key) == "FF-LEDG-091"
        assert world.do(key, transactions.ChannelClose(REQUESTER.public)) == "FF-LEDG-091"
    assert world.channel(relay=RELAY).held == 1000


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        ({"amount": 0}, "FF-LEDG-090"),
        ({"relay": REQUESTER}, "FF-LEDG-090"),
        ({"expires": START + 1000}, "FF-LEDG-090"),
        ({"expires": START + 200_000}, "FF-LEDG-090"),
        ({"amount": RICH + 1}, "FF-LEDG-010"),
    ],
)
def test_terms_of_a_channel_have_bounds(terms: dict[str, object], code: str) -> None:
    world = World()
    assert world.do(REQUESTER, world.open_channel(**{"relay": RELAY, **terms})) == code


def test_an_open_channel_keeps_its_price_and_ends_no_earlier() -> None:
    world = opened(expires=START + 60_000)
    for terms in ({"price": 1}, {"expires": START + 50_000}):
        assert world.do(REQUESTER, world.open_channel(RELAY, **terms)) == "FF-LEDG-092"
    assert world.do(REQUESTER, world.open_channel(RELAY, expires=START + 70_000)) == "ok"
    assert (world.channel(relay=RELAY).held, world.channel(relay=RELAY).expires) == (2000, START + 70_000)


def test_the_clock_closes_a_channel_after_a_grace_in_which_the_relay_may_claim() -> None:
    world = opened(expires=START + 60_000)
    world.send(after=60_000)
    assert world.channel(relay=RELAY).is_open
    assert claim(world, passage(world, 1)) == "ok"
    world.send(after=GRACE_MS)
    assert not world.channel(relay=RELAY).is_open
    assert world.balance(REQUESTER) == RICH - 100
    assert claim(world, passage(world, 2)) == "FF-LEDG-091"


def test_one_claim_has_so_many_passes_and_receipts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLAIM_PASSES", 3)
    monkeypatch.setattr(limits, "CLAIM_RECEIPTS", 5)
    world = opened()
    assert claim(world) == "FF-LEDG-097"
    assert claim(world, *(world.passage(i, relay=RELAY) for i in range(1, 5))) == "FF-LEDG-097"
    assert claim(world, *(passage(world, i) for i in range(1, 4))) == "FF-LEDG-097"
    assert claim(world, passage(world, 1), passage(world, 2)) == "ok"


def test_a_relays_receipt_file_holds_its_channels() -> None:
    chain = history()
    data = write_receipt_file(chain.genesis, VALIDATOR.public, party_receipts(chain, VALIDATOR.public))
    rows = check_receipt_file(read_receipt_file(data), chain.id)
    (row,) = [row for row in rows if isinstance(row, ChannelRow)]
    assert (row.payer, row.relay, row.carried, row.paid) == (C.public, VALIDATOR.public, 68, 68)

"""A relay's books of a pass, the counting of its parties, and the rules of the pass itself, without a socket."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.core import limits, tolls
from farflung.core.crypto import local_key
from farflung.core.ids import Hash, PeerId
from farflung.core.tolls import Pass, Receipt, SignedReceipt
from farflung.net import passes
from farflung.net.metering import Books, Standing
from farflung.net.receipts import Tally
from farflung.net.tickets import Status

KEYS = {local_key(8, name).public: local_key(8, name) for name in "abc"}
A, B, C = sorted(KEYS)
PAYER, RELAY, OTHER = (local_key(8, name) for name in ("payer", "relay", "other"))
NOW = 1_800_000_000
TOLL = Pass(Hash(bytes(32)), PAYER.public, RELAY.public, 3, 7, (A, B, C), 10_000, 0, NOW - 5, NOW + 600)
SIGNED = tolls.sign_pass(PAYER, TOLL)
WINDOW = 100


def said(who: PeerId, up: int, down: int, **fields: object) -> SignedReceipt:
    plain = Receipt(TOLL.chain, TOLL.payer, TOLL.relay, 3, 7, who, up, down)
    return tolls.sign_receipt(KEYS[who], replace(plain, **fields))


# The pass


def test_a_pass_counts_for_its_holders_at_its_relay() -> None:
    assert passes.judge(SIGNED, RELAY.public, (A, B)) == TOLL


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"relay": OTHER.public}, Status.ELSEWHERE),
        ({"holders": tuple(sorted([A, OTHER.public]))}, Status.NO_HOLDER),
        ({"payer": OTHER.public}, Status.FORGED),
        ({"holders": (A,)}, Status.MALFORMED),
        ({"quota": -1}, Status.MALFORMED),
    ],
)
def test_a_pass_that_breaks_a_rule_is_refused_for_it(fields: dict[str, object], status: Status) -> None:
    wrong = tolls.sign_pass(PAYER, replace(TOLL, **fields))
    assert passes.judge(wrong, RELAY.public, (A, B)) is status


def test_no_pass_and_a_changed_pass_are_refused() -> None:
    assert passes.judge(None, RELAY.public, (A, B)) is Status.UNPAID
    changed = replace(SIGNED, toll=replace(TOLL, quota=TOLL.quota + 1))
    assert passes.judge(changed, RELAY.public, (A, B)) is Status.FORGED


@pytest.mark.parametrize(
    ("begins", "expires", "is_current"),
    [
        (0, 600, True),
        (limits.PASS_SKEW_SECONDS, limits.PASS_SECONDS, True),
        (0, limits.PASS_SECONDS, True),
        (0, limits.PASS_SECONDS + 1, False),
        (limits.PASS_SKEW_SECONDS + 1, 600, False),
        (-600, 0, False),
        (-600, 301, False),
        (3600, 4200, False),  # the payer's clock is an hour ahead
        (-3600, -3000, False),  # or behind
    ],
)
def test_a_pass_counts_for_minutes(begins: int, expires: int, is_current: bool) -> None:
    toll = replace(TOLL, begins=NOW + begins, expires=NOW + expires)
    assert passes.is_current(toll, NOW) is is_current


def test_a_renewal_takes_nothing_away() -> None:
    more = replace(TOLL, quota=TOLL.quota + 5, expires=TOLL.expires + 60)
    assert passes.renews(more, TOLL)
    wrong: list[dict[str, object]] = [
        {"quota": TOLL.quota - 1},
        {"expires": TOLL.expires},
        {"holders": (A, B)},
        {"serial": 8},
        {"opening": 4},
        {"chain": Hash(bytes([1]) * 32)},
    ]
    for fields in wrong:
        assert not passes.renews(replace(more, **fields), TOLL), fields


# The books


def test_a_party_that_signs_nothing_is_not_carried_for_after_one_window() -> None:
    books = Books(SIGNED, WINDOW)
    assert books.moved(A, B, WINDOW) is Standing.OPEN
    assert books.moved(A, B, 1) is Standing.HELD
    assert books.sign(said(A, WINDOW + 1, 0))
    assert books.standing(A, B) is Standing.HELD  # B lags as well
    assert books.standing(A, C) is Standing.OPEN
    assert books.sign(said(B, 0, WINDOW + 1))
    assert books.standing(A, B) is Standing.OPEN
    assert books.billed == WINDOW + 1


def test_the_quota_ends_it_and_a_renewal_goes_on() -> None:
    books = Books(SIGNED, 1 << 30)
    assert books.moved(A, B, TOLL.quota - 1) is Standing.OPEN
    assert books.moved(A, B, 1) is Standing.USED_UP
    more = replace(TOLL, quota=2 * TOLL.quota, expires=TOLL.expires + 60)
    assert books.renew(tolls.sign_pass(PAYER, more))
    assert books.standing(A, B) is Standing.OPEN
    assert not books.renew(SIGNED)
    assert books.signed.toll == more


def test_a_fan_out_takes_once_and_gives_to_each() -> None:
    books = Books(SIGNED, WINDOW)
    books.taken(A, 50)
    for receiver in (B, C):
        books.given(receiver, 50)
    assert books.carried == 100
    for receipt in (said(A, 50, 0), said(B, 0, 50), said(C, 0, 50)):
        assert books.sign(receipt)
    assert books.billed == 100
    assert [books.lag(party) for party in (A, B, C)] == [0, 0, 0]


@pytest.mark.parametrize(
    "fields",
    [
        {"relay": OTHER.public},
        {"payer": OTHER.public},
        {"serial": 8},
        {"opening": 2},
        {"chain": Hash(bytes([1]) * 32)},
        {"party": OTHER.public},
        {"sent": -1},
        {"received": limits.PASS_BYTES + 1},  # the ledger would refuse the whole claim
    ],
)
def test_a_receipt_of_something_else_changes_nothing(fields: dict[str, object]) -> None:
    books = Books(SIGNED, WINDOW)
    assert not books.sign(said(A, 5, 5, **fields))
    assert books.receipts == ()


steps = st.tuples(st.sampled_from([A, B, C]), st.integers(0, 4000), st.integers(0, 4000))


@settings(max_examples=40)
@given(st.lists(steps, max_size=8), st.integers(0, 1 << 32))
def test_replays_and_other_orders_of_receipts_change_nothing(
    grown: list[tuple[PeerId, int, int]], seed: int
) -> None:
    """What each party says counts upwards; whatever the way of the receipts, the last of each counts."""
    totals: dict[PeerId, tuple[int, int]] = {}
    receipts = []
    for party, sent, received in grown:
        before = totals.get(party, (0, 0))
        totals[party] = (before[0] + sent, before[1] + received)
        receipts.append(said(party, *totals[party]))
    straight, shuffled = Books(SIGNED), Books(SIGNED)
    for receipt in receipts:
        straight.sign(receipt)
    again = receipts * 2
    random.Random(seed).shuffle(again)
    for receipt in again:
        shuffled.sign(receipt)
    assert shuffled.receipts == straight.receipts
    assert shuffled.billed == straight.billed == tolls.billed(TOLL.quota, totals)


moves = st.tuples(st.permutations([A, B, C]), st.integers(1, 60))


@settings(max_examples=60)
@given(st.lists(st.one_of(moves, st.sampled_from([A, B, C])), max_size=60))
def test_of_what_is_carried_for_two_no_more_than_their_windows_is_unbilled(events: list[object]) -> None:
    """The relay stops at the first Standing that is not OPEN, as `net.io.tollgate` does, with 60 bytes under way."""
    books = Books(SIGNED, WINDOW)
    counts = {party: [0, 0] for party in (A, B, C)}
    for event in events:
        if isinstance(event, bytes):
            books.sign(said(PeerId(event), *counts[PeerId(event)]))
            continue
        (sender, receiver, _), size = event  # type: ignore[misc]
        if books.standing(sender, receiver) is Standing.OPEN:
            books.moved(sender, receiver, size)
            counts[sender][0] += size
            counts[receiver][1] += size
        assert books.billed <= books.carried <= TOLL.quota + 60
        assert books.carried - books.billed <= sum(books.lag(party) for party in counts)
        assert all(books.lag(party) <= WINDOW + 60 for party in counts)


# The parties


def test_a_receipt_is_due_after_so_many_bytes_and_says_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECEIPT_BYTES", 100)
    due: list[int] = []
    tally = Tally(TOLL, A, lambda: due.append(tally.unsigned))
    tally.sent(60)
    assert due == []
    tally.received(45)
    assert due == [105]
    tally.sent(10)
    assert due == [105]
    receipt = tally.receipt()
    assert (receipt.party, receipt.sent, receipt.received) == (A, 70, 45)
    assert tolls.is_of(receipt, TOLL)
    assert tally.unsigned == 0
    tally.sent(250)
    assert due == [105, 250]
    tally.receipt()
    tally.unsay()
    assert tally.unsigned == 365

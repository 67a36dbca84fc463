"""A relay's books of a pass, the counting of its parties, and the rules of the pass itself, without a socket."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.core import limits, relay_passes
from farflung.core.crypto import local_key
from farflung.core.ids import Hash, PeerId
from farflung.core.relay_passes import RelayPass, RelayReceipt, SignedRelayPass, SignedRelayReceipt
from farflung.net import relay_pass_checks
from farflung.net.relay_meter import PassMeter, PassStatus, PayerExposure
from farflung.net.relay_receipts import ReceiptTally
from farflung.net.relay_tickets import TicketStatus

KEYS = {local_key(8, name).public: local_key(8, name) for name in "abc"}
A, B, C = sorted(KEYS)
PAYER, RELAY, OTHER = (local_key(8, name) for name in ("payer", "relay", "other"))
NOW = 1_800_000_000
TOLL = RelayPass(Hash(bytes(32)), PAYER.public, RELAY.public, 3, 7, (A, B, C), 10_000, 0, NOW - 5, NOW + 600)
SIGNED = relay_passes.sign_pass(PAYER, TOLL)
WINDOW = 100


def said(who: PeerId, up: int, down: int, **fields: object) -> SignedRelayReceipt:
    plain = RelayReceipt(TOLL.chain, TOLL.payer, TOLL.relay, 3, 7, who, up, down)
    return relay_passes.sign_receipt(KEYS[who], replace(plain, **fields))


# The pass


def test_a_pass_counts_for_its_holders_at_its_relay() -> None:
    assert relay_pass_checks.judge(SIGNED, RELAY.public, (A, B)) == TOLL


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"relay": OTHER.public}, TicketStatus.ELSEWHERE),
        ({"holders": tuple(sorted([A, OTHER.public]))}, TicketStatus.NO_HOLDER),
        ({"payer": OTHER.public}, TicketStatus.FORGED),
        ({"holders": (A,)}, TicketStatus.MALFORMED),
        ({"quota": -1}, TicketStatus.MALFORMED),
    ],
)
def test_a_pass_that_breaks_a_rule_is_refused_for_it(fields: dict[str, object], status: TicketStatus) -> None:
    wrong = relay_passes.sign_pass(PAYER, replace(TOLL, **fields))
    assert relay_pass_checks.judge(wrong, RELAY.public, (A, B)) is status


def test_no_pass_and_a_changed_pass_are_refused() -> None:
    assert relay_pass_checks.judge(None, RELAY.public, (A, B)) is TicketStatus.UNPAID
    changed = replace(SIGNED, toll=replace(TOLL, quota=TOLL.quota + 1))
    assert relay_pass_checks.judge(changed, RELAY.public, (A, B)) is TicketStatus.FORGED


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
    assert relay_pass_checks.is_current(toll, NOW) is is_current


def test_a_renewal_takes_nothing_away() -> None:
    more = replace(TOLL, quota=TOLL.quota + 5, expires=TOLL.expires + 60)
    assert relay_pass_checks.renews(more, TOLL)
    wrong: list[dict[str, object]] = [
        {"quota": TOLL.quota - 1},
        {"lost": -1},
        {"expires": TOLL.expires},
        {"holders": (A, B)},
        {"serial": 8},
        {"opening": 4},
        {"chain": Hash(bytes([1]) * 32)},
    ]
    for fields in wrong:
        assert not relay_pass_checks.renews(replace(more, **fields), TOLL), fields


# The books


def test_a_party_that_signs_nothing_is_not_carried_for_after_half_a_window() -> None:
    books = PassMeter(SIGNED, PayerExposure(2 * WINDOW))
    assert books.moved(A, B, WINDOW) is PassStatus.OPEN
    assert books.moved(A, B, 1) is PassStatus.HELD
    assert books.sign(said(A, WINDOW + 1, 0))
    assert books.standing(A, B) is PassStatus.HELD  # B lags as well
    assert books.standing(A, C) is PassStatus.OPEN
    assert books.sign(said(B, 0, WINDOW + 1))
    assert books.standing(A, B) is PassStatus.OPEN
    assert books.billed == WINDOW + 1


def test_the_quota_ends_it_and_a_renewal_goes_on() -> None:
    books = PassMeter(SIGNED, PayerExposure(1 << 30))
    assert books.moved(A, B, TOLL.quota - 1) is PassStatus.OPEN
    assert books.moved(A, B, 1) is PassStatus.USED_UP
    more = replace(TOLL, quota=2 * TOLL.quota, expires=TOLL.expires + 60)
    assert books.renew(relay_passes.sign_pass(PAYER, more))
    assert books.standing(A, B) is PassStatus.OPEN
    assert not books.renew(SIGNED)
    assert books.signed.toll == more


def test_a_fan_out_takes_once_and_gives_to_each() -> None:
    books = PassMeter(SIGNED, PayerExposure(WINDOW))
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
    books = PassMeter(SIGNED, PayerExposure(WINDOW))
    assert not books.sign(said(A, 5, 5, **fields))
    assert books.receipts == ()


steps = st.tuples(st.sampled_from([A, B, C]), st.integers(0, 4000), st.integers(0, 4000))


@settings(max_examples=40)
@given(st.lists(steps, max_size=8), st.integers(0, 1 << 32))
def test_replays_and_other_orders_of_receipts_change_nothing(grown: list[tuple[PeerId, int, int]], seed: int) -> None:
    """What each party says counts upwards; whatever the way of the receipts, the last of each counts."""
    totals: dict[PeerId, tuple[int, int]] = {}
    receipts = []
    for party, sent, received in grown:
        before = totals.get(party, (0, 0))
        totals[party] = (before[0] + sent, before[1] + received)
        receipts.append(said(party, *totals[party]))
    straight, shuffled = PassMeter(SIGNED), PassMeter(SIGNED)
    for receipt in receipts:
        straight.sign(receipt)
    again = receipts * 2
    random.Random(seed).shuffle(again)
    for receipt in again:
        shuffled.sign(receipt)
    assert shuffled.receipts == straight.receipts
    assert shuffled.billed == straight.billed == relay_passes.billed(TOLL.quota, totals)


def serial_of(serial: int, quota: int = TOLL.quota) -> SignedRelayPass:
    return relay_passes.sign_pass(PAYER, replace(TOLL, serial=serial, quota=quota))


moves = st.tuples(st.permutations([A, B, C]), st.integers(1, 60))
events = st.one_of(moves, st.sampled_from([A, B, C]), st.integers(0, 2 * WINDOW))


@settings(max_examples=60)
@given(st.lists(st.tuples(events, st.integers(0, 2)), max_size=60), st.integers(0, 3 * WINDOW))
def test_under_all_passes_of_a_payer_one_window_cannot_be_claimed_at_most(
    events: list[tuple[object, int]], owed: int
) -> None:
    """The relay stops at the first Standing that is not OPEN, as `net.io.relay_metering_gate` does, with 60 bytes
    under way.

    An integer among the events: the payer makes so many bytes good.
    """
    account = PayerExposure(WINDOW, owed)
    every = [PassMeter(serial_of(serial), account) for serial in range(3)]
    counts = [{party: [0, 0] for party in (A, B, C)} for _ in every]
    for event, which in events:
        books, count = every[which], counts[which]
        toll = books.signed.toll
        if isinstance(event, bytes):
            books.sign(said(PeerId(event), *count[PeerId(event)], serial=which))
        elif isinstance(event, int):
            good = replace(toll, lost=toll.lost + event, expires=toll.expires + 1)
            assert books.renew(relay_passes.sign_pass(PAYER, good))
        else:
            (sender, receiver, _), size = event  # type: ignore[misc]
            if books.standing(sender, receiver) is PassStatus.OPEN:
                books.moved(sender, receiver, size)
                count[sender][0] += size
                count[receiver][1] += size
        assert books.billed <= books.carried <= TOLL.quota + 60
        unsigned = {party: books._parties[party].unsigned for party in count}
        assert books.carried - books.billed <= sum(unsigned.values())
        assert all(max(0, size - books.signed.toll.lost) <= books.lag(party) for party, size in unsigned.items())
        risk = sum(books.carried - books.billed for books in every)
        assert (account.unsigned, account.carried) == (risk, risk + sum(books.billed for books in every))
        claims = sum(claimable(books) for books in every)
        assert account.owed >= owed + account.carried - claims
        assert owed + account.carried - claims <= max(owed, WINDOW + 60)


def claimable(books: PassMeter) -> int:
    """Bytes that the ledger would pay for."""
    last = {each.receipt.party: (each.receipt.sent, each.receipt.received) for each in books.receipts}
    return relay_passes.billed(books.signed.toll.quota, last, books.signed.toll.lost)


def test_what_the_payer_makes_good_gives_its_room_back_and_a_party_that_lost_it_goes_on() -> None:
    books = PassMeter(SIGNED, PayerExposure(WINDOW))
    assert books.moved(A, B, WINDOW) is PassStatus.HELD
    books.sign(said(A, WINDOW, 0))
    assert books.standing(A, C) is PassStatus.HELD  # what B lost is at risk still
    good = replace(TOLL, lost=WINDOW, expires=TOLL.expires + 1)
    assert books.renew(relay_passes.sign_pass(PAYER, good))
    assert (books.account.owed, books.lag(B)) == (0, 0)
    assert books.standing(A, B) is PassStatus.OPEN
    books.sign(said(B, 0, WINDOW))  # it was not lost: the payer has paid for it twice, and has a credit
    assert books.account.room == WINDOW
    assert books.moved(A, B, WINDOW // 2) is PassStatus.OPEN
    assert books.lag(B) == WINDOW // 2


def test_what_was_made_good_is_not_forgotten_with_the_relays_process() -> None:
    account = PayerExposure(WINDOW)
    good = relay_passes.sign_pass(PAYER, replace(TOLL, lost=50))
    books = PassMeter(good, account)
    books.restore((said(A, 100, 0), said(B, 0, 100)))
    assert (account.carried, account.owed, account.room) == (150, 0, WINDOW)
    assert books.moved(A, B, 2 * WINDOW) is PassStatus.HELD
    assert account.owed == 2 * WINDOW


@given(st.integers(2, 12))
def test_parties_that_never_sign_leave_room_for_those_that_do(silent: int) -> None:
    """Each of them takes half of what is left; whoever signs goes on, and wins room back by it."""
    account = PayerExposure(1 << 21)
    for serial in range(silent):
        books = PassMeter(serial_of(serial, 1 << 40), account)
        while books.moved(A, B, 1 + account.room // 64) is PassStatus.OPEN:
            pass
    before = account.room
    assert before > 0
    books, total = PassMeter(serial_of(silent, 1 << 40), account), 0
    for _ in range(64):
        assert books.moved(A, B, before // 2) is PassStatus.OPEN
        total += before // 2
        books.sign(said(A, total, 0, serial=silent))
        books.sign(said(B, 0, total, serial=silent))
    assert account.room == before
    assert account.unsigned <= account.window


def test_a_party_is_asked_before_it_is_held_and_once_for_so_much() -> None:
    books = PassMeter(SIGNED, PayerExposure(2 * WINDOW))
    books.moved(A, B, WINDOW // 2)
    assert books.due((A, B)) == []
    books.moved(A, B, WINDOW // 2)
    assert books.standing(A, B) is PassStatus.OPEN
    assert books.due((A, B)) == [A, B]
    assert books.due((A, B)) == []
    books.sign(said(A, WINDOW, 0))
    books.sign(said(B, 0, WINDOW))
    books.moved(A, B, WINDOW)
    assert books.due((A, B)) == [A, B]


# A relay that lies to those that were started anew

wayward = st.one_of(
    st.tuples(st.just("carry"), st.booleans(), st.integers(1, 200)),
    st.tuples(st.just("die"), st.booleans(), st.integers(0, 5)),
    st.tuples(st.just("sign"), st.booleans(), st.just(0)),
    st.tuples(st.just("lie"), st.booleans(), st.integers(0, 1 << 20)),
)


class Life:
    """A party over all its lives, as it counted and as the relay has its receipts."""

    def __init__(self, key: PeerId) -> None:
        self.key, self.lives, self.sent, self.received = key, 1, 0, 0
        self.signed: list[RelayReceipt] = []
        self.tally = ReceiptTally(TOLL, key, lambda: None)

    def begin(self, shown: int) -> None:
        """A new life, to which the relay shows one of its receipts, and perhaps not the last."""
        self.lives += 1
        self.tally = ReceiptTally(TOLL, self.key, lambda: None)
        if self.signed:
            self.tally.recall(self.signed[-1 - shown % len(self.signed)])

    def most(self, count: int) -> int:
        return count + limits.RECEIPT_CREDIT * (self.lives - 1)


@settings(max_examples=300)
@given(st.lists(wayward, max_size=60))
def test_a_lie_to_who_was_started_anew_is_worth_a_credit_a_life_and_bounded_by_the_other_end(
    events: list[tuple[str, bool, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "RECEIPT_CREDIT", WINDOW)
        ends = Life(A), Life(B)
        for what, is_b, size in events:
            one, other = ends[is_b], ends[not is_b]
            if what == "carry":
                one.sent += size
                other.received += size
                one.tally.sent(size)
                other.tally.received(size)
            elif what == "die":
                one.begin(size)
            elif what == "lie":
                one.tally.take_over(size, size)
            if what in ("sign", "lie"):
                one.signed.append(one.tally.receipt())
        a, b = ends
        books = PassMeter(SIGNED)
        for each in (*a.signed, *b.signed):
            books.sign(relay_passes.sign_receipt(KEYS[each.party], each))
        bound = min(a.most(a.sent), b.most(b.received)) + min(b.most(b.sent), a.most(a.received))
        assert books.billed <= bound
        for end in ends:
            last = books.last(end.key)
            if last is not None and end.lives == 1:
                assert (last.receipt.sent, last.receipt.received) <= (end.sent, end.received)


def test_an_earlier_life_is_believed_only_with_its_receipt_and_once() -> None:
    fresh = ReceiptTally(TOLL, A, lambda: None)
    fresh.recall(said(A, 0, 0).receipt)
    assert not fresh.take_over(50, 50)
    for wrong in (said(A, 5, 5, serial=8), said(B, 5, 5)):
        fresh.recall(wrong.receipt)
        assert not fresh.take_over(50, 50)
    fresh.recall(said(A, 5, 6).receipt)
    assert fresh.take_over(50, 60)
    assert (fresh.receipt().sent, fresh.receipt().received) == (50, 60)
    most = limits.RECEIPT_CREDIT
    assert fresh.take_over(most, 2 * most)
    assert sum((fresh.receipt().sent, fresh.receipt().received)) == most + 5 + 6
    assert not fresh.take_over(9 * most, 9 * most)


def test_nothing_is_taken_over_while_nobody_knows_which_bytes_the_relay_counted() -> None:
    tally = ReceiptTally(TOLL, A, lambda: None)
    tally.recall(said(A, 5, 5).receipt)
    for _ in range(2):
        tally.opened()
    tally.sent(10)
    tally.ended()
    assert not tally.take_over(100, 100)  # one has ended, one stands
    tally.ended()
    assert tally.take_over(20, 5)  # 5 of it before, and 10 of its own
    assert (tally.receipt().sent, tally.receipt().received) == (20, 5)


def test_a_relay_that_saw_all_of_a_pass_takes_no_receipt_for_more_than_it_gave() -> None:
    books = PassMeter(SIGNED, PayerExposure(2 * WINDOW), is_whole=True)
    books.taken(A, 500)
    books.given(B, 500)
    books.sign(said(A, 500, 0))
    assert not books.sign(said(C, 0, 500))  # nothing was given to it, though it was there to be had
    assert books.billed == 0
    assert books.sign(said(B, 0, 500))
    assert books.billed == 500
    assert PassMeter(SIGNED, PayerExposure(WINDOW)).sign(said(C, 0, 500))  # this relay was started anew meanwhile


# The parties


def test_a_receipt_is_due_after_so_many_bytes_and_says_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECEIPT_BYTES", 100)
    due: list[int] = []
    tally = ReceiptTally(TOLL, A, lambda: due.append(tally.unsigned))
    tally.sent(60)
    assert due == []
    tally.received(45)
    assert due == [105]
    tally.sent(10)
    assert due == [105]
    receipt = tally.receipt()
    assert (receipt.party, receipt.sent, receipt.received) == (A, 70, 45)
    assert relay_passes.is_of(receipt, TOLL)
    assert tally.unsigned == 0
    tally.sent(250)
    assert due == [105, 250]
    tally.receipt()
    tally.unsay()
    assert tally.unsigned == 365

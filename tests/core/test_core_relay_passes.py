"""What may be billed for a way through a relay: the formula and the price, whatever the parties sign."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.core import limits, relay_passes
from farflung.core.crypto import local_key
from farflung.core.ids import Hash, PeerId
from farflung.core.relay_passes import RelayPass, RelayReceipt, billed, cost

A, B, C, D = sorted(local_key(7, name).public for name in "abcd")
PAYER, RELAY = local_key(7, "payer"), local_key(7, "relay")
TOLL = RelayPass(Hash(bytes(32)), PAYER.public, RELAY.public, 1, 1, (A, B), 1000, 0, 0, 600)

sizes = st.integers(0, 1 << 40)
words = st.dictionaries(st.sampled_from([A, B, C, D]), st.tuples(sizes, sizes))


def test_a_pair_is_billed_at_the_smaller_of_what_its_ends_say() -> None:
    assert billed(1 << 40, {A: (100, 7), B: (9, 80)}) == min(100, 80) + min(9, 7)


def test_a_fan_out_is_billed_once_for_each_that_received() -> None:
    assert billed(1 << 40, {A: (100, 0), B: (0, 100), C: (0, 100), D: (0, 100)}) == 300


@given(words, sizes, sizes)
def test_no_more_is_billed_than_either_side_signed_or_the_quota_and_what_the_payer_makes_good(
    last: dict[PeerId, tuple[int, int]], quota: int, lost: int
) -> None:
    bill = billed(quota, last)
    sent, received = sum(s for s, _ in last.values()), sum(r for _, r in last.values())
    assert 0 <= bill <= min(quota, received, sent * max(0, len(last) - 1))
    assert billed(quota, last, lost) == min(quota, billed(1 << 60, last) + lost)
    assert len(last) > 1 or bill == 0


@given(words, st.sampled_from([A, B, C, D]), sizes)
def test_nobodys_own_word_brings_more_than_the_others_say(
    last: dict[PeerId, tuple[int, int]], liar: PeerId, more: int
) -> None:
    sent, received = last.get(liar, (0, 0))
    others = {party: said for party, said in last.items() if party != liar}
    quota = 1 << 50
    as_receiver = billed(quota, {**others, liar: (sent, received + more)})
    assert as_receiver - billed(quota, {**others, liar: (sent, received)}) <= sum(s for s, _ in others.values())
    as_sender = billed(quota, {**others, liar: (sent + more, received)})
    assert as_sender <= sum(r for _, r in others.values()) + received


@given(st.lists(sizes, min_size=1), st.integers(0, 1 << 20))
def test_settling_in_pieces_brings_nothing_more(pieces: list[int], price: int) -> None:
    totals = [0]
    for piece in pieces:
        totals.append(totals[-1] + piece)
    paid = sum(cost(after, price) - cost(before, price) for before, after in pairwise(totals))
    assert paid == cost(sum(pieces), price) <= sum(pieces) * price / relay_passes.GIB


@given(sizes, st.integers(1, 1 << 40))
def test_money_is_worth_the_most_bytes_that_it_pays_for(money: int, price: int) -> None:
    size = relay_passes.worth(money, price)
    assert cost(size, price) <= money < cost(size + 1, price)


def test_signatures_are_the_payers_and_the_partys_own() -> None:
    assert relay_passes.is_pass_signed(relay_passes.sign_pass(PAYER, TOLL))
    assert not relay_passes.is_pass_signed(relay_passes.sign_pass(RELAY, TOLL))
    party = local_key(7, "a")
    receipt = RelayReceipt(TOLL.chain, TOLL.payer, TOLL.relay, 1, 1, party.public, 5, 6)
    signed = relay_passes.sign_receipt(party, receipt)
    assert relay_passes.is_receipt_signed(signed, PAYER.public, party.public)
    assert not relay_passes.is_receipt_signed(signed, PAYER.public)
    assert not relay_passes.is_receipt_signed(replace(signed, signer=PAYER.public), PAYER.public, party.public)


def test_a_pass_of_a_wrong_form_is_none() -> None:
    many = tuple(sorted(local_key(7, "many", i).public for i in range(limits.PASS_HOLDERS + 1)))
    wrong: list[dict[str, object]] = [
        {"holders": (A,)},
        {"holders": (B, A)},
        {"holders": (A, A)},
        {"holders": (A, PeerId(b"b"))},
        {"holders": tuple(sorted((A, RELAY.public)))},
        {"holders": many},
        {"quota": limits.PASS_BYTES + 1},
        {"quota": -1},
        {"serial": 1 << 63},
        {"serial": (1 << 63) - 1},  # the ledger could not name the one after it
        {"serial": -1},
        {"chain": Hash(b"")},
    ]
    assert relay_passes.is_well_formed(TOLL)
    assert relay_passes.is_well_formed(replace(TOLL, holders=many[1:]))
    assert relay_passes.is_well_formed(replace(TOLL, serial=(1 << 63) - 2))
    for fields in wrong:
        assert not relay_passes.is_well_formed(replace(TOLL, **fields)), fields

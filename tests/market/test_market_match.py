"""Matching hires the cheapest similar set, at one price, the same everywhere."""

from __future__ import annotations

import random
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.crypto import NS_SPEC, digest
from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.core.money import Credits
from farflung.core.tie_break import rank
from farflung.market.match import Match, MatchRequest, match
from farflung.market.provider_offer import Capabilities, OfferListing, caps_hash

JOB = digest(NS_SPEC, b"job")
CAPS = Capabilities(4, 8 << 30, 100 << 30, 10**11, 1, "Linux", "x86_64", "2.7.0")


def ask(number: int, price: int, *, stake: int = 100, **changes: object) -> OfferListing:
    caps = msgspec.structs.replace(CAPS, **changes)
    return OfferListing(PeerId(bytes([number]) * 32), Credits(price), Credits(stake), caps)


def request(members: int, price: int = 100, **changes: object) -> MatchRequest:
    return msgspec.structs.replace(MatchRequest(JOB, members, Credits(price)), **changes)


def numbers(peers: tuple[PeerId, ...]) -> list[int]:
    return [peer[0] for peer in peers]


def test_all_winners_are_paid_the_lowest_losing_ask() -> None:
    found = match(request(2), [ask(1, 7), ask(2, 3), ask(3, 5), ask(4, 9)])
    assert numbers(found.peers) == [2, 3]
    assert (found.unit_price, found.is_uniform) == (7, True)
    assert numbers((found.setter,)) == [1]


def test_without_a_spare_ask_all_are_paid_the_highest_ask() -> None:
    found = match(request(3), [ask(1, 7), ask(2, 3), ask(3, 5)])
    assert (found.unit_price, found.is_uniform, numbers((found.setter,))) == (7, False, [1])


def test_ties_go_by_a_draw_of_the_job_and_not_to_keys_that_begin_with_zeros() -> None:
    listings = [ask(i, 5) for i in range(200)]
    crews = [match(request(3, job=digest(NS_SPEC, bytes([i]))), listings).peers for i in range(20)]
    assert len(set(crews)) == len(crews)
    assert sum(peer[0] < 3 for crew in crews for peer in crew) < 10
    for crew, i in zip(crews, range(20), strict=True):
        job = digest(NS_SPEC, bytes([i]))
        assert set(crew) == set(sorted((listing.peer for listing in listings), key=partial(rank, job))[:3])


def test_members_are_of_similar_speed() -> None:
    slow, fast = 10**11, 126 * 10**9
    listings = [ask(1, 1, flops=slow), ask(2, 1, flops=fast), ask(3, 2, flops=fast), ask(4, 3, flops=fast)]
    found = match(request(2), listings)
    assert numbers(found.peers) == [2, 3]
    assert numbers(match(request(2, similarity_percent=126), listings).peers) == [1, 2]


def test_the_cheaper_window_wins_and_a_tie_goes_to_the_price_setter_whose_turn_is_first() -> None:
    slow = [ask(i, 4, flops=10**11) for i in (1, 2, 3)]
    fast = [ask(i, 6, flops=10**12) for i in (4, 5, 6)]
    assert match(request(2), [*slow, *fast]).unit_price == 4
    even = [msgspec.structs.replace(listing, unit_price=Credits(4)) for listing in fast]
    for i in range(10):
        job = digest(NS_SPEC, bytes([i]))
        windows = [sorted((one.peer for one in some), key=partial(rank, job)) for some in (slow, even)]
        *first, setter = min(windows, key=lambda peers: rank(job, peers[-1]))
        found = match(request(2, job=job), [*slow, *even])
        assert (found.peers, found.setter) == (tuple(sorted(first)), setter)


def test_nobody_gains_through_a_tie_between_windows() -> None:
    rows = [(8, 200), (5, 120), (5, 130), (11, 200), (1, 130), (10, 130)]
    honest = match(request(2, 10), _market(rows))
    assert (numbers(honest.peers), honest.unit_price) == ([2, 5], 5)
    rows[2] = (10, 130)  # with ties broken by speed this one would be hired at 10
    assert 3 not in numbers(match(request(2, 10), _market(rows)).peers)


def test_a_peer_with_two_listings_counts_once_at_its_lowest_ask() -> None:
    found = match(request(2), [ask(1, 9), ask(1, 2), ask(2, 5)])
    assert numbers(found.peers) == [1, 2]
    with pytest.raises(PolicyError):
        match(request(3), [ask(1, 9), ask(1, 2), ask(2, 5)])


def test_the_funnel_says_where_offers_were_lost() -> None:
    listings = [ask(i, 5) for i in range(1, 4)] + [ask(4, 5, memory_bytes=1), ask(5, 101)]
    found = match(request(3, memory_bytes=1 << 30), listings)
    assert found.funnel.text() == "5 offers → 4 memory → 3 price → 3 similar"


RELIEF = [
    (request(2, cores=8), "relax cores: 8"),
    (request(2, memory_bytes=16 << 30), "relax memory: 17.2 GB"),
    (request(2, disk_bytes=1 << 40), "relax disk"),
    (request(2, flops=2 * 10**11), "relax speed"),
    (request(2, stake=Credits(101)), "relax stake: 0.000000000101"),
    (request(2, price=4), "relax price: 0.000000000004"),
    (request(3), "at most 2 providers"),
    (request(2, price=4, cores=8), "not the only constraint"),
]


@pytest.mark.parametrize(("asked", "words"), RELIEF)
def test_too_few_names_the_constraint_to_relax(asked: MatchRequest, words: str) -> None:
    with pytest.raises(PolicyError) as error:
        match(asked, [ask(1, 5), ask(2, 5)])
    assert error.value.code == "FF-MARK-001"
    assert words in error.value.hint
    assert error.value.cause.startswith("2 offers →")


def test_too_few_of_similar_speed_says_so() -> None:
    with pytest.raises(PolicyError) as error:
        match(request(2), [ask(1, 5, flops=10**11), ask(2, 5, flops=10**12)])
    assert "similarity" in error.value.hint


def test_a_market_without_offers_is_refused() -> None:
    with pytest.raises(PolicyError, match="0 are left"):
        match(request(1), [])


ASKS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from([100, 120, 130, 150, 200])), min_size=1, max_size=9)


def _market(rows: list[tuple[int, int]]) -> list[OfferListing]:
    return [ask(i + 1, price, flops=speed * 10**9) for i, (price, speed) in enumerate(rows)]


def _try(members: int, listings: list[OfferListing]) -> Match | None:
    try:
        return match(request(members, 10), listings)
    except PolicyError:
        return None


@given(rows=ASKS, members=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_a_match_keeps_every_promise_in_any_order_of_offers(
    rows: list[tuple[int, int]], members: int, seed: int
) -> None:
    listings = _market(rows)
    found = _try(members, listings)
    shuffled = list(listings)
    random.Random(seed).shuffle(shuffled)
    assert _try(members, shuffled) == found
    if found is None:
        return
    chosen = [listing for listing in listings if listing.peer in found.peers]
    assert len(chosen) == members == len(set(found.peers))
    assert all(listing.unit_price <= found.unit_price <= 10 for listing in chosen)
    speeds = [listing.capabilities.flops for listing in chosen]
    assert 100 * max(speeds) <= 125 * min(speeds)
    (setter,) = (listing for listing in listings if listing.peer == found.setter)
    assert setter.unit_price == found.unit_price
    last = max((listing.unit_price, rank(JOB, listing.peer)) for listing in chosen)
    assert last <= (setter.unit_price, rank(JOB, setter.peer))


@given(rows=ASKS, members=st.integers(1, 3), who=st.integers(0, 8), lie=st.integers(0, 12))
@settings(max_examples=60)
def test_with_a_spare_ask_no_single_slot_gains_by_asking_more_or_less_than_its_cost(
    rows: list[tuple[int, int]], members: int, who: int, lie: int
) -> None:
    who %= len(rows)
    cost, speed = rows[who]
    told = [*rows[:who], (lie, speed), *rows[who + 1 :]]
    honest, lied = _try(members, _market(rows)), _try(members, _market(told))
    if honest is None or not honest.is_uniform or (lied is not None and not lied.is_uniform):
        return
    peer = bytes([who + 1]) * 32

    def gain(found: Match | None) -> int:
        return found.unit_price - cost if found is not None and peer in found.peers else 0

    assert gain(lied) <= gain(honest)


def test_capabilities_hash_changes_with_every_field() -> None:
    seen = {caps_hash(CAPS)}
    for name in CAPS.__struct_fields__:
        value = getattr(CAPS, name)
        seen.add(caps_hash(msgspec.structs.replace(CAPS, **{name: value + (1 if isinstance(value, int) else "x")})))
    assert len(seen) == 1 + len(CAPS.__struct_fields__)

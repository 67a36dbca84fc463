"""Which share of the last seven days a node was online: slots in which it published, of those with any node."""

from __future__ import annotations

import random

import pytest

from farflung.core.ids import PeerId
from farflung.peers.protocol import online_share
from farflung.peers.protocol.online_share import SLOT_SECONDS, SLOTS, OnlineRecord, read_saved

ONE, TWO = PeerId(b"1" * 32), PeerId(b"2" * 32)
DAY = 24 * 6
BEGIN = 1_000_000  # a slot


def told(seen: dict[PeerId, list[int]], now: int) -> dict[PeerId, tuple[int, int, int]]:
    record = OnlineRecord()
    for slot in range(now + 1):
        for node, slots in seen.items():
            if slot in slots:
                record.mark(node, (BEGIN + slot) * SLOT_SECONDS + 1)
                record.mark(node, (BEGIN + slot) * SLOT_SECONDS + 200)
    listing = record.listing((BEGIN + now) * SLOT_SECONDS + 300)
    assert read_saved(record.save()).listing((BEGIN + now) * SLOT_SECONDS + 300) == listing
    return {each.node: (each.online, each.counted, each.seconds) for each in listing.shares}


@pytest.mark.parametrize(
    ("seen", "now", "shares"),
    [
        ({}, 5, {}),
        ({ONE: [0]}, 0, {ONE: (1, 1, 300)}),
        ({ONE: [*range(10)], TWO: [5, 6]}, 9, {ONE: (10, 10, 5700), TWO: (2, 5, 2700)}),  # since it joined
        ({ONE: [0, 1], TWO: [0, 1, 8, 9]}, 9, {ONE: (2, 4, 5700), TWO: (4, 4, 5700)}),  # the seat was down from 2 to 7
        (
            {ONE: [*range(DAY)], TWO: [*range(10 * DAY)]},
            10 * DAY - 1,
            {ONE: (0, SLOTS, (SLOTS - 1) * SLOT_SECONDS + 300), TWO: (SLOTS, SLOTS, (SLOTS - 1) * SLOT_SECONDS + 300)},
        ),
        ({ONE: [0, 20 * DAY], TWO: [20 * DAY]}, 20 * DAY, {ONE: (1, 1, (SLOTS - 1) * 600 + 300), TWO: (1, 1, 300)}),
    ],
)
def test_the_share_is_of_the_slots_that_count(
    seen: dict[PeerId, list[int]], now: int, shares: dict[PeerId, tuple[int, int, int]]
) -> None:
    assert told(seen, now) == shares


def test_memory_is_bounded_and_who_was_away_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_share, "NODES", 3)
    record = OnlineRecord()
    for slot in range(10):
        record.mark(ONE, slot * SLOT_SECONDS)
        record.mark(PeerId(bytes([slot]) * 32), slot * SLOT_SECONDS)
    kept = {each.node for each in record.listing(9 * SLOT_SECONDS).shares}
    assert kept == {ONE, PeerId(bytes([8]) * 32), PeerId(bytes([9]) * 32)}


def test_a_clock_that_is_set_back_changes_nothing_and_damage_is_an_empty_record() -> None:
    record = OnlineRecord()
    assert record.mark(ONE, 10 * SLOT_SECONDS)
    assert not record.mark(ONE, 3 * SLOT_SECONDS)
    assert [each.counted for each in record.listing(10 * SLOT_SECONDS).shares] == [1]
    saved = bytearray(record.save())
    saved[random.Random(7).randrange(4)] ^= 0xFF
    assert read_saved(bytes(saved)).listing(10 * SLOT_SECONDS).shares in ((), record.listing(10 * SLOT_SECONDS).shares)
    assert read_saved(b"\xff" * 9).listing(0).shares == ()

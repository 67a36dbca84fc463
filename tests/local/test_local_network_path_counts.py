"""Which way each pair of a run's nodes took, as their processes told it and as a person reads it."""

from __future__ import annotations

from farflung.core import events
from farflung.core.crypto import local_key
from farflung.core.events import PathCountsEvent
from farflung.local.network.path_counts import PathCounts
from farflung.watch import phrases
from farflung.watch.fold import RunTimeline, fold

A, B, C = (local_key(2, "provider", n).public for n in range(3))


def said(peer: bytes, way: object) -> dict[str, object]:
    return {"kind": "way", "peer": peer.hex(), "way": way}


def test_each_pair_counts_once_with_the_best_way_of_its_two_ends() -> None:
    ways = PathCounts()
    ways.hear(A, said(B, "relay"))
    ways.hear(B, said(A, "relay"))
    ways.hear(A, said(B, "opened"))
    ways.hear(C, said(A, "relay"))
    ways.hear(C, said(B, "lan"))
    assert ways.event() == PathCountsEvent(lan=1, opened=1, relay=1)
    ways.hear(A, said(B, "relay"))  # its router was changed
    assert ways.event() == PathCountsEvent(lan=1, relay=2)


def test_what_is_no_way_is_not_counted() -> None:
    ways = PathCounts()
    for way in ("", "tunnel", None, 3, []):
        ways.hear(A, said(B, way))
    ways.hear(A, said(A, "lan"))
    assert ways.event() == PathCountsEvent()
    assert phrases.ways(ways.event()) == "no connections"


def test_a_person_reads_how_pairs_talked() -> None:
    told = PathCountsEvent(direct=2, opened=3, relay=1)
    assert events.from_json(events.to_json(told)) == told
    assert fold(RunTimeline(), told).ways == told
    assert phrases.ways(told) == ("connections: 2 direct, 3 hole-punched, 1 relayed")

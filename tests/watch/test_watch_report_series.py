"""The numbers of a report: they are the events', and what must add up does."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.core import events
from farflung.core.events import AnyEvent, SentBytesByKind
from farflung.core.money import MICRO
from farflung.watch import report_series
from farflung.watch.fold import RunTimeline, fold
from farflung.watch.redaction import redact

A, B, C, V = (f"{i:02x}" * 32 for i in (0xA1, 0xB2, 0xC3, 0xD4))

RESULT = events.RunResultEvent(
    at=60.0,
    loss=2.0,
    loss_start=5.0,
    loss_unigram=3.0,
    bytes_sent=1500,
    bytes_by=SentBytesByKind(sync=800, audit=300, join=200, control=150, relay=50),
    bytes_ring_bf16=95_000,
    segments_audited=2,
    caught=(B,),
    paid=700 * MICRO,
    slashed=400 * MICRO,
    refunded=300 * MICRO,
    sum=0,
    model_hash="ab" * 32,
    ledger_root="cd" * 32,
    seconds=60.0,
    run="r",
    rounds=2,
    tokens=300,
    reexecuted=0,
    bounty=200 * MICRO,
    burnt=200 * MICRO,
)


def told(*said: AnyEvent) -> RunTimeline:
    timeline = RunTimeline()
    for event in said:
        timeline = fold(timeline, event)
    return timeline


def a_round(
    number: int, peers: tuple[str, ...], late: float = 2.0, waited: float = 0.0, at: float = 0.0
) -> list[AnyEvent]:
    """Opened, three phases a member, one second apart, the last peer `late`; closed."""
    said: list[AnyEvent] = [events.RoundStartEvent(at=at, round=number, rounds=2, peers=peers, waited=waited)]
    for phase, base in (("train", 1.0), ("reveal", late + 1.0), ("merge", late + 2.0)):
        for peer in peers:
            seconds = late if phase == "train" and peer == peers[-1] else base
            said.append(events.ArrivalEvent(at=at, round=number, peer=peer, phase=phase, seconds=seconds))
    return [
        *said,
        events.RoundEndEvent(
            at=at + late + 2.0,
            round=number,
            rounds=2,
            peers=len(peers),
            loss=4.0 - number,
            tokens=100 + 100 * number,
            root="ef" * 32,
            waited_for=peers[-1],
            seconds=late + 2.0 + waited,
            train_seconds=1.0,
            sync_bytes=0,
        ),
    ]


def traffic(sync: int) -> events.TrafficEvent:
    return events.TrafficEvent(session=1, process="p", sync=sync, audit=1, join=2, control=3, relay=4)


def test_a_loss_stands_over_what_was_spent_when_its_state_was_reached() -> None:
    t = told(
        events.EvaluationEvent(round=0, loss=5.0, tokens=10),
        traffic(90),
        *a_round(0, (A, B)),
        events.EvaluationEvent(round=1, loss=4.5, tokens=10),
        traffic(190),
        *a_round(1, (A, B), waited=0.5),
        events.EvaluationEvent(round=2, loss=4.0, tokens=10),
    )
    curves = report_series.losses(t)
    assert [(p.tokens, p.sent, p.seconds, p.loss) for p in curves.held_out] == [
        (0, 0, 0.0, 5.0),
        (100, 100, 4.0, 4.5),
        (300, 200, 8.5, 4.0),
    ]
    assert [(p.round, p.tokens, p.sent, p.loss) for p in curves.train] == [(0, 100, 100, 4.0), (1, 300, 200, 3.0)]
    assert curves.baseline == ()


def test_the_baseline_starts_from_the_same_weights_and_ends_where_it_was_measured() -> None:
    t = told(
        events.EvaluationEvent(round=0, loss=5.0, tokens=10),
        *a_round(0, (A, B)),
        events.BaselineProgressEvent(step=5, steps=10, tokens=50, loss=4.0, seconds=1.0),
        events.BaselineProgressEvent(step=10, steps=10, tokens=100, loss=3.2, seconds=2.0),
        events.BaselineEvent(loss=3.0, steps=10, seconds=2.5),
    )
    points = [(p.tokens, p.seconds, p.loss) for p in report_series.losses(t).baseline]
    assert points == [(0, 0.0, 5.0), (50, 1.0, 4.0), (100, 2.5, 3.0)]


def test_the_ring_is_counted_for_the_rounds_that_closed_and_at_the_end_as_the_result_says() -> None:
    plan = events.PlanEvent(
        name="n", run="r", model="m", parameters=1, rounds=4, steps=8, peers=2, tokens=1, sync_bytes=1,
        ring_bytes=4000, memory_bytes=1, seconds=1.0, price=1 * MICRO, escrow=1 * MICRO, data_bytes=1, sync="s",
    )  # fmt: skip
    t = told(plan, traffic(90), *a_round(0, (A, B)))
    assert report_series.sent(t) == report_series.SentBytesSeries(SentBytesByKind(90, 1, 2, 3, 4), 100, 1000)
    ended = report_series.sent(told(plan, RESULT))
    assert (ended.total, ended.ring, ended.agreeing) == (1500, 95_000, 950)
    assert ended.times == 100.0


def test_nothing_sent_has_no_ratio() -> None:
    empty = report_series.sent(RunTimeline())
    assert (empty.times, empty.total) == (None, 0)


def test_lanes_name_the_one_that_all_waited_for_and_leave_the_time_between_rounds_out() -> None:
    t = told(*a_round(0, (A, B)), *a_round(1, (A, B), waited=0.5))
    first, second, third, _ = report_series.member_rows(t)
    assert (first.peer, first.last, second.peer, second.last) == (A, False, B, True)
    parts = [(b.part, b.start, b.end) for b in first.blocks]
    assert parts == [
        ("compute", 0.0, 1.0),
        ("wait", 1.0, 2.0),
        ("send", 2.0, 3.0),
        ("wait", 3.0, 3.0),
        ("merge", 3.0, 4.0),
        ("wait", 4.0, 4.0),
    ]
    assert third.blocks[0].start == 4.5  # the audits of the round before took half a second
    a, b = report_series.time_shares(report_series.member_rows(t))
    assert (a.compute, a.wait, a.send, a.merge, a.last) == (2.0, 2.0, 2.0, 2.0, 0)
    assert (b.compute, b.wait, b.last, b.rounds) == (4.0, 0.0, 2, 2)
    assert report_series.slowest((a, b)) == b


def test_alone_nobody_is_waited_for() -> None:
    assert report_series.slowest(report_series.time_shares(report_series.member_rows(told(*a_round(0, (A,)))))) is None


arrivals = st.lists(
    st.tuples(st.sampled_from((A, B, C)), st.sampled_from(("train", "reveal", "merge")), st.floats(0, 100)), max_size=12
)


@given(arrivals, st.floats(0, 100), st.floats(0, 200))
def test_blocks_never_run_backwards_whatever_arrives(
    came: list[tuple[str, str, float]], waited: float, seconds: float
) -> None:
    said: list[AnyEvent] = [events.RoundStartEvent(round=0, rounds=1, peers=(A, B, C), waited=waited)]
    said += [events.ArrivalEvent(round=0, peer=p, phase=phase, seconds=s) for p, phase, s in came]
    closed = msgspec.structs.replace(a_round(0, (A, B))[-1], seconds=seconds)
    strips = report_series.member_rows(told(*said, closed))
    assert [strip.peer for strip in strips] == [A, B, C]
    for strip in strips:
        edges = [edge for block in strip.blocks for edge in (block.start, block.end)]
        assert edges == sorted(edges)
        assert all(edge >= 0 for edge in edges)
        whole = sum(strip.seconds(part) for part in report_series.PARTS)
        assert whole == pytest.approx(edges[-1] - edges[0] if edges else 0.0)


def audit(peer: str, segment: int, finding: str, excess: float) -> events.AuditEndEvent:
    return events.AuditEndEvent(
        round=0, peer=peer, segment=segment, verifiers=(V,), finding=finding, excess=excess, tokens=5, seconds=1.0
    )


def test_the_audit_grid_shows_the_gravest_finding_of_a_members_round() -> None:
    t = told(
        *a_round(0, (A, B, C)),
        events.AuditDrawEvent(round=0, peer=A, segment=0),
        events.AuditDrawEvent(round=0, peer=B, segment=0, flagged="its loss"),
        events.AuditDrawEvent(round=0, peer=B, segment=1),
        audit(B, 0, "holds", 0.5),
        audit(B, 1, "false", 40.0),
    )
    found = report_series.audits(t)
    assert [(c.peer, c.state, c.excess) for c in found.cells] == [
        (A, "open", 0.0),
        (B, "false", 40.0),
        (C, "not drawn", 0.0),
    ]
    assert (found.concluded, found.count("holds"), found.count("open")) == (2, 1, 1)
    assert [row.flagged for row in found.rows] == ["", "its loss", ""]


@given(
    st.lists(st.integers(0, 10**9), max_size=6),
    st.integers(0, 10**9),
    st.lists(st.integers(0, 10**6), max_size=4),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)
def test_money_adds_up(paid: list[int], refunded: int, slashed: list[int], guessed: int, burnt: int) -> None:
    stakes = sum(slashed) + guessed + 1_000
    said: list[AnyEvent] = [events.EscrowEvent(job="j", escrow=sum(paid) + refunded + burnt, stakes=stakes)]
    said += [events.LeasePaymentEvent(peer=f"{i:064x}", units=1, paid=each) for i, each in enumerate(paid)]
    said += [
        events.SlashEvent(
            peer=f"{i:064x}", round=0, segment=0, why="w", slashed=s, bounty=s // 2, burnt=s - s // 2, evidence=""
        )
        for i, s in enumerate(slashed)
    ]
    half = guessed // 2
    said.append(events.PerjuryEvent(verifier=C, round=0, peer=A, slashed=guessed, bounty=half, burnt=guessed - half))
    open_ = report_series.money(told(*said))
    assert open_.held == refunded + burnt
    assert open_.refunded is None
    closed = report_series.money(told(*said, msgspec.structs.replace(RESULT, refunded=refunded, pay_burnt=burnt)))
    assert closed.held == 0
    assert closed.paid + refunded + closed.burnt == closed.escrow
    assert closed.returned + sum(s.bounty + s.burnt for s in closed.slashes) == closed.stakes
    assert closed.slashed == sum(slashed) + guessed


@given(st.floats(0.001, 1e12), st.floats(0, 1e12))
def test_a_row_is_marked_outside_0_8_to_1_25(planned: float, measured: float) -> None:
    (row,) = report_series.planned(
        told(events.PlanComparisonEvent(quantity="q", unit="B", planned=planned, measured=measured))
    )
    assert row.ratio == measured / planned
    assert row.off == (not 0.8 <= measured / planned <= 1.25)


def test_what_was_not_planned_has_no_ratio_and_is_marked() -> None:
    (row,) = report_series.planned(told(events.PlanComparisonEvent(quantity="q", unit="B", planned=0.0, measured=7.0)))
    assert (row.ratio, row.off) == (None, True)


def test_a_mark_stands_where_training_was_when_somebody_left() -> None:
    t = told(*a_round(0, (A, B)), events.ProcessExitEvent(at=4.0, peer=B, reason="gone"), *a_round(1, (A,), at=5.0))
    (mark,) = report_series.departures(t)
    assert mark.point is not None
    assert (mark.peer, mark.why, mark.point.round, mark.point.tokens) == (B, "gone", 0, 100)


def test_somebody_who_leaves_before_the_first_round_has_no_place_on_the_curve() -> None:
    (mark,) = report_series.departures(
        told(events.ProcessExitEvent(at=1.0, peer=B, reason="gone"), *a_round(0, (A,), at=2.0))
    )
    assert mark.point is None


def test_shared_text_names_no_folder_and_no_address(subtests: pytest.Subtests) -> None:
    for text, shared in [
        ("cannot read /home/ada/runs/x/store/ab.bin", "cannot read …/ab.bin"),
        ("in ~/runs/secret/x", "in …/x"),
        (r"C:\Users\ada\x.toml is gone", "…/x.toml is gone"),
        ("farflung resume /srv/a b", "farflung resume …/a b"),
        ("[Errno 2] No such file: '/tmp/a/b.txt'", "[Errno 2] No such file: '…/b.txt'"),
        ("file=/etc/x/y", "file=…/y"),
        ("is it '/home/ada king/my runs/a b.bin'?", "is it '…/a b.bin'?"),
        ("no answer from 192.168.1.7:4433", "no answer from (address)"),
        ("dial [fe80::1%eth0]:80 failed", "dial (address) failed"),
        ("dial ::1 failed, and 2001:db8::8a2e:370:7334 too", "dial (address) failed, and (address) too"),
        ("tcp://10.0.0.1:99/x and relay.example.org:7000", "(address) and (address)"),
        ("at localhost:8080", "at (address)"),
        ("asked adas-laptop:4711 and node3:80", "asked (address) and (address)"),
        ("round 3/20 of sparse_loco 768/4096", "round 3/20 of sparse_loco 768/4096"),
        ("its loss: 3.5, at 12:30:05", "its loss: 3.5, at 12:30:05"),
        ("FF-NET-012 and/or version 2.13.0", "FF-NET-012 and/or version 2.13.0"),
        ("two\nlines\x1b[31m", "two lines [31m"),
    ]:
        with subtests.test(text=text, shared=shared):
            assert redact(text) == shared


@given(st.text(max_size=2000))
def test_shared_text_is_short_printable_and_stays_as_it_is_when_shared_again(text: str) -> None:
    once = redact(text)
    assert len(once) <= 400
    assert once.isprintable()

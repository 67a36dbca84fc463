"""The fold and its lines: counters that only rise, lines that fit, words that the events support."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import events
from farflung.core.events import AnyEvent, SentBytesByKind
from farflung.core.money import MICRO
from farflung.watch import phrases
from farflung.watch.event_lines import COLUMNS, clean, lines
from farflung.watch.fold import RunStage, RunTimeline, fold

PEERS = tuple(f"{i:02x}" * 32 for i in range(1, 6))

PLANNED = events.PlanEvent(
    name="local",
    run="runs/1",
    model="gpt 4x128",
    parameters=868_000,
    rounds=24,
    steps=360,
    peers=5,
    tokens=1_843_200,
    sync_bytes=18_300_000,
    ring_bytes=2_500_000_000,
    memory_bytes=300_000_000,
    seconds=110.0,
    price=1_843_200 * MICRO,
    escrow=1_920_000 * MICRO,
    data_bytes=12_000_000,
    sync="sparse_loco H=15",
)
RESULT = events.RunResultEvent(
    at=120.0,
    loss=2.5,
    loss_start=5.55,
    loss_unigram=3.26,
    bytes_sent=100,
    bytes_by=SentBytesByKind(50, 0, 30, 10, 10),
    bytes_ring_bf16=7000,
    segments_audited=0,
    caught=(),
    paid=1_843_200 * MICRO,
    slashed=0,
    refunded=76_800 * MICRO,
    sum=0,
    model_hash="ab" * 32,
    ledger_root="cd" * 32,
    seconds=120.0,
    run="runs/1",
    rounds=24,
    tokens=1_843_200,
    reexecuted=0,
)


def closed(round: int, seconds: float = 4.0) -> events.RoundEndEvent:
    return events.RoundEndEvent(
        at=10.0 + round,
        round=round,
        rounds=24,
        peers=5,
        loss=3.0,
        tokens=76_800,
        root="ab" * 32,
        waited_for=PEERS[0],
        seconds=seconds,
        train_seconds=3.0,
        sync_bytes=700_000,
    )


AUDIT = events.AuditEndEvent(
    round=0, peer=PEERS[3], segment=2, verifiers=PEERS[:2], finding="false", excess=812.5, tokens=2560, seconds=1.2
)
CAUGHT = events.SlashEvent(
    peer=PEERS[3],
    round=0,
    segment=2,
    why="work found false",
    slashed=1_536_000 * MICRO,
    bounty=768_000 * MICRO,
    burnt=768_000 * MICRO,
    evidence="0f" * 32,
)

HOUSED = events.SimulatedHomeEvent(
    names=("provider-0", "provider-1", "verifier-0"),
    routers=("symmetric", "symmetric", "port_restricted"),
    up=20.0,
    down=100.0,
    rtt=40.0,
)

STORY: tuple[AnyEvent, ...] = (
    PLANNED,
    events.ProcessStartEvent(role="provider", name="provider-1", pid=7, peer=PEERS[0]),
    events.ProviderMatchEvent(peers=PEERS, offers=5, unit_price=1 * MICRO),
    events.EscrowEvent(job="ee" * 32, escrow=1_920_000 * MICRO, stakes=5_000_000 * MICRO),
    events.PeerJoinEvent(peer=PEERS[0], round=0, replayed=0, seconds=1.5),
    events.EvaluationEvent(round=0, loss=5.55, tokens=16384),
    closed(0),
    events.TrafficEvent(session=1, process="a", sync=10, audit=0, join=5, control=1, relay=7),
    events.SandboxEvent(tier="bwrap", gaps=("what root sees",)),
    HOUSED,
    events.AuditDrawEvent(round=0, peer=PEERS[3], segment=2),
    AUDIT,
    CAUGHT,
    events.ProcessRestartEvent(name="ledger", why="its process was ended by SIGKILL", seconds=0.8),
    events.ProcessExitEvent(peer=PEERS[1], reason="its connection closed"),
    events.ReexecutionEvent(peer=PEERS[2], round=1),
    events.RunResumeEvent(round=1, session=2),
    closed(1),
    events.ProcessUsageEvent(process="worker", peak_bytes=5, cpu_seconds=1.0),
    events.WarningEvent(code="FF-APP-001", message="slow", hint="wait"),
    events.BaselineEvent(loss=2.3, steps=360, seconds=60.0),
    events.LeasePaymentEvent(peer=PEERS[0], units=1000, paid=1000 * MICRO),
    events.PlanComparisonEvent(quantity="sync", unit="B", planned=100.0, measured=101.0),
    events.RunFailureEvent(code="FF-APP-002", message="disk full", cause="no space", hint="free some"),
    RESULT,
)


def told(*story: AnyEvent) -> RunTimeline:
    timeline = RunTimeline()
    for event in story:
        timeline = fold(timeline, event)
    return timeline


def test_the_stage_follows_the_way_of_a_run() -> None:
    stages = []
    timeline = RunTimeline()
    for event in STORY:
        timeline = fold(timeline, event)
        stages.append(timeline.stage)
    seen = list(dict.fromkeys(stages))
    assert seen == [RunStage.PLAN, RunStage.NETWORK, RunStage.TRAIN, RunStage.SETTLE, RunStage.RESULT]
    assert timeline.sessions == 2
    assert timeline.reexecuted == {PEERS[2]: 1}
    assert timeline.losses == {0: 5.55}


def test_folding_leaves_the_old_timeline_as_it_was() -> None:
    before = told(*STORY[:7])
    copy = msgspec.structs.replace(before)
    told_again = fold(before, closed(5))
    assert before == copy
    assert 5 not in before.rounds
    assert 5 in told_again.rounds


def test_the_same_events_give_the_same_timeline_after_a_round_trip_through_json() -> None:
    replayed = told(*[events.from_json(events.to_json(event)) for event in STORY])
    assert replayed == told(*STORY)


REPORTS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from("abc"), st.integers(0, 50), st.integers(0, 50)), max_size=20
)


@given(reports=REPORTS, seed=st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_bytes_are_the_most_of_each_session_and_process_in_any_order(
    reports: list[tuple[int, str, int, int]], seed: object
) -> None:
    story = [
        events.TrafficEvent(session=s, process=p, sync=a, audit=0, join=b, control=a + b, relay=b)
        for s, p, a, b in reports
    ]
    timeline = told(*story, *story)
    seed.shuffle(story)  # type: ignore[attr-defined]
    assert told(*story).bytes_by() == timeline.bytes_by()
    most: dict[tuple[int, str], int] = {}
    for s, p, a, _ in reports:
        most[s, p] = max(a, most.get((s, p), 0))
    assert timeline.bytes_by().sync == sum(most.values())
    by = timeline.bytes_by()
    assert by.relay == by.join
    assert timeline.bytes_sent() == by.sync + by.audit + by.join + by.control + by.relay


def test_peak_memory_never_falls() -> None:
    story = [events.ProcessUsageEvent(process="w", peak_bytes=p, cpu_seconds=c) for p, c in ((5, 1.0), (3, 2.0))]
    assert told(*story).usage["w"].peak_bytes == 5
    assert told(*story).usage["w"].cpu_seconds == 2.0


def test_a_round_merged_again_after_a_resume_counts_once() -> None:
    timeline = told(closed(0), closed(1), closed(1, 8.0))
    assert len(timeline.rounds) == 2
    assert timeline.seconds_left == (4.0 * 22, 8.0 * 22)


def test_time_does_not_run_backwards() -> None:
    assert told(closed(5), closed(1)).at == 15.0


def test_every_line_fits_and_starts_with_its_stage() -> None:
    timeline = RunTimeline()
    for event in STORY:
        timeline = fold(timeline, event)
        for line in lines(event, timeline):
            assert len(line) <= COLUMNS, line
            assert line.split()[0] in {"Plan", "Network", "Train", "Verify", "Settle", "Result", "Next"}


@given(noise=st.text(max_size=400), number=st.integers(0, 2**62), value=st.floats(0, 1e12))
@settings(max_examples=60)
def test_foreign_text_cannot_break_a_line_or_move_the_cursor(noise: str, number: int, value: float) -> None:
    story: tuple[AnyEvent, ...] = (
        msgspec.structs.replace(PLANNED, name=noise, model=noise, run=noise, sync=noise, tokens=number),
        events.ProcessExitEvent(peer=noise, reason=noise),
        events.WarningEvent(code=noise, message=noise, hint=noise),
        events.RunFailureEvent(code=noise, message=noise, cause=noise, hint=noise),
        events.PlanComparisonEvent(quantity=noise, unit=noise, planned=value, measured=value),
        events.SandboxEvent(tier=noise, gaps=(noise, noise)),
        events.SimulatedHomeEvent(names=(noise,), routers=(noise, noise + "!"), up=value, down=value, rtt=value),
        events.AuditDrawEvent(round=1, peer=noise, segment=1, flagged=noise + "!"),
        msgspec.structs.replace(AUDIT, peer=noise, verifiers=(noise,) * 9, finding=noise, excess=value),
        msgspec.structs.replace(CAUGHT, peer=noise, why=noise, evidence=noise, burnt=number),
        events.CanaryEndEvent(round=1, peer=noise, segment=1, verifier=noise, finding="false", tokens=1),
        events.PerjuryEvent(verifier=noise, round=1, peer=noise, slashed=number, bounty=number, burnt=number),
        events.ProcessRestartEvent(name=noise, why=noise, seconds=value),
        msgspec.structs.replace(RESULT, caught=(noise,) * 20, run=noise, model_hash=noise, bytes_sent=number),
    )
    for event in story:
        for line in lines(event, told(*story)):
            assert len(line) <= COLUMNS
            assert line.isprintable()


def test_a_round_line_says_loss_speed_bytes_and_time_left() -> None:
    (line,) = lines(closed(1), told(closed(0), closed(1)))
    for words in (" 2/24 rounds", "loss 3.000", "19.2 k tokens/s", "sync 700 kB", "1:19 to 1:37 left"):
        assert words in line
    fewer = msgspec.structs.replace(closed(1), peers=4)
    assert "4 of 5 peers" in lines(fewer, told(PLANNED, fewer))[0]


def test_a_run_through_simulated_homes_says_which_in_one_line() -> None:
    line, plan = lines(HOUSED, told(HOUSED))
    assert "through 3 simulated homes of 20/100 Mbit/s, 40 ms" in line
    assert "NAT 2 symmetric, 1 port_restricted" in line
    assert "the plan's seconds are for loopback" in plan


def shown(result: events.RunResultEvent) -> str:
    return "\n".join(lines(result, told(result)))


def test_the_result_block_holds_losses_bytes_money_hashes_and_folder() -> None:
    text = shown(RESULT)
    for words in (
        "validation loss 2.500 nats/token, 5.550 at the start",
        "token frequencies alone give 3.260",
        "by kind: sync 50 B, audit 0 B, join 30 B, control 10 B, relay 10 B",
        "all traffic 100 B, 70x less than a bf16 ring all-reduce (7 kB, calculated)",
        "sync traffic alone 60 B",
        "paid 1.84, slashed 0, returned 0.0768 credits",
        "sum 0",
        "ab" * 32,
        "cd" * 32,
        "farflung sample runs/1",
        "no segment was audited",
    ):
        assert words in text
    assert "baseline" not in text


def test_a_requester_of_others_computers_compares_its_own_traffic_with_nothing() -> None:
    text = shown(msgspec.structs.replace(RESULT, bytes_by=SentBytesByKind(0, 0, 30, 60, 10)))
    assert "traffic of this computer 100 B" in text
    assert "ring" not in text
    assert "by kind" not in text


def test_the_result_block_names_pay_that_was_burnt() -> None:
    assert "returned 0.0768, pay burnt 0.05 credits" in shown(msgspec.structs.replace(RESULT, pay_burnt=50_000 * MICRO))
    assert "pay burnt" not in shown(RESULT)


def test_the_result_block_does_not_flatter() -> None:
    worse = msgspec.structs.replace(RESULT, loss=3.3, loss_baseline=2.2, sum=5, caught=(PEERS[0],), segments_audited=7)
    text = shown(worse)
    assert "has not learned yet: token frequencies alone give" in text
    assert "single-machine baseline 2.200 (gap +1.100)" in text
    assert "ledger NOT balanced (sum 5)" in text
    assert "7 segments audited; caught: 01010101" in text


def test_a_cheaters_end_is_told_in_two_lines_and_again_in_the_result() -> None:
    story = lines(CAUGHT, told(AUDIT, CAUGHT))
    assert len(story) == 2
    text = "\n".join(story)
    for words in (
        "04040404 caught cheating: round 0, segment 2 differs by 812x the tolerance",
        "it loses 1.54 credits (0.768 to the verifiers, 0.768 burnt)",
        "evidence 0f0f0f0f",
    ):
        assert words in text
    end = msgspec.structs.replace(RESULT, caught=(PEERS[3],), segments_audited=1, slashed=1_536_000 * MICRO)
    shown_at_the_end = "\n".join(lines(end, told(AUDIT, CAUGHT, end)))
    assert "1 segment audited by 2 verifiers; caught: 04040404 (work found false)" in shown_at_the_end


def test_an_audit_makes_no_noise_while_the_work_holds() -> None:
    holds = msgspec.structs.replace(AUDIT, finding="holds", excess=0.0)
    assert lines(holds, told(holds)) == []
    drawn = events.AuditDrawEvent(round=0, peer=PEERS[0], segment=1)
    assert lines(drawn, told(drawn)) == []
    flagged = msgspec.structs.replace(drawn, flagged="twin")
    assert "is audited: twin" in lines(flagged, told(flagged))[0]
    assert "04040404, round 0, segment 2: false" in lines(AUDIT, told(AUDIT))[0]


def test_an_audit_that_a_restarted_coordinator_tells_again_counts_once() -> None:
    twice = told(AUDIT, CAUGHT, AUDIT, CAUGHT)
    assert len(twice.audits) == len(twice.caught) == 1
    assert twice.verifiers == PEERS[:2]
    other = msgspec.structs.replace(AUDIT, round=1)
    assert len(told(AUDIT, other).audits) == 2


def test_a_restart_says_who_why_and_how_long_it_took() -> None:
    event = events.ProcessRestartEvent(name="ledger", why="its process was ended by SIGKILL", seconds=0.8)
    (line,) = lines(event, told(event))
    assert "ledger died (its process was ended by SIGKILL); started again after 0.80 s" in line


def test_a_single_member_has_no_ring_to_be_compared_with() -> None:
    alone = msgspec.structs.replace(RESULT, bytes_ring_bf16=0, bytes_by=SentBytesByKind(), bytes_sent=0)
    assert "times" not in shown(alone)
    assert "no multiple" not in shown(alone)


def test_counters_say_nothing() -> None:
    counters = [event for event in STORY if isinstance(event, events.TrafficEvent | events.ProcessUsageEvent)]
    assert len(counters) == 2
    for event in counters:
        assert lines(event, told(event)) == []


def test_clean_cuts_and_strips() -> None:
    assert clean("a\x1b[2Jb\nc") == "a?[2Jb?c"
    assert clean("x" * 20, 5) == "xxxx…"


def test_a_canary_that_was_found_and_one_that_was_not_are_a_line_each() -> None:
    """An answer that is neither says nothing of anybody."""
    told = events.CanaryEndEvent(round=1, peer=PEERS[0], segment=2, verifier=PEERS[1], finding="false", tokens=64)
    lost = events.PerjuryEvent(
        verifier=PEERS[1], round=1, peer=PEERS[0], slashed=1000 * MICRO, bounty=500 * MICRO, burnt=500 * MICRO
    )
    (line,) = lines(told, RunTimeline())
    assert "canary: 02020202" in line
    assert line.endswith("found it")
    assert lines(msgspec.structs.replace(told, finding="unpaid"), RunTimeline()) == []
    said = lines(lost, RunTimeline())
    assert "said that a false segment holds" in said[0]
    assert "0.001 credits of its stake taken" in said[1]


def test_what_a_verifier_lost_by_guessing_is_counted_once_however_often_it_is_told() -> None:
    """A coordinator that takes over tells of it again."""
    caught = events.SlashEvent(
        peer=PEERS[2],
        round=1,
        segment=0,
        why="w",
        slashed=300 * MICRO,
        bounty=150 * MICRO,
        burnt=150 * MICRO,
        evidence="",
    )
    guessed = events.PerjuryEvent(
        verifier=PEERS[1], round=1, peer=PEERS[0], slashed=1000 * MICRO, bounty=500 * MICRO, burnt=500 * MICRO
    )
    t = RunTimeline()
    for event in (guessed, caught, guessed):
        t = fold(t, event)
    assert t.lost == (1300 * MICRO, 650 * MICRO, 650 * MICRO)
    assert fold(fold(RunTimeline(), guessed), guessed).lost == (1000 * MICRO, 500 * MICRO, 500 * MICRO)


def test_it_is_said_whose_contribution_the_merge_clipped() -> None:
    assert phrases.clipped(closed(0), RunTimeline()) == ""
    loud = msgspec.structs.replace(closed(0), clipped=PEERS[:3], clipped_shares=(0.25, 0.5, 0.004))
    first, second, third = (phrases.peer(each) for each in PEERS[:3])
    assert (
        phrases.clipped(loud, RunTimeline())
        == f"the merge clipped {second} by 50%, {first} by 25%, {third} by under 1%"
    )
    assert (
        phrases.clipped(msgspec.structs.replace(loud, clipped_shares=(0.25,)), RunTimeline())
        == f"the merge clipped {first} by 25%"
    )


@pytest.mark.parametrize(("size", "said"), [(0, False), (39_500, True)])
def test_a_round_says_its_sync_traffic_where_somebody_here_counts_it(size: int, said: bool) -> None:
    """A requester of others' computers does not."""
    event = msgspec.structs.replace(closed(0), sync_bytes=size)
    assert ("sync" in "".join(lines(event, fold(RunTimeline(), event)))) == said

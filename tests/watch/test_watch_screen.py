"""The screen is a function: whatever is in the log, it fits, it shows no control character, and it never fails."""

from __future__ import annotations

import re

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from test_watch_fold import AUDIT, CAUGHT, HOUSED, PEERS, PLANNED, RESULT, STORY, closed, told
from watch_events import STORIES

from farflung.core import events
from farflung.core.events import AnyEvent
from farflung.core.money import MICRO
from farflung.watch import phrases
from farflung.watch.detail_rows import dispute_facts, dispute_rows, lane_bar, round_facts, round_rows
from farflung.watch.event_lines import lines
from farflung.watch.fold import RunTimeline, fold
from farflung.watch.row_layout import ScreenRow, SpanStyle, TextSpan, block, fit, plain
from farflung.watch.screen import COLUMNS, FINISHING, ROWS, ScreenView, screen

BEGAN = events.RunStartEvent(run="runs/1", name="local", seed=1, version="0.1.0", python="3.12", torch="2.9")


def shown(timeline: RunTimeline, **how: object) -> str:
    view = ScreenView(**{"now": timeline.at, **how})  # type: ignore[arg-type]
    return "\n".join(row.text for row in screen(timeline, view))


def test_the_screen_says_that_a_run_goes_through_simulated_homes() -> None:
    up = events.ProcessStartEvent(role="provider", name="provider-0", pid=7, peer=PEERS[0])
    homes = "3 simulated homes of 20/100 Mbit/s, 40 ms, NAT 2 symmetric, 1 port_restricted"
    assert homes in shown(told(PLANNED, HOUSED, up))
    assert "simulated" not in shown(told(PLANNED, up))


def test_the_screen_says_how_pairs_talked_once_that_is_known() -> None:
    up = events.ProcessStartEvent(role="provider", name="provider-0", pid=7, peer=PEERS[0])
    said = "connections: 9 direct, 1 relayed"
    assert said in shown(told(PLANNED, up, events.PathCountsEvent(direct=9, relay=1)))
    assert "connections:" not in shown(told(PLANNED, up))


def opened(round: int, at: float = 0.0, waited: float = 0.0) -> events.RoundStartEvent:
    return events.RoundStartEvent(at=at, round=round, rounds=24, peers=PEERS, waited=waited)


def came(peer: str, seconds: float, phase: str = "train", round: int = 0) -> events.ArrivalEvent:
    return events.ArrivalEvent(at=100.0 + seconds, round=round, peer=peer, phase=phase, seconds=seconds)


def check(rows: tuple[ScreenRow, ...] | list[ScreenRow], columns: int, height: int) -> None:
    assert len(rows) <= height
    for place, row in enumerate(rows):
        assert row.text.strip() or place == 1 or columns < 60, "a row says nothing"
        assert all(c.isprintable() for c in row.text), ascii(row.text)
        assert phrases.columns_of(row.text) <= columns, row.text
        if row.text.isascii():
            assert cell_len(row.text) <= columns


@given(
    story=STORIES,
    columns=st.integers(1, 140),
    height=st.integers(1, 30),
    now=st.floats(-10.0, 1000.0),
    verbose=st.booleans(),
    is_over=st.booleans(),
)
@settings(max_examples=60)
def test_any_log_gives_at_most_the_rows_and_columns_that_there_are(
    story: list[AnyEvent], columns: int, height: int, now: float, verbose: bool, is_over: bool
) -> None:
    timeline = told(*story)
    view = ScreenView(now=now, columns=columns, rows=height, verbose=verbose, is_over=is_over)
    check(screen(timeline, view), min(columns, COLUMNS), min(height, ROWS))


@given(story=STORIES)
@settings(max_examples=40)
def test_any_log_gives_lines_that_fit_and_details_that_do_not_fail(story: list[AnyEvent]) -> None:
    timeline = RunTimeline()
    for event in story:
        timeline = fold(timeline, event)
        for line in lines(event, timeline):
            assert line.isprintable()
            assert phrases.columns_of(line) <= COLUMNS
    for number in timeline.rounds:
        check(round_rows(timeline, number, 80), 80, 1000)
        msgspec.json.encode(round_facts(timeline, number))
    for number in range(1, len(phrases.disputes(timeline)) + 1):
        check(dispute_rows(timeline, number, 80, evidence="e", run="r"), 80, 1000)
        msgspec.json.encode(dispute_facts(timeline, number, evidence=""))


@given(story=STORIES, columns=st.integers(40, 100))
@settings(max_examples=30)
def test_a_replay_from_json_gives_the_same_screen(story: list[AnyEvent], columns: int) -> None:
    again = [events.from_json(events.to_json(event)) for event in story]
    assert shown(told(*again), columns=columns) == shown(told(*story), columns=columns)


def test_blocks_stand_in_the_order_of_a_run() -> None:
    """Progress comes first once there is some, and the plan is folded."""
    rest = ["Verify", "Settle", "Result"]
    for count in range(1, len(STORY) + 1):
        timeline = told(PLANNED, *STORY[:count])
        rows = shown(timeline).splitlines()
        heads = [row.split(" ")[0] for row in rows]
        is_training = timeline.opened is not None or bool(timeline.rounds)
        first = ["Train", "Plan", "Network"] if is_training else ["Plan", "Network", "Train"]
        assert [head for head in heads if head in first + rest] == first + rest
        assert any("RAM 300 MB per worker" in row for row in rows) is not is_training


def test_result_and_next_stay_on_a_small_terminal() -> None:
    up = [events.ProcessStartEvent(role="provider", name=f"provider-{i}", pid=7, peer=PEERS[i]) for i in range(5)]
    drawn = events.AuditDrawEvent(round=0, peer=PEERS[3], segment=2)
    story = told(BEGAN, *up, *STORY[:10], drawn, AUDIT, CAUGHT, *STORY[12:-2], RESULT)
    for columns, rows in ((80, 24), (40, 12), (40, 8)):
        text = shown(story, columns=columns, rows=rows, is_over=True)
        assert "Result   validation loss 2.500" in text
        assert "Next     farflung sample runs/1" in text


def test_what_is_waited_for_has_a_clock() -> None:
    up = [events.ProcessStartEvent(at=5.0, role="provider", name=f"p{i}", pid=7, peer=PEERS[i]) for i in range(5)]
    assert "reading the job and its data … 1:05" in shown(told(BEGAN), now=65.0)
    assert "starting providers: 1 of 5 … 1:00" in shown(told(PLANNED, up[0]), now=65.0)
    assert "numerical noise of one step (30 s is usual) … 0:40" in shown(told(PLANNED, *up), now=45.0)
    assert "round 0 for 2:00" in shown(told(PLANNED, *up, opened(0, at=10.0)), now=130.0)
    assert "the next round opens … 0:07" in shown(told(PLANNED, opened(0), closed(0)), now=closed(0).at + 7.0)


def test_a_peer_is_shown_by_its_name_and_its_key() -> None:
    up = events.ProcessStartEvent(role="provider", name="provider-2", pid=7, peer=PEERS[3])
    drawn = events.AuditDrawEvent(round=0, peer=PEERS[3], segment=2)
    caught = "provider-2 (04040404) caught cheating: round 0, segment 2 differs by 812x the tolerance"
    assert caught in shown(told(PLANNED, up, drawn, AUDIT, CAUGHT))


def test_a_loss_is_in_bits_a_byte_where_a_token_is_a_byte() -> None:
    text = msgspec.structs.replace(PLANNED, is_text=True)
    assert "validation loss 2.500 nats/token (3.61 bits/byte)" in shown(told(text, RESULT))
    assert "bits/byte" not in shown(told(PLANNED, RESULT))


def test_money_has_an_anchor_and_three_digits() -> None:
    price = msgspec.structs.replace(PLANNED, unit_price=1 * MICRO, price=1_843_217 * MICRO)
    assert "at most 1.84 credits, 1.92 locked (1 credit = 1 M tokens here)" in shown(told(price))
    amounts = (0, 500, 7_777_777, 960 * MICRO, 645_121 * MICRO, 12_345_678 * MICRO, 5 * 10**18)
    assert [phrases.short_credits(each) for each in amounts] == [
        "0", "0.0000000005", "0.00000778", "0.00096", "0.645", "12.3", "5,000,000"
    ]  # fmt: skip


def test_the_end_has_one_multiple_and_no_miss_of_the_plan() -> None:
    off = events.PlanComparisonEvent(quantity="time", unit="s", planned=10.0, measured=20.0, cause="slow cores")
    rows = screen(told(*STORY[:-1], off, RESULT), ScreenView(is_over=True))
    text = "\n".join(row.text for row in rows)
    assert len(re.findall(r"[0-9]x (less|more)", text)) == 1
    assert "slow cores" not in text
    assert not [span for row in rows for span in row.spans if "plan" in span.text and span.style is SpanStyle.CARE]


def test_nothing_that_is_missing_looks_like_a_result() -> None:
    text = shown(RunTimeline())
    for part in ("reading the job", "waits for the plan", "starting nodes", "after settlement"):
        assert part in text
    assert "0.000" not in text
    assert "loss" not in text


def test_each_number_has_its_yardstick() -> None:
    text = shown(told(BEGAN, *STORY, events.BaselineEvent(loss=2.3, steps=360, seconds=60.0), RESULT))
    assert "all traffic 100 B, 70x less than a bf16 ring all-reduce (7 kB, calculated)" in text
    assert "137x less than a bf16 ring all-reduce (2.5 GB, calculated)" in shown(told(PLANNED))
    assert "baseline" not in text  # the result knows of none
    compared = msgspec.structs.replace(RESULT, loss_baseline=2.2)
    assert "single-machine baseline 2.200 (gap +0.300)" in shown(told(BEGAN, *STORY[:-1], compared))


def test_the_cheaters_story_is_two_rows_and_the_command() -> None:
    drawn = events.AuditDrawEvent(round=0, peer=PEERS[3], segment=2)
    rows = shown(told(BEGAN, PLANNED, drawn, AUDIT, CAUGHT)).splitlines()
    start = next(i for i, row in enumerate(rows) if "caught cheating" in row)
    assert "04040404 caught cheating: round 0, segment 2 differs by 812x the tolerance" in rows[start]
    assert "repeated by 01010101, 02020202   it loses 1.54 credits" in rows[start + 1]
    assert rows[start + 1].endswith("farflung watch runs/1 --dispute 1")
    assert rows[start + 2].startswith("Settle")


def test_a_verifier_that_lost_its_stake_to_a_canary_is_on_the_screen_with_its_price() -> None:
    drawn = events.AuditDrawEvent(round=0, peer=PEERS[3], segment=2)
    canaries = [
        events.CanaryEndEvent(round=r, peer=PEERS[3], segment=2, verifier=v, finding=f, tokens=9)
        for r, v, f in ((0, PEERS[0], "false"), (1, PEERS[1], "holds"), (1, PEERS[1], "holds"))
    ]
    guessed = events.PerjuryEvent(
        verifier=PEERS[1],
        round=1,
        peer=PEERS[3],
        slashed=2_000_000 * MICRO,
        bounty=1_000_000 * MICRO,
        burnt=1_000_000 * MICRO,
    )
    paid = events.LeasePaymentEvent(peer=PEERS[0], units=5, paid=5 * MICRO)
    text = shown(told(BEGAN, PLANNED, drawn, AUDIT, *canaries, guessed, paid))
    assert "1 of 2 canaries found" in text
    assert "02020202 said that a false segment holds   2 credits of its stake taken" in text
    assert "slashed 2 " in text


def test_the_ledger_is_said_to_be_balanced_or_not() -> None:
    paid = events.LeasePaymentEvent(peer=PEERS[0], units=5, paid=5 * MICRO)
    assert "ledger balanced (sum 0)" in shown(told(paid, RESULT))
    assert "ledger NOT balanced (sum 3)" in shown(told(paid, msgspec.structs.replace(RESULT, sum=3)))


def test_the_one_for_whom_all_wait_is_named_and_the_clock_moves_on() -> None:
    plan = msgspec.structs.replace(PLANNED, cores=2)
    story = [plan, opened(0, at=100.0)]
    assert "5 workers train: they share 2 cores" in shown(told(*story))
    late = told(*story, *[came(peer, 3.0 + i) for i, peer in enumerate(PEERS[:4])])
    assert "waiting for 05050505 to train: 1.2 s after the others" in shown(late, now=late.at + 1.2)
    assert "waiting for 05050505 to train: 4.0 s after the others" in shown(late, now=late.at + 4.0)
    first = told(*story, came(PEERS[0], 3.0))
    assert "1 of 5 has trained, the last 0.5 s ago" in shown(first, now=first.at + 0.5)
    done = told(*story, *[came(peer, 3.0) for peer in PEERS], *[came(p, 4.0, "reveal") for p in PEERS[1:]])
    assert "waiting for 01010101 to send a payload: 0.0 s" in shown(done)


def test_open_audits_are_why_the_next_round_waits() -> None:
    drawn = events.AuditDrawEvent(round=0, peer=PEERS[0], segment=1)
    text = shown(told(PLANNED, opened(0), closed(0), drawn))
    assert "the audits of round 0 are not over: 1 open" in text
    assert "1 segment drawn   0 hold   1 open" in text


def test_a_death_says_who_left_and_what_was_done() -> None:
    why = "its process was ended by SIGKILL"
    gone = events.ProcessExitEvent(at=5.0, peer=PEERS[1], reason="its connection closed")
    up = events.ProcessStartEvent(role="provider", name="provider-1", pid=7, peer=PEERS[1])
    again = events.ProcessRestartEvent(at=6.0, name="provider-1", why=why, seconds=0.3)
    story = (PLANNED, up, opened(0), closed(0), gone)
    assert "provider-1 (02020202) left: its connection closed   the others go on without it" in shown(told(*story))
    text = shown(told(*story, again))
    assert f"provider-1 died ({why}); started again after 0.30 s" in text
    assert "the others go on without it" in text
    assert "before" not in text  # one death, told once
    back = (events.PeerJoinEvent(at=7.0, peer=PEERS[1], round=1, replayed=1, seconds=1.0), opened(1, at=8.0))
    assert "it is back from round 1 on" in shown(told(*story, again, *back))
    other = events.ProcessRestartEvent(at=9.0, name="ledger", why=why, seconds=0.3)
    text = shown(told(*story, again, *back, other))
    assert "ledger died" in text
    assert "1 more before" in text


def test_what_lies_off_the_plan_is_told_by_itself_and_the_table_on_demand() -> None:
    rows = [
        events.PlanComparisonEvent(quantity="sync", unit="B", planned=100.0, measured=110.0),
        events.PlanComparisonEvent(quantity="time", unit="s", planned=10.0, measured=20.0),
    ]
    story = told(*STORY[:-2], *rows, RESULT)
    assert "off by over a quarter" in shown(story, verbose=False)
    assert "sync 110 B" not in shown(story)
    table = shown(story, verbose=True)
    assert "sync 110 B of 100 B: 1.10 x" in table
    assert "time 20 s of 10 s: 2.00 x" in table


def test_a_second_run_says_whether_it_gave_the_same_bits() -> None:
    same = events.RepeatedRunEvent(run="runs/0", differs=())
    assert "same as last time: runs/0" in shown(told(*STORY, same))
    other = events.RepeatedRunEvent(run="runs/0", differs=("model",))
    assert "not as last time (runs/0): model differ" in shown(told(*STORY, other))


def test_one_machine_is_shown_while_it_trains() -> None:
    plan = msgspec.structs.replace(PLANNED, baseline_seconds=60.0)
    paid = events.LeasePaymentEvent(at=50.0, peer=PEERS[0], units=5, paid=5 * MICRO)
    story = (plan, opened(0), closed(0), paid)
    text = shown(told(*story))
    assert "single-machine baseline: 30 s to 2 min 00 s planned" in text
    assert "Result   after the single-machine baseline" in text
    scored = events.BaselineProgressEvent(at=60.0, step=90, steps=360, tokens=9, loss=3.0, seconds=10.0)
    text = shown(told(*story, scored), now=65.0)
    assert "single-machine baseline: step 90/360, loss 3.000   about 0:25 left" in text
    assert "Ctrl-C skips the single-machine baseline" in text.splitlines()[0]
    asked = events.WarningEvent(at=66.0, code="FF-APP-133", message="the baseline is skipped")
    assert "after the single-machine baseline" not in shown(told(*story, scored, asked))
    assert "no baseline: it was skipped, as asked" in shown(told(*story, scored, asked, RESULT))
    over = events.BaselineEvent(loss=2.3, steps=360, seconds=40.0)
    assert "360 steps in 40 s, loss 2.300" in shown(told(*story, scored, over))


def test_ctrl_c_changes_what_the_next_one_does() -> None:
    asked = events.WarningEvent(code="FF-APP-131", message="the round that is open will be finished and settled")
    requester = events.ProcessStartEvent(role="requester", name="requester", pid=7, peer=PEERS[0])
    assert "Ctrl-C stops; resume goes on" in shown(told(PLANNED))  # nobody could finish a round yet
    assert "Ctrl-C stops; resume goes on" in shown(told(PLANNED, requester))
    assert "Ctrl-C finishes the round; resume goes on" in shown(told(PLANNED, requester, opened(0)))
    story = (PLANNED, requester, opened(0), asked)
    text = shown(told(*story))
    assert FINISHING[0] in text
    assert "warning[FF-APP-131]" in text
    assert "warning[FF-APP-131]" not in shown(told(*story), is_over=True)
    again = shown(told(*story, events.RunResumeEvent(at=9.0, round=0, session=2)))
    assert "FF-APP-131" not in again
    assert "Ctrl-C stops; resume goes on" in again


def test_a_run_that_ended_badly_says_so_and_how_to_go_on() -> None:
    assert "farflung resume" in shown(told(PLANNED, opened(0)), is_over=True)
    failed = events.RunFailureEvent(code="FF-APP-002", message="disk full")
    text = shown(told(PLANNED, failed), is_over=True)
    assert "error[FF-APP-002]: disk full" in text
    assert "failed after" in text


def test_a_resumed_run_shows_nothing_of_the_network_that_is_gone() -> None:
    up = [events.ProcessStartEvent(role="provider", name=f"p{i}", pid=7, peer=PEERS[i]) for i in range(5)]
    story = (PLANNED, *up, opened(0), closed(0), opened(1, at=5.0), came(PEERS[0], 3.0, round=1))
    resumed = events.RunResumeEvent(at=200.0, round=1, session=2)
    assert "5 providers up   ready in" in shown(told(*story))
    text = shown(told(*story, resumed))
    assert "no node is up yet   starting again, providers: 0 of 5" in text
    assert "waiting for" not in text
    assert "has trained" not in text
    back = [msgspec.structs.replace(one, at=201.0) for one in up]
    text = shown(told(*story, resumed, *back))
    assert "5 providers up   going on from round 1" in text
    text = shown(told(*story, resumed, *back, opened(1, at=204.0)))
    assert "5 providers up   ready again in 4.00 s" in text
    assert "5 workers train" in text
    assert "stopped after 4.00 s, session 2" in shown(told(*story, resumed, *back, opened(1, at=204.0)), is_over=True)
    early = told(PLANNED, *up, opened(0, at=5.0), resumed)
    assert "starting providers: 0 of 5" in shown(early)


def test_commands_name_the_run_where_it_is_not_the_newest() -> None:
    drawn = events.AuditDrawEvent(round=0, peer=PEERS[3], segment=2)
    caught = told(BEGAN, PLANNED, drawn, AUDIT, CAUGHT)
    assert "farflung watch runs/1 --dispute 1" in shown(caught)
    text = shown(caught, run="elsewhere/r1", is_over=True)
    assert "farflung watch elsewhere/r1 --dispute 1" in text
    assert text.endswith("farflung resume elsewhere/r1")
    done = told(*STORY)
    assert "farflung sample elsewhere/r1" in shown(done, run="elsewhere/r1")
    assert lines(RESULT, done, "elsewhere/r1")[-1].startswith("Next     farflung sample elsewhere/r1; also:")


def test_markup_and_escapes_in_names_stay_text() -> None:
    plan = msgspec.structs.replace(PLANNED, model="[red]x[/red]\x1b[2J\n")
    assert "[red]x[/red]?[2J?" in shown(told(plan))


def test_the_least_important_rows_go_first_where_there_are_few() -> None:
    drawn = events.AuditDrawEvent(round=0, peer=PEERS[3], segment=2)
    story = told(BEGAN, *STORY[:10], drawn, AUDIT, CAUGHT, *STORY[12:-2], RESULT)
    text = shown(story, rows=10)
    for part in ("caught cheating", "validation loss 2.500 nats", "sum 0"):
        assert part in text
    assert "in escrow" not in text


def test_a_torn_part_stays_whole_or_goes_whole() -> None:
    torn = block("", [plain("one two three four five six seven")], 20, rank=5)
    assert [row.is_torn for row in torn] == [False, *[True] * (len(torn) - 1)]
    other = ScreenRow((TextSpan("other"),), 0)
    assert fit([other, *torn], len(torn)) == (other,)


def test_a_lane_shows_each_part_in_its_place() -> None:
    merged = [came(peer, 9.0, "merge") for peer in PEERS]
    shown_at = [came(peer, 6.0, "reveal") for peer in PEERS]
    trained = [came(peer, 2.0 if peer == PEERS[0] else 4.0) for peer in PEERS]
    timeline = told(opened(0, at=100.0), *trained, *shown_at, *merged, closed(0, 10.0))
    first, second, *_ = timeline.lanes(0)
    assert lane_bar(first, 10) == "██··▓▓▒▒▒·"
    assert lane_bar(second, 10) == "████▓▓▒▒▒·"
    rows = [row.text for row in round_rows(timeline, 0, 100)]
    assert any("01010101" in row and "2.00 s" in row for row in rows)


def test_a_peer_that_has_a_name_is_shown_with_its_name_wherever_it_is_shown() -> None:
    ups = [events.ProcessStartEvent(role="provider", name=f"provider-{i}", pid=7, peer=p) for i, p in enumerate(PEERS)]
    trained = [came(peer, 2.0) for peer in PEERS]
    story = told(*ups, PLANNED, opened(0, at=100.0), *trained, closed(0, 10.0))
    first, key = PEERS[0], PEERS[0][:8]
    both, pay = f"provider-0 ({key})", events.RelayPaymentEvent(peer=first, bytes=1, price=1 * MICRO, paid=1 * MICRO)
    warning = events.WarningEvent(code="FF-APP-095", message=f"{key} stays away; {'9' * 8} too, {both}")
    failure = events.RunFailureEvent(code="FF-APP-099", message=f"{key}: no", cause=f"of {key}", hint="")
    hired = events.ProviderMatchEvent(offers=9, peers=PEERS, unit_price=1 * MICRO)
    stage = events.DisputeStageEvent(peer=first, round=0, segment=0, stage="first", turn="both", height=3)
    for said in (pay, warning, failure, hired, stage):
        text = " ".join(lines(said, fold(story, said)))
        assert both in text, said
        assert text.count(key) == text.count(both), text
    rows = {columns: [row.text for row in round_rows(story, 0, columns)] for columns in (60, 80, 120)}
    assert all(any(both in row for row in rows[columns]) for columns in (80, 120))
    assert any(key in row for row in rows[60])
    for columns, of in rows.items():
        assert max(map(phrases.columns_of, of)) <= columns


def test_a_dispute_is_told_from_the_draw_to_the_money() -> None:
    drawn = events.AuditDrawEvent(at=1.0, round=0, peer=PEERS[3], segment=2)
    timeline = told(drawn, AUDIT, CAUGHT, events.LeasePaymentEvent(peer=PEERS[3], units=9, paid=0))
    text = "\n".join(row.text for row in dispute_rows(timeline, 1, 100, evidence="evidence/x.bin", run="r1"))
    for part in (
        "1 of 1: segment 2 of round 0 by 04040404",
        "the draw chose it",
        "false: the claim is off by 812x the tolerance",
        "First    01010101 trained the segment again",
        "02020202 did the same",
        "it loses 1.54 credits",
        "0.768 to the verifiers, 0.768 burnt",
        "its pay for 9 accepted tokens is forfeited",
        "evidence/x.bin",
        f"hash {'0f' * 32}",
        "farflung verify-run r1",
    ):
        assert part in text


def test_a_line_names_the_one_who_came_late_and_long_audits() -> None:
    story = [opened(0, at=100.0), *[came(peer, 3.0) for peer in PEERS[:4]]]
    late = came(PEERS[4], 6.5)
    assert lines(late, told(*story, late)) == ["Train    05050505 trained 3.50 s after the others"]
    quick = came(PEERS[4], 3.5)
    assert lines(quick, told(*story, quick)) == []
    again = opened(1, waited=4.0)
    assert "waiting for the audits of round 0" in lines(again, told(closed(0), again))[0]
    assert lines(opened(0), told(opened(0))) == []


def test_a_committee_of_several_is_told_and_one_that_was_killed_on_purpose_is_no_warning() -> None:
    names = ("ledger", "ledger-2", "ledger-3", "ledger-4")
    up = [events.ProcessStartEvent(role="validator", name=name, pid=7, peer="") for name in names]
    killed = events.ValidatorKillEvent(name="ledger-4", round=2)
    assert "4 validators up" in shown(told(PLANNED, *up))
    assert "ledger-4 is killed after round 2, on purpose" in shown(told(PLANNED, *up, killed))
    agreed = events.ChainComparisonEvent(validators=4, blocks=57, least=55)
    assert "4 validators hold one chain of 57 blocks; one has 55 of them so far" in shown(
        told(PLANNED, *up, killed, agreed)
    )


def test_lines_say_which_run_a_run_starts_from_and_how_far_the_chain_goes() -> None:
    jobs = ("ab" * 32, "cd" * 32, "ef" * 32)
    event = events.LineageEvent(run="runs/0", jobs=jobs, root="01" * 32, rounds=3, merges=3, signatures=16, seconds=2.0)
    said = " ".join(lines(event, told(BEGAN, event)))
    assert "starts from run runs/0, proved in 2.00 s" in said
    assert "3 merges recomputed, 16 signatures checked" in said
    assert "it stands on 2 runs itself" in said
    alone = msgspec.structs.replace(event, jobs=jobs[:1])
    assert "itself" not in " ".join(lines(alone, told(BEGAN, alone)))


def test_a_planted_cheater_that_got_away_is_told_under_the_audits() -> None:
    away = events.WarningEvent(
        code="FF-APP-486", message="planted cheater provider-1 (33c98439): NOT caught; as it was"
    )
    text = shown(told(PLANNED, opened(0), closed(0), away, RESULT))
    assert "planted cheater provider-1 (33c98439): NOT caught" in text
    assert [line.split()[0] for line in lines(away, told(PLANNED))] == ["Verify", "Verify"]

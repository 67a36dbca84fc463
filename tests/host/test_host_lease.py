"""A lease moves through its table only, and the clock alone always frees the slot."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.ids import Hash
from farflung.core.units import Millis
from farflung.host import lease
from farflung.host.lease import (
    Effect,
    Event,
    LeaseAcceptEvent,
    LeaseAnswerAction,
    LeaseEndAction,
    LeaseFinishEvent,
    LeaseOfferEvent,
    LeaseRefuseEvent,
    LeaseState,
    LeaseTickEvent,
    Slot,
    WorkerExitEvent,
    WorkerKillAction,
    WorkerLaunchAction,
    WorkerStartEvent,
    WorkerStopAction,
    handle,
)

A, B = Hash(b"a" * 32), Hash(b"b" * 32)
OFFER = LeaseOfferEvent(A, Millis(100), Millis(1000))
LATER = 1_000_000  # milliseconds: beyond every deadline of a lease


def play(*steps: tuple[Event, int]) -> tuple[Slot, list[Effect]]:
    slot: Slot = None
    seen: list[Effect] = []
    for event, now in steps:
        slot, effects = handle(slot, event, Millis(now))
        seen += effects
    return slot, seen


RUNNING = ((OFFER, 0), (LeaseAcceptEvent(A), 1), (WorkerStartEvent(A), 2))


def test_a_good_lease_is_answered_launched_stopped_and_ended() -> None:
    slot, effects = play(*RUNNING, (LeaseFinishEvent(A, "job over"), 3), (WorkerExitEvent(A, "0"), 4))
    assert slot is None
    assert effects == [
        LeaseAnswerAction(A, True),
        WorkerLaunchAction(A),
        WorkerStopAction(A),
        LeaseEndAction(A, "job over"),
    ]


def test_a_busy_slot_refuses_another_job_and_keeps_its_own() -> None:
    before, _ = play(*RUNNING)
    slot, effects = handle(before, LeaseOfferEvent(B, Millis(100), Millis(1000)), Millis(5))
    assert slot == before
    assert effects == (LeaseAnswerAction(B, False, "the slot is taken"),)


def test_a_repeated_offer_changes_nothing() -> None:
    before, _ = play(*RUNNING)
    assert handle(before, OFFER, Millis(5)) == (before, ())


def test_an_offer_lapses_and_cannot_be_accepted_afterwards() -> None:
    slot, effects = play((OFFER, 0), (LeaseAcceptEvent(A), 100))
    assert slot is None
    assert WorkerLaunchAction(A) not in effects
    assert effects[0] == LeaseAnswerAction(A, False, "not answered in time")


def test_an_offer_whose_times_are_over_is_refused() -> None:
    for bad in (LeaseOfferEvent(A, Millis(0), Millis(10)), LeaseOfferEvent(A, Millis(20), Millis(10))):
        slot, effects = handle(None, bad, Millis(0))
        assert slot is None
        assert isinstance(effects[0], LeaseAnswerAction)
        assert not effects[0].is_accepted


def test_a_refused_offer_frees_the_slot() -> None:
    assert play((OFFER, 0), (LeaseRefuseEvent(A, "no"), 1)) == (
        None,
        [LeaseAnswerAction(A, False, "no"), LeaseEndAction(A, "no")],
    )


def test_a_worker_that_dies_ends_the_lease_with_its_reason() -> None:
    assert play(*RUNNING, (WorkerExitEvent(A, "SIGSEGV"), 9))[1][-1] == LeaseEndAction(A, "SIGSEGV")
    assert play(*RUNNING[:2], (WorkerExitEvent(A, "exit 1"), 9))[1][-1] == LeaseEndAction(A, "exit 1")


def test_time_over_drains_and_a_worker_that_does_not_end_is_killed_once() -> None:
    late = 1000 + lease.DRAIN_MILLIS
    slot, effects = play(
        *RUNNING,
        (LeaseTickEvent(), 999),
        (LeaseTickEvent(), 1000),
        (LeaseTickEvent(), late),
        (LeaseTickEvent(), late + 1),
    )
    assert effects[2:] == [WorkerStopAction(A), WorkerKillAction(A)]
    assert slot is not None
    assert slot.state is LeaseState.DRAINING
    assert handle(slot, WorkerExitEvent(A, "SIGKILL"), Millis(late + 2)) == (
        None,
        (LeaseEndAction(A, "the lease's time is over"),),
    )


def test_events_of_another_job_or_state_change_nothing() -> None:
    slot, _ = play(*RUNNING)
    for event in (
        LeaseAcceptEvent(B),
        WorkerStartEvent(B),
        LeaseFinishEvent(B, ""),
        WorkerExitEvent(B, ""),
        LeaseRefuseEvent(A, "late"),
        LeaseAcceptEvent(A),
        WorkerStartEvent(A),
    ):
        assert handle(slot, event, Millis(5)) == (slot, ())
    assert handle(None, WorkerExitEvent(A, ""), Millis(0)) == (None, ())


JOBS = st.sampled_from([A, B])
EVENTS = st.one_of(
    st.builds(lambda j, a, u: LeaseOfferEvent(j, Millis(a), Millis(u)), JOBS, st.integers(0, 60), st.integers(0, 90)),
    st.builds(LeaseAcceptEvent, JOBS),
    st.builds(LeaseRefuseEvent, JOBS, st.just("no")),
    st.builds(WorkerStartEvent, JOBS),
    st.builds(LeaseFinishEvent, JOBS, st.just("over")),
    st.builds(WorkerExitEvent, JOBS, st.just("gone")),
    st.just(LeaseTickEvent()),
)


@given(steps=st.lists(st.tuples(EVENTS, st.integers(0, 10)), max_size=30))
@settings(max_examples=60)
def test_from_every_state_the_clock_and_the_kernel_free_the_slot(steps: list[tuple[Event, int]]) -> None:
    slot: Slot = None
    now, launched, ended = 0, 0, 0
    for event, passed in steps:
        now += passed
        slot, effects = handle(slot, event, Millis(now))
        launched += sum(isinstance(e, WorkerLaunchAction) for e in effects)
        ended += sum(isinstance(e, LeaseEndAction) for e in effects)
        assert launched <= ended + 1  # one lease at a time
    for _ in range(4):
        if slot is None:
            break
        before, now = slot, now + LATER
        slot, effects = handle(slot, LeaseTickEvent(), Millis(now))
        assert slot != before  # time always moves the lease
        if WorkerKillAction(before.job) in effects:
            slot, _ = handle(slot, WorkerExitEvent(before.job, "killed"), Millis(now))
    assert slot is None

"""What is tried, measured and preferred among several paths to one peer: the pure core, without a socket."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.core.crypto import local_key
from farflung.net import paths
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.paths import (
    MEETING,
    ClosePath,
    DialPath,
    Effect,
    Event,
    KnownAddressesEvent,
    NetworkPath,
    PathCondition,
    PathFailedEvent,
    PathLostEvent,
    PathMeasuredEvent,
    PathOpenedEvent,
    PathRecoveredEvent,
    PathSelectionState,
    PathSilentEvent,
    PathTickEvent,
    PathType,
    PathWantedEvent,
    ProbePath,
)

R1, R2, R3 = (EndpointAddress("r", 1, local_key(3, f"r{n}").public) for n in range(3))
STRAIGHT = EndpointAddress("home", 4500)
PLACES = (R1, R2, R3, STRAIGHT, MEETING)


class Play:
    """One peer's paths, driven by hand."""

    def __init__(self, *places: EndpointAddress, may_meet: bool = True) -> None:
        self.state, self.now, self.effects = PathSelectionState(), 0.0, list[Effect]()
        self.feed(KnownAddressesEvent(places, may_meet))

    def feed(self, *events: Event, after: float = 0.0) -> list[Effect]:
        told: list[Effect] = []
        for event in events:
            self.now += after
            self.state, effects = paths.handle(self.state, event, self.now)
            told += effects
        self.effects += told
        return told

    def dials(self, effects: list[Effect]) -> list[EndpointAddress]:
        return [effect.place for effect in effects if isinstance(effect, DialPath)]

    def measure(self, place: EndpointAddress, **told: float) -> list[Effect]:
        return self.feed(*[PathMeasuredEvent(place, **told)] * 20)


def test_one_relay_is_dialled_at_once_and_everything_else_behind_it() -> None:
    play = Play(R1, R2, STRAIGHT)
    assert play.effects == []
    assert play.dials(play.feed(PathWantedEvent())) == [R1]
    told = play.feed(PathOpenedEvent(R1, PathType.RELAY))
    assert set(play.dials(told)) == {STRAIGHT, MEETING}
    assert play.state.control == play.state.bulk == R1
    assert play.dials(play.feed(PathWantedEvent(is_bulk=True))) == [R2]
    assert play.dials(play.feed(PathWantedEvent(is_bulk=True))) == []


def test_the_next_place_is_tried_when_one_fails_or_takes_long() -> None:
    play = Play(R1, R2)
    play.feed(PathWantedEvent())
    assert play.dials(play.feed(PathTickEvent(), after=1.0)) == []
    assert play.dials(play.feed(PathTickEvent(), after=1.5)) == [R2]
    play.feed(PathFailedEvent(R2))
    play = Play(R1, R2)
    play.feed(PathWantedEvent(), PathFailedEvent(R1))
    assert play.dials(play.feed(PathWantedEvent())) == [R2]
    assert play.dials(play.feed(PathFailedEvent(R2), PathWantedEvent())) == [
        R1
    ]  # who wants the peer waits for no pause


def test_a_dead_path_is_left_at_once() -> None:
    play = Play(R1, R2)
    play.feed(PathWantedEvent(is_bulk=True), PathOpenedEvent(R1, PathType.RELAY), PathOpenedEvent(R2, PathType.RELAY))
    play.feed(PathLostEvent(R1))
    assert play.state.control == play.state.bulk == R2
    play.feed(PathLostEvent(R2))
    assert play.state.control is play.state.bulk is None


def test_a_silent_path_is_left_and_closed_when_another_one_stands() -> None:
    play = Play(R1, R2)
    play.feed(PathWantedEvent(), PathOpenedEvent(R1, PathType.RELAY))
    told = play.feed(PathSilentEvent(R1))
    assert play.dials(told) == [R2]
    assert not [effect for effect in told if isinstance(effect, ClosePath)]
    told = play.feed(PathOpenedEvent(R2, PathType.RELAY))
    assert ClosePath(R1) in told
    assert play.state.control == R2


def test_a_silent_path_that_speaks_again_is_open_again() -> None:
    play = Play(R1, may_meet=False)
    play.feed(PathWantedEvent(), PathOpenedEvent(R1, PathType.RELAY))
    assert play.dials(play.feed(PathSilentEvent(R1))) == [R1]
    play.feed(PathRecoveredEvent(R1))
    assert play.state.control == R1
    assert not [effect for effect in play.effects if isinstance(effect, ClosePath)]


def test_control_takes_the_shorter_trip_and_bulk_the_greater_goodput_when_they_are_a_fifth_better() -> None:
    play = Play(R1, R2)
    play.feed(PathWantedEvent(is_bulk=True), PathOpenedEvent(R1, PathType.RELAY), PathOpenedEvent(R2, PathType.RELAY))
    play.measure(R1, trip=0.100, goodput=1e6)
    play.measure(R2, trip=0.090, goodput=0.85e6)
    assert (play.state.control, play.state.bulk) == (R1, R1)
    play.measure(R2, trip=0.080)
    assert (play.state.control, play.state.bulk) == (R2, R1)
    play.measure(R2, goodput=1.3e6)
    assert (play.state.control, play.state.bulk) == (R2, R2)


def test_a_way_without_a_relay_is_taken_when_it_is_as_good() -> None:
    play = Play(R1)
    play.feed(
        PathWantedEvent(is_bulk=True), PathOpenedEvent(R1, PathType.RELAY), PathOpenedEvent(MEETING, PathType.OPENED)
    )
    play.measure(R1, trip=0.1, goodput=1e6)
    play.measure(MEETING, trip=0.105)
    assert (play.state.control, play.state.bulk) == (MEETING, R1)
    assert play.state.ways(play.now) == (R1, MEETING)  # nobody knows yet: both carry, and show what they can
    play.measure(MEETING, goodput=0.85e6)
    assert play.state.bulk == R1
    play.measure(MEETING, goodput=0.95e6)
    assert play.state.bulk == MEETING
    assert play.state.ways(play.now) == (MEETING,)
    play.measure(R1, goodput=1.1e6)
    assert play.state.bulk == MEETING


def test_loss_counts_against_goodput() -> None:
    play = Play(R1, R2)
    play.feed(PathWantedEvent(is_bulk=True), PathOpenedEvent(R1, PathType.RELAY), PathOpenedEvent(R2, PathType.RELAY))
    play.measure(R1, goodput=1e6, loss=0.5)
    play.measure(R2, goodput=0.8e6, loss=0.0)
    assert play.state.bulk == R2


def test_a_drop_below_its_own_goodput_asks_for_a_probe_and_shares_bulk_meanwhile() -> None:
    play = Play(R1)
    play.feed(
        PathWantedEvent(is_bulk=True), PathOpenedEvent(R1, PathType.RELAY), PathOpenedEvent(MEETING, PathType.OPENED)
    )
    for place in (R1, MEETING):
        play.measure(place, goodput=1e6)
    assert play.state.ways(play.now) == (MEETING,)
    assert ProbePath(MEETING) not in play.feed(PathMeasuredEvent(MEETING, goodput=0.72e6))
    assert ProbePath(MEETING) in play.feed(PathMeasuredEvent(MEETING, goodput=0.5e6))
    assert set(play.state.ways(play.now)) == {MEETING, R1}
    assert ProbePath(MEETING) not in play.feed(PathMeasuredEvent(MEETING, goodput=0.2e6), after=1.0)
    assert ProbePath(MEETING) in play.feed(PathMeasuredEvent(MEETING, goodput=0.1e6), after=paths.PROBE_SECONDS)


def test_a_pair_that_cannot_meet_stays_on_its_relay_and_tries_less_and_less() -> None:
    play = Play(R1)
    play.feed(PathWantedEvent(), PathOpenedEvent(R1, PathType.RELAY))
    tried = [0.0]
    for _ in range(3600):
        if MEETING in play.dials(play.feed(PathTickEvent(), after=1.0)):
            tried.append(play.now)
        path = play.state.path(MEETING)
        if path is not None and path.condition is PathCondition.TRYING:
            play.feed(PathFailedEvent(MEETING))
        assert play.state.control == play.state.bulk == R1
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert len(tried) < 16
    assert gaps[1:] == sorted(gaps[1:])
    assert gaps[-1] <= paths.PAUSES.longest + 1


def test_a_place_that_is_named_no_more_is_forgotten_unless_it_carries() -> None:
    play = Play(R1, R2)
    play.feed(PathWantedEvent(), PathOpenedEvent(R1, PathType.RELAY), KnownAddressesEvent((R3,), may_meet=False))
    assert [path.place for path in play.state.paths] == [R3, R1]
    play.feed(PathLostEvent(R1), KnownAddressesEvent((R3,), may_meet=False))
    assert [path.place for path in play.state.paths] == [R3]


def relay(place: EndpointAddress, goodput: float | None, trip: float | None = None, loss: float = 0.0) -> NetworkPath:
    return NetworkPath(place, goodput=goodput, trip=trip, loss=loss)


def test_relays_are_chosen_by_goodput_and_loss_before_the_round_trip() -> None:
    near, far, lossy = relay(R1, 1e6, 0.01), relay(R2, 2e6, 0.2), relay(R3, 3e6, 0.001, loss=0.6)
    assert [path.place for path in paths.choose([near, far, lossy])] == [R2, R3]
    close = relay(R3, 1.8e6, 0.05)
    assert [path.place for path in paths.choose([near, far, close])] == [R3, R2]
    assert [path.place for path in paths.choose([relay(R1, None), far, relay(R3, None)])] == [R2, R1]


EVENTS = st.one_of(
    st.builds(PathWantedEvent, st.booleans()),
    st.builds(PathTickEvent),
    st.builds(KnownAddressesEvent, st.lists(st.sampled_from(PLACES[:4]), max_size=4).map(tuple), st.booleans()),
    st.builds(PathOpenedEvent, st.sampled_from(PLACES), st.sampled_from(list(PathType))),
    *(
        st.builds(kind, st.sampled_from(PLACES))
        for kind in (PathFailedEvent, PathLostEvent, PathSilentEvent, PathRecoveredEvent)
    ),
    st.builds(
        PathMeasuredEvent,
        st.sampled_from(PLACES),
        st.none() | st.floats(0.001, 2),
        st.none() | st.floats(1e3, 1e8),
        st.none() | st.floats(0, 1),
    ),
)


@settings(max_examples=300)
@given(st.lists(st.tuples(EVENTS, st.floats(0, 20)), max_size=60))
def test_whatever_happens_an_open_path_is_preferred_and_nothing_is_dialled_without_need(
    story: list[tuple[Event, float]],
) -> None:
    play = Play(R1, R2, STRAIGHT)
    for event, after in story:
        before = play.state
        effects = play.feed(event, after=after)
        there = {path.place for path in play.state.paths if path.is_open}
        for preferred in (play.state.control, play.state.bulk):
            assert preferred in there if there else preferred is None
        dials = play.dials(effects)
        assert len(dials) == len(set(dials))
        assert not set(dials) & there
        for place in dials:
            path = before.path(place)
            was_resting = path is not None and path.condition is PathCondition.FAILED and path.since > play.now
            assert not was_resting or not there, "a failed path rests while another one stands"
            assert path is None or path.condition is not PathCondition.TRYING
        relays = [path for path in play.state.paths if path.condition is PathCondition.TRYING and path.is_relayed]
        assert len(relays) <= paths.RELAYS + 1
        for effect in effects:
            if isinstance(effect, ClosePath):
                assert there
                assert effect.place not in there
        assert set(play.state.ways(play.now)) <= there
        assert bool(play.state.ways(play.now)) == bool(there)


def test_a_round_trip_that_a_busy_machine_lengthened_is_forgotten_by_the_next() -> None:
    play = Play(R1)
    play.feed(PathWantedEvent(), PathOpenedEvent(R1, PathType.RELAY), PathOpenedEvent(MEETING, PathType.OPENED))
    for trip in (0.025, 0.027, 0.030, 0.024):
        play.feed(PathMeasuredEvent(R1, trip=trip))
    play.feed(PathMeasuredEvent(MEETING, trip=0.123))
    assert play.state.control == R1
    play.feed(PathMeasuredEvent(MEETING, trip=0.024))
    assert play.state.control == MEETING
    play.feed(*[PathMeasuredEvent(MEETING, trip=0.5)] * (paths.TRIPS - 1))
    assert play.state.control == MEETING
    play.feed(PathMeasuredEvent(MEETING, trip=0.5))
    assert play.state.control == R1  # all that is remembered says that it has become longer


def test_round_trips_of_an_earlier_connection_say_nothing_of_the_next_one() -> None:
    play = Play(R1, R2)
    play.feed(PathWantedEvent(), PathOpenedEvent(R1, PathType.RELAY), PathOpenedEvent(R2, PathType.RELAY))
    play.measure(R1, trip=0.1)
    play.measure(R2, trip=0.05)
    assert play.state.control == R2
    play.feed(PathLostEvent(R2), PathOpenedEvent(R2, PathType.RELAY), PathMeasuredEvent(R2, trip=0.2))
    assert play.state.control == R1


@settings(max_examples=200)
@given(st.lists(st.floats(0.92, 1.09), min_size=40, max_size=200), st.booleans())
def test_noise_within_a_fifth_moves_nothing(noise: list[float], is_first: bool) -> None:
    play = Play(R1, R2)
    play.feed(PathWantedEvent(is_bulk=True), PathOpenedEvent(R1, PathType.RELAY), PathOpenedEvent(R2, PathType.RELAY))
    for n, factor in enumerate(noise):
        place = R1 if (n % 2 == 0) == is_first else R2
        before = play.state.control, play.state.bulk
        play.feed(PathMeasuredEvent(place, trip=0.1 * factor, goodput=1e6 * factor))
        assert before == (play.state.control, play.state.bulk)


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1), st.floats(0, 1), st.floats(0.001, 3), st.floats(0.001, 3))
def test_two_paths_never_beat_each_other(
    one: float, two: float, lost: float, missed: float, here: float, there: float
) -> None:
    a, b = (relay(R1, one + 1, here, lost), replace(relay(MEETING, two + 1, there, missed), way=PathType.OPENED))
    assert not (paths.beats(a, b) and paths.beats(b, a))
    assert not (paths.is_nearer(a, b) and paths.is_nearer(b, a))


def test_whoever_waits_for_a_path_that_is_slow_has_one_more_tried_though_it_failed_lately() -> None:
    play = Play(R1, R2, R3, may_meet=False)
    assert play.dials(play.feed(PathWantedEvent())) == [R1]
    play.feed(PathFailedEvent(R1))
    assert play.dials(play.feed(PathWantedEvent())) == [R2]
    play.feed(PathFailedEvent(R2))
    assert play.dials(play.feed(PathWantedEvent())) == [R3]
    assert play.dials(play.feed(PathWantedEvent(), after=paths.SLOW_SECONDS / 2)) == []
    # Nobody waits: its pause is not over.
    assert play.dials(play.feed(PathTickEvent(), after=paths.SLOW_SECONDS / 2)) == []
    assert len(play.dials(play.feed(PathWantedEvent()))) == 1
    assert play.dials(play.feed(PathWantedEvent())) == []
    assert len(play.dials(play.feed(PathWantedEvent(), after=paths.SLOW_SECONDS))) == 1
    assert {path.condition for path in play.state.paths} == {PathCondition.TRYING}

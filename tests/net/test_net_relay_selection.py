"""At which of many relays a peer stays: the pure core, without a socket or a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hypothesis import example, given, settings
from hypothesis import strategies as st

from farflung.core.crypto import local_key
from farflung.net import relay_selection
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.relay_selection import (
    DOUBT_SECONDS,
    FRESH_SECONDS,
    GONE_SECONDS,
    LOOKS,
    REST_SECONDS,
    AttachRelay,
    DetachRelay,
    Effect,
    Event,
    KnownRelaysEvent,
    ProbeRelay,
    RelayAttachedEvent,
    RelayDetachedEvent,
    RelayMeasuredEvent,
    RelaySelectionState,
    RelayTickEvent,
    RelayTrafficEvent,
    RelayUnmeasuredEvent,
)

R = tuple(EndpointAddress("r", n + 1, local_key(3, "r", n).public) for n in range(8))
GOOD, TRIP = 1e6, 0.05


class Play:
    """One peer and its relays. `rates`: what a probe of each finds; who is not in it does not answer."""

    def __init__(
        self, rates: Mapping[EndpointAddress, float], trips: Mapping[EndpointAddress, float] | None = None
    ) -> None:
        self.rates, self.trips = dict(rates), dict(trips or {})
        self.noise: Callable[[], float] = lambda: 1.0
        self.state, self.now, self.effects = RelaySelectionState(), 0.0, list[Effect]()
        self.away: set[EndpointAddress] = set()

    def feed(self, *events: Event) -> None:
        for event in events:
            self.state, effects = relay_selection.handle(self.state, event, self.now)
            self.effects += effects

    def known(self, *places: EndpointAddress) -> None:
        self.feed(KnownRelaysEvent(places))
        self.turn()

    def turn(self) -> None:
        """All that was asked for is answered."""
        for _ in range(32):
            for place in self.state.attached:  # also where a measurement has just brought us
                self.feed(RelayDetachedEvent(place) if place in self.away else RelayAttachedEvent(place))
            place = self.state.probing
            if place is None:
                return
            rate = self.rates.get(place)
            if rate is None or place in self.away:
                self.feed(RelayUnmeasuredEvent(place))
            else:
                self.feed(RelayMeasuredEvent(place, self.trips.get(place, TRIP), rate * self.noise()))
        raise AssertionError("it measures without end")

    def wait(self, seconds: float, step: float = 2.0) -> None:
        for _ in range(int(seconds / step) + 1):
            self.now += step
            self.feed(RelayTickEvent())
            self.turn()

    def changes(self) -> int:
        return sum(isinstance(effect, DetachRelay) for effect in self.effects)

    def probes(self) -> list[EndpointAddress]:
        return [effect.place for effect in self.effects if isinstance(effect, ProbeRelay)]


def test_who_knows_two_relays_stays_at_both_and_measures_nothing() -> None:
    play = Play({R[0]: GOOD, R[1]: 9 * GOOD})
    play.known(R[0], R[1])
    play.wait(2 * FRESH_SECONDS, 60)
    assert play.effects == [AttachRelay(R[0]), AttachRelay(R[1])]


def test_of_many_all_are_measured_and_the_two_best_are_kept() -> None:
    play = Play({R[0]: GOOD, R[1]: 2 * GOOD, R[2]: 9 * GOOD, R[3]: 6 * GOOD})
    play.known(*R[:4])
    # At once, before anything is measured.
    assert {effect.place for effect in play.effects[:2]} == set(R[:2])
    assert set(play.probes()) == set(R[:4])
    play.wait(3 * REST_SECONDS)
    assert play.state.attached == (R[2], R[3])
    assert play.changes() == 2


def test_what_is_lost_counts_and_latency_alone_does_not() -> None:
    play = Play({})
    play.feed(KnownRelaysEvent(R[:3]))
    for place, trip, loss in ((R[0], 0.2, 0.0), (R[1], 0.001, 0.9), (R[2], 0.2, 0.0)):
        assert play.state.probing == place
        play.feed(RelayMeasuredEvent(place, trip, GOOD, loss))
    assert set(play.state.attached) == {R[0], R[2]}
    play.wait(2 * REST_SECONDS)
    assert set(play.state.attached) == {R[0], R[2]}


def test_of_as_good_relays_the_nearer_one_is_taken() -> None:
    play = Play(dict.fromkeys(R[:3], GOOD), {R[0]: 0.3, R[1]: 0.05, R[2]: 0.06})
    play.known(*R[:3])
    play.wait(2 * REST_SECONDS)
    assert set(play.state.attached) == {R[1], R[2]}


def test_a_relay_that_is_gone_is_left_within_seconds_and_one_that_restarts_is_not() -> None:
    play = Play(dict.fromkeys(R[:3], GOOD))
    play.known(*R[:3])
    play.away = {R[0]}
    play.wait(GONE_SECONDS - 3)
    assert play.state.attached == (R[0], R[1])
    play.away = set()
    play.wait(GONE_SECONDS)
    play.away = {R[0]}
    play.wait(GONE_SECONDS + 3)
    assert set(play.state.attached) == {R[1], R[2]}


def test_a_relay_that_carries_less_than_before_is_measured_again_and_left_when_it_is_so() -> None:
    play = Play({R[0]: 3 * GOOD, R[1]: 3 * GOOD, R[2]: 2 * GOOD})
    play.known(*R[:3])
    play.wait(DOUBT_SECONDS)
    before = len(play.probes())
    play.rates[R[0]] = GOOD / 10
    play.feed(*[RelayTrafficEvent(((R[0], GOOD),))] * 3, RelayTrafficEvent(((R[0], 0.6 * GOOD),)))
    play.wait(REST_SECONDS)
    assert set(play.probes()[before:]) == set(R[:3])  # all of them: it may be the line
    play.wait(2 * FRESH_SECONDS, 20)
    assert set(play.state.attached) == {R[1], R[2]}


def test_when_the_own_line_is_slower_all_relays_are_and_none_is_left() -> None:
    play = Play(dict.fromkeys(R[:4], GOOD))
    play.known(*R[:4])
    play.wait(DOUBT_SECONDS)
    play.rates = dict.fromkeys(R[:4], GOOD / 10)
    play.feed(*[RelayTrafficEvent(((R[0], GOOD),))] * 3, RelayTrafficEvent(((R[0], GOOD / 10),)))
    play.wait(2 * FRESH_SECONDS, 20)
    assert play.changes() == 0


def test_a_relay_that_shines_when_it_is_measured_and_is_slow_in_use_is_left() -> None:
    play = Play({R[0]: 50 * GOOD, R[1]: GOOD, R[2]: GOOD})
    play.known(*R[:3])
    play.wait(2 * REST_SECONDS)
    assert R[0] in play.state.attached
    other = next(place for place in play.state.attached if place != R[0])
    for _ in range(LOOKS):
        play.feed(RelayTrafficEvent(((R[0], GOOD / 4), (other, GOOD))))
        play.wait(2)
    play.wait(3 * REST_SECONDS)
    assert set(play.state.attached) == {R[1], R[2]}
    play.wait(2 * FRESH_SECONDS, 20)  # it shines again, and is trusted no more
    assert set(play.state.attached) == {R[1], R[2]}


def test_a_peer_that_uses_one_relay_more_than_the_other_accuses_neither() -> None:
    play = Play(dict.fromkeys(R[:3], GOOD))
    play.known(*R[:3])
    for _ in range(3 * LOOKS):
        play.feed(RelayTrafficEvent(((R[0], GOOD),)), RelayTrafficEvent(((R[1], GOOD / 50),)))  # with different peers
        play.feed(RelayTrafficEvent(((R[0], GOOD), (R[1], 0.6 * GOOD))))
        play.wait(4)
    play.wait(2 * REST_SECONDS)
    assert play.changes() == 0


@settings(max_examples=25)
@given(
    st.lists(st.floats(1e4, 1e8), min_size=3, max_size=8),
    st.lists(st.floats(0.001, 0.5), min_size=8, max_size=8),
    st.lists(st.floats(0.96, 1.04), min_size=1, max_size=50),
)
@example([1e4] * 5, [0.5, 0.375, 0.5, 0.25, 0.5, 0.5, 0.5, 0.5], [1.0, 1.0, 1.0, 0.96875])
def test_noise_moves_nothing(rates: list[float], trips: list[float], noise: list[float]) -> None:
    known = R[: len(rates)]
    play = Play(dict(zip(known, rates, strict=True)), dict(zip(R, trips, strict=True)))
    turns = iter(noise * 1000)
    play.noise = lambda: next(turns)
    play.known(*known)
    play.wait(3 * len(rates) * REST_SECONDS, 30)
    before = play.changes()
    assert before <= 3 * len(rates)  # each step is to something better
    play.wait(8 * FRESH_SECONDS, 100)
    assert play.changes() <= before + 4  # in 80 minutes: what the first measurements had wrong


@settings(max_examples=40)
@given(st.data())
def test_there_are_never_fewer_relays_than_there_could_be(data: st.DataObject) -> None:
    play = Play({})
    play.feed(KnownRelaysEvent(R[: data.draw(st.integers(1, 8))]))
    for _ in range(data.draw(st.integers(1, 30))):
        place = data.draw(st.sampled_from(R))
        event = data.draw(
            st.sampled_from(
                [
                    RelayAttachedEvent(place),
                    RelayDetachedEvent(place),
                    RelayMeasuredEvent(place, 0.01, data.draw(st.floats(1, 1e9))),
                    RelayUnmeasuredEvent(place),
                    RelayTrafficEvent(((place, data.draw(st.floats(1, 1e9))), (R[0], 1e6))),
                    RelayTickEvent(),
                    KnownRelaysEvent(tuple(data.draw(st.lists(st.sampled_from(R), min_size=1, max_size=8)))),
                ]
            )
        )
        play.now += data.draw(st.floats(0, 100))
        play.feed(event)
        attached, known = play.state.attached, {slot.place for slot in play.state.slots}
        assert len(attached) == min(2, len(known))
        assert set(attached) <= known
    attached = set[EndpointAddress]()
    for effect in play.effects:  # what the shell does is what the state says
        if isinstance(effect, AttachRelay):
            assert effect.place not in attached
            attached.add(effect.place)
        elif isinstance(effect, DetachRelay):
            attached.remove(effect.place)
    assert attached == set(play.state.attached)


def test_when_all_relays_are_away_two_are_waited_for_and_others_are_tried_less_and_less() -> None:
    play = Play(dict.fromkeys(R[:4], GOOD))
    play.known(*R[:4])
    play.away = set(R[:4])
    play.wait(3600, 20)
    assert len(play.state.attached) == 2
    assert play.changes() < 100
    play.away = set()
    play.wait(10)
    assert len(play.state.attached) == 2
    assert not any(slot.is_dead(play.now) for slot in play.state.slots if slot.is_attached)

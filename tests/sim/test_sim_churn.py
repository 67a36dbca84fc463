"""Churn in virtual time: slow, dying, returning, late, silent and lying members; the coordinator dies as well."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sim_churn import PEERS, STEP, Network, check, job

from farflung.core.ids import PeerId
from farflung.peers.requester.round_timing import LEAST
from farflung.train import rounds
from farflung.train.rounds import RoundPhase
from farflung.train.run_log import AcceptSetRecord, CommitmentsRecord, RoundEndRecord, RoundStartRecord

SLOW = PEERS[1]
ALL = 20  # seconds that a member of speed 1 trains


def accepted(network: Network) -> list[set[PeerId]]:
    return [{c.peer for c in r.contributions} for r in network.log if isinstance(r, AcceptSetRecord)]


def opened(network: Network) -> list[dict[PeerId, int]]:
    return [{m.peer: m.weight for m in r.members} for r in network.log if isinstance(r, RoundStartRecord)]


def completed(network: Network) -> None:
    assert network.ended is not None, "the round waits for ever"
    assert network.ended.reason == rounds.REASON_COMPLETE
    check(network)


def seconds(network: Network, round: int) -> float:
    """From the opening of a round to its end."""
    return network.at["RoundEndRecord", round] - network.at["RoundStartRecord", round]


@pytest.mark.guarantee
def test_a_slow_member_is_passed_over_and_takes_part_again_as_soon_as_it_can() -> None:
    network = Network(1, job())
    network.members[SLOW].speed = 100.0

    def recover() -> None:
        network.members[SLOW].speed = 1.0

    network.run([(2.2 * ALL, recover)])
    completed(network)
    found = accepted(network)
    assert SLOW not in found[0]
    assert all(found[round] == set(PEERS) for round in range(3, network.spec.rounds))
    assert all(SLOW in each for each in opened(network)), "it was let in again at once"
    assert not network.lost
    assert not [r for _, e in network.effects if isinstance(e, rounds.ExpelMember | rounds.ExcludeMember) for r in [e]]


@pytest.mark.parametrize("phase", [RoundPhase.TRAIN, RoundPhase.REVEAL, RoundPhase.MERGE])
def test_a_member_that_never_answers_holds_one_window_and_then_nothing(phase: RoundPhase) -> None:
    """It is asked again only after it has answered, which it never does."""
    network = Network(2, job())
    network.members[SLOW].silent_in = frozenset({phase})
    network.run()
    completed(network)
    window = max(LEAST, network.spec.churn.grace * (ALL + 1))
    assert ALL + 0.9 * window < seconds(network, 0) < ALL + window + 1
    assert [SLOW in each for each in opened(network)] == [True] + [False] * 5
    assert all(seconds(network, round) < ALL + 1 for round in range(1, network.spec.rounds))
    assert not network.lost


def test_who_arrives_within_the_window_is_in() -> None:
    network = Network(3, job())
    network.members[SLOW].speed = 1.4  # grace is 0.5
    network.run()
    completed(network)
    assert accepted(network) == [set(PEERS)] * network.spec.rounds
    assert network.windows


def test_without_a_quorum_everybody_is_waited_for() -> None:
    """Three of five equal members are a share of 0.6; two slow ones are not outvoted by a quorum of 0.7."""
    for quorum, is_passed_over in ((0.6, True), (0.7, False)):
        network = Network(4, job(quorum=quorum))
        for peer in PEERS[:2]:
            network.members[peer].speed = 10.0
        network.run()
        completed(network)
        assert (accepted(network)[0] == set(PEERS[2:])) is is_passed_over
        assert (accepted(network)[0] == set(PEERS)) is not is_passed_over


def test_a_quorum_of_one_waits_for_all_and_opens_no_window() -> None:
    network = Network(5, job(quorum=1.0))
    network.members[SLOW].speed = 50.0
    network.run()
    completed(network)
    assert accepted(network) == [set(PEERS)] * network.spec.rounds
    assert not network.windows
    fast = Network(6, job(quorum=1.0))
    fast.run()
    assert network.log == fast.log, "no bit depends on time"


@given(st.integers(0, 2**32), st.sets(st.integers(0, 5), max_size=3))
@settings(max_examples=40)
def test_no_phase_is_closed_early_or_late_or_without_a_quorum(seed: int, rounds_in: set[int]) -> None:
    network = Network(seed, job(), jitter=1.5)
    for peer in PEERS:
        network.members[peer].speed = network.random.choice([1.0, 1.2, 1.7, 4.0])
    network.run()
    completed(network)
    phases = {RoundPhase.TRAIN: CommitmentsRecord, RoundPhase.REVEAL: AcceptSetRecord, RoundPhase.MERGE: RoundEndRecord}
    for round, phase, at, grace in network.windows:
        closed_at = network.at[phases[phase].__name__, round]
        assert closed_at <= at + grace + 1e-9, "nobody is waited for longer than the window"
        told = [(t, e) for t, e in network.effects if isinstance(e, rounds.SkipMember)]
        for t, effect in told:
            if (effect.round, effect.phase) == (round, phase):
                assert t == pytest.approx(at + grace), "nobody is passed over before its window is over"
    for members, one in zip(opened(network), network.records(CommitmentsRecord), strict=True):
        assert isinstance(one, CommitmentsRecord)
        share = sum(members[c.peer] for c in one.commitments) / sum(members.values())
        assert share >= network.spec.churn.quorum
    assert not network.lost


def test_a_member_is_told_of_what_it_missed_only_when_the_record_is_written() -> None:
    network = Network(8, job())
    network.members[SLOW].speed = 30.0
    network.run()
    seen: list[rounds.Effect] = []
    for _, effect in network.effects:
        if isinstance(effect, rounds.SkipMember):
            closers = [e for e in seen if isinstance(e, rounds.WriteRecord) and isinstance(e.record, CommitmentsRecord)]
            assert closers[-1].record.round == effect.round  # type: ignore[union-attr]
        seen.append(effect)
    assert any(isinstance(e, rounds.SkipMember) for e in seen)


def test_the_end_of_a_window_that_is_past_or_was_never_open_means_nothing() -> None:
    network = Network(9, job())
    network.run(die_after=12)
    state = rounds.replay(network.fresh(), network.log)
    state, _ = rounds.step(state, rounds.BeginInput())
    for round in (state.round, state.round - 1, state.round + 1):
        for phase in RoundPhase:
            assert rounds.step(state, rounds.WindowEndInput(round, phase)) == (state, [])


def test_a_member_that_weighs_more_than_it_was_assigned_is_out_and_nothing_of_it_is_merged() -> None:
    liar = PEERS[3]
    network = Network(10, job(quorum=1.0))
    network.members[liar].weighs = 2
    network.run()
    completed(network)
    assert all(liar not in each for each in accepted(network))
    assert [liar in each for each in opened(network)] == [True] + [False] * 5


@given(st.integers(0, 2**32), st.lists(st.tuples(st.floats(0.0, 90.0), st.integers(0, 4)), max_size=6))
@settings(max_examples=60)
def test_members_that_die_and_return_lose_only_the_round_they_were_in(
    seed: int, deaths: list[tuple[float, int]]
) -> None:
    network = Network(seed, job())
    plans = [
        (when, lambda peer=PEERS[i]: network.die(peer, 5.0 + 40.0 * network.random.random())) for when, i in deaths
    ]
    network.run(plans)
    while network.ended is None or network.ended.reason != rounds.REASON_COMPLETE:
        network.ended = None  # all were dead at once: the next session waits for them
        network.run()
    completed(network)
    assert network.lost == {PEERS[i] for when, i in deaths if when < network.now} & network.lost


@given(
    st.integers(0, 2**32),
    st.lists(st.integers(0, 70), max_size=5),
    st.lists(st.sampled_from([0.5, 1.0, 1.3, 2.0, 9.0]), min_size=5, max_size=5),
    st.booleans(),
)
@settings(max_examples=80)
def test_a_coordinator_that_dies_in_any_window_goes_on_from_its_log(
    seed: int, deaths: list[int], speeds: list[float], is_adaptive: bool
) -> None:
    network = Network(seed, job(adaptive=is_adaptive), jitter=0.5)
    for peer, speed in zip(PEERS, speeds, strict=True):
        network.members[peer].speed = speed
    for death in deaths:
        if network.ended is None:
            before = list(network.log)
            network.run(die_after=death)
            assert network.log[: len(before)] == before
    if network.ended is None:
        network.run()
    completed(network)
    assert not network.lost


def test_a_window_that_ended_is_in_the_log_and_a_resumed_coordinator_keeps_to_it() -> None:
    """Death right behind the record that passes a member over: whoever was out stays out of that round."""
    network = Network(11, job())
    network.members[SLOW].speed = 30.0
    network.run()
    place = next(i for i, (_, e) in enumerate(network.effects) if isinstance(e, rounds.SkipMember))
    again = Network(11, job())
    again.members[SLOW].speed = 30.0
    again.run(die_after=place)
    assert isinstance(again.log[-1], CommitmentsRecord)
    assert SLOW not in {c.peer for c in again.log[-1].commitments}
    again.members[SLOW].speed = 0.01
    again.run()
    completed(again)
    assert SLOW not in accepted(again)[0]
    assert SLOW in accepted(again)[-1]


# Pacing


def test_slow_members_are_given_fewer_tokens_and_are_passed_over_no_more() -> None:
    network = Network(12, job(rounds=10, adaptive=True))
    network.members[SLOW].speed = 4.0
    network.run()
    completed(network)
    assert opened(network)[0] == dict.fromkeys(PEERS, ALL * STEP)
    last = opened(network)[-1]
    assert 4 <= last[SLOW] / STEP <= 5
    assert last == dict.fromkeys(PEERS, ALL * STEP) | {SLOW: last[SLOW]}
    assert all(SLOW in each for each in accepted(network)[3:])
    assert seconds(network, 9) < ALL + 1


def test_a_slow_member_delays_nobody_though_all_are_waited_for() -> None:
    network = Network(13, job(rounds=10, quorum=1.0, adaptive=True))
    network.members[SLOW].speed = 4.0
    network.run()
    completed(network)
    assert accepted(network) == [set(PEERS)] * 10
    assert seconds(network, 0) > 4 * ALL
    assert seconds(network, 9) < ALL + 1


def test_rounds_are_as_short_as_the_exchange_allows() -> None:
    """Merging takes 0.02 s at most, a step 1 s: with a share of 0.01 three steps are enough, and two are the least."""
    network = Network(14, job(rounds=10, adaptive=True, exchange=0.05))
    network.run()
    completed(network)
    steps = [r.steps for r in network.log if isinstance(r, RoundStartRecord)]
    assert steps[0] == ALL
    assert steps[-1] < 5
    assert all(later >= earlier / 2 for earlier, later in pairwise(steps))


def test_a_resumed_coordinator_goes_on_at_the_pace_of_the_log() -> None:
    """Death behind a round's last record: the next round opens before anything is measured anew."""
    undisturbed, network = (Network(15, job(rounds=10, quorum=1.0, adaptive=True, exchange=0.005)) for _ in range(2))
    for each in (undisturbed, network):
        each.members[SLOW].speed = 4.0
    undisturbed.run()
    kinds = [type(e.record) if isinstance(e, rounds.WriteRecord) else None for _, e in undisturbed.effects]
    place = [i for i, kind in enumerate(kinds) if kind is RoundEndRecord][6]
    network.run(die_after=place + 1)
    assert isinstance(network.log[-1], RoundEndRecord)
    last = network.records(RoundStartRecord)[-1]
    network.run()
    completed(network)
    following = network.records(RoundStartRecord)[7]
    assert isinstance(last, RoundStartRecord)
    assert isinstance(following, RoundStartRecord)
    assert (following.steps, following.members) == (last.steps, last.members)
    assert last.steps < ALL
    assert {m.peer: m.weight for m in last.members}[SLOW] < last.steps * STEP / 2


def test_a_pace_beyond_the_terms_is_cut_to_them() -> None:
    network = Network(16, job())
    state = network.fresh()
    state, _ = rounds.step(state, rounds.StepAssignmentInput(10, 10 * STEP, {SLOW: 99 * STEP, PEERS[2]: 0}))
    _, effects = rounds.step(state, rounds.BeginInput())
    record = next(e.record for e in effects if isinstance(e, rounds.WriteRecord))
    assert isinstance(record, RoundStartRecord)
    assert {m.peer: m.weight for m in record.members} == {**dict.fromkeys(PEERS, 10 * STEP), PEERS[2]: 1}


def test_each_phase_has_a_window_of_its_own() -> None:
    """One member alone is a quorum; a second is in time for each window, a third for none."""

    class Uneven(Network):
        def fresh(self) -> rounds.CoordinatorState:
            return replace(
                super().fresh(), pace=dict(zip(PEERS, (20 * STEP, 4 * STEP, 4 * STEP, 2 * STEP, 2 * STEP), strict=True))
            )

    network = Uneven(17, job(quorum=0.5))
    for peer, speed in zip(PEERS, (1.0, 6.0, 60.0, 12.0, 12.0), strict=True):
        network.members[peer].speed = speed
    network.members[PEERS[4]].silent_in = frozenset({RoundPhase.REVEAL})  # so that this window as well is over
    network.members[PEERS[1]].merging = 0.5
    network.run()
    completed(network)
    assert accepted(network) == [{PEERS[0], PEERS[1], PEERS[3]}] * network.spec.rounds
    signed = [{peer for peer, _ in r.signatures} for r in network.log if isinstance(r, RoundEndRecord)]
    assert signed == accepted(network)

"""A coordinator whose members do not all come back: what it does alone, and what a later session makes of its log."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sim_rounds import KEYS, Network

from farflung.core.errors import VerificationError
from farflung.core.ids import PeerId
from farflung.train import rounds
from farflung.train.run_log import (
    AcceptSetRecord,
    AuditsRecord,
    CommitmentsRecord,
    RoundEndRecord,
    RoundStartRecord,
    RunEndRecord,
)

PEERS = [key.public for key in KEYS]
PER_ROUND = (CommitmentsRecord, AcceptSetRecord, RoundEndRecord, RoundStartRecord)


def assembled(network: Network, back: list[PeerId]) -> rounds.CoordinatorState:
    """As a new session finds its members: those that do not come are lost before anything is asked."""
    state = rounds.replay(network.fresh(), network.log)
    for peer in set(state.members) - set(back):
        state, _ = rounds.step(state, rounds.MemberLossInput(peer))
    return state


def cut_behind(kind: type, seed: int = 1) -> Network:
    """A network whose coordinator died right behind the second record of this kind."""
    network = Network(seed)
    network.run()
    places = [i for i, record in enumerate(network.log) if isinstance(record, kind)]
    del network.log[places[1] + 1 :]
    network.ended = None
    return network


@pytest.mark.parametrize("kind", [RoundStartRecord, CommitmentsRecord])
def test_a_session_to_which_nobody_comes_back_ends_alone_and_writes_nothing(kind: type) -> None:
    """Neither does it wait for ever, nor say that the run is complete."""
    _, effects = rounds.step(assembled(cut_behind(kind), []), rounds.BeginInput())
    ends = [e.finished.reason for e in effects if isinstance(e, rounds.EndRun)]
    assert ends == [rounds.REASON_ALONE]
    assert not any(isinstance(e, rounds.WriteRecord) for e in effects)


@pytest.mark.parametrize("first", [True, False])  # whether the first that is lost said so, too
def test_a_round_in_which_all_numbers_are_lost_is_given_up_and_the_run_ends_as_diverged(first: bool) -> None:
    network = cut_behind(RoundStartRecord)
    state, _ = rounds.step(assembled(network, PEERS), rounds.BeginInput())
    *others, last = sorted(state.in_round)
    for peer in others:
        state, effects = rounds.step(state, rounds.MemberLossInput(peer, has_diverged=first))
        assert (state.phase, effects) == (rounds.RoundPhase.TRAIN, [])  # the others go on
    state, effects = rounds.step(state, rounds.MemberLossInput(last, has_diverged=True))
    assert (state.phase, effects) == (rounds.RoundPhase.AUDIT, [])  # the round before is being audited
    state, effects = rounds.step(state, rounds.MemberJoinInput(last))  # it opens what it owes
    state, effects = rounds.step(state, rounds.VerdictsInput(state.round - 1, ()))
    written = [e.record for e in effects if isinstance(e, rounds.WriteRecord)]
    assert [type(record) for record in written] == [AuditsRecord, RunEndRecord]
    assert [e.finished.reason for e in effects if isinstance(e, rounds.EndRun)] == [rounds.REASON_DIVERGED]
    ended = rounds.replay(network.fresh(), [*network.log, *written])
    assert (ended.phase, ended.round, ended.root) == (rounds.RoundPhase.DONE, state.round, state.root)
    died = rounds.replay(network.fresh(), [*network.log, written[0]])  # between the two records
    again, effects = rounds.step(died, rounds.BeginInput())
    assert [type(e.record) for e in effects if isinstance(e, rounds.WriteRecord)] == [RoundStartRecord]
    assert again.round == state.round


def test_a_run_goes_on_with_whoever_lost_no_number() -> None:
    state, _ = rounds.step(assembled(cut_behind(RoundStartRecord), PEERS), rounds.BeginInput())
    first, last, *_ = sorted(state.in_round)
    for peer in sorted(state.in_round - {first, last}):
        state, _ = rounds.step(state, rounds.MemberLossInput(peer))
    state, _ = rounds.step(state, rounds.MemberLossInput(first, has_diverged=True))
    state, effects = rounds.step(state, rounds.MemberLossInput(last))
    assert [e.finished.reason for e in effects if isinstance(e, rounds.EndRun)] == [rounds.REASON_ALONE]


def test_an_accepted_round_is_closed_even_if_nobody_comes_back() -> None:
    network = cut_behind(AcceptSetRecord)
    state, effects = rounds.step(assembled(network, []), rounds.BeginInput())
    (merge,) = (e for e in effects if isinstance(e, rounds.MergeLocally))
    state, effects = rounds.step(state, rounds.OwnRootInput(merge.round, rounds.Hash(bytes(32))))
    written = [e.record for e in effects if isinstance(e, rounds.WriteRecord)]
    assert [type(record) for record in written] == [RoundEndRecord]
    assert not any(isinstance(e, rounds.EndRun) for e in effects)  # the round before is being audited
    state, effects = rounds.step(state, rounds.VerdictsInput(merge.round - 1, ()))
    written = [e.record for e in effects if isinstance(e, rounds.WriteRecord)]
    assert [type(record) for record in written] == [AuditsRecord]
    assert [e.finished.reason for e in effects if isinstance(e, rounds.EndRun)] == [rounds.REASON_ALONE]


@given(st.integers(0, 2**32), st.sampled_from(PER_ROUND), st.sets(st.sampled_from(PEERS)))
@settings(max_examples=60)
def test_whoever_comes_back_the_session_goes_on_with_them_or_ends(seed: int, kind: type, back: set[PeerId]) -> None:
    network = cut_behind(kind, seed)
    lost = [rounds.MemberLossInput(peer) for peer in PEERS if peer not in back]
    network.run([(-1.0, event) for event in lost])
    assert network.ended is not None, "it waits for nobody, for ever"
    wanted = rounds.REASON_COMPLETE if back else rounds.REASON_ALONE
    assert network.ended.reason == wanted
    assert any(isinstance(record, RunEndRecord) for record in network.log) == bool(back)


def test_a_log_says_once_that_it_is_over_and_not_inside_a_round() -> None:
    network = Network(3)
    network.run()
    end = network.log[-1]
    with pytest.raises(VerificationError, match="FF-TRAIN-011"):
        rounds.replay(network.fresh(), [*network.log, end])
    inside = cut_behind(RoundStartRecord)
    root = rounds.replay(inside.fresh(), inside.log).root
    with pytest.raises(VerificationError, match="FF-TRAIN-011"):
        rounds.replay(inside.fresh(), [*inside.log, RunEndRecord(1, root, rounds.REASON_STOPPED)])


def test_a_log_that_is_over_says_again_why() -> None:
    network = Network(7)
    network.run([(0.5, rounds.StopInput())])
    _, effects = rounds.step(rounds.replay(network.fresh(), network.log), rounds.BeginInput())
    assert effects == [rounds.EndRun(network.log[-1])]  # type: ignore[arg-type]

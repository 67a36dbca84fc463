"""Rounds in virtual time: slow peers, lost peers, and a coordinator that dies between any two records."""

from __future__ import annotations

import heapq
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.crypto import SigningKey, digest
from farflung.core.errors import VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.train import rounds
from farflung.train.roundlog import Closed, Contribution, Finished, LogChain, Opened, Record, read_log
from farflung.verify.commitments import commit, nonce_of, sign_root

JOB = digest("test/job/1")
KEYS = [SigningKey(bytes([i + 1]) * 32) for i in range(5)]
COORDINATOR = SigningKey(b"\x77" * 32)
BY_PEER = {key.public: key for key in KEYS}
ROUNDS = 4


def root_after(round: int, accepted: tuple[Contribution, ...]) -> Hash:
    """Stands for merging: any function of the round and its accept set."""
    return digest("test/root/1", round.to_bytes(8, "little"), *(c.payload for c in accepted))


class Network:
    """Peers that answer after random delays, one coordinator, and a log that survives it."""

    def __init__(self, seed: int, *, liar: PeerId | None = None, is_own_merge_wrong: bool = False) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.queue: list[tuple[float, int, rounds.Event]] = []
        self.log: list[Record] = []
        self.chain = LogChain()
        self.liar = liar
        self.is_own_merge_wrong = is_own_merge_wrong
        self.halted: list[rounds.Halt] = []
        self.ended: Finished | None = None
        self.asked: list[rounds.Effect] = []
        self.expelled: list[PeerId] = []

    def fresh(self) -> rounds.State:
        return rounds.State(JOB, ROUNDS, 15, 256, 1000, tuple(sorted(BY_PEER)))

    def write(self, record: Record) -> None:
        self.log.append(record)

    def post(self, event: rounds.Event, delay: float) -> None:
        heapq.heappush(self.queue, (self.now + delay, self.random.getrandbits(62), event))

    def carry_out(self, effect: rounds.Effect) -> None:
        self.asked.append(effect)
        delay = self.random.expovariate(1.0)
        match effect:
            case rounds.Write(record):
                self.write(record)
            case rounds.AskTrain(round, peer):
                payload = digest("test/payload/1", peer, round.to_bytes(8, "little"))
                self.post(
                    rounds.GotCommitment(round, commit(BY_PEER[peer], JOB, round, payload, 1000)), delay
                )
            case rounds.AskReveal(round, peer):
                payload = digest("test/payload/1", peer, round.to_bytes(8, "little"))
                nonce = nonce_of(BY_PEER[peer], JOB, round)
                self.post(
                    rounds.GotContribution(round, Contribution(peer, 1000, payload, payload, nonce)), delay
                )
            case rounds.AskMerge(round, peer, accepted):
                root = digest("test/lie/1") if peer == self.liar else root_after(round, accepted)
                signature = sign_root(BY_PEER[peer], JOB, round, root)
                self.post(rounds.GotRoot(round, peer, root, signature), delay)
            case rounds.MergeOwn(round, accepted):
                own = digest("test/broken/1") if self.is_own_merge_wrong else root_after(round, accepted)
                self.post(rounds.GotOwnRoot(round, own), delay)
            case rounds.Halt():
                self.halted.append(effect)
                self.queue.clear()
            case rounds.Expel(peer):
                self.expelled.append(peer)
            case rounds.End(finished):
                self.ended = finished

    def run(self, extra: list[tuple[float, rounds.Event]] | None = None, die_after: int = 10**9) -> None:
        """One session; dies before the effect number `die_after` is carried out."""
        if not self.log:
            self.log.append(Opened(JOB, COORDINATOR.public, digest("test/root/0"), ROUNDS))
        state = rounds.replay(self.fresh(), self.log)
        self.queue.clear()
        self.post(rounds.Begin(), 0.0)
        for when, event in extra or []:
            heapq.heappush(self.queue, (when, self.random.getrandbits(62), event))
        done = 0
        while self.queue and self.ended is None:
            self.now, _, event = heapq.heappop(self.queue)
            state, effects = rounds.step(state, event)
            for effect in effects:
                if done == die_after:
                    return
                done += 1
                self.carry_out(effect)


def closed(network: Network) -> list[Closed]:
    return [r for r in network.log if isinstance(r, Closed)]


@given(st.integers(0, 2**32), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_the_log_is_the_same_whatever_order_answers_arrive_in(one: int, other: int) -> None:
    logs = []
    for seed in (one, other):
        network = Network(seed)
        network.run()
        assert network.ended is not None
        assert network.ended.reason == rounds.REASON_COMPLETE
        logs.append(network.log)
    assert logs[0] == logs[1]
    assert len([r for r in logs[0] if isinstance(r, Closed)]) == ROUNDS


@given(st.integers(0, 2**32), st.lists(st.integers(0, 60), max_size=6))
@settings(max_examples=80, deadline=None)
def test_a_coordinator_that_dies_anywhere_writes_the_same_log_in_the_end(
    seed: int, deaths: list[int]
) -> None:
    undisturbed = Network(1)
    undisturbed.run()
    network = Network(seed)
    for death in deaths:
        if network.ended is None:
            network.run(die_after=death)
    if network.ended is None:
        network.run()
    assert network.log == undisturbed.log


def test_every_effect_can_be_the_last_before_a_death() -> None:
    undisturbed = Network(1)
    undisturbed.run()
    total = len(undisturbed.asked)
    for death in range(total):
        network = Network(2)
        network.run(die_after=death)
        if network.ended is None:
            network.run()
        assert network.log == undisturbed.log, f"died before effect {death}"


def test_nothing_is_asked_before_its_record_is_written() -> None:
    network = Network(3)
    network.run()
    kinds = [type(e).__name__ for e in network.asked]
    for ask, record in (("AskReveal", "Committed"), ("AskMerge", "Accepted"), ("MergeOwn", "Accepted")):
        for place, kind in enumerate(kinds):
            if kind == ask:
                wrote = [e for e in network.asked[:place] if isinstance(e, rounds.Write)]
                effect: Any = network.asked[place]
                assert any(
                    type(w.record).__name__ == record and w.record.round == effect.round for w in wrote
                )


@given(st.integers(0, 2**32), st.floats(0.0, 20.0), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_a_run_goes_on_when_a_peer_is_lost(seed: int, when: float, index: int) -> None:
    network = Network(seed)
    lost = KEYS[index].public
    network.run([(when, rounds.Lost(lost))])
    assert network.ended is not None
    assert network.ended.reason == rounds.REASON_COMPLETE
    records = closed(network)
    assert len(records) == ROUNDS
    assert rounds.replay(network.fresh(), network.log).phase is rounds.Phase.DONE


def test_a_peer_that_was_lost_between_two_sessions_is_left_out() -> None:
    network = Network(5)
    network.run(die_after=12)
    state = rounds.replay(network.fresh(), network.log)
    state, _ = rounds.step(state, rounds.Lost(KEYS[0].public))
    state, effects = rounds.step(state, rounds.Begin())
    assert KEYS[0].public not in state.in_round
    assert effects


def test_when_all_peers_are_lost_the_run_ends_and_says_so() -> None:
    network = Network(6)
    network.run([(0.01 * i, rounds.Lost(key.public)) for i, key in enumerate(KEYS)])
    assert network.ended is not None
    assert network.ended.reason == rounds.REASON_ALONE


def test_a_run_that_lost_all_its_peers_goes_on_with_them_to_the_same_log() -> None:
    undisturbed, network = Network(6), Network(7)
    undisturbed.run()
    network.run([(0.001 + 0.001 * i, rounds.Lost(key.public)) for i, key in enumerate(KEYS)])
    assert not any(isinstance(record, Finished) for record in network.log)
    network.ended = None
    network.run()
    assert network.log == undisturbed.log


def test_a_stop_finishes_the_open_round_and_opens_no_other() -> None:
    network = Network(7)
    network.run([(0.5, rounds.Stop())])
    assert network.ended is not None
    assert network.ended.reason == rounds.REASON_STOPPED
    assert len(closed(network)) == 1


def test_a_peer_with_another_root_is_expelled_and_the_others_go_on() -> None:
    liar = KEYS[2].public
    network = Network(8, liar=liar)
    network.run()
    assert network.expelled == [liar]
    assert network.ended is not None
    assert network.ended.reason == rounds.REASON_COMPLETE
    assert all(liar not in dict(record.signatures) for record in closed(network))


def test_a_coordinator_that_merges_wrongly_halts_instead_of_expelling_everybody() -> None:
    network = Network(12, is_own_merge_wrong=True)
    network.run()
    assert network.expelled == []
    assert len(network.halted) == 1
    assert closed(network) == []
    network.is_own_merge_wrong = False
    network.run()  # resumed on a machine that works
    assert network.ended is not None
    assert network.ended.reason == rounds.REASON_COMPLETE
    undisturbed = Network(1)
    undisturbed.run()
    assert network.log == undisturbed.log


def test_an_answer_that_comes_late_or_twice_changes_nothing() -> None:
    network = Network(9)
    network.run(die_after=30)
    state = rounds.replay(network.fresh(), network.log)
    state, _ = rounds.step(state, rounds.Begin())
    stale = rounds.GotOwnRoot(state.round - 1, digest("test/other"))
    assert rounds.step(state, stale) == (state, [])


def test_an_altered_moved_or_foreign_log_entry_is_refused() -> None:
    network = Network(10)
    network.run()
    chain = LogChain()
    entries = [chain.extend(COORDINATOR, record) for record in network.log]
    assert read_log(entries, COORDINATOR.public) == network.log
    flipped = bytearray(entries[3])
    flipped[-1] ^= 1
    other = LogChain()
    forged = [other.extend(KEYS[0], record) for record in network.log]
    for bad in (
        [*entries[:3], bytes(flipped), *entries[4:]],
        [*entries[:2], entries[3], entries[2], *entries[4:]],
        [*entries[:2], *entries[3:]],
        forged,
    ):
        with pytest.raises(VerificationError, match="FF-TRAIN-010"):
            read_log(bad, COORDINATOR.public)


def test_records_that_do_not_fit_together_are_refused() -> None:
    network = Network(11)
    network.run()
    for skipped in range(1, len(network.log) - 1):
        with pytest.raises(VerificationError, match="FF-TRAIN-011"):
            rounds.replay(network.fresh(), network.log[:skipped] + network.log[skipped + 1 :])

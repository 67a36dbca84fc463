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
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger.transactions import SignedVerdict, Verdict, VerdictFinding, sign_verdict
from farflung.train import rounds
from farflung.train.run_log import (
    AcceptSetRecord,
    AuditsRecord,
    BeaconRecord,
    CommitmentsRecord,
    Contribution,
    Record,
    RoundEndRecord,
    RunEndRecord,
    RunLogChain,
    RunStartRecord,
    read_log,
)
from farflung.verify.commitment_check import commit, nonce_of, sign_root

JOB = digest("test/job/1")
KEYS = [SigningKey(bytes([i + 1]) * 32) for i in range(5)]
COORDINATOR = SigningKey(b"\x77" * 32)
BY_PEER = {key.public: key for key in KEYS}
ROUNDS = 4
TRACE = digest("test/trace/1")
VERIFIERS = [SigningKey(bytes([0x90 + i]) * 32) for i in range(2)]
CAUGHT_IN = 1  # the round in which a cheater of these tests is found false


def verdicts(round: int, node: PeerId, finding: VerdictFinding) -> tuple[SignedVerdict, ...]:
    """What both verifiers say of one node's work."""
    said = [Verdict(JOB, JOB, round, node, 0, TRACE, v.public, finding, 0, JOB) for v in VERIFIERS]
    return tuple(sign_verdict(key, verdict) for key, verdict in zip(VERIFIERS, said, strict=True))


def root_after(round: int, accepted: tuple[Contribution, ...]) -> Hash:
    """Stands for merging: any function of the round and its accept set."""
    return digest("test/root/1", round.to_bytes(8, "little"), *(c.payload for c in accepted))


def block_of(round: int) -> Hash:
    """The ledger names the same block whenever it is asked."""
    return digest("test/block/1", round.to_bytes(8, "little"))


def promised(peer: PeerId, round: int, payload: Hash) -> Contribution:
    """What a peer's commitment stands for."""
    return Contribution(peer, 1000, payload, ZERO_HASH, nonce_of(BY_PEER[peer], JOB, round), TRACE, "")


class Network:
    """Peers that answer after random delays, one coordinator, and a log that survives it."""

    def __init__(
        self,
        seed: int,
        *,
        liar: PeerId | None = None,
        is_own_merge_wrong: bool = False,
        is_audited: bool = True,
        cheater: PeerId | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.queue: list[tuple[float, int, rounds.Event]] = []
        self.log: list[Record] = []
        self.chain = RunLogChain()
        self.liar = liar
        self.is_audited, self.cheater = is_audited, cheater
        self.excluded: list[tuple[PeerId, int]] = []
        self.is_own_merge_wrong = is_own_merge_wrong
        self.halted: list[rounds.HaltRun] = []
        self.ended: RunEndRecord | None = None
        self.asked: list[rounds.Effect] = []
        self.expelled: list[PeerId] = []

    def fresh(self) -> rounds.CoordinatorState:
        members = tuple(sorted(BY_PEER))
        return rounds.CoordinatorState(JOB, ROUNDS, 15, 256, 1000, members, is_audited=self.is_audited)

    def write(self, record: Record) -> None:
        self.log.append(record)

    def post(self, event: rounds.Event, delay: float) -> None:
        heapq.heappush(self.queue, (self.now + delay, self.random.getrandbits(62), event))

    def carry_out(self, effect: rounds.Effect) -> None:
        self.asked.append(effect)
        delay = self.random.expovariate(1.0)
        match effect:
            case rounds.WriteRecord(record):
                self.write(record)
            case rounds.RequestTraining(round, peer):
                payload = digest("test/payload/1", peer, round.to_bytes(8, "little"))
                commitment = commit(BY_PEER[peer], JOB, round, payload, 1000, TRACE)
                self.post(rounds.CommitmentInput(round, commitment, promised(peer, round, payload)), delay)
            case rounds.RequestBeacon(round):
                self.post(rounds.BeaconInput(round, block_of(round)), delay)
            case rounds.RequestReveal(round, peer):
                payload = digest("test/payload/1", peer, round.to_bytes(8, "little"))
                nonce = nonce_of(BY_PEER[peer], JOB, round)
                self.post(
                    rounds.ContributionInput(round, Contribution(peer, 1000, payload, payload, nonce, TRACE, "bwrap")),
                    delay,
                )
            case rounds.RequestMerge(round, peer, accepted):
                root = digest("test/lie/1") if peer == self.liar else root_after(round, accepted)
                signature = sign_root(BY_PEER[peer], JOB, round, root)
                self.post(rounds.MemberRootInput(round, peer, root, signature), delay)
            case rounds.MergeLocally(round, accepted):
                own = digest("test/broken/1") if self.is_own_merge_wrong else root_after(round, accepted)
                self.post(rounds.OwnRootInput(round, own), delay)
            case rounds.AuditRound(round):
                node = self.cheater or KEYS[0].public
                is_false = self.cheater is not None and round >= CAUGHT_IN
                finding = VerdictFinding.FALSE if is_false else VerdictFinding.HOLDS
                self.post(rounds.VerdictsInput(round, verdicts(round, node, finding)), 3 * delay)
            case rounds.ExcludeMember(peer, round):
                self.excluded.append((peer, round))
            case rounds.HaltRun():
                self.halted.append(effect)
                self.queue.clear()
            case rounds.ExpelMember(peer):
                self.expelled.append(peer)
            case rounds.EndRun(finished):
                self.ended = finished

    def run(self, extra: list[tuple[float, rounds.Event]] | None = None, die_after: int = 10**9) -> None:
        """One session; dies before the effect number `die_after` is carried out."""
        if not self.log:
            self.log.append(RunStartRecord(JOB, COORDINATOR.public, digest("test/root/0"), ROUNDS))
        state = rounds.replay(self.fresh(), self.log)
        self.queue.clear()
        self.post(rounds.BeginInput(), 0.0)
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


def closed(network: Network) -> list[RoundEndRecord]:
    return [r for r in network.log if isinstance(r, RoundEndRecord)]


@pytest.mark.guarantee
@given(st.integers(0, 2**32), st.integers(0, 2**32))
@settings(max_examples=40)
def test_the_log_is_the_same_whatever_order_answers_arrive_in(one: int, other: int) -> None:
    logs = []
    for seed in (one, other):
        network = Network(seed)
        network.run()
        assert network.ended is not None
        assert network.ended.reason == rounds.REASON_COMPLETE
        logs.append(network.log)
    assert logs[0] == logs[1]
    drawn = [r for r in logs[0] if isinstance(r, CommitmentsRecord | BeaconRecord | AcceptSetRecord)]
    assert [type(r) for r in drawn] == [CommitmentsRecord, BeaconRecord, AcceptSetRecord] * ROUNDS
    assert len([r for r in logs[0] if isinstance(r, RoundEndRecord)]) == ROUNDS


@given(st.integers(0, 2**32), st.lists(st.integers(0, 60), max_size=6))
@settings(max_examples=80)
def test_a_coordinator_that_dies_anywhere_writes_the_same_log_in_the_end(seed: int, deaths: list[int]) -> None:
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
    pairs: tuple[tuple[type[Any], type[Any]], ...] = (
        (rounds.RequestBeacon, CommitmentsRecord),
        (rounds.RequestReveal, CommitmentsRecord),
        (rounds.RequestMerge, AcceptSetRecord),
        (rounds.MergeLocally, AcceptSetRecord),
    )
    for ask, record in pairs:
        asks = [(place, e) for place, e in enumerate(network.asked) if isinstance(e, ask)]
        assert asks
        for place, effect in asks:
            wrote = [e.record for e in network.asked[:place] if isinstance(e, rounds.WriteRecord)]
            assert any(isinstance(w, record) and w.round == effect.round for w in wrote)


@given(st.integers(0, 2**32), st.floats(0.0, 20.0), st.integers(0, 4))
@settings(max_examples=60)
def test_a_run_goes_on_when_a_peer_is_lost(seed: int, when: float, index: int) -> None:
    network = Network(seed)
    lost = KEYS[index].public
    network.run([(when, rounds.MemberLossInput(lost))])
    assert network.ended is not None
    assert network.ended.reason == rounds.REASON_COMPLETE
    records = closed(network)
    assert len(records) == ROUNDS
    assert rounds.replay(network.fresh(), network.log).phase is rounds.RoundPhase.DONE


def test_a_peer_that_was_lost_between_two_sessions_is_left_out() -> None:
    network = Network(5)
    network.run(die_after=12)
    state = rounds.replay(network.fresh(), network.log)
    state, _ = rounds.step(state, rounds.MemberLossInput(KEYS[0].public))
    state, effects = rounds.step(state, rounds.BeginInput())
    assert KEYS[0].public not in state.in_round
    assert effects


def test_when_all_peers_are_lost_the_run_ends_and_says_so() -> None:
    network = Network(6)
    network.run([(0.01 * i, rounds.MemberLossInput(key.public)) for i, key in enumerate(KEYS)])
    assert network.ended is not None
    assert network.ended.reason == rounds.REASON_ALONE


def test_a_run_that_lost_all_its_peers_goes_on_with_them_to_the_same_log() -> None:
    undisturbed, network = Network(6), Network(7)
    undisturbed.run()
    network.run([(0.001 + 0.001 * i, rounds.MemberLossInput(key.public)) for i, key in enumerate(KEYS)])
    assert not any(isinstance(record, RunEndRecord) for record in network.log)
    network.ended = None
    network.run()
    assert network.log == undisturbed.log


def test_a_stop_finishes_the_open_round_and_opens_no_other() -> None:
    network = Network(7)
    network.run([(0.5, rounds.StopInput())])
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
    state, _ = rounds.step(state, rounds.BeginInput())
    stale = rounds.OwnRootInput(state.round - 1, digest("test/other"))
    assert rounds.step(state, stale) == (state, [])


def test_an_altered_moved_or_foreign_log_entry_is_refused() -> None:
    network = Network(10)
    network.run()
    chain = RunLogChain()
    entries = [chain.extend(COORDINATOR, record) for record in network.log]
    assert read_log(entries, COORDINATOR.public) == network.log
    flipped = bytearray(entries[3])
    flipped[-1] ^= 1
    other = RunLogChain()
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


@given(st.integers(0, 2**32), st.lists(st.integers(0, 80), max_size=6))
@settings(max_examples=60)
def test_a_cheater_leaves_at_the_same_place_of_the_log_whatever_happens(seed: int, deaths: list[int]) -> None:
    cheater = KEYS[2].public
    undisturbed = Network(1, cheater=cheater)
    undisturbed.run()
    network = Network(seed, cheater=cheater)
    for death in deaths:
        if network.ended is None:
            network.run(die_after=death)
    if network.ended is None:
        network.run()
    assert network.log == undisturbed.log
    assert set(network.excluded) <= {(cheater, CAUGHT_IN)}
    assert rounds.replay(network.fresh(), network.log).excluded == {cheater}
    took_part = {
        c.peer
        for r in network.log
        if isinstance(r, CommitmentsRecord) and r.round > CAUGHT_IN + 1
        for c in r.commitments
    }
    assert took_part == set(BY_PEER) - {cheater}


def test_audits_are_written_in_order_one_round_behind_and_all_before_the_end() -> None:
    network = Network(8)
    network.run()
    kinds = [(type(r), r.round) for r in network.log if isinstance(r, RoundEndRecord | AuditsRecord)]
    expected: list[tuple[type[Any], int]] = [(RoundEndRecord, 0)]
    for round in range(1, ROUNDS):
        expected += [(RoundEndRecord, round), (AuditsRecord, round - 1)]
    assert kinds == [*expected, (AuditsRecord, ROUNDS - 1)]
    assert isinstance(network.log[-1], RunEndRecord)


def test_an_excluded_peer_cannot_come_back() -> None:
    cheater = KEYS[2].public
    network = Network(9, cheater=cheater)
    network.run([(when, rounds.MemberJoinInput(cheater)) for when in range(1, 40)])
    assert rounds.replay(network.fresh(), network.log).excluded == {cheater}
    late = [r for r in network.log if isinstance(r, CommitmentsRecord) and r.round > CAUGHT_IN + 1]
    assert late
    assert all(cheater not in {c.peer for c in r.commitments} for r in late)


def test_a_log_that_accepts_before_it_is_drawn_does_not_fit_together() -> None:
    network = Network(12)
    network.run()
    log = [r for r in network.log if not isinstance(r, BeaconRecord)]
    with pytest.raises(VerificationError, match="does not fit together at a record 'accepted'"):
        rounds.replay(network.fresh(), log)


def test_a_job_that_is_not_audited_waits_for_no_audits() -> None:
    network = Network(10, is_audited=False)
    network.run()
    assert network.ended is not None
    assert not [r for r in network.log if isinstance(r, BeaconRecord)]
    assert not [r for r in network.log if isinstance(r, AuditsRecord)]


def test_a_stop_waits_for_the_audits_of_all_closed_rounds() -> None:
    network = Network(11)
    network.run([(4.0, rounds.StopInput())])
    assert network.ended is not None
    assert network.ended.reason == rounds.REASON_STOPPED
    assert len([r for r in network.log if isinstance(r, AuditsRecord)]) == len(closed(network))

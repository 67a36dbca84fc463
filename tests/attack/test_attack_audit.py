"""Attacks on the audit itself: on commitments, on the draw, on what is opened, and by verifiers that do not work.

Each is refused by code or comes to the right conclusion. Engines and rules as in a run, in one process (cheat_play).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cheat_play import CHAIN, JOB, SHORT, Made, Play, Setting, play
from msgspec.structs import replace

from farflung.compress.merge import WeightedUpdate
from farflung.core.commitments import BorderRoots
from farflung.core.crypto import digest, local_key
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger.transactions import Verdict, VerdictFinding
from farflung.train import segments, worker_messages
from farflung.train.contribution_trace import ContributionTrace
from farflung.train.run_log import Commitment
from farflung.verify import audit_sample, submission_checks
from farflung.verify.audit_verdict import AuditConclusion, conclude
from farflung.verify.blind_commitment import BlindCommitment, blind, is_blind, opens
from farflung.verify.blind_commitment import nonce_of as blind_nonce
from farflung.verify.commitment_check import commit, is_commitment, nonce_of
from farflung.verify.commitment_check import opens as opens_commitment
from farflung.verify.segment_opening import read_ends

ONCE = replace(SHORT, rounds=1)


class Tampering(Play):
    """The cheater alters what it shows of its round."""

    def __init__(self, seed: int, alter: Callable[[Made], Made]) -> None:
        super().__init__(seed, Setting(spec=ONCE))
        self.alter = alter

    def audited(
        self, round: int, drawn: audit_sample.AuditSample, made: Made, luck: Hash, before: bytes
    ) -> list[Verdict]:
        """The cheater's round as it is shown."""
        shown = self.alter(made) if drawn.peer == self.cheater else made
        return super().audited(round, drawn, shown, luck, before)


def with_trace(made: Made, trace: ContributionTrace) -> Made:
    return made._replace(trained=replace(made.trained, trace=trace))


# Commitments


def test_a_commitment_that_comes_after_the_beacon_changes_what_is_anchored() -> None:
    """Who commits late is not in the draw that it has seen; another set of commitments gives another draw."""
    keys = [local_key(1, "peer", i) for i in range(3)]
    promises = [commit(key, JOB, 2, JOB, 1, JOB) for key in keys]
    early = audit_sample.anchor(JOB, 2, promises[:2])
    assert audit_sample.anchor(JOB, 2, promises[::-1]) == audit_sample.anchor(JOB, 2, promises) != early


def test_who_knows_all_commitments_knows_no_draw_before_its_block() -> None:
    """The last to commit may try nonces with a coordinator that tells it the others': the block comes later."""
    anchored = audit_sample.anchor(JOB, 2, [commit(local_key(1, "peer", 0), JOB, 2, JOB, 1, JOB)])
    blocks = [digest("test/block/1", bytes([i])) for i in range(64)]
    peer = local_key(1, "peer", 0).public
    segments = {audit_sample.segment_of(audit_sample.beacon(anchored, block), peer, 8) for block in blocks}
    assert segments == set(range(8))


def test_a_payload_seen_early_cannot_be_committed_by_another() -> None:
    """The copier may commit to the copied payload, and then the payload's header names its maker (FF-COMP-009)."""
    run = Play(1, Setting(spec=ONCE))
    maker, copier = list(run.peers)[:2]
    trained = run.peers[maker].ask(worker_messages.TrainCommand(0))
    promise, contribution = run.committed(0, run.peers[copier].key, trained)
    assert opens_commitment(contribution, promise, JOB, 0)
    said = submission_checks.TrainingStatement(trained.trace.statistics.losses, contribution.weight)
    asked = submission_checks.PayloadCheckRequest(0, run.public.root, contribution, said, trained.payload)
    with pytest.raises(Exception, match="FF-COMP-009"):
        submission_checks.decoded(run.sync, run.layout, asked, run.spec.round_tokens)


def test_a_copied_commitment_is_refused() -> None:
    maker, copier = local_key(1, "peer", 0), local_key(1, "peer", 1)
    promise = commit(maker, JOB, 0, JOB, 1, JOB)
    assert not is_commitment(Commitment(copier.public, promise.digest, promise.signature), JOB, 0)


def test_a_reveal_of_another_round_is_refused() -> None:
    """The nonce of a round opens that round's commitment only, and a commitment names its round."""
    run = Play(1, Setting(spec=ONCE))
    peer = run.peers[run.cheater]
    trained = peer.ask(worker_messages.TrainCommand(0))
    first, contribution = run.committed(0, peer.key, trained)
    second = commit(peer.key, JOB, 1, contribution.payload, contribution.weight, contribution.trace)
    assert opens_commitment(contribution, first, JOB, 0)
    assert not opens_commitment(contribution, second, JOB, 1)
    assert not is_commitment(first, JOB, 1)


def test_two_commitments_of_one_peer_to_one_round_are_told_apart_by_what_they_open() -> None:
    """Equivocation: the logged one alone opens; whatever was committed besides opens nothing."""
    run = Play(1, Setting(spec=ONCE))
    peer = run.peers[run.cheater]
    promise, contribution = run.committed(0, peer.key, peer.ask(worker_messages.TrainCommand(0)))
    other = commit(peer.key, JOB, 0, digest("test/payload/1"), contribution.weight, contribution.trace)
    assert other.digest != promise.digest
    assert not opens_commitment(contribution, other, JOB, 0)


# Two identities for one work


def test_two_identities_that_share_one_work_are_both_flagged_and_the_idle_one_is_found_false() -> None:
    """The second sends the first one's change under its own name: cosine 1. Each has batches of its own to train on."""
    run = play(2, "copy", spec=SHORT)
    parts = [
        WeightedUpdate(
            peer, 1, np.float32(scale) * np.random.default_rng(seed).standard_normal(run.layout.size, np.float32)
        )
        for peer, scale, seed in ((b"\1" * 32, 1, 1), (b"\2" * 32, 0.9, 1), (b"\3" * 32, 1, 2))
    ]
    flags = submission_checks.flags(run.layout, parts)  # type: ignore[arg-type]
    assert flags == {b"\1" * 32: submission_checks.DUPLICATE, b"\2" * 32: submission_checks.DUPLICATE}
    assert run.guilty == {run.cheater}


# What is opened


def false_alike(run: Play) -> bool:
    return run.guilty == {run.cheater} and run.findings[0, run.cheater] is VerdictFinding.FALSE


def test_an_opened_state_that_is_not_the_committed_one_is_false() -> None:
    def alter(made: Made) -> Made:
        assert made.opened is not None
        broken = bytearray(bytes(made.opened.start) or bytes(made.opened.last))
        broken[-1] ^= 1
        return made._replace(opened=replace(made.opened, start=bytes(broken)))

    assert false_alike(Tampering(1, alter).run())


def test_an_end_of_the_round_that_does_not_give_the_payload_is_false() -> None:
    def alter(made: Made) -> Made:
        assert made.opened is not None
        broken = bytearray(bytes(made.opened.last))
        broken[-1] ^= 1
        return made._replace(opened=replace(made.opened, last=bytes(broken)))

    assert false_alike(Tampering(1, alter).run())


@pytest.mark.slow
@pytest.mark.parametrize("what", ["round", "index", "steps", "residual", "params"])
def test_a_border_that_is_not_what_it_must_be_is_false_under_its_own_root(what: str) -> None:
    """The cheater commits to the forged trace as well, so that every path holds."""

    def forged(border: BorderRoots) -> BorderRoots:
        value = getattr(border, what)
        return replace(border, **{what: value + 1 if isinstance(value, int) else digest("test/border/1")})

    class Forging(Play):
        def committed(self, round: int, key: Any, trained: worker_messages.TrainResult) -> Any:
            if key.public == self.cheater:
                trained = self.forge(trained)
            return super().committed(round, key, trained)

        def audited(self, round: int, drawn: Any, made: Made, luck: Hash, before: bytes) -> list[Verdict]:
            if drawn.peer == self.cheater:
                made = made._replace(trained=self.forge(made.trained))
            return super().audited(round, drawn, made, luck, before)

        def forge(self, trained: worker_messages.TrainResult) -> worker_messages.TrainResult:
            trace = trained.trace
            return replace(trained, trace=replace(trace, borders=tuple(map(forged, trace.borders))))

    run = Forging(1, Setting(spec=ONCE)).run()
    assert false_alike(run)


def test_other_losses_than_the_work_gives_are_not_paid_and_not_punished() -> None:
    class Boasting(Play):
        def committed(self, round: int, key: Any, trained: worker_messages.TrainResult) -> Any:
            return super().committed(round, key, self.boast(trained) if key.public == self.cheater else trained)

        def audited(self, round: int, drawn: Any, made: Made, luck: Hash, before: bytes) -> list[Verdict]:
            if drawn.peer == self.cheater:
                made = made._replace(trained=self.boast(made.trained))
            return super().audited(round, drawn, made, luck, before)

        def boast(self, trained: worker_messages.TrainResult) -> worker_messages.TrainResult:
            said = trained.trace.statistics
            better = replace(said, losses=tuple(loss * 0.99 for loss in said.losses))
            return replace(trained, trace=replace(trained.trace, statistics=better))

    run = Boasting(1, Setting(spec=ONCE)).run()
    assert run.findings[0, run.cheater] is VerdictFinding.UNPAID
    assert not run.guilty


def test_a_withheld_state_is_withheld_when_two_say_so() -> None:
    run = Tampering(1, lambda made: made._replace(opened=None)).run()
    assert run.findings[0, run.cheater] is VerdictFinding.WITHHELD
    assert run.guilty == {run.cheater}


@pytest.mark.slow
def test_one_verifier_alone_decides_where_there_is_one() -> None:
    run = play(1, "skip", spec=SHORT, verifiers=1)
    assert run.guilty == {run.cheater}


# Verifiers that do not work


def honest(seed: int = 4) -> tuple[Play, Any, Made, bytes]:
    """A peer's round, drawn, and what an honest verifier ran."""
    run = Play(seed, Setting(spec=ONCE))
    peer, before = run.peers[run.cheater], run.snapshot
    trained = peer.ask(worker_messages.TrainCommand(0))
    promise, contribution = run.committed(0, peer.key, trained)
    made = Made(trained, promise, contribution, peer.ask(worker_messages.OpenSegmentCommand(0, 0)))
    ran = run.rerun(0, 0, made, before, local_key(seed, "verifier", 0))
    return run, ran, made, before


def test_a_verifier_that_copies_anothers_commitment_cannot_open_it() -> None:
    _, ran, made, _ = honest()
    node, copier = made.contribution.peer, local_key(4, "verifier", 1)
    said: BlindCommitment = ran.blind
    assert is_blind(said, JOB, 0, node, 0)
    stolen = BlindCommitment(copier.public, said.digest, said.signature)
    assert not is_blind(stolen, JOB, 0, node, 0)
    own = BlindCommitment(copier.public, said.digest, blind(copier, JOB, 0, node, 0, ran.audit.mine.border).signature)
    assert not is_blind(own, JOB, 0, node, 0)
    nonce = digest("test/nonce/1")
    assert not opens(stolen, JOB, 0, node, 0, ran.audit.mine.border, nonce)


def lazy_borders(run: Play, ran: Any) -> dict[str, BorderRoots]:
    """What a verifier could commit to that has not trained."""
    unchanged = segments.params_root(run.layout, ran.audit.base)
    noisy = ran.audit.base + np.float32(1e-3) * np.random.default_rng(1).standard_normal(run.layout.size, np.float32)
    mine: BorderRoots = ran.audit.mine.border
    return {
        "guess": replace(mine, params=digest("test/guess/1")),
        "unchanged": replace(mine, params=unchanged),
        "noise": replace(mine, params=segments.params_root(run.layout, noisy)),
    }


@pytest.mark.parametrize("kind", ["guess", "unchanged", "noise"])
def test_a_lazy_verifier_has_committed_to_something_that_it_cannot_stand_by(kind: str) -> None:
    """It sees the claim afterwards, and its own commitment does not open to it: the fee needs a result that does."""
    run, ran, made, _ = honest()
    key, node = local_key(4, "verifier", 0), made.contribution.peer
    lazy = lazy_borders(run, ran)[kind]
    said = blind(key, JOB, 0, node, 0, lazy)
    nonce = blind_nonce(key, JOB, 0, node, 0)
    claimed = made.trained.trace.borders[1]
    assert opens(said, JOB, 0, node, 0, lazy, nonce)
    assert not opens(said, JOB, 0, node, 0, ran.audit.mine.border, nonce)
    assert lazy.params != claimed.params


def accused(*findings: VerdictFinding) -> AuditConclusion:
    """What these verifiers' words on one contribution come to, by two verifiers' quorum."""
    node = PeerId(bytes(32))
    said = [
        Verdict(CHAIN, JOB, 0, node, 0, JOB, PeerId(bytes([i]) * 32), finding, 0, ZERO_HASH)
        for i, finding in enumerate(findings)
    ]
    return conclude(said, 2, is_proven=True)


def test_a_lazy_verifier_that_accuses_is_contradicted_and_loses_its_fee() -> None:
    """Compared with its guess, honest work lies far off: it says FALSE, and the next one says that it holds."""
    concluded = accused(VerdictFinding.FALSE, VerdictFinding.HOLDS)
    assert concluded.finding is VerdictFinding.HOLDS
    assert concluded.discredited == (PeerId(bytes(32)),)
    assert concluded.honoured == (PeerId(b"\1" * 32),)


def test_honest_work_is_not_false_in_the_eyes_of_a_second_verifier_whatever_the_first_one_says() -> None:
    class Slandered(Play):
        def examined(self, round: int, segment: int, made: Made, before: bytes, key: Any) -> Any:
            found, result = super().examined(round, segment, made, before, key)
            liar = key.public == next(iter(self.verifiers))
            return (found._replace(finding=VerdictFinding.FALSE, excess=9000), result) if liar else (found, result)

    run = Slandered(6, Setting(spec=ONCE)).run()
    assert not run.guilty
    assert set(run.findings.values()) == {VerdictFinding.HOLDS}


# The order of opening


def test_the_end_of_a_segment_is_not_among_what_is_opened_first() -> None:
    run, ran, made, _ = honest()
    (first,) = made.trained.trace.opened(0)
    assert first.index == 0
    start = ran.audit.start
    assert isinstance(read_ends(ran.audit.place, start, [first]), str)
    assert nonce_of(run.peers[run.cheater].key, JOB, 0) == made.contribution.nonce

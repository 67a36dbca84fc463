"""A member whose work is true and harmful, and verifiers that lie about losses: what each comes to in a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attack_run import CHAIN, EVE, HONEST, ROUND, Judge, Run
from attack_world import COURT, SPEC, TERMS, VERIFIERS, within

from farflung.core.backoff import Backoff
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, PolicyError
from farflung.core.events import LossScoreEvent
from farflung.core.ids import Hash, PeerId
from farflung.job import proof_class
from farflung.peers.node.audit_lease import AuditLease
from farflung.peers.protocol import calls, messages
from farflung.peers.requester import audits
from farflung.train.scores import SignedRoundScores, sign_scores
from farflung.verify.audit_accounts import AuditAccounts

replace = msgspec.structs.replace
Twist = Callable[[Judge, Any, Any], Any]
PEERS = {key.public for key in (*HONEST, EVE)}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Runs a network in which every round is scored; some of its verifiers twist what they say of round ROUND."""
    monkeypatch.setattr(calls, "REDIAL", Backoff.every(0.0))
    monkeypatch.setattr(audits, "TRY_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(proof_class, "PROBE_SHARE", Fraction(1, 10**6))

    def run(twist: Twist | None = None, who: Sequence[int] = (0, 1), court: Sequence[SigningKey] = VERIFIERS) -> Run:
        async def test() -> None:
            made.append(Run(tmp_path, court))
            for judge in [made[0].judges[i] for i in who] if twist is not None else []:
                judge.twists[messages.SCORE] = twist
            await made[0].go()
            made[0].check_honest()

        made: list[Run] = []
        within(30, test)
        return made[0]

    return run


def units(run: Run, court: Sequence[SigningKey] = VERIFIERS) -> dict[int, dict[PeerId, int]]:
    """What the law pays for, round by round."""
    tally = AuditAccounts(TERMS, len(court))
    return {r: tally.add(run.log.accepted[r], run.audited[r], run.log.promised[r]) for r in range(SPEC.rounds)}


def told(run: Run) -> dict[int, LossScoreEvent]:
    return {event.round: event for event in run.events if isinstance(event, LossScoreEvent)}


def test_a_member_whose_true_work_does_harm_is_not_paid_by_two_verifiers_scores(scene: Any) -> None:
    run = scene()
    assert not run.archive._shown  # states of rounds that are judged and scored are no longer kept for fetching
    for round, paid in units(run).items():
        assert paid.keys() & PEERS == {key.public for key in HONEST}
        assert {s.scores.verifier for s in run.audited[round].scores} == {key.public for key in VERIFIERS}
        assert told(run)[round].unpaid == (EVE.public.hex(),)
    assert run.out == run.left == []  # not punished: its work was what it was asked for
    assert {found.finding for found in run.concluded.values()} == {"holds"}


def test_scorers_are_paid_for_what_they_read_beside_what_they_trained_again(scene: Any) -> None:
    run, probe = scene(), proof_class.probe_of(SPEC, is_proven=False)
    assert probe is not None
    paid = units(run)[ROUND]
    audited = {v.verdict.verifier for v in run.audited[ROUND].verdicts}
    for key in VERIFIERS:
        read = probe.tokens(3, SPEC.model.context)
        assert paid[key.public] == read if key.public not in audited else paid[key.public] > read


def test_a_lone_verifier_that_says_that_honest_work_does_harm_takes_nobodys_pay(scene: Any) -> None:
    """Whether it is asked first or second: the other one does not say so."""

    def liar(judge: Judge, _order: Any, said: SignedRoundScores) -> SignedRoundScores:
        bad = tuple(
            replace(s, held=9 << 20, own=9 << 20) if s.peer == HONEST[0].public else s for s in said.scores.each
        )
        return sign_scores(judge.key, replace(said.scores, each=bad))

    run = scene(liar, (0,))
    assert units(run)[ROUND].keys() >= PEERS  # it may as well save whom it likes
    assert EVE.public not in units(run)[ROUND + 1]


def refuses(_judge: Judge, _order: Any, _said: Any) -> Any:
    raise PolicyError("FF-APP-041", "no")


def unsigned(_judge: Judge, _order: Any, said: SignedRoundScores) -> Any:
    return replace(said, scores=replace(said.scores, held_before=1))


def of_another_job(judge: Judge, _order: Any, said: SignedRoundScores) -> Any:
    return sign_scores(judge.key, replace(said.scores, job=Hash(bytes(32))))


def babbles(_judge: Judge, _order: Any, _said: Any) -> Any:
    return "what?"


@pytest.mark.slow
@pytest.mark.parametrize("twist", [refuses, unsigned, of_another_job, babbles])
def test_without_scores_that_hold_a_round_is_paid_as_without_and_goes_on(scene: Any, twist: Twist) -> None:
    run = scene(twist)
    assert run.audited[ROUND].scores == ()
    assert ROUND not in told(run)
    assert units(run)[ROUND].keys() >= PEERS
    assert EVE.public not in units(run)[ROUND + 1]


def test_where_one_of_a_rounds_two_is_gone_the_other_takes_nobodys_pay(scene: Any) -> None:
    run = scene(refuses, (0,))
    assert [s.scores.verifier for s in run.audited[ROUND].scores] == [VERIFIERS[1].public]
    assert units(run)[ROUND].keys() >= PEERS


def test_only_who_the_rounds_beacon_names_is_asked(scene: Any) -> None:
    run = scene(court=COURT)
    for round in range(SPEC.rounds):
        signers = [s.scores.verifier for s in run.audited[round].scores]
        assert len(signers) == len(set(signers)) == 2
        place = messages.SCORE, round
        asked = {j.key.public for j in run.judges for how, order, _ in j.said if (how, order.round) == place}
        assert asked == set(signers)
    assert {s.scores.chain for each in run.audited for s in each.scores} == {CHAIN}


def test_a_verifier_scores_no_more_than_the_terms_ask_for(scene: Any) -> None:
    """Nobody is paid to read contributions that the job cannot have."""
    judge = next(judge for judge in scene().judges if judge.said)
    order = next(order for method, order, _ in judge.said if method == messages.SCORE)
    for wrong in (
        replace(order, shares=order.shares * 3, members=order.members * 3),
        replace(order, members=order.members[1:]),
    ):
        with pytest.raises(PolicyError) as refused:
            asyncio.run(judge.lease.score(wrong))
        assert refused.value.code == "FF-APP-405"


def test_work_that_is_shown_as_another_members_is_not_scored(scene: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator could else have a rival's contribution called harmful for its friend's bytes."""
    real, score, refused = messages.ScoreRequest, AuditLease.score, list[str]()

    def swapped(*parts: Any) -> messages.ScoreRequest:
        order = real(*parts)
        first, second, *rest = order.shares
        mixed = (replace(first, manifest=second.manifest), replace(second, manifest=first.manifest), *rest)
        return replace(order, shares=mixed)

    async def heard(self: AuditLease, asked: messages.ScoreRequest) -> SignedRoundScores:
        try:
            return await score(self, asked)
        except FarflungError as error:
            refused.append(error.code)
            raise

    monkeypatch.setattr(messages, "ScoreRequest", swapped)
    monkeypatch.setattr(AuditLease, "score", heard)
    run = scene()
    assert set(refused) == {"FF-APP-406"}
    assert [run.audited[round].scores for round in range(SPEC.rounds)] == [()] * SPEC.rounds
    assert units(run)[ROUND].keys() >= PEERS

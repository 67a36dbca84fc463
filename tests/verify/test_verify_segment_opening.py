"""Openings: what is shown must stand under the committed root, and be a state that a round can go through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from farflung.core.codec import encode
from farflung.core.commitments import BorderRoots
from farflung.core.crypto import digest, local_key
from farflung.core.errors import VerificationError
from farflung.core.ids import ZERO_HASH, Hash
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import AuditSpec, JobSpec, JobTerms, SyncSpec
from farflung.ledger.transactions import Verdict, VerdictFinding, sign_verdict
from farflung.train.contribution_trace import ContributionTrace, TrainingStatistics
from farflung.train.run_log import Contribution
from farflung.verify import evidence as files
from farflung.verify.audit_sample import anchor, beacon, segment_of
from farflung.verify.blind_commitment import blind, nonce_of
from farflung.verify.commitment_check import commit
from farflung.verify.commitment_check import nonce_of as commit_nonce
from farflung.verify.evidence import AuditEvidence, check_evidence, claim_of, evidence_fault, evidence_hash
from farflung.verify.replay_report import ReplayReport
from farflung.verify.segment_opening import (
    ClaimedEnds,
    OpenedSegment,
    are_losses,
    chain_fault,
    needed,
    read_ends,
    start_fault,
)

SPEC = JobSpec(batch=2, sync=SyncSpec(steps=6), audit=AuditSpec(segments=3))
TERMS = JobTerms(
    SPEC,
    digest("test/data/1"),
    ZERO_HASH,
    TensorLayout.of({"w": (4,)}),
    local_key(1, "requester").public,
    digest("test/state/1"),
)
JOB, CHAIN = TERMS.id, digest("test/chain/1")
KEY, VERIFIER = local_key(1, "peer"), local_key(1, "verifier")
Alter = Callable[[BorderRoots], BorderRoots]


def h(word: str, index: int = 0) -> Hash:
    return digest("test/part/1", word.encode(), bytes([index]))


def borders(round: int = 2, before: int = 12) -> tuple[BorderRoots, ...]:
    """Of an honest peer's round 2: twelve steps were made before it."""
    return tuple(
        BorderRoots(round, i, before + 2 * i, h("params", i), h("optimizer", i), h("unsent" if i < 3 else "residual"))
        for i in range(4)
    )


def traced(made: tuple[BorderRoots, ...], losses: int = 6, tokens: int = SPEC.round_tokens) -> ContributionTrace:
    return ContributionTrace(
        made, TrainingStatistics(tuple(2.0 - i / 10 for i in range(losses)), 1.0, tokens), h("payload")
    )


def contribution(trace: ContributionTrace) -> Contribution:
    nonce = commit_nonce(KEY, JOB, 2)
    return Contribution(KEY.public, SPEC.round_tokens, trace.payload, ZERO_HASH, nonce, trace.root, "none")


def place(trace: ContributionTrace, segment: int = 0, round: int = 2) -> OpenedSegment:
    return OpenedSegment(SPEC, round, segment, contribution(trace), h("params"))


@pytest.mark.parametrize("segment", [0, 1, 2])
def test_an_honest_opening_is_found_true(segment: int) -> None:
    trace = traced(borders())
    where = place(trace, segment)
    (start,) = trace.opened(segment)
    assert start_fault(where, start) == ""
    ends = read_ends(where, trace.borders[segment], trace.opened(*needed(where.segment, where.segments)))
    assert ends == ClaimedEnds(trace.borders[segment + 1], trace.borders[3], trace.statistics)


def altered(index: int, /, **fields: Any) -> ContributionTrace:
    made = list(borders())
    made[index] = replace(made[index], **fields)
    return traced(tuple(made))


@pytest.mark.parametrize(
    "fields",
    [
        {"round": 1},
        {"index": 1},
        {"steps": 13},  # more than all rounds have
        {"steps": -1},
        {"params": h("params", 1)},  # not P_r
        {"params": b"short"},
        {"optimizer": ZERO_HASH},
        {"steps": 0},
        {"steps": 0, "optimizer": ZERO_HASH},  # fresh, with a residual
    ],
)
def test_a_committed_start_that_cannot_be_one_is_a_fault(fields: dict[str, Any]) -> None:
    trace = altered(0, **fields)
    (start,) = trace.opened(0)
    assert start_fault(place(trace), start)


def test_a_fresh_peer_may_start_in_any_round() -> None:
    made = tuple(
        replace(b, steps=2 * b.index, **({"optimizer": ZERO_HASH, "residual": ZERO_HASH} if not b.index else {}))
        for b in borders()
    )
    trace = traced(made)
    assert start_fault(place(trace), trace.opened(0)[0]) == ""


def test_a_start_that_is_not_under_the_root_is_a_fault() -> None:
    trace, other = traced(borders()), altered(1, params=h("other"))
    assert start_fault(place(trace), other.opened(0)[0])
    assert start_fault(place(trace), trace.opened(1)[0])
    assert start_fault(place(trace), replace(trace.opened(0)[0], path=()))
    mixed = replace(trace.opened(0)[0], data=encode(trace.statistics))
    assert start_fault(place(trace), mixed)


@pytest.mark.parametrize(
    ("index", "fields"),
    [
        (1, {"steps": 13}),
        (1, {"round": 3}),
        (1, {"residual": h("another")}),  # it rests inside a round
        (3, {"steps": 17}),
        (3, {"index": 2}),
        (3, {"params": ZERO_HASH}),
    ],
)
def test_committed_ends_that_do_not_follow_from_the_start_are_a_fault(index: int, fields: dict[str, Any]) -> None:
    trace = altered(index, **fields)
    where = place(trace)
    assert isinstance(read_ends(where, trace.borders[0], trace.opened(*needed(where.segment, where.segments))), str)


@pytest.mark.parametrize(("losses", "tokens"), [(5, SPEC.round_tokens), (7, SPEC.round_tokens), (6, 1)])
def test_statistics_of_another_round_length_are_a_fault(losses: int, tokens: int) -> None:
    trace = traced(borders(), losses, tokens)
    where = place(trace)
    assert isinstance(read_ends(where, trace.borders[0], trace.opened(*needed(where.segment, where.segments))), str)


def test_other_leaves_than_asked_for_are_a_fault() -> None:
    trace = traced(borders())
    where, shown = place(trace), trace.opened(*needed(place(trace).segment, 3))
    for told in (shown[1:], shown[::-1], (*shown, shown[-1]), trace.opened(0, 3, 4, 5)):
        assert isinstance(read_ends(where, trace.borders[0], told), str)


def test_ends_that_are_not_under_the_root_are_a_fault() -> None:
    trace, other = traced(borders()), altered(1, params=h("other"))
    where = place(trace)
    assert isinstance(read_ends(where, trace.borders[0], other.opened(*needed(where.segment, where.segments))), str)


def test_a_payload_that_is_not_under_the_root_is_a_fault() -> None:
    trace = traced(borders())
    where = place(trace)
    other = replace(where, contribution=replace(where.contribution, payload=h("another")))
    assert isinstance(read_ends(other, trace.borders[0], trace.opened(*needed(where.segment, where.segments))), str)


@pytest.mark.parametrize(("factor", "is_same"), [(1.0, True), (1.0009, True), (0.9991, True), (1.002, False)])
def test_losses_are_the_same_within_a_thousandth(factor: float, is_same: bool) -> None:
    trace = traced(borders())
    mine = [loss * factor for loss in trace.statistics.losses[2:4]]
    assert are_losses(place(trace, 1), trace.statistics, mine) is is_same
    assert not are_losses(place(trace, 1), trace.statistics, mine[:1])


@pytest.mark.parametrize("field", ["optimizer", "residual", "steps"])
def test_a_round_goes_on_from_the_end_of_the_round_before(field: str) -> None:
    last = replace(borders(1, 6)[3])
    start = replace(borders()[0], optimizer=last.optimizer, residual=last.residual, steps=last.steps)
    assert chain_fault(last, start) == ""
    value = getattr(start, field)
    forged = replace(start, **{field: value - 1 if isinstance(value, int) else h("forged")})
    assert chain_fault(last, forged)
    assert chain_fault(None, forged) == ""  # it was away: nothing links the two
    assert chain_fault(replace(last, round=0), forged) == ""


# Evidence


def evidence(shift: int = 0, **changed: Any) -> AuditEvidence:
    trace = traced(borders())
    c = contribution(trace)
    promise = commit(KEY, JOB, 2, c.payload, c.weight, c.trace)
    segment = (segment_of(beacon(anchor(JOB, 2, [promise]), ZERO_HASH), KEY.public, 3) + shift) % 3
    said = blind(VERIFIER, JOB, 2, KEY.public, segment, trace.borders[1])
    about = (CHAIN, JOB, 2, KEY.public, segment, c.trace, VERIFIER.public)
    verdict = sign_verdict(VERIFIER, Verdict(*about, VerdictFinding.FALSE, 9000, said.digest))
    nonce = nonce_of(VERIFIER, JOB, 2, KEY.public, segment)
    testimony = files.VerifierTestimony((said,), (trace.borders[1],), (nonce,), verdict)
    told = AuditEvidence(JOB, 2, c, (promise,), ZERO_HASH, segment, "", trace.opened(0, 3), (), (testimony,))
    return replace(told, **changed)


def test_evidence_holds_and_names_what_the_node_had_claimed() -> None:
    told = evidence()
    assert evidence_fault(told, SPEC) == ""
    claim = claim_of(told)
    assert (claim.payload, claim.weight) == (told.contribution.payload, SPEC.round_tokens)
    assert evidence_hash(told) != evidence_hash(replace(told, flagged="norm"))


def forged() -> list[dict[str, Any]]:
    good = evidence()
    (said,) = good.testimonies
    verdict = said.verdict.verdict
    other = blind(VERIFIER, JOB, 2, KEY.public, good.segment, borders()[2])
    return [
        {"commitments": ()},
        {"commitments": (commit(local_key(2, "peer"), JOB, 2, JOB, 1, JOB),)},
        {"round": 3},
        {"contribution": replace(good.contribution, payload=h("another"))},
        {"segment": (good.segment + 1) % 3},
        {"shift": 1},  # all agree on a segment that was not drawn
        {"leaves": traced(borders(1)).opened(0)},
        {"testimonies": (replace(said, verdict=sign_verdict(VERIFIER, replace(verdict, result=h("other")))),)},
        {"testimonies": (replace(said, nonces=(h("nonce"),)),)},
        {"testimonies": (replace(said, blinds=(other,)),)},
        {"testimonies": (replace(said, blinds=(), borders=(), nonces=()),)},
        {"testimonies": (replace(said, borders=()),)},
        {"testimonies": (replace(said, verdict=sign_verdict(KEY, verdict)),)},
        {"testimonies": (replace(said, verdict=sign_verdict(VERIFIER, replace(verdict, round=1))),)},
        {
            "testimonies": (
                replace(said, verdict=sign_verdict(VERIFIER, replace(verdict, finding=VerdictFinding.HOLDS))),
            )
        },
    ]


def test_evidence_that_was_altered_does_not_hold(subtests: pytest.Subtests) -> None:
    for place in range(len(forged())):
        with subtests.test(place=place):
            assert evidence_fault(evidence(**forged()[place]), SPEC)


DRAWN = {2: ZERO_HASH}  # what rounds were drawn from


def test_a_second_reader_takes_only_the_evidence_that_the_ledger_names() -> None:
    told, report = evidence(), ReplayReport()
    accused = {KEY.public: evidence_hash(told)}
    check_evidence((), accused, DRAWN, TERMS, report)  # not handed on: nothing is said
    assert report.evidence == 0
    check_evidence([files.write(encode(told))], accused, DRAWN, TERMS, report)
    assert report.evidence == 1
    twice = replace(told, flagged="norm")  # found out twice, slashed once
    check_evidence([files.write(encode(each)) for each in (told, twice)], accused, DRAWN, TERMS, report)
    with pytest.raises(VerificationError, match="FF-VERI-046"):
        check_evidence([files.write(encode(twice))], accused, DRAWN, TERMS, report)


@pytest.mark.parametrize("changed", [{"segment": 99}, {"job": digest("test/job/2")}, {"block": JOB}])
def test_a_second_reader_refuses_evidence_that_does_not_hold(changed: dict[str, Any]) -> None:
    told = evidence(**changed)
    with pytest.raises(VerificationError, match="FF-VERI-045"):
        check_evidence([files.write(encode(told))], {KEY.public: evidence_hash(told)}, DRAWN, TERMS, ReplayReport())

"""Members that were assigned fewer steps, to the second reader and to a verifier: all go by what the log assigns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from verify_story import PEERS, SPEC, Story, replace

from farflung.core.commitments import BorderRoots
from farflung.core.crypto import digest
from farflung.core.errors import ProtocolError, VerificationError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.job.spec import ChurnSpec
from farflung.ledger.table_rows import LeaseRow
from farflung.ledger.transactions import Verdict, VerdictFinding
from farflung.train.contribution_trace import ContributionTrace, TrainingStatistics
from farflung.train.run_log import Contribution, RoundMember, RoundStartRecord, payload_hash
from farflung.train.sync_arithmetic import Sync
from farflung.verify.audit_accounts import rerun_tokens
from farflung.verify.run_replay import verify_run
from farflung.verify.segment_opening import OpenedSegment, needed, read_ends, start_fault
from farflung.verify.submission_checks import PayloadCheckRequest, TrainingStatement, decoded

A, B, C = (key.public for key in PEERS)
SMALL = replace(SPEC, audit=replace(SPEC.audit, segments=1))
ADAPTIVE = replace(SMALL, churn=ChurnSpec(quorum=0.5, adaptive=True))
STEP = SPEC.step_tokens
LIGHT = 2 * STEP


def story(spec=ADAPTIVE, assigned: int = LIGHT, weighs: int = LIGHT, **changed: int) -> Story:
    """A run in which B is assigned less than the others, and its contributions weigh so much."""

    def opened(record: RoundStartRecord) -> RoundStartRecord:
        members = tuple(RoundMember(m.peer, assigned if m.peer == B else m.weight) for m in record.members)
        return replace(record, members=members, **changed)

    return Story({"round": opened, "weight": lambda truth, peer: weighs if peer == B else truth}, spec=spec)


def refused(told: Story, code: str) -> None:
    with pytest.raises(VerificationError) as caught:
        verify_run(told.export())
    assert caught.value.code == code, caught.value.lines()


def earned(told: Story, peer: PeerId) -> int:
    """Tokens that the ledger pays a member for."""
    return next(row.earned for row in told.chain.state.rows(LeaseRow) if row.node == peer)


def test_a_member_of_fewer_steps_is_merged_and_paid_for_them() -> None:
    """By its lease: what the whole job pays depends on which audits and scores its draw asks for."""
    whole, light = Story(spec=ADAPTIVE), story()
    said = verify_run(whole.export()), verify_run(light.export())
    assert [report.rounds for report in said] == [SPEC.rounds] * 2
    assert earned(whole, B) == SPEC.rounds * SPEC.round_tokens
    assert earned(light, B) == SPEC.rounds * LIGHT
    assert earned(light, A) == earned(whole, A)
    assert said[0].roots == said[1].roots


def test_a_member_may_do_less_than_it_was_assigned_and_never_more() -> None:
    assert verify_run(story(assigned=3 * STEP, weighs=STEP).export()).rounds == SPEC.rounds
    refused(story(assigned=LIGHT, weighs=3 * STEP), "FF-VERI-016")


@pytest.mark.parametrize("weight", [LIGHT - 1, 1, STEP + STEP // 2])
def test_a_weight_is_a_whole_number_of_steps(weight: int) -> None:
    refused(story(assigned=LIGHT, weighs=weight), "FF-VERI-016")
    refused(story(assigned=weight, weighs=weight), "FF-VERI-009")


def test_where_nothing_is_adaptive_everybody_is_assigned_all() -> None:
    refused(story(spec=SMALL), "FF-VERI-009")


@pytest.mark.parametrize("steps", [0, -1, 4])
def test_a_round_of_more_steps_than_the_terms_have_or_none_is_refused(steps: int) -> None:
    refused(story(steps=steps), "FF-VERI-010")


def test_nobody_is_assigned_more_than_the_steps_of_its_round() -> None:
    refused(story(steps=2), "FF-VERI-009")  # the others have three


def test_a_segment_cannot_be_without_a_step() -> None:
    """Three segments, and a round of two steps."""
    spec = replace(ADAPTIVE, audit=replace(SPEC.audit, segments=3))
    refused(story(spec=spec), "FF-VERI-009")


# A verifier


SIX = replace(SPEC, sync=replace(SPEC.sync, steps=6), audit=replace(SPEC.audit, segments=3))


def part(word: str, index: int = 0) -> bytes:
    return digest("test/part/1", word.encode(), bytes([index]))


def shown(weight: int, ends: tuple[int, ...], losses: int) -> tuple[OpenedSegment, ContributionTrace]:
    """Round 2 of a peer whose optimizer had counted twelve steps."""
    made = tuple(
        BorderRoots(2, i, 12 + at, part("params", i), part("optimizer", i), part("unsent" if i < 3 else "left"))
        for i, at in enumerate(ends)
    )
    trace = ContributionTrace(made, TrainingStatistics((2.0,) * losses, 1.0, weight), part("payload"))
    c = Contribution(A, weight, trace.payload, ZERO_HASH, ZERO_HASH, trace.root, "none")
    return OpenedSegment(SIX, 2, 1, c, part("params")), trace


@pytest.mark.parametrize(
    ("steps", "ends", "losses", "is_good"),
    [
        (6, (0, 2, 4, 6), 6, True),
        (4, (0, 1, 2, 4), 4, True),
        (4, (0, 2, 4, 6), 4, False),  # it weighs four and counts six
        (4, (0, 1, 2, 4), 6, False),  # it states six losses
        (6, (0, 1, 2, 4), 6, False),
    ],
)
def test_what_is_opened_is_held_to_the_steps_that_the_weight_says(
    steps: int, ends: tuple[int, ...], losses: int, is_good: bool
) -> None:
    place, trace = shown(steps * STEP, ends, losses)
    fault = start_fault(place, trace.opened(1)[0])
    found = read_ends(place, trace.borders[1], trace.opened(*needed(1, 3)))
    assert (fault == "" and not isinstance(found, str)) is is_good


@pytest.mark.parametrize("weight", [4 * STEP + 1, 2 * STEP, 7 * STEP, 0])
def test_a_weight_that_no_round_can_have_proves_nothing(weight: int) -> None:
    place, trace = shown(weight, (0, 1, 2, 4), 4)
    assert "weight" in start_fault(place, trace.opened(1)[0])


@pytest.mark.parametrize(("steps", "tokens"), [(6, (2, 2, 2)), (4, (1, 1, 2)), (3, (1, 1, 1))])
def test_a_verifier_is_paid_for_the_steps_that_it_has_trained(steps: int, tokens: tuple[int, ...]) -> None:
    for segment, count in enumerate(tokens):
        about = (part("chain"), part("job"), 2, A, segment, part("trace"), B, VerdictFinding.HOLDS, 0)
        assert rerun_tokens(SIX, Verdict(*about, part("result")), steps * STEP) == count * STEP
        assert rerun_tokens(SIX, Verdict(*about, ZERO_HASH), steps * STEP) == 0


# The submission checks


def submitted(weight: int, losses: int) -> Callable[[], object]:
    sync, told = Sync.of(ADAPTIVE), Story(spec=ADAPTIVE, done=1)
    payload = told.encoded(A, 1)
    c = Contribution(A, weight, payload_hash(payload), ZERO_HASH, ZERO_HASH, ZERO_HASH, "none")
    about = PayloadCheckRequest(
        1, told.public.root(told.layout), c, TrainingStatement((2.0,) * losses, weight), payload
    )
    return lambda: decoded(sync, told.layout, about, 3 * STEP)


def test_a_light_submission_states_a_loss_for_each_of_its_steps() -> None:
    submitted(LIGHT, 2)()
    for losses in (1, 3):
        with pytest.raises(ProtocolError, match="FF-VERI-063"):
            submitted(LIGHT, losses)()
    for weight in (LIGHT + 1, 4 * STEP, 0):
        with pytest.raises(ProtocolError, match="FF-VERI-061"):
            submitted(weight, 2)()

"""The second reader and a lying coordinator: peers and ledger sign whatever it wants, and still it is found out.

One case for each check of the run log (verify.run_replay, verify.log_replay); those of the ledger are in
test_verify_books.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from verify_story import ESCROW, KEYS, LAYOUT, PEERS, SPEC, STRANGER, Story, replace

from farflung.core.canon.program import CanonicalProgram
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_ACK, NS_LOG, digest
from farflung.core.errors import VerificationError
from farflung.core.tensor_layout import TensorLayout
from farflung.job import terms_file
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.spec import EvaluateSpec, ModelSpec
from farflung.ledger.table_rows import JobRow
from farflung.ledger.transactions import JobCancel
from farflung.train import public_state
from farflung.train.public_state import PublicState
from farflung.train.rounds import REASON_COMPLETE, REASON_DIVERGED, REASON_STOPPED
from farflung.train.run_log import (
    AcceptSetRecord,
    AuditsRecord,
    CommitmentsRecord,
    Contribution,
    RoundEndRecord,
    RoundStartRecord,
    RunEndRecord,
    RunLogEntry,
    RunStartRecord,
)
from farflung.verify.commitment_check import is_commitment, nonce_of, opens
from farflung.verify.run_replay import verify_run

OTHER = digest("test/other/1")
A, B, C = (key.public for key in PEERS)
Lie = Callable[..., Any]


def refused(story: Story, code: str) -> None:
    with pytest.raises(VerificationError) as caught:
        verify_run(story.export())
    assert caught.value.code == code, caught.value.lines()


def only(round: int, lie: Lie) -> Lie:
    """A lie that is told in one round."""
    return lambda truth, now: lie(truth) if now == round else truth


# What is true is accepted


def test_a_genuine_run_is_found_true_and_everything_is_counted() -> None:
    story = Story()
    report = verify_run(story.export(), story.genesis.chain)
    assert (report.rounds, report.merges, report.roots) == (3, 3, 5)
    assert (report.commitments, report.signatures) == (7, 8 + 7 + story.judged)
    assert (report.audits, report.verdicts, report.slashed) == (story.judged, story.judged, 0)
    assert story.judged >= 3  # the probation of three peers
    assert (report.blocks, report.transactions, report.receipts) == (15, 15, 6)
    assert report.paid == 7 * SPEC.round_tokens + story.judged * SPEC.round_tokens // 3
    assert report.paid + report.refunded == ESCROW
    assert report.genesis == story.genesis.chain.hex()
    job = story.chain.state.rows(JobRow)[0]
    assert report.model_hash == job.output.hex()


def test_a_run_that_was_stopped_is_found_true() -> None:
    report = verify_run(Story(done=2).export())
    assert report.rounds == 2


def test_a_run_that_was_cancelled_before_its_first_round_is_found_true() -> None:
    lies = {"finish": lambda _: [], "settle": lambda op: JobCancel(op.job)}
    assert verify_run(Story(lies, done=0).export()).paid == 0


def test_a_round_whose_members_were_all_lost_before_they_signed_is_found_true() -> None:
    story = Story({"closed": lambda record: replace(record, signatures=())})
    assert verify_run(story.export()).signatures == 8 + story.judged


def test_the_story_of_a_built_in_model_is_found_true() -> None:
    small = ModelSpec(layers=1, width=4, heads=1, context=8, vocabulary=32)
    spec = msgspec.structs.replace(SPEC, model=small)
    verify_run(Story(spec=spec, layout=TensorLayout.of(gpt_shapes(small))).export())


# Terms and the log as a whole


def test_a_chain_that_the_run_does_not_claim_is_refused() -> None:
    with pytest.raises(VerificationError, match="FF-VERI-005"):
        verify_run(Story().export(), digest("test/chain/1"))


def test_tensors_that_are_not_the_models_are_refused() -> None:
    refused(Story(spec=msgspec.structs.replace(SPEC, model=ModelSpec(context=8))), "FF-VERI-006")


def test_terms_that_nobody_could_have_written_are_refused() -> None:
    sync = msgspec.structs.replace(SPEC.sync, error_decay=1.0, steps=0)
    exported = Story().export()
    terms = replace(Story().terms, spec=msgspec.structs.replace(SPEC, sync=sync))
    with pytest.raises(VerificationError, match="FF-JOB-004"):
        verify_run(replace(exported, terms=terms_file.write(terms)))


def test_terms_say_their_class_and_claim_no_other() -> None:
    story = Story()
    assert verify_run(story.export()).work == "outcome only: not verifiable step by step (no step was traced)"
    for lie in ({"unproven": ""}, {"program": CanonicalProgram(graph=digest("test/graph"))}):
        with pytest.raises(VerificationError, match="FF-VERI-112"):
            verify_run(replace(story.export(), terms=terms_file.write(replace(story.terms, **lie))))


def test_a_layout_that_breaks_a_bound_is_refused() -> None:
    terms = replace(Story().terms, layout=TensorLayout((*LAYOUT.tensors, LAYOUT.tensors[0])))
    with pytest.raises(VerificationError, match="FF-CORE-040"):
        verify_run(replace(Story().export(), terms=terms_file.write(terms)))


@pytest.mark.parametrize("part", ["genesis", "terms", "initial", "model"])
def test_bytes_that_cannot_be_read_are_not_true_either(part: str) -> None:
    with pytest.raises(VerificationError, match="FF-"):
        verify_run(replace(Story().export(), **{part: b"\xc1 no such thing"}))


def test_bytes_behind_the_last_entry_are_refused() -> None:
    exported = Story().export()
    with pytest.raises(VerificationError, match="FF-VERI-003"):
        verify_run(replace(exported, log_bytes=exported.log_bytes + 1))


def test_an_entry_signed_by_somebody_else_is_refused() -> None:
    def lie(entries: tuple[bytes, ...]) -> tuple[bytes, ...]:
        entry = decode(entries[3], RunLogEntry, 1 << 20)
        parts = (entry.sequence.to_bytes(8, "little"), entry.previous, encode(entry.record))
        return (*entries[:3], encode(replace(entry, signature=STRANGER.sign(NS_LOG, *parts))), *entries[4:])

    refused(Story({"entries": lie}), "FF-TRAIN-010")


@pytest.mark.parametrize("changed", [{"sequence": -1}, {"sequence": 2**64 - 1}, {"signature": b""}])
def test_an_entry_with_impossible_fields_is_refused(changed: dict[str, Any]) -> None:
    def lie(entries: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return (encode(replace(decode(entries[0], RunLogEntry, 1 << 20), **changed)), *entries[1:])

    refused(Story({"entries": lie}), "FF-TRAIN-010")


def without_end(story: Story) -> None:
    story.records.pop()


def with_an_opening_later(story: Story) -> None:
    story.records.pop(0)


def of_another_job(story: Story) -> None:
    story.records[0] = replace(story.records[0], job=OTHER)


def empty(story: Story) -> None:
    story.lies["entries"] = lambda _: ()


def for_more_rounds(story: Story) -> None:
    story.records[0] = replace(story.records[0], rounds=4)


def from_another_root(story: Story) -> None:
    story.records[0] = replace(story.records[0], initial_root=OTHER)


def ended_for_no_reason(story: Story) -> None:
    story.records[-1] = replace(story.records[-1], reason=REASON_STOPPED)


def ended_elsewhere(story: Story) -> None:
    story.records[-1] = replace(story.records[-1], root=OTHER)


def ended_earlier(story: Story) -> None:
    story.records[-1] = replace(story.records[-1], rounds=2, reason=REASON_STOPPED)


@pytest.mark.parametrize(
    ("alter", "code"),
    [
        (empty, "FF-VERI-001"),
        (with_an_opening_later, "FF-VERI-001"),
        (of_another_job, "FF-VERI-002"),
        (without_end, "FF-VERI-004"),
        (for_more_rounds, "FF-VERI-007"),
        (ended_for_no_reason, "FF-VERI-008"),
        (ended_earlier, "FF-VERI-011"),
        (from_another_root, "FF-VERI-012"),
        (ended_elsewhere, "FF-VERI-012"),
    ],
)
def test_an_altered_log_is_refused(alter: Callable[[Story], None], code: str) -> None:
    story = Story()
    alter(story)
    refused(story, code)


def test_a_run_that_says_complete_too_early_is_refused() -> None:
    lie = {"finished": lambda record: replace(record, reason=REASON_COMPLETE)}
    refused(Story(lie, done=2), "FF-VERI-008")


def test_a_run_ends_for_its_loss_only_where_the_terms_say_so() -> None:
    said = {"finished": lambda record: replace(record, reason=REASON_DIVERGED)}
    verify_run(Story(said, done=2).export())
    never = msgspec.structs.replace(SPEC, evaluate=EvaluateSpec(stop_loss=0.0))
    refused(Story(said, spec=never, done=2), "FF-VERI-008")


@pytest.mark.parametrize(
    ("reason", "code"), [(REASON_DIVERGED, ""), (REASON_STOPPED, "FF-VERI-008"), (REASON_COMPLETE, "FF-VERI-008")]
)
def test_a_round_that_was_opened_and_is_not_in_the_log_is_given_up_for_lost_numbers_alone(
    reason: str, code: str
) -> None:
    said = {"finished": lambda record: replace(record, reason=reason)}
    story = Story(said, spec=msgspec.structs.replace(SPEC, evaluate=EvaluateSpec(stop_loss=0.0)), done=2)
    opened = next(r for r in reversed(story.records) if isinstance(r, RoundStartRecord))
    before = next(i for i, r in enumerate(story.records) if isinstance(r, AuditsRecord) and r.round == opened.round - 1)
    story.records.insert(before + 1, replace(opened, round=opened.round + 1))
    if code:
        refused(story, code)
    else:
        verify_run(story.export())


@pytest.mark.parametrize(
    "kind", [RunStartRecord, RoundStartRecord, CommitmentsRecord, AcceptSetRecord, RoundEndRecord, RunEndRecord]
)
def test_a_record_that_is_missing_or_there_twice_is_out_of_turn(kind: type[Any]) -> None:
    for times in (0, 2):
        if kind in (RunStartRecord, RunEndRecord) and not times:
            continue  # FF-VERI-001 and -004
        story = Story()
        place = next(i for i, record in enumerate(story.records) if isinstance(record, kind))
        story.records[place : place + 1] = [story.records[place]] * times
        refused(story, "FF-VERI-011")


@pytest.mark.parametrize("kind", [RoundStartRecord, CommitmentsRecord, AcceptSetRecord, RoundEndRecord])
def test_a_record_of_another_round_is_out_of_turn(kind: type[Any]) -> None:
    story = Story()
    place = next(i for i, record in enumerate(story.records) if isinstance(record, kind) and record.round == 1)
    told = replace(story.records[place], round=2)
    if kind is CommitmentsRecord:  # signed anew for the round that it says
        signed = tuple(replace(c, signature=_acknowledged(c, 2, story)) for c in told.commitments)
        told = replace(told, commitments=signed)
    story.records[place] = told
    refused(story, "FF-VERI-011")


def _acknowledged(commitment: Any, round: int, story: Story) -> bytes:
    return KEYS[commitment.peer].sign(NS_ACK, story.terms.id, round.to_bytes(8, "little"), commitment.digest)


def test_rounds_in_another_order_are_refused() -> None:
    story = Story()
    first, second = story.records[1:6], story.records[6:11]
    story.records[1:11] = second + first
    refused(story, "FF-VERI-011")


# Public state


def test_training_from_other_weights_than_the_terms_is_refused() -> None:
    """Everything after it is computed, signed, paid and handed over from the other weights."""

    def lie(truth: PublicState) -> PublicState:
        params = truth.params.copy()
        params[17] += 0.5
        return PublicState(0, params, truth.vectors)

    refused(Story({"initial": lie}), "FF-TRAIN-073")


def test_an_initial_state_of_a_later_round_is_refused() -> None:
    story = Story(done=2)
    first = public_state.unpack(story.initial, LAYOUT)
    later = public_state.pack(PublicState(1, first.params, first.vectors), LAYOUT)
    with pytest.raises(VerificationError, match="FF-TRAIN-072"):
        verify_run(replace(story.export(), initial=later))


@pytest.mark.parametrize("round", [0, 2])
def test_a_root_that_the_payloads_do_not_give_is_refused_whoever_signed_it(round: int) -> None:
    refused(Story({"root": only(round, lambda _: OTHER)}), "FF-VERI-012")


# The story itself


def test_the_story_is_signed_by_those_who_are_in_it() -> None:
    story = Story()
    committed, accepted = story.records[2], story.records[4]
    assert isinstance(committed, CommitmentsRecord)
    assert isinstance(accepted, AcceptSetRecord)
    for commitment, c in zip(committed.commitments, accepted.contributions, strict=True):
        assert is_commitment(commitment, story.terms.id, 0)
        assert opens(c, commitment, story.terms.id, 0)
        assert isinstance(c, Contribution)
        assert c.nonce == nonce_of(KEYS[c.peer], story.terms.id, 0)

"""The second reader and a lying coordinator: peers and ledger sign whatever it wants, and still it is found out.

One case for each check of the run log (verify.reader, verify.walk); those of the ledger are in test_verify_books.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from verify_story import (
    KEYS,
    LAYOUT,
    LOST_IN,
    PEERS,
    REQUESTER,
    SPEC,
    STRANGER,
    Story,
    object_of,
    replace,
)

from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_LOG, digest
from farflung.core.errors import VerificationError
from farflung.core.ids import PeerId
from farflung.core.layout import Layout
from farflung.job.model import gpt_shapes
from farflung.job.spec import ModelSpec
from farflung.ledger.rows import JobRow
from farflung.ledger.tx import JobCancel
from farflung.train.roundlog import (
    Accepted,
    Closed,
    Committed,
    Contribution,
    Entry,
    Finished,
    Member,
    Opened,
    RoundOpened,
    payload_hash,
)
from farflung.train.rounds import REASON_COMPLETE, REASON_STOPPED
from farflung.train.snapshot import PublicState
from farflung.verify.commitments import commit, is_commitment, nonce_of, opens, sign_root
from farflung.verify.reader import verify_run

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
    assert (report.commitments, report.signatures) == (7, 8 + 7)
    assert (report.blocks, report.transactions, report.receipts) == (10, 10, 4)
    assert report.paid == 7 * SPEC.round_tokens
    assert report.paid + report.refunded == 500_000
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
    assert verify_run(story.export()).signatures == 8


def test_the_story_of_a_built_in_model_is_found_true() -> None:
    small = ModelSpec(layers=1, width=4, heads=1, context=8, vocabulary=32)
    spec = msgspec.structs.replace(SPEC, model=small)
    verify_run(Story(spec=spec, layout=Layout.of(gpt_shapes(small))).export())


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
        verify_run(replace(exported, terms=encode(terms)))


def test_a_layout_that_breaks_a_bound_is_refused() -> None:
    terms = replace(Story().terms, layout=Layout((*LAYOUT.tensors, LAYOUT.tensors[0])))
    with pytest.raises(VerificationError, match="FF-CORE-040"):
        verify_run(replace(Story().export(), terms=encode(terms)))


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
        entry = decode(entries[3], Entry, 1 << 20)
        parts = (entry.sequence.to_bytes(8, "little"), entry.previous, encode(entry.record))
        return (*entries[:3], encode(replace(entry, signature=STRANGER.sign(NS_LOG, *parts))), *entries[4:])

    refused(Story({"entries": lie}), "FF-TRAIN-010")


@pytest.mark.parametrize("changed", [{"sequence": -1}, {"sequence": 2**64 - 1}, {"signature": b""}])
def test_an_entry_with_impossible_fields_is_refused(changed: dict[str, Any]) -> None:
    def lie(entries: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return (encode(replace(decode(entries[0], Entry, 1 << 20), **changed)), *entries[1:])

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


@pytest.mark.parametrize("kind", [Opened, RoundOpened, Committed, Accepted, Closed, Finished])
def test_a_record_that_is_missing_or_there_twice_is_out_of_turn(kind: type[Any]) -> None:
    for times in (0, 2):
        if kind in (Opened, Finished) and not times:
            continue  # FF-VERI-001 and -004
        story = Story()
        place = next(i for i, record in enumerate(story.records) if isinstance(record, kind))
        story.records[place : place + 1] = [story.records[place]] * times
        refused(story, "FF-VERI-011")


@pytest.mark.parametrize("kind", [RoundOpened, Committed, Accepted, Closed])
def test_a_record_of_another_round_is_out_of_turn(kind: type[Any]) -> None:
    story = Story()
    place = next(
        i for i, record in enumerate(story.records) if isinstance(record, kind) and record.round == 1
    )
    told = replace(story.records[place], round=2)
    if kind is Committed:  # signed anew for the round that it says
        told = Committed(2, tuple(replace(c, signature=_acknowledged(c, 2, story)) for c in told.commitments))
    story.records[place] = told
    refused(story, "FF-VERI-011")


def _acknowledged(commitment: Any, round: int, story: Story) -> bytes:
    from farflung.core.crypto import NS_ACK

    return KEYS[commitment.peer].sign(NS_ACK, story.terms.id, round.to_bytes(8, "little"), commitment.digest)


def test_rounds_in_another_order_are_refused() -> None:
    story = Story()
    first, second = story.records[1:5], story.records[5:9]
    story.records[1:9] = second + first
    refused(story, "FF-VERI-011")


# Public state


def test_training_from_other_weights_than_the_terms_is_refused() -> None:
    """Everything after it is computed, signed, paid and handed over from the other weights."""

    def lie(truth: PublicState) -> PublicState:
        params = truth.params.copy()
        params[17] += 0.5
        return PublicState(0, params, truth.momentum)

    refused(Story({"initial": lie}), "FF-TRAIN-073")


def test_an_initial_state_of_a_later_round_is_refused() -> None:
    lie = {"initial": lambda truth: PublicState(1, truth.params, truth.momentum)}
    with pytest.raises(VerificationError, match="FF-TRAIN-072"):
        verify_run(replace(Story().export(), initial=Story(lie, done=0).initial))


@pytest.mark.parametrize("round", [0, 2])
def test_a_root_that_the_payloads_do_not_give_is_refused_whoever_signed_it(round: int) -> None:
    refused(Story({"root": only(round, lambda _: OTHER)}), "FF-VERI-012")


# Who takes part, and how much


@pytest.mark.parametrize("changed", [{"steps": 4}, {"density": 15}])
def test_a_round_of_other_length_or_density_is_refused(changed: dict[str, int]) -> None:
    refused(Story({"round": only(1, lambda record: replace(record, **changed))}), "FF-VERI-010")


@pytest.mark.parametrize("weight", [SPEC.round_tokens + 1, 0, -1])
def test_a_member_that_may_weigh_more_than_it_trains_on_or_nothing_is_refused(weight: int) -> None:
    def lie(record: RoundOpened) -> RoundOpened:
        return replace(record, members=(*record.members[:2], Member(record.members[2].peer, weight)))

    refused(Story({"round": only(LOST_IN, lie)}), "FF-VERI-009")


@pytest.mark.parametrize("weight", [SPEC.round_tokens + 1, 10 * SPEC.round_tokens])
def test_a_weight_above_the_members_is_refused(weight: int) -> None:
    """The peer committed to it, and is paid for it."""
    lie = {"weight": lambda truth, peer, round: weight if (peer, round) == (B, 2) else truth}
    refused(Story(lie), "FF-VERI-016")


@pytest.mark.parametrize("weight", [0, -1, 2**64 - 1])
def test_a_weight_that_cannot_be_merged_opens_nothing(weight: int) -> None:
    def lie(record: Accepted) -> Accepted:
        return replace(record, contributions=(replace(record.contributions[0], weight=weight),))

    story = Story({"accepted": only(2, lie), "progress": only(2, lambda op: replace(op, units=()))})
    refused(story, "FF-VERI-015")


LISTS = [
    ("round", "members"),
    ("committed", "commitments"),
    ("accepted", "contributions"),
    ("closed", "signatures"),
]


@pytest.mark.parametrize(("point", "field"), LISTS)
@pytest.mark.parametrize("order", [lambda x: (*x, x[-1]), lambda x: x[::-1]], ids=["twice", "reversed"])
def test_a_list_that_names_a_peer_twice_or_out_of_order_is_refused(
    point: str, field: str, order: Lie
) -> None:
    lie = only(2, lambda record: replace(record, **{field: order(getattr(record, field))}))
    refused(Story({point: lie}), "FF-VERI-014")


def test_a_commitment_of_a_stranger_is_refused() -> None:
    def lie(record: Committed) -> Committed:
        stranger = commit(STRANGER, Story().terms.id, 1, OTHER, 1)
        return replace(
            record, commitments=tuple(sorted((*record.commitments, stranger), key=lambda c: c.peer))
        )

    refused(Story({"committed": only(1, lie)}), "FF-VERI-013")


def test_a_commitment_that_its_peer_did_not_sign_is_refused() -> None:
    """The coordinator makes up the commitment of a peer that it then says was lost."""

    def lie(record: Committed) -> Committed:
        forged = replace(record.commitments[2], signature=commit(REQUESTER, OTHER, 1, OTHER, 1).signature)
        return replace(record, commitments=(*record.commitments[:2], forged))

    refused(Story({"committed": only(LOST_IN, lie)}), "FF-VERI-013")


@pytest.mark.parametrize("when", [0, 2])
def test_a_commitment_to_another_round_is_refused(when: int) -> None:
    def lie(record: Committed) -> Committed:
        old = commit(PEERS[2], Story().terms.id, when, OTHER, 1)
        return replace(record, commitments=(*record.commitments[:2], old))

    refused(Story({"committed": only(LOST_IN, lie)}), "FF-VERI-013")


def with_another_payload(story_of: dict[str, Story], peer: PeerId) -> Lie:
    """The coordinator replaces a peer's payload by a genuine one of its own making."""

    def lie(record: Accepted) -> Accepted:
        story = story_of["it"]
        payload = story.encoded(peer, record.round, salt=1)
        story.payloads[payload_hash(payload)] = payload
        mine = {"payload": payload_hash(payload), "object": object_of(payload)}
        return replace(
            record,
            contributions=tuple(replace(c, **mine) if c.peer == peer else c for c in record.contributions),
        )

    return lie


class Told(Story):
    """A story whose lies may look at it."""

    def __init__(self, make: Callable[[dict[str, Story]], dict[str, Lie]]) -> None:
        story_of: dict[str, Story] = {"it": self}
        super().__init__(make(story_of))


@pytest.mark.parametrize("round", [0, 1, 2])
def test_a_payload_that_was_not_committed_is_refused(round: int) -> None:
    refused(Told(lambda story: {"accepted": only(round, with_another_payload(story, A))}), "FF-VERI-015")


def test_a_contribution_of_a_member_that_did_not_commit_is_refused() -> None:
    def lie(record: Committed) -> Committed:
        return replace(record, commitments=record.commitments[:1])

    refused(Story({"committed": only(2, lie)}), "FF-VERI-015")


def test_payloads_that_were_swapped_between_peers_are_refused() -> None:
    def lie(record: Accepted) -> Accepted:
        a, b = record.contributions
        swapped = (
            replace(a, payload=b.payload, object=b.object),
            replace(b, payload=a.payload, object=a.object),
        )
        return replace(record, contributions=swapped)

    refused(Story({"accepted": only(2, lie)}), "FF-VERI-015")


def test_a_payload_committed_by_two_is_refused() -> None:
    """A copies B's payload with B's consent: it is bound to its maker."""

    def make(story_of: dict[str, Story]) -> dict[str, Lie]:
        return {
            "payload": lambda truth, peer, round: story_of["it"].encoded(B, round) if peer == A else truth
        }

    refused(Told(make), "FF-COMP-009")


@pytest.mark.parametrize("payload", [b"", b"\x00" * 400, b"FFC1"])
def test_a_payload_that_is_none_is_refused(payload: bytes) -> None:
    story = Story({"payload": lambda truth, peer, round: payload if (peer, round) == (B, 1) else truth})
    with pytest.raises(VerificationError, match="FF-COMP-0"):
        verify_run(story.export())


def test_a_stored_payload_that_is_not_the_accepted_one_is_refused() -> None:
    story = Story()
    name = story.records[3].contributions[0].payload  # type: ignore[union-attr]
    story.payloads[name] = story.encoded(A, 0, salt=1)
    refused(story, "FF-VERI-019")


def test_a_round_that_accepts_nothing_is_refused() -> None:
    refused(Story({"accepted": only(2, lambda record: replace(record, contributions=()))}), "FF-VERI-017")


# Signatures under the root


def signed_too(*keys: Any) -> Lie:
    def lie(record: Closed) -> Closed:
        more = tuple((k.public, sign_root(k, Story().terms.id, record.round, record.root)) for k in keys)
        return replace(record, signatures=tuple(sorted((*record.signatures, *more))))

    return lie


@pytest.mark.parametrize("key", [STRANGER, REQUESTER, PEERS[-1]], ids=["stranger", "requester", "lost peer"])
def test_a_root_signed_by_who_took_no_part_is_refused(key: Any) -> None:
    refused(Story({"closed": only(LOST_IN, signed_too(key))}), "FF-VERI-018")


@pytest.mark.parametrize("about", ["round", "root", "job"])
def test_a_signature_under_something_else_is_refused(about: str) -> None:
    def lie(record: Closed) -> Closed:
        job = OTHER if about == "job" else Story().terms.id
        round, root = record.round + (about == "round"), OTHER if about == "root" else record.root
        forged = (A, sign_root(PEERS[0], job, round, root))
        return replace(record, signatures=(forged, *record.signatures[1:]))

    refused(Story({"closed": only(2, lie)}), "FF-VERI-018")


# The helpers tell the truth


def test_the_story_is_signed_by_those_who_are_in_it() -> None:
    story = Story()
    committed, accepted = story.records[2], story.records[3]
    assert isinstance(committed, Committed)
    assert isinstance(accepted, Accepted)
    for commitment, c in zip(committed.commitments, accepted.contributions, strict=True):
        assert is_commitment(commitment, story.terms.id, 0)
        assert opens(c, commitment, story.terms.id, 0)
        assert isinstance(c, Contribution)
        assert c.nonce == nonce_of(KEYS[c.peer], story.terms.id, 0)

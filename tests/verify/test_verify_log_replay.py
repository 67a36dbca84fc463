"""The second reader and a coordinator that lies about rounds: who takes part, what counts, who signed.

One case for each check of verify.log_replay behind those of the log as a whole (test_verify_reader).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from verify_story import LOST_IN, PEERS, REQUESTER, SPEC, STRANGER, Story, object_of, replace

from farflung.core.crypto import digest
from farflung.core.errors import VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.train.run_log import (
    AcceptSetRecord,
    CommitmentsRecord,
    RoundEndRecord,
    RoundMember,
    RoundStartRecord,
    payload_hash,
)
from farflung.verify.commitment_check import commit, sign_root
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


# Who takes part, and how much


@pytest.mark.parametrize("changed", [{"steps": 4}, {"density": 15}])
def test_a_round_of_other_length_or_density_is_refused(changed: dict[str, int]) -> None:
    refused(Story({"round": only(1, lambda record: replace(record, **changed))}), "FF-VERI-010")


@pytest.mark.parametrize("weight", [SPEC.round_tokens + 1, 0, -1])
def test_a_member_that_may_weigh_more_than_it_trains_on_or_nothing_is_refused(weight: int) -> None:
    def lie(record: RoundStartRecord) -> RoundStartRecord:
        return replace(record, members=(*record.members[:2], RoundMember(record.members[2].peer, weight)))

    refused(Story({"round": only(LOST_IN, lie)}), "FF-VERI-009")


@pytest.mark.parametrize("weight", [SPEC.round_tokens + 1, 10 * SPEC.round_tokens])
def test_a_weight_above_the_members_is_refused(weight: int) -> None:
    """The peer committed to it, and is paid for it."""
    lie = {"weight": lambda truth, peer, round: weight if (peer, round) == (B, 2) else truth}
    refused(Story(lie), "FF-VERI-016")


@pytest.mark.parametrize("weight", [0, -1, 2**64 - 1])
def test_a_weight_that_cannot_be_merged_opens_nothing(weight: int) -> None:
    def lie(record: AcceptSetRecord) -> AcceptSetRecord:
        return replace(record, contributions=(replace(record.contributions[0], weight=weight),))

    story = Story({"accepted": only(2, lie), "progress": only(2, lambda op: replace(op, units=()))})
    refused(story, "FF-VERI-015")


LISTS = [("round", "members"), ("committed", "commitments"), ("accepted", "contributions"), ("closed", "signatures")]


@pytest.mark.parametrize(("point", "field"), LISTS)
@pytest.mark.parametrize("order", [lambda x: (*x, x[-1]), lambda x: x[::-1]], ids=["twice", "reversed"])
def test_a_list_that_names_a_peer_twice_or_out_of_order_is_refused(point: str, field: str, order: Lie) -> None:
    lie = only(2, lambda record: replace(record, **{field: order(getattr(record, field))}))
    refused(Story({point: lie}), "FF-VERI-014")


def test_a_commitment_of_a_stranger_is_refused() -> None:
    def lie(record: CommitmentsRecord) -> CommitmentsRecord:
        stranger = commit(STRANGER, Story().terms.id, 1, OTHER, 1, OTHER)
        return replace(record, commitments=tuple(sorted((*record.commitments, stranger), key=lambda c: c.peer)))

    refused(Story({"committed": only(1, lie)}), "FF-VERI-013")


def test_a_commitment_that_its_peer_did_not_sign_is_refused() -> None:
    """The coordinator makes up the commitment of a peer that it then says was lost."""

    def lie(record: CommitmentsRecord) -> CommitmentsRecord:
        forged = replace(record.commitments[2], signature=commit(REQUESTER, OTHER, 1, OTHER, 1, OTHER).signature)
        return replace(record, commitments=(*record.commitments[:2], forged))

    refused(Story({"committed": only(LOST_IN, lie)}), "FF-VERI-013")


@pytest.mark.parametrize("when", [0, 2])
def test_a_commitment_to_another_round_is_refused(when: int) -> None:
    def lie(record: CommitmentsRecord) -> CommitmentsRecord:
        old = commit(PEERS[2], Story().terms.id, when, OTHER, 1, OTHER)
        return replace(record, commitments=(*record.commitments[:2], old))

    refused(Story({"committed": only(LOST_IN, lie)}), "FF-VERI-013")


def with_another_payload(story_of: dict[str, Story], peer: PeerId) -> Lie:
    """The coordinator replaces a peer's payload by a genuine one of its own making."""

    def lie(record: AcceptSetRecord) -> AcceptSetRecord:
        story = story_of["it"]
        payload = story.encoded(peer, record.round, salt=1)
        story.payloads[payload_hash(payload)] = payload
        mine = {"payload": payload_hash(payload), "object": object_of(payload)}
        return replace(
            record, contributions=tuple(replace(c, **mine) if c.peer == peer else c for c in record.contributions)
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
    def lie(record: CommitmentsRecord) -> CommitmentsRecord:
        return replace(record, commitments=record.commitments[:1], promised=record.promised[:1])

    refused(Story({"committed": only(2, lie)}), "FF-VERI-015")


def test_payloads_that_were_swapped_between_peers_are_refused() -> None:
    def lie(record: AcceptSetRecord) -> AcceptSetRecord:
        a, b = record.contributions
        swapped = (replace(a, payload=b.payload, object=b.object), replace(b, payload=a.payload, object=a.object))
        return replace(record, contributions=swapped)

    refused(Story({"accepted": only(2, lie)}), "FF-VERI-015")


def test_a_payload_committed_by_two_is_refused() -> None:
    """A copies B's payload with B's consent: it is bound to its maker."""

    def make(story_of: dict[str, Story]) -> dict[str, Lie]:
        return {"payload": lambda truth, peer, round: story_of["it"].encoded(B, round) if peer == A else truth}

    refused(Told(make), "FF-COMP-009")


@pytest.mark.parametrize("payload", [b"", b"\x00" * 400, b"FFC1"])
def test_a_payload_that_is_none_is_refused(payload: bytes) -> None:
    story = Story({"payload": lambda truth, peer, round: payload if (peer, round) == (B, 1) else truth})
    with pytest.raises(VerificationError, match="FF-COMP-0"):
        verify_run(story.export())


def test_a_stored_payload_that_is_not_the_accepted_one_is_refused() -> None:
    story = Story()
    name = story.records[4].contributions[0].payload  # type: ignore[union-attr]
    story.payloads[name] = story.encoded(A, 0, salt=1)
    refused(story, "FF-VERI-019")


def test_a_round_that_accepts_nothing_is_refused() -> None:
    refused(Story({"accepted": only(2, lambda record: replace(record, contributions=()))}), "FF-VERI-017")


# Signatures under the root


def signed_too(*keys: Any) -> Lie:
    def lie(record: RoundEndRecord) -> RoundEndRecord:
        more = tuple((k.public, sign_root(k, Story().terms.id, record.round, record.root)) for k in keys)
        return replace(record, signatures=tuple(sorted((*record.signatures, *more))))

    return lie


@pytest.mark.parametrize("key", [STRANGER, REQUESTER, PEERS[-1]], ids=["stranger", "requester", "lost peer"])
def test_a_root_signed_by_who_took_no_part_is_refused(key: Any) -> None:
    refused(Story({"closed": only(LOST_IN, signed_too(key))}), "FF-VERI-018")


@pytest.mark.parametrize("about", ["round", "root", "job"])
def test_a_signature_under_something_else_is_refused(about: str) -> None:
    def lie(record: RoundEndRecord) -> RoundEndRecord:
        job = OTHER if about == "job" else Story().terms.id
        round, root = record.round + (about == "round"), OTHER if about == "root" else record.root
        forged = (A, sign_root(PEERS[0], job, round, root))
        return replace(record, signatures=(forged, *record.signatures[1:]))

    refused(Story({"closed": only(2, lie)}), "FF-VERI-018")


@pytest.mark.parametrize("image", ["any", "mine"])
def test_terms_that_name_an_image_otherwise_than_the_job_asks_are_refused(image: str) -> None:
    asked = replace(SPEC, network=replace(SPEC.network, image=image))
    told = Hash(bytes(32)) if image == "mine" else OTHER
    refused(Story({"terms": lambda terms: replace(terms, image=told)}, spec=asked), "FF-VERI-146")


def test_submissions_that_name_what_their_lease_does_not_are_counted_and_not_refused() -> None:
    """A node that was changed since it took its lease says so."""

    def lie(record: AcceptSetRecord) -> AcceptSetRecord:
        first, *others = record.contributions
        return replace(record, contributions=(replace(first, attests=OTHER), *others))

    honest, changed = verify_run(Story().export()), verify_run(Story({"accepted": only(1, lie)}).export())
    assert (honest.attested, changed.attested) == (honest.commitments, honest.commitments - 1)

"""A verifier that guesses, one that is not sure, and those who would rob one that looked (docs/protocol/ledger.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_canary import (
    END,
    PLANTING,
    SEGMENT,
    SEGMENTS,
    SOURCE,
    WEIGHT,
    borders,
    found,
    leaves_of,
    perjury,
    plant,
    sign_plant,
    signed_plant,
)
from ledger_world import (
    BOND,
    DISPUTE,
    EVIDENCE,
    JOB,
    NODES,
    NONCE,
    OTHER_JOB,
    PARAMS,
    PAYLOAD,
    REQUESTER,
    ROOTS,
    VALIDATOR,
    VERIFIERS,
    World,
)
from msgspec.structs import replace

from farflung.core import limits, merkle
from farflung.core.canon.program import CanonicalProgram
from farflung.core.codec import encode
from farflung.core.commitments import BorderRoots
from farflung.core.ids import Signature
from farflung.ledger import canaries, transactions
from farflung.ledger.disputes import DisputeAnswer, JuryVote
from farflung.ledger.pinpoint_game import Challenge

A, B, _ = NODES
V, W = VERIFIERS
DISPUTED = replace(PARAMS, dispute_ms=DISPUTE, bond_min=BOND)


def audited() -> World:
    return World().watched()


def refused(world: World, op: transactions.JobPerjury, about: str = "") -> None:
    """As no canary, for this reason; nobody loses anything."""
    before = world.state
    assert world.do(REQUESTER, op) == "FF-LEDG-389"
    assert about in canaries.fault(op.canary, world.chain, op.job)
    assert world.lease(V).is_open
    world.state = before


# Who guesses, and who is not sure


def test_who_says_that_planted_work_holds_loses_its_stake() -> None:
    world = audited()
    assert world.do(REQUESTER, perjury(world, V, A)) == "ok"
    assert (world.lease(V).slashed, world.node(V).burnt) == (50, 25)


@pytest.mark.parametrize("excess", [0, 1000, 1001, 2000, 2001, 10**9])
def test_its_word_counts_and_not_the_distance_that_it_made_up(excess: int) -> None:
    world = audited()
    assert world.do(REQUESTER, perjury(world, V, A, excess=excess)) == "ok"


@pytest.mark.parametrize(
    "finding",
    [transactions.VerdictFinding.FALSE, transactions.VerdictFinding.UNPAID, transactions.VerdictFinding.WITHHELD],
)
def test_who_found_it_false_or_was_not_sure_is_punished_for_nothing(finding: transactions.VerdictFinding) -> None:
    world = audited()
    for sender in (REQUESTER, A):
        assert world.do(sender, perjury(world, V, A, finding=finding, excess=1500)) == "FF-LEDG-390"
    assert world.lease(V).is_open


def test_a_verdict_that_is_changed_afterwards_is_nobodys() -> None:
    world = audited()
    said = found(world, V, A, None, finding=transactions.VerdictFinding.FALSE)
    forged = replace(said.verdict, verdict=replace(said.verdict.verdict, finding=transactions.VerdictFinding.HOLDS))
    refused(world, transactions.JobPerjury(JOB, replace(said, verdict=forged)), "did not sign the verdict")


# Whoever would rob a verifier that looked


def test_what_a_node_had_really_committed_to_is_no_plant() -> None:
    """The verifier said of the true trace that it holds, and it does."""
    world = audited()
    made = plant(A)
    refused(world, perjury(world, V, A, made, trace=made.trace), "another trace")
    rows = borders()
    rows[SOURCE] = replace(rows[SOURCE], params=rows[END].params)  # then nothing has to be changed
    twice = signed_plant(A, rows)
    assert canaries.planted_root(twice) == twice.trace
    refused(world, perjury(world, V, A, twice), "same weights")


def test_nor_is_a_commitment_signed_as_one_a_plant() -> None:
    world = audited()
    made = plant(A)
    promised = replace(made, signature=made.truth.signature, nonce=made.truth.nonce)
    refused(world, perjury(world, V, A, promised), "did not sign the planted trace")
    planted_twice = replace(made, truth=replace(made.truth, signature=made.signature, nonce=PLANTING))
    refused(world, perjury(world, V, A, planted_twice), "did not sign the true trace")


def test_a_verdict_on_the_true_end_is_none_on_the_plant() -> None:
    """Of another segment, round, job, chain or node; each as it was signed."""
    world = audited()
    world.do(REQUESTER, world.create(OTHER_JOB, escrow=100))
    for change in (
        {"segment": SEGMENT + 1},
        {"segment": SEGMENTS},
        {"round": 1},
        {"node": B.public},
        {"chain": ROOTS[0]},
        {"job": OTHER_JOB},
        {"trace": PAYLOAD},
    ):
        refused(world, replace(perjury(world, V, A, None, **change), job=JOB))
    elsewhere = plant(A, job=OTHER_JOB)
    refused(world, perjury(world, V, A, elsewhere), "did not sign the true trace")


def test_another_verifiers_verdict_is_its_own() -> None:
    world = audited()
    said = found(world, W, A)
    named = replace(said.verdict, verdict=replace(said.verdict.verdict, verifier=V.public))
    refused(world, transactions.JobPerjury(JOB, replace(said, verdict=named)))
    refused(world, transactions.JobPerjury(JOB, found(world, V, A, signed_plant(A, borders(), signer=W))))


def test_the_requester_cannot_plant_in_the_name_of_a_node() -> None:
    world = audited()
    made = plant(A)
    forged = sign_plant(REQUESTER, made, A)
    for wrong in (forged, replace(made, signature=forged.signature), replace(made, truth=forged.truth)):
        refused(world, perjury(world, V, A, wrong), "did not sign")


@pytest.mark.parametrize("source", [0, 1, 4, 5])
def test_which_border_is_shown_is_nobodys_choice(source: int) -> None:
    world = audited()
    refused(world, perjury(world, V, A, signed_plant(A, borders(), source=source)), "is not border")


def test_borders_of_two_traces_are_no_plant() -> None:
    world = audited()
    rows, others = borders(), borders(work=b"other")
    whole = signed_plant(A, rows)
    for name, border in (("end", others[END]), ("source", others[SOURCE])):
        refused(world, perjury(world, V, A, sign_plant(A, replace(whole, **{name: border}), A)), "committed")
    mixed = replace(whole, leaves=leaves_of(others), end=others[END], source=others[SOURCE])
    refused(world, perjury(world, V, A, sign_plant(A, mixed, A)), "leaves are not")


def test_leaves_that_are_swapped_are_no_trace() -> None:
    world = audited()
    whole = plant(A)
    leaves = list(whole.leaves)
    leaves[0], leaves[4] = leaves[4], leaves[0]
    refused(world, perjury(world, V, A, sign_plant(A, replace(whole, leaves=tuple(leaves)), A)), "leaves are")
    leaves = list(whole.leaves)
    leaves[END], leaves[SOURCE] = leaves[SOURCE], leaves[END]
    refused(world, perjury(world, V, A, sign_plant(A, replace(whole, leaves=tuple(leaves)), A)), "committed")


def test_work_of_no_steps_or_of_no_change_proves_nothing() -> None:
    """Weights may stand still: then what is shown is true."""
    world = audited()
    for change, about in (({"steps": 8}, "same steps"), ({"params": borders()[END].params}, "same weights")):
        rows = borders()
        rows[SOURCE] = replace(rows[SOURCE], **change)
        refused(world, perjury(world, V, A, signed_plant(A, rows)), about)


@pytest.mark.parametrize("segments", [1, 2, 3, 65])
def test_a_round_of_too_few_or_too_many_segments_has_no_canary(segments: int) -> None:
    world = audited()
    rows = borders(segments=segments)
    made = signed_plant(A, rows, 0, source=segments)
    op = perjury(world, V, A, made, segment=0)
    refused(world, op, "no segment")


@pytest.mark.parametrize("segment", [SEGMENTS, SEGMENTS + 1, 2**62])
def test_what_is_no_border_is_the_end_of_no_segment(segment: int) -> None:
    """A node may have committed to anything in the place of its statistics."""
    world, rows = audited(), borders()
    leaves, end = [*leaves_of(rows)], replace(rows[END], index=segment + 1)
    if end.index < len(leaves):
        leaves[end.index] = merkle.leaf_hash(end.index, encode(end))
    source = rows[canaries.source_of(segment, SEGMENTS)] if segment <= SEGMENTS + 1 else rows[SOURCE]
    trace = merkle.root_of_hashes(leaves)
    bare = replace(plant(A), leaves=tuple(leaves), trace=trace, end=end, source=source)
    made = sign_plant(A, bare, A) if end.index < len(leaves) else bare
    trace = canaries.planted_root(made) if end.index < len(leaves) else trace
    op = transactions.JobPerjury(
        JOB, transactions.Canary(made, found(world, V, A, None, segment=segment, trace=trace).verdict)
    )
    refused(world, op, "no segment")


def test_borders_of_another_round_are_not_this_ones() -> None:
    world = audited()
    rows = [*borders()]
    for place in (END, SOURCE):
        mixed = [*rows]
        mixed[place] = replace(rows[place], round=1)
        refused(world, perjury(world, V, A, signed_plant(A, mixed)), "of round 1")


Place = tuple[str, ...]


def places(value: Any, at: Place = ()) -> list[Place]:
    """Where numbers and bytes stand in a struct."""
    if isinstance(value, int | bytes):
        return [at]
    names = getattr(value, "__struct_fields__", None) or tuple(map(str, range(len(value))))
    items = [getattr(value, name) for name in names] if hasattr(value, "__struct_fields__") else value
    return [place for name, item in zip(names, items, strict=True) for place in places(item, (*at, name))]


def changed(value: Any, at: Place, how: Callable[[Any], Any]) -> Any:
    if not at:
        return how(value)
    if isinstance(value, tuple):
        index = int(at[0])
        return (*value[:index], changed(value[index], at[1:], how), *value[index + 1 :])
    return replace(value, **{at[0]: changed(getattr(value, at[0]), at[1:], how)})


WORLD = audited()
SAID = perjury(WORLD, V, A)


@given(at=st.sampled_from(places(SAID.canary)), bit=st.integers(0, 7), byte=st.integers(0, 31))
def test_whatever_is_changed_of_a_canary_it_proves_nothing(at: Place, bit: int, byte: int) -> None:
    """Every number and every byte of it stands under a signature or a hash that is compared."""

    def flip(value: Any) -> Any:
        if isinstance(value, bytes):
            return bytes(b ^ (1 << bit) if i == byte else b for i, b in enumerate(value))
        return (
            transactions.VerdictFinding(value ^ 1)
            if isinstance(value, transactions.VerdictFinding)
            else value ^ (1 << bit)
        )

    assert canaries.fault(SAID.canary, WORLD.chain, JOB) == ""
    assert canaries.fault(changed(SAID.canary, at, flip), WORLD.chain, JOB) != ""


# A node that prepared for it


@pytest.mark.parametrize("segments", [4, 5, 6, 20, 64])
def test_a_border_that_lies_in_wait_is_false_in_as_many_segments_as_it_serves(segments: int) -> None:
    """Before anything is drawn, and whoever is drawn in one of the two that meet there is found out."""
    sources = [canaries.source_of(segment, segments) for segment in range(segments)]
    for segment, source in enumerate(sources):
        assert source not in (0, segment, segment + 1, segments)
        assert 0 < source < segments
    for lie in range(1, segments):
        serves = [segment for segment, source in enumerate(sources) if source == lie]
        assert not {lie - 1, lie} & set(serves)
        assert len(serves) <= 2


def lying() -> transactions.PlantedTrace:
    """The node's true end of SEGMENT waits as border SOURCE; its end is told a little wrong, within the tolerance."""
    rows = borders()
    true_end = rows[END].params
    rows[END] = replace(rows[END], params=ROOTS[0])
    rows[SOURCE] = replace(rows[SOURCE], params=true_end)
    return signed_plant(A, rows)


def test_what_hashes_do_not_show_a_jury_looks_at_where_there_is_one() -> None:
    """Without one the law believes the node's own commitment: the verifier loses what a worker could, too."""
    trusting, judged = audited(), World(DISPUTED).watched()
    assert trusting.do(A, perjury(trusting, V, A, lying())) == "ok"
    assert trusting.lease(V).slashed == 50
    assert judged.do(A, perjury(judged, V, A, lying())) == "ok"
    assert judged.do(V, DisputeAnswer(JOB, BOND, ROOTS[1])) == "ok"
    assert judged.do(VALIDATOR, JuryVote(JOB, V.public, False)) == "ok"
    assert (judged.lease(V).slashed, judged.lease(A).slashed) == (0, 100)


def test_that_a_friend_plants_for_oneself_costs_half_of_the_stake_at_least() -> None:
    world = audited()

    def wealth() -> int:
        return sum(world.balance(key) + world.node(key).stake for key in (V, A))

    before = wealth()
    assert world.do(A, perjury(world, V, A)) == "ok"
    assert before - wealth() == 25


# What a node planted is not held against it


def test_a_planted_trace_is_no_commitment_that_a_node_is_slashed_for() -> None:
    """Verifiers that found it false, as it is, cannot punish who was asked to plant it."""
    world = audited()
    made = plant(A)
    trace = canaries.planted_root(made)
    says: dict[str, Any] = {"trace": trace, "segment": SEGMENT, "excess": 9000}
    verdicts = tuple(world.verdict(key, A, **says) for key in VERIFIERS)
    for nonce, signature in ((made.nonce, made.signature), (made.truth.nonce, made.truth.signature)):
        claim = transactions.CommitmentOpening(PAYLOAD, WEIGHT, nonce, signature)
        assert world.do(REQUESTER, transactions.JobSlash(JOB, A.public, claim, verdicts, EVIDENCE)) == "FF-LEDG-055"
    assert world.lease(A).is_open


def test_nor_one_that_is_challenged() -> None:
    world = World(replace(DISPUTED, challenge_rounds=2)).watched()
    made = plant(A)
    about = (JOB, A.public, 0, SEGMENT, canaries.planted_root(made), PAYLOAD, WEIGHT)
    for nonce, signature in ((made.nonce, made.signature), (NONCE, made.truth.signature)):
        op = Challenge(*about, nonce, Signature(signature), ROOTS[0], CanonicalProgram(), 10_000)
        assert world.do(B, op) == "FF-LEDG-345"


@settings(max_examples=40)
@given(segments=st.integers(canaries.SEGMENTS_LEAST, limits.SEGMENTS), at=st.floats(0, 1, exclude_max=True))
def test_every_segment_of_every_round_that_is_long_enough_can_be_planted(segments: int, at: float) -> None:
    """Other weights and nothing else, in one leaf, of work of another length."""
    segment, rows = int(at * segments), borders(7, segments)
    made = signed_plant(A, rows, segment)
    assert canaries.plant_fault(made, JOB, A.public, 7, segment) == ""
    shown = canaries.planted(made)
    assert shown.params in {row.params for row in rows if row.steps != shown.steps}
    rows[segment + 1] = shown
    assert canaries.planted_root(made) == merkle.root_of_hashes(leaves_of(rows)) != made.trace


def test_a_plant_is_the_true_trace_but_for_one_leaf() -> None:
    made = plant(A)
    rows = borders()
    shown: list[BorderRoots] = [*rows]
    shown[END] = replace(rows[END], params=rows[SOURCE].params)
    assert canaries.planted_root(made) == merkle.root_of_hashes(leaves_of(shown))
    assert canaries.planted(made) == shown[END]
    assert leaves_of(rows)[END] == merkle.leaf_hash(END, encode(rows[END]))

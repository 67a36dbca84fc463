"""Findings: from distances to what is signed, and from what is signed to pay and punishment."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.core.canon.program import CanonicalProgram
from farflung.core.crypto import digest, local_key
from farflung.core.errors import PolicyError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import AuditSpec, JobSpec, JobTerms, ModelSpec, SyncSpec, Tolerance
from farflung.ledger.rules.verifiers import quorum_of
from farflung.ledger.transactions import Verdict, VerdictFinding, sign_verdict
from farflung.train.run_log import AcceptSetRecord, AuditsRecord, CommitmentsRecord, Contribution, Record
from farflung.verify.audit_accounts import AuditAccounts, rerun_tokens
from farflung.verify.audit_verdict import EXCESS_CAP, AuditFinding, compare, conclude, finding_of, needs_another
from farflung.verify.tolerance import limit_of, tolerance_of

HOLDS, UNPAID, FALSE, WITHHELD = (
    VerdictFinding.HOLDS,
    VerdictFinding.UNPAID,
    VerdictFinding.FALSE,
    VerdictFinding.WITHHELD,
)
LAYOUT = TensorLayout.of({"a": (2,), "b": (3,)})
UNIT = 1 << 30
X, Y, Z = (PeerId(bytes([i]) * 32) for i in (1, 2, 3))
HASH = digest("test/judge/1")


# Tolerances


def test_a_limit_is_32_times_the_honest_distance_up_to_a_power_of_two(subtests: pytest.Subtests) -> None:
    for noise, limit in [
        (0.0, 2.0**-11),  # the floor of 4e-4, up to a power of two
        (7e-6, 2.0**-11),
        (2.0**-16, 2.0**-11),  # 32 times it is a power of two already
        (2.0**-16 + 1e-9, 2.0**-10),
        (5e-3, 2.0**-2),
        (1e-2, 2.0**-1),
        (1.01e-2, 0),
        (0.97, 0),
        (math.inf, 0),
        (math.nan, 0),
    ]:
        with subtests.test(noise=noise, limit=limit):
            assert limit_of(noise) == limit * UNIT


def test_small_differences_between_machines_give_the_same_terms() -> None:
    first = tolerance_of([("params", (5.7e-6, 0.9)), ("mean", (3e-3, 1e-4))])
    assert first == tolerance_of([("params", (4.9e-6, 0.8)), ("mean", (2.9e-3, 9.9e-5))])
    assert first.limits == (("params", (1 << 19, 0)), ("mean", (1 << 27, 1 << 22)))


def test_narrow_products_have_narrower_limits_or_nothing_nearer_were_seen() -> None:
    noise = [("params", (3e-3, 1e-6))]
    wide, narrow = (tolerance_of(noise, bits).limits[0][1] for bits in (32, 16))
    assert wide == (8 * narrow[0], narrow[1])


def test_a_model_whose_honest_work_is_nothing_but_noise_is_refused_with_numbers() -> None:
    with pytest.raises(PolicyError, match=r"FF-VERI-050.*0\.3"):
        tolerance_of([("params", (0.3, 0.9)), ("mean", (1e-6, 1e-6))])


# Distances


LIMITS = Tolerance((("params", (1 << 20, 0)), ("mean", (1 << 20, 1 << 22))))
TAU = 2.0**-10


def test_the_worst_tensor_decides(subtests: pytest.Subtests) -> None:
    for params, mean, excess in [
        ((0.0, 0.0), (0.0, 0.0), 0),
        ((TAU, 0.0), (0.0, 0.0), 1000),
        ((TAU * 1.0001, 0.0), (0.0, 0.0), 1001),
        ((0.0, 99.0), (0.0, 0.0), 0),  # a noise tensor
        ((0.0, 0.0), (0.0, 4 * TAU), 1000),
        ((TAU, 0.0), (3 * TAU, 0.0), 3000),
        ((math.nan, 0.0), (0.0, 0.0), EXCESS_CAP),
        ((math.inf, 0.0), (0.0, 0.0), EXCESS_CAP),
        ((1e9, 0.0), (0.0, 0.0), EXCESS_CAP),
        ((0.0,), (0.0, 0.0), EXCESS_CAP),
    ]:
        with subtests.test(params=params, mean=mean, excess=excess):
            assert compare(LIMITS, LAYOUT, {"params": params, "mean": mean}) == excess


@pytest.mark.parametrize("names", [("params",), ("params", "mean", "more"), ()])
def test_vectors_that_are_missing_or_too_many_lie_as_far_apart_as_can_be(names: tuple[str, ...]) -> None:
    assert compare(LIMITS, LAYOUT, dict.fromkeys(names, (0.0, 0.0))) == EXCESS_CAP


@pytest.mark.parametrize(
    ("excess", "encoding", "statistics", "found"),
    [
        (0, True, True, AuditFinding(HOLDS, 0)),
        (1000, True, True, AuditFinding(HOLDS, 1000)),
        (1001, True, True, AuditFinding(UNPAID, 1001)),
        (2000, True, True, AuditFinding(UNPAID, 2000)),
        (2001, True, True, AuditFinding(FALSE, 2001)),
        (0, False, True, AuditFinding(FALSE, EXCESS_CAP)),
        (0, True, False, AuditFinding(UNPAID, 0)),
        (5000, True, False, AuditFinding(FALSE, 5000)),
    ],
)
def test_a_finding_follows_from_what_was_seen(
    excess: int, encoding: bool, statistics: bool, found: AuditFinding
) -> None:
    told = finding_of(excess, encoding_ok=encoding, statistics_ok=statistics)
    assert told == found


# Conclusions


def verdict(verifier: PeerId, finding: VerdictFinding, node: PeerId = X, round: int = 0, segment: int = 0) -> Verdict:
    result = ZERO_HASH if finding is WITHHELD else HASH
    return Verdict(HASH, HASH, round, node, segment, HASH, verifier, finding, 0, result)


def test_two_must_agree_and_who_is_contradicted_by_them_is_discredited(subtests: pytest.Subtests) -> None:
    for said, finding, discredited in [
        ((HOLDS,), HOLDS, 0),
        ((UNPAID,), UNPAID, 0),
        ((FALSE,), UNPAID, 0),  # nobody confirmed it
        ((FALSE, FALSE), FALSE, 0),
        ((WITHHELD, WITHHELD), WITHHELD, 0),
        ((FALSE, WITHHELD), UNPAID, 0),  # of different things
        ((FALSE, WITHHELD, FALSE), FALSE, 0),
        ((FALSE, HOLDS), HOLDS, 1),
        ((WITHHELD, HOLDS), HOLDS, 1),
        ((FALSE, UNPAID), UNPAID, 0),
        ((FALSE, FALSE, HOLDS), FALSE, 1),
        ((FALSE, HOLDS, HOLDS), HOLDS, 1),
        ((WITHHELD, WITHHELD, HOLDS), WITHHELD, 0),  # it may have been shown to one alone
        ((WITHHELD, HOLDS, HOLDS), HOLDS, 1),
        ((FALSE, WITHHELD, HOLDS), UNPAID, 0),
        ((FALSE, FALSE, UNPAID), FALSE, 0),
        ((FALSE, UNPAID, UNPAID), UNPAID, 0),
        ((FALSE, UNPAID, HOLDS), HOLDS, 1),
    ]:
        with subtests.test(said=said, finding=finding, discredited=discredited):
            verdicts = [verdict(PeerId(bytes([i]) * 32), f) for i, f in enumerate(said)]
            for order in itertools.permutations(verdicts):
                concluded = conclude(order, 2, is_proven=True)
                assert concluded.finding is finding
                assert len(concluded.discredited) == discredited
                assert set(concluded.honoured) == {v.verifier for v in verdicts} - set(concluded.discredited)


def test_one_verifier_that_speaks_twice_has_one_voice() -> None:
    assert conclude([verdict(Y, FALSE), verdict(Y, FALSE)], 2, is_proven=True).finding is UNPAID


def test_the_only_verifier_of_a_job_decides() -> None:
    assert quorum_of(1) == 1
    assert conclude([verdict(Y, FALSE)], quorum_of(1), is_proven=True).is_guilty


@pytest.mark.parametrize(
    ("finding", "excess", "voices", "ends"),
    [
        (FALSE, 9000, 1, UNPAID),
        (FALSE, 9000, 2, FALSE),
        (FALSE, EXCESS_CAP, 1, UNPAID),
        (FALSE, EXCESS_CAP, 2, FALSE),
        (WITHHELD, 0, 1, UNPAID),
        (WITHHELD, 0, 2, WITHHELD),
    ],
)
def test_without_a_graph_one_verifier_convicts_nobody(
    finding: VerdictFinding, excess: int, voices: int, ends: VerdictFinding
) -> None:
    """As where its machine computes something else by the requester's module than honest providers do, or it lies."""
    said = [replace(verdict(PeerId(bytes([i]) * 32), finding), excess=excess) for i in range(voices)]
    assert conclude(said, quorum_of(voices), is_proven=False).finding is ends
    assert not needs_another(said, voices, is_proven=False)


def test_only_an_open_accusation_needs_another_verifier(subtests: pytest.Subtests) -> None:
    for said, hired, another in [
        ((FALSE,), 2, True),
        ((WITHHELD,), 2, True),
        ((FALSE,), 1, False),
        ((HOLDS,), 3, False),
        ((HOLDS, UNPAID), 3, False),
        ((FALSE, HOLDS), 2, False),
        ((FALSE, HOLDS), 3, True),
        ((FALSE, UNPAID), 3, True),
        ((FALSE, WITHHELD), 3, True),
        ((FALSE, FALSE), 3, False),
        ((HOLDS, UNPAID, FALSE), 9, False),
        ((FALSE, WITHHELD, HOLDS), 9, False),
    ]:
        with subtests.test(said=said, hired=hired, another=another):
            for order in itertools.permutations(said):
                assert needs_another([verdict(Y, f) for f in order], hired, is_proven=True) is another


# The tally


SPEC = JobSpec(
    batch=2, sync=SyncSpec(steps=5), audit=AuditSpec(segments=4), model=ModelSpec(context=64)
)  # 64 tokens of context, 4 segments: 1, 1, 1 and 2 steps


def contribution(peer: PeerId) -> Contribution:
    return Contribution(peer, 640, HASH, HASH, HASH, HASH, "none")


def audited(round: int, *verdicts: Verdict) -> AuditsRecord:
    key = local_key(1, "verifier")
    ordered = sorted(verdicts, key=lambda v: (v.node, v.verifier))
    return AuditsRecord(round, tuple(sign_verdict(key, v) for v in ordered))


NOWHERE = TensorLayout.of({"weight": (1,)})
TERMS = JobTerms(SPEC, HASH, HASH, NOWHERE, X, HASH, program=CanonicalProgram(graph=HASH), unproven="")
V, W = PeerId(b"\x11" * 32), PeerId(b"\x12" * 32)


def test_a_verifier_is_paid_for_the_steps_of_its_segment() -> None:
    found = [rerun_tokens(SPEC, verdict(V, HOLDS, segment=segment), SPEC.round_tokens) for segment in range(4)]
    assert found == [128, 128, 128, 256]
    assert rerun_tokens(SPEC, verdict(V, WITHHELD), SPEC.round_tokens) == 0


def test_units_are_those_of_good_work_and_of_honoured_verifiers() -> None:
    tally = AuditAccounts(TERMS, 2)
    all_of_them = [contribution(X), contribution(Y), contribution(Z)]
    first = audited(0, verdict(V, UNPAID), verdict(V, FALSE, Y), verdict(W, HOLDS, Y))
    assert tally.add(all_of_them, first, all_of_them) == {Y: 640, Z: 640, V: 128, W: 128}
    assert tally.discredited == {V}
    second = audited(1, verdict(V, FALSE, Z, 1), verdict(W, FALSE, Z, 1))
    assert tally.add(all_of_them, second, all_of_them) == {X: 640, Y: 640, V: 128, W: 128}
    assert (tally.guilty.keys(), tally.out) == ({Z}, {Z})
    assert tally.guilty[Z].round == 1
    assert tally.add(all_of_them, audited(2), all_of_them) == {X: 640, Y: 640}


SAID = st.dictionaries(st.sampled_from((X, Y, Z)), st.tuples(*[st.sampled_from((HOLDS, UNPAID, FALSE, WITHHELD))] * 2))


@given(st.lists(SAID, max_size=6), st.lists(st.integers(1, 5)))
def test_accounts_that_read_on_in_a_log_come_to_what_those_that_read_it_anew_do(
    rounds: list[dict[PeerId, tuple[VerdictFinding, ...]]], sizes: list[int]
) -> None:
    work = tuple(contribution(peer) for peer in (X, Y, Z))
    anew, read_on, units = AuditAccounts(TERMS, 2), AuditAccounts(TERMS, 2), {}
    records: list[Record] = []
    for round, said in enumerate(rounds):
        verdicts = [
            verdict(by, f, peer, round) for peer, both in said.items() for by, f in zip((V, W), both, strict=True)
        ]
        judged = audited(round, *verdicts)
        units[round] = anew.add(work[:2], judged, work)
        records += [CommitmentsRecord(round, (), work), AcceptSetRecord(round, work[:2]), judged]
    found: dict[int, dict[PeerId, int]] = {}
    left = records
    for size in [*sizes, len(records)]:
        found |= read_on.extend(left[:size])
        left = left[size:]
    assert (found, read_on.guilty, read_on.out, read_on.unpaid) == (units, anew.guilty, anew.out, anew.unpaid)
    assert (read_on.discredited, read_on.disqualified.found) == (anew.discredited, anew.disqualified.found)

"""What the terms fix before the first step, and the class of a job."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec.structs import asdict, replace

from farflung.core import limits
from farflung.core.canon.program import CanonicalProgram, job_id
from farflung.core.codec import decode, encode
from farflung.core.crypto import digest
from farflung.core.errors import ProtocolError, SpecError
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import TensorLayout
from farflung.job import proof_class
from farflung.job.job_loader import build, load
from farflung.job.keys import KEYS, TERM_KEYS, value_of
from farflung.job.spec import JobSpec, JobTerms, Tolerance
from farflung.job.spec_checks import check

GRAPH = digest("test/graph")
PROGRAM = CanonicalProgram(
    graph=GRAPH, values=3, judged=2, leaves=4, closing=2, rows=8, context=64, places=9, round_steps=20, segments=5,
    step_tokens=512,
)  # fmt: skip
TERMS = JobTerms(
    JobSpec(),
    digest("test/data"),
    digest("test/module"),
    TensorLayout.of({"w": (4,)}),
    PeerId(bytes(32)),
    digest("test/root"),
    stake=7,
    program=PROGRAM,
    unproven="",
)
OTHER = Hash(bytes(range(32)))

# What a worker could have chosen (issue "spec before work"), and where the terms fix it.
FIXED: dict[str, dict[str, Any]] = {
    "data": {"dataset": OTHER},
    "data order and seed": {"seed": 2},
    "rows of a step": {"batch": 9},
    "context": {"model.context": 65},
    "model": {"module": OTHER},
    "schedule": {"schedule.kind": "constant"},
    "warm-up": {"schedule.warmup": 31},
    "learning rate": {"optimizer.lr": 0.02},
    "initial weights": {"initial_root": OTHER},
    "dtype class": {"dtype": "float16"},
    "graph id": {"program": replace(PROGRAM, graph=OTHER)},
    "segment length, by steps": {"sync.steps": 21},
    "segment length, by segments": {"audit.segments": 3},
    "audit rate": {"audit.rate": 0.5},
    "probation": {"audit.probation": 3},
    "tolerances": {"tolerance": Tolerance((("params", (1,)),))},
    "stake": {"stake": 8},
    "class that was asked for": {"audit.proof": "proven"},
    "why it is not proven": {"unproven": "another reason"},
}


def changed(changes: dict[str, Any]) -> JobTerms:
    """TERMS with fields of the terms, or keys of the job, set otherwise."""
    own = {name: value for name, value in changes.items() if name in JobTerms.__struct_fields__}
    keys = {dotted: value_of(TERMS.spec, dotted) for dotted in TERM_KEYS}
    keys |= {name: value for name, value in changes.items() if name in TERM_KEYS and name not in own}
    return replace(TERMS, spec=build(keys), **own)


def test_nothing_that_a_worker_could_choose_is_outside_of_the_job_id(subtests: pytest.Subtests) -> None:
    for what in FIXED:
        with subtests.test(what=what):
            assert changed(FIXED[what]).id != TERMS.id


def test_every_key_of_a_job_and_every_field_of_its_terms_is_under_its_id() -> None:
    def other(value: Any, kind: Any) -> Any:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int | float):
            return value + 1
        if isinstance(value, tuple):
            return ("x",)
        return next((each for each in get_args(kind) if each != value), f"{value}x")

    keys = {dotted: KEYS[dotted] for dotted in TERM_KEYS}
    ids = {changed({dotted: other(key.default, key.kind)}).id for dotted, key in keys.items()}
    assert len(ids | {TERMS.id}) == len(keys) + 1
    assert set(asdict(TERMS)) == {
        "spec", "dataset", "module", "layout", "requester", "initial_root", "tolerance", "lineage",
        "dtype", "stake", "program", "unproven", "image",
    }  # fmt: skip


def test_two_hashes_open_a_job_id_to_its_program_and_to_no_other() -> None:
    assert job_id(TERMS.rest, TERMS.program) == TERMS.id
    again = replace(TERMS, program=replace(PROGRAM, graph=OTHER))
    assert again.rest == TERMS.rest
    assert again.id != TERMS.id
    assert job_id(TERMS.rest, CanonicalProgram()) != TERMS.id


def test_terms_of_a_dtype_that_nobody_computes_in_are_no_terms() -> None:
    data = encode(changed({"dtype": "float16"}))
    with pytest.raises(ProtocolError, match="FF-CORE-021"):
        decode(data, JobTerms, limits.LOG_RECORD_BYTES)


def test_terms_that_do_not_fit_their_class_have_a_fault(subtests: pytest.Subtests) -> None:
    for changes, price, fault in [
        ({}, 1, ""),
        ({}, 10**12, ""),
        ({"program": CanonicalProgram(), "unproven": "no form"}, 10**7, ""),
        ({"program": CanonicalProgram(), "unproven": "no form"}, 10**7 + 1, "0.000010000001 credits a token"),
        ({"program": CanonicalProgram()}, 1, "says in a few words why"),
        ({"unproven": "no form"}, 1, "says in a few words why"),
        ({"program": CanonicalProgram(), "unproven": "x" * 301}, 1, "says in a few words why"),
        ({"program": CanonicalProgram(graph=GRAPH)}, 1, "out of bounds"),
        ({"program": replace(PROGRAM, leaves=0)}, 1, "out of bounds"),
        ({"program": CanonicalProgram(seed=5), "unproven": "no form"}, 1, "out of bounds"),
        ({"sync.method": "dgc"}, 1, "although sync.method = dgc"),
        ({"sync.fragments": 2}, 1, "although sync.fragments over 1"),
        ({"sync.delay": 1}, 1, "although sync.delay"),
        ({"numerics.compute": "bfloat16"}, 1, "although its products are in bfloat16"),
        ({"audit.proof": "outcome"}, 1, "although the job asks for no more"),
        ({"audit.rate": 0.0, "audit.probation": 0}, 1, "although none of its work is audited"),
        ({"audit.proof": "proven", "program": CanonicalProgram(), "unproven": "no form"}, 1, "asks to be proven"),
    ]:
        with subtests.test(changes=changes, price=price, fault=fault):
            found = proof_class.fault(changed(changes), price)
            assert found.startswith(fault) if not fault else fault in found
            assert bool(found) == bool(fault)


def test_the_class_is_said_in_words_with_its_reason() -> None:
    assert proof_class.label(TERMS) == "proven: each step can be checked down to one operation"
    said = proof_class.label(
        changed({"program": CanonicalProgram(), "unproven": "aten.sort has no form (m.py, line 3)"})
    )
    assert said == "outcome only: not verifiable step by step (aten.sort has no form (m.py, line 3))"
    unaudited = load(None, flags={"audit.rate": "0", "audit.probation": "0"}).spec
    assert proof_class.foreseen(unaudited) == "outcome only: not verifiable step by step (none of its work is audited)"
    assert (
        proof_class.foreseen(JobSpec())
        == "proven if its model can be traced, else outcome only: not verifiable step by step"
    )
    assert proof_class.foreseen(load(None, flags={"audit.proof": "proven"}).spec) == "proven, or refused"
    lone = load(None, flags={"audit.proof": "outcome", "network.verifiers": "1"}).spec
    assert proof_class.foreseen(lone).endswith("(the job asks for no more); its one verifier takes no stake")
    two = load(None, flags={"audit.proof": "outcome", "network.verifiers": "2"}).spec
    assert proof_class.foreseen(two).endswith("(the job asks for no more)")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"audit.proof": "proven", "audit.rate": "0", "audit.probation": "0"}, "audit.proof"),
        ({"audit.proof": "outcome", "unit_price": "0.000011"}, "unit_price"),
        ({"audit.rate": "0", "audit.probation": "0", "unit_price": "0.000011"}, "unit_price"),
        ({"audit.proof": "certain"}, "audit.proof"),
        ({"audit.proof": "proven", "numerics.compute": "bfloat16"}, "as its products are in bfloat16"),
    ],
)
def test_a_class_that_cannot_be_is_refused_when_the_job_is_read(flags: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        load(None, flags=flags)


def test_what_may_be_proven_may_cost_what_it_likes() -> None:
    check(load(None, flags={"unit_price": "0.5", "budget": "9000000"}).spec)
    check(load(None, flags={"audit.proof": "outcome", "unit_price": "0.00001"}).spec)

"""A private job names who may check it, by keys: `[audit] verifiers`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from farflung.core.errors import SpecError
from farflung.job import job_toml, proof_class
from farflung.job.job_loader import load
from farflung.job.spec import JobSpec, _hashed

A, B = "ab" * 32, "0c" * 32
LIST = f'verifiers = ["{A}", "{B}"]'


@pytest.mark.parametrize(
    ("text", "flags", "preset", "count"),
    [
        (f"[audit]\n{LIST}\n", {}, "local", 2),  # as many are hired as are named
        (f"[audit]\n{LIST.upper().replace('VERIFIERS', 'verifiers')}\n", {}, "tiny", 2),
        (f"[network]\nverifiers = 2\n[audit]\n{LIST}\n", {}, "local", 2),
        ("", {"audit.verifiers": f"{A}, {B}"}, "local", 2),
        (f"[audit]\n{LIST}\n", {"audit.verifiers": ""}, "local", 3),  # the market chooses again
    ],
)
def test_only_named_nodes_check(text: str, flags: dict[str, str], preset: str, count: int) -> None:
    resolved = load(text, flags=flags, preset=preset)
    spec = resolved.spec
    assert spec.network.verifiers == count
    assert [key.hex() for key in spec.named_verifiers] == ([A, B] if count == 2 else [])
    assert load("\n".join(job_toml.lines(resolved))).spec == spec
    assert (proof_class.known(spec) == proof_class.NAMED) is (count == 2)
    assert ("named the verifiers" in proof_class.foreseen(spec)) is (count == 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'[audit]\nverifiers = ["{A}", "{A.upper()}"]\n', "abababab is named twice"),
        ('[audit]\nverifiers = ["abc"]\n', '"abc" is none'),
        (f'[audit]\nverifiers = ["{"zz" * 32}"]\n', "64 hexadecimal digits"),
        (f"[network]\nverifiers = 1\n[audit]\n{LIST}\n", "network.verifiers = 1 keys, not 2"),
        (f"[network]\nverifiers = 3\n[audit]\n{LIST}\n", "network.verifiers = 3 keys, not 2"),
        (f"[audit]\nrate = 0.0\nprobation = 0\n{LIST}\n", "while nothing is audited"),
        (f"[audit]\ncanaries = 0.1\n{LIST}\n", "0 where audit.verifiers names who checks"),
        (f'[audit]\nproof = "proven"\n{LIST}\n', "named the verifiers"),
        (f'[audit]\nverifiers = "{A}"\n', "must be a list of texts"),
        ("[audit]\nverifiers = [1]\n", "must be a list of texts"),
    ],
)
def test_a_list_that_cannot_be_hired_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        load(text)
    assert said in f"{refused.value.message} {refused.value.cause}"


def test_a_job_that_names_nobody_has_the_id_that_it_always_had() -> None:
    spec = JobSpec()
    assert len(_hashed(spec)[13]) == 8
    named = replace(spec, audit=replace(spec.audit, verifiers=(A,)))
    assert _hashed(named) != _hashed(spec)

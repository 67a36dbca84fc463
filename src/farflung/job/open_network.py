"""Sets defaults of a job on others' computers: homes sleep, and one verifier may err or lie."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from farflung.job.job_loader import ResolvedJob

ORIGIN: Final = "default on others' computers"
QUORUM: Final = 0.75  # of a round's tokens: one home in four may sleep
PROVIDERS: Final = 3  # with more than these, a quorum leaves somebody out
VERIFIERS: Final = 2  # at least, so that no verdict is one computer's word

_QUORUM_KEY, _VERIFIERS_KEY = "churn.quorum", "network.verifiers"


def with_open_defaults(resolved: ResolvedJob) -> ResolvedJob:
    """The job with a quorum and a second verifier, where neither its file nor a flag names them."""
    spec, origins = resolved.spec, dict(resolved.origins)
    if origins[_QUORUM_KEY] == "default" and spec.network.providers > PROVIDERS:
        spec = replace(spec, churn=replace(spec.churn, quorum=QUORUM))
        origins[_QUORUM_KEY] = ORIGIN
    is_unsaid = origins[_VERIFIERS_KEY].startswith(("default", "preset"))
    if is_unsaid and spec.is_audited and spec.network.verifiers < VERIFIERS:
        spec = replace(spec, network=replace(spec.network, verifiers=VERIFIERS))
        origins[_VERIFIERS_KEY] = ORIGIN
    return replace(resolved, spec=spec, origins=origins)


def may_hire_fewer_verifiers(resolved: ResolvedJob) -> bool:
    """Whether the second verifier is this module's wish: a network without one runs the job with one."""
    return resolved.origins[_VERIFIERS_KEY] == ORIGIN

"""Decides the work class of a job: what can be proven of its work, and what a token of it may cost.

| class        | its terms              | what is said of the work                                            |
|--------------|------------------------|---------------------------------------------------------------------|
| proven       | name a program         | every segment can be checked, down to one operation                 |
| outcome only | name none, and say why | filters, tolerances of audits, loss probes: nothing is proven       |

A model outside the whitelist of operations (docs/protocol/canon) can still be trained, and so can one by a method whose
steps start from what nobody committed to, or in bfloat16; but what nobody can prove is worth less to cheat for: a token
of it costs at most OUTCOME_PRICE.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.canon.program import CanonicalProgram, is_sound
from farflung.core.money import format_credits, parse_credits
from farflung.job.methods.registry import method_of
from farflung.job.methods.sync_method import METHOD
from farflung.job.spec import JobSpec, JobTerms

OUTCOME_PRICE: Final = parse_credits("0.00001")  # a token: ten times what a job offers by default
OUTCOME_PROBE: Final = 512  # tokens of each loss probe at least, where nothing else is known of the work
PROBE_WINDOWS: Final = 8
PROBE_SHARE: Final = 16
ODDS: Final = 1 << 32  # a round is scored in so many of them
PROVEN: Final = "proven: each step can be checked down to one operation"
UNPROVEN: Final = "outcome only: not verifiable step by step"
ASKED: Final = "the job asks for no more"
NOT_AUDITED: Final = "none of its work is audited"
NAMED: Final = "its requester named the verifiers, and nothing is at stake"
LONE: Final = "its one verifier takes no stake"  # ledger.rules.slashes: without a graph two must agree


def known(spec: JobSpec) -> str:
    """Why a job is outcome only whatever its model is; the empty text: its model decides."""
    if spec.audit.verifiers:
        return NAMED
    if spec.audit.proof == "outcome":
        return ASKED
    return ungraphed(spec) if spec.is_audited else NOT_AUDITED


def ungraphed(spec: JobSpec) -> str:
    """Why no graph says what a step does: it follows from more than its border's weights and vectors, or rounds
    otherwise. Empty where one may.
    """
    if why := method_of(spec.sync.method).unproven:
        return f"{METHOD} = {spec.sync.method} {why}"
    if spec.sync.fragments > 1:
        return "sync.fragments over 1 starts from weights that nobody committed to"
    if spec.sync.delay > 0:
        return "sync.delay starts from weights that nobody committed to"
    compute = spec.numerics.compute
    return f"its products are in {compute}" if compute != "float32" else ""  # graphs have no casts


def foreseen(spec: JobSpec) -> str:
    """What a plan says of the class before the model is traced."""
    is_lone = spec.verifiers == 1 and may_be_outcome(spec) and not spec.audit.verifiers
    if why := known(spec):
        return f"{UNPROVEN} ({why})" + f"; {LONE}" * is_lone
    if spec.audit.proof == "proven":
        return "proven, or refused"
    return f"proven if its model can be traced, else {UNPROVEN}" + f", and {LONE}" * is_lone


class LossProbeConfig(NamedTuple):
    """How a job's contributions are scored: on so many windows, in so many of ODDS rounds, drawn one by one."""

    windows: int
    odds: int

    def tokens(self, contributions: int, context: int) -> int:
        """What a verifier is paid for the scores of a round: tokens read forward, three for one that is trained on."""
        return self.windows * (1 + 3 * contributions) * context // 3


def probe_of(spec: JobSpec, *, is_proven: bool) -> LossProbeConfig | None:
    """How each contribution's loss is measured (train.scores); None: it is not.

    Always in an outcome-only job that has verifiers; elsewhere where `audit.probe` asks for it. Fewer windows than
    PROBE_WINDOWS say nothing. To score a contribution takes about as long as to train on as many tokens as are looked
    at: where these are more than a PROBE_SHARE of its own, a share of the rounds is scored.
    """
    tokens = spec.audit.probe if is_proven else max(spec.audit.probe, OUTCOME_PROBE)
    if not (tokens and spec.verifiers):
        return None
    windows = max(PROBE_WINDOWS, tokens // spec.model.context)
    looked_at = PROBE_SHARE * windows * spec.model.context
    return LossProbeConfig(windows, min(ODDS, ODDS * spec.round_tokens // looked_at))


def may_be_outcome(spec: JobSpec) -> bool:
    """Whether a job can still turn out to be outcome only when its model is traced: a plan assumes it."""
    return bool(known(spec)) or (spec.audit.proof == "auto" and spec.model.kind == "module")


def label(terms: JobTerms) -> str:
    """The class in words, with the reason why it is no better."""
    return PROVEN if terms.is_proven else f"{UNPROVEN} ({terms.unproven})"


def fault(terms: JobTerms, unit_price: int) -> str:
    """What keeps terms from being of their class at this price (pico-credits a token), or the empty text."""
    if terms.is_proven != (terms.unproven == "") or len(terms.unproven) > limits.REASON_LENGTH:
        return "a job is proven, or says in a few words why it is not"
    if terms.is_proven and known(terms.spec):
        return f"a program is named, although {known(terms.spec)}"
    if terms.spec.audit.verifiers and (terms.stake or terms.unproven != NAMED):
        return f"a job that names its verifiers puts nothing at stake and says so, not: {terms.unproven}"
    if terms.program != CanonicalProgram() and not is_sound(terms.program):
        return "its program is out of bounds"
    if not terms.is_proven and terms.spec.audit.proof == "proven":
        return "it asks to be proven, and names no program"
    if not terms.is_proven and unit_price > OUTCOME_PRICE:
        price, most = format_credits(unit_price), format_credits(OUTCOME_PRICE)
        return f"{price} credits a token for work that is {UNPROVEN}; the most is {most}"
    return ""

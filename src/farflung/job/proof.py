"""The class of a job: what can be shown of its work, and what a token of it may cost.

| class        | its terms              | what is said of the work                                            |
|--------------|------------------------|---------------------------------------------------------------------|
| proven       | name a program         | every segment can be checked, down to one operation                 |
| outcome only | name none, and say why | filters, tolerances of audits, held-out loss: nothing is proven     |

A model outside the whitelist of operations (docs/protocol/canon) can still be trained, and so can one by a method whose
steps start from what nobody committed to; but what nobody can prove is worth less to cheat for: a token of it costs at
most OUTCOME_PRICE.
"""

from __future__ import annotations

from typing import Final

from farflung.core import limits
from farflung.core.canon.program import Program, is_sound
from farflung.core.money import Credits
from farflung.job.spec import JobSpec, Terms

OUTCOME_PRICE: Final = Credits(10)  # micro-credits a token: ten times what a job offers by default
PROVEN: Final = "proven: each step can be checked down to one operation"
UNPROVEN: Final = "outcome only: not proven"
ASKED: Final = "the job asks for no more"
NOT_AUDITED: Final = "none of its work is audited"


def known(spec: JobSpec) -> str:
    """Why a job is outcome only whatever its model is; the empty text: its model decides."""
    if spec.audit.proof == "outcome":
        return ASKED
    return hidden_start(spec) if spec.is_audited else NOT_AUDITED


def hidden_start(spec: JobSpec) -> str:
    """Why what a step does does not follow from its border's weights and vectors alone; empty where it does."""
    if spec.sync.method == "dgc":
        return "sync.method = dgc masks the momentum by what is unsent"
    if spec.sync.fragments > 1:
        return "sync.fragments over 1 starts from weights that nobody committed to"
    return "sync.delay starts from weights that nobody committed to" if spec.sync.delay > 0 else ""


def foreseen(spec: JobSpec) -> str:
    """What a plan says of the class before the model is traced."""
    if why := known(spec):
        return f"{UNPROVEN} ({why})"
    return (
        "proven, or refused"
        if spec.audit.proof == "proven"
        else f"proven if its model can be traced, else {UNPROVEN}"
    )


def label(terms: Terms) -> str:
    """The class in words, with the reason why it is no better."""
    return PROVEN if terms.is_proven else f"{UNPROVEN} ({terms.unproven})"


def fault(terms: Terms, unit_price: int) -> str:
    """What keeps terms from being of their class at this price (micro-credits a token), or the empty text."""
    if terms.is_proven != (terms.unproven == "") or len(terms.unproven) > limits.REASON_LENGTH:
        return "a job is proven, or says in a few words why it is not"
    if terms.is_proven and known(terms.spec):
        return f"a program is named, although {known(terms.spec)}"
    if terms.program != Program() and not is_sound(terms.program):
        return "its program is out of bounds"
    if not terms.is_proven and terms.spec.audit.proof == "proven":
        return "it asks to be proven, and names no program"
    if not terms.is_proven and unit_price > OUTCOME_PRICE:
        return f"{unit_price} micro-credits a token for work that is {UNPROVEN}; the most is {OUTCOME_PRICE}"
    return ""

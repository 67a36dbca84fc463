"""What a seat may still sign in a view after what it has signed there: rules 3, 4 and 5, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from farflung.ledger.votes import Kind


def may_notarize(cast: Iterable[Kind]) -> bool:
    """Rule 3: one NOTARIZE in a view, and none after NULLIFY."""
    return not {Kind.NOTARIZE, Kind.NULLIFY} & set(cast)


def may_nullify(cast: Iterable[Kind]) -> bool:
    """Rule 4: no NULLIFY after FINALIZE. A second one would say nothing new."""
    return not {Kind.NULLIFY, Kind.FINALIZE} & set(cast)


def may_finalize(cast: Iterable[Kind]) -> bool:
    """Rule 5: one FINALIZE in a view, and none after NULLIFY."""
    return not {Kind.NULLIFY, Kind.FINALIZE} & set(cast)

"""Decides which votes a seat may still sign in a view after its earlier ones.

It holds rules 3, 4 and 5, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from farflung.ledger.votes import VoteKind


def may_notarize(cast: Iterable[VoteKind]) -> bool:
    """Rule 3: one NOTARIZE in a view, and none after NULLIFY."""
    return not {VoteKind.NOTARIZE, VoteKind.NULLIFY} & set(cast)


def may_nullify(cast: Iterable[VoteKind]) -> bool:
    """Rule 4: no NULLIFY after FINALIZE. A second one would say nothing new."""
    return not {VoteKind.NULLIFY, VoteKind.FINALIZE} & set(cast)


def may_finalize(cast: Iterable[VoteKind]) -> bool:
    """Rule 5: one FINALIZE in a view, and none after NULLIFY."""
    return not {VoteKind.NULLIFY, VoteKind.FINALIZE} & set(cast)

"""Which two votes no honest seat signs both (docs/protocol/sdbft.md, "Accountability")."""

from __future__ import annotations

from farflung.ledger.votes import Kind, Vote


def is_conflict(first: Vote, second: Vote) -> bool:
    """Whether two votes of one seat prove a fault: they break rule 3, 4 or 5 of one view.

    NOTARIZE and NULLIFY in one view is what an honest seat may do.
    """
    if (first.chain, first.epoch, first.view) != (second.chain, second.epoch, second.view):
        return False
    if first.kind == second.kind:
        return first.block != second.block
    return {first.kind, second.kind} == {Kind.FINALIZE, Kind.NULLIFY}

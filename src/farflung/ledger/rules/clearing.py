"""Checks that the price of a schedule is one that the market may have set (docs/concepts/market.md).

For each role among the offers, over the asks that are in the nodes' rows at this block:

    one price for all that are hired; it is the ask of one node, the setter;
    the setter stands behind all of them in the order (ask, turn), or is the last of them itself.

So nobody is paid less than it asks, nobody is paid its own word where somebody is left over to set the price, and no
price is made up. Whether a cheaper setter was passed by is not asked: that would be optimality, and a search among all
asks at each replica. Of similarity and owners nothing is in a row: speeds are measured, and no measured quantity
enters a root.
"""

from __future__ import annotations

from collections.abc import Sequence

from farflung.core.errors import PolicyError
from farflung.core.ids import Hash, PeerId
from farflung.core.tie_break import rank
from farflung.ledger.ledger_state import StateDraft
from farflung.ledger.rules import exclusions, nodes
from farflung.ledger.transactions import ClearingPrice, JobSchedule, LeaseOffer


def check(draft: StateDraft, op: JobSchedule) -> None:
    """Codes: FF-LEDG-374 not one setter for each role, -375 no ask of its sets the price, -376 it stands before others.

    FF-LEDG-020 and -365 where the setter lends no longer, or is excluded.
    """
    roles = sorted({signed.offer.role for signed in op.offers})
    if [clearing.role for clearing in op.clearings] != roles:
        raise PolicyError("FF-LEDG-374", "a schedule names the setter of the price of each role, once and in order")
    for clearing in op.clearings:
        offers = [signed.offer for signed in op.offers if signed.offer.role == clearing.role]
        _check_price(draft, op.job, offers, clearing)


def _check_price(draft: StateDraft, job: Hash, offers: Sequence[LeaseOffer], clearing: ClearingPrice) -> None:
    ask, named = _ask(draft, clearing.setter), clearing.setter[:4].hex()
    if any(offer.unit_price != ask for offer in offers):
        prices = ", ".join(str(price) for price in sorted({offer.unit_price for offer in offers})[:3])
        raise PolicyError("FF-LEDG-375", f"node {named} asks {ask}, and does not set a price of {prices}")
    last = (ask, rank(job, clearing.setter))
    for offer in offers:
        own = _ask(draft, offer.node)
        if (own, rank(job, offer.node)) > last:
            who = offer.node[:4].hex()
            raise PolicyError("FF-LEDG-376", f"node {who} asks {own}, and stands behind {named}, who sets the price")


def _ask(draft: StateDraft, node: PeerId) -> int:
    """What a node asks for a unit, as it stands."""
    row = nodes.standing(draft, node)
    exclusions.check(draft, node)
    return row.unit_price

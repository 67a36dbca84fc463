"""Whose ask sets the price of a schedule in stories where all ask the same, and nobody is left over."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from farflung.core.ids import Hash, PeerId
from farflung.core.tie_break import rank
from farflung.ledger.transactions import ClearingPrice, JobSchedule, LeaseRole, SignedLeaseOffer


def scheduled(job: Hash, offers: Sequence[SignedLeaseOffer]) -> JobSchedule:
    """Takes offers of nodes that ask what they are paid: the last of each role, as this job draws them, sets it."""
    roles: dict[LeaseRole, list[PeerId]] = {}
    for signed in offers:
        roles.setdefault(signed.offer.role, []).append(signed.offer.node)
    last = {role: max(nodes, key=partial(rank, job)) for role, nodes in roles.items()}
    return JobSchedule(job, tuple(offers), tuple(ClearingPrice(role, last[role]) for role in sorted(last)))

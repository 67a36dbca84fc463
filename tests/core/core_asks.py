"""Whose ask sets the price of a schedule in stories where all ask the same, and nobody is left over."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from farflung.core.ids import Hash, PeerId
from farflung.core.turns import turn
from farflung.ledger.tx import Clearing, JobSchedule, Role, SignedOffer


def scheduled(job: Hash, offers: Sequence[SignedOffer]) -> JobSchedule:
    """Takes offers of nodes that ask what they are paid: the last of each role, as this job draws them, sets it."""
    roles: dict[Role, list[PeerId]] = {}
    for signed in offers:
        roles.setdefault(signed.offer.role, []).append(signed.offer.node)
    last = {role: max(nodes, key=partial(turn, job)) for role, nodes in roles.items()}
    return JobSchedule(job, tuple(offers), tuple(Clearing(role, last[role]) for role in sorted(last)))

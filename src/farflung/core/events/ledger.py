"""Defines the events of a ledger with several validators."""

from __future__ import annotations

from farflung.core.events.base import Event


class ValidatorKillEvent(Event, frozen=True, tag="validator-killed"):
    """One of several validators was ended after `round`, on purpose: to show that the others go on without it."""

    name: str
    round: int


class ChainComparisonEvent(Event, frozen=True, tag="chains-compared"):
    """So many validators hold one chain of `blocks` blocks; the one that is behind most has `least` of them."""

    validators: int
    blocks: int
    least: int

"""Splits work over many small sites with spare power, so that all end at once (P3).

A site runs its cards up to its spare power, those first that do most for a watt. A card may run a part of the time, so
what a site does is a linear programme with one bound, and that greedy order solves it (Dantzig 1957, fractional
knapsack). A card at a lower power limit loses less speed than power, so a site does at least this much. Each site's
share of the work is its share of the rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from farflung.advice.hardware.card import Card, FactorPrecision
from farflung.advice.hardware.number_checks import MOST_PRICE, MOST_WATTS, checked, whole
from farflung.core import limits
from farflung.core.errors import UsageError


class PowerSite(msgspec.Struct, frozen=True):
    """One owner's cards behind one meter.

    `spare_watts`: what may be drawn; None: not known, and then all cards are taken to run, which the share says.
    `base_watts`: what the machines draw beside their cards while any works. `hour`: the rent of a card for an hour;
    `kilowatt_hour`: what electricity costs the owner. Raises UsageError FF-PLAN-035 that names the field.
    """

    name: str
    cards: tuple[tuple[Card, int], ...]
    spare_watts: float | None = None
    base_watts: float = 0.0
    hour: float = 0.0
    kilowatt_hour: float = 0.0

    def __post_init__(self) -> None:
        for _, count in self.cards:
            whole(f"{self.name}: count", count, 0, 1 << 20)
        if self.spare_watts is not None:
            checked(f"{self.name}: spare_watts", self.spare_watts, 0.0, MOST_WATTS)
        checked(f"{self.name}: base_watts", self.base_watts, 0.0, MOST_WATTS)
        checked(f"{self.name}: hour", self.hour, 0.0, MOST_PRICE)
        checked(f"{self.name}: kilowatt_hour", self.kilowatt_hour, 0.0, MOST_PRICE)


class SiteShare(msgspec.Struct, frozen=True):
    """What one site does: FLOP/s, W drawn, cards at work (a part: of the time), and its share of all work.

    `unknown`: what was not known and is not in the figures: cards without watts, a site without spare power.
    """

    site: PowerSite
    rate: float
    watts: float
    busy: float
    share: float = 0.0
    unknown: tuple[str, ...] = ()


def alone(site: PowerSite, precision: FactorPrecision) -> SiteShare:
    """What a site does within its spare power, by the rates of data sheets or as measured.

    A card whose power is not known stays out where spare power is bounded: nobody can say that it keeps the bound.
    """
    known = [(card, count) for card, count in site.cards if count and card.power[0] is not None]
    dark = [(card, count) for card, count in site.cards if count and card.power[0] is None]
    unknown = [f"{card.name}: watts" for card, _ in dark]
    if site.spare_watts is None:
        unknown.append("spare power")
        known, left = known + dark, math.inf
    else:
        left = max(0.0, site.spare_watts - site.base_watts)
    rate = watts = busy = 0.0
    for card, count in sorted(known, key=lambda one: _worth(one[0], precision), reverse=True):
        flops, draw = card.rate(precision).flops, card.power[0] or 0.0
        run = min(float(count), left / draw) if draw else float(count)
        rate, watts, busy = rate + run * flops, watts + run * draw, busy + run
        left = max(0.0, left - run * draw)
    return SiteShare(site, rate, watts + (site.base_watts if busy else 0.0), busy, unknown=tuple(unknown))


def _worth(card: Card, precision: FactorPrecision) -> float:
    """FLOP a joule: the order in which cards are given power."""
    watts = card.power[0]
    return card.rate(precision).flops / watts if watts else 0.0


def spread(sites: Sequence[PowerSite], precision: FactorPrecision = FactorPrecision.BF16) -> tuple[SiteShare, ...]:
    """Each site's share of the work, in the order given; raises UsageError FF-PLAN-037 where nobody can work."""
    if len(sites) > limits.SITES:
        raise _nothing(f"{len(sites)} sites, and at most {limits.SITES} are planned")
    found = [alone(site, precision) for site in sites]
    total = sum(share.rate for share in found)
    if not total > 0:
        raise _nothing("; ".join(f"{share.site.name}: {_why(share)}" for share in found[:3]) or "there are no sites")
    return tuple(msgspec.structs.replace(share, share=share.rate / total) for share in found)


def _why(share: SiteShare) -> str:
    if not any(count for _, count in share.site.cards):
        return "no cards"
    if share.unknown:
        return "not known are " + ", ".join(share.unknown)
    return f"{share.site.spare_watts:g} W are spare, its machines take {share.site.base_watts:g} W without cards"


def _nothing(cause: str) -> UsageError:
    return UsageError(
        "FF-PLAN-037",
        "no site can take a share of the work",
        cause=cause,
        hint="give a site with cards and spare power above what its machines draw themselves",
    )

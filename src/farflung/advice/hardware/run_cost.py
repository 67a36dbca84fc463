"""Computes what a run costs on given sites, a verified token and in kWh, beside the same work on rented A100s
(P3).

    work    = tokens x FLOP a token x (1 + audited)           audited: the share of it that is repeated to check it
    seconds = work / (sum of rates x utilisation x (1 - loss))
    energy  = sum of W drawn x seconds / 3.6e6 kWh
    rent    = sum of busy cards x rent x hours                whoever has the work done pays it
    power   = sum of W / 1000 x tariff x hours                whoever owns the cards pays it, out of the rent
    price of a verified token = rent / tokens                 repeated work is paid for and adds no token

FLOP a token is 6 x parameters, and attention (Kaplan et al. 2020, section 2.1): the caller says it. `utilisation` is
the share of a data sheet's rate that training reaches, 0.3 to 0.5 on data-centre cards (Korthikanti et al. 2022, table
5); of a measured rate it is nearer to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from farflung.advice.hardware.card import FactorPrecision
from farflung.advice.hardware.number_checks import MOST_TOKENS, checked, positive, whole
from farflung.advice.hardware.value_per_watt import A100, CLAIMED_LOSS, MOST_LOSS, ReferenceCard, worth_of_watt
from farflung.advice.hardware.work_split import PowerSite, SiteShare, spread
from farflung.core.units import Flop, Seconds, Tokens
from farflung.job.spec import JobSpec
from farflung.plan.run_price import expected_audits

JOULES: Final = 3.6e6  # of a kWh
UTILISATION: Final = 0.4


class VerifiedWork(msgspec.Struct, frozen=True):
    """What is to be done: tokens that count, FLOP of one of them, and the share of the work that audits repeat.

    Raises UsageError FF-PLAN-035 that names the field.
    """

    tokens: Tokens
    flop: Flop
    audited: float = 0.0

    def __post_init__(self) -> None:
        whole("tokens", self.tokens, 1, MOST_TOKENS)
        positive("flop", self.flop, 1e18)
        checked("audited", self.audited, 0.0, 1e3)

    @property
    def total(self) -> float:
        """FLOP, repeated ones among them."""
        return self.tokens * self.flop * (1 + self.audited)


def audited(spec: JobSpec) -> float:
    """The share of a job's tokens that its audits repeat on the average (plan.audit_costs)."""
    return expected_audits(spec) / (spec.round_tokens * spec.network.providers * spec.rounds)


class RunCost(msgspec.Struct, frozen=True):
    """A run on `shares`: seconds, kWh, and money in the sites' currency.

    `reference`: what the same work costs on `beside` without network and audits, which it does not need. `per_watt`:
    work for the energy, beside the same; None where a card's power is not known. `unknown`: what the figures leave out.
    """

    tokens: int
    shares: tuple[SiteShare, ...]
    seconds: Seconds
    energy: float
    rent: float
    power: float
    loss: float
    beside: ReferenceCard
    reference: float
    per_watt: float | None
    unknown: tuple[str, ...]

    @property
    def per_token(self) -> float:
        """The rent of a verified one."""
        return self.rent / self.tokens

    @property
    def ratio(self) -> float:
        """The rent over that of the reference: below 1 the sites are cheaper."""
        return self.rent / self.reference


def cost(
    work: VerifiedWork,
    sites: Sequence[PowerSite],
    precision: FactorPrecision = FactorPrecision.BF16,
    *,
    utilisation: float = UTILISATION,
    loss: float = CLAIMED_LOSS,
    reference: ReferenceCard = A100,
) -> RunCost:
    """Balances the work over the sites and prices it; rates are taken alike for sites and reference.

    Raises UsageError FF-PLAN-035 (a number), FF-PLAN-037 (nobody can work).
    """
    positive("utilisation", utilisation, 1.0)
    checked("loss", loss, 0.0, MOST_LOSS)
    shares = spread(sites, precision)
    rate = sum(share.rate for share in shares)
    seconds = work.total / (rate * utilisation * (1 - loss))
    hours = seconds / 3600
    drawn = sum(share.watts for share in shares)
    dark = any(card.power[0] is None for share in shares for card, count in share.site.cards if count)
    return RunCost(
        tokens=work.tokens,
        shares=shares,
        seconds=Seconds(seconds),
        energy=drawn * seconds / JOULES,
        rent=sum(share.busy * share.site.hour for share in shares) * hours,
        power=sum(share.watts / 1000 * share.site.kilowatt_hour for share in shares) * hours,
        loss=loss,
        beside=reference,
        reference=work.tokens * work.flop / (reference.rate * utilisation) / 3600 * reference.hour,
        per_watt=None if dark else worth_of_watt(rate, drawn, loss, reference),
        unknown=tuple(f"{share.site.name}: {what}" for share in shares for what in share.unknown),
    )

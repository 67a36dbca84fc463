"""Computes the energy that an option uses and its value beside rented cards, with the option's own loss (P3).

    loss = 1 - FLOP that count / (sum of dense bf16 rates x utilisation x seconds)

FLOP that count: of the tokens, and of the optimizer once a step of each replica, as a card of one's own would need too.
What is computed again, lines, waiting for each other, and failures are the loss. It stands where the source article
claims a fifth (advice/hardware/value_per_watt).
"""

from __future__ import annotations

from farflung.advice.hardware import run_cost
from farflung.advice.hardware.run_cost import RunCost
from farflung.advice.hardware.work_split import PowerSite, spread
from farflung.advice.job_work import JobWork
from farflung.advice.layouts import host_speed
from farflung.advice.layouts.training_options import LayoutKind, TrainingOption
from farflung.advice.offers.energy_terms import EnergyTerms
from farflung.advice.offers.offer_file import OfferedHost
from farflung.core.money import CREDIT
from farflung.core.units import Flop, Tokens


def worth(
    work: JobWork, option: TrainingOption, terms: EnergyTerms, utilisation: float = host_speed.UTILISATION
) -> RunCost:
    """A way's energy and price with what audits repeat, each host a site."""
    sites = [_site(host, terms) for host in option.hosts]
    rate = sum(share.rate for share in spread(sites))
    reached = sum(host_speed.rate(host, utilisation) for host in option.hosts)
    replicas = {LayoutKind.ROUNDS: len(option.hosts), LayoutKind.PIPELINES: option.ways}.get(option.kind, 1)
    useful = float(work.flop(work.tokens) + replicas * option.steps * work.optimizer_flop)
    loss = 1.0 - useful / (reached * option.seconds)
    return run_cost.cost(
        run_cost.VerifiedWork(Tokens(work.tokens), Flop(useful / work.tokens), work.audited),
        sites,
        utilisation=reached / rate,
        loss=max(0.0, loss),
        reference=terms.reference,
    )


def _site(host: OfferedHost, terms: EnergyTerms) -> PowerSite:
    return PowerSite(
        host.region or host.site or host.name,
        ((host.card, host.cards),),
        spare_watts=host.spare_watts,
        base_watts=host.base_watts,
        hour=host.price / CREDIT / (host.cards * host.duty),
        kilowatt_hour=terms.kilowatt_hour or 0.0,
    )

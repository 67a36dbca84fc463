"""What a way draws and what its work is worth beside rented cards, with the loss that this way has (P3).

    loss = 1 - FLOP that count / (sum of dense bf16 rates x utilisation x seconds)

FLOP that count: of the tokens, and of the optimizer once a step of each replica, as a card of one's own would need too.
What is computed again, lines, waiting for each other, and failures are the loss. It stands where the source article
claims a fifth (plan/cards/value).
"""

from __future__ import annotations

from farflung.core.money import MICRO
from farflung.core.units import Flop, Tokens
from farflung.plan.advice import speed
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import Kind, Option
from farflung.plan.advice.terms import Terms
from farflung.plan.advice.work import Work
from farflung.plan.cards import cost
from farflung.plan.cards.cost import Cost
from farflung.plan.cards.spread import Site, spread


def worth(work: Work, option: Option, terms: Terms, utilisation: float = speed.UTILISATION) -> Cost:
    """A way's energy and price with what audits repeat, each host a site."""
    sites = [_site(host, terms) for host in option.hosts]
    rate = sum(share.rate for share in spread(sites))
    reached = sum(speed.rate(host, utilisation) for host in option.hosts)
    replicas = {Kind.ROUNDS: len(option.hosts), Kind.PIPELINES: option.ways}.get(option.kind, 1)
    useful = float(work.flop(work.tokens) + replicas * option.steps * work.optimizer_flop)
    loss = 1.0 - useful / (reached * option.seconds)
    return cost.cost(
        cost.Work(Tokens(work.tokens), Flop(useful / work.tokens), work.audited),
        sites,
        utilisation=reached / rate,
        loss=max(0.0, loss),
        reference=terms.reference,
    )


def _site(host: Host, terms: Terms) -> Site:
    return Site(
        host.region or host.site or host.name,
        ((host.card, host.cards),),
        spare_watts=host.spare_watts,
        base_watts=host.base_watts,
        hour=host.price / MICRO / (host.cards * host.duty),
        kilowatt_hour=terms.kilowatt_hour or 0.0,
    )

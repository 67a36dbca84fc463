"""What a run costs at most, and what the requester locks for it.

Price = tokens of one peer's round x rounds x members x unit price (one unit is one token trained and accepted).
Escrow = price + the price of one round of all members, but never more than the budget: while a disputed round
awaits its verdict its pay stays held, and the margin pays the spare that runs it again. What is not paid returns.
"""

from __future__ import annotations

import msgspec

from farflung.core.errors import PolicyError
from farflung.core.money import Credits, add, format_credits, parse_credits, times
from farflung.core.units import Tokens
from farflung.job.spec import JobSpec


class Price(msgspec.Struct, frozen=True):
    """Micro-credits at the job's highest unit price; `units` are accepted tokens of all members."""

    unit: Credits
    units: Tokens
    price: Credits
    margin: Credits
    escrow: Credits
    budget: Credits


def price(spec: JobSpec) -> Price:
    """Raises PolicyError FF-PLAN-001 when the budget is below the price, UsageError FF-CORE-011 for bad amounts."""
    unit, budget = parse_credits(spec.unit_price), parse_credits(spec.budget)
    round_units = spec.round_tokens * spec.network.providers
    total = times(unit, round_units * spec.rounds)
    if budget < total:
        raise _too_dear(spec, unit, round_units, total, budget)
    escrow = min(add(total, times(unit, round_units)), budget)
    return Price(
        unit=unit,
        units=Tokens(round_units * spec.rounds),
        price=total,
        margin=Credits(escrow - total),
        escrow=Credits(escrow),
        budget=budget,
    )


def _too_dear(spec: JobSpec, unit: int, round_units: int, total: int, budget: int) -> PolicyError:
    rounds = budget // (unit * round_units)
    fewer = f", or rounds = {rounds}" if rounds else ""
    return PolicyError(
        "FF-PLAN-001",
        f"the budget of {format_credits(budget)} credits is below the price of {format_credits(total)}",
        cause=f"{spec.rounds} rounds x {spec.network.providers} providers x {spec.round_tokens} tokens"
        f" x {format_credits(unit)} credits",
        hint=f'set budget = "{format_credits(total)}"{fewer}',
    )

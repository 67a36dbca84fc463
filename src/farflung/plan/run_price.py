"""Computes what a run costs, and what the requester locks for it.

One unit is a token trained and accepted, or a token that a verifier is paid for.

    training = tokens of one peer's round x rounds x providers x unit price
    audits   = expected, of peers that stay: the first `probation` contributions of each and a share `rate` of the
               others, one segment of each; of a share `canaries` of these 1 + `jackpot` segments more; and what one
               verifier reads to score all of every round, where that is done
    price    = training + audits
    escrow   = price + margin + what audits may cost beyond the expected, but never more than the budget

The margin is the price of one round of all providers: while a disputed round awaits its verdict its pay stays held,
and the margin pays the spare that runs it again. At worst every verifier repeats the longest segment of every
contribution, and scores every round. What is not paid returns. Where the budget is short, the margin is served before
the worst case.
"""

from __future__ import annotations

import math

import msgspec

from farflung.core.errors import PolicyError
from farflung.core.money import Credits, add, format_credits, parse_credits, times
from farflung.core.units import Tokens
from farflung.job.spec import JobSpec
from farflung.plan import audit_costs


class RunPrice(msgspec.Struct, frozen=True):
    """Pico-credits at the job's highest unit price; `units` are accepted tokens of all members.

    `price` is `training` and the expected `audits`; `worst_audits` is what audits cost at most.
    """

    unit: Credits
    units: Tokens
    training: Credits
    audits: Credits
    worst_audits: Credits
    price: Credits
    margin: Credits
    escrow: Credits
    budget: Credits


def price(spec: JobSpec) -> RunPrice:
    """Raises PolicyError FF-PLAN-001 when the budget is below the price, UsageError FF-CORE-011 for bad amounts."""
    unit, budget = parse_credits(spec.unit_price), parse_credits(spec.budget)
    round_units = spec.round_tokens * spec.network.providers
    training = times(unit, round_units * spec.rounds)
    checked = times(unit, expected_audits(spec))
    total = price_at(spec, unit, unit)
    if budget < total:
        raise _too_dear(spec, unit, checked, total, budget)
    worst = times(unit, worst_audits(spec) * spec.network.verifiers)
    margin = min(times(unit, round_units), Credits(budget - total))
    return RunPrice(
        unit=unit,
        units=Tokens(round_units * spec.rounds),
        training=training,
        audits=checked,
        worst_audits=worst,
        price=total,
        margin=margin,
        escrow=min(add(add(training, margin), worst), budget),
        budget=budget,
    )


def price_at(spec: JobSpec, training: Credits, audits: Credits) -> Credits:
    """`price` where a token costs this much to train, and this much to check: what standing asks come to."""
    trained = spec.round_tokens * spec.network.providers * spec.rounds
    return add(times(training, trained), times(audits, expected_audits(spec)))


def audit_units(spec: JobSpec, price: RunPrice) -> int:
    """`units_max` of each verifier's lease: with all of them, training and margin still fit into the escrow.

    All that audits can need, where the budget has it; 0 when nothing is audited.
    """
    worst = worst_audits(spec)
    if not worst or not price.unit:
        return worst
    room = price.escrow - price.training - price.margin
    return room // (price.unit * spec.network.verifiers)


def expected_audits(spec: JobSpec) -> int:
    """Tokens that verifiers are paid for on the average, rounded up."""
    audited = spec.network.providers * audit_costs.of_one(spec) * audit_costs.paid_of_one(spec)
    scored = audit_costs.scores(spec)
    return math.ceil(audited * spec.round_tokens / spec.segments) + math.ceil(scored.rounds * scored.units)


def worst_audits(spec: JobSpec) -> int:
    """Tokens that one verifier is paid for at most: the longest segment of every contribution, and scores of every
    round. 0 without audits.
    """
    if not spec.verifiers:
        return 0
    repeated = spec.network.providers * audit_costs.longest(spec) * audit_costs.most_of_one(spec)
    return spec.rounds * (repeated + audit_costs.scores(spec).units)


def _too_dear(spec: JobSpec, unit: Credits, checks: int, total: int, budget: int) -> PolicyError:
    rounds = _rounds_within(spec, unit, budget)
    fewer = f", or rounds = {rounds}" if rounds else ""
    checked = f", and {format_credits(checks)} credits for audits" if checks else ""
    return PolicyError(
        "FF-PLAN-001",
        f"the budget of {format_credits(budget)} credits is below the price of {format_credits(total)}",
        cause=f"{spec.rounds} rounds x {spec.network.providers} providers x {spec.round_tokens} tokens"
        f" x {format_credits(unit)} credits{checked}",
        hint=f'set budget = "{format_credits(total)}"{fewer}',
    )


def _rounds_within(spec: JobSpec, unit: int, budget: int) -> int:
    """The most rounds, below the job's own, whose price is within the budget: by halves, as the price only grows."""
    fits, dear = 0, spec.rounds
    while dear - fits > 1:
        middle = (fits + dear) // 2
        fewer = msgspec.structs.replace(spec, rounds=middle)
        units = fewer.round_tokens * fewer.network.providers * middle + expected_audits(fewer)
        fits, dear = (middle, dear) if unit * units <= budget else (fits, middle)
    return fits

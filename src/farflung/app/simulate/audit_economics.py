"""Computes whether a rational cheater profits under a job's audit rate and stakes.

It also computes the smallest settings that stop the cheater, by verify.economics.

All is asked of numbers that can be set: a rate of four decimals as the draw uses it, a stake in whole micro-credits, a
share of silence in whole thousandths. So whoever sets what is named here, and asks again, is told that it is enough.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import msgspec
from msgspec.structs import replace

from farflung.core.money import parse_credits
from farflung.job.spec import JobSpec
from farflung.job.spec_checks import RANGES
from farflung.ledger.params import LedgerParams
from farflung.ledger.rules.slashes import PERMILLE
from farflung.plan import audit_costs
from farflung.verify import economics
from farflung.verify.audit_sample import ODDS
from farflung.verify.economics import AuditDrawTerms, CheaterResponse, RoundStakes

STEPS: Final = 10_000  # of a rate, from 0 to 1: four decimals are named


class AuditAssumptions(msgspec.Struct, frozen=True):
    """The assumptions. Shares of 1; `stake` in rounds' pay."""

    stake: Fraction
    cost: Fraction = Fraction(1)  # of honest work, as a share of its pay: more than all of it nobody can save
    absent: Fraction = Fraction(0)  # of verifiers: they do not look, or are the cheater's friends
    silence: Fraction = economics.silence_of(LedgerParams().withheld_permille)
    bound: Fraction = Fraction(1, 50)  # of verifiers' work, as a share of all training


class VerifierIncentives(msgspec.Struct, frozen=True):
    """What keeps verifiers looking where nobody cheats. Money in micro-credits."""

    canaries: Fraction  # share of audits that begin with one
    jackpot: Fraction  # for who finds it, above the pay of the segment
    stake: Fraction  # lost by who says that it holds
    cost: Fraction  # of looking once: a segment

    @property
    def is_stable(self) -> bool:
        """Whether looking pays (economics.is_checking_stable)."""
        return economics.is_checking_stable(self.canaries, self.jackpot, self.stake, self.cost)

    @property
    def least(self) -> float | None:
        """The smallest share of four decimals with which it does; None where none that a job may have is enough."""
        if not self.jackpot + self.stake:
            return None
        steps = math.floor(self.cost / (self.jackpot + self.stake) * STEPS) + 1
        return steps / STEPS if steps <= RANGES["audit.canaries"].high * STEPS else None


class AuditPlanResult(msgspec.Struct, frozen=True):
    """The answer. Money in micro-credits; None where no value of this number alone is enough."""

    draw: AuditDrawTerms
    money: RoundStakes
    asked: AuditAssumptions
    lie: economics.CheatMargin  # the cheat that pays best, if it stays with its lie
    silence: economics.CheatMargin
    stake: int | None
    rate: float | None
    permille: int | None  # of the stake, for showing nothing
    held: int | None  # earlier rounds' pay that must be at risk, too
    bound_rate: float  # what the bound allows, and the stake that goes with it
    bound_stake: int | None
    overhead: Fraction
    overhead_of_run: Fraction  # with probation
    catch: tuple[tuple[int, int | None], ...]  # false segments, and rounds until they are found, after probation
    in_job: tuple[tuple[int, float], ...]  # false segments in each round of the job, and the chance that one is found
    checking: VerifierIncentives

    @property
    def is_unprofitable(self) -> bool:
        """Whether no cheat pays as it is."""
        return min(self.lie.ratio, self.silence.ratio) >= 1


def weigh(spec: JobSpec, asked: AuditAssumptions) -> AuditPlanResult:
    """Raises UsageError FF-VERI-095 to -097 for numbers out of range."""
    pay = Fraction(parse_credits(spec.unit_price) * spec.round_tokens)
    draw = economics.of_job(spec, asked.absent)
    money = RoundStakes(pay, asked.cost * pay, asked.stake * pay, asked.silence)
    bound_rate = math.floor(_most_rate(draw, money, asked.bound) * STEPS) / STEPS
    within = _at(spec, draw, bound_rate)
    return AuditPlanResult(
        draw=draw,
        money=money,
        asked=asked,
        lie=economics.weakest(draw, money, CheaterResponse.LIE),
        silence=economics.weakest(draw, money, CheaterResponse.SILENCE),
        stake=_micro(economics.least_stake(draw, money)),
        rate=_rate(spec, draw, money),
        permille=_permille(economics.least_silence(draw, money)),
        held=_held(economics.least_pay(draw, money), pay),
        bound_rate=bound_rate,
        bound_stake=_micro(economics.least_stake(within, money)),
        overhead=economics.overhead(draw),
        overhead_of_run=audit_costs.of_one(spec) / spec.rounds / spec.segments,
        checking=_checking(spec, money),
        catch=tuple((k, economics.rounds_to_catch(economics.caught(draw, k))) for k in _shown(spec.segments)),
        in_job=tuple((k, _in_job(spec, draw, k)) for k in _shown(spec.segments)),
    )


def _in_job(spec: JobSpec, draw: AuditDrawTerms, cheated: int) -> float:
    """The chance that a provider that cheats so from its first round on is found before the job ends."""
    first = min(spec.audit.probation, spec.rounds) if draw.rate or not spec.audit.rate else 0
    always = economics.caught(replace(draw, rate=Fraction(1)), cheated)
    later = economics.caught(draw, cheated)
    return 1 - float(1 - always) ** first * float(1 - later) ** (spec.rounds - first)


def _checking(spec: JobSpec, money: RoundStakes) -> VerifierIncentives:
    """A verifier's stake is a provider's; a share as the coin falls (peers.requester.canaries)."""
    share = Fraction(int(spec.audit.canaries * ODDS), ODDS) if spec.is_audited else Fraction(0)
    return VerifierIncentives(
        share, spec.audit.jackpot * money.pay / spec.segments, money.stake, money.cost / spec.segments
    )


def _most_rate(draw: AuditDrawTerms, money: RoundStakes, bound: Fraction) -> Fraction:
    plan = economics.cheapest(draw, money, bound)
    return min(Fraction(1), bound * draw.segments) if plan is None else plan.draw.rate


def _at(spec: JobSpec, draw: AuditDrawTerms, rate: float) -> AuditDrawTerms:
    """The draw as a job would make it at this rate."""
    return replace(draw, rate=economics.rate_of(replace(spec.audit, rate=rate)))


def _rate(spec: JobSpec, draw: AuditDrawTerms, money: RoundStakes) -> float | None:
    """The smallest rate of four decimals that is enough as it is drawn; one step up where rounding down lost it."""
    least = economics.least_rate(draw, money)
    if least is None:
        return None
    steps = math.ceil(least * STEPS)
    if economics.rate_of(replace(spec.audit, rate=steps / STEPS)) < least:
        steps += 1
    return steps / STEPS


def _micro(stake: Fraction | None) -> int | None:
    return None if stake is None else math.ceil(stake)


def _permille(silence: Fraction | None) -> int | None:
    return None if silence is None else math.ceil(silence * PERMILLE)


def _held(least: Fraction | None, pay: Fraction) -> int | None:
    """Pay is kept until the job ends, and lost with the stake (ledger.rules.slashes): whole rounds before this one."""
    return None if least is None else max(0, math.ceil(least / pay) - 1)


def _shown(segments: int) -> tuple[int, ...]:
    """All, half, a quarter, one: each once."""
    return tuple(sorted({segments, -(-segments // 2), -(-segments // 4), 1}, reverse=True))

"""Computes whether cheating pays, and the smallest audits and stakes with which it does not, in exact fractions.

    P(k) = q A h(k),  h(k) = 1 - C(N - k, n) / C(N, n)              of being drawn where k of N segments are false
    A = (1 - a) P(at least v - 1 of the next v - 1 + s look)        of being found by those who look
    cheating in k segments does not pay iff  P(k) loss >= (k / N) C  with loss = min( p (R + S), R + w S )

(research: incentives; there v = w = 1, s = 0.) R pay and C cost of a round of honest work, S stake, q audit rate, n
segments opened of N, a share of verifiers that are absent (they say that a lie holds), v verifiers that must agree, s
further ones that are asked where they contradict each other (judge.needs_another: if the first one finds nothing,
nobody else is asked), p chance that a false segment lies beyond what is punished, w share of the stake that silence
costs. Who is drawn in a false segment takes the cheaper of two ways: to stay with the lie, or to show nothing.

Whole segments are false or true: a lie spread over parts of many segments saves less and is in more of them. h is
concave in k, so P(k) / k falls and k = N binds; with n = 1, as farflung draws (`sample`), P(k) / k is the same for all
k. Hence at equal overhead q n / N nothing beats one segment of as many contributions as that pays for (`cheapest`).
"""

from __future__ import annotations

import math
from enum import StrEnum
from fractions import Fraction
from typing import Final

import msgspec

from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.job.proof_class import known
from farflung.job.spec import AuditSpec, JobSpec
from farflung.ledger.rules.slashes import PERMILLE
from farflung.ledger.rules.verifiers import QUORUM, quorum_of
from farflung.verify.audit_sample import ODDS, odds_of
from farflung.verify.audit_verdict import panel_of

ONE: Final = Fraction(1)
SURE: Final = Fraction(99, 100)


class CheaterResponse(StrEnum):
    """What a cheater does that is drawn in a false segment."""

    LIE = "lie"
    SILENCE = "silence"


class AuditDrawTerms(msgspec.Struct, frozen=True):
    """Who looks at what. Raises UsageError FF-VERI-095 for numbers out of their range."""

    segments: int  # N of a round
    sampled: int = 1  # n of a drawn contribution
    rate: Fraction = ONE  # q, of contributions
    absent: Fraction = Fraction(0)  # a, of verifiers
    seen: Fraction = ONE  # p
    voices: int = 1  # v
    spare: int = 0  # s

    def __post_init__(self) -> None:
        shares = (self.rate, self.absent, self.seen)
        counts = 1 <= self.sampled <= self.segments <= limits.PLANNED_SEGMENTS
        counts = counts and self.voices >= 1 and self.spare >= 0
        if not counts or not all(0 <= share <= 1 for share in shares):
            raise UsageError(
                "FF-VERI-095",
                "these are no audits",
                cause=f"{self.sampled} of {self.segments} segments, rate {float(self.rate):g}, absent"
                f" {float(self.absent):g}, seen {float(self.seen):g}, {self.voices} must agree,"
                f" {self.spare} to spare",
                hint="1 of 4 segments, and shares from 0 to 1",
            )


class RoundStakes(msgspec.Struct, frozen=True):
    """What is at stake in one round, in any one unit. Raises UsageError FF-VERI-096 for amounts that make no sense."""

    pay: Fraction  # R: lost with the stake. Pay of earlier rounds, lost too, may be added
    cost: Fraction  # C of honest work
    stake: Fraction = Fraction(0)  # S
    silence: Fraction = ONE  # w

    def __post_init__(self) -> None:
        if not (self.pay >= 0 and self.cost > 0 and self.stake >= 0 and 0 <= self.silence <= 1):
            raise UsageError(
                "FF-VERI-096",
                "these amounts make no sense",
                cause=f"pay {float(self.pay):g}, cost {float(self.cost):g}, stake {float(self.stake):g}, silence"
                f" {float(self.silence):g}",
                hint="work costs something, nothing is below 0, and silence costs at most the stake",
            )


class CheatMargin(msgspec.Struct, frozen=True):
    """What cheating in `cheated` segments saves, and what it is expected to lose."""

    cheated: int
    way: CheaterResponse
    gain: Fraction
    loss: Fraction

    @property
    def ratio(self) -> Fraction:
        """Loss over gain: cheating does not pay from 1 on."""
        return self.loss / self.gain


def of_job(spec: JobSpec, absent: Fraction = Fraction(0), seen: Fraction = ONE) -> AuditDrawTerms:
    """A job's audits after probation, as `sample.draw` makes them and `judge.conclude` judges.

    A false segment of a job that is outcome only for sure is no reason to convict where one verifier alone can say so.
    """
    can_convict = spec.verifiers >= (QUORUM if known(spec) else 1)
    rate = rate_of(spec.audit) if can_convict else Fraction(0)
    voices = quorum_of(spec.verifiers)
    return AuditDrawTerms(spec.segments, 1, rate, absent, seen, voices, panel_of(spec.verifiers) - voices)


def rate_of(audit: AuditSpec) -> Fraction:
    """The rate at which a job's contributions are drawn after probation, to the last bit."""
    return Fraction(odds_of(audit), ODDS)


def silence_of(withheld_permille: int) -> Fraction:
    """The share of a stake that a law takes for showing nothing (ledger.params)."""
    return Fraction(withheld_permille, PERMILLE)


def opened(draw: AuditDrawTerms, cheated: int) -> Fraction:
    """h: the chance that a drawn contribution is opened in a false segment (hypergeometric)."""
    clean = draw.segments - cheated
    return 1 - Fraction(math.comb(clean, draw.sampled), math.comb(draw.segments, draw.sampled))


def caught(draw: AuditDrawTerms, cheated: int, way: CheaterResponse = CheaterResponse.LIE) -> Fraction:
    """P: the chance that a contribution with so many false segments is punished. Silence is always noticed."""
    return draw.rate * _weight(draw, cheated, way)


def _weight(draw: AuditDrawTerms, cheated: int, way: CheaterResponse) -> Fraction:
    """P at a rate of 1."""
    seen = draw.seen if way is CheaterResponse.LIE else ONE
    return agreed(draw, 1 - draw.absent) * seen * opened(draw, cheated)


def agreed(draw: AuditDrawTerms, looks: Fraction) -> Fraction:
    """A: the chance that a false segment is found by enough of those who are asked, each of whom looks with `looks`."""
    others, needed = draw.voices - 1 + draw.spare, draw.voices - 1
    chances = (math.comb(others, k) * looks**k * (1 - looks) ** (others - k) for k in range(needed, others + 1))
    return looks * sum(chances, Fraction(0))


def margin(draw: AuditDrawTerms, money: RoundStakes, cheated: int, way: CheaterResponse) -> CheatMargin:
    """One cheat against its price. `cheated`: 1 to N segments."""
    gain = Fraction(cheated, draw.segments) * money.cost
    return CheatMargin(cheated, way, gain, caught(draw, cheated, way) * (money.pay + _share(money, way) * money.stake))


def _share(money: RoundStakes, way: CheaterResponse) -> Fraction:
    return ONE if way is CheaterResponse.LIE else money.silence


def margins(draw: AuditDrawTerms, money: RoundStakes, way: CheaterResponse) -> tuple[CheatMargin, ...]:
    """Of every number of false segments, ascending."""
    return tuple(margin(draw, money, cheated, way) for cheated in range(1, draw.segments + 1))


def weakest(draw: AuditDrawTerms, money: RoundStakes, way: CheaterResponse) -> CheatMargin:
    """The cheat that pays best for what it risks; of several alike the largest, which gains most."""
    return min(margins(draw, money, way), key=lambda one: (one.ratio, -one.cheated))


def is_unprofitable(draw: AuditDrawTerms, money: RoundStakes) -> bool:
    """Whether no cheat pays, whichever way its cheater takes when it is drawn."""
    return all(weakest(draw, money, way).ratio >= 1 for way in CheaterResponse)


def least_stake(
    draw: AuditDrawTerms, money: RoundStakes, ways: tuple[CheaterResponse, ...] = tuple(CheaterResponse)
) -> Fraction | None:
    """The smallest stake with which no cheat pays, in the unit of `money`; None where no stake is enough."""
    least = Fraction(0)
    for way in ways:
        for one in margins(draw, money, way):
            chance, share = caught(draw, one.cheated, way), _share(money, way)
            missing = one.gain - chance * money.pay
            if missing > 0 and not chance * share:
                return None
            if missing > 0:
                least = max(least, missing / (chance * share))
    return least


def least_rate(
    draw: AuditDrawTerms, money: RoundStakes, ways: tuple[CheaterResponse, ...] = tuple(CheaterResponse)
) -> Fraction | None:
    """The smallest audit rate with which no cheat pays at this stake; None where all contributions are not enough."""
    least = Fraction(0)
    for way in ways:
        for one in margins(draw, money, way):
            at_once = _weight(draw, one.cheated, way) * (money.pay + _share(money, way) * money.stake)
            if at_once < one.gain:
                return None
            least = max(least, one.gain / at_once)
    return least


def least_silence(draw: AuditDrawTerms, money: RoundStakes) -> Fraction | None:
    """The smallest share of this stake for silence with which silence does not pay; None where all is not enough."""
    least = Fraction(0)
    for one in margins(draw, money, CheaterResponse.SILENCE):
        chance = caught(draw, one.cheated, CheaterResponse.SILENCE)
        missing = one.gain - chance * money.pay
        if missing > chance * money.stake:
            return None
        if missing > 0:
            least = max(least, missing / (chance * money.stake))
    return least


def least_pay(draw: AuditDrawTerms, money: RoundStakes) -> Fraction | None:
    """The smallest pay at risk (R, earlier rounds' included) with which no cheat pays; None where nobody is caught."""
    least = Fraction(0)
    for way in CheaterResponse:
        for one in margins(draw, money, way):
            chance = caught(draw, one.cheated, way)
            if not chance:
                return None
            least = max(least, one.gain / chance - _share(money, way) * money.stake)
    return least


def overhead(draw: AuditDrawTerms) -> Fraction:
    """What verifiers train again, as a share of all training, after probation and where nobody is accused."""
    return draw.rate * Fraction(draw.sampled, draw.segments)


class AuditStakePlan(msgspec.Struct, frozen=True):
    """Audits, and the smallest stake that goes with them, in the unit of the money that was given."""

    draw: AuditDrawTerms
    stake: Fraction


def cheapest(draw: AuditDrawTerms, money: RoundStakes, bound: Fraction) -> AuditStakePlan | None:
    """The plan of least stake whose overhead is at most `bound`; the draw's own rate and n do not matter.

    One segment of as many contributions as the bound allows. At an equal bound, n segments of an n-th of them give
    h(N) / n = 1 / n of the chance to catch who cheats in all, which is the case that binds. None: no stake is enough.
    Raises UsageError FF-VERI-097 for a bound that allows nothing.
    """
    if not 0 < bound <= 1:
        raise UsageError(
            "FF-VERI-097",
            "this bound allows no audits",
            cause=f"{float(bound):g} of all training",
            hint="a share above 0 and up to 1",
        )
    most = msgspec.structs.replace(draw, sampled=1, rate=min(ONE, bound * draw.segments))
    stake = least_stake(most, money)
    return None if stake is None else AuditStakePlan(most, stake)


def rounds_to_catch(chance: Fraction, sure: Fraction = SURE) -> int | None:
    """Rounds after which a cheat, found with `chance` in each, is found with `sure`; None: never.

    In floats: at a quotient within 1e-9 of a whole number, that number.
    Raises UsageError FF-VERI-098 unless `sure` lies between 0 and 1.
    """
    if not 0 < sure < 1:
        raise UsageError(
            "FF-VERI-098",
            "nothing is found for sure",
            cause=f"asked for a certainty of {float(sure):g}",
            hint="a share between 0 and 1, such as 0.99",
        )
    if not chance:
        return None
    if chance == 1:
        return 1
    return max(1, math.ceil(math.log1p(-float(sure)) / math.log1p(-float(chance)) - 1e-9))


def is_checking_stable(canaries: Fraction, jackpot: Fraction, stake: Fraction, cost: Fraction) -> bool:
    """Whether verifiers check where nobody cheats: phi (J + V) > c, the verifier's dilemma (Luu et al. 2015; Truebit).

    `canaries`: share of audits with a known, false answer. Who checks finds the jackpot; who does not loses the stake.
    """
    return canaries * (jackpot + stake) > cost


def griefing(bond: Fraction, harm: Fraction, to_victims: Fraction) -> tuple[Fraction, Fraction]:
    """What challenging honest work costs the challenger, and what its victims still lack afterwards.

    The loser's bond pays `to_victims` of itself, the rest is burnt. `harm`: all that the challenge made others spend.
    """
    return bond, max(Fraction(0), harm - to_victims * bond)


def friends_profit(taken: Fraction, bounty: Fraction, friends: int, finders: int) -> Fraction:
    """What a worker and its friends gain together when they accuse it: below 0 while any of it is burnt.

    `bounty`: share of what is taken that its finders divide evenly; `friends` of the `finders` are the worker's.
    """
    return taken * (bounty * friends / finders - 1)

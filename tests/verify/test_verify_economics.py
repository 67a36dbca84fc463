"""The inequality: its reference values, plans that satisfy it for every cheat and are the smallest that do."""

from __future__ import annotations

import math
from fractions import Fraction as F
from itertools import combinations, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.core.errors import UsageError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.job.spec import AuditSpec, JobSpec, NetworkSpec
from farflung.ledger.rules.bounties import share_of
from farflung.ledger.rules.verifiers import quorum_of
from farflung.ledger.transactions import Verdict, VerdictFinding
from farflung.verify.audit_sample import ODDS, draw
from farflung.verify.audit_verdict import conclude, needs_another
from farflung.verify.economics import (
    AuditDrawTerms,
    CheaterResponse,
    RoundStakes,
    caught,
    cheapest,
    friends_profit,
    griefing,
    is_checking_stable,
    is_unprofitable,
    least_pay,
    least_rate,
    least_silence,
    least_stake,
    margin,
    margins,
    of_job,
    opened,
    overhead,
    rounds_to_catch,
    weakest,
)

LITTLE = F(1, 10**9)
SEEN = F(99, 100)
COST = RoundStakes(pay=F(1), cost=F(7, 10))  # as in the research: work costs 70 % of what it is paid

shares = st.fractions(F(1, 20), F(1), max_denominator=40)
draws = st.builds(
    lambda segments, sampled, rate, absent, seen, voices, spare: AuditDrawTerms(
        segments, 1 + sampled % segments, rate, absent, seen, voices, spare
    ),
    st.integers(1, 24),
    st.integers(0, 23),
    shares,
    st.fractions(F(0), F(9, 10), max_denominator=20),
    shares,
    st.integers(1, 3),
    st.integers(0, 2),
)
moneys = st.builds(RoundStakes, shares, shares, st.fractions(F(0), F(40), max_denominator=8), shares)


@pytest.mark.parametrize(
    ("audits", "share", "chances", "stake"),
    [
        (AuditDrawTerms(100, 5, F(1), seen=SEEN), "0.05", (0.05, 0.41, 0.96, 0.99), 0),
        (AuditDrawTerms(100, 1, F(1), seen=SEEN), "0.01", (0.01, 0.10, 0.50, 0.99), 0),
        (AuditDrawTerms(100, 5, F(1, 5), seen=SEEN), "0.01", (0.01, 0.08, 0.19, 0.20), 2.5),
        (AuditDrawTerms(100, 5, F(1, 20), seen=SEEN), "0.0025", (0.002, 0.02, 0.05, 0.05), 13),
    ],
)
def test_the_rows_of_the_research_are_met(
    audits: AuditDrawTerms, share: str, chances: tuple[float, ...], stake: float
) -> None:
    assert overhead(audits) == F(share)
    for cheated, chance in zip((1, 10, 50, 100), chances, strict=True):
        assert float(caught(audits, cheated)) == pytest.approx(chance, abs=0.006)  # two digits are printed there
    least = least_stake(audits, COST)
    assert least is not None
    assert float(least) == pytest.approx(stake, abs=0.15)


def test_with_four_fifths_of_the_verifiers_absent_a_stake_of_16_5_is_needed() -> None:
    assert least_stake(AuditDrawTerms(100, 5, F(1, 5), F(4, 5)), COST) == F(33, 2)


@pytest.mark.parametrize(
    ("segments", "sampled", "cheated", "rounds"),
    [(100, 5, 50, 2), (100, 5, 10, 9), (100, 5, 1, 91), (20, 1, 10, 7), (20, 1, 2, 45)],
)
def test_rounds_to_catch_are_those_of_the_research(segments: int, sampled: int, cheated: int, rounds: int) -> None:
    assert rounds_to_catch(caught(AuditDrawTerms(segments, sampled, seen=SEEN), cheated)) == rounds


@pytest.mark.parametrize("chance", [F(1, 7), F(1, 2), F(9, 10), F(99, 100), F(999, 1000), F(1, 100)])
def test_rounds_to_catch_are_the_fewest(chance: F) -> None:
    rounds = rounds_to_catch(chance)
    assert rounds is not None
    assert (1 - chance) ** rounds <= F(1, 100) < (1 - chance) ** (rounds - 1)


def test_what_is_never_drawn_is_never_caught_and_what_always_is_at_once() -> None:
    assert rounds_to_catch(F(0)) is None
    assert rounds_to_catch(F(1)) == 1


@pytest.mark.slow
@given(draws, moneys)
def test_the_smallest_stake_ends_every_cheat_and_a_smaller_one_does_not(
    audits: AuditDrawTerms, money: RoundStakes
) -> None:
    least = least_stake(audits, money)
    assert least is not None
    enough = replace(money, stake=least)
    assert is_unprofitable(audits, enough)
    assert all(one.loss >= one.gain for way in CheaterResponse for one in margins(audits, enough, way))
    if least > 0:
        assert not is_unprofitable(audits, replace(money, stake=max(F(0), least - LITTLE)))


@given(draws, moneys)
def test_the_smallest_rate_ends_every_cheat_and_a_smaller_one_does_not(
    audits: AuditDrawTerms, money: RoundStakes
) -> None:
    least = least_rate(audits, money)
    if least is None:
        assert not is_unprofitable(replace(audits, rate=F(1)), money)
        return
    assert is_unprofitable(replace(audits, rate=least), money)
    assert not is_unprofitable(replace(audits, rate=least - min(least, LITTLE)), money)


@pytest.mark.slow
@given(draws, moneys)
def test_the_smallest_price_of_silence_and_the_smallest_pay_are_enough_and_less_is_not(
    audits: AuditDrawTerms, money: RoundStakes
) -> None:
    pay = least_pay(audits, money)
    assert pay is not None
    assert is_unprofitable(audits, replace(money, pay=pay))
    assert pay == 0 or not is_unprofitable(audits, replace(money, pay=max(F(0), pay - LITTLE)))
    silence = least_silence(audits, money)
    for share in (F(1),) if silence is None else (silence, silence - LITTLE):
        if share >= 0:
            pays = weakest(audits, replace(money, silence=share), CheaterResponse.SILENCE).ratio < 1
            assert pays is (share != silence)


@pytest.mark.whole
@given(draws, moneys, st.fractions(F(1, 200), F(1), max_denominator=200))
@settings(max_examples=40)
def test_no_audits_within_the_bound_need_a_smaller_stake_than_the_cheapest_plan(
    audits: AuditDrawTerms, money: RoundStakes, bound: F
) -> None:
    plan = cheapest(audits, money, bound)
    assert plan is not None
    assert overhead(plan.draw) <= bound
    assert is_unprofitable(plan.draw, replace(money, stake=plan.stake))
    for sampled in range(1, audits.segments + 1):
        rate = min(F(1), bound * audits.segments / sampled)
        other = least_stake(replace(audits, sampled=sampled, rate=rate), money)
        assert other is not None
        assert other >= plan.stake


@given(draws, moneys)
def test_cheating_in_everything_is_what_binds(audits: AuditDrawTerms, money: RoundStakes) -> None:
    for way in CheaterResponse:
        assert weakest(audits, money, way).cheated == audits.segments


def test_where_one_segment_is_drawn_every_share_of_cheating_pays_alike() -> None:
    audits = AuditDrawTerms(4, 1, F(1, 8))
    ratios = {one.ratio for one in margins(audits, replace(COST, stake=F(20)), CheaterResponse.LIE)}
    assert ratios == {F(21, 8) / F(7, 10)}


@pytest.mark.parametrize(("segments", "sampled"), list(product((1, 2, 5, 9), (1, 2, 5))))
def test_the_chance_to_open_a_false_segment_is_counted_out(segments: int, sampled: int) -> None:
    if sampled > segments:
        with pytest.raises(UsageError, match="FF-VERI-095"):
            AuditDrawTerms(segments, sampled)
        return
    for cheated in range(segments + 1):
        all_draws = list(combinations(range(segments), sampled))
        hits = sum(any(place < cheated for place in places) for places in all_draws)
        assert opened(AuditDrawTerms(segments, sampled), cheated) == F(hits, len(all_draws))


def test_silence_needs_its_own_stake_where_the_law_takes_less_for_it() -> None:
    audits, money = AuditDrawTerms(4, 1, F(1, 8)), RoundStakes(F(1), F(1), F(20), F(1, 10))
    assert weakest(audits, money, CheaterResponse.LIE).ratio == F(21, 8)
    assert weakest(audits, money, CheaterResponse.SILENCE).ratio == F(3, 8)
    assert not is_unprofitable(audits, money)
    assert least_stake(audits, money, (CheaterResponse.LIE,)) == 7
    assert least_stake(audits, money) == 70
    assert least_rate(audits, money) == F(1, 3)
    assert least_silence(audits, money) == F(7, 20)
    assert least_pay(audits, money) == 6


@pytest.mark.parametrize(
    ("audits", "money"),
    [
        (AuditDrawTerms(4, 1, F(0)), COST),
        (AuditDrawTerms(4, 1, absent=F(1)), COST),
        (AuditDrawTerms(4, 1, seen=F(0)), COST),
        (AuditDrawTerms(4, 1, F(1, 8)), replace(COST, silence=F(0))),
    ],
)
def test_no_stake_is_enough_where_nobody_looks_or_nothing_is_taken(audits: AuditDrawTerms, money: RoundStakes) -> None:
    assert least_stake(audits, money) is None
    assert not is_unprofitable(audits, replace(money, stake=F(10**6)))


def test_the_audits_of_a_job_are_those_that_are_drawn() -> None:
    spec = JobSpec(audit=AuditSpec(segments=5, rate=0.3))
    audits = of_job(spec)
    assert audits.rate == F(int(0.3 * ODDS), ODDS) <= F(0.3)
    assert (audits.segments, audits.sampled, audits.voices, audits.spare) == (5, 1, 2, 1)
    peers = [(PeerId(number.to_bytes(32, "little")), 9) for number in range(3000)]
    drawn = draw(spec.audit, spec.segments, ZERO_HASH, peers)
    spread = 4 * (0.3 * 0.7 / 3000) ** 0.5
    assert len(drawn) / 3000 == pytest.approx(float(audits.rate), abs=spread)
    hit = sum(one.segment < 2 for one in drawn) / 3000
    assert hit == pytest.approx(float(caught(audits, 2)), abs=spread)


def test_a_network_without_verifiers_catches_nobody() -> None:
    audits = of_job(JobSpec(audit=AuditSpec(rate=0.0, probation=0), network=NetworkSpec(verifiers=0)))
    assert caught(audits, audits.segments) == 0


def verdict_of(verifier: int, finding: VerdictFinding) -> Verdict:
    node, key = PeerId(bytes(32)), PeerId(bytes([verifier]) * 32)
    return Verdict(ZERO_HASH, ZERO_HASH, 0, node, 0, ZERO_HASH, key, finding, 9000, ZERO_HASH)


@pytest.mark.parametrize("hired", [1, 2, 3, 4])
def test_the_chance_to_be_convicted_is_counted_out_with_the_rules_of_judging(hired: int) -> None:
    """Who looks says FALSE, who is absent HOLDS; the next one is asked as `judge` says, and the verdicts concluded."""
    absent, convicted = F(1, 3), F(0)
    for looks in product((True, False), repeat=hired):
        said: list[Verdict] = []
        for number, is_looking in enumerate(looks):
            said.append(verdict_of(number, VerdictFinding.FALSE if is_looking else VerdictFinding.HOLDS))
            if not needs_another(said, hired, is_proven=True):
                break
        chance = math.prod(1 - absent if each else absent for each in looks)
        convicted += chance * conclude(said, quorum_of(hired), is_proven=True).is_guilty
    audits = of_job(JobSpec(audit=AuditSpec(4, 1.0, 0), network=NetworkSpec(verifiers=hired)), absent)
    assert caught(audits, 4) == convicted


def test_one_colluding_verifier_of_two_ends_every_accusation_and_of_three_one_in_three() -> None:
    """One certain verifier is a friend's: of each order in which they are drawn."""
    for hired, convicted in ((2, 0), (3, 4)):
        guilty = 0
        for order in permutations(range(hired)):
            said: list[Verdict] = []
            for number in order:
                said.append(verdict_of(number, VerdictFinding.HOLDS if number == 0 else VerdictFinding.FALSE))
                if not needs_another(said, hired, is_proven=True):
                    break
            guilty += conclude(said, quorum_of(hired), is_proven=True).is_guilty
        assert guilty == convicted  # of 2, and of 6


@pytest.mark.parametrize(
    ("canaries", "jackpot", "stake", "is_stable"),
    [("0.05", 0, 2, True), ("0.02", 0, 2, False), ("0", 2, 20, False), ("0.01", 5, 0, False)],
)
def test_checking_is_stable_where_canaries_cost_more_than_it(
    canaries: str, jackpot: int, stake: int, is_stable: bool
) -> None:
    assert is_checking_stable(F(canaries), F(jackpot), F(stake), F("0.05")) is is_stable


@given(st.integers(1, 10**12), st.integers(1, 16))
def test_whoever_has_friends_accuse_him_loses_with_the_bounty_that_the_ledger_pays(taken: int, finders: int) -> None:
    back = share_of(taken, finders) * finders - taken
    assert back <= friends_profit(F(taken), F(1, 2), finders, finders) < 0
    assert taken + back >= taken // 2 - finders


@given(shares, st.integers(0, 5), st.integers(1, 5))
def test_accusing_oneself_through_a_friend_loses_at_every_split_but_the_whole(
    split: F, friends: int, finders: int
) -> None:
    friends = min(friends, finders)
    profit = friends_profit(F(20), split, friends, finders)
    assert profit < 0 or (split == 1 and friends == finders and profit == 0)


def test_a_bond_that_covers_the_harm_leaves_victims_whole_only_where_all_of_it_is_theirs() -> None:
    assert griefing(F(30), F(30), F(1)) == (30, 0)
    assert griefing(F(30), F(30), F(1, 2)) == (30, 15)
    assert griefing(F(60), F(30), F(1, 2)) == (60, 0)


@pytest.mark.parametrize(
    "numbers",
    [
        {"rate": F(11, 10)},
        {"rate": F(-1, 10)},
        {"absent": F(2)},
        {"seen": F(-1)},
        {"voices": 0},
        {"spare": -1},
        {"sampled": 0},
        {"segments": 10**6, "sampled": 1},
    ],
)
def test_audits_that_cannot_be_are_refused(numbers: dict[str, F]) -> None:
    with pytest.raises(UsageError, match="FF-VERI-095"):
        AuditDrawTerms(**{"segments": 4, **numbers})  # type: ignore[arg-type]


@pytest.mark.parametrize("numbers", [{"cost": F(0)}, {"pay": F(-1)}, {"stake": F(-1)}, {"silence": F(2)}])
def test_money_that_cannot_be_is_refused(numbers: dict[str, F]) -> None:
    with pytest.raises(UsageError, match="FF-VERI-096"):
        RoundStakes(**{"pay": F(1), "cost": F(1), **numbers})


def test_a_bound_of_nothing_and_a_certainty_of_all_are_refused() -> None:
    with pytest.raises(UsageError, match="FF-VERI-097"):
        cheapest(AuditDrawTerms(4), COST, F(0))
    with pytest.raises(UsageError, match="FF-VERI-098"):
        rounds_to_catch(F(1, 2), F(1))


@pytest.mark.parametrize(
    ("rate", "cost", "silence", "is_safe"),
    [
        (F(1, 10), F(1), F(1, 2), True),  # the law as it is
        (F(1, 10), F(1), F(0), False),  # an announced absence that would cost the round's pay alone
        (F(1, 10), F(1, 2), F(0), False),
        (F(1, 2), F(3, 5), F(0), False),
        (F(1), F(1), F(0), True),  # all are drawn, as in probation
    ],
)
def test_an_absence_that_costs_only_the_pay_of_a_drawn_round_would_make_cheating_pay(
    rate: F, cost: F, silence: F, is_safe: bool
) -> None:
    """Decision 099. It is announced before the draw: each such round is a bet by itself, however few there may be."""
    stakes = RoundStakes(F(1), cost, F(20), silence)
    found = margin(AuditDrawTerms(5, rate=rate), stakes, 5, CheaterResponse.SILENCE)
    assert (found.loss >= found.gain) == is_safe
    assert stakes.pay >= found.gain  # forfeited whether it is drawn or not, the pay is always enough

"""The agents of `farflung audit-plan --simulate`: they earn what the formulas say, and rest where the research's do.

Tolerances: of incomes five of their own standard errors (one in two million honest draws lies beyond). Resting points
of six seeds lay within 0.005 of each other; 0.015 from the formula is three times that, and 0.03 from the research's
two digits leaves room for the share that its cheaters cheat in, which it does not say.
"""

from __future__ import annotations

from fractions import Fraction as F
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from farflung.app.simulate import verifiers_dilemma
from farflung.app.simulate.audit_market import ROUNDS, AgentIncome, chosen, incomes
from farflung.app.simulate.verifiers_dilemma import DilemmaAverages, DilemmaGame
from farflung.verify.economics import (
    AuditDrawTerms,
    CheaterResponse,
    RoundStakes,
    is_checking_stable,
    is_unprofitable,
    margin,
)

DRAW = AuditDrawTerms(100, 5, F(1, 5), seen=F(99, 100))  # of the research's third row
COST = RoundStakes(pay=F(1), cost=F(7, 10))
HALF = 50  # segments of 100 that its cheaters leave out: at this share its resting points follow


def played(stake: int, seed: int = 1, **more: float) -> DilemmaAverages:
    game = DilemmaGame(DRAW, replace(COST, stake=F(stake)), HALF)
    return verifiers_dilemma.run(replace(game, **more), seed)


def settled(stake: int) -> float:
    """Where cheating in HALF and honest work pay alike: f C = y P (R + S)."""
    one = margin(DRAW, replace(COST, stake=F(stake)), HALF, CheaterResponse.LIE)
    return float(one.gain / one.loss)


@pytest.mark.parametrize(("stake", "printed", "honest"), [(5, 0.29, 0.98), (20, 0.08, 0.99)])
def test_without_canaries_checking_decays_to_where_cheating_pays_as_much_as_work(
    stake: int, printed: float, honest: float
) -> None:
    course = played(stake)
    assert course.checking == pytest.approx(printed, abs=0.03)
    assert course.checking == pytest.approx(settled(stake), abs=0.015)
    assert course.honest == pytest.approx(honest, abs=0.01)


@pytest.mark.parametrize("stake", [5, 20])
def test_five_in_a_hundred_canaries_and_a_stake_of_two_keep_all_checking(stake: int) -> None:
    assert is_checking_stable(F("0.05"), F(0), F(2), F("0.05"))
    course = played(stake, canaries=0.05, verifier_stake=2.0)
    assert course.checking > 0.99
    assert course.honest > 0.99


def test_too_few_canaries_do_not_hold() -> None:
    assert not is_checking_stable(F("0.02"), F(0), F(2), F("0.05"))
    assert played(5, canaries=0.02, verifier_stake=2.0).checking < 0.9


def test_without_any_stake_nobody_checks_and_nobody_works() -> None:
    course = played(0)
    assert course.checking < 0.01
    assert course.honest < 0.01


PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "audit-plan.md"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "stake", "canaries", "verifier_stake", "digits"),
    [
        ("5 % canaries, a verifier's stake of 2", 20, 0.05, 2.0, 1),
        ("no canaries, a worker's stake of 5", 5, 0.0, 0.0, 0),
        ("no canaries, a worker's stake of 20", 20, 0.0, 0.0, 0),
        ("no stake at all", 0, 0.0, 0.0, 1),
    ],
)
def test_the_table_of_the_page_is_what_is_played(
    setting: str, stake: int, canaries: float, verifier_stake: float, digits: int
) -> None:
    course = played(stake, canaries=canaries, verifier_stake=verifier_stake)
    shares = [f"{100 * share:.{digits}f} %" for share in (course.checking, course.honest)]
    assert f"| {setting} | {shares[0]} | {shares[1]} |" in PAGE.read_text(encoding="utf-8")


def earned(draw: AuditDrawTerms, money: RoundStakes, verifiers: int = 9, seed: int = 1) -> dict[str, AgentIncome]:
    draws = np.random.Generator(np.random.Philox(seed))
    return {one.who: one for one in incomes(draw, money, verifiers, draws)}


EIGHT = [
    (F(1), 0, F(0)),
    (F(1), 20, F(0)),
    (F(1, 2), 2, F(0)),
    (F(1, 5), 5, F(0)),
    (F(1, 5), 20, F(0)),
    (F(1, 20), 20, F(0)),
    (F(1, 20), 100, F(0)),
    (F(1, 5), 20, F(4, 5)),
]


@pytest.mark.parametrize(("rate", "stake", "absent"), EIGHT)
def test_honest_work_earns_most_in_the_settings_of_the_research(rate: F, stake: int, absent: F) -> None:
    draw, money = AuditDrawTerms(100, 5, rate, absent, F(99, 100)), replace(COST, stake=F(stake))
    assert is_unprofitable(draw, money)
    assert chosen(draw, money) == 0
    by = earned(draw, money)
    honest, lies = by["honest worker"], by["cheater that lies"]
    assert honest.mean == pytest.approx(0.3)
    one = margin(draw, money, 100, CheaterResponse.LIE)
    assert abs(lies.mean - float(1 - one.loss)) <= 5 * lies.error
    assert lies.mean - 5 * lies.error <= honest.mean


def test_with_four_fifths_absent_a_cheater_earns_less_than_honest_work_as_in_the_research() -> None:
    lies = earned(AuditDrawTerms(100, 5, F(1, 5), F(4, 5), F(99, 100)), replace(COST, stake=F(20)))["cheater that lies"]
    spread = 5 * (lies.error * ROUNDS**0.5) / 4000**0.5  # 0.21 was printed, of 4000 jobs
    assert lies.mean == pytest.approx(0.21, abs=spread)
    assert lies.mean < 0.3


def test_who_shows_nothing_earns_by_it_where_silence_is_cheap() -> None:
    draw, money = AuditDrawTerms(4, 1, F(1, 8), voices=2), RoundStakes(F(1), F(1), F(20), F(1, 10))
    by = earned(draw, money)
    silent = by["cheater that shows nothing"]
    assert abs(silent.mean - (1 - 3 / 8)) <= 5 * silent.error
    assert by["cheater that lies"].mean < by["honest worker"].mean < silent.mean
    assert chosen(draw, money) == 4
    dear = replace(money, silence=F(1))
    assert chosen(draw, dear) == 0
    assert earned(draw, dear)["cheater that shows nothing"].mean < 0


def test_one_verifier_of_two_covers_its_friend_always_and_one_of_forty_seldom() -> None:
    draw, money = AuditDrawTerms(4, 1, F(1, 8), voices=2), RoundStakes(F(1), F(1), F(20))
    pair = "cheater and a verifier that covers it"
    assert earned(draw, money, verifiers=2)[pair].mean == 1
    assert earned(draw, money, verifiers=40)[pair].mean < 0


def test_a_third_verifier_leaves_a_pair_only_the_rounds_in_which_its_own_is_asked_first() -> None:
    """Of three verifiers one covers: found in two thirds of what is drawn."""
    draw, money = AuditDrawTerms(5, 1, F(1, 2), voices=2, spare=1), RoundStakes(F(1), F(1), F(20))
    pair = earned(draw, money, verifiers=3)["cheater and a verifier that covers it"]
    assert abs(pair.mean - (1 - F(2, 3) * F(1, 2) * 21)) <= 5 * pair.error
    looked = AuditDrawTerms(5, 1, F(1, 2), F(3, 10), voices=2, spare=1)
    lies = earned(looked, money)["cheater that lies"]
    assert abs(lies.mean - float(1 - margin(looked, money, 5, CheaterResponse.LIE).loss)) <= 5 * lies.error


def test_friends_that_accuse_and_griefers_lose() -> None:
    by = earned(AuditDrawTerms(4, 1, F(1, 8), F(1, 10), voices=2), RoundStakes(F(1), F(1), F(20)))
    assert by["idle worker and the friend who accuses it"].mean == -10
    assert by["griefer that a jury hears"].mean < -19

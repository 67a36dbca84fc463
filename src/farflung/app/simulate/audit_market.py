"""Simulates a market of agents that play a job's audits for money, and reports each kind's income a round.

All follows from a seed.

Honest workers, cheaters that choose how much they cheat by what they expect, workers whose friend accuses them, pairs
of a cheater and a verifier that covers it, griefers that accuse honest work, verifiers that look and that do not. Each
plays ROUNDS rounds; its mean income stands beside its standard error. It checks the formulas of verify.economics by
another way (drawing instead of counting), and shows what they leave out: pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from farflung.app.simulate import verifiers_dilemma
from farflung.app.simulate.verifiers_dilemma import BOUNTY, DilemmaGame
from farflung.verify.economics import AuditDrawTerms, CheaterResponse, RoundStakes, friends_profit, margins, weakest

ROUNDS: Final = 40_000  # of each agent
CANARIES: Final = (0.05, 2.0)  # share of audits, and a verifier's stake, that keep verifiers looking (research)


class AgentIncome(msgspec.Struct, frozen=True):
    """What one kind of agent earns in a round, in rounds' pay."""

    who: str
    mean: float
    error: float  # one standard error of the mean


class DilemmaEquilibrium(msgspec.Struct, frozen=True):
    """Where a population comes to rest: shares of verifiers that look, and of workers that are honest."""

    when: str
    checking: float
    honest: float
    is_stable: bool  # by the condition phi (J + V) > c, without playing


class AuditMarketResult(msgspec.Struct, frozen=True):
    """All that came of one seed."""

    seed: int
    cheated: int
    segments: int
    incomes: tuple[AgentIncome, ...]
    settled: tuple[DilemmaEquilibrium, ...]


def play(draw: AuditDrawTerms, money: RoundStakes, verifiers: int, seed: int) -> AuditMarketResult:
    """Every kind of agent once, and the verifier's dilemma in three settings."""
    unit = RoundStakes(Fraction(1), money.cost / money.pay, money.stake / money.pay, money.silence)
    draws = np.random.Generator(np.random.Philox(seed))
    return AuditMarketResult(
        seed, chosen(draw, unit), draw.segments, incomes(draw, unit, verifiers, draws), _settled(draw, unit, seed)
    )


def chosen(draw: AuditDrawTerms, money: RoundStakes) -> int:
    """Segments in which a worker cheats that expects, and that takes the cheaper way out when it is drawn; 0: none."""
    ways = zip(margins(draw, money, CheaterResponse.LIE), margins(draw, money, CheaterResponse.SILENCE), strict=True)
    expected = {lie.cheated: lie.gain - min(lie.loss, silence.loss) for lie, silence in ways}
    best = max(expected, key=lambda cheated: (expected[cheated], cheated))
    return best if expected[best] > 0 else 0


def incomes(
    draw: AuditDrawTerms, money: RoundStakes, verifiers: int, draws: np.random.Generator
) -> tuple[AgentIncome, ...]:
    """Of each kind of agent; a pair's are added up."""
    pay, cost, stake = float(money.pay), float(money.cost), float(money.stake)
    cheated = chosen(draw, money) or draw.segments  # who would rather not is made to
    kept = pay - cost * (1 - cheated / draw.segments)
    lied, silent = (_caught(draw, cheated, way, draws) for way in CheaterResponse)
    covered = lied & ~_is_covered(draw, verifiers, draws)
    bounty = BOUNTY * stake
    rigged = draws.random(ROUNDS) < float(draw.absent) ** draw.voices
    return (
        _income("honest worker", np.full(ROUNDS, pay - cost)),
        _income("cheater that lies", kept - lied * (pay + stake)),
        _income("cheater that shows nothing", kept - silent * (pay + float(money.silence) * stake)),
        _income("idle worker and the friend who accuses it", np.full(ROUNDS, _accused_by_a_friend(draw, money))),
        _income("cheater and a verifier that covers it", kept - covered * (pay + stake)),
        _income("griefer that a jury hears", rigged * (bounty / draw.voices) - ~rigged * stake),
    )


def _accused_by_a_friend(draw: AuditDrawTerms, money: RoundStakes) -> float:
    """All who must agree are its friends: the kindest case."""
    return float(friends_profit(money.stake, Fraction(BOUNTY), draw.voices, draw.voices))


def _income(who: str, earned: NDArray[np.floating[Any]]) -> AgentIncome:
    return AgentIncome(who, float(earned.mean()), float(earned.std() / np.sqrt(len(earned))))


def _caught(draw: AuditDrawTerms, cheated: int, way: CheaterResponse, draws: np.random.Generator) -> NDArray[np.bool_]:
    """Rounds in which a cheater is punished: each step of an audit is drawn."""
    drawn = draws.random(ROUNDS) < float(draw.rate)
    opened = draws.hypergeometric(cheated, draw.segments - cheated, draw.sampled, ROUNDS) > 0
    looked = _agreed(draw, draws.random((ROUNDS, draw.voices + draw.spare)) >= float(draw.absent))
    seen = draws.random(ROUNDS) < (float(draw.seen) if way is CheaterResponse.LIE else 1.0)
    caught: NDArray[np.bool_] = drawn & opened & looked & seen
    return caught


def _is_covered(draw: AuditDrawTerms, verifiers: int, draws: np.random.Generator) -> NDArray[np.bool_]:
    """Rounds in which one certain verifier, of so many, is drawn where its denial ends an accusation."""
    places = np.arange(draw.voices + draw.spare)
    looks = (draws.random(ROUNDS) * max(1, verifiers)).astype(np.int64)[:, None] != places
    return ~_agreed(draw, looks)


def _agreed(draw: AuditDrawTerms, looks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rounds in which enough find what is false; `looks`: of each round, which of those that may be asked looks."""
    found: NDArray[np.bool_] = looks[:, 0] & (looks[:, 1:].sum(axis=1) >= draw.voices - 1)
    return found


def _settled(draw: AuditDrawTerms, money: RoundStakes, seed: int) -> tuple[DilemmaEquilibrium, ...]:
    game = DilemmaGame(draw, money, weakest(draw, money, CheaterResponse.LIE).cheated)
    canaries, stake = CANARIES
    settings = (
        ("no canaries", game),
        (
            f"{100 * canaries:g} % canaries, a stake of {stake:g}",
            replace(game, canaries=canaries, verifier_stake=stake),
        ),
        ("without any stake", replace(game, money=replace(money, stake=Fraction(0)))),
    )
    courses = [(when, verifiers_dilemma.run(each, seed), each.is_checking_stable) for when, each in settings]
    return tuple(DilemmaEquilibrium(when, course.checking, course.honest, stable) for when, course, stable in courses)


def lines(played: AuditMarketResult, columns: int) -> list[str]:
    """The tables for people."""
    width = columns - 20
    head = f"Agents (seed {played.seed}), income of a round in rounds' pay"
    rows = [f"{head:<{width}}{'mean':>10}{'error':>10}"]
    rows += [f"  {one.who:<{width - 2}}{one.mean:>10.3f}{one.error:>10.3f}" for one in played.incomes]
    cheats = f"cheats in {played.cheated} of {played.segments} segments" if played.cheated else "does not cheat"
    rows.append(f"  A worker that weighs gain against risk {cheats}.")
    rows += ["", f"{'Where it comes to rest, and is checking stable?':<{width}}{'checking':>10}{'honest':>10}"]
    rows += [_rest(one, width) for one in played.settled]
    return rows


def _rest(settled: DilemmaEquilibrium, width: int) -> str:
    shares: Sequence[str] = [f"{100 * share:.1f} %" for share in (settled.checking, settled.honest)]
    when = f"{settled.when}: {'stable' if settled.is_stable else 'not stable'}"
    return f"  {when:<{width - 2}}{shares[0]:>10}{shares[1]:>10}"

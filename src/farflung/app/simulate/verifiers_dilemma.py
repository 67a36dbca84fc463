"""Simulates the verifier's dilemma as a game that two populations learn.

Verifiers have no reason to check if no worker cheats, and workers cheat if no verifier checks.

Replicator dynamics (Taylor & Jonker 1978): a way of playing spreads by what it earns above the other. In each epoch
both ways of both populations are played by AGENTS agents against others drawn by their shares; what they earn, not
what they should earn, moves the shares. A worker is honest, or cheats in `cheated` segments; a verifier checks, or
signs without looking. An audit is a canary with probability `canaries`: a known lie.

Where not all check, shares circle around the point at which both ways pay alike; what is compared is their mean over
the second half, which for replicator dynamics is that point (Hofbauer & Sigmund 1998, theorem 3.6.1).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import msgspec
import numpy as np

from farflung.verify.economics import AuditDrawTerms, RoundStakes, agreed, is_checking_stable, opened

BOUNTY: Final = 0.5  # of what a liar loses (ledger.rules.bounties)
AGENTS: Final = 400  # that play each way in an epoch
EPOCHS: Final = 6000
PACE: Final = 0.05  # by which an advantage of one round's pay moves a share in an epoch
STRAYS: Final = 0.001  # who tries the other way for no reason: no share falls below it


class DilemmaGame(msgspec.Struct, frozen=True):
    """One setting. Amounts in rounds' pay; defaults as in the research."""

    draw: AuditDrawTerms
    money: RoundStakes
    cheated: int
    check: float = 0.05  # what an audit costs who checks; the fee is paid either way
    canaries: float = 0.0
    jackpot: float = 0.0
    verifier_stake: float = 0.0  # lost by who signs a canary

    @property
    def is_checking_stable(self) -> bool:
        """Whether all go on checking where nobody cheats."""
        amounts = (self.canaries, self.jackpot, self.verifier_stake, self.check)
        return is_checking_stable(*(Fraction(amount) for amount in amounts))


class DilemmaAverages(msgspec.Struct, frozen=True):
    """Shares: means over the second half of all epochs."""

    checking: float
    honest: float


def run(game: DilemmaGame, seed: int, epochs: int = EPOCHS) -> DilemmaAverages:
    """Plays it from one half of each population."""
    draws = np.random.Generator(np.random.Philox(seed))
    checking = honest = 0.5
    seen: list[tuple[float, float]] = []
    for _ in range(epochs):
        more_honest = _workers(game, checking, draws)
        more_checking = _verifiers(game, honest, draws)
        honest = _moved(honest, more_honest)
        checking = _moved(checking, more_checking)
        seen.append((checking, honest))
    half = np.asarray(seen[epochs // 2 :])
    return DilemmaAverages(float(half[:, 0].mean()), float(half[:, 1].mean()))


def _moved(share: float, advantage: float) -> float:
    """By the logistic form of the replicator equation: it cannot leave 0 to 1, however large the advantage is."""
    odds = share / (1 - share) * float(np.exp(np.clip(PACE * advantage, -1.0, 1.0)))
    return min(max(odds / (1 + odds), STRAYS), 1 - STRAYS)


def _workers(game: DilemmaGame, checking: float, draws: np.random.Generator) -> float:
    """What honest workers earn above cheaters in a round. All that must agree are drawn from those who verify."""
    draw, money = game.draw, game.money
    drawn = draws.binomial(AGENTS, float(draw.rate))
    looks = Fraction(checking) * (1 - draw.absent)
    looked = draws.binomial(drawn, float(agreed(draw, looks)))
    caught = draws.binomial(looked, _hit(game))
    saved = float(money.cost) * game.cheated / draw.segments
    return float(caught) / AGENTS * float(money.pay + money.stake) - saved


def _verifiers(game: DilemmaGame, honest: float, draws: np.random.Generator) -> float:
    """What verifiers that check earn above those that do not, in an audit."""
    canaries = draws.binomial(AGENTS, game.canaries)
    cheats = draws.binomial(AGENTS - canaries, 1 - honest)
    found = draws.binomial(cheats, _hit(game))
    bounty = BOUNTY * float(game.money.stake) / game.draw.voices
    earned = found * bounty + canaries * (game.jackpot + game.verifier_stake)
    return float(earned) / AGENTS - game.check


def _hit(game: DilemmaGame) -> float:
    """The chance that an audit of a cheater finds one who looks: opened in a false segment, and it is seen."""
    return float(opened(game.draw, game.cheated) * game.draw.seen)

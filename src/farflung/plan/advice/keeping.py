"""What survives a host that leaves: checkpoints that lie elsewhere, or the others' copies (T9, P1).

    one host alone, sharded, a pipeline   a checkpoint counts once it has gone over the host's line: C = 8 S / u, for S
                                          bytes of weights and optimizer; R = 60 s + 8 S / d for who comes instead
    whole replicas in step                the others hold the same states: R is all that is lost
    whole replicas in rounds              the others hold what the round began with: R + H t / 2

Training waits while a checkpoint is sent: lines are what a step waits for, so both at once would be no faster. A disk
of the host's own would be quicker, and leaves with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from farflung.core.units import Seconds, format_bytes, format_short
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import Blocked, Fact, Kind, Stored
from farflung.plan.footprint.states import Recipe
from farflung.plan.links import Link
from farflung.plan.parallel import failures
from farflung.plan.parallel.storage import Storage, checkpoint_bytes, restoring, writing

RESTART: Final = 60.0  # seconds until processes stand again (assumed)
COUNTS_LEAST: Final = 0.05  # of the time: below that a way is none
PLENTY: Final = Storage(1, Link(1e12, 1e12, Seconds(0.0)))  # who stores is not what is waited for


def states(recipe: Recipe, parameters: float) -> float:
    """Bytes that training can go on from: weights and optimizer."""
    return checkpoint_bytes(parameters, recipe.weights, recipe.optimizer)


def restart(size: float, link: Link) -> Seconds:
    """Until somebody who comes instead has `size` bytes and stands."""
    return Seconds(RESTART + restoring(size, 1, 1, link, PLENTY))


class Kept(NamedTuple):
    """What survives: the share of time that counts, how it is derived, what goes over the slowest line for it."""

    efficiency: float
    facts: tuple[Fact, ...]
    stored: Stored | None = None  # None: nothing is written down


def checkpointed(sizes: Sequence[float], crew: Sequence[Host], mean: float) -> Kept:
    """Where each host sends what it holds over its line, so many bytes; `mean`: until one of them leaves."""
    cost, size, slow = max(
        ((writing(size, 1, host.link, PLENTY), size, host) for size, host in zip(sizes, crew, strict=True)),
        key=lambda each: each[0],
    )
    again = max(restart(size, host.link) for size, host in zip(sizes, crew, strict=True))
    kept = failures.best(cost, mean, again)
    text = f"{kept.formula}; {format_bytes(size)} up the line of {slow.name}"
    counts = (
        f"{kept.work:.5g} / {mean:.5g} x exp(-{again:.5g} / {mean:.5g})"
        f" / (exp(({kept.work:.5g} + {cost:.5g}) / {mean:.5g}) - 1); (W/M) e^(-R/M) / (e^((W + C)/M) - 1)"
    )
    facts = (
        Fact("checkpoint interval", format_short(kept.work), text, kept.source),
        Fact("work that counts", f"{kept.efficiency:.1%}", counts, kept.source),
    )
    return Kept(kept.efficiency, facts, Stored(size, kept.work))


def renewed(lost: float, mean: float, what: str) -> Kept:
    """The same where the others hold what is needed, and `lost` seconds go each time that one leaves."""
    share = mean / (mean + lost)
    text = f"{mean:.5g} s / ({mean:.5g} s + {lost:.5g} s); M / (M + L), {what}"
    fact = Fact("work that counts", f"{share:.1%}", text, "renewal reward: Daly 2006, section 2")
    return Kept(share, (fact,))


def blocked(kind: Kind, kept: Kept) -> Blocked | None:
    """Whether too little of the time counts for this to be a way."""
    efficiency, why = kept.efficiency, kept.facts[-1].formula
    if efficiency >= COUNTS_LEAST:
        return None
    return Blocked(
        kind,
        "churn",
        3,
        efficiency / COUNTS_LEAST,
        f"{efficiency:.1%} of the time would be work that counts: {why}",
        "hosts that stay longer, or faster lines",
    )

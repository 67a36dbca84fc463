"""Compares what survives the loss of a host: checkpoints stored elsewhere, or the copies of other replicas (T9,
P1).

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

from farflung.advice.layouts.training_options import DerivedFact, InfeasibleOption, LayoutKind, StoredCheckpoint
from farflung.advice.memory.model_states import StateRecipe
from farflung.advice.offers.offer_file import OfferedHost
from farflung.advice.traffic import failures
from farflung.advice.traffic.storage_traffic import StorageNodes, checkpoint_bytes, restoring, writing
from farflung.core.units import Seconds, format_bytes, format_short
from farflung.plan.link_syntax import Link

RESTART: Final = 60.0  # seconds until processes stand again (assumed)
COUNTS_LEAST: Final = 0.05  # of the time: below that a way is none
PLENTY: Final = StorageNodes(1, Link(1e12, 1e12, Seconds(0.0)))  # who stores is not what is waited for


def states(recipe: StateRecipe, parameters: float) -> float:
    """Bytes that training can go on from: weights and optimizer."""
    return checkpoint_bytes(parameters, recipe.weights, recipe.optimizer)


def restart(size: float, link: Link) -> Seconds:
    """Until somebody who comes instead has `size` bytes and stands."""
    return Seconds(RESTART + restoring(size, 1, 1, link, PLENTY))


class CheckpointEfficiency(NamedTuple):
    """What survives: the share of time that counts, how it is derived, what goes over the slowest line for it."""

    efficiency: float
    facts: tuple[DerivedFact, ...]
    stored: StoredCheckpoint | None = None  # None: nothing is written down


def checkpointed(sizes: Sequence[float], hosts: Sequence[OfferedHost], mean: float) -> CheckpointEfficiency:
    """Where each host sends what it holds over its line, so many bytes; `mean`: until one of them leaves."""
    cost, size, slow = max(
        ((writing(size, 1, host.link, PLENTY), size, host) for size, host in zip(sizes, hosts, strict=True)),
        key=lambda each: each[0],
    )
    again = max(restart(size, host.link) for size, host in zip(sizes, hosts, strict=True))
    kept = failures.best(cost, mean, again)
    text = f"{kept.formula}; {format_bytes(size)} up the line of {slow.name}"
    counts = (
        f"{kept.work:.5g} / {mean:.5g} x exp(-{again:.5g} / {mean:.5g})"
        f" / (exp(({kept.work:.5g} + {cost:.5g}) / {mean:.5g}) - 1); (W/M) e^(-R/M) / (e^((W + C)/M) - 1)"
    )
    facts = (
        DerivedFact("checkpoint interval", format_short(kept.work), text, kept.source),
        DerivedFact("work that counts", f"{kept.efficiency:.1%}", counts, kept.source),
    )
    return CheckpointEfficiency(kept.efficiency, facts, StoredCheckpoint(size, kept.work))


def renewed(lost: float, mean: float, what: str) -> CheckpointEfficiency:
    """The same where the others hold what is needed, and `lost` seconds go each time that one leaves."""
    share = mean / (mean + lost)
    text = f"{mean:.5g} s / ({mean:.5g} s + {lost:.5g} s); M / (M + L), {what}"
    fact = DerivedFact("work that counts", f"{share:.1%}", text, "renewal reward: Daly 2006, section 2")
    return CheckpointEfficiency(share, (fact,))


def blocked(kind: LayoutKind, kept: CheckpointEfficiency) -> InfeasibleOption | None:
    """Whether too little of the time counts for this to be a way."""
    efficiency, why = kept.efficiency, kept.facts[-1].formula
    if efficiency >= COUNTS_LEAST:
        return None
    return InfeasibleOption(
        kind,
        "churn",
        3,
        efficiency / COUNTS_LEAST,
        f"{efficiency:.1%} of the time would be work that counts: {why}",
        "hosts that stay longer, or faster lines",
    )

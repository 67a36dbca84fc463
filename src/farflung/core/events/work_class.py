"""Defines the events for a job's proof class and for the results of its loss probes."""

from __future__ import annotations

import msgspec

from farflung.core.events.base import Event


class JobClassEvent(Event, frozen=True, tag="class"):
    """The job's class, once its model was traced: `graph` is the canonical graph's id, `reason` why there is none."""

    is_proven: bool
    graph: str
    reason: str


class LossScoreEvent(Event, frozen=True, tag="scored"):
    """What each accepted contribution of a round does to the loss, as the round's verifiers state it.

    `gains`: how much better validation loss was with it alone, and `own` the same on its own data, nats per token, by
    the first verifier; in the order of `peers`. `unpaid`: who is not paid for the round because of it.
    """

    round: int
    verifiers: tuple[str, ...]
    loss: float
    peers: tuple[str, ...]
    gains: tuple[float, ...]
    own: tuple[float, ...]
    unpaid: tuple[str, ...]
    seconds: float


class LossProbeCounts(msgspec.Struct, frozen=True):
    """Contributions of a run whose effect on the loss was measured, and those that were not paid for it."""

    scored: int = 0
    unpaid: int = 0

"""What can be shown of a run's work. Part of core.events."""

from __future__ import annotations

from farflung.core.events_base import Event


class Classed(Event, frozen=True, tag="class"):
    """The job's class, once its model was traced: `graph` is the canonical graph's id, `reason` why there is none."""

    is_proven: bool
    graph: str
    reason: str

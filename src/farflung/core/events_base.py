"""What all events have in common: the base of those in core.events and core.events_of_ways."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=False):
    """Base of all events."""

    at: float = 0.0

"""Defines the common base of all events in core.events."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=False):
    """Base of all events."""

    at: float = 0.0

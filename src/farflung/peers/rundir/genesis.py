"""Defines what the accounts of a run's own ledger hold when it begins."""

from __future__ import annotations

from typing import Final

from farflung.core.money import MICRO

FUNDS: Final = 10_000 * MICRO  # what a local run's requester has for relays: no part of a job's budget

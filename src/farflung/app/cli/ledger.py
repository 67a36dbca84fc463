"""Defines the command group `ledger`, for operators and readers of a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from farflung.app.cli.lazy_group import LazyCommandGroup

# Each verb's place: the module is imported when the verb is used.
PLACES: Final[Mapping[str, str]] = {
    "init": "ledger_init:init",
    "validator": "ledger_init:validator",
    "audit": "ledger_audit:audit",
    "status": "ledger_seats:status",
    "join": "ledger_seats:join",
    "leave": "ledger_seats:leave",
    "motion": "ledger_motion:motion",
    "dispute": "ledger_dispute:dispute",
    "exclusion": "ledger_exclusion:exclusion",
    "show": "ledger_show:show",
    "statement": "ledger_statement:statement",
    "export": "ledger_statement:export",
    "serve": "ledger_serve:serve",
}


class LedgerCommandGroup(LazyCommandGroup):
    """The ledger's verbs, operators' first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs alone, so that they fit a screen: the one option is how one came here."""
        self.format_commands(ctx, formatter)


@click.group(cls=LedgerCommandGroup, places=PLACES, epilog="Example: farflung ledger show head")
def ledger() -> None:
    """Run and inspect a ledger, and check its proofs."""

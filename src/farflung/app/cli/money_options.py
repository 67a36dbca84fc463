"""Reads amounts of money as flags and arguments of commands give them: in credits, to the last pico-credit."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

import click

from farflung.core.errors import FarflungError, UsageError
from farflung.core.money import CREDIT, MAX_CREDITS, format_credits, parse_credits


class CreditsParam(click.ParamType[int]):
    """A flag's amount in credits; the command gets pico-credits."""

    name = "credits"

    def __init__(self, least: int = 0, most: int = MAX_CREDITS) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The amount; an integer is a default of the program's own, in pico-credits."""
        if isinstance(value, int):
            return value
        try:
            found = parse_credits(str(value))
        except FarflungError as error:
            self.fail(f"{error.message}: {error.cause}", param, ctx)
        if not self._least <= found <= self._most:
            self.fail(
                f"{value} is not {format_credits(self._least)} to {format_credits(self._most)} credits", param, ctx
            )
        return found


def amount_in(text: str) -> int:
    """Pico-credits. Raises UsageError FF-APP-318."""
    try:
        amount = Decimal(text) * CREDIT
    except InvalidOperation:
        amount = Decimal(0)
    if not amount.is_finite() or amount < 1 or amount != amount.to_integral_value() or amount > MAX_CREDITS:
        raise UsageError(
            "FF-APP-318",
            f"{text[:40]!r} is no amount",
            cause=f"an amount is in credits, above 0, to twelve decimals, {format_credits(MAX_CREDITS)} at most",
            hint="farflung account pay ACCOUNT 12.5 --on NETWORK",
        )
    return int(amount)

"""Reads amounts of money as flags and arguments of commands give them: in credits, to the last pico-credit."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import click

from farflung.core.errors import FarflungError, UsageError
from farflung.core.money import CREDIT, MAX_CREDITS, format_credits, parse_credits
from farflung.job.proof_class import OUTCOME_PRICE
from farflung.peers.node.job_fit import ClassPrices


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


class LeastPrice(NamedTuple):
    """The least that a lender asks for a token: its standing ask, and what it asks more for jobs of a class."""

    standing: int
    prices: ClassPrices = ClassPrices()

    def __str__(self) -> str:
        """As it is written."""
        more = [f"{name}={format_credits(value)}" for name, value in self.prices._asdict().items() if value]
        return ",".join([format_credits(self.standing), *more])


class LeastPriceParam(click.ParamType[LeastPrice]):
    """Credits a token, and after commas CLASS=CREDITS for what is asked more."""

    name = "credits"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> LeastPrice:
        """The amounts, in pico-credits."""
        if isinstance(value, LeastPrice):
            return value
        standing, *more = str(value).split(",")
        amount = CreditsParam()
        found = LeastPrice(amount.convert(standing, param, ctx))
        for each in more:
            name, _, credits = each.partition("=")
            if name not in ClassPrices._fields:
                self.fail(
                    f"{each[:40]!r} is not CLASS=CREDITS with one of {', '.join(ClassPrices._fields)}", param, ctx
                )
            price = amount.convert(credits, param, ctx)
            if price < found.standing:
                self.fail(f"{each[:40]!r} is less than {standing}, which is asked of every job", param, ctx)
            found = found._replace(prices=found.prices._replace(**{name: price}))
        if found.prices.outcome > OUTCOME_PRICE:
            self.fail(f"no outcome-only job pays more than {format_credits(OUTCOME_PRICE)} a token", param, ctx)
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

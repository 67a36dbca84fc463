"""Reads the price of electricity and the reference to compare with from a file of offers (P3).

[energy]
kwh = 0.30        # what a kWh costs, in the currency of the offers: their owners pay it
[reference]
card = "A100"     # of the table of cards; an A100 where nothing is said
price = 1.71      # what one of it costs an hour, in the same currency: without it no prices are compared
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import msgspec

from farflung.advice.hardware.card import FactorPrecision
from farflung.advice.hardware.card_table import CardTable
from farflung.advice.hardware.number_checks import MOST_PRICE, checked, positive
from farflung.advice.hardware.value_per_watt import A100, ReferenceCard
from farflung.core.errors import FarflungError, UsageError

KEYS: Final[Mapping[str, tuple[str, ...]]] = {"energy": ("kwh",), "reference": ("card", "price")}


class EnergyTerms(msgspec.Struct, frozen=True):
    """`kilowatt_hour`: None where nobody says it; `is_priced`: whether the reference's hour is in the offers' money."""

    kilowatt_hour: float | None = None
    reference: ReferenceCard = A100
    is_priced: bool = False


def of(tree: Mapping[str, Any], table: CardTable) -> EnergyTerms:
    """The terms of a file that was read. Raises UsageError FF-PLAN-061 with the key that is unknown or impossible."""
    for section, keys in KEYS.items():
        said = tree.get(section, {})
        if not isinstance(said, Mapping):
            refuse(f"[{section}]", section, f"it is a part: [{section}]")
        for key in said:
            if key not in keys:
                refuse(f"[{section}]", key[:40], f"known are {', '.join(keys)}")
    tariff = _number(tree, "energy", "kwh")
    price = _number(tree, "reference", "price")
    kilowatt_hour = None if tariff is None else _told("energy", "kwh", lambda: checked("kwh", tariff, 0.0, MOST_PRICE))
    reference = _told("reference", "card", lambda: _reference(tree.get("reference", {}).get("card"), table))
    if price is not None:
        hour = _told("reference", "price", lambda: positive("price", price, MOST_PRICE))
        reference = msgspec.structs.replace(reference, hour=hour)
    return EnergyTerms(kilowatt_hour, reference, price is not None)


def _reference(name: Any, table: CardTable) -> ReferenceCard:
    if name is None or name == A100.name:
        return A100
    if not isinstance(name, str):
        refuse("[reference]", "card", "it is a text in quotes")
    card = table.find(name)
    watts = card.power[0]
    if watts is None:
        refuse("[reference]", "card", f"the power of {card.name} is not known")
    return ReferenceCard(card.rate(FactorPrecision.BF16).flops, watts, name=card.name)


def _number(tree: Mapping[str, Any], section: str, key: str) -> float | None:
    value = tree.get(section, {}).get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        refuse(f"[{section}]", key, "it is a number, without quotes")
    return None if value is None else float(value)


def _told(section: str, key: str, read: Any) -> Any:
    try:
        return read()
    except FarflungError as error:
        if error.code == "FF-PLAN-061":
            raise
        cause = f"{error.message}: {error.cause}" if error.cause else error.message
        refuse(f"[{section}]", key, cause)


def refuse(called: str, key: str, cause: str, hint: str = "") -> NoReturn:
    """Raises UsageError FF-PLAN-061: what a part of the file is called cannot be planned with, because of a key."""
    raise UsageError(
        "FF-PLAN-061",
        f"{called} cannot be planned with: {key}",
        cause=cause,
        hint=hint or "docs/plan/advise.md shows a file of offers",
    )
